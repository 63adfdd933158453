package testkafka

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"kmirror/protocol"
)

const (
	metaFile = "meta.properties"
	// stopLimit is how long a node may take for its (controlled) shutdown.
	stopLimit = 60 * time.Second
	// startLimit covers the session of a killed incarnation (9 s), which must expire first.
	startLimit = 2 * time.Minute
)

// Node is one Kafka node: a JVM, its directory and its ports, which it keeps over restarts.
type Node struct {
	ID         int32
	Broker     bool
	Controller bool

	keeper     bool // ZooKeeper's
	cluster    *Cluster
	dir        string
	ports      map[string]int
	properties map[string]string

	mu     sync.Mutex
	proc   *process // nil: never started, or ended on request
	logPos int64    // size of the log when proc was started
	died   []string // ends of this node that nobody asked for
}

func (n *Node) roles() []string {
	var r []string
	if n.Broker {
		r = append(r, "broker")
	}
	if n.Controller {
		r = append(r, "controller")
	}
	return r
}

// Addr is the node's address on a listener, "" if it has none of that name.
func (n *Node) Addr(listener string) string {
	port, ok := n.ports[listener]
	if !ok {
		return ""
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// LogDir is the node's only log directory.
func (n *Node) LogDir() string { return filepath.Join(n.dir, "data") }

// Log is the file with all that the node has logged, over all restarts.
func (n *Node) Log() string { return filepath.Join(n.dir, "node.log") }

func (n *Node) configFile() string { return filepath.Join(n.dir, "server.properties") }

func (n *Node) String() string { return fmt.Sprintf("node %d of %s", n.ID, n.cluster.opts.Name) }

// PID is the process id, 0 when the node does not run.
func (n *Node) PID() int {
	if p := n.process(); p != nil {
		if _, ended := p.exited(); !ended {
			return p.pid()
		}
	}
	return 0
}

func (n *Node) process() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc
}

// formatDir writes what StorageTool would: the files that are the same for all nodes, and meta.properties.
func (n *Node) formatDir(directory protocol.UUID) error {
	if err := os.MkdirAll(n.LogDir(), 0o755); err != nil {
		return err
	}
	if n.cluster.opts.ZooKeeper {
		return nil
	}
	if err := os.CopyFS(n.LogDir(), os.DirFS(n.cluster.format)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	meta := fmt.Sprintf("version=1\ncluster.id=%s\nnode.id=%d\ndirectory.id=%s\n", n.cluster.ID(), n.ID, directory)
	return os.WriteFile(filepath.Join(n.LogDir(), metaFile), []byte(meta), 0o644)
}

// Spawn starts the node and does not wait until it is ready. Of several nodes that need one another, such as two of
// three controllers, all but the last must be started so.
func (n *Node) Spawn() error {
	if n.PID() != 0 {
		return fmt.Errorf("%v runs already", n)
	}
	out, err := os.OpenFile(n.Log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer out.Close() // the child has its own
	info, err := out.Stat()
	if err != nil {
		return err
	}
	l, o := n.cluster.lib, n.cluster.opts
	args := append(l.javaArgs(o.Heap, nodeLogConfig, o.JVM...), n.mainClass(), n.configFile())
	cmd := exec.Command(l.java, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = n.dir, out, out
	p, err := startProcess(cmd)
	if err != nil {
		return fmt.Errorf("%v: %w", n, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noteDeath()
	n.proc, n.logPos = p, info.Size()
	return nil
}

// noteDeath remembers the end of a process that was not asked to end. n.mu is held.
func (n *Node) noteDeath() {
	if n.proc == nil || n.proc.wanted.Load() {
		return
	}
	if state, ended := n.proc.exited(); ended {
		n.died = append(n.died, state)
		n.proc = nil
	}
}

// Start starts the node and waits until it does its work: a broker is unfenced and in its own metadata, a controller
// knows the quorum's leader.
func (n *Node) Start() error {
	if err := n.Spawn(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	return n.Wait(ctx)
}

// Wait waits until a node that was spawned or resumed does its work, see Start.
func (n *Node) Wait(ctx context.Context) error { return n.ready(ctx, []int32{n.ID}) }

// Stop asks the node to shut down (SIGTERM; brokers do a controlled shutdown) and waits for its end.
func (n *Node) Stop() error {
	return n.end(func(p *process) error { return p.stop(stopLimit) })
}

// Kill ends the node with SIGKILL and waits for its end.
func (n *Node) Kill() error { return n.end((*process).kill) }

func (n *Node) end(how func(*process) error) error {
	n.mu.Lock()
	n.noteDeath()
	p := n.proc
	n.mu.Unlock()
	if p == nil {
		return nil
	}
	if err := how(p); err != nil {
		return fmt.Errorf("%v: %w", n, err)
	}
	return nil
}

// Pause stops the node's process where it is (SIGSTOP): its connections stay open and nothing answers.
func (n *Node) Pause() error { return n.signal(syscall.SIGSTOP) }

// Resume lets a paused node go on.
func (n *Node) Resume() error { return n.signal(syscall.SIGCONT) }

func (n *Node) signal(sig syscall.Signal) error {
	p := n.process()
	if p == nil {
		return fmt.Errorf("%v does not run", n)
	}
	if err := p.signal(sig); err != nil {
		return fmt.Errorf("%v: %w", n, err)
	}
	return nil
}

// Wipe empties the log directory of a node that does not run and formats it as the same node with the same directory
// id: all data is lost, and the controller has no means to know.
func (n *Node) Wipe() error {
	if n.PID() != 0 {
		return fmt.Errorf("%v runs: not wiped", n)
	}
	id, err := n.directoryID()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(n.LogDir()); err != nil {
		return err
	}
	return n.formatDir(id)
}

func (n *Node) directoryID() (protocol.UUID, error) {
	text, err := os.ReadFile(filepath.Join(n.LogDir(), metaFile))
	if err != nil {
		return protocol.UUID{}, err
	}
	return protocol.ParseUUID(property(string(text), "directory.id"))
}
