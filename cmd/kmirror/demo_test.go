package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 61204: "61,204", 1234567: "1,234,567", -100: "-100", -1000: "-1,000"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestSegmentSums(t *testing.T) {
	want := map[string]string{"orders-0/0.log": "aa", "orders-1/0.log": "bb"}
	s := segmentSums{"A": want, "B1": {"orders-0/0.log": "aa", "orders-1/0.log": "bb"}}
	if err := s.same(want); err != nil {
		t.Error(err)
	}
	s["B1"]["orders-1/0.log"] = "cc"
	if err := s.same(want); err == nil || !strings.Contains(err.Error(), "orders-1/0.log of B1") {
		t.Errorf("a sum that differs: %v", err)
	}
	delete(s["B1"], "orders-1/0.log")
	if err := s.same(want); err == nil {
		t.Error("a file that is missing is not seen")
	}
	s["B1"]["orders-1/0.log"], s["B1"]["orders-1/9.log"] = "bb", "dd"
	if err := s.same(want); err == nil {
		t.Error("a file too many is not seen")
	}
}

// A tool that ends well and says nothing was not refused; one that could not even start proves nothing.
func TestRefusedBy(t *testing.T) {
	if err := refusedBy("% Delivery failed for message", errors.New("exit status 1"), "Delivery failed"); err != nil {
		t.Error(err)
	}
	if err := refusedBy("1 records sent", nil, "Exception"); !errors.Is(err, errAccepted) {
		t.Errorf("accepted: %v", err)
	}
	if err := refusedBy("", errors.New("not found"), "Exception"); err == nil || errors.Is(err, errAccepted) {
		t.Errorf("not run: %v", err)
	}
}

// What was last said before the limit is in the error, and it is shown at a terminal only.
func TestDemoAwait(t *testing.T) {
	var screen bytes.Buffer
	d := &demo{cli: &cli{out: io.Discard, err: &screen}}
	err := d.await(t.Context(), "mirror", 2*time.Second, func(ctx context.Context) (string, bool, error) {
		if ctx.Err() != nil {
			return "deadline", false, nil
		}
		return "lag 5", false, nil
	})
	if err == nil || !strings.HasSuffix(err.Error(), ": lag 5") || screen.Len() > 0 {
		t.Errorf("%v, screen %q", err, screen.String())
	}
	d.terminal = true
	calls := 0
	if err := d.await(t.Context(), "mirror", time.Minute, func(context.Context) (string, bool, error) {
		calls++
		return "lag 1", calls == 2, nil
	}); err != nil || !strings.Contains(screen.String(), "mirror    lag 1") {
		t.Errorf("%v, screen %q", err, screen.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	never := func(context.Context) (string, bool, error) { return "", false, nil }
	if err := d.await(ctx, "mirror", time.Minute, never); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// Records of the demo differ from one another and have the length that the figures are made from.
func TestOrder(t *testing.T) {
	seen := map[string]bool{}
	for n := range 100 {
		v := string(order(n).Value)
		if seen[v] || len(v) < demoValue || len(v) > demoValue+20 {
			t.Fatalf("order %d: %d bytes, seen %v", n, len(v), seen[v])
		}
		seen[v] = true
	}
}

// What a limit adds to kmirror.yaml is read as one.
func TestDemoLimit(t *testing.T) {
	s := &demoShim{config: filepath.Join(t.TempDir(), "kmirror.yaml"), ids: []int32{9001, 9002}}
	s.yaml = "node_ids: [" + s.nodeIDs() + "]\nadmin: 127.0.0.1:1\ndestination: {bootstrap_servers: [\"b:1\"], controllers: [\"c:1\"], inter_broker_listener: R}\n" +
		"listeners:\n  - {name: R, bind: \"127.0.0.1:1000\", advertised: \"127.0.0.1:1000\", protocol: PLAINTEXT}\n"
	if err := s.limit(demoLineRate); err != nil {
		t.Fatal(err)
	}
	c, err := loadConfig(s.config, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Limits.SourceBytesPerSecond != demoLineRate || c.Limits.Connections == 0 || !slices.Equal(c.NodeIDs, s.ids) {
		t.Errorf("limits %+v, node ids %v", c.Limits, c.NodeIDs)
	}
}

// The bytes of all partitions count, and no other metric.
func TestDemoFetched(t *testing.T) {
	m := newMetrics("test", true)
	m.Fetched("back", "orders", 0, 1000)
	m.Fetched("back", "orders", 1, 2_000_000)
	m.ProduceRefused("back", "orders")
	server := httptest.NewServer(promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	defer server.Close()
	s := &demoShim{http: strings.TrimPrefix(server.URL, "http://")}
	if n, err := s.fetched(t.Context()); err != nil || n != 2_001_000 {
		t.Errorf("%d, %v", n, err)
	}
}

// A writer that was through before the source died was not interrupted, and the demo must not say so.
func TestDemoWriter(t *testing.T) {
	w := &writer{ends: map[int32]int64{0: 5, 1: 7}, cancel: func() {}, done: make(chan error, 1)}
	if got := offsets(w.acked()); got != 12 {
		t.Errorf("acknowledged %d", got)
	}
	w.done <- nil
	if w.stop() == nil {
		t.Error("a writer that had ended counts as interrupted")
	}
	w.done <- context.Canceled
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}
