package fencing

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errRefused = errors.New("connection refused")

// errFrozen stands for a broker that takes connections and never answers.
var errFrozen = errors.New("frozen")

// world is brokers by listener, with what each says to a probe, and a membership that notes fences.
type world struct {
	mu      sync.Mutex
	order   []int32
	down    map[string]map[int32]error
	current error
	needed  bool
	probes  int
	fenced  bool
	reason  string
	fences  []time.Duration // since the start: begin, end, begin...
	began   time.Time
	gauge   bool
	hung    []string
}

// snap is what the membership was told so far.
type snap struct {
	fenced, gauge bool
	reason        string
	fences        []time.Duration
	probes        int
	hung          []string
}

func (w *world) snap() snap {
	w.mu.Lock()
	defer w.mu.Unlock()
	return snap{w.fenced, w.gauge, w.reason, append([]time.Duration(nil), w.fences...), w.probes, append([]string(nil), w.hung...)}
}

func (w *world) set(f func()) { w.mu.Lock(); f(); w.mu.Unlock() }

func (w *world) Usable(string) []int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.order) > 1 {
		w.order = append(w.order[1:len(w.order):len(w.order)], w.order[0])
	}
	return append([]int32(nil), w.order...)
}

func (w *world) Probe(ctx context.Context, listener string, id int32) error {
	w.mu.Lock()
	w.probes++
	err := w.down[listener][id]
	w.mu.Unlock()
	if err == errFrozen {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (w *world) Hangup(listener string) int {
	w.set(func() { w.hung = append(w.hung, listener) })
	return 1
}

func (w *world) Current() error { w.mu.Lock(); defer w.mu.Unlock(); return w.current }

func (w *world) WantFence(reason string) { w.note(true, reason) }
func (w *world) ClearFence()             { w.note(false, "") }

func (w *world) note(fenced bool, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fenced, w.reason = fenced, reason
	w.fences = append(w.fences, time.Since(w.began).Round(time.Second))
}

// all makes every broker of a listener say err.
func (w *world) all(listener string, err error) {
	w.set(func() {
		w.down[listener] = map[int32]error{}
		for _, id := range w.order {
			w.down[listener][id] = err
		}
	})
}

// judged runs f with a judge of two listeners in front of three brokers, in a bubble of time.
func judged(t *testing.T, f func(w *world, j *Judge, log *bytes.Buffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{order: []int32{1, 2, 3}, down: map[string]map[int32]error{}, began: time.Now()}
		var log bytes.Buffer
		j, err := New(Config{Listeners: []string{"CLIENT", "OUTSIDE"}, Forward: w, Member: w, After: 10 * time.Second, Slow: 5 * time.Second,
			Needed: func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.needed }, OnChange: func(on bool) { w.set(func() { w.gauge = on }) },
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- j.Run(ctx) }()
		f(w, j, &log)
		if s := w.snap(); s.gauge != s.fenced || j.Fenced() != s.fenced {
			t.Errorf("membership %v, gauge %v, judge %v", s.fenced, s.gauge, j.Fenced())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestFencesWhatCantServe(t *testing.T) {
	for name, how := range map[string]error{"refused": errRefused, "frozen": errFrozen} {
		t.Run(name, func(t *testing.T) {
			judged(t, func(w *world, j *Judge, log *bytes.Buffer) {
				pass(time.Minute)
				if w.snap().fenced || log.Len() > 0 || len(w.snap().hung) > 0 {
					t.Fatalf("fenced while all is well: %s\n%s", w.snap().reason, log)
				}
				if n := w.snap().probes; n < 100 || n > 140 {
					t.Errorf("%d probes in a minute of two listeners: one broker each second should do", n)
				}
				w.all("CLIENT", how)
				pass(9 * time.Second)
				if w.snap().fenced {
					t.Error("fenced before its time")
				}
				pass(20 * time.Second)
				if !w.snap().fenced || !strings.Contains(w.snap().reason, "listener CLIENT: none of the 3 live brokers answers within 5s, broker 1 says") {
					t.Errorf("fenced %v for %q", w.snap().fenced, w.snap().reason)
				}
				if hung := w.snap().hung; len(hung) < 2 || slices.Contains(hung, "OUTSIDE") {
					t.Errorf("hung up %v", hung)
				}
				w.all("CLIENT", nil)
				pass(3 * time.Second)
				if !w.snap().fenced {
					t.Error("the fence ended at once")
				}
				pass(8 * time.Second)
				if w.snap().fenced || len(w.snap().fences) != 2 {
					t.Errorf("fenced and not at %v", w.snap().fences)
				}
				for _, line := range []string{"can't be served; it fences itself if that stays so", "fencing ourselves: ", "hint=",
					"not fencing ourselves any more"} {
					if n := strings.Count(log.String(), line); n != 1 {
						t.Errorf("%d lines say %q\n%s", n, line, log)
					}
				}
			})
		})
	}
}

// What is no reason: the mirror would stand still for it.
func TestFencesForNothingLess(t *testing.T) {
	for name, begin := range map[string]func(*world){
		"one broker refuses":     func(w *world) { w.set(func() { w.down["CLIENT"] = map[int32]error{1: errRefused} }) },
		"two brokers are frozen": func(w *world) { w.set(func() { w.down["CLIENT"] = map[int32]error{1: errFrozen, 3: errFrozen} }) },
		"all brokers are dead": func(w *world) {
			w.all("CLIENT", errRefused)
			w.all("OUTSIDE", errRefused)
			go func() { time.Sleep(9 * time.Second); w.set(func() { w.order = nil }) }()
		},
		"brokers that froze are found dead in the last moment": func(w *world) {
			w.all("CLIENT", errFrozen)
			go func() { time.Sleep(17 * time.Second); w.set(func() { w.order = nil }) }() // within the round that would be the last one
		},
		"no controller answers":    func(w *world) { w.all("CLIENT", errRefused); w.set(func() { w.current = errors.New("no controller") }) },
		"a topic is being stopped": func(w *world) { w.all("CLIENT", errRefused); w.set(func() { w.needed = true }) },
		"comes and goes": func(w *world) {
			go func() {
				for range 12 {
					w.all("CLIENT", errRefused)
					time.Sleep(8 * time.Second)
					w.all("CLIENT", nil)
					time.Sleep(2 * time.Second)
				}
			}()
		},
	} {
		t.Run(name, func(t *testing.T) {
			judged(t, func(w *world, _ *Judge, log *bytes.Buffer) {
				pass(3 * time.Second) // all is well at first
				begin(w)
				pass(2 * time.Minute)
				if len(w.snap().fences) > 0 {
					t.Errorf("fenced at %v: %s\n%s", w.snap().fences, w.snap().reason, log)
				}
			})
		})
	}
}

// TestStoppedProcess: one that was stopped for longer than the bound sees its probe fail once, and no more.
func TestStoppedProcess(t *testing.T) {
	h := hysteresis{after: 10 * time.Second}
	now := time.Unix(0, 0)
	for _, step := range []struct {
		v     verdict
		later time.Duration
	}{{ill, 0}, {ill, time.Hour}, {well, time.Second}, {ill, time.Hour}} {
		now = now.Add(step.later)
		if h.step(step.v, now) {
			t.Error("fenced")
		}
	}
}

// TestFenceStaysWhileNothingIsKnown: the fence outlasts that nothing can be tried, and ends for a stop.
func TestFenceStaysWhileNothingIsKnown(t *testing.T) {
	judged(t, func(w *world, _ *Judge, log *bytes.Buffer) {
		pass(3 * time.Second)
		w.all("CLIENT", errRefused)
		pass(15 * time.Second)
		w.set(func() { w.order = nil })
		pass(time.Minute)
		if !w.snap().fenced || len(w.snap().fences) != 1 {
			t.Fatalf("changes at %v", w.snap().fences)
		}
		w.set(func() { w.order, w.needed = []int32{1, 2, 3}, true })
		pass(2 * time.Second)
		if w.snap().fenced || !strings.Contains(log.String(), "is being stopped") {
			t.Errorf("fenced though a stop needs this process\n%s", log)
		}
		w.set(func() { w.needed = false })
		pass(15 * time.Second)
		if !w.snap().fenced {
			t.Error("not fenced again")
		}
	})
}

// TestNeverServed: a listener on which no broker ever answered is told of once and is no reason; one that answered is from then on.
func TestNeverServed(t *testing.T) {
	judged(t, func(w *world, _ *Judge, log *bytes.Buffer) {
		w.all("OUTSIDE", errRefused)
		pass(2 * time.Minute)
		if n := strings.Count(log.String(), "no broker has answered on a listener since the start"); n != 1 || len(w.snap().fences) > 0 {
			t.Errorf("%d lines, fenced at %v\n%s", n, w.snap().fences, log)
		}
		w.all("OUTSIDE", nil)
		pass(3 * time.Second)
		w.all("OUTSIDE", errRefused)
		pass(15 * time.Second)
		if !w.snap().fenced {
			t.Error("not fenced for a listener that did answer")
		}
	})
}

// TestDoesNotFlap: a path that breaks again and again keeps the process fenced for longer and longer, and is forgiven with time.
func TestDoesNotFlap(t *testing.T) {
	judged(t, func(w *world, _ *Judge, _ *bytes.Buffer) {
		pass(3 * time.Second)
		fenced := func(broken, healed time.Duration) (changes int) {
			before := len(w.snap().fences)
			w.all("CLIENT", errRefused)
			pass(broken)
			w.all("CLIENT", nil)
			pass(healed)
			return len(w.snap().fences) - before
		}
		total := 0
		for range 60 {
			total += fenced(13*time.Second, 13*time.Second)
		}
		if total > 6 {
			t.Errorf("%d changes in 26 minutes: at %v", total, w.snap().fences)
		}
		pass(memory + calmest)
		if fenced(13*time.Second, 8*time.Second); w.snap().fenced {
			t.Error("a fence after a long time of peace lasts as long as one in a row")
		}
	})
}

func TestConfig(t *testing.T) {
	w := &world{}
	good := Config{Listeners: []string{"CLIENT"}, Forward: w, Member: w, After: time.Second, Slow: time.Second}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*Config){
		"no listeners": func(c *Config) { c.Listeners = nil }, "nothing forwards": func(c *Config) { c.Forward = nil },
		"no member": func(c *Config) { c.Member = nil }, "no bound": func(c *Config) { c.After = 0 }, "no patience": func(c *Config) { c.Slow = 0 },
	} {
		c := good
		if spoil(&c); func() bool { _, err := New(c); return err == nil }() {
			t.Errorf("%s: accepted", name)
		}
	}
	if (*Judge)(nil).Fenced() {
		t.Error("a judge that is not there fences")
	}
}
