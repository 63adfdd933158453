package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// doorman stands in front of a broker's client listener, at the address that the broker advertises, and notes which process comes.
type doorman struct {
	tb testing.TB
	ln net.Listener

	mu    sync.Mutex
	to    string
	conns map[net.Conn]bool
	seen  map[int]int // connections by process, 0 for one that could not be told
	wg    sync.WaitGroup
}

func newDoorman(tb testing.TB) *doorman {
	tb.Helper()
	ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", freePort(tb)))
	if err != nil {
		tb.Fatal(err)
	}
	d := &doorman{tb: tb, ln: ln, conns: map[net.Conn]bool{}, seen: map[int]int{}}
	d.wg.Go(d.serve)
	tb.Cleanup(func() {
		ln.Close()
		d.mu.Lock()
		for c := range d.conns {
			c.Close()
		}
		d.mu.Unlock()
		d.wg.Wait()
	})
	return d
}

// leadsTo says where the broker really is.
func (d *doorman) leadsTo(addr string) {
	d.mu.Lock()
	d.to = addr
	d.mu.Unlock()
}

// hangUp ends all connections.
func (d *doorman) hangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		c.Close()
	}
}

func (d *doorman) serve() {
	for {
		c, err := d.ln.Accept()
		if err != nil {
			return
		}
		d.wg.Go(func() { d.pass(c) })
	}
}

func (d *doorman) pass(c net.Conn) {
	defer c.Close()
	pid := peerOf(c)
	d.mu.Lock()
	d.seen[pid]++
	to := d.to
	d.conns[c] = true
	d.mu.Unlock()
	broker, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer broker.Close()
	d.mu.Lock()
	d.conns[broker] = true
	d.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(broker, c)
		broker.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(c, broker)
	c.Close()
	<-done
	d.mu.Lock()
	delete(d.conns, c)
	delete(d.conns, broker)
	d.mu.Unlock()
}

// strangers are the processes that came and are none of those.
func (d *doorman) strangers(allowed ...int) (list []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for pid, n := range d.seen {
		if pid != 0 && !slices.Contains(allowed, pid) {
			cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			list = append(list, fmt.Sprintf("process %d came to %s %d times: %.200s", pid, d.ln.Addr(), n, strings.ReplaceAll(string(cmd), "\x00", " ")))
		}
	}
	return list
}

// cameFrom is how many connections came from a process.
func (d *doorman) cameFrom(pid int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen[pid]
}

// peerOf finds the process of this machine at the other end of a connection; 0 when there is none any more.
func peerOf(c net.Conn) int {
	theirs, ours := c.RemoteAddr().(*net.TCPAddr).Port, c.LocalAddr().(*net.TCPAddr).Port
	inode := ""
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			field := strings.Fields(s.Text())
			if len(field) > 9 && strings.HasSuffix(field[1], fmt.Sprintf(":%04X", theirs)) && strings.HasSuffix(field[2], fmt.Sprintf(":%04X", ours)) {
				inode = "socket:[" + field[9] + "]"
			}
		}
		f.Close()
	}
	names := []string{strconv.Itoa(os.Getpid())} // before its children: until they are another program they hold all that it holds
	procs, _ := os.ReadDir("/proc")
	for _, p := range procs {
		names = append(names, p.Name())
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || inode == "" {
			continue
		}
		fds, _ := os.ReadDir("/proc/" + name + "/fd")
		for _, fd := range fds {
			if at, _ := os.Readlink("/proc/" + name + "/fd/" + fd.Name()); at == inode {
				return pid
			}
		}
	}
	return 0
}
