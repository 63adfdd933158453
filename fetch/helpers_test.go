package fetch

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/records"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var destID = protocol.UUID{15: 0xd0, 1: 7}

// fakeImages is the destination's metadata: one topic, brokers 1 to 3, ids 9001 and 9002 of ours.
type fakeImages struct {
	mu      sync.Mutex
	img     *kraft.Image
	changed chan struct{}
}

func newFakeImages(name string, parts int, replicas, isr []int32) *fakeImages {
	img := &kraft.Image{
		Topics: map[protocol.UUID]*kraft.Topic{}, Names: map[string]protocol.UUID{name: destID},
		Brokers: map[int32]*kraft.Broker{}, Configs: map[kraft.ConfigResource]map[string]string{},
	}
	for _, id := range []int32{1, 2, 3, 4, 9001, 9002} {
		img.Brokers[id] = &kraft.Broker{ID: id, Epoch: int64(id) * 10}
	}
	t := &kraft.Topic{ID: destID, Name: name}
	for range parts {
		t.Partitions = append(t.Partitions, &kraft.Partition{
			Replicas: replicas, ISR: isr, Leader: 9001, LeaderEpoch: 5, PartitionEpoch: 10,
		})
	}
	img.Topics[destID] = t
	return &fakeImages{img: img, changed: make(chan struct{})}
}

func (f *fakeImages) Image() *kraft.Image {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.img
}

func (f *fakeImages) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// edit publishes a new image; what it hands out may be changed freely.
func (f *fakeImages) edit(change func(img *kraft.Image)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	img := *f.img
	img.Offset++
	img.Topics, img.Names = maps.Clone(img.Topics), maps.Clone(img.Names)
	img.Brokers, img.Configs = maps.Clone(img.Brokers), maps.Clone(img.Configs)
	for id, t := range img.Topics {
		nt := *t
		nt.Partitions = slices.Clone(t.Partitions)
		for i, p := range nt.Partitions {
			np := *p
			nt.Partitions[i] = &np
		}
		img.Topics[id] = &nt
	}
	change(&img)
	f.img = &img
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeImages) part(change func(p *kraft.Partition)) {
	f.edit(func(img *kraft.Image) {
		p := img.Topics[destID].Partitions[0]
		change(p)
		p.PartitionEpoch++
	})
}

// fakeController answers proposals; with apply it changes the image as a controller would.
type fakeController struct {
	mu        sync.Mutex
	images    *fakeImages
	proposals []kraft.ISRProposal
	answer    func(kraft.ISRProposal) (kraft.ISROutcome, error)
}

func (c *fakeController) Owns(id int32) bool { return id == 9001 || id == 9002 }

func (c *fakeController) AlterISR(ctx context.Context, props []kraft.ISRProposal) ([]kraft.ISROutcome, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var outs []kraft.ISROutcome
	for _, p := range props {
		c.proposals = append(c.proposals, p)
		out, err := kraft.ISROutcome{}, error(nil)
		if c.answer != nil {
			out, err = c.answer(p)
		} else {
			out = c.apply(p)
		}
		if err != nil {
			return nil, err
		}
		outs = append(outs, out)
	}
	return outs, nil
}

func (c *fakeController) apply(p kraft.ISRProposal) kraft.ISROutcome {
	ip := c.images.Image().Partition(p.ID)
	if ip.PartitionEpoch != p.PartitionEpoch {
		return kraft.ISROutcome{ErrorCode: 95}
	}
	out := kraft.ISROutcome{Leader: ip.Leader, LeaderEpoch: ip.LeaderEpoch, PartitionEpoch: ip.PartitionEpoch + 1}
	for _, m := range p.ISR {
		out.ISR = append(out.ISR, m.ID)
	}
	c.images.edit(func(img *kraft.Image) {
		np := img.Partition(p.ID)
		np.ISR, np.PartitionEpoch = out.ISR, out.PartitionEpoch
	})
	return out
}

func (c *fakeController) taken() []kraft.ISRProposal {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.proposals)
}

// rig is a running Leader between a fake source and scripted followers.
type rig struct {
	t      testing.TB
	l      *Leader
	images *fakeImages
	ctl    *fakeController
	src    *fakeSource
	topic  *fakeTopic
	stop   func()
}

var parallel sync.Map

type rigOption func(*Config, *MirrorConfig)

func testLog() *slog.Logger {
	if v, _ := strconv.ParseBool(os.Getenv("KMIRROR_TEST_LOG")); v {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

var (
	allFive   = []int32{9001, 9002, 1, 2, 3}
	topicName = "orders"
)

// newRig starts a Leader of topic "orders" with all replicas in sync; partitions are mirrored once assigned.
func newRig(t testing.TB, parts int, opts ...rigOption) *rig {
	if p, ok := t.(*testing.T); ok {
		if _, again := parallel.LoadOrStore(p.Name(), true); !again {
			p.Cleanup(func() { parallel.Delete(p.Name()) })
			p.Parallel() // most of the time is waiting
		}
	}
	r := &rig{t: t, images: newFakeImages(topicName, parts, allFive, allFive), src: newFakeSource(t, 2)}
	r.topic = r.src.topic(topicName, parts)
	r.ctl = &fakeController{images: r.images}
	cfg := Config{Images: r.images, Controller: r.ctl, Log: testLog()}
	mc := MirrorConfig{Name: "m", Opts: r.src.opts(), WaitMax: 100 * time.Millisecond}
	for _, o := range opts {
		o(&cfg, &mc)
	}
	var err error
	if r.l, err = NewLeader(cfg); err != nil {
		t.Fatal(err)
	}
	if err := r.l.AddMirror(mc); err != nil {
		t.Fatal(err)
	}
	r.run()
	r.until("led", func(s Status) bool { return s.Leader == 9001 })
	return r
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.l.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	r.stop = func() { cancel(); <-done }
	r.t.Cleanup(func() { r.stop() })
}

func (r *rig) assignment(part int32) Assignment {
	return Assignment{
		ID: protocol.PartitionID{Topic: destID, Partition: part}, Topic: topicName, Role: RoleMirror, Mirror: "m",
		SourceTopicID: r.topic.id, MinRealISR: 1,
	}
}

func (r *rig) mirror(parts int) {
	for i := range parts {
		r.l.Assign(r.assignment(int32(i)))
	}
}

func (r *rig) id() protocol.PartitionID { return protocol.PartitionID{Topic: destID} }

func (r *rig) status() Status {
	s, _ := r.l.Status(r.id())
	return s
}

// until waits for a condition on the status of partition 0.
func (r *rig) until(what string, ok func(s Status) bool) Status {
	r.t.Helper()
	for end := time.Now().Add(5 * time.Second); ; {
		changed := r.l.Changed()
		s := r.status()
		if ok(s) {
			return s
		}
		if time.Now().After(end) {
			r.t.Fatalf("never: %s; status %+v", what, s)
		}
		select {
		case <-changed:
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// fakeFollower fetches partitions of the topic as a broker's fetcher thread does, one request at a time.
type fakeFollower struct {
	r           *rig
	id          int32
	node        int32
	brokerEpoch int64
	version     int16
	leaderEpoch int32
	session     int32
	epoch       int32
	maxWait     int32
	maxBytes    int32
	partBytes   int32
	parts       []*fakeReplica
}

// fakeReplica is a follower's log.
type fakeReplica struct {
	log       []byte
	start     int64
	next      int64
	lastEpoch int32
	hw        int64
	logStart  int64
	epochs    history
	code      int16
	diverged  int
	data      int
	sent      bool
	sentAt    int64
	lastSent  int32
	sentEpoch int32
}

func (r *rig) follower(id int32, parts int) *fakeFollower {
	f := &fakeFollower{
		r: r, id: id, node: 9001, brokerEpoch: int64(id) * 10, version: 17, leaderEpoch: 5, maxWait: 50,
		maxBytes: 10 << 20, partBytes: 1 << 20,
	}
	for range parts {
		f.parts = append(f.parts, &fakeReplica{lastEpoch: -1, hw: -1})
	}
	return f
}

func (f *fakeFollower) request() *kmsg.FetchRequest {
	q := kmsg.NewPtrFetchRequest()
	q.Version = f.version
	q.ReplicaState.ID, q.ReplicaState.Epoch = f.id, f.brokerEpoch
	q.ReplicaID = f.id
	q.MaxWaitMillis, q.MinBytes, q.MaxBytes = f.maxWait, 1, f.maxBytes
	q.SessionID, q.SessionEpoch = f.session, f.epoch
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = topicName, destID
	for i, p := range f.parts {
		if f.session != 0 && p.sent && p.sentAt == p.next && p.lastSent == p.lastEpoch && p.sentEpoch == f.leaderEpoch {
			continue
		}
		x := kmsg.NewFetchRequestTopicPartition()
		x.Partition, x.FetchOffset, x.LastFetchedEpoch = int32(i), p.next, p.lastEpoch
		x.CurrentLeaderEpoch, x.PartitionMaxBytes, x.LogStartOffset = f.leaderEpoch, f.partBytes, p.logStart
		p.sent, p.sentAt, p.lastSent, p.sentEpoch = true, p.next, p.lastEpoch, f.leaderEpoch
		t.Partitions = append(t.Partitions, x)
	}
	if len(t.Partitions) > 0 {
		q.Topics = append(q.Topics, t)
	}
	return q
}

// fetch does one round and applies the answer as ReplicaFetcherThread does.
func (f *fakeFollower) fetch(ctx context.Context) *kmsg.FetchResponse {
	f.r.t.Helper()
	q := f.request()
	reply, err := f.r.l.Fetch(ctx, q, f.node)
	if err != nil {
		if ctx.Err() == nil && err != ErrStopped {
			f.r.t.Errorf("fetch: %v", err)
		}
		return nil
	}
	resp := decodeReply(f.r.t, reply, q.Version)
	if resp.ErrorCode != 0 {
		f.session, f.epoch = 0, 0
		return resp
	}
	if f.epoch >= 0 {
		f.session = resp.SessionID
		if f.epoch++; f.session == 0 {
			f.epoch = 0
		}
	}
	for _, t := range resp.Topics {
		for i := range t.Partitions {
			f.parts[t.Partitions[i].Partition].apply(f, &t.Partitions[i])
		}
	}
	return resp
}

func decodeReply(t testing.TB, reply *Reply, version int16) *kmsg.FetchResponse {
	t.Helper()
	var frame []byte
	for _, b := range reply.Buffers(77) {
		frame = append(frame, b...)
	}
	if len(frame) != reply.Size() {
		t.Errorf("reply of %d bytes says %d", len(frame), reply.Size())
	}
	corr, body, err := protocol.ParseResponseHeader(1, version, frame[4:])
	if err != nil || corr != 77 {
		t.Fatalf("response header: %d %v", corr, err)
	}
	resp := kmsg.NewPtrFetchResponse()
	resp.Version = version
	if err := resp.ReadFrom(body); err != nil {
		t.Fatal(err)
	}
	return resp
}

func (p *fakeReplica) apply(f *fakeFollower, rp *kmsg.FetchResponseTopicPartition) {
	p.code = rp.ErrorCode
	switch {
	case rp.ErrorCode == 1: // out of range: truncate to the leader's end, or start at its start
		s, _ := f.r.l.Status(protocol.PartitionID{Topic: destID, Partition: rp.Partition})
		if s.LogEnd < p.next {
			p.truncate(s.LogEnd)
		} else if s.LogStart > p.next {
			p.log, p.epochs, p.start, p.next, p.lastEpoch, p.logStart = nil, nil, s.LogStart, s.LogStart, -1, s.LogStart
		}
		p.sent = false
		return
	case rp.ErrorCode != 0:
		p.sent = false
		return
	case rp.DivergingEpoch.EndOffset >= 0 && rp.DivergingEpoch.Epoch >= 0:
		p.diverged++
		e, end := p.epochs.endOffsetFor(rp.DivergingEpoch.Epoch, p.next)
		if len(p.epochs) == 0 || e != rp.DivergingEpoch.Epoch && len(p.epochs) > 0 && rp.DivergingEpoch.Epoch > p.epochs.newest() {
			end = rp.DivergingEpoch.EndOffset
		}
		if e == rp.DivergingEpoch.Epoch {
			end = min(end, rp.DivergingEpoch.EndOffset)
		}
		p.truncate(min(end, p.next))
		return
	}
	b := rp.RecordBatches
	for len(b) > 0 {
		x, rest, err := records.Split(b)
		if err != nil {
			f.r.t.Errorf("follower got %v in %s", err, outline(rp.RecordBatches))
			return
		}
		if x.BaseOffset() < p.next || x.CheckCRC() != nil || x.PartitionLeaderEpoch() > f.leaderEpoch {
			f.r.t.Errorf("follower %d at %d got %s", f.id, p.next, outline(b))
			return
		}
		p.log = append(p.log, x...)
		p.epochs = p.epochs.record(x.PartitionLeaderEpoch(), x.BaseOffset())
		p.next, p.lastEpoch = x.NextOffset(), x.PartitionLeaderEpoch()
		p.data++
		b = rest
	}
	if rp.LogStartOffset > min(rp.HighWatermark, p.next) {
		f.r.t.Errorf("log start %d above high watermark %d or end %d stops the follower", rp.LogStartOffset, rp.HighWatermark, p.next)
	}
	hw := min(rp.HighWatermark, p.next)
	if hw < p.hw && p.diverged == 0 {
		f.r.t.Errorf("high watermark of follower %d went from %d to %d", f.id, p.hw, hw)
	}
	p.hw = hw
	p.logStart = max(p.logStart, rp.LogStartOffset)
}

func (p *fakeReplica) truncate(to int64) {
	b := p.log
	kept := 0
	next := p.start
	for {
		x, rest, err := records.Split(b)
		if err != nil || x.NextOffset() > to {
			break
		}
		kept += len(x)
		next = x.NextOffset()
		b = rest
	}
	p.log = p.log[:kept:kept]
	p.next = min(max(next, p.start), max(to, 0))
	if next < to && kept == 0 {
		p.next = min(to, max(p.start, 0))
	}
	p.epochs = p.epochs.truncated(p.next)
	p.lastEpoch = p.epochs.newest()
	p.hw = min(p.hw, p.next)
	p.sent = false
}

// plant gives a replica a log of its own.
func (p *fakeReplica) plant(batches ...[]byte) {
	for _, b := range batches {
		x := records.Batch(b)
		p.log = append(p.log, b...)
		p.epochs = p.epochs.record(x.PartitionLeaderEpoch(), x.BaseOffset())
		p.next, p.lastEpoch = x.NextOffset(), x.PartitionLeaderEpoch()
	}
}

// loop fetches until ctx ends.
func (f *fakeFollower) loop(ctx context.Context) {
	for ctx.Err() == nil {
		if f.fetch(ctx) == nil {
			return
		}
	}
}

// syncAll lets followers fetch at once until each has its log up to want and a high watermark there.
func (r *rig) syncAll(want int64, fs ...*fakeFollower) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(func() {
			for ctx.Err() == nil {
				done := true
				for _, p := range f.parts {
					done = done && p.next >= want && p.hw >= want
				}
				if done {
					return
				}
				if f.fetch(ctx) == nil {
					break
				}
			}
		})
	}
	wg.Wait()
	for _, f := range fs {
		for i, p := range f.parts {
			if p.next < want || p.hw < want {
				r.t.Fatalf("follower %d partition %d: end %d, high watermark %d, code %d, want %d; status %+v",
					f.id, i, p.next, p.hw, p.code, want, r.status())
			}
		}
	}
}
