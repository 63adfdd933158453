package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// wire is a proxy in front of a node's listener through which everybody goes, and which loses what single processes send and are sent:
// as in a network that is cut, nobody is told.
type wire struct {
	tb     testing.TB
	listen net.Listener
	jobs   sync.WaitGroup

	mu     sync.Mutex
	target string
	dead   []int         // process ids
	mended chan struct{} // closed at the next change of dead
	links  map[*link]bool
	ended  bool
}

// link is a connection through a wire.
type link struct {
	from, to net.Conn // to is nil until it is dialled
	inode    string   // of the socket of whoever made it
}

// newWire listens, and hands on to the address that leads is given later.
func newWire(tb testing.TB) *wire {
	tb.Helper()
	return newWireAt(tb, freePort(tb))
}

func newWireAt(tb testing.TB, port int) *wire {
	tb.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		tb.Fatal(err)
	}
	w := &wire{tb: tb, listen: l, mended: make(chan struct{}), links: map[*link]bool{}}
	w.jobs.Go(w.accept)
	tb.Cleanup(w.end)
	return w
}

func (w *wire) addr() string { return w.listen.Addr().String() }

// leads sets where the wire leads to.
func (w *wire) leads(target string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.target = target
}

// cut loses all that passes between the node and processes from now on; without any, everything passes again, what was held up first.
func (w *wire) cut(dead ...*shim) {
	var pids []int
	for _, s := range dead {
		pids = append(pids, s.cmd.Process.Pid)
	}
	w.cutOff(pids...)
}

// cutOff is cut for processes of any kind.
func (w *wire) cutOff(pids ...int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = pids
	close(w.mended)
	w.mended = make(chan struct{})
}

func (w *wire) end() {
	w.cut()
	w.mu.Lock()
	w.ended = true
	w.listen.Close()
	for l := range w.links {
		l.close()
	}
	w.mu.Unlock()
	w.jobs.Wait()
}

func (l *link) close() {
	l.from.Close()
	if l.to != nil {
		l.to.Close()
	}
}

func (w *wire) accept() {
	for {
		c, err := w.listen.Accept()
		if err != nil {
			return
		}
		l := &link{from: c, inode: inodeOf(c.RemoteAddr().String(), w.addr())}
		w.mu.Lock()
		w.links[l] = true
		if w.ended {
			c.Close()
		}
		w.mu.Unlock()
		w.jobs.Go(func() { w.serve(l) })
	}
}

func (w *wire) serve(l *link) {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		l.close()
		delete(w.links, l)
	}()
	w.pass(l)
	w.mu.Lock()
	target := w.target
	w.mu.Unlock()
	to, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		return // the node does not run
	}
	w.mu.Lock()
	if l.to = to; w.ended {
		l.close()
	}
	w.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() { w.copy(l, l.from, to) })
	w.copy(l, to, l.from)
	back.Wait()
}

// copy hands on what comes from one end, and closes both when that ends.
func (w *wire) copy(l *link, to, from net.Conn) {
	defer func() { to.Close(); from.Close() }()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		w.pass(l)
		if err == nil {
			_, err = to.Write(b[:n])
		}
		if err != nil {
			return
		}
	}
}

// pass waits while the link is cut.
func (w *wire) pass(l *link) {
	for {
		w.mu.Lock()
		mended, dead := w.mended, slices.Clone(w.dead)
		w.mu.Unlock()
		if !slices.ContainsFunc(dead, func(pid int) bool { return hasSocket(pid, l.inode) }) {
			return
		}
		<-mended
	}
}

// hasSocket reports whether a socket is one of a process.
func hasSocket(pid int, inode string) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(fds, func(fd string) bool {
		name, err := os.Readlink(fd)
		return err == nil && name == "socket:["+inode+"]"
	})
}

// inodeOf finds the socket of a loopback connection by its two ends. It looks again where there is none: lines may be missing from what the
// kernel shows while others come and go.
func inodeOf(local, remote string) (inode string) {
	for i := 0; i < 5 && inode == ""; i++ {
		if inode = listedInode("/proc/net/tcp", "", local, remote); inode == "" {
			inode = listedInode("/proc/net/tcp6", "0000000000000000FFFF0000", local, remote) // as Java makes them
		}
	}
	return inode
}

func listedInode(file, prefix, local, remote string) string {
	hex := func(addr string) string {
		var port int
		fmt.Sscanf(addr, "127.0.0.1:%d", &port)
		return fmt.Sprintf("%s0100007F:%04X", prefix, port)
	}
	table, _ := os.ReadFile(file)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == hex(local) && f[2] == hex(remote) {
			return f[9]
		}
	}
	return ""
}
