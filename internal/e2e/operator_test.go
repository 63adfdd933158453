package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// TestOperator goes through what an operator does and gets wrong: exit codes and hints of design section 6, a topic that
// exists already and is taken over only with --overwrite, an orderly end.
func TestOperator(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1})
	createTopic(t, src, "orders", 2, nil)
	createTopic(t, src, "payments", 2, map[string]string{"retention.ms": "777000", "max.message.bytes": "2000000"})
	produce(t, client(t, src), "orders", 2, 300, 100)
	produce(t, client(t, src), "payments", 2, 300, 100)
	createTopic(t, dst, "orders", 2, nil)
	produce(t, client(t, dst), "orders", 2, 1000, 50) // other data, and more of it

	s := newShim(t, dst, "")
	t.Run("serve refuses", func(t *testing.T) { refusesToServe(t, s) })
	t.Run("create", func(t *testing.T) {
		self := filepath.Join(s.dir, "self.properties")
		os.WriteFile(self, []byte("bootstrap.servers="+dst.Bootstrap("CLIENT")[0]), 0o600)
		s.refused(t, 4, "the source is the destination itself", "create", "--mirror", "self", "--mirror-config", self)
		s.create(src)
		s.create(src) // a goal already reached
		if out := s.must("list"); !strings.Contains(out, src.ID()) {
			t.Errorf("list does not name the source's cluster id %s:\n%s", src.ID(), out)
		}
	})
	t.Run("start refuses", func(t *testing.T) {
		s.refused(t, 2, "there is no mirror", "start", "--mirror", "other", "--topics", "orders")
		s.refused(t, 4, "holds data", "start", "--mirror", "m", "--topics", "orders")
		s.refused(t, 2, "nowhere", "start", "--mirror", "m", "--topics", "nowhere")
		if got := endOffsets(t, dst, "orders")[tp{"orders", 0}]; got != 1000 {
			t.Errorf("a refused start touched the topic: it ends at %d", got)
		}
	})
	t.Run("configs come with the topic", func(t *testing.T) {
		s.mirror("payments")
		s.mirror("payments")
		s.caughtUp(src, 3, time.Minute, "payments")
		sameSegments(t, src, dst, "payments", 2, 3)
		cfg := topicConfigs(t, dst, "payments")
		if cfg["retention.ms"] != "777000" || cfg["max.message.bytes"] != "0" || cfg["min.insync.replicas"] != "4" {
			t.Errorf("configs at the destination: %v", cfg)
		}
	})
	t.Run("overwrite a live topic", func(t *testing.T) { overwrites(t, s, src, dst) })
	t.Run("metrics", func(t *testing.T) {
		resp, err := http.Get("http://" + s.http + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		for _, want := range []string{"kmirror_build_info", `kmirror_broker_registered{node_id="9001"} 1`, `kmirror_topic_locked{`,
			"kmirror_lag_records{",
			`state="MIRRORING",topic="payments"} 1`, "kmirror_fetched_bytes_total", "kmirror_feature_max_level{", dst.ID()} {
			if !strings.Contains(string(body), want) {
				t.Errorf("/metrics lacks %s", want)
			}
		}
	})
	t.Run("second SIGTERM", func(t *testing.T) { endsAtOnce(t, s, dst) })
	t.Run("SIGTERM", func(t *testing.T) {
		begin := time.Now()
		if err := s.stop(); err != nil {
			t.Errorf("ended with %v", err)
		}
		t.Logf("ended after %s", time.Since(begin).Round(time.Millisecond))
		s.start()
		s.caughtUp(src, 3, time.Minute, "payments", "orders")
	})
}

// endsAtOnce: while kmirror waits for a reply to a client, a second signal ends it by itself, though not one that comes within a second of
// the first. It is started again.
func endsAtOnce(t *testing.T, s *shim, dst *testkafka.Cluster) {
	p := dialPeer(t, s.client)
	versions := kmsg.NewPtrApiVersionsRequest()
	if _, err := p.ask(versions); err != nil {
		t.Fatal(err)
	}
	for _, id := range dst.Brokers() {
		if err := dst.Node(id).Pause(); err != nil {
			t.Fatal(err)
		}
		defer dst.Node(id).Resume()
	}
	if err := p.send(kmsg.NewPtrMetadataRequest()); err != nil {
		t.Fatal(err)
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	eventually(t, 30*time.Second, "the listener to be closed", func() error {
		nc, err := net.Dial("tcp", s.client)
		if err != nil {
			return nil
		}
		nc.Close()
		return errors.New("it is open")
	})
	begin := time.Now()
	var exit *exec.ExitError
	for ended := false; !ended; {
		s.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-s.done:
			if ended = true; !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
				t.Errorf("kmirror ended with %v, want by the signal", err)
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
	if took := time.Since(begin); took > patience(5*time.Second) {
		t.Errorf("it ended after %s", took)
	}
	s.cmd = nil
	for _, id := range dst.Brokers() {
		dst.Node(id).Resume()
	}
	s.start()
}

// refused runs a command that must fail with an exit code and a text that says why.
func (s *shim) refused(t *testing.T, code int, text string, args ...string) {
	t.Helper()
	out, errs, got := s.run(args...)
	if got != code || !strings.Contains(out+errs, text) {
		t.Errorf("kmirror %s: exit %d, want %d with %q in:\n%s%s", strings.Join(args, " "), got, code, text, out, errs)
	}
}

func refusesToServe(t *testing.T, s *shim) {
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	other := func(name, old, new string) string { // on ports of its own
		text := strings.NewReplacer(old, new, s.admin, fmt.Sprintf("127.0.0.1:%d", freePort(t)), s.http, fmt.Sprintf("127.0.0.1:%d", freePort(t)),
			"9001, 9002", "9003, 9004").Replace(string(raw))
		var lines []string
		for line := range strings.Lines(text) {
			if strings.Contains(line, "bind:") {
				listener, _, _ := strings.Cut(strings.SplitN(line, "name: ", 2)[1], ",")
				p := portPair(t)
				line = fmt.Sprintf("  - {name: %s, bind: \"127.0.0.1:%d\", advertised: \"127.0.0.1:%d\", protocol: PLAINTEXT}\n", listener, p, p)
			}
			lines = append(lines, line)
		}
		f := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(f, []byte(strings.Join(lines, "")), 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for _, c := range []struct {
		name, config, want string
		code               int
		args               []string
	}{
		{"check is fine", other("ok.yaml", "log:", "log:"), "nothing was registered", 0, []string{"--check"}},
		{"another cluster", other("pin.yaml", "node_ids", "cluster_id: AAAAAAAAAAAAAAAAAAAAAA\nnode_ids"), "AAAAAAAAAAAAAAAAAAAAAA", 2, nil},
		{"a listener missing", other("listener.yaml", "name: CLIENT", "name: OTHER"), "CLIENT", 2, nil},
		{"unknown key", other("key.yaml", "http:", "htp:"), "htp", 2, nil},
		{"no such file", filepath.Join(t.TempDir(), "none.yaml"), "none.yaml", 2, nil},
	} {
		cmd := exec.CommandContext(timeout(t, time.Minute), bin, append([]string{"serve", "--config", c.config}, c.args...)...)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: exit %d, want %d with %q in:\n%s", c.name, cmd.ProcessState.ExitCode(), c.code, c.want, out)
		}
	}
}

// overwrites takes a topic over that a producer is writing to: it gets the refusal, the old data goes, the source's comes.
func overwrites(t *testing.T, s *shim, src, dst *testkafka.Cluster) {
	stop := make(chan struct{})
	ended := make(chan error, 1)
	cl := client(t, dst, kgo.RecordDeliveryTimeout(30*time.Second))
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := cl.ProduceSync(timeout(t, 40*time.Second), &kgo.Record{Topic: "orders", Partition: 0, Value: []byte("local")}).FirstErr(); err != nil {
				ended <- err
				return
			}
		}
	}()
	s.must("start", "--mirror", "m", "--topics", "orders", "--overwrite", "--yes")
	s.caughtUp(src, 3, 90*time.Second, "orders")
	close(stop)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "POLICY_VIOLATION") {
		t.Errorf("the destination's producer ended with %v, want the refusal", err)
	}
	sameSegments(t, src, dst, "orders", 2, 3)
	cfg := topicConfigs(t, dst, "orders")
	if cfg["max.message.bytes"] != "0" || cfg["min.insync.replicas"] != "4" {
		t.Errorf("not locked: %v", cfg)
	}
	if out := s.must("verify", "--mirror", "m", "--topics", "orders"); !strings.Contains(out, " 0 of ") {
		t.Errorf("verify: %s", out)
	}
}
