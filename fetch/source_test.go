package fetch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// three returns followers 1, 2 and 3 of a rig's first partition.
func (r *rig) three() []*fakeFollower {
	return []*fakeFollower{r.follower(1, 1), r.follower(2, 1), r.follower(3, 1)}
}

// reply makes a fetch answer for the first partition of a request.
func fetchReply(q *kmsg.FetchRequest, hw int64, b []byte) *kmsg.FetchResponse {
	resp := q.ResponseKind().(*kmsg.FetchResponse)
	t := kmsg.NewFetchResponseTopic()
	t.Topic, t.TopicID = q.Topics[0].Topic, q.Topics[0].TopicID
	p := kmsg.NewFetchResponseTopicPartition()
	p.HighWatermark, p.LogStartOffset, p.RecordBatches = hw, 0, b
	t.Partitions = append(t.Partitions, p)
	resp.Topics = append(resp.Topics, t)
	return resp
}

func TestKAFKA18723OnlyThePrefixUpToTheEpochOfTheRequest(t *testing.T) {
	r := newRig(t, 1)
	old, next := batch(0, 10, 0, 50), batch(10, 10, 1, 50)
	r.src.do(func() { r.topic.parts[0].add(old) })
	var replies atomic.Int32
	r.src.onFetch = func(_ int32, q *kmsg.FetchRequest) *kmsg.FetchResponse {
		if replies.Add(1) > 1 {
			return nil
		}
		r.src.do(func() { r.topic.parts[0].lead(2, 1); r.topic.parts[0].add(next) })
		return fetchReply(q, 20, append(bytes.Clone(old), next...))
	}
	r.mirror(1)
	fs := r.three()
	r.syncAll(20, fs...)
	sameBytes(t, fs[0].parts[0].log, r.topic.parts[0].bytes())
	rq := r.src.requests(0)
	if len(rq) < 2 || rq[1].FetchOffset != 10 || rq[1].LastFetchedEpoch != 0 {
		t.Fatalf("second request is not at the end of the prefix: %+v", rq)
	}
}

func TestKAFKA18723LateReplyIsDroppedWhole(t *testing.T) {
	r := newRig(t, 1)
	r.src.do(func() { r.topic.parts[0].add(batch(0, 10, 0, 50)) })
	stale := batch(10, 10, 0, 99)
	held, release := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	r.src.onFetch = func(_ int32, q *kmsg.FetchRequest) *kmsg.FetchResponse {
		if q.Topics[0].Partitions[0].FetchOffset != 10 || !once.CompareAndSwap(false, true) {
			return nil
		}
		close(held)
		<-release
		return fetchReply(q, 20, stale)
	}
	r.mirror(1)
	fs := r.three()
	r.syncAll(10, fs...)
	<-held
	r.src.do(func() { r.topic.parts[0].lead(1, 6); r.topic.parts[0].add(batch(10, 10, 6, 50)) })
	r.l.mirror("m").kickRefresh()
	r.images.part(func(p *kraft.Partition) { p.LeaderEpoch = 7 })
	r.until("source epoch 6", func(s Status) bool { return s.SourceEpoch == 6 })
	close(release)
	for _, f := range fs {
		f.leaderEpoch = 7
	}
	r.syncAll(20, fs...)
	sameBytes(t, fs[2].parts[0].log, r.topic.parts[0].bytes())
}

func TestKAFKA15510EmptyAnswerKeepsTheLastEpoch(t *testing.T) {
	r := newRig(t, 1, func(_ *Config, m *MirrorConfig) { m.WaitMax = 5 * time.Millisecond })
	g := r.topic.parts[0]
	r.src.do(func() { g.lead(1, 3); g.add(batch(0, 10, 3, 50)); g.add(batch(10, 10, 3, 50)) })
	r.mirror(1)
	fs := r.three()
	r.syncAll(20, fs...)
	n := len(r.src.requests(0))
	r.until("three empty answers", func(Status) bool { return len(r.src.requests(0)) >= n+3 })
	for _, q := range r.src.requests(0)[n:] {
		if q.LastFetchedEpoch != 3 || q.FetchOffset != 20 {
			t.Fatalf("request after an empty answer: %+v", q)
		}
	}
	// An unclean election at the source: 10 to 19 are written anew under epoch 4.
	r.src.do(func() { g.truncate(10); g.lead(1, 4); g.add(batch(10, 10, 4, 70)) })
	s := r.until("divergence", func(s Status) bool { return s.Divergences == 1 })
	if s.Err == nil || !strings.Contains(s.Err.Error(), "truncated its log to offset 10") || s.Fatal {
		t.Errorf("status says %v, fatal %v", s.Err, s.Fatal)
	}
	if s.HighWatermark > 10 {
		t.Errorf("high watermark %d points beyond what anybody has", s.HighWatermark)
	}
	for _, f := range fs {
		f.parts[0].hw = -1
	}
	r.syncAll(20, fs...)
	for _, f := range fs {
		if f.parts[0].diverged != 1 {
			t.Errorf("follower %d was told to truncate %d times", f.id, f.parts[0].diverged)
		}
		sameBytes(t, f.parts[0].log, g.bytes())
	}
	r.until("error gone", func(s Status) bool { return s.Err == nil })
}

func TestKAFKA7786FencedAfterTheEpochMoved(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() { g.lead(1, 4); g.add(batch(0, 10, 4, 50)) })
	var asked atomic.Int32
	r.src.mu.Lock()
	r.src.onEpochs = func(q *kmsg.OffsetForLeaderEpochRequest) *kmsg.OffsetForLeaderEpochResponse {
		if asked.Add(1) == 1 {
			r.src.do(func() { g.lead(1, 5) })
			p := r.l.part(r.id())
			p.mu.Lock()
			p.learnLeader(1, 5) // what metadata does
			p.mu.Unlock()
		}
		return nil // the fake fences the request's epoch 4
	}
	r.src.mu.Unlock()
	r.mirror(1)
	fs := r.three()
	r.syncAll(10, fs...)
	sameBytes(t, fs[0].parts[0].log, g.bytes())
	if q := r.src.requests(0); q[len(q)-1].CurrentLeaderEpoch != 5 {
		t.Errorf("fetches under epoch %d", q[len(q)-1].CurrentLeaderEpoch)
	}
}

func TestSourceLeaderMovesWithTheAnswerThatSaysSo(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.fill(g, 100, 50)
	r.mirror(1)
	fs := r.three()
	r.syncAll(100, fs...)
	for i := range 6 {
		r.src.do(func() { g.lead(int32(1+(i+1)%2), int32(i%5+1)); g.epoch = int32(i + 1) })
		r.images.part(func(p *kraft.Partition) { p.LeaderEpoch = int32(6 + i) })
		for _, f := range fs {
			f.leaderEpoch = int32(6 + i)
		}
		r.src.fill(g, int64(110+10*i), 50)
		r.syncAll(int64(110+10*i), fs...)
	}
	sameBytes(t, fs[1].parts[0].log, g.bytes())
	if s := r.status(); s.Divergences != 0 || s.Err != nil {
		t.Errorf("after six moves: %+v", s)
	}
}

func TestFranzGo1331NoLeaderIsNoEpoch(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() { g.lead(1, 3); g.add(batch(0, 10, 3, 50)) })
	r.mirror(1)
	fs := r.three()
	r.syncAll(10, fs...)
	var refreshes atomic.Int32
	r.src.mu.Lock()
	r.src.onMetadata = func(m *kmsg.MetadataResponse) {
		if refreshes.Add(1) <= 5 {
			m.Topics[0].Partitions[0].Leader, m.Topics[0].Partitions[0].LeaderEpoch = -1, -1
		}
	}
	r.src.mu.Unlock()
	n := len(r.src.requests(0))
	r.until("five refreshes", func(s Status) bool {
		r.l.mirror("m").kickRefresh()
		if s.SourceEpoch != 3 {
			t.Fatalf("source epoch became %d", s.SourceEpoch)
		}
		return refreshes.Load() >= 5
	})
	r.src.fill(g, 20, 50)
	r.syncAll(20, fs...)
	for _, q := range r.src.requests(0)[n:] {
		if q.LastFetchedEpoch != 3 || q.CurrentLeaderEpoch != 3 {
			t.Fatalf("request %+v", q)
		}
	}
}

func TestLibrdkafka2880ZstdNeedsVersion10(t *testing.T) {
	r := newRig(t, 1)
	r.src.fetchMax = 10
	g := r.topic.parts[0]
	zstd := batch(0, 10, 0, 50)
	zstd[22] = 4
	g2 := append([]byte(nil), zstd...)
	fixCRC(g2)
	r.src.do(func() { g.add(g2) })
	r.mirror(1)
	fs := r.three()
	r.syncAll(10, fs...)
	r.src.mu.Lock()
	if v := r.src.fetches[0].Version; v != 10 {
		t.Errorf("fetched in version %d of a source that ends at 10", v)
	}
	r.src.mu.Unlock()

	r = newRig(t, 1)
	r.src.fetchMax = 9
	r.src.onFetch = func(_ int32, q *kmsg.FetchRequest) *kmsg.FetchResponse {
		resp := fetchReply(q, 10, nil)
		resp.Topics[0].Partitions[0].ErrorCode = kerr.UnsupportedCompressionType.Code
		return resp
	}
	r.src.fill(r.topic.parts[0], 10, 50)
	r.mirror(1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, f := range r.three() {
		go f.loop(ctx)
	}
	s := r.until("fatal", func(s Status) bool { return s.Fatal })
	if !errors.Is(s.Err, kerr.UnsupportedCompressionType) || !strings.Contains(s.Err.Error(), "zstd") ||
		!strings.Contains(s.Err.Error(), "version 9") {
		t.Errorf("reason: %v", s.Err)
	}
	time.Sleep(30 * time.Millisecond)
	if n := len(r.src.requests(0)); n != 1 {
		t.Errorf("%d requests after a fatal answer", n)
	}
}

func fixCRC(b []byte) {
	binary.BigEndian.PutUint32(b[17:], crcOf(b))
}

func TestSarama1006HolesInCompactedTopics(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.do(func() {
		g.start = 100
		g.epochs = history{{0, 100}}
		short := batch(100, 10, 0, 40) // offsets 100 to 109, of which the cleaner left four records
		binary.BigEndian.PutUint32(short[57:], 4)
		fixCRC(short)
		empty := batch(115, 10, 0, 0) // a hole before it, and no record left at all
		binary.BigEndian.PutUint32(empty[57:], 0)
		fixCRC(empty)
		g.add(short)
		g.add(empty)
		g.add(batch(200, 10, 0, 40))
	})
	r.mirror(1)
	fs := r.three()
	for _, f := range fs {
		f.partBytes = 120 // one batch at a time
	}
	r.syncAll(210, fs...)
	for _, f := range fs {
		sameBytes(t, f.parts[0].log, g.bytes())
		if f.parts[0].start != 100 {
			t.Errorf("log of follower %d starts at %d", f.id, f.parts[0].start)
		}
	}
}

func TestKAFKA9617LargeBatchesPass(t *testing.T) {
	r := newRig(t, 1, func(_ *Config, m *MirrorConfig) { m.MaxBytes, m.ResponseMaxBytes = 100<<10, 100<<10 })
	g := r.topic.parts[0]
	r.src.do(func() {
		g.add(batch(0, 10, 0, 50))
		g.add(batch(10, 10, 0, 900<<10))
		g.add(batch(20, 10, 0, 50))
	})
	r.mirror(1)
	fs := r.three()
	for _, f := range fs {
		f.partBytes, f.maxBytes = 1000, 1000
	}
	r.syncAll(30, fs...)
	for _, f := range fs {
		sameBytes(t, f.parts[0].log, g.bytes())
	}
}

func TestRedpanda30785LogStartIsTheSourcesOwn(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.fill(g, 3000, 20)
	r.mirror(1)
	fs := r.three()
	r.syncAll(3000, fs...)
	r.images.part(func(p *kraft.Partition) { p.Leader, p.LeaderEpoch = 9002, 6 })
	for _, f := range fs {
		f.node, f.leaderEpoch, f.session, f.epoch = 9002, 6, 0, 0
	}
	r.syncAll(3000, fs...)
	r.src.do(func() { g.deleteTo(1000) })
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	for _, f := range fs {
		for f.parts[0].logStart < 1000 && f.fetch(ctx) != nil {
		}
		if f.parts[0].logStart != 1000 || f.parts[0].next != 3000 {
			t.Errorf("follower %d: log from %d to %d", f.id, f.parts[0].logStart, f.parts[0].next)
		}
	}
}

func TestLogStartAboveZeroAndAboveFollowers(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.fill(g, 1000, 20)
	r.src.do(func() { g.deleteTo(500) })
	r.mirror(1)
	fs := r.three()
	r.syncAll(1000, fs...)
	sameBytes(t, fs[0].parts[0].log, g.bytes())
	// Retention overtakes followers that are away: they start again at the new start.
	r.src.do(func() {
		for g.end() < 2000 {
			g.add(batch(g.end(), 10, 0, 20))
		}
		g.deleteTo(1800)
	})
	r.syncAll(2000, fs...)
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	for _, f := range fs {
		p := f.parts[0]
		for p.logStart < 1800 && f.fetch(ctx) != nil {
		}
		if p.logStart != 1800 || p.next != 2000 {
			t.Errorf("follower %d: log from %d to %d", f.id, p.logStart, p.next)
		}
	}
}

func TestSourceTopicMadeAnewIsNeverAppended(t *testing.T) {
	r := newRig(t, 1)
	r.src.fill(r.topic.parts[0], 100, 20)
	r.mirror(1)
	fs := r.three()
	r.syncAll(100, fs...)
	before := bytes.Clone(fs[0].parts[0].log)
	r.src.do(func() { delete(r.src.topics, topicName) })
	anew := &fakeTopic{id: protocol.UUID{9: 9}, parts: []*fakeLog{{}}}
	anew.parts[0].lead(1, 0)
	r.src.do(func() { r.src.topics[topicName] = anew })
	r.src.fill(anew.parts[0], 300, 20)
	r.l.mirror("m").kickRefresh()
	s := r.until("fatal", func(s Status) bool { return s.Fatal })
	if !errors.Is(s.Err, ErrSourceRecreated) {
		t.Errorf("reason: %v", s.Err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	fs[0].loop(ctx)
	sameBytes(t, fs[0].parts[0].log, before)
}

// TestSourceIsAnotherCluster: the addresses lead to a cluster that has the same topics, even under the same ids. Nothing of it is read,
// and mirroring goes on when they lead back.
func TestSourceIsAnotherCluster(t *testing.T) {
	r := newRig(t, 1, func(_ *Config, m *MirrorConfig) { m.ClusterID = "right" })
	name := "right"
	r.src.do(func() { r.src.onMetadata = func(resp *kmsg.MetadataResponse) { now := name; resp.ClusterID = &now } })
	r.src.fill(r.topic.parts[0], 100, 20)
	r.mirror(1)
	fs := r.three()
	r.syncAll(100, fs...)
	r.src.do(func() { name = "wrong" })
	r.l.mirror("m").kickRefresh()
	s := r.until("an error", func(s Status) bool { return s.Err != nil })
	if !errors.Is(s.Err, ErrWrongCluster) || s.Fatal {
		t.Errorf("reason: %v, fatal %t", s.Err, s.Fatal)
	}
	r.src.fill(r.topic.parts[0], 200, 20)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	fs[0].loop(ctx)
	if next := fs[0].parts[0].next; next != 100 {
		t.Errorf("a follower has %d records, 100 of them the source's", next)
	}
	r.src.do(func() { name = "right" })
	r.syncAll(200, fs...)
}

// TestSourceTopicGone: a topic that is missing in answer after answer is gone for good only after a while: a broker that has
// just started may not know all topics, and only an operator can undo the verdict.
func TestSourceTopicGone(t *testing.T) {
	const patience = 700 * time.Millisecond
	r := newRig(t, 1, func(c *Config, _ *MirrorConfig) { c.goneFor = patience })
	r.mirror(1)
	fs := r.three()
	r.syncAll(0, fs...)
	began := time.Now()
	r.src.do(func() { delete(r.src.topics, topicName) })
	if s := r.until("fatal", func(s Status) bool { return s.Fatal }); !errors.Is(s.Err, ErrSourceGone) {
		t.Errorf("reason: %v", s.Err)
	}
	if d := time.Since(began); d < patience {
		t.Errorf("held for deleted after %v", d)
	}
}

func TestOldMessageFormatIsRefused(t *testing.T) {
	r := newRig(t, 1)
	old := batch(0, 1, 0, 50)
	old[16] = 1
	r.src.onFetch = func(_ int32, q *kmsg.FetchRequest) *kmsg.FetchResponse { return fetchReply(q, 1, old) }
	r.mirror(1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, f := range r.three() {
		go f.loop(ctx)
	}
	if s := r.until("fatal", func(s Status) bool { return s.Fatal }); !errors.Is(s.Err, ErrSourceUnsupported) {
		t.Errorf("reason: %v", s.Err)
	}
}

func TestSarama782SourceDown(t *testing.T) {
	const parts = 200
	r := newRig(t, parts)
	r.mirror(parts)
	fs := []*fakeFollower{r.follower(1, parts), r.follower(2, parts), r.follower(3, parts)}
	r.syncAll(0, fs...)
	r.src.mu.Lock()
	r.src.closed = true // connections are closed as soon as they come
	for c := range r.src.conns {
		c.Close()
	}
	before := r.src.dials
	r.src.mu.Unlock()
	dials := func() int {
		r.src.mu.Lock()
		defer r.src.mu.Unlock()
		return r.src.dials - before
	}
	for began := time.Now(); dials() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > soon {
			t.Fatal("nobody tries again")
		}
	}
	time.Sleep(300 * time.Millisecond)
	// Two clients at most, each with a doubling backoff from 50 ms, to two brokers, some with a second try inside kgo: twenty or thirty.
	if n := dials(); n > parts/2 {
		t.Errorf("%d dials in 0.3 s for %d partitions", n, parts)
	}
}
