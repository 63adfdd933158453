package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Without root a namespace can't be joined to this host's network. So there are two, in a user namespace of ours: in the one are clients, in
// the other sockets that listen where clients look for the gateway. Those sockets are handed to this process, which passes what comes on.

// networkVariable tells the test's binary that it is to be keepNetwork.
const networkVariable = "KMIRROR_COMPAT_NETWORK"

// Addresses of the two namespaces.
var userHost, userClients = net.IPv4(198, 18, 0, 1), net.IPv4(198, 18, 0, 2)

// makeUserNamespace makes a namespace for clients as anybody, where the kernel lets anybody. It ends with close.
func makeUserNamespace() (ns *namespace, err error) {
	for _, tool := range []string{"ip", "nsenter", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, err
		}
	}
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "ours"), os.NewFile(uintptr(ends[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), networkVariable+"=1")
	cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs}, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	ns = &namespace{host: userHost, keeper: conn.(*net.UnixConn)}
	ns.close = func() error {
		ns.keeper.Close() // ends it
		return cmd.Wait()
	}
	pid, _, err := ns.ask("")
	if err == nil {
		_, err = strconv.Atoi(pid)
	}
	if err != nil {
		return nil, errors.Join(err, ns.close())
	}
	// Who enters a user namespace loses the signal for the parent's end, hence setpriv.
	ns.enter = []string{"nsenter", "--preserve-credentials", "--user", "--net", "--target", pid, "setpriv", "--pdeathsig", "KILL"}
	return ns, nil
}

// ask has the keeper listen on a port, and returns what it says and the socket that it hands over. With "" it tells the process id of the
// clients' namespace.
func (ns *namespace) ask(port string) (answer string, socket *os.File, err error) {
	ns.keeper.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := ns.keeper.Write([]byte("listen " + port)); err != nil {
		return "", nil, err
	}
	b, rights := make([]byte, 1000), make([]byte, syscall.CmsgSpace(4))
	n, m, _, _, err := ns.keeper.ReadMsgUnix(b, rights)
	if err != nil || n == 0 {
		return "", nil, fmt.Errorf("the network's keeper has ended: %w", errors.Join(err, io.EOF))
	}
	answer = string(b[:n])
	if what, failed := strings.CutPrefix(answer, "error: "); failed {
		return "", nil, errors.New(what)
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:m])
	if err != nil || len(messages) == 0 {
		return answer, nil, err
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil {
		return "", nil, err
	}
	return answer, os.NewFile(uintptr(fds[0]), "listener"), nil
}

// keepNetwork is the process that holds both namespaces, until the other end of its socket is closed.
func keepNetwork() error {
	file := os.NewFile(3, "socket")
	conn, err := net.FileConn(file)
	if err != nil {
		return err
	}
	file.Close()
	socket := conn.(*net.UnixConn)
	clients, failed := clientNetwork()
	for b := make([]byte, 100); ; {
		n, err := socket.Read(b)
		if err != nil || n == 0 {
			return nil
		}
		answer, rights := strconv.Itoa(clients), []byte(nil)
		err = failed
		if port := strings.TrimPrefix(string(b[:n]), "listen "); port != "" && err == nil {
			rights, err = listenerFor(port)
		}
		if err != nil {
			answer = "error: " + err.Error()
		}
		if _, _, err := socket.WriteMsgUnix([]byte(answer), rights, nil); err != nil {
			return err
		}
	}
}

// listenerFor opens a socket of this namespace, as it is handed over.
func listenerFor(port string) ([]byte, error) {
	l, err := net.Listen("tcp4", net.JoinHostPort(userHost.String(), port))
	if err != nil {
		return nil, err
	}
	f, err := l.(*net.TCPListener).File() // both stay open in this process, which accepts nothing
	if err != nil {
		return nil, err
	}
	return syscall.UnixRights(int(f.Fd())), nil
}

// clientNetwork makes the namespace of clients, joined to this one, and returns a process that holds it and ends with this one.
func clientNetwork() (pid int, err error) {
	hold := exec.Command("sh", "-c", fmt.Sprintf("set -e; read go; "+
		"ip addr add %s/30 dev clients; ip link set clients up; ip link set lo up; echo ready; exec cat", userClients))
	hold.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	var errs strings.Builder
	hold.Stderr = &errs
	in, err := hold.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := hold.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := hold.Start(); err != nil {
		return 0, err
	}
	pid = hold.Process.Pid
	for _, line := range []string{
		fmt.Sprintf("link add gateway type veth peer name clients netns %d", pid),
		fmt.Sprintf("addr add %s/30 dev gateway", userHost),
		"link set gateway up",
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("ip %s: %w %s", line, err, strings.TrimSpace(string(out)))
		}
	}
	fmt.Fprintln(in, "go")
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		hold.Wait()
		return 0, fmt.Errorf("network of clients: %w %s", err, strings.TrimSpace(errs.String()))
	}
	return pid, nil
}

// forward passes connections of clients to ports of the gateway on to it, until the test ends.
func (ns *namespace) forward(t *testing.T, first, n int) {
	t.Helper()
	if ns.keeper == nil {
		return // the gateway listens there itself
	}
	var jobs sync.WaitGroup
	t.Cleanup(jobs.Wait)
	for port := first; port < first+n; port++ {
		_, socket, err := ns.ask(strconv.Itoa(port))
		if err != nil {
			t.Fatalf("port %d of the clients' network: %v", port, err)
		}
		l, err := net.FileListener(socket)
		if err != nil {
			t.Fatal(err)
		}
		socket.Close()
		t.Cleanup(func() { l.Close() })
		to := fmt.Sprintf("127.0.0.1:%d", port)
		jobs.Go(func() {
			for {
				nc, err := l.Accept()
				if err != nil {
					return
				}
				jobs.Go(func() { pass(nc.(*net.TCPConn), to) })
			}
		})
	}
}

// pass passes a connection on. It ends when both sides have.
func pass(client *net.TCPConn, to string) {
	defer client.Close()
	nc, err := net.Dial("tcp", to)
	if err != nil {
		client.SetLinger(0)
		return
	}
	gateway := nc.(*net.TCPConn)
	defer gateway.Close()
	var both sync.WaitGroup
	for _, way := range [][2]*net.TCPConn{{gateway, client}, {client, gateway}} {
		both.Go(func() {
			if _, err := io.Copy(way[0], way[1]); err != nil {
				client.Close()
				gateway.Close()
			}
			way[0].CloseWrite()
		})
	}
	both.Wait()
}

// TestOwnNetwork: in a network of their own clients reach the gateway's ports, and nothing else; packets to where a broker would be are
// noticed.
func TestOwnNetwork(t *testing.T) {
	for name, create := range map[string]func() (*namespace, error){"as root": makeNamespace, "as anybody": makeUserNamespace} {
		t.Run(name, func(t *testing.T) {
			ns, err := create()
			if err != nil {
				t.Skipf("not possible here: %v", err)
			}
			t.Cleanup(func() {
				if err := ns.close(); err != nil {
					t.Error(err)
				}
			})
			ns.ownNetwork(t)
		})
	}
}

func (ns *namespace) ownNetwork(t *testing.T) {
	at := ns.address()
	if ns.keeper != nil {
		at = "127.0.0.1"
	}
	gateway, broker := greets(t, at, "gateway"), greets(t, "127.0.0.1", "broker")
	reads := func(host string, port int) string {
		cmd := exec.CommandContext(timeout(t, 20*time.Second), "bash", "-c", fmt.Sprintf("cat </dev/tcp/%s/%d", host, port))
		out, _ := ns.inside(cmd).CombinedOutput()
		return string(out)
	}
	ns.forward(t, gateway, 1)
	if out := reads(ns.address(), gateway); out != "gateway" {
		t.Errorf("the gateway: %s", out)
	}
	before, err := ns.strayed(timeout(t, 20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{ns.address(), "127.0.0.1"} {
		if out := reads(host, broker); !strings.Contains(out, "Connection refused") {
			t.Errorf("a broker at %s: %s", host, out)
		}
	}
	if after, err := ns.strayed(timeout(t, 20*time.Second)); err != nil || after == before {
		t.Errorf("%d packets to loopback before, %d after (%v)", before, after, err)
	}
}

// greets listens until the test ends and says a word to whoever comes.
func greets(t *testing.T, host, word string) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	var job sync.WaitGroup
	job.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(nc, word)
			nc.Close()
		}
	})
	t.Cleanup(func() { l.Close(); job.Wait() })
	return l.Addr().(*net.TCPAddr).Port
}
