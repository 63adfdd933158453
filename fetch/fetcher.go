package fetch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/wait"
	"kmirror/protocol"
)

// starvedWait replaces the long poll's wait while partitions wait for room in their windows or are about to begin, since a
// request that is under way can't be extended by them.
const starvedWait = 20 * time.Millisecond

// fetcher reads partitions of one source broker over one connection, with one request under way.
type fetcher struct {
	m     *mirror
	key   fetcherKey
	wakeC chan struct{}

	mu    sync.Mutex
	parts []*partition // in the order of requests, rotated for fairness

	// The rest belongs to the goroutine of run.
	req     kmsg.FetchRequest
	targets []target
	fails   int
}

// target is a partition in a request, with what the request said of it.
type target struct {
	p      *partition
	gen    uint64
	topic  protocol.UUID
	name   string
	offset int64
	epoch  int32 // CurrentLeaderEpoch
	last   int32 // LastFetchedEpoch
}

func newFetcher(m *mirror, key fetcherKey) *fetcher {
	return &fetcher{m: m, key: key, wakeC: make(chan struct{}, 1)}
}

func (f *fetcher) kick() { kick(f.wakeC) }

func (f *fetcher) add(p *partition) {
	f.mu.Lock()
	if !slices.Contains(f.parts, p) {
		f.parts = append(f.parts, p)
	}
	f.mu.Unlock()
	f.kick()
}

func (f *fetcher) remove(p *partition) {
	f.mu.Lock()
	if i := slices.Index(f.parts, p); i >= 0 {
		f.parts = slices.Delete(f.parts, i, i+1)
	}
	f.mu.Unlock()
}

func (f *fetcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		again := f.build(time.Now())
		if len(f.targets) == 0 {
			if !f.idle(ctx, again) {
				return
			}
			continue
		}
		resp, err := f.request(ctx)
		now := time.Now()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			f.fails++
			for i := range f.targets {
				f.targets[i].failed(fmt.Errorf("fetch from source broker %d: %w", f.key.broker, err), now)
			}
			f.m.kickRefresh()
			if !wait.For(ctx, backoff(f.fails)) {
				return
			}
			continue
		}
		f.fails = 0
		n := f.handle(resp, now)
		if d := f.m.pace(n, now); d > 0 && !wait.For(ctx, d) {
			return
		}
	}
}

// idle waits until there is something to fetch.
func (f *fetcher) idle(ctx context.Context, again time.Time) bool {
	var timer <-chan time.Time
	if !again.IsZero() {
		t := time.NewTimer(max(time.Until(again), time.Millisecond))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-timer:
	case <-f.wakeC:
	}
	return true
}

// build makes the next request out of all partitions that want something; again is when to look at the others.
func (f *fetcher) build(now time.Time) (again time.Time) {
	f.targets = f.targets[:0]
	starved := false
	f.mu.Lock()
	if len(f.parts) > 1 { // no partition stays behind one that fills every response
		f.parts = append(f.parts[1:], f.parts[0])
	}
	parts := slices.Clone(f.parts)
	f.mu.Unlock()
	for _, p := range parts {
		p.mu.Lock()
		var at time.Time
		if f.key.id == catchUp {
			at = f.buildCatchUp(p, now)
		} else {
			var ok bool
			if ok, at = p.wants(now); ok {
				f.targets = append(f.targets, p.target(p.src.next, p.src.prevEpoch))
			}
			starved = starved || p.src.starved
		}
		p.mu.Unlock()
		if !at.IsZero() && (again.IsZero() || at.Before(again)) {
			again = at
		}
	}
	f.fill(starved, again, now)
	return again
}

// buildCatchUp adds a read below the window, and forgets partitions that don't want one any more.
func (f *fetcher) buildCatchUp(p *partition, now time.Time) (again time.Time) {
	ok, again := p.wantsCatchUp(f.key.broker, now)
	switch {
	case ok:
		f.targets = append(f.targets, p.target(p.wanted[0], p.src.hist.epochAt(p.wanted[0]-1)))
	case again.IsZero():
		f.remove(p)
	}
	return again
}

func (p *partition) target(offset int64, last int32) target {
	return target{p, p.src.gen, p.assign.SourceTopicID, p.topic, offset, p.src.epoch, last}
}

// fill writes the request. Topic name and id are both set, the version that the broker has decides which one is sent.
func (f *fetcher) fill(starved bool, again, now time.Time) {
	wait := f.m.cfg.WaitMax
	if starved || f.key.id == catchUp {
		wait = min(wait, starvedWait)
	}
	if !again.IsZero() {
		wait = min(wait, max(again.Sub(now), time.Millisecond))
	}
	topics := f.req.Topics[:0]
	responseMax, partitionMax := f.m.bounds()
	f.req.Default()
	f.req.ReplicaID = -1
	f.req.MaxWaitMillis = int32(wait.Milliseconds())
	f.req.MinBytes = f.m.cfg.MinBytes
	f.req.MaxBytes = responseMax
	f.req.SessionEpoch = -1
	for i := range f.targets {
		t := &f.targets[i]
		if n := len(topics); n == 0 || topics[n-1].Topic != t.name {
			if cap(topics) > n {
				topics = topics[:n+1]
				topics[n].Partitions = topics[n].Partitions[:0]
			} else {
				topics = append(topics, kmsg.NewFetchRequestTopic())
			}
			topics[n].Topic, topics[n].TopicID = t.name, t.topic
		}
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition = t.p.id.Partition
		p.CurrentLeaderEpoch = t.epoch
		p.FetchOffset = t.offset
		p.LastFetchedEpoch = t.last
		p.PartitionMaxBytes = partitionMax
		topics[len(topics)-1].Partitions = append(topics[len(topics)-1].Partitions, p)
	}
	f.req.Topics = topics
}

var errNoAnswer = errors.New("source did not answer for the partition")

func (f *fetcher) request(ctx context.Context) (*kmsg.FetchResponse, error) {
	c, err := f.m.client(f.key.id)
	if err != nil {
		return nil, err
	}
	kresp, err := c.Broker(int(f.key.broker)).Request(ctx, &f.req)
	if err != nil {
		return nil, err
	}
	resp, ok := kresp.(*kmsg.FetchResponse)
	if !ok {
		return nil, errNoAnswer
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	return resp, nil
}

// handle gives every partition its part of a response and returns the bytes accepted.
func (f *fetcher) handle(resp *kmsg.FetchResponse, now time.Time) int {
	r := &response{}
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			r.size += len(resp.Topics[i].Partitions[j].RecordBatches)
		}
	}
	accepted, cursor := 0, 0
	for i := range resp.Topics {
		rt := &resp.Topics[i]
		for j := range rt.Partitions {
			rp := &rt.Partitions[j]
			t := f.find(rt, rp.Partition, resp.Version, &cursor)
			if t == nil {
				continue
			}
			n, refresh := t.p.answered(t, rp, resp.Version, r, f.key.id == catchUp, now)
			accepted += n
			if refresh {
				f.m.kickRefresh()
			}
		}
	}
	return accepted
}

// find returns the target that a part of the response is for. Brokers answer in the order of the request, so the search
// begins where the last one ended.
func (f *fetcher) find(rt *kmsg.FetchResponseTopic, partition int32, version int16, cursor *int) *target {
	for range f.targets {
		t := &f.targets[*cursor%len(f.targets)]
		*cursor++
		if t.p.id.Partition != partition {
			continue
		}
		if version >= 13 && t.topic == protocol.UUID(rt.TopicID) || version < 13 && t.name == rt.Topic {
			return t
		}
	}
	return nil
}

// failed notes that the request of a target had no answer.
func (t *target) failed(err error, now time.Time) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	if t.p.src.gen == t.gen {
		t.p.fail(err, now)
	}
}
