package tap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"kmirror/internal/trace"
	"kmirror/internal/trace/queue"
	"kmirror/internal/trace/tracetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output tells whether it was closed.
type output struct {
	tracetest.Output
	closed bool
}

func settings(o *output) *Settings {
	return &Settings{
		Reporter: &trace.Reporter{Decoder: trace.NewDecoder(trace.DecoderConfig{}), Format: trace.Line, Stats: trace.NewStats(), Out: o},
		Close:    func() error { o.closed = true; return nil },
		Wants:    func(s Server) bool { return s.Listener == "CLIENT" },
		Memory:   1 << 20,
	}
}

func newTap(t *testing.T) *Tap {
	tap := New(slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		tap.Set(nil)
		if left := tap.budget.Left(); left != tap.memory {
			t.Errorf("%d of %d bytes came back", left, tap.memory)
		}
	})
	return tap
}

// request is ApiVersions v0 without a client id.
func request(corr int) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 10, 0, 18, 0, 0}, uint32(corr))
	return append(b, 0xff, 0xff)
}

func response(corr int) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 10}, uint32(corr))
	return append(b, 0, 0, 0, 0, 0, 0)
}

func set(t *testing.T, tap *Tap, s *Settings) {
	t.Helper()
	if err := tap.Set(s); err != nil {
		t.Fatal(err)
	}
}

func TestServerNames(t *testing.T) {
	for want, s := range map[string]Server{
		"CLIENT/9001": {"CLIENT", false, 9001}, "gateway CLIENT/3": {"CLIENT", true, 3}, "gateway CLIENT": {"CLIENT", true, -1},
	} {
		if got := s.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestTracesWhatIsWanted: lines while it is on, a summary at the end, nothing of connections that are not wanted, and nothing when it
// is off.
func TestTracesWhatIsWanted(t *testing.T) {
	tap, out := newTap(t), &output{}
	if tap.Open(Server{Listener: "CLIENT"}, "c") != nil {
		t.Error("a connection is traced while tracing is off")
	}
	set(t, tap, settings(out))
	if tap.Open(Server{Listener: "REPL", NodeID: 9001}, "c") != nil {
		t.Error("a connection is traced that is not wanted")
	}
	w := tap.Open(Server{Listener: "CLIENT", NodeID: 9001}, "1.2.3.4:5")
	w.Received(request(7))
	w.Sent(response(7))
	w.Closed()
	set(t, tap, nil)
	text := out.String()
	for _, part := range []string{"#1 open 1.2.3.4:5 -> CLIENT/9001\n", "#1 > ApiVersions v0 corr=7", "#1 < ApiVersions v0 corr=7",
		"#1 close\n", "API, 1 connections"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	// A message that comes just when tracing ends gives its memory back all the same.
	tap.budget.Take(10)
	tap.put(&trace.Message{Charge: 10})
	if !out.closed || len(tap.watches) > 0 {
		t.Errorf("closed %v, %d connections are still known", out.closed, len(tap.watches))
	}
}

// TestSettingsChange: a connection goes on under the next settings, with what was learnt of it, and is passed over under those that don't
// want it.
func TestSettingsChange(t *testing.T) {
	tap, first, second, third := newTap(t), &output{}, &output{}, &output{}
	set(t, tap, settings(first))
	w := tap.Open(Server{Listener: "CLIENT", NodeID: 9001}, "c")
	w.Received(request(1))
	smaller := settings(second)
	smaller.Memory = 1 << 10
	set(t, tap, smaller)
	w.Sent(response(1))
	if tap.memory != 1<<10 {
		t.Errorf("memory is %d", tap.memory)
	}
	others := settings(third)
	others.Wants = func(s Server) bool { return s.Listener == "REPL" }
	set(t, tap, others)
	w.Received(request(2))
	w.Sent(response(2))
	w.Closed()
	w.Closed()
	set(t, tap, nil)
	if text := first.String(); !strings.Contains(text, "> ApiVersions") || strings.Contains(text, "< ApiVersions") ||
		!strings.Contains(text, "API, 1 connections") {
		t.Errorf("first:\n%s", text)
	}
	if text := second.String(); !strings.Contains(text, "< ApiVersions v0 corr=1") || !first.closed {
		t.Errorf("second:\n%s", text)
	}
	if text := third.String(); strings.Contains(text, "ApiVersions") {
		t.Errorf("third:\n%s", text)
	}
}

// TestSlowOutput: whatever the output does, nobody who is traced waits for it, memory is bounded, and the gap is told.
func TestSlowOutput(t *testing.T) {
	tap, out := newTap(t), &output{Output: tracetest.Output{Blocked: make(chan struct{})}}
	set(t, tap, settings(out))
	w := tap.Open(Server{Listener: "CLIENT"}, "c")
	for i := range 2 * queue.Length {
		w.Received(request(i))
		w.Sent(response(i))
	}
	if left := tap.budget.Left(); left < 0 {
		t.Errorf("the budget is overdrawn: %d", left)
	}
	close(out.Blocked)
	w.Closed()
	set(t, tap, nil)
	if text := out.String(); !strings.Contains(text, "messages are missing here: the output is slower than the traffic") {
		t.Error("the gap is not told")
	} else if n := strings.Count(text, "ApiVersions"); n > queue.Length+10 {
		t.Errorf("%d lines waited", n)
	}
}

// TestOutputFails: it is known, and the next settings begin anew.
func TestOutputFails(t *testing.T) {
	tap, broken, out := newTap(t), &output{Output: tracetest.Output{Err: errors.New("disk full")}}, &output{}
	set(t, tap, settings(broken))
	w := tap.Open(Server{Listener: "CLIENT"}, "c")
	for i := 0; !tap.Failed(); i++ {
		w.Received(request(i))
		w.Sent(response(i))
	}
	if err := tap.Set(settings(out)); !errors.Is(err, broken.Err) {
		t.Errorf("the end of the first says %v", err)
	}
	w.Received(request(-1))
	w.Closed()
	set(t, tap, nil)
	if text := out.String(); !strings.Contains(text, "corr=-1") || tap.Failed() {
		t.Error(text)
	}
}

// TestManyAtOnce has connections come and go while the settings change.
func TestManyAtOnce(t *testing.T) {
	tap := newTap(t)
	set(t, tap, settings(&output{}))
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			for j := range 50 {
				w := tap.Open(Server{Listener: "CLIENT"}, fmt.Sprint(i))
				if w == nil {
					continue
				}
				var both sync.WaitGroup
				both.Go(func() { w.Received(request(j)) })
				w.Sent(response(j))
				both.Wait()
				w.Closed()
			}
		})
	}
	for range 10 {
		set(t, tap, settings(&output{}))
		set(t, tap, nil)
	}
	all.Wait()
}

func TestFileIsBounded(t *testing.T) {
	name := filepath.Join(t.TempDir(), "trace.log")
	for range 2 { // appended to when it is there
		f, err := OpenFile(name, 100)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 30 {
			if _, err := fmt.Fprintf(f, "line %03d.\n", i); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for part, last := range map[string]string{name: "line 029.\n", name + ".1": "line 019.\n"} {
		text, err := os.ReadFile(part)
		info, e := os.Stat(part)
		if err != nil || e != nil {
			t.Fatal(err, e)
		}
		if len(text) > 100 || !strings.HasSuffix(string(text), last) || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %q, %v", part, text, info.Mode())
		}
	}
	if entries, _ := os.ReadDir(filepath.Dir(name)); len(entries) != 2 {
		t.Errorf("%d files", len(entries))
	}
	if _, err := OpenFile(filepath.Join(name, "none"), 100); err == nil {
		t.Error("a file below a file is opened")
	}
}
