package fetch

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"kmirror/internal/replica"
	"kmirror/records"
)

// tailOf makes batches of one record each that follow a log's end; their epoch is for others to stamp.
func tailOf(from int64, n int) *replica.Tail {
	t := &replica.Tail{End: from + int64(n)}
	for i := range n {
		t.Batches = append(t.Batches, batch(from+int64(i), 1, 0, 30)...)
	}
	return t
}

// stampedBytes is what followers are to have of a tail.
func stampedBytes(t *replica.Tail, epoch int32) []byte {
	all := bytes.Clone(t.Batches)
	for b := all; len(b) > 0; {
		x, rest, _ := records.Split(b)
		x.SetPartitionLeaderEpoch(epoch)
		b = rest
	}
	return all
}

func (r *rig) assignTail(epoch int32, end int64, t *replica.Tail) {
	a := r.assignment(0)
	a.Role, a.TruncateTo, a.Tail = RoleTail, Divergence{Epoch: epoch, EndOffset: end}, t
	r.l.Assign(a)
}

// tailed lets followers fetch until all have the tail, and compares their logs.
func (r *rig) tailed(want []byte, fs ...*fakeFollower) Status {
	r.t.Helper()
	s := r.until("tailed", func(s Status) bool {
		if s.Tailed {
			return true
		}
		for _, f := range fs {
			f.once()
		}
		return false
	})
	for _, f := range fs {
		sameBytes(r.t, f.parts[0].log, want)
	}
	if s.HighWatermark != s.LogEnd || s.Err != nil || s.EpochBlocked || s.LastEpoch != s.LeaderEpoch {
		r.t.Errorf("tailed: %+v", s)
	}
	return s
}

// mirrored has 50 offsets of epoch 3 mirrored and the log drained.
func (r *rig) mirrored() []*fakeFollower {
	g := r.topic.parts[0]
	r.src.do(func() { g.lead(1, 3) })
	r.src.fill(g, 50, 20)
	r.mirror(1)
	fs := r.three()
	r.syncAll(50, fs...)
	r.become(RoleDrain)
	if s := r.converge(50, fs...); s.LastEpoch != 3 {
		r.t.Fatalf("last epoch %d", s.LastEpoch)
	}
	return fs
}

func TestTailFollowsTheLog(t *testing.T) {
	r := newRig(t, 1)
	fs := r.mirrored()
	log := r.topic.parts[0].bytes()
	tail := tailOf(50, 3)
	before := bytes.Clone(tail.Batches)
	r.src.fill(r.topic.parts[0], 90, 20)
	r.assignTail(3, 50, tail)
	if s := r.status(); s.HighWatermark != 50 || s.LogEnd != 53 || s.Tailed || s.LastEpoch != 3 || !s.RollCall || s.Err != nil {
		t.Fatalf("at first: %+v", s)
	}
	for _, f := range fs[:2] {
		f.once()
		f.once()
	}
	if s := r.status(); s.Tailed || s.HighWatermark != 50 || fs[0].parts[0].next != 53 {
		t.Errorf("with 3 at 50: %+v", s)
	}
	want := append(log, stampedBytes(tail, 5)...)
	r.tailed(want, fs...)
	if !bytes.Equal(tail.Batches, before) {
		t.Error("the assigned tail was written to")
	}
	if n := r.l.memory.Load(); n != 0 {
		t.Errorf("%d bytes of windows are kept", n)
	}
	// Nothing more comes, and the same tail assigned again changes nothing.
	again := tailOf(50, 3)
	r.assignTail(3, 50, again)
	if s := r.status(); !s.Tailed || s.HighWatermark != 53 {
		t.Errorf("assigned again: %+v", s)
	}
	for _, f := range fs {
		if p := f.once(); p.next != 53 || p.hw != 53 || p.diverged != 0 {
			t.Errorf("follower %d at %d, high watermark %d, told to truncate %d times", f.id, p.next, p.hw, p.diverged)
		}
	}
}

func TestTailIsStampedAnewAfterAFlip(t *testing.T) {
	r := newRig(t, 1)
	fs := r.mirrored()
	log, tail := r.topic.parts[0].bytes(), tailOf(50, 3)
	r.assignTail(3, 50, tail)
	r.tailed(append(bytes.Clone(log), stampedBytes(tail, 5)...), fs...)
	fs[2].parts[0].truncate(51) // as if it had but one
	for i, epoch := range []int32{6, 9} {
		r.flip([]int32{9002, 9001}[i], epoch, fs...)
		if s := r.status(); s.Tailed || s.HighWatermark != 50 {
			t.Errorf("right after the flip: %+v", s)
		}
		r.tailed(append(bytes.Clone(log), stampedBytes(tail, epoch)...), fs...)
		for _, f := range fs {
			if p := f.parts[0]; p.diverged != i+1 {
				t.Errorf("follower %d was told to truncate %d times, want %d", f.id, p.diverged, i+1)
			}
		}
	}
}

func TestTailAfterAnEarlierProcess(t *testing.T) {
	// What that one managed to give was of leader epoch 4. It is not known here who had it all, nor is the source there.
	for name, first := range map[string]Role{"at once": RoleWait, "drained first": RoleDrain} {
		t.Run(name, func(t *testing.T) { testTailAfterAnEarlierProcess(t, first) })
	}
}

func testTailAfterAnEarlierProcess(t *testing.T, first Role) {
	r := newRig(t, 1)
	r.src.die()
	old, tail := tailOf(50, 4), tailOf(50, 2)
	var log []byte
	for b := int64(0); b < 50; b += 10 {
		log = append(log, batch(b, 10, 3, 20)...)
	}
	fs := r.three()
	for i, f := range fs {
		f.parts[0].plant(splitAll(log)...)
		f.parts[0].plant(splitAll(stampedBytes(old, 4))[:2*i]...)
	}
	fs[0].parts[0].lastEpoch = 4 // it led for a moment, without a record
	fs[0].parts[0].epochs = fs[0].parts[0].epochs.record(4, 50)
	if r.become(first); first == RoleDrain {
		r.until("all counted", func(s Status) bool {
			for _, f := range fs {
				f.once()
			}
			return s.RollCall && s.HighWatermark == 50 && s.LogEnd == 54
		})
	}
	r.assignTail(3, 50, tail)
	fs[0].once()
	if p := fs[0].parts[0]; p.diverged != 1 || p.next != 50 || p.lastEpoch != 3 {
		t.Errorf("an epoch without records stays: at %d after epoch %d, told to truncate %d times", p.next, p.lastEpoch, p.diverged)
	}
	for _, f := range fs[1:] {
		if f.once(); f.parts[0].next != 50 || f.parts[0].diverged != 1 {
			t.Errorf("follower %d at %d was told to truncate %d times", f.id, f.parts[0].next, f.parts[0].diverged)
		}
	}
	if s := r.status(); s.RollCall || s.HighWatermark > 50 || first == RoleWait && s.HighWatermark >= 0 {
		t.Errorf("a follower that is cut back counts: %+v", s)
	}
	r.tailed(append(log, stampedBytes(tail, 5)...), fs...)
}

func splitAll(b []byte) (all [][]byte) {
	for len(b) > 0 {
		x, rest, err := records.Split(b)
		if err != nil {
			panic(err)
		}
		all, b = append(all, x), rest
	}
	return all
}

func TestTailRespectsLimits(t *testing.T) {
	r := newRig(t, 1)
	fs := r.mirrored()
	log, tail := r.topic.parts[0].bytes(), tailOf(50, 5)
	r.assignTail(3, 50, tail)
	one := len(tail.Batches) / 5
	fs[0].session, fs[0].epoch = 0, -1 // sessions tell limits once
	for _, tt := range []struct {
		limit int
		next  int64
	}{{1, 51}, {one, 52}, {2*one + 1, 54}, {1000, 55}} {
		f := fs[0]
		f.partBytes = int32(tt.limit)
		if f.once(); f.parts[0].next != tt.next {
			t.Errorf("%d bytes bring the follower to %d, want %d", tt.limit, f.parts[0].next, tt.next)
		}
	}
	r.tailed(append(log, stampedBytes(tail, 5)...), fs...)
}

func TestTailBeginsWithAllThatIsMirrored(t *testing.T) {
	// A member that lacks records is not given the tail, and leaves the ISR when it is late.
	r := newRig(t, 1, func(c *Config, _ *MirrorConfig) { c.ReplicaLag, c.isrRetry = 3*time.Second, 10*time.Millisecond })
	fs := r.mirrored()
	log, tail := r.topic.parts[0].bytes(), tailOf(50, 2)
	fs[2].parts[0].truncate(30)
	fs[2].parts[0].hw = -1
	r.flip(9002, 6, fs...)
	fs[2].epoch = -1
	r.assignTail(3, 50, tail)
	for range 3 {
		for _, f := range fs {
			f.once()
		}
	}
	if s := r.status(); s.Tailed || s.RollCall || s.HighWatermark != 50 || fs[2].parts[0].next != 30 || fs[2].parts[0].code != 75 {
		t.Errorf("3 is at %d with code %d: %+v", fs[2].parts[0].next, fs[2].parts[0].code, s)
	}
	r.until("3 is out", func(s Status) bool {
		for _, f := range fs {
			f.once()
		}
		return !slices.Contains(s.ISR, 3)
	})
	r.tailed(append(log, stampedBytes(tail, 6)...), fs[:2]...)
}

func TestTailOfAnEmptyLog(t *testing.T) {
	r := newRig(t, 1)
	fs := r.three()
	fs[0].parts[0].plant(splitAll(stampedBytes(tailOf(0, 3), 4))...)
	fs[1].parts[0].lastEpoch = 4 // it led for a moment
	tail := tailOf(0, 2)
	r.assignTail(0, 0, tail)
	if fs[0].once(); fs[0].parts[0].next != 0 {
		t.Errorf("not cut back: at %d", fs[0].parts[0].next)
	}
	r.tailed(stampedBytes(tail, 5), fs...)
	if n := fs[1].parts[0].diverged; n != 0 {
		t.Errorf("a follower without a record is told to truncate %d times", n)
	}
}

func TestTailOfALogWithoutEpochs(t *testing.T) {
	// Retention took all records, and with them what was known of epochs.
	r := newRig(t, 1)
	fs := r.three()
	for _, f := range fs {
		f.parts[0].start, f.parts[0].next, f.parts[0].logStart = 70, 70, 70
	}
	fs[0].parts[0].plant(splitAll(stampedBytes(tailOf(70, 3), 4))...)
	tail := tailOf(70, 2)
	r.assignTail(-1, 70, tail)
	s := r.tailed(stampedBytes(tail, 5), fs...)
	if fs[0].parts[0].start != 70 || s.LogStart != 70 {
		t.Errorf("log start %d, follower starts at %d", s.LogStart, fs[0].parts[0].start)
	}
}

func TestTailThatIsEmpty(t *testing.T) {
	r := newRig(t, 1)
	fs := r.mirrored()
	r.assignTail(3, 50, tailOf(50, 0))
	for _, f := range fs {
		f.once()
	}
	if s := r.status(); !s.Tailed || s.LogEnd != 50 || s.HighWatermark != 50 {
		t.Errorf("%+v", s)
	}
}

func TestEpochEndWithATail(t *testing.T) {
	type want struct {
		e   int32
		end int64
		ok  bool
	}
	known := map[int32]want{
		-1: {-1, -1, false}, 0: {0, 0, true}, 1: {1, 20, true}, 2: {1, 20, true}, 3: {3, 50, true}, 4: {3, 50, true}, 7: {3, 50, true},
		8: {8, 52, true}, 99: {8, 52, true},
	}
	unknown := map[int32]want{
		-1: {-1, -1, false}, 1: {-1, -1, false}, 2: {-1, -1, false}, 3: {3, 50, true}, 4: {3, 50, true}, 8: {8, 52, true}, 9: {8, 52, true},
	}
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() {
		g.lead(1, 1)
		g.add(batch(0, 20, 1, 20))
		g.lead(1, 3)
		g.add(batch(20, 30, 3, 20))
	})
	r.mirror(1)
	fs := r.three()
	r.syncAll(50, fs...)
	r.src.do(func() { g.lead(1, 4); g.add(batch(50, 10, 4, 20)) })
	r.until("epoch 4 is read, but not by followers", func(s Status) bool { return s.LogEnd == 60 })
	r.become(RoleDrain)
	r.converge(50, fs...)
	r.flip(9002, 8, fs...)
	r.assignTail(3, 50, tailOf(50, 2))
	check := func(what string, answers map[int32]want) {
		t.Helper()
		for ask, w := range answers {
			if e, end, ok := r.l.EpochEnd(r.id(), ask); e != w.e || end != w.end || ok != w.ok {
				t.Errorf("%s, epoch %d: %d ends at %d (%v), want %+v", what, ask, e, end, ok, w)
			}
		}
	}
	check("history known", known)
	r.stop()
	r.restart()
	r.until("led", func(s Status) bool { return s.LeaderEpoch == 8 })
	check("history unknown", unknown)
	r.assignTail(0, 0, tailOf(0, 2))
	check("nothing mirrored", map[int32]want{0: {0, 0, true}, 5: {5, 0, true}, 8: {8, 2, true}})
}

func TestWhatFollowsATail(t *testing.T) {
	// A stop is never taken back. But whatever role comes, no tail is held for a part of the source's log.
	r := newRig(t, 1)
	fs := r.mirrored()
	g := r.topic.parts[0]
	tail := tailOf(50, 3)
	r.assignTail(3, 50, tail)
	r.tailed(append(g.bytes(), stampedBytes(tail, 5)...), fs...)
	r.src.fill(g, 100, 20)
	for _, f := range fs {
		f.parts[0].diverged = 0
	}
	r.become(RoleDrain)
	if s := r.status(); s.HighWatermark != 50 || s.LogEnd != 50 || s.Converged || s.Tailed {
		t.Errorf("drained again: %+v", s)
	}
	r.until("converged", func(s Status) bool {
		for _, f := range fs {
			f.once()
		}
		return s.Converged && s.LogEnd == 50
	})
	r.mirror(1)
	r.syncAll(100, fs...)
	for _, f := range fs {
		sameBytes(t, f.parts[0].log, g.bytes())
	}
}

func TestTailDropsTheWindow(t *testing.T) {
	r := newRig(t, 1)
	fs := r.uneven()
	r.become(RoleDrain)
	r.converge(100, fs...)
	if n := r.l.memory.Load(); n == 0 {
		t.Fatal("nothing was read ahead")
	}
	tail := tailOf(100, 2)
	r.assignTail(0, 100, tail)
	if n := r.l.memory.Load(); n != 0 {
		t.Errorf("%d bytes are kept for nobody", n)
	}
	r.tailed(append(fs[0].parts[0].log[:len(fs[0].parts[0].log):len(fs[0].parts[0].log)], stampedBytes(tail, 5)...), fs...)
	r.mirror(1)
	if s := r.status(); s.LogEnd != 100 || s.HighWatermark != 100 {
		t.Errorf("without the tail the log ends at %d, high watermark %d", s.LogEnd, s.HighWatermark)
	}
}

func TestTailedIsTold(t *testing.T) {
	r := newRig(t, 1)
	fs := r.mirrored()
	r.assignTail(3, 50, tailOf(50, 3))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, f := range fs {
		wg.Go(func() { f.loop(ctx) })
	}
	for deadline := time.After(soon); ; {
		changed := r.l.Changed()
		if r.status().Tailed {
			break
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("never tailed: %+v", r.status())
		}
	}
}
