package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kmirror/internal/trace/tap"
)

// reloads is a reloader of a file, and what it applied.
type reloads struct {
	*reloader
	t       *testing.T
	log     bytes.Buffer
	applied []*Config
	again   bool
	written time.Time
}

func newReloads(t *testing.T) *reloads {
	r := &reloads{t: t, written: time.Now()}
	path := filepath.Join(t.TempDir(), "kmirror.yaml")
	r.reloader = newReloader(path, func() []string { return nil })
	r.write(goodConfig)
	if !r.changed() {
		t.Error("a file that is new is not seen")
	}
	cfg, err := loadConfig(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.reloader.log, r.current = slog.New(slog.NewTextHandler(&r.log, nil)), cfg
	r.apply = func(before, next *Config, again bool) {
		if before != r.current {
			t.Error("before is not what was in force")
		}
		r.applied, r.again = append(r.applied, next), again
	}
	return r
}

func (r *reloads) write(text string) {
	r.t.Helper()
	// Kernels before 6.13 give all that is written within four milliseconds the same time.
	r.written = r.written.Add(time.Second)
	err := os.WriteFile(r.path, []byte(text), 0o600)
	if err == nil {
		err = os.Chtimes(r.path, r.written, r.written)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func TestReload(t *testing.T) {
	r := newReloads(t)
	for _, c := range []struct {
		name, old, new string
		applied        bool
		logged         string
	}{
		{"a comment", "rack:", "# nothing\nrack:", false, ""},
		{"level", "level: debug", "level: warn", true, "read again"},
		{"format", "format: text", "format: json", true, "read again"},
		{"limits", "connections: 500", "connections: 501", true, "read again"},
		{"trace", "lock:", "trace: {file: \"-\", api: [Fetch]}\nlock:", true, "read again"},
		{"needs a restart", "rack: dc2-a", "rack: dc2-b", true, "wait for a restart\" keys=rack"},
		{"not usable", "node_ids: [9001, 9002]", "node_ids: [9001]", false, "stays in force"},
	} {
		r.log.Reset()
		n := len(r.applied)
		r.write(strings.Replace(goodConfig, c.old, c.new, 1))
		if !r.changed() || r.changed() {
			t.Errorf("%s: the change is not seen once", c.name)
		}
		r.load(false)
		if (len(r.applied) > n) != c.applied || !strings.Contains(r.log.String(), c.logged) || c.logged == "" && r.log.Len() > 0 ||
			strings.Contains(r.log.String(), "wait for a restart") != strings.HasPrefix(c.logged, "wait") {
			t.Errorf("%s: applied %v, log: %s", c.name, len(r.applied) > n, &r.log)
		}
		r.write(goodConfig)
		r.changed()
		r.load(false)
	}
	if !reflect.DeepEqual(r.current.NodeIDs, []int32{9001, 9002}) {
		t.Errorf("in force is %v", r.current.NodeIDs)
	}
	os.Remove(r.path)
	if r.changed() {
		t.Error("a file that is gone counts as changed")
	}
}

// TestReloadAtASignal: SIGHUP has the file read whether it has changed or not.
func TestReloadAtASignal(t *testing.T) {
	r := newReloads(t)
	ctx, cancel := context.WithCancel(t.Context())
	applied := make(chan bool, 1)
	r.apply = func(_, _ *Config, again bool) { applied <- again }
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx) })
	r.signals <- syscall.SIGHUP
	select {
	case again := <-applied:
		if !again {
			t.Error("the signal is not told")
		}
	case <-time.After(time.Minute):
		t.Error("nothing is applied")
	}
	cancel()
	running.Wait()
}

func TestTraceConfig(t *testing.T) {
	for name, c := range map[string]struct{ trace, want string }{
		"no file":          {"trace: {api: [Produce]}", "trace.file: missing"},
		"unknown listener": {"trace: {file: x, listeners: [A]}", `trace.listeners: "A" is not among`},
		"API":              {"trace: {file: x, api: [Prodeuce]}", "trace.api"},
		"pattern":          {"trace: {file: x, client_id: '('}", "trace.client_id"},
		"format":           {"trace: {file: x, format: xml}", `trace.format: "xml" is not known`},
		"size":             {"trace: {file: x, max_size: 1KiB}", "trace.max_size"},
		"memory":           {"trace: {file: x, memory: 0}", "trace.memory"},
		"unknown key":      {"trace: {file: x, colour: red}", "unknown key colour"},
	} {
		if _, err := parseConfig([]byte(goodConfig+c.trace), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	c, err := parseConfig([]byte(goodConfig), []string{"KMIRROR_TRACE_FILE=-", "KMIRROR_TRACE_API=Produce,3", "KMIRROR_TRACE_MIN_DURATION=5ms"})
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	s, err := c.traceSettings(&errs)
	if err != nil || s.Close != nil || s.Reporter.Out != &errs || s.Reporter.Filter.MinDuration != 5*time.Millisecond ||
		fmt.Sprint(s.Reporter.Filter.APIs) != "map[0:true 3:true]" {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestWhatIsTraced(t *testing.T) {
	all := []tap.Server{{Listener: "CLIENT", NodeID: 9001}, {Listener: "REPL", NodeID: 9001}, {Listener: "CLIENT", Gateway: true, NodeID: 1}}
	for yaml, want := range map[string][]bool{
		"{file: x}":                    {true, false, true},
		"{file: x, gateway: false}":    {true, false, false},
		"{file: x, listeners: [REPL]}": {false, true, true},
	} {
		c, err := parseConfig([]byte(goodConfig+"trace: "+yaml), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range all {
			if c.traced(s) != want[i] {
				t.Errorf("%s: %s is traced: %v", yaml, s, !want[i])
			}
		}
	}
	one := &Config{Listeners: []ListenerConfig{{Name: "A"}}, Destination: DestinationConfig{InterBrokerListener: "A"}}
	if !one.traced(tap.Server{Listener: "A"}) {
		t.Error("the only listener is not traced")
	}
}

// TestTraceThatCouldNotBegin begins at the next signal, once what was in its way is gone.
func TestTraceThatCouldNotBegin(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	p := &process{log: log, tap: tap.New(log), stderr: io.Discard, sockets: new(sockets)}
	defer p.endTrace()
	dir := filepath.Join(t.TempDir(), "later")
	text := strings.Replace(goodConfig, "lock:", "trace: {file: "+filepath.Join(dir, "trace.log")+"}\nlock:", 1)
	r := newReloads(t)
	r.apply = p.reload
	r.write(text)
	r.load(false)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r.load(true)
	if _, err := os.Stat(filepath.Join(dir, "trace.log")); err != nil {
		t.Errorf("nothing is traced after SIGHUP: %v", err)
	}
}

// TestAllowNeedsNoRestart, other parts of a listener do.
func TestAllowNeedsNoRestart(t *testing.T) {
	with := func(bind, allow string) *Config {
		return &Config{Listeners: []ListenerConfig{{Name: "REPL", Bind: bind, Allow: []string{allow}}}}
	}
	before := with("a:1", "User:CN=a")
	for _, c := range []struct {
		next *Config
		want string
	}{{with("a:1", "User:CN=b"), ""}, {with("a:2", "User:CN=a"), "listeners"}, {&Config{}, "listeners"}} {
		if got := strings.Join(needRestart(before, c.next), " "); got != c.want {
			t.Errorf("%v: got %q, want %q", c.next.Listeners, got, c.want)
		}
	}
	if before.Listeners[0].Allow == nil {
		t.Error("the configuration in force was changed")
	}
}

// TestLogSettings: level and format of all loggers that come from one change while they are in use.
func TestLogSettings(t *testing.T) {
	var out bytes.Buffer
	s := new(logSettings)
	if err := s.set(LogConfig{Format: "text", Level: "info"}); err != nil {
		t.Fatal(err)
	}
	log := newLogger(&out, s).With("a", 1).WithGroup("g").With("b", 2)
	says := func(want string) {
		t.Helper()
		out.Reset()
		log.Debug("detail")
		log.Warn("something", "c", 3)
		if got := out.String(); !strings.HasSuffix(got, want+"\n") || strings.Count(got, "\n") != strings.Count(want, "detail")+1 {
			t.Errorf("got %s, want it to end with %s", got, want)
		}
	}
	says(`level=WARN msg=something a=1 g.b=2 g.c=3`)
	if err := s.set(LogConfig{Format: "json", Level: "warn"}); err != nil {
		t.Fatal(err)
	}
	says(`"level":"WARN","msg":"something","a":1,"g":{"b":2,"c":3}}`)
	if err := s.set(LogConfig{Format: "text", Level: "debug"}); err != nil || !log.Enabled(t.Context(), slog.LevelDebug) {
		t.Errorf("debug is off: %v", err)
	}
	if s.set(LogConfig{Level: "loud"}) == nil {
		t.Error("a level that there is not")
	}
}

// TestReloadWaitsForARestart: what waits for a restart is what differs from what runs, not from the file before.
func TestReloadWaitsForARestart(t *testing.T) {
	r := newReloads(t)
	r.apply = func(*Config, *Config, bool) {}
	for i, c := range []struct {
		rack, level string
		waits       bool
	}{{"dc2-b", "debug", true}, {"dc2-b", "warn", true}, {"dc2-a", "warn", false}} {
		r.log.Reset()
		r.write(strings.NewReplacer("dc2-a", c.rack, "level: debug", "level: "+c.level).Replace(goodConfig))
		r.load(false)
		if got := strings.Contains(r.log.String(), "wait for a restart"); got != c.waits {
			t.Errorf("%d: log is %s", i, &r.log)
		}
	}
}
