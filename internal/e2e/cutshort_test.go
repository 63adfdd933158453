package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// TestStartCutShort ends the command that starts a topic when the topic has been created, and before anything of it is stored: the process that
// was asked leads a topic that nobody knows, and the same command again goes on with it.
func TestStartCutShort(t *testing.T) {
	const topic = "orders"
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 1, Controllers: 1})
	createTopic(t, src, topic, 2, nil)
	produce(t, client(t, src), topic, 2, 50, 100)
	s := makeShim(t, dst, 9001, "")
	point := filepath.Join(s.dir, "fault")
	s.env = []string{"TEST_KMIRROR_FAULT_POINT=@" + point}
	s.start()
	s.create(src)
	if err := os.WriteFile(point, []byte("stop at created"), 0o600); err != nil {
		t.Fatal(err)
	}
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "start", "--mirror", "m", "--topics", topic, "--bootstrap-server", s.admin)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the topic is created", func() error {
		if !s.stands(t) {
			return errors.New("kmirror goes on")
		}
		return nil
	})
	os.Remove(point)
	cmd.Process.Kill()
	cmd.Wait()
	s.cmd.Process.Signal(syscall.SIGCONT)
	s.again(t, "start", "--mirror", "m", "--topics", topic)
	s.caughtUp(src, 1, time.Minute, topic)
	s.must("verify", "--mirror", "m")
	s.verb("failover", topic)
	has(t, dst, topic, map[string]string{"max.message.bytes": "", "min.insync.replicas": ""})
	writable(t, dst, topic, "here")
}

// again asks until it is done; each answer that it is not has to say what to do.
func (s *shim) again(t *testing.T, args ...string) {
	t.Helper()
	began, n := time.Now(), 0
	eventually(t, 90*time.Second, strings.Join(args, " "), func() error {
		out, errs, code := s.run(args...)
		if n++; code != 0 {
			t.Logf("%s: exit %d after %s: %s%s", strings.Join(args, " "), code, time.Since(began).Round(10*time.Millisecond), out, errs)
			if !strings.Contains(errs, "what to do") && code != 3 {
				t.Errorf("%v: exit %d without advice", args, code)
			}
			return fmt.Errorf("exit %d: %s", code, errs)
		}
		return nil
	})
	t.Logf("%s: done after %d times, %s", strings.Join(args, " "), n, time.Since(began).Round(10*time.Millisecond))
}
