package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// TestGatewayAloneReloads: a gateway alone follows its file. What is half written, gone, or makes no sense for it is told and changes nothing;
// limits and the trace are followed while a client goes on with the connection that it has; the configuration of another kind of process
// waits for a restart.
func TestGatewayAloneReloads(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	dst := testkafka.Start(t, testkafka.Options{Name: "dst"})
	createTopic(t, dst, "rw", 1, nil)
	s, first := aloneGateway(t, dst, "", "127.0.0.1", dst.Bootstrap(testkafka.ClientListener)...)
	s.start()
	cl := client(t, dst, kgo.SeedBrokers(s.client))
	works := func(why string) {
		t.Helper()
		if err := cl.ProduceSync(timeout(t, 20*time.Second), &kgo.Record{Topic: "rw", Value: []byte(why)}).FirstErr(); err != nil {
			t.Fatalf("%s: %v", why, err)
		}
	}
	works("as it was started")
	good := mustRead(t, s.config)
	reads := func(yaml, want string) {
		t.Helper()
		reread(t, s, func() error { return os.WriteFile(s.config, []byte(yaml), 0o600) }, want)
		works(want)
	}

	reads(good[:len(good)/2], "the one before it stays in force")
	reads("node_ids: [9001, 9002]\n"+good, "node_ids: has no meaning for a gateway alone")
	reread(t, s, func() error { return os.Remove(s.config) }, "no such file")
	works("without a file")
	reads(strings.Replace(good, "http: ", "http: 127.0.0.1:1 # ", 1), "keys=http")
	// Whole, and of a process that joins the destination.
	full := makeShim(t, dst, 9001, "")
	reads(mustRead(t, full.config), "verb=reload")

	fetches := filepath.Join(s.dir, "fetches.log")
	traced := strings.Replace(good, "trace: {file: ", fmt.Sprintf("trace: {api: [Fetch], file: %q} # ", fetches), 1)
	reads(traced+"limits: {connections: 12}\n", "limits have changed")
	if text := mustRead(t, filepath.Join(s.dir, "trace.log")); !strings.Contains(text, "Produce") {
		t.Errorf("nothing of the first trace: %s", text)
	}
	reader := client(t, dst, kgo.SeedBrokers(s.client), kgo.ConsumeTopics("rw"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	reader.PollRecords(timeout(t, 20*time.Second), 1)
	eventually(t, 20*time.Second, "fetches are traced, and nothing else", func() error {
		switch text := mustRead(t, fetches); {
		case strings.Contains(text, "Produce"):
			return fmt.Errorf("Produce in %s", text)
		case !strings.Contains(text, "Fetch"):
			return fmt.Errorf("%d bytes", len(text))
		}
		return nil
	})
	reader.Close()
	eventually(t, 20*time.Second, "no more connections than the new limit", func() error { return refusesMore(t, first, 12) })
	reads(good, "limits have changed")
	if err := s.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

// reread changes the file, sends SIGHUP and waits until the log says so: of the change itself where kmirror has found it before the signal.
func reread(t *testing.T, s *shim, change func() error, want string) {
	t.Helper()
	at := len(mustRead(t, s.log))
	if err := change(); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, want, func() error {
		if text := mustRead(t, s.log)[at:]; !strings.Contains(text, want) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

// refusesMore opens connections to a port until one is closed at once, and wants that to happen before there are more than limit.
func refusesMore(t *testing.T, port, limit int) error {
	t.Helper()
	for range limit + 1 {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); err != nil && !os.IsTimeout(err) {
			return nil
		}
	}
	return fmt.Errorf("%d connections stay open", limit+1)
}
