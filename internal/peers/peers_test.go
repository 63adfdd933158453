package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"kmirror/internal/coordinator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake answers as it is told, by address; a process without an answer hangs.
type fake struct {
	mu   sync.Mutex
	pong map[string]Pong
	err  map[string]error
}

func (f *fake) set(address string, pong *Pong, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pong, address)
	delete(f.err, address)
	if pong != nil {
		f.pong[address] = *pong
	}
	if err != nil {
		f.err[address] = err
	}
}

func (f *fake) Ping(ctx context.Context, address string) (Pong, error) {
	f.mu.Lock()
	pong, ok := f.pong[address]
	err := f.err[address]
	f.mu.Unlock()
	if ok || err != nil {
		return pong, err
	}
	<-ctx.Done()
	return Pong{}, ctx.Err()
}

func start(t *testing.T) (*Peers, *fake) {
	t.Helper()
	return startLogging(t, nil)
}

func startLogging(t *testing.T, log *slog.Logger) (*Peers, *fake) {
	t.Helper()
	f := &fake{pong: map[string]Pong{}, err: map[string]error{}}
	p, err := New(Config{Pinger: f, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p, f
}

// until returns how long it takes until Alive gives that answer.
func until(t *testing.T, p *Peers, m coordinator.Member, alive bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for p.Alive(m) != alive {
		changed := p.Changed()
		if p.Alive(m) == alive {
			break
		}
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatalf("not alive=%v within a minute", alive)
		}
	}
	return time.Since(begin)
}

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t)
		b := coordinator.Member{ProcessID: "b-1", Admin: "b:1"}
		if !p.Alive(b) {
			t.Error("who is not watched is not held dead")
		}
		f.set("b:1", &Pong{ProcessID: "b-1", NodeIDs: []int32{9003}}, nil)
		changed := p.Changed() // before there is anything to tell
		p.Watch([]coordinator.Member{b})
		<-changed
		if pong, ok := p.Answer(b); !ok || pong.NodeIDs[0] != 9003 {
			t.Errorf("answer: %+v %v", pong, ok)
		}

		f.set("b:1", nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED))
		if took := until(t, p, b, false); took > 700*time.Millisecond {
			t.Errorf("refused, and held dead after %v", took)
		}
		if _, ok := p.Answer(b); ok {
			t.Error("the dead have no answer")
		}
		f.set("b:1", &Pong{ProcessID: "b-2"}, nil)
		time.Sleep(5 * time.Second)
		if p.Alive(b) {
			t.Error("another process at its address is not it")
		}
		f.set("b:1", &Pong{ProcessID: "b-1"}, nil)
		if took := until(t, p, b, true); took > 700*time.Millisecond {
			t.Errorf("back, and seen after %v", took)
		}

		f.set("b:1", nil, nil)
		if took := until(t, p, b, false); took < 1500*time.Millisecond || took > 3*time.Second {
			t.Errorf("silent, and held dead after %v", took)
		}
		f.set("b:1", &Pong{ProcessID: "b-1"}, nil)
		until(t, p, b, true)
		changed = p.Changed()
		f.set("b:1", &Pong{ProcessID: "b-1", Unreachable: []string{"dc1"}}, nil)
		<-changed
		if pong, _ := p.Answer(b); len(pong.Unreachable) != 1 {
			t.Errorf("answer: %+v", pong)
		}
		changed = p.Changed()
		f.set("b:1", &Pong{ProcessID: "b-1", Unreachable: []string{"dc1"}, Leaving: true}, nil)
		<-changed
		if pong, _ := p.Answer(b); !pong.Leaving {
			t.Errorf("answer: %+v", pong)
		}
		p.Watch(nil)
		f.set("b:1", nil, syscall.ECONNREFUSED)
		time.Sleep(5 * time.Second)
		if !p.Alive(b) {
			t.Error("who is not watched any more is not held dead")
		}
	})
}

// TestSilence: it is counted from when a process was held dead, and ends with its next answer.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t)
		b := coordinator.Member{ProcessID: "b-1", Admin: "b:1"}
		f.set("b:1", &Pong{ProcessID: "b-1", Unreachable: []string{"dc1"}}, nil)
		p.Watch([]coordinator.Member{b})
		time.Sleep(time.Second)
		if _, silent, ok := p.Silence(b); ok {
			t.Errorf("%s while it answers", silent)
		}
		f.set("b:1", nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED))
		until(t, p, b, false)
		time.Sleep(20 * time.Second)
		if last, silent, ok := p.Silence(b); !ok || silent != 20*time.Second || len(last.Unreachable) != 1 {
			t.Errorf("silent for %s, before that %+v", silent, last)
		}
		f.set("b:1", &Pong{ProcessID: "b-1"}, nil)
		until(t, p, b, true)
		if _, silent, ok := p.Silence(b); ok {
			t.Errorf("%s after it has answered", silent)
		}
	})
}

// One failure is not enough, however long it took: this process itself may have been stopped meanwhile.
func TestOneLateFailureIsForgiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t)
		b := coordinator.Member{ProcessID: "b-1", Admin: "b:1"}
		f.set("b:1", &Pong{ProcessID: "b-1"}, nil)
		changed := p.Changed() // before there is anything to tell
		p.Watch([]coordinator.Member{b})
		<-changed
		f.set("b:1", nil, errors.New("broken pipe"))
		time.Sleep(620 * time.Millisecond)
		f.set("b:1", &Pong{ProcessID: "b-1"}, nil)
		time.Sleep(10 * time.Second)
		if !p.Alive(b) {
			t.Error("held dead")
		}
	})
}

func TestNewRefusesNonsense(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("no error without a pinger")
	}
}

// Two processes that don't accept each other are not dead to each other: they would fight for partitions.
func TestRefusedIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t)
		b := coordinator.Member{ProcessID: "b-1", Admin: "b:1", NodeIDs: []int32{9003}}
		f.set("b:1", nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED))
		p.Watch([]coordinator.Member{b})
		until(t, p, b, false)
		f.set("b:1", nil, fmt.Errorf("%w: add me", ErrRefused))
		until(t, p, b, true)
		time.Sleep(10 * time.Second)
		if pong, ok := p.Answer(b); !ok || !p.Alive(b) || !pong.Ready || !pong.Refused || pong.NodeIDs[0] != 9003 {
			t.Errorf("answer: %+v %v", pong, ok)
		}
		changed := p.Changed()
		f.set("b:1", &Pong{ProcessID: "b-1", NodeIDs: b.NodeIDs, Unreachable: []string{"dc1"}}, nil)
		<-changed
		f.set("b:1", nil, fmt.Errorf("%w: add me", ErrRefused))
		time.Sleep(10 * time.Second)
		if pong, ok := p.Answer(b); !ok || len(pong.Unreachable) != 1 {
			t.Errorf("what was known before is kept: %+v %v", pong, ok)
		}
	})
}

// TestDeathIsAWarning: who was dead before this process began is none, or each restart would warn of the process before it.
func TestDeathIsAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder // read only while nobody writes: after synctest.Wait
		p, f := startLogging(t, slog.New(slog.NewTextHandler(&out, nil)))
		m := coordinator.Member{ProcessID: "b-1", Admin: "b:1"}
		f.set("b:1", &Pong{ProcessID: "b-2"}, nil)
		p.Watch([]coordinator.Member{m})
		until(t, p, m, false)
		f.set("b:1", &Pong{ProcessID: "b-1"}, nil)
		until(t, p, m, true)
		f.set("b:1", nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED))
		until(t, p, m, false)
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 3 || !strings.Contains(lines[0], "level=INFO") || !strings.Contains(lines[2], "level=WARN") {
			t.Errorf("%q", lines)
		}
	})
}

// TestIdle: a process that answers that it is no member of the destination is alive to nobody, so that others take what it owned, but its
// answer is known, for who wants to say whose node ids those are.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t)
		m := coordinator.Member{ProcessID: "a", Admin: "a:1"}
		f.set("a:1", &Pong{ProcessID: "a", Ready: true}, nil)
		p.Watch([]coordinator.Member{m})
		synctest.Wait()
		if _, ok := p.Answer(m); !ok || !p.Alive(m) {
			t.Fatal("does not answer")
		}
		f.set("a:1", &Pong{ProcessID: "a", Idle: true}, nil)
		t.Log("held idle after", until(t, p, m, false))
		if pong, ok := p.Answer(m); !ok || !pong.Idle {
			t.Errorf("answer %+v %v", pong, ok)
		}
		f.set("a:1", &Pong{ProcessID: "a", Ready: true}, nil)
		until(t, p, m, true)
	})
}
