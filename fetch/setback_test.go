package fetch

import (
	"errors"
	"testing"
)

// setBackTo takes a source's log back without a new leader epoch, as a restore from a copy of its disks does.
func (r *rig) setBackTo(offset int64) {
	r.src.do(func() { r.topic.parts[0].truncate(offset) })
	r.l.mirror("m").kickRefresh()
}

// keeps wants a partition failed for good because its source was set back, and followers that fetch on and are told to cut nothing,
// in each role that it may get after that.
func (r *rig) keeps(end int64, fs ...*fakeFollower) {
	r.t.Helper()
	s := r.until("failed for good", func(s Status) bool {
		for _, f := range fs {
			f.once()
		}
		return s.Fatal
	})
	var back *rolledBackError
	if !errors.As(s.Err, &back) || back.Hint() == "" || !s.RolledBack {
		r.t.Errorf("status says %v, rolled back %v", s.Err, s.RolledBack)
	}
	r.become(RoleFrozen)
	r.converge(end, fs...)
	r.become(RoleDrain)
	r.converge(end, fs...)
	for _, f := range fs {
		if f.parts[0].diverged != 0 {
			r.t.Errorf("follower %d was told to truncate", f.id)
		}
	}
}

func TestSourceSetBackUnderItsOwnEpoch(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() { g.lead(1, 3); g.add(batch(0, 10, 3, 50)); g.add(batch(10, 10, 3, 50)) })
	r.mirror(1)
	fs := r.three()
	r.syncAll(20, fs...)
	r.setBackTo(10)
	r.keeps(20, fs...)

	t.Log("with a process that never saw more")
	r.stop()
	r.restart()
	r.mirror(1)
	r.keeps(20, fs...)

	t.Log("mirrored on when the source has more than replicas again: nobody can tell, and it is what was asked for")
	r.src.do(func() { g.add(batch(10, 10, 3, 70)); g.add(batch(20, 10, 3, 70)) })
	r.mirror(1)
	r.syncAll(30, fs...)
	if s := r.status(); s.Fatal || s.RolledBack {
		t.Errorf("still failed: %v", s.Err)
	}
}

func TestSourceSetBackAndAheadAgain(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() { g.lead(1, 3); g.add(batch(0, 10, 3, 50)); g.add(batch(10, 10, 3, 50)) })
	r.mirror(1)
	fs := r.three()
	r.syncAll(20, fs...)
	r.stop()
	r.src.do(func() { g.truncate(10); g.add(batch(10, 15, 3, 70)) }) // a batch from 10 to 24: a follower at 20 can't take it
	r.restart()
	r.mirror(1)
	r.keeps(20, fs...)
}

func TestSourceSetBackAndAFollowerThatLed(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() { g.lead(1, 3); g.add(batch(0, 10, 3, 50)); g.add(batch(10, 10, 3, 50)) })
	r.mirror(1)
	fs := r.three()
	r.syncAll(20, fs...)
	r.stop()
	r.src.do(func() { g.truncate(10) })
	r.restart()
	led := fs[0].parts[0] // under the lock: an epoch of its own, and not a record
	led.epochs, led.lastEpoch = led.epochs.record(14, led.next), 14
	r.mirror(1)
	r.until("failed for good", func(s Status) bool {
		for _, f := range fs {
			f.once()
		}
		return s.Fatal
	})
	r.become(RoleFrozen)
	r.until("converged", func(s Status) bool {
		for _, f := range fs {
			f.once()
		}
		return s.Converged
	})
	for _, f := range fs {
		if end := f.parts[0].next; end != 20 {
			t.Errorf("follower %d ends at %d: what was mirrored is the only copy", f.id, end)
		}
	}
}
