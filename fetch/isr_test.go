package fetch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// once lets a follower fetch without waiting.
func (f *fakeFollower) once() *fakeReplica {
	f.r.t.Helper()
	old := f.maxWait
	f.maxWait = 0
	f.fetch(context.Background())
	f.maxWait = old
	return f.parts[0]
}

// loaded waits until the source's history is known, so that fetches that don't wait are not held for it.
func (r *rig) loaded() {
	r.t.Helper()
	r.until("history loaded", func(s Status) bool { return s.Leader > 0 && s.LogStart >= 0 && s.SourceStart >= 0 })
}

func TestRollCallBeforeAnyWatermark(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.fill(g, 100, 20)
	r.mirror(1)
	r.loaded()
	f1, f2, f3 := r.follower(1, 1), r.follower(2, 1), r.follower(3, 1)
	f1.parts[0].plant(batch(0, 10, 0, 20), batch(10, 10, 0, 20), batch(20, 10, 0, 20))
	f2.parts[0].plant(batch(0, 10, 0, 20), batch(10, 10, 0, 20))
	f3.parts[0].plant(batch(0, 10, 0, 20))
	for _, f := range []*fakeFollower{f1, f2, f1, f2} {
		if p := f.once(); p.code != 75 {
			t.Fatalf("follower %d is answered (code %d) before 3 has fetched", f.id, p.code)
		}
		if _, known := r.l.HighWatermark(r.id()); known {
			t.Fatal("a high watermark before the roll call was complete")
		}
	}
	f3.once()
	if hw, known := r.l.HighWatermark(r.id()); !known || hw != 10 {
		t.Fatalf("high watermark %d, want the least end 10", hw)
	}
	r.syncAll(100, f1, f2, f3)
	for _, f := range []*fakeFollower{f1, f2, f3} {
		sameBytes(t, f.parts[0].log, g.bytes())
	}
	if q := r.src.requests(0)[0]; q.FetchOffset != 10 || q.LastFetchedEpoch != 0 {
		t.Errorf("reading starts with %+v, want offset 10 after epoch 0", q)
	}
}

func TestRollCallWithoutAMemberThatLeft(t *testing.T) {
	r := newRig(t, 1)
	r.mirror(1)
	r.loaded()
	f1, f2 := r.follower(1, 1), r.follower(2, 1)
	f1.once()
	f2.once()
	if r.status().RollCall {
		t.Fatal("roll call complete without 3")
	}
	r.images.part(func(p *kraft.Partition) { p.ISR = []int32{9001, 9002, 1, 2} })
	r.until("roll call", func(s Status) bool { return s.RollCall })
}

func TestWatermarkNeedsEnoughMembers(t *testing.T) {
	for name, tt := range map[string]struct {
		minISR  string
		minReal int
		isr     []int32
		moves   bool
	}{
		"all there":                  {"4", 2, []int32{9001, 9002, 1, 2, 3}, true},
		"at the minimum":             {"4", 2, []int32{9001, 9002, 1, 2}, true},
		"below min.insync.replicas":  {"4", 1, []int32{9001, 1, 2}, false},
		"capped at the replicas":     {"1000", 1, []int32{9001, 9002, 1, 2}, false},
		"capped, all there":          {"1000", 3, []int32{9001, 9002, 1, 2, 3}, true},
		"too few real":               {"1", 2, []int32{9001, 9002, 1}, false},
		"default of one, one real":   {"", 1, []int32{9001, 1}, true},
		"minimum without real ones":  {"1", 0, []int32{9001, 9002}, false},
		"one real is the least ever": {"1", 0, []int32{9001, 9002, 3}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.ctl.answer = func(kraft.ISRProposal) (kraft.ISROutcome, error) { return kraft.ISROutcome{ErrorCode: 107}, nil }
			r.images.edit(func(img *kraft.Image) {
				img.Topics[destID].Partitions[0].ISR = tt.isr
				if tt.minISR != "" {
					img.Configs[kraft.ConfigResource{Type: kraft.ConfigTopic, Name: topicName}] = map[string]string{"min.insync.replicas": tt.minISR}
				}
			})
			r.src.fill(r.topic.parts[0], 10, 20)
			a := r.assignment(0)
			a.MinRealISR = tt.minReal
			r.until("led", func(s Status) bool { return slices.Equal(s.ISR, tt.isr) })
			r.l.Assign(a)
			r.loaded()
			fs := r.three()
			r.until("the records are there, and the watermark moves or it is told why not", func(s Status) bool {
				for _, f := range fs {
					f.once()
				}
				return s.LogEnd == 10 && s.RollCall && (s.HighWatermark == 10 || !tt.moves && s.Err != nil)
			})
			for range 5 {
				for _, f := range fs {
					f.once()
				}
			}
			hw, known := r.l.HighWatermark(r.id())
			if tt.moves != (known && hw == 10) {
				t.Errorf("high watermark %d, %v", hw, known)
			}
			if s := r.status(); !tt.moves && !errors.Is(s.Err, ErrUnderMinISR) {
				t.Errorf("status does not say why: %v", s.Err)
			}
		})
	}
}

func TestUnderMinISRAfterRestartNothingIsAdvanced(t *testing.T) {
	// After a restart the watermark is not known, and a lone in-sync member's end may be above it.
	r := newRig(t, 1)
	r.images.edit(func(img *kraft.Image) { img.Topics[destID].Partitions[0].ISR = []int32{9001, 9002, 1} })
	r.src.fill(r.topic.parts[0], 100, 20)
	a := r.assignment(0)
	a.MinRealISR = 2
	r.until("led", func(s Status) bool { return len(s.ISR) == 3 })
	r.l.Assign(a)
	r.loaded()
	f1, f2 := r.follower(1, 1), r.follower(2, 1)
	f1.parts[0].plant(batch(0, 10, 0, 20), batch(10, 10, 0, 20))
	for range 3 {
		if p := f1.once(); p.hw >= 0 {
			t.Fatalf("the lone member is told high watermark %d", p.hw)
		}
	}
	// Broker 2 copies what it lacks, gets into the ISR, and with it the watermark is known.
	r.syncAll(100, f2, f1)
	r.until("2 in the ISR", func(s Status) bool { return slices.Contains(s.ISR, 2) })
	if hw, _ := r.l.HighWatermark(r.id()); hw != 100 {
		t.Errorf("high watermark %d", hw)
	}
}

func TestNoRealMemberWatermarkWaitsForTheSourcesEnd(t *testing.T) {
	// All real replicas were out: the first one back may lack what others had committed. It has to copy all that the
	// source has before it is trusted.
	r := newRig(t, 1)
	r.images.edit(func(img *kraft.Image) { img.Topics[destID].Partitions[0].ISR = []int32{9001, 9002} })
	r.src.fill(r.topic.parts[0], 200, 20)
	r.until("led", func(s Status) bool { return len(s.ISR) == 2 })
	r.mirror(1)
	r.loaded()
	f3 := r.follower(3, 1)
	for b := int64(0); b < 100; b += 10 {
		f3.parts[0].plant(batch(b, 10, 0, 20))
	}
	f3.once()
	time.Sleep(20 * time.Millisecond)
	if n := len(r.ctl.taken()); n != 0 {
		t.Fatalf("broker 3 is proposed at offset 100 of 200: %+v", r.ctl.taken())
	}
	r.syncAll(200, f3)
	f3.once()
	r.until("3 in the ISR", func(s Status) bool { return slices.Contains(s.ISR, 3) })
	f3.once()
	if hw, _ := r.l.HighWatermark(r.id()); hw != 200 {
		t.Errorf("high watermark %d", hw)
	}
}

func TestKAFKA13141DivergingFetchIsNoProgress(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() { g.lead(1, 2); g.add(batch(0, 10, 2, 20)); g.lead(1, 4); g.add(batch(10, 10, 4, 20)) })
	r.mirror(1)
	r.loaded()
	fs := r.three()
	for _, f := range fs[:2] {
		f.parts[0].plant(batch(0, 10, 2, 20), batch(10, 10, 4, 20))
		f.once()
	}
	p := fs[2].parts[0]
	p.plant(batch(0, 10, 2, 20), batch(10, 10, 3, 20), batch(20, 10, 3, 20))
	deadline := time.Now().Add(soon)
	for p.diverged == 0 {
		fs[2].once()
		if s := r.status(); s.RollCall && p.diverged == 0 {
			t.Fatalf("a diverging fetch completed the roll call: %+v", s)
		}
		if time.Now().After(deadline) {
			t.Fatalf("never told to truncate: code %d", p.code)
		}
	}
	if p.next != 10 {
		t.Errorf("truncated to %d, want 10", p.next)
	}
	if hw, known := r.l.HighWatermark(r.id()); known {
		t.Errorf("high watermark %d before 3 has fetched as one of ours", hw)
	}
	r.syncAll(20, fs...)
	sameBytes(t, p.log, g.bytes())
}

func TestKAFKA15221RebootedBrokerStartsAgain(t *testing.T) {
	const retry = 20 * time.Millisecond
	r := newRig(t, 1, func(c *Config, _ *MirrorConfig) { c.isrRetry = retry })
	r.images.edit(func(img *kraft.Image) { img.Topics[destID].Partitions[0].ISR = []int32{9001, 9002, 1, 2} })
	r.src.fill(r.topic.parts[0], 100, 20)
	r.until("led", func(s Status) bool { return len(s.ISR) == 4 })
	var refuse = true
	r.ctl.answer = func(p kraft.ISRProposal) (kraft.ISROutcome, error) {
		if refuse {
			return kraft.ISROutcome{ErrorCode: 107}, nil
		}
		return r.ctl.apply(p), nil
	}
	r.mirror(1)
	f1, f2, f3 := r.follower(1, 1), r.follower(2, 1), r.follower(3, 1)
	r.syncAll(100, f1, f2, f3)
	f3.once() // tells that it has all
	r.until("3 is proposed", func(Status) bool { return len(r.ctl.taken()) > 0 })
	for _, m := range r.ctl.taken()[0].ISR {
		if want := map[int32]int64{9001: 90010, 9002: 90020, 1: 10, 2: 20, 3: 30}[m.ID]; m.Epoch != want {
			t.Errorf("member %d is proposed with broker epoch %d, want %d", m.ID, m.Epoch, want)
		}
	}
	// Broker 3 reboots and loses its disk. Its new registration is known before it fetches again: its old fetch must not
	// let it in, and it must not be proposed.
	r.images.edit(func(img *kraft.Image) { img.Brokers[3] = &kraft.Broker{ID: 3, Epoch: 31} })
	r.until("image", func(Status) bool { return r.l.image().Brokers[3].Epoch == 31 })
	if p := f3.once(); p.code != 77 {
		t.Errorf("a fetch from before the reboot is answered with code %d, want 77", p.code)
	}
	r.ctl.mu.Lock()
	r.ctl.proposals, refuse = nil, false
	r.ctl.mu.Unlock()
	time.Sleep(4 * retry)
	// What was on its way as the image came names the incarnation of before, which is refused.
	for i, p := range r.ctl.taken() {
		if i > 0 || !slices.Contains(p.ISR, kraft.ISRMember{ID: 3, Epoch: 30}) {
			t.Errorf("proposed after the reboot: %+v", p)
		}
	}
	if s := r.status(); slices.Contains(s.ISR, 3) {
		t.Errorf("in the ISR without a fetch since its reboot: %+v", s)
	}
	empty := r.follower(3, 1)
	empty.brokerEpoch = 31
	empty.once()
	if s := r.status(); s.Followers[3].FetchOffset != 0 || s.Followers[3].BrokerEpoch != 31 {
		t.Errorf("the new incarnation is seen as %+v", s.Followers[3])
	}
	r.syncAll(100, empty)
	empty.once()
	r.until("3 in the ISR", func(s Status) bool { return slices.Contains(s.ISR, 3) })
}

func TestMaximalISRCountsUntilTheImageShows(t *testing.T) {
	r := newRig(t, 1)
	r.images.edit(func(img *kraft.Image) { img.Topics[destID].Partitions[0].ISR = []int32{9001, 9002, 1, 2} })
	r.until("led", func(s Status) bool { return len(s.ISR) == 4 })
	release := make(chan struct{})
	r.ctl.answer = func(p kraft.ISRProposal) (kraft.ISROutcome, error) {
		select {
		case <-release:
		case <-time.After(soon):
		}
		return kraft.ISROutcome{}, errors.New("connection lost")
	}
	g := r.topic.parts[0]
	r.src.fill(g, 10, 20)
	r.mirror(1)
	f1, f2, f3 := r.follower(1, 1), r.follower(2, 1), r.follower(3, 1)
	r.syncAll(10, f1, f2, f3)
	f3.once() // tells that it has all
	r.until("proposed", func(s Status) bool { return slices.Contains(s.MaximalISR, 3) })
	r.src.fill(g, 20, 20)
	r.until("1 and 2 at 20", func(Status) bool {
		return f1.once().next == 20 && f2.once().next == 20
	})
	f1.once()
	f2.once()
	if hw, _ := r.l.HighWatermark(r.id()); hw != 10 {
		t.Fatalf("high watermark %d passed a proposed member at 10", hw)
	}
	close(release)
	time.Sleep(10 * time.Millisecond)
	if s := r.status(); s.HighWatermark != 10 || !slices.Contains(s.MaximalISR, 3) {
		t.Fatalf("after an error the proposal is forgotten: %+v", s)
	}
	// The image shows a newer partition epoch without 3: the proposal can't come true any more.
	r.images.part(func(p *kraft.Partition) { p.ISR = []int32{9001, 9002, 1, 2} })
	r.until("high watermark moves", func(s Status) bool { return s.HighWatermark == 20 })
}

func TestOwnSecondIDJoins(t *testing.T) {
	r := newRig(t, 1)
	r.images.edit(func(img *kraft.Image) {
		img.Topics[destID].Partitions[0].ISR = []int32{9001, 1, 2, 3}
		img.Brokers[9002] = &kraft.Broker{ID: 9002, Epoch: 5, Fenced: true}
	})
	r.mirror(1)
	fs := r.three()
	r.syncAll(0, fs...)
	if n := len(r.ctl.taken()); n != 0 {
		t.Fatalf("a fenced id was proposed")
	}
	r.images.edit(func(img *kraft.Image) { img.Brokers[9002] = &kraft.Broker{ID: 9002, Epoch: 6} })
	r.until("9002 in the ISR", func(s Status) bool { return slices.Contains(s.ISR, 9002) })
	for _, m := range r.ctl.taken()[0].ISR {
		if m.ID == 9002 && m.Epoch != 6 {
			t.Errorf("our id is proposed with broker epoch %d", m.Epoch)
		}
	}
}

func TestShrinkAfterLagButNeverTheLastOnes(t *testing.T) {
	l := still(t, 1, 0, 0)
	p, now := l.part(protocol.PartitionID{Topic: destID}), time.Now()
	isrAfter := func(d time.Duration) (isr []int32) {
		prop, ok := p.propose(l.image(), now.Add(d))
		if !ok {
			return p.isr
		}
		for _, m := range prop.ISR {
			isr = append(isr, m.ID)
		}
		p.pending = nil
		return isr
	}
	fetched := func(id int32, offset int64, at time.Duration) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.count(id, p.follower(id), offset, -1, true, now.Add(at))
	}
	if isr := isrAfter(time.Hour); len(isr) != 5 {
		t.Fatalf("ISR %v while nobody lacks anything", isr)
	}
	p.mu.Lock()
	p.append(mustChunk(t, 0, batch(0, 10, 0, 20), batch(10, 10, 0, 20)))
	p.assign.MinRealISR = 2
	p.mu.Unlock()
	fetched(1, 20, 25*time.Second)
	fetched(2, 10, 25*time.Second)
	if isr := isrAfter(29 * time.Second); len(isr) != 5 {
		t.Fatalf("ISR %v before the lag is over", isr)
	}
	// Two are late, but only one may go: the one furthest behind.
	if isr := isrAfter(31 * time.Second); !slices.Equal(isr, []int32{9001, 9002, 1, 2}) {
		t.Errorf("ISR %v, want 3 left out", isr)
	}
	p.assign.MinRealISR = 0
	if isr := isrAfter(31 * time.Second); !slices.Equal(isr, []int32{9001, 9002, 1}) {
		t.Errorf("ISR %v, want all late ones left out", isr)
	}
	p.isr = []int32{9001, 9002, 2}
	if isr := isrAfter(time.Hour); !slices.Contains(isr, 2) {
		t.Errorf("ISR %v lost its last real member", isr)
	}
	// Reading at our end as of the last fetch is being caught up, as long as one keeps up with what is written.
	p.isr = allFive
	for i := range int64(10) {
		p.mu.Lock()
		end := p.end()
		p.append(mustChunk(t, end, batch(end, 10, 0, 20)))
		p.mu.Unlock()
		for id := int32(1); id <= 3; id++ {
			fetched(id, end, time.Duration(40+20*i)*time.Second)
		}
	}
	if isr := isrAfter(225 * time.Second); len(isr) != 5 {
		t.Errorf("ISR %v lost followers that keep up", isr)
	}
}

func TestFlipsCarryWatermarkAndWindow(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.fill(g, 100, 2000)
	r.mirror(1)
	fs := r.three()
	r.syncAll(100, fs...)
	r.src.fill(g, 200, 2000)
	for range 2 {
		fs[0].fetch(context.Background())
	}
	for i := range 8 {
		node := int32(9002 - i%2)
		r.images.part(func(p *kraft.Partition) { p.Leader, p.LeaderEpoch = node, int32(6+i) })
		r.until("flip", func(s Status) bool { return s.Leader == node })
		if s := r.status(); s.HighWatermark < 100 || s.RollCall {
			t.Fatalf("after flip %d: %+v", i, s)
		}
		for _, f := range fs {
			f.node, f.leaderEpoch, f.session, f.epoch = node, int32(6+i), 0, 0
		}
	}
	r.syncAll(200, fs...)
	for _, f := range fs {
		sameBytes(t, f.parts[0].log, g.bytes())
	}
	if s := r.status(); s.FetchedBytes != int64(len(g.bytes())) {
		t.Errorf("flips made us read %d bytes of %d", s.FetchedBytes, len(g.bytes()))
	}
}

func TestLeadershipLostAndFoundAgain(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.fill(g, 100, 20)
	r.mirror(1)
	fs := r.three()
	r.syncAll(100, fs...)
	r.images.part(func(p *kraft.Partition) { p.Leader, p.LeaderEpoch = 1, 6 })
	for end := time.Now().Add(soon); fs[0].once().code != 6; {
		if time.Now().After(end) {
			t.Fatal("still led")
		}
	}
	if _, ok := r.l.Status(r.id()); ok {
		t.Error("a partition led by a real broker has a status")
	}
	r.images.part(func(p *kraft.Partition) { p.Leader, p.LeaderEpoch = 9001, 7 })
	r.src.fill(g, 150, 20)
	for _, f := range fs {
		f.leaderEpoch, f.session, f.epoch = 7, 0, 0
	}
	r.syncAll(150, fs...)
	sameBytes(t, fs[1].parts[0].log, g.bytes())
}

func TestRestartNeverLowersTheWatermark(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.fill(g, 300, 20)
	r.mirror(1)
	fs := r.three()
	for i, f := range fs {
		f.partBytes = int32(500 + 300*i) // they advance at different speeds
	}
	for round := range 5 {
		for range 3 + round {
			for _, f := range fs {
				f.once() // followers complain when their watermark falls
			}
		}
		before, _ := r.l.HighWatermark(r.id())
		r.stop()
		r.restart()
		for _, f := range fs {
			f.session, f.epoch = 0, 0
		}
		deadline := time.Now().Add(soon)
		for {
			for _, f := range fs {
				f.once()
			}
			if hw, known := r.l.HighWatermark(r.id()); known {
				if hw < before {
					t.Fatalf("high watermark %d after a restart, %d before", hw, before)
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("no high watermark after a restart: %+v", r.status())
			}
		}
	}
	r.syncAll(300, fs...)
	for _, f := range fs {
		sameBytes(t, f.parts[0].log, g.bytes())
	}
}
