package broker

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

const (
	// strayPause gathers image changes: topics are created in many small steps.
	strayPause = 300 * time.Millisecond
	// strayRetry is how long a reassignment may take before it is cancelled and made anew with the brokers that are
	// live then.
	strayRetry    = 5 * time.Second
	strayRetryMax = time.Minute
)

// strays moves partitions that others placed on us to real brokers, until none is left. Only topics that the check
// calls stray are touched.
type strays struct {
	b      *Broker
	signal chan struct{}

	mu    sync.Mutex
	check func(*kraft.Topic) bool

	// tried and owed belong to run. owed is the replication factor of partitions that had to do with fewer replicas for
	// lack of live brokers.
	tried map[protocol.PartitionID]*strayTry
	owed  map[protocol.PartitionID]int
}

type strayTry struct {
	next  time.Time
	pause backoff
}

func newStrays(b *Broker) *strays {
	return &strays{b: b, signal: make(chan struct{}, 1),
		tried: map[protocol.PartitionID]*strayTry{}, owed: map[protocol.PartitionID]int{}}
}

// SetStrayCheck says which topics don't belong on our node ids: true means "move it off". Until it is set nothing is
// moved; set it only once all mirrors are known. It is called from a goroutine of Run.
func (b *Broker) SetStrayCheck(check func(t *kraft.Topic) bool) {
	b.strays.mu.Lock()
	b.strays.check = check
	b.strays.mu.Unlock()
	b.strays.look()
}

// look asks for a look at the image now.
func (s *strays) look() {
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

func (s *strays) run(ctx context.Context) {
	reported := 0
	for {
		changed := s.b.Changed()
		s.mu.Lock()
		check := s.check
		s.mu.Unlock()
		n := 0
		if check != nil && s.b.Registered() { // else the ids are another process's, which knows topics that it is just creating
			n = s.step(ctx, s.b.Image(), check)
		}
		if n != reported {
			s.b.cfg.Observer.Strays(n)
			reported = n
		}
		if s.rest(ctx, changed, n+len(s.owed) > 0) != nil {
			return
		}
	}
}

// rest waits for something to do: a new image, a call of look, and while work is left, time.
func (s *strays) rest(ctx context.Context, changed <-chan struct{}, work bool) error {
	var later <-chan time.Time
	if work {
		t := time.NewTimer(time.Second)
		defer t.Stop()
		later = t.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-later:
		return nil
	case <-s.signal:
		return nil
	case <-changed:
		return pause(ctx, strayPause)
	}
}

// step asks for the reassignments that are due and returns how many partitions are still on us.
func (s *strays) step(ctx context.Context, img *kraft.Image, check func(*kraft.Topic) bool) int {
	now := time.Now()
	place := sync.OnceValue(func() *placement { return newPlacement(s.b, img) })
	lists := map[protocol.TopicPartition][]int32{}
	ids := map[protocol.TopicPartition]protocol.PartitionID{}
	left := map[protocol.PartitionID]bool{}
	for _, t := range img.Topics {
		mine := slices.ContainsFunc(t.Partitions, s.onUs)
		stray := mine && check(t)
		for n, p := range t.Partitions {
			id := protocol.PartitionID{Topic: t.ID, Partition: int32(n)}
			onUs := stray && s.onUs(p)
			if onUs {
				left[id] = true
			}
			if !onUs && (mine || !s.short(id, t, p, check)) || !s.due(id, now) {
				continue
			}
			want := max(len(p.Replicas)-len(p.Adding), s.owed[id])
			target := place().target(p, want)
			if len(target) == 0 || !onUs && len(target) <= len(p.Replicas) {
				continue
			}
			if len(target) < want {
				s.owed[id] = want
			}
			tp := protocol.TopicPartition{Topic: t.Name, Partition: int32(n)}
			lists[tp], ids[tp] = target, id
		}
	}
	s.forget(img, left)
	s.send(ctx, lists, ids, now)
	return len(left)
}

func (s *strays) onUs(p *kraft.Partition) bool { return slices.ContainsFunc(p.Replicas, s.b.Owns) }

// short reports whether a partition that we moved is owed replicas still. The debt ends when it has them, by whomever, or
// when the topic is no stray any more.
func (s *strays) short(id protocol.PartitionID, t *kraft.Topic, p *kraft.Partition, check func(*kraft.Topic) bool) bool {
	want, ok := s.owed[id]
	if !ok || len(p.Adding)+len(p.Removing) > 0 {
		return false
	}
	if len(p.Replicas) >= want || !check(t) {
		delete(s.owed, id)
		return false
	}
	return true
}

func (s *strays) due(id protocol.PartitionID, now time.Time) bool {
	t := s.tried[id]
	return t == nil || !now.Before(t.next)
}

// forget drops the memory of partitions that are not there, or not on us, any more.
func (s *strays) forget(img *kraft.Image, left map[protocol.PartitionID]bool) {
	for id := range s.owed {
		if img.Partition(id) == nil {
			delete(s.owed, id)
		}
	}
	for id := range s.tried {
		if _, owed := s.owed[id]; !left[id] && !owed {
			delete(s.tried, id)
		}
	}
}

func (s *strays) send(
	ctx context.Context, lists map[protocol.TopicPartition][]int32,
	ids map[protocol.TopicPartition]protocol.PartitionID, now time.Time,
) {
	if len(lists) == 0 {
		return
	}
	for _, id := range ids {
		if s.tried[id] == nil {
			s.tried[id] = &strayTry{pause: backoff{min: strayRetry, max: strayRetryMax}}
		}
		s.tried[id].next = now.Add(s.tried[id].pause.next())
	}
	ctx, cancel := context.WithTimeout(ctx, operatorTimeout)
	defer cancel()
	for tp, err := range s.b.Reassign(ctx, lists) {
		switch {
		case err == nil:
			s.b.log.Info("moving a stray partition to real brokers", "partition", tp.String(), "replicas", lists[tp], "audit", true)
		case ctx.Err() == nil:
			s.b.log.Warn("moving a stray partition", "partition", tp.String(), "replicas", lists[tp], "err", err)
		}
	}
}

// placement chooses real brokers for partitions, the least loaded first.
type placement struct {
	b    *Broker
	load map[int32]int // replicas on each broker that may take more
	live map[int32]bool
}

func newPlacement(b *Broker, img *kraft.Image) *placement {
	p := &placement{b: b, load: map[int32]int{}, live: map[int32]bool{}}
	for id, r := range img.Brokers {
		if b.Guest(id) || r.Fenced || r.InControlledShutdown {
			continue
		}
		p.live[id] = true
		if len(r.CordonedLogDirs) == 0 || len(r.CordonedLogDirs) < len(r.LogDirs) {
			p.load[id] = 0
		}
	}
	for _, t := range img.Topics {
		for _, part := range t.Partitions {
			for _, id := range part.Replicas {
				if _, ok := p.load[id]; ok {
					p.load[id]++
				}
			}
		}
	}
	return p
}

// target returns up to n real brokers: the live replicas that there are, in-sync ones first, filled up with others. Dead
// replicas are dropped, since a reassignment ends only when every member is in sync, unless no live one is: then they may
// have the only copy.
func (p *placement) target(part *kraft.Partition, n int) []int32 {
	var insync, lagging, dead, out []int32
	for _, id := range part.Replicas {
		switch {
		case p.b.Guest(id) || slices.Contains(part.Adding, id) && !slices.Contains(part.ISR, id):
		case !p.live[id]:
			dead = append(dead, id)
		case slices.Contains(part.ISR, id):
			insync = append(insync, id)
		default:
			lagging = append(lagging, id)
		}
	}
	out = append(insync, lagging...)
	if len(insync) == 0 {
		out = append(out, dead...)
	}
	if len(out) > n {
		out = out[:n]
	}
	for len(out) < n {
		id, ok := p.least(out)
		if !ok {
			break
		}
		p.load[id]++
		out = append(out, id)
	}
	return out
}

func (p *placement) least(taken []int32) (int32, bool) {
	var free []int32
	for id := range p.load {
		if !slices.Contains(taken, id) {
			free = append(free, id)
		}
	}
	if len(free) == 0 {
		return 0, false
	}
	return slices.MinFunc(free, func(a, b int32) int {
		return cmp.Or(cmp.Compare(p.load[a], p.load[b]), cmp.Compare(a, b))
	}), true
}
