package fetch

import (
	"context"
	"slices"
	"testing"
	"time"

	"kmirror/protocol/kraft"
)

// become gives the first partition another role.
func (r *rig) become(role Role) {
	a := r.assignment(0)
	a.Role = role
	r.l.Assign(a)
}

// to fetches batch by batch until the follower's log ends at an offset.
func (f *fakeFollower) to(end int64) {
	f.r.t.Helper()
	f.partBytes = 1
	f.r.until("follower brought to its place", func(Status) bool { return f.parts[0].next >= end || f.once().next >= end })
	f.partBytes = 1 << 20
	if p := f.parts[0]; p.next != end {
		f.r.t.Fatalf("follower %d at %d, not at %d", f.id, p.next, end)
	}
}

// converge lets followers fetch until the log has converged at end.
func (r *rig) converge(end int64, fs ...*fakeFollower) Status {
	r.t.Helper()
	s := r.until("converged", func(s Status) bool {
		if s.Converged {
			return true
		}
		for _, f := range fs {
			f.once()
		}
		return false
	})
	for _, f := range fs {
		if p := f.parts[0]; p.next != end || p.diverged != 0 {
			r.t.Errorf("follower %d ends at %d, want %d; told to truncate %d times", f.id, p.next, end, p.diverged)
		}
	}
	if s.LogEnd != end || s.HighWatermark != end || s.Stuck {
		r.t.Errorf("want all to end at %d: %+v", end, s)
	}
	return s
}

// flip moves leadership to a node id of ours under an epoch; followers learn of it.
func (r *rig) flip(node, epoch int32, fs ...*fakeFollower) {
	r.t.Helper()
	r.images.part(func(p *kraft.Partition) { p.Leader, p.LeaderEpoch = node, epoch })
	r.until("flip", func(s Status) bool { return s.LeaderEpoch == epoch })
	for _, f := range fs {
		f.node, f.leaderEpoch, f.session, f.epoch = node, epoch, 0, 0
	}
}

// uneven mirrors 200 offsets of which followers have 100, 60 and 40.
func (r *rig) uneven() []*fakeFollower {
	r.src.fill(r.topic.parts[0], 200, 20)
	r.mirror(1)
	fs := r.three()
	for _, f := range fs {
		f.partBytes = 1
	}
	r.syncAll(0, fs...)
	fs[0].to(100)
	fs[1].to(60)
	fs[2].to(40)
	return fs
}

func TestDrainEndsWhereTheLongestReplicaEnds(t *testing.T) {
	for name, roles := range map[string][]Role{
		"mirroring": {RoleDrain}, "paused or failed": {RoleFrozen, RoleDrain}, "again": {RoleDrain, RoleMirror, RoleDrain},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			fs := r.uneven()
			g := r.topic.parts[0]
			for _, role := range roles {
				r.become(role)
			}
			if s := r.status(); s.Converged {
				t.Errorf("converged with followers at 100, 60 and 40: %+v", s)
			}
			r.src.fill(g, 300, 20)
			if s := r.converge(100, fs...); s.LastEpoch != 0 {
				t.Errorf("last epoch %d", s.LastEpoch)
			}
			for _, f := range fs {
				if f.once(); f.parts[0].next != 100 {
					t.Errorf("follower %d got something beyond the end", f.id)
				}
			}
			read := r.status().FetchedBytes
			r.become(RoleFrozen)
			r.converge(100, fs...)
			if n := r.status().FetchedBytes; n != read {
				t.Errorf("%d bytes were read while nothing is handed out", n-read)
			}
			r.mirror(1)
			r.syncAll(300, fs...)
			for _, f := range fs {
				sameBytes(t, f.parts[0].log, g.bytes())
			}
			if n := r.status().FetchedBytes; n != int64(len(g.bytes())) {
				t.Errorf("read %d bytes of %d", n, len(g.bytes()))
			}
		})
	}
}

func TestDrainReadsNothingNew(t *testing.T) {
	r := newRig(t, 1, func(_ *Config, m *MirrorConfig) { m.WaitMax = 5 * time.Millisecond })
	r.src.fill(r.topic.parts[0], 50, 20)
	r.mirror(1)
	fs := r.three()
	r.syncAll(50, fs...)
	r.become(RoleDrain)
	r.converge(50, fs...)
	n := len(r.src.requests(0))
	r.src.fill(r.topic.parts[0], 90, 20)
	time.Sleep(30 * time.Millisecond)
	if m := len(r.src.requests(0)); m > n+1 { // one was under way
		t.Errorf("%d requests to the source", m-n)
	}
}

func TestRecordsOnTheirWayAreWaitedFor(t *testing.T) {
	for _, lost := range []bool{false, true} {
		r := newRig(t, 1)
		g := r.topic.parts[0]
		r.src.fill(g, 50, 20)
		r.mirror(1)
		fs := r.three()
		r.syncAll(50, fs...)
		for _, f := range fs {
			f.once()
		}
		r.src.fill(g, 60, 20)
		// The answer leaves, and then the log is frozen.
		var reply *Reply
		var version int16
		r.until("an answer with records", func(Status) bool {
			q := r.follower(1, 1).request()
			q.SessionEpoch, q.MaxWaitMillis, version = -1, 0, q.Version
			q.Topics[0].Partitions[0].FetchOffset, q.Topics[0].Partitions[0].LastFetchedEpoch = 50, 0
			var err error
			if reply, err = r.l.Fetch(context.Background(), q, 9001); err != nil {
				t.Fatal(err)
			}
			return len(reply.records) > 0
		})
		r.become(RoleDrain)
		for _, f := range fs[1:] {
			f.once()
		}
		if s := r.status(); s.Converged || s.HighWatermark != 50 {
			t.Fatalf("converged while broker 1 may be at 60: %+v", s)
		}
		end := int64(50)
		if !lost {
			end = 60
			fs[0].parts[0].apply(fs[0], &decodeReply(t, reply, version).Topics[0].Partitions[0])
		}
		r.converge(end, fs...)
	}
}

func TestDrainEndsNoFurtherAfterAFlip(t *testing.T) {
	r := newRig(t, 1)
	fs := r.uneven()
	fs[0].partBytes = 1
	fs[0].once() // at 110, of which 100 is counted
	fs[0].parts[0].truncate(100)
	r.become(RoleDrain)
	r.flip(9002, 6, fs...)
	if s := r.status(); s.LogEnd != 100 || s.RollCall || s.Converged {
		t.Fatalf("after the flip: %+v", s)
	}
	// The shorter ones come first: they must not be given what nobody has.
	for range 3 {
		fs[1].once()
		fs[2].once()
	}
	if fs[1].parts[0].next != 100 || fs[2].parts[0].next != 100 || r.status().Converged {
		t.Errorf("at %d and %d: %+v", fs[1].parts[0].next, fs[2].parts[0].next, r.status())
	}
	r.converge(100, fs...)
}

func TestDrainWithoutTheLongest(t *testing.T) {
	// The longest one dies before the others have what it has: that was never committed.
	r := newRig(t, 1)
	fs := r.uneven()
	r.become(RoleDrain)
	r.images.edit(func(img *kraft.Image) {
		img.Brokers[1] = &kraft.Broker{ID: 1, Epoch: 10, Fenced: true}
		p := img.Topics[destID].Partitions[0]
		p.ISR, p.PartitionEpoch = []int32{9001, 9002, 2, 3}, p.PartitionEpoch+1
	})
	r.until("1 is out", func(s Status) bool { return len(s.ISR) == 4 })
	r.converge(60, fs[1:]...)
	// Back again it is longer than the log; in the ISR it is the log.
	r.images.edit(func(img *kraft.Image) { img.Brokers[1] = &kraft.Broker{ID: 1, Epoch: 10} })
	r.until("1 is in", func(s Status) bool { fs[0].once(); return len(s.ISR) == 5 && !s.Converged })
	r.converge(100, fs...)
}

func TestDrainWithoutARealMember(t *testing.T) {
	r := newRig(t, 1)
	r.images.part(func(p *kraft.Partition) { p.ISR = []int32{9001, 9002} })
	r.until("nobody", func(s Status) bool { return len(s.ISR) == 2 })
	r.src.fill(r.topic.parts[0], 50, 20)
	r.become(RoleDrain)
	if s := r.until("roll call", func(s Status) bool { return s.RollCall && s.SourceEnd == 50 }); s.Converged {
		t.Errorf("converged: %+v", s)
	}
	f := r.follower(1, 1)
	r.converge(50, f)
	r.images.edit(func(img *kraft.Image) {
		img.Brokers[1] = &kraft.Broker{ID: 1, Epoch: 10, Fenced: true}
		p := img.Topics[destID].Partitions[0]
		p.ISR, p.PartitionEpoch = []int32{9001, 9002}, p.PartitionEpoch+1
	})
	if s := r.until("nobody again", func(s Status) bool { return len(s.ISR) == 2 }); s.Converged {
		t.Errorf("converged without anybody: %+v", s)
	}
	r.images.edit(func(img *kraft.Image) { img.Brokers[1] = &kraft.Broker{ID: 1, Epoch: 10} })
	r.converge(50, f) // the first one to come back may lack what others had: it gets all that the source has
}

// TestDrainOnAProposedMemberOnly: who is only proposed may be refused, so a log that nobody else has is not whole yet.
func TestDrainOnAProposedMemberOnly(t *testing.T) {
	r := newRig(t, 1)
	f := r.follower(1, 1)
	r.images.part(func(p *kraft.Partition) { p.ISR = []int32{9001, 9002} })
	r.until("nobody", func(s Status) bool { return len(s.ISR) == 2 })
	r.src.fill(r.topic.parts[0], 50, 20)
	r.become(RoleDrain)
	r.converge(50, f)
	r.ctl.mu.Lock() // the proposal to take it in again stays without an answer
	r.images.part(func(p *kraft.Partition) { p.ISR = []int32{9001, 9002} })
	s := r.until("proposed", func(s Status) bool { f.once(); return len(s.ISR) == 2 && len(s.MaximalISR) == 3 })
	r.ctl.mu.Unlock()
	if s.Converged {
		t.Errorf("converged on a proposal: %+v", s)
	}
	r.converge(50, f)
}

func TestDrainReadsBelowTheWindow(t *testing.T) {
	r := newRig(t, 1, func(c *Config, m *MirrorConfig) {
		c.WindowBytes, c.activeFor = 64<<10, time.Millisecond
		m.MaxBytes = 16 << 10
	})
	g := r.topic.parts[0]
	r.src.fill(g, 2000, 2000)
	r.mirror(1)
	fs := r.three()
	fs[2].partBytes = 1
	r.syncAll(0, fs...)
	fs[2].to(40)
	r.until("1 and 2 are far ahead", func(Status) bool { return fs[0].once().next >= 1500 && fs[1].once().next >= 1500 })
	r.become(RoleDrain)
	end := max(fs[0].parts[0].next, fs[1].parts[0].next)
	r.converge(end, fs...)
	sameBytes(t, fs[2].parts[0].log, fs[0].parts[0].log)
	// The same after a restart, with no window at all.
	r.stop()
	r.restart()
	fs = r.three()
	fs[0].parts[0].plant(g.batches[0], g.batches[1], g.batches[2], g.batches[3], g.batches[4])
	fs[1].parts[0].plant(g.batches[0])
	r.converge(50, fs...)
	sameBytes(t, fs[2].parts[0].log, fs[0].parts[0].log)
	r.mirror(1)
	r.syncAll(2000, fs...)
	sameBytes(t, fs[1].parts[0].log, g.bytes())
}

func TestDrainFromTheWindowOfADeadSource(t *testing.T) {
	r := newRig(t, 1)
	fs := r.uneven()
	r.src.die()
	r.until("source dead", func(s Status) bool { return s.Err != nil })
	r.become(RoleFrozen) // FAILED
	r.become(RoleDrain)
	r.converge(100, fs...)
	sameBytes(t, fs[2].parts[0].log, fs[0].parts[0].log)
}

func TestDrainWithEqualReplicasAndADeadSource(t *testing.T) {
	r := newRig(t, 1)
	r.src.die()
	r.become(RoleDrain)
	fs := r.three()
	for _, f := range fs {
		f.parts[0].plant(batch(0, 10, 2, 20), batch(10, 10, 4, 20))
		f.parts[0].logStart = 3
	}
	if s := r.converge(20, fs...); s.LastEpoch != 4 || s.LogStart != 3 {
		t.Errorf("last epoch %d, log start %d", s.LastEpoch, s.LogStart)
	}
}

// TestFrozenWithoutASourceToAsk: what is known of the source's history has to do when it can't be asked any more.
func TestFrozenWithoutASourceToAsk(t *testing.T) {
	for name, tt := range map[string]struct {
		last   int32
		offset int64
		div    Divergence
	}{
		"a part of it":               {2, 30, Divergence{Epoch: -1, EndOffset: -1}},
		"all of it":                  {4, 80, Divergence{Epoch: -1, EndOffset: -1}},
		"longer than we know":        {4, 95, Divergence{Epoch: -1, EndOffset: -1}},
		"with a newer epoch":         {6, 95, Divergence{Epoch: -1, EndOffset: -1}},
		"another end of an epoch":    {2, 60, Divergence{Epoch: 2, EndOffset: 50}},
		"an epoch that is not there": {3, 60, Divergence{Epoch: 2, EndOffset: 50}},
		"newer, but shorter":         {6, 70, Divergence{Epoch: 4, EndOffset: 80}},
	} {
		for _, role := range []Role{RoleDrain, RoleFrozen} {
			l := still(t, 1, 0, 0)
			p := l.all()[0]
			p.mu.Lock()
			p.assign.Role = role
			p.src.hist, p.src.leo, p.src.end, p.src.next, p.src.needLoad = history{{2, 0}, {4, 50}}, 80, 80, 80, true
			p.mu.Unlock()
			r := &rig{t: t, l: l}
			f := r.follower(1, 1)
			f.parts[0].next, f.parts[0].lastEpoch = tt.offset, tt.last
			q := f.request()
			q.SessionEpoch, q.MaxWaitMillis = -1, 0
			reply, err := l.Fetch(context.Background(), q, 9001)
			if err != nil {
				t.Fatal(err)
			}
			a := decodeReply(t, reply, q.Version).Topics[0].Partitions[0]
			if got := (Divergence{Epoch: a.DivergingEpoch.Epoch, EndOffset: a.DivergingEpoch.EndOffset}); a.ErrorCode != 0 || got != tt.div {
				t.Errorf("%s: code %d, told %+v, want %+v", name, a.ErrorCode, got, tt.div)
			}
		}
	}
}

func TestResumeAfterTheSourceDivergedBeyondTheFrozenEnd(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	fs := r.uneven()
	r.become(RoleDrain)
	r.converge(100, fs...)
	r.src.do(func() { g.truncate(150); g.lead(1, 1); g.add(batch(150, 10, 1, 30)) })
	r.l.mirror("m").kickRefresh()
	r.until("source epoch 1", func(s Status) bool { return s.SourceEpoch == 1 })
	p := r.l.part(r.id())
	p.mu.Lock()
	p.reload()
	p.mu.Unlock()
	r.until("divergence seen", func(s Status) bool { return s.Divergences == 1 })
	r.converge(100, fs...)
	r.mirror(1)
	r.syncAll(160, fs...)
	for _, f := range fs {
		sameBytes(t, f.parts[0].log, g.bytes())
	}
}

func TestDrainWhileTheSourceLosesRecords(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	fs := r.uneven()
	r.become(RoleDrain)
	fs[0].partBytes = 1
	fs[0].once() // counts at 100
	r.src.do(func() { g.truncate(80); g.lead(1, 1); g.add(batch(80, 10, 1, 30)) })
	p := r.l.part(r.id())
	p.mu.Lock()
	p.reload()
	p.mu.Unlock()
	if s := r.until("divergence seen", func(s Status) bool { return s.Divergences == 1 }); s.LogEnd != 80 {
		t.Errorf("the log ends at %d, of which the source has 80", s.LogEnd)
	}
	r.until("converged", func(s Status) bool {
		for _, f := range fs {
			f.once()
		}
		return s.Converged && s.LogEnd == 80
	})
	sameBytes(t, fs[1].parts[0].log, fs[0].parts[0].log)
}

func TestDrainUnderTooFewMembersSaysSo(t *testing.T) {
	r := newRig(t, 1)
	r.ctl.answer = func(kraft.ISRProposal) (kraft.ISROutcome, error) { return kraft.ISROutcome{ErrorCode: 107}, nil }
	fs := r.uneven()
	r.images.part(func(p *kraft.Partition) { p.ISR = []int32{9001, 9002, 1, 2} })
	r.until("3 is out", func(s Status) bool { return len(s.ISR) == 4 })
	a := r.assignment(0)
	a.Role, a.MinRealISR = RoleDrain, 3
	r.l.Assign(a)
	r.until("alike", func(s Status) bool { fs[0].once(); fs[1].once(); return s.Followers[2].FetchOffset == 100 })
	if s := r.status(); s.Converged || s.HighWatermark >= 100 || s.Err == nil {
		t.Errorf("two of three: %+v", s)
	}
	if !slices.Equal(r.status().ISR, []int32{9001, 9002, 1, 2}) {
		t.Error("another ISR")
	}
}
