package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
)

// built is where it was built, if it was: under -short nobody wants it, and it takes a busy machine a minute.
var built string

// binary builds kmirror once for all tests of the package; with the race detector when the tests have it.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kmirror-e2e-")
	if err != nil {
		return "", err
	}
	built = dir
	args := []string{"build", "-o", filepath.Join(dir, "kmirror")}
	if raceEnabled {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "kmirror/cmd/kmirror")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return filepath.Join(dir, "kmirror"), nil
})

func TestMain(m *testing.M) {
	if os.Getenv(networkVariable) != "" {
		if err := keepNetwork(); err != nil {
			fmt.Fprintln(os.Stderr, "network of clients:", err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// shim is a kmirror serve process in front of a destination cluster.
type shim struct {
	tb                  testing.TB
	dst                 *testkafka.Cluster
	dir, config, log    string
	admin, http, client string
	repl                string // of the first node id, as client; the second one has the next port
	commands            string // properties for --command-config, where the admin listener has TLS
	env                 []string
	cmd                 *exec.Cmd
	done                chan error
}

// newShim writes the configuration of a process with node ids 9001 and 9002 and starts it. extra is YAML to append.
func newShim(tb testing.TB, dst *testkafka.Cluster, extra string) *shim {
	tb.Helper()
	s := makeShim(tb, dst, 9001, extra)
	s.start()
	return s
}

// makeShim writes the configuration of a process whose node ids are first and the one after. In front of a secure destination it has
// the listeners that brokers have there and logs in as kmirror.
func makeShim(tb testing.TB, dst *testkafka.Cluster, first int32, extra string) *shim {
	tb.Helper()
	s := &shim{tb: tb, dst: dst, dir: tb.TempDir()}
	client, repl := portPair(tb), portPair(tb)
	s.admin, s.http = fmt.Sprintf("127.0.0.1:%d", freePort(tb)), fmt.Sprintf("127.0.0.1:%d", freePort(tb))
	s.client, s.repl = fmt.Sprintf("127.0.0.1:%d", client), fmt.Sprintf("127.0.0.1:%d", repl)
	s.config, s.log = filepath.Join(s.dir, "kmirror.yaml"), filepath.Join(s.dir, "kmirror.log")
	sec := secured(tb, dst, fmt.Sprintf("kmirror-%d", first))
	yaml := fmt.Sprintf(`node_ids: [%d, %d]
admin: %s
http: %s
destination:
  bootstrap_servers: ["%s"]
  controllers: ["%s"]
  inter_broker_listener: REPL
%slisteners:
  - {name: CLIENT, bind: "127.0.0.1:%d", advertised: "127.0.0.1:%d", protocol: %s}
  - {name: REPL, bind: "127.0.0.1:%d", advertised: "127.0.0.1:%d", protocol: %s}
log: {format: text, level: info}
%s
`, first, first+1, s.admin, s.http, strings.Join(dst.Bootstrap("CLIENT"), `", "`), strings.Join(dst.Controllers(), `", "`),
		sec.legs, client, client, sec.client, repl, repl, sec.repl, extra)
	if err := os.WriteFile(s.config, []byte(yaml), 0o600); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		s.kill()
		if tb.Failed() {
			out, _ := os.ReadFile(s.log)
			tb.Logf("kmirror's log, last part:\n%s", out[max(0, len(out)-20000):])
		}
	})
	return s
}

// start runs serve and waits until it is ready.
func (s *shim) start() {
	s.tb.Helper()
	s.spawn()
	s.ready(60 * time.Second)
}

// spawn runs serve and does not wait.
func (s *shim) spawn() {
	s.tb.Helper()
	bin, err := binary()
	if err != nil {
		s.tb.Fatal(err)
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer log.Close()
	s.cmd = exec.Command(bin, "serve", "--config", s.config)
	s.cmd.Env = append(os.Environ(), s.env...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	s.done = make(chan error, 1)
	go func(c *exec.Cmd, done chan<- error) { done <- c.Wait() }(s.cmd, s.done)
}

// ready waits for /readyz.
func (s *shim) ready(limit time.Duration) {
	s.tb.Helper()
	eventually(s.tb, limit, "kmirror ready", func() error {
		select {
		case err := <-s.done:
			s.done <- err
			out, _ := os.ReadFile(s.log)
			s.tb.Fatalf("kmirror ended: %v\n%s", err, out[max(0, len(out)-4000):])
		default:
		}
		resp, err := http.Get("http://" + s.http + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			var b bytes.Buffer
			b.ReadFrom(resp.Body)
			return fmt.Errorf("readyz: %s", strings.TrimSpace(b.String()))
		}
		return nil
	})
}

// kill ends the process with SIGKILL; nothing when it is not running.
func (s *shim) kill() {
	if s.cmd == nil {
		return
	}
	s.cmd.Process.Kill()
	<-s.done
	s.cmd = nil
}

// stop ends the process with SIGTERM and returns how it ended.
func (s *shim) stop() error {
	s.tb.Helper()
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-s.done:
		s.cmd = nil
		return err
	case <-time.After(patience(time.Minute)):
		return errors.New("kmirror does not end on SIGTERM")
	}
}

// run runs a command that asks the process, and returns its standard output and exit code.
func (s *shim) run(args ...string) (stdout string, stderr string, code int) {
	s.tb.Helper()
	args = append(slices.Clone(args), "--bootstrap-server", s.admin) // others may ask the same at the same time
	if s.commands != "" {
		args = append(args, "--command-config", s.commands)
	}
	return s.local(args...)
}

// local runs another command of kmirror and returns its standard output and exit code.
func (s *shim) local(args ...string) (stdout string, stderr string, code int) {
	s.tb.Helper()
	bin, err := binary()
	if err != nil {
		s.tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // else each command takes a second more under the race detector
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.tb.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// must is run for commands that have to succeed.
func (s *shim) must(args ...string) string {
	s.tb.Helper()
	out, errs, code := s.run(args...)
	if code != 0 {
		s.tb.Fatalf("kmirror %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// create defines the mirror "m" of a source, with further properties.
func (s *shim) create(src *testkafka.Cluster, properties ...string) {
	s.tb.Helper()
	s.createAs("m", src, properties...)
}

// createAt is create for a source that is reached at addresses of its own, and has no security.
func (s *shim) createAt(servers string, properties ...string) {
	s.tb.Helper()
	s.define("m", append([]string{"bootstrap.servers=" + servers}, properties...)...)
}

// define creates a mirror from lines of properties.
func (s *shim) define(name string, properties ...string) {
	s.tb.Helper()
	f := filepath.Join(s.dir, name+".properties")
	if err := os.WriteFile(f, []byte(strings.Join(properties, "\n")+"\n"), 0o600); err != nil {
		s.tb.Fatal(err)
	}
	s.must("create", "--mirror", name, "--mirror-config", f)
}

// mirror starts topics of "m".
func (s *shim) mirror(topics ...string) {
	s.tb.Helper()
	s.must("start", "--mirror", "m", "--topics", strings.Join(topics, ","))
}

func (s *shim) describe(args ...string) ([]admin.PartitionInfo, error) {
	out, errs, code := s.run(append([]string{"describe", "-o", "json"}, args...)...)
	if code != 0 {
		return nil, fmt.Errorf("describe: exit %d: %s", code, errs)
	}
	var parts []admin.PartitionInfo
	return parts, json.Unmarshal([]byte(out), &parts)
}

// caughtUp waits until all partitions of the topics are MIRRORING with all real replicas in sync and end where the source
// ends now.
func (s *shim) caughtUp(src *testkafka.Cluster, isr int, limit time.Duration, topics ...string) {
	s.tb.Helper()
	want := endOffsets(s.tb, src, topics...)
	eventually(s.tb, limit, "mirror caught up", func() error {
		parts, err := s.describe("--topics", strings.Join(topics, ","))
		if err != nil {
			return err
		}
		n := 0
		for _, p := range parts {
			w, ok := want[tp{p.Topic, p.Partition}]
			if !ok {
				continue
			}
			n++
			switch {
			case p.State != "MIRRORING":
				return fmt.Errorf("%s-%d is %s", p.Topic, p.Partition, p.State)
			case len(p.ISRReal) < isr:
				return fmt.Errorf("%s-%d has only %v in sync", p.Topic, p.Partition, p.ISRReal)
			case p.DestinationOffset == nil || *p.DestinationOffset < w:
				return fmt.Errorf("%s-%d is at %v of %d (error %v)", p.Topic, p.Partition, deref(p.DestinationOffset), w, deref(p.Error))
			}
		}
		if n != len(want) {
			return fmt.Errorf("%d of %d partitions described", n, len(want))
		}
		return nil
	})
}

func deref[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}
