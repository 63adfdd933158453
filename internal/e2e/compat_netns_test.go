package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// namespacePrefix is followed by the id of the process that made a network namespace.
const namespacePrefix = "kmirror-compat-"

// namespace is a network of its own for clients: from there one address of this host is reachable, on which only kmirror listens. A nil
// namespace is this host's network.
type namespace struct {
	host net.IP // where the gateway is found
	// enter is what a command is preceded by to run there, close removes the namespace.
	enter []string
	close func() error
	// keeper is asked for sockets that clients can connect to, where root did not make the namespace.
	keeper *net.UnixConn
}

// newNamespace makes a namespace that ends with the test. Where nobody may it says so, and clients run in this host's network.
func newNamespace(t *testing.T) *namespace {
	t.Helper()
	removeStale(t)
	ns, err := makeNamespace()
	if err != nil {
		var failed error
		if ns, failed = makeUserNamespace(); failed != nil {
			t.Run("own network", func(t *testing.T) {
				t.Skipf("clients run in this host's network, since a namespace takes iproute2 and either root (%v) or a kernel that lets anybody make "+
					"user namespaces (%v; see user.max_user_namespaces, kernel.unprivileged_userns_clone, "+
					"kernel.apparmor_restrict_unprivileged_userns)", err, failed)
			})
			return nil
		}
		t.Logf("clients have a user namespace of their own, without root")
	}
	t.Cleanup(func() {
		if err := ns.close(); err != nil {
			t.Errorf("remove the clients' network: %v", err)
		}
	})
	return ns
}

// makeNamespace makes a namespace as root.
func makeNamespace() (*namespace, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("user id %d is not root's", os.Geteuid())
	}
	pid := os.Getpid()
	subnet := (pid & 0x3fff) << 2 // 198.18.0.0/15 is for tests of network devices
	at := func(last int) net.IP { return net.IPv4(198, 18, byte(subnet>>8), byte(subnet&0xff|last)) }
	name := namespacePrefix + strconv.Itoa(pid)
	remove := func() error {
		if out, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
			return fmt.Errorf("%w %s", err, out)
		}
		return nil
	}
	here, there := fmt.Sprintf("kmc%d", pid), fmt.Sprintf("kmn%d", pid)
	for i, line := range []string{
		"netns add " + name,
		fmt.Sprintf("link add %s type veth peer name %s netns %s", here, there, name),
		fmt.Sprintf("addr add %s/30 dev %s", at(1), here),
		fmt.Sprintf("link set %s up", here),
		fmt.Sprintf("-n %s addr add %s/30 dev %s", name, at(2), there),
		fmt.Sprintf("-n %s link set %s up", name, there),
		fmt.Sprintf("-n %s link set lo up", name),
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			if i > 0 {
				_ = remove()
			}
			return nil, fmt.Errorf("ip %s: %w %s", line, err, strings.TrimSpace(string(out)))
		}
	}
	return &namespace{host: at(1), enter: []string{"ip", "netns", "exec", name}, close: remove}, nil
}

// removeStale removes namespaces of runs that were killed.
func removeStale(t *testing.T) {
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		return // newNamespace says why
	}
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		pid, err := strconv.Atoi(strings.TrimPrefix(name, namespacePrefix))
		if err != nil || !strings.HasPrefix(name, namespacePrefix) || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			continue
		}
		if out, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
			t.Logf("remove %s: %v %s", name, err, out)
		}
	}
}

// inside makes a command run in the namespace, and end when the test does, however that ends.
func (ns *namespace) inside(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if ns == nil || cmd.Err != nil {
		return cmd
	}
	path, err := exec.LookPath(ns.enter[0])
	if err != nil {
		cmd.Err = err
		return cmd
	}
	cmd.Args = slices.Concat(ns.enter, []string{cmd.Path}, cmd.Args[1:])
	cmd.Path = path
	return cmd
}

// address is where clients of the namespace reach this host.
func (ns *namespace) address() string {
	if ns == nil {
		return "127.0.0.1"
	}
	return ns.host.String()
}

// strayed is the number of packets that clients have sent to addresses of loopback, where brokers are for this host.
func (ns *namespace) strayed(ctx context.Context) (int, error) {
	out, err := ns.inside(exec.CommandContext(ctx, "cat", "/proc/net/dev")).Output()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(out)) {
		if name, counts, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "lo" {
			return strconv.Atoi(strings.Fields(counts)[1])
		}
	}
	return 0, fmt.Errorf("no loopback in %q", out)
}

// closed: who goes where a broker is for this host, or where it would be at the address that is reachable, finds nobody; the same
// command works on this host.
func (b *compatBed) closed(t *testing.T) error {
	ctx := timeout(t, time.Minute)
	list := func(ns *namespace, addr, limit string) (string, error) {
		out, err := ns.inside(testkafka.Kcat(ctx, append(b.kcatLogin(), "-L", "-m", limit, "-b", addr)...)).CombinedOutput()
		return string(out), err
	}
	if out, err := list(b.ns, b.addr, "10"); err != nil {
		return fmt.Errorf("the gateway: %w: %s", err, out)
	}
	for _, broker := range append(b.dst.Bootstrap(testkafka.ClientListener), b.s.client) {
		_, port, err := net.SplitHostPort(broker)
		if err != nil {
			return err
		}
		if out, err := list(nil, broker, "10"); err != nil {
			return fmt.Errorf("%s can't be reached from this host either: %w: %s", broker, err, out)
		}
		for _, addr := range []string{broker, net.JoinHostPort(b.ns.address(), port)} {
			if out, err := list(b.ns, addr, "2"); err == nil || !strings.Contains(out, "Connection refused") {
				return fmt.Errorf("clients reach %s, or something there: %w\n%s", addr, err, out)
			}
		}
	}
	return nil
}
