package fetch

import (
	"context"
	"testing"
	"time"

	"kmirror/protocol/kraft"
)

func TestStuckWhenTheSourceHasDeletedIt(t *testing.T) {
	r := newRig(t, 1, func(c *Config, m *MirrorConfig) {
		c.stuckAfter, c.WindowBytes, c.activeFor = 20*time.Millisecond, 64<<10, time.Millisecond
		m.MaxBytes = 16 << 10
	})
	g := r.topic.parts[0]
	r.src.fill(g, 2000, 2000)
	r.mirror(1)
	fs := r.three()
	fs[2].partBytes = 1
	r.syncAll(0, fs...)
	fs[2].to(40)
	r.until("1 is far ahead", func(Status) bool { return fs[0].once().next >= 1500 })
	r.src.do(func() { g.deleteTo(1800) })
	r.become(RoleDrain)
	r.until("stuck", func(s Status) bool { fs[2].once(); fs[0].once(); fs[1].once(); return s.Stuck })
	for _, f := range fs {
		if p := f.parts[0]; p.start != 0 || p.logStart != 0 || p.diverged != 0 {
			t.Errorf("follower %d lost records: %d to %d, told to truncate %d times", f.id, p.start, p.next, p.diverged)
		}
	}
	if fs[2].parts[0].next != 40 {
		t.Errorf("3 is at %d", fs[2].parts[0].next)
	}
	// A real broker gave it what it lacks.
	fs[2].parts[0] = &fakeReplica{hw: -1}
	fs[2].parts[0].plant(fs[0].parts[0].log)
	fs[2].parts[0].next = fs[0].parts[0].next
	fs[1].parts[0].next = fs[0].parts[0].next
	r.until("not stuck", func(s Status) bool { fs[0].once(); fs[1].once(); fs[2].once(); return s.Converged && !s.Stuck })
}

func TestStuckTakesItsTime(t *testing.T) {
	l := still(t, 1, 0, 0)
	p := l.all()[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.assign.Role = RoleDrain
	p.count(1, p.follower(1), 100, 0, true, now)
	p.count(2, p.follower(2), 100, 0, true, now)
	p.src.mir, p.src.err = &mirror{}, nil // it does not say that anything is wrong
	for _, tt := range []struct {
		after time.Duration
		do    func(at time.Time)
		stuck bool
	}{
		{0, func(time.Time) {}, false},
		{1900 * time.Millisecond, func(time.Time) { p.src.err = context.DeadlineExceeded }, false},
		{2100 * time.Millisecond, func(time.Time) {}, true},
		{2200 * time.Millisecond, func(at time.Time) { p.count(3, p.follower(3), 10, 0, true, at) }, false}, // it moves
		{4000 * time.Millisecond, func(time.Time) {}, false},
		{4300 * time.Millisecond, func(time.Time) {}, true},
		{4400 * time.Millisecond, func(at time.Time) { p.src.err = nil; p.count(3, p.follower(3), 20, 0, true, at) }, false},
		{9 * time.Second, func(time.Time) {}, false},
		{15 * time.Second, func(time.Time) {}, true},
		{16 * time.Second, func(at time.Time) { p.append(mustChunk(t, 0, batch(20, 80, 0, 20))) }, false},
		{40 * time.Second, func(time.Time) {}, false},
	} {
		at := now.Add(tt.after)
		tt.do(at)
		if p.noteStop(at); p.stop.stuck != tt.stuck {
			t.Errorf("after %v: stuck %v", tt.after, p.stop.stuck)
		}
	}
	p.src.mir = nil
}

func TestDrainAfterRestartWithoutSource(t *testing.T) {
	for name, mirror := range map[string]string{"mirror unknown": "gone", "source dead": "m"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1, func(c *Config, _ *MirrorConfig) { c.stuckAfter = 30 * time.Millisecond })
			r.src.die()
			a := r.assignment(0)
			a.Role, a.Mirror = RoleDrain, mirror
			r.l.Assign(a)
			fs := r.three()
			fs[0].parts[0].plant(batch(0, 10, 2, 20), batch(10, 10, 4, 20))
			fs[1].parts[0].plant(batch(0, 10, 2, 20), batch(10, 10, 4, 20))
			fs[2].parts[0].plant(batch(0, 10, 2, 20))
			fs[0].parts[0].lastEpoch = 5 // it led for a moment
			r.until("counted", func(s Status) bool {
				for _, f := range fs {
					f.once()
				}
				return s.RollCall && s.LogEnd == 20
			})
			if s := r.status(); s.Converged || s.HighWatermark != 10 {
				t.Errorf("with 3 at 10: %+v", s)
			}
			// Nothing but time passes: the news has to come by itself.
			for deadline := time.After(soon); ; {
				changed := r.l.Changed()
				if r.status().Stuck {
					break
				}
				select {
				case <-changed:
				case <-deadline:
					t.Fatalf("not stuck: %+v", r.status())
				}
			}
			// It leaves, as a broker that is replaced does.
			r.images.part(func(p *kraft.Partition) { p.ISR = []int32{9001, 9002, 1, 2} })
			r.until("3 is out", func(s Status) bool { return len(s.ISR) == 4 && !s.Stuck })
			if s := r.converge(20, fs[:2]...); s.LastEpoch != 4 {
				t.Errorf("last epoch %d, want 4", s.LastEpoch)
			}
			a.Role = RoleFrozen
			r.l.Assign(a)
			for _, f := range fs[:2] {
				f.session, f.epoch = 0, 0 // sessions leave out what is held
				if f.once(); f.parts[0].code != 0 {
					t.Errorf("follower %d is held, as if the source could answer: code %d", f.id, f.parts[0].code)
				}
			}
			if s := r.converge(20, fs[:2]...); s.LastEpoch != 4 || s.Stuck {
				t.Errorf("last epoch %d, want 4: %+v", s.LastEpoch, s)
			}
			a.Role = RoleMirror
			r.l.Assign(a)
			if s := r.status(); s.LastEpoch == 5 {
				t.Error("the epoch of nobody's records is taken for the last one")
			}
		})
	}
}
