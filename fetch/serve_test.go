package fetch

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

func TestFencing(t *testing.T) {
	r := newRig(t, 1)
	r.src.fill(r.topic.parts[0], 10, 20)
	r.mirror(1)
	r.syncAll(10, r.three()...)
	for name, tt := range map[string]struct {
		change func(f *fakeFollower, q *kmsg.FetchRequest)
		code   int16
	}{
		"fine":               {func(*fakeFollower, *kmsg.FetchRequest) {}, 0},
		"no epoch":           {func(_ *fakeFollower, q *kmsg.FetchRequest) { q.Topics[0].Partitions[0].CurrentLeaderEpoch = -1 }, 0},
		"older leader epoch": {func(_ *fakeFollower, q *kmsg.FetchRequest) { q.Topics[0].Partitions[0].CurrentLeaderEpoch = 4 }, 74},
		"newer leader epoch": {func(_ *fakeFollower, q *kmsg.FetchRequest) { q.Topics[0].Partitions[0].CurrentLeaderEpoch = 6 }, 75},
		"not the leader":     {func(f *fakeFollower, q *kmsg.FetchRequest) { f.node = 9002 }, 6},
		"older epoch, other leader": {func(f *fakeFollower, q *kmsg.FetchRequest) {
			f.node = 9002
			q.Topics[0].Partitions[0].CurrentLeaderEpoch = 4
		}, 6},
		"not a replica":      {func(_ *fakeFollower, q *kmsg.FetchRequest) { q.ReplicaState.ID, q.ReplicaState.Epoch = 4, 40 }, 75},
		"unknown topic id":   {func(_ *fakeFollower, q *kmsg.FetchRequest) { q.Topics[0].TopicID[3]++ }, 100},
		"unknown topic name": {func(_ *fakeFollower, q *kmsg.FetchRequest) { q.Version, q.Topics[0].Topic = 12, "x" }, 3},
		"known topic name":   {func(_ *fakeFollower, q *kmsg.FetchRequest) { q.Version = 11 }, 0},
		"unknown partition":  {func(_ *fakeFollower, q *kmsg.FetchRequest) { q.Topics[0].Partitions[0].Partition = 7 }, 3},
		"negative partition": {func(_ *fakeFollower, q *kmsg.FetchRequest) { q.Topics[0].Partitions[0].Partition = -1 }, 3},
		"older broker epoch": {func(_ *fakeFollower, q *kmsg.FetchRequest) { q.ReplicaState.Epoch = 9 }, 77},
		"negative offset":    {func(_ *fakeFollower, q *kmsg.FetchRequest) { q.Topics[0].Partitions[0].FetchOffset = -1 }, 1},
		"beyond all, without epoch": {func(_ *fakeFollower, q *kmsg.FetchRequest) {
			q.Topics[0].Partitions[0].FetchOffset, q.Topics[0].Partitions[0].LastFetchedEpoch = 50, -1
		}, 1},
	} {
		f := r.follower(1, 1)
		q := f.request()
		q.MaxWaitMillis, q.SessionEpoch = 0, -1
		tt.change(f, q)
		reply, err := r.l.Fetch(context.Background(), q, f.node)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		resp := decodeReply(t, reply, q.Version)
		if p := resp.Topics[0].Partitions[0]; p.ErrorCode != tt.code || tt.code != 0 && (p.HighWatermark != -1 || len(p.RecordBatches) > 0) {
			t.Errorf("%s: code %d, high watermark %d, want code %d", name, p.ErrorCode, p.HighWatermark, tt.code)
		}
	}
	for _, change := range []func(*kmsg.FetchRequest){
		func(q *kmsg.FetchRequest) { q.Version = 10 },
		func(q *kmsg.FetchRequest) { q.Version = 20 },
		func(q *kmsg.FetchRequest) { q.ReplicaState.ID = -1 },
	} {
		q := r.follower(1, 1).request()
		change(q)
		if _, err := r.l.Fetch(context.Background(), q, 9001); err == nil {
			t.Errorf("a request that is no follower's is answered: version %d", q.Version)
		}
	}
}

func TestKAFKA14704WatermarkOfADivergenceIsBelowIt(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() {
		g.lead(1, 2)
		g.add(batch(0, 10, 2, 20))
		g.lead(1, 4)
		g.add(batch(10, 10, 4, 20))
	})
	r.mirror(1)
	fs := r.three()
	r.syncAll(20, fs...)
	f := r.follower(1, 1)
	f.parts[0].plant(batch(0, 10, 2, 20), batch(10, 10, 3, 20))
	q := f.request()
	q.SessionEpoch, q.MaxWaitMillis = -1, 5000
	reply, err := r.l.Fetch(context.Background(), q, 9001)
	if err != nil {
		t.Fatal(err)
	}
	p := decodeReply(t, reply, q.Version).Topics[0].Partitions[0]
	if p.DivergingEpoch.Epoch != 2 || p.DivergingEpoch.EndOffset != 10 || p.HighWatermark > 10 || p.ErrorCode != 0 {
		t.Errorf("answer %+v", p)
	}
}

func TestFollowerAheadIsNotCutBeforeTheSourceIsAskedAgain(t *testing.T) {
	// After a restart what we know of the source's end may be older than what followers have.
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.fill(g, 50, 20)
	r.mirror(1)
	r.loaded()
	r.src.fill(g, 100, 20)
	fs := r.three()
	for _, f := range fs {
		for b := int64(0); b < 100; b += 10 {
			f.parts[0].plant(batch(b, 10, 0, 20))
		}
	}
	r.syncAll(100, fs...)
	for _, f := range fs {
		if f.parts[0].diverged != 0 {
			t.Errorf("follower %d was cut", f.id)
		}
	}
}

func TestFollowersOfAnotherHistoryConverge(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() {
		for i, e := range []int32{2, 2, 4, 7} {
			g.lead(1, e)
			g.add(batch(int64(i*10), 10, e, 20))
		}
	})
	r.images.part(func(p *kraft.Partition) { p.LeaderEpoch = 20 })
	fs := r.three()
	fs[0].parts[0].plant(batch(0, 10, 2, 20), batch(10, 10, 3, 25), batch(20, 10, 9, 25), batch(30, 30, 12, 25))
	fs[1].parts[0].plant(batch(0, 40, 1, 30), batch(40, 10, 5, 25), batch(50, 10, 6, 25))
	for _, f := range fs {
		f.leaderEpoch = 20
	}
	r.mirror(1)
	r.syncAll(40, fs...)
	for _, f := range fs {
		sameBytes(t, f.parts[0].log, g.bytes())
	}
}

func TestEpochBlockedUntilBumped(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() {
		g.add(batch(0, 10, 0, 20))
		g.lead(1, 5)
		g.add(batch(10, 10, 5, 20))
		g.lead(1, 6)
		g.add(batch(20, 10, 6, 20))
	})
	r.mirror(1)
	fs := r.three()
	r.syncAll(20, fs...)
	r.until("blocked", func(s Status) bool { return s.EpochBlocked && s.HighWatermark == 20 })
	for _, f := range fs {
		if f.once(); f.parts[0].next != 20 {
			t.Fatalf("a batch of epoch 6 was handed out under epoch 5")
		}
	}
	r.images.part(func(p *kraft.Partition) { p.Leader, p.LeaderEpoch = 9002, 16 })
	for _, f := range fs {
		f.node, f.leaderEpoch, f.session, f.epoch = 9002, 16, 0, 0
	}
	r.syncAll(30, fs...)
	if s := r.status(); s.EpochBlocked || s.LastEpoch != 6 {
		t.Errorf("%+v", s)
	}
}

func TestEpochBlockedNobodyIsShrunk(t *testing.T) {
	l := still(t, 1, 0, 0)
	p, now := l.part(protocol.PartitionID{Topic: destID}), time.Now()
	p.mu.Lock()
	p.append(mustChunk(t, 0, batch(0, 10, 6, 20))) // we lead under epoch 5
	blocked := p.blocked
	p.mu.Unlock()
	if _, ok := p.propose(l.image(), now.Add(time.Hour)); ok || !blocked {
		t.Errorf("blocked: %v; shrunk although nobody can have more: %v", blocked, ok)
	}
}

func TestTopicDeletedWhileInFlight(t *testing.T) {
	r := newRig(t, 2)
	r.src.fill(r.topic.parts[0], 100, 20)
	r.mirror(2)
	fs := []*fakeFollower{r.follower(1, 2), r.follower(2, 2), r.follower(3, 2)}
	r.syncAll(0, fs...)
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	for _, f := range fs {
		f.maxWait = 60_000
		wg.Go(func() {
			for f.parts[0].code != 100 && f.fetch(ctx) != nil {
			}
			if f.parts[0].code != 100 {
				t.Errorf("follower %d: code %d", f.id, f.parts[0].code)
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	r.images.edit(func(img *kraft.Image) { delete(img.Topics, destID); delete(img.Names, topicName) })
	wg.Wait()
	if n := r.l.memory.Load(); n != 0 {
		t.Errorf("%d bytes are held for nobody", n)
	}
}

func TestLongPollIsWokenByDataAndByTheWatermark(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.fill(g, 10, 20)
	r.mirror(1)
	fs := r.three()
	r.syncAll(10, fs...)
	for _, f := range fs {
		f.maxWait = 20_000
	}
	begin := time.Now()
	time.AfterFunc(20*time.Millisecond, func() { r.src.fill(g, 20, 20) })
	r.syncAll(20, fs...)
	time.AfterFunc(20*time.Millisecond, func() { r.src.fill(g, 30, 20) })
	r.syncAll(30, fs...)
	if d := time.Since(begin); d > 15*time.Second {
		t.Errorf("two batches took %v: somebody slept through", d)
	}
}

func TestLongPollWaitsForMinBytesAndEndsInTime(t *testing.T) {
	r := newRig(t, 1)
	r.src.fill(r.topic.parts[0], 10, 20)
	r.mirror(1)
	r.syncAll(10, r.three()...)
	f := r.follower(1, 1)
	q := f.request()
	q.SessionEpoch, q.MinBytes, q.MaxWaitMillis = -1, 1<<20, 60
	begin := time.Now()
	if _, err := r.l.Fetch(context.Background(), q, 9001); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d < 50*time.Millisecond || d > soon {
		t.Errorf("waited %v", d)
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	q.MaxWaitMillis = 60_000
	if _, err := r.l.Fetch(ctx, q, 9001); err != context.Canceled {
		t.Errorf("a fetch of a closed connection ends with %v", err)
	}
	go r.stop()
	if _, err := r.l.Fetch(context.Background(), q, 9001); err != ErrStopped {
		t.Errorf("a fetch at a stopped leader ends with %v", err)
	}
}

// mirrorEpochOf is tag 3 of the first partition of an answer, -1 when it is not there.
func mirrorEpochOf(t *testing.T, reply *Reply, version int16) int32 {
	t.Helper()
	resp, out := decodeReply(t, reply, version), int32(-1)
	if len(resp.Topics) == 0 {
		return -2
	}
	resp.Topics[0].Partitions[0].UnknownTags.Each(func(k uint32, b []byte) {
		if k == 3 {
			out = int32(binary.BigEndian.Uint32(b))
		}
	})
	return out
}

func TestMirrorLeaderEpochTags(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() { g.lead(1, 3); g.add(batch(0, 10, 3, 20)) })
	r.mirror(1)
	r.syncAll(10, r.three()...)
	for _, tt := range []struct {
		name    string
		version int16
		tag     []byte
		want    int32
	}{
		{"told before, in the KIP's version", 19, []byte{0, 0, 0, 3}, 3},
		{"nothing told yet", 19, []byte{0, 0, 0, 0}, 3},
		{"the default, written out", 19, []byte{255, 255, 255, 255}, -1},
		{"without the field", 19, nil, -1},
		{"a field of another size", 19, []byte{0, 0}, -1},
		{"the field in a version that has none", 18, []byte{0, 0, 0, 0}, -1},
	} {
		q := r.follower(1, 1).request()
		q.Version, q.SessionEpoch, q.MaxWaitMillis = tt.version, -1, 0
		if tt.tag != nil {
			q.Topics[0].Partitions[0].UnknownTags.Set(2, tt.tag)
		}
		reply, err := r.l.Fetch(context.Background(), q, 9001)
		if err != nil {
			t.Fatal(err)
		}
		if got := mirrorEpochOf(t, reply, q.Version); got != tt.want {
			t.Errorf("%s: tag 3 is %d, want %d", tt.name, got, tt.want)
		}
	}
}

// A session remembers that a partition carried the field: later requests of it name only what changes.
func TestSessionsRememberMirrorLeaderEpoch(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() { g.lead(1, 3); g.add(batch(0, 10, 3, 20)) })
	r.mirror(1)
	fs := r.three()
	r.syncAll(10, fs...)
	q := r.follower(1, 1).request()
	q.Version, q.SessionID, q.SessionEpoch, q.MaxWaitMillis = protocol.MirrorFetchVersion, 0, 0, 0
	q.Topics[0].Partitions[0].UnknownTags.Set(2, []byte{0, 0, 0, 0})
	ask := func(change func()) int32 {
		t.Helper()
		change()
		reply, err := r.l.Fetch(context.Background(), q, 9001)
		if err != nil {
			t.Fatal(err)
		}
		resp := decodeReply(t, reply, q.Version)
		if resp.ErrorCode != 0 {
			t.Fatalf("error %d", resp.ErrorCode)
		}
		q.SessionID, q.SessionEpoch = resp.SessionID, q.SessionEpoch+1
		return mirrorEpochOf(t, reply, q.Version)
	}
	if got := ask(func() {}); got != 3 {
		t.Fatalf("the session's first answer says %d", got)
	}
	more := func() {
		q.Topics, q.MaxWaitMillis = nil, 10_000
		r.src.do(func() { g.add(batch(g.end(), 1, 3, 20)) })
	}
	if got := ask(more); got != 3 {
		t.Errorf("a request that names no partition is answered %d", got)
	}
	if got := ask(func() { more(); q.Version = 18 }); got != -1 {
		t.Errorf("an answer in version 18 says %d", got)
	}
}

func TestLaggingFollowerIsServedBelowTheWindow(t *testing.T) {
	r := newRig(t, 1, func(c *Config, m *MirrorConfig) {
		c.WindowBytes = 64 << 10
		m.MaxBytes = 16 << 10
	})
	r.images.edit(func(img *kraft.Image) { img.Topics[destID].Partitions[0].ISR = []int32{9001, 9002, 1, 2} })
	r.until("led", func(s Status) bool { return len(s.ISR) == 4 })
	g := r.topic.parts[0]
	r.src.fill(g, 2000, 2000)
	r.mirror(1)
	f1, f2, f3, late := r.follower(1, 1), r.follower(2, 1), r.follower(3, 1), r.follower(3, 1)
	r.syncAll(2000, f1, f2)
	if n := r.l.memory.Load(); n > 128<<10 {
		t.Errorf("%d bytes held with a window of 64 KiB", n)
	}
	_ = f3
	late.partBytes = 5000
	r.syncAll(2000, late)
	late.once()
	sameBytes(t, late.parts[0].log, g.bytes())
	r.until("3 in the ISR", func(s Status) bool { return slices.Contains(s.ISR, 3) })
	if s := r.status(); s.FetchedBytes > 5*int64(len(g.bytes()))/2 {
		t.Errorf("read %d bytes for two times %d", s.FetchedBytes, len(g.bytes()))
	}
}

func TestWindowIsBoundedWhenAMemberIsSilent(t *testing.T) {
	r := newRig(t, 1, func(c *Config, m *MirrorConfig) {
		c.WindowBytes, c.activeFor = 64<<10, 100*time.Millisecond
		m.MaxBytes = 16 << 10
	})
	g := r.topic.parts[0]
	r.src.fill(g, 2000, 2000)
	r.mirror(1)
	fs := r.three()
	r.syncAll(0, fs...) // the roll call
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, f := range fs[:2] {
		wg.Go(func() { f.loop(ctx) })
	}
	// 3 is silent: after a while the others go on without it, and the window does not grow.
	r.until("others at the end", func(s Status) bool {
		if n := r.l.memory.Load(); n > 128<<10 {
			t.Fatalf("%d bytes held", n)
		}
		return s.Followers[1].FetchOffset == 2000 && s.Followers[2].FetchOffset == 2000
	})
	if hw, _ := r.l.HighWatermark(r.id()); hw >= 2000 {
		t.Errorf("high watermark %d passed a member that has not fetched it", hw)
	}
	wg.Go(func() { fs[2].loop(ctx) })
	r.until("3 at the end", func(s Status) bool { return s.HighWatermark == 2000 })
	cancel()
	wg.Wait()
	sameBytes(t, fs[2].parts[0].log, g.bytes())
}

func TestEpochEnd(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	if _, _, ok := r.l.EpochEnd(r.id(), 1); ok {
		t.Error("an answer before anything is known")
	}
	r.src.do(func() {
		for i, e := range []int32{1, 3, 4} {
			g.lead(1, e)
			g.add(batch(int64(i*10), 10, e, 20))
		}
	})
	r.mirror(1)
	r.syncAll(30, r.three()...)
	for _, tt := range []struct {
		ask, e int32
		end    int64
	}{{0, 0, 0}, {1, 1, 10}, {2, 1, 10}, {3, 3, 20}, {4, 4, 30}, {5, 4, 30}, {99, 4, 30}} {
		if e, end, ok := r.l.EpochEnd(r.id(), tt.ask); !ok || e != tt.e || end != tt.end {
			t.Errorf("epoch %d: %d ends at %d (%v), want %d at %d", tt.ask, e, end, ok, tt.e, tt.end)
		}
	}
	if _, _, ok := r.l.EpochEnd(r.id(), -1); ok {
		t.Error("an answer for epoch -1")
	}
	if _, _, ok := r.l.EpochEnd(protocol.PartitionID{}, 1); ok {
		t.Error("an answer for a partition that nobody knows")
	}
}

// TestEpochEndOfANewLeader: a consumer that validates its position at a leader that no follower has asked yet must not be
// told that its records are lost.
func TestEpochEndOfANewLeader(t *testing.T) {
	r := newRig(t, 1)
	r.src.fill(r.topic.parts[0], 50, 20)
	r.mirror(1)
	r.until("history loaded", func(Status) bool {
		_, _, ok := r.l.EpochEnd(r.id(), 0)
		return ok
	})
	if e, end, _ := r.l.EpochEnd(r.id(), 0); e != 0 || end != 50 {
		t.Errorf("epoch 0: %d ends at %d, want 0 at 50", e, end)
	}
}

func TestMirrorsComeAndGo(t *testing.T) {
	r := newRig(t, 1)
	r.src.fill(r.topic.parts[0], 10, 20)
	a := r.assignment(0)
	a.Mirror = "later"
	r.l.Assign(a)
	r.until("says why", func(s Status) bool { return s.Err != nil })
	cfg := MirrorConfig{Name: "later", Opts: r.src.opts(), WaitMax: 20 * time.Millisecond}
	if err := r.l.AddMirror(cfg); err != nil {
		t.Fatal(err)
	}
	if err := r.l.AddMirror(cfg); err == nil {
		t.Error("the same mirror twice")
	}
	fs := r.three()
	r.syncAll(10, fs...)
	r.l.RemoveMirror("later")
	r.l.RemoveMirror("later")
	if s := r.status(); s.Err == nil {
		t.Error("no error without a mirror")
	}
	if err := r.l.AddMirror(cfg); err != nil {
		t.Fatal(err)
	}
	r.src.fill(r.topic.parts[0], 20, 20)
	r.syncAll(20, fs...)
}
