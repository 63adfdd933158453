package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
)

// demoShim is kmirror serve as a process of its own, which can be killed like one.
type demoShim struct {
	cluster                  *testkafka.Cluster
	ids                      []int32
	binary, dir, config, log string
	admin, http              string
	yaml                     string // of config, without a limit
	client                   *admin.Client

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// newDemoShim writes kmirror.yaml for a destination into a directory of its own; nothing is started.
func newDemoShim(dir string, c *testkafka.Cluster, ids ...int32) (*demoShim, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	s := &demoShim{cluster: c, ids: ids, binary: self, dir: dir, config: filepath.Join(dir, "kmirror.yaml"), log: filepath.Join(dir, "kmirror.log")}
	var ports [2]int
	for i := range ports {
		if ports[i], err = testkafka.FreePort(); err != nil {
			return nil, err
		}
	}
	s.admin, s.http = fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	var listeners strings.Builder
	for _, name := range []string{testkafka.ClientListener, testkafka.ReplListener} {
		port, err := freePair()
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&listeners, "  - {name: %s, bind: \"127.0.0.1:%d\", advertised: \"127.0.0.1:%[2]d\", protocol: PLAINTEXT}\n", name, port)
	}
	s.yaml = fmt.Sprintf(`cluster_id: %s
node_ids: [%s]
admin: %s
http: %s
destination:
  bootstrap_servers: ["%s"]
  controllers: ["%s"]
  inter_broker_listener: %s
listeners:
%slog: {format: text, level: info}
`, c.ID(), s.nodeIDs(), s.admin, s.http, strings.Join(c.Bootstrap(testkafka.ClientListener), `", "`),
		strings.Join(c.Controllers(), `", "`), testkafka.ReplListener, listeners.String())
	if s.client, err = admin.NewClient(admin.ClientConfig{Addresses: []string{s.admin}, ClientID: "kmirror-demo"}); err != nil {
		return nil, err
	}
	return s, os.WriteFile(s.config, []byte(s.yaml), 0o600)
}

// nodeIDs are the node ids as --node-ids and kmirror.yaml take them.
func (s *demoShim) nodeIDs() string { return strings.Trim(ids(s.ids), "[]") }

// limit writes kmirror.yaml with a bound for what is read from sources, in bytes per second. It holds from the next start on.
func (s *demoShim) limit(bytesPerSecond int) error {
	return os.WriteFile(s.config, fmt.Appendf(nil, "%slimits: {source_bytes_per_second: %d}\n", s.yaml, bytesPerSecond), 0o600)
}

// freePair returns a port that is free together with the next one: the second node id takes that.
func freePair() (int, error) {
	for range 100 {
		p, err := testkafka.FreePort()
		if err != nil {
			return 0, err
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p+1))
		if err == nil {
			return p, l.Close()
		}
	}
	return 0, errors.New("no two free loopback ports in a row")
}

// start runs serve. The process gets a group of its own, so that Ctrl-C reaches it only through stop, and the kernel kills
// it when this process dies.
func (s *demoShim) start() error {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.binary, "serve", "--config", s.config)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error), make(chan struct{})
	go func() {
		// The death signal is bound to the thread that forked.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log; that it did, in done
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.cmd, s.done = cmd, done
	return nil
}

func (s *demoShim) pid() int {
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// ready reports what /readyz says; an end of the process is an error.
func (s *demoShim) ready(ctx context.Context) (string, bool, error) {
	select {
	case <-s.done:
		return "", false, fmt.Errorf("kmirror serve has ended: %s", s.cmd.ProcessState)
	default:
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.http+"/readyz", nil)
	if err != nil {
		return "", false, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "kmirror serve is starting", false, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return "kmirror serve is starting", false, nil
	}
	return "kmirror serve: " + strings.TrimSpace(string(text)), resp.StatusCode == http.StatusOK, nil
}

// kill is kill -9.
func (s *demoShim) kill() error {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.done
	return nil
}

// stop asks the process to end and kills it when it does not. One that has ended by itself is no error.
func (s *demoShim) stop() error {
	s.client.Close()
	if s.cmd == nil {
		return nil
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	limit := time.NewTimer(5 * time.Second)
	defer limit.Stop()
	select {
	case <-s.done:
		return nil
	case <-limit.C:
		return s.kill()
	}
}

// define creates a mirror whose source is a cluster.
func (s *demoShim) define(ctx context.Context, mirror, servers string) error {
	properties := filepath.Join(s.dir, mirror+".properties")
	if err := os.WriteFile(properties, []byte("bootstrap.servers="+servers+"\n"), 0o600); err != nil {
		return err
	}
	_, err := s.command(ctx, "create", "--mirror", mirror, "--mirror-config", properties)
	return err
}

// line is a command of this binary as it is typed.
func (s *demoShim) line(args ...string) string {
	return s.binary + " " + strings.Join(args, " ") + " --bootstrap-server " + s.admin
}

// command is another command of this binary, as an operator would type it.
func (s *demoShim) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.binary, append(args, "--bootstrap-server", s.admin)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kmirror %s: %w\n%s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// lastLog returns the end of the process's log.
func (s *demoShim) lastLog(lines int) string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
