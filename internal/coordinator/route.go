package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

const (
	// readyLimit is how long the owner lets a write wait for the end of its claim.
	readyLimit = time.Second
	// peerLimit bounds one request to another process.
	peerLimit = 5 * time.Second
	routeMost = time.Second
)

// change is what is to be written: a state, or a record as it is.
type change struct {
	state  *PartitionState
	record record // of a state: its partition only
}

// put writes changes, each through its owner, and returns once all of them show here. It tries again while owners change or
// can't be reached, until ctx ends.
func (c *cluster) put(ctx context.Context, changes []change) error {
	out, unsure := c.each(ctx, changes)
	var refused []error
	var last error
	for _, err := range out {
		if err != nil && !retriable(err) {
			refused = append(refused, err)
		} else if err != nil {
			last = err
		}
	}
	if unsure == 0 {
		return summary(refused)
	}
	select {
	case <-c.closed:
		return ErrClosed
	default:
	}
	return errors.Join(fmt.Errorf("%d of %d changes were not stored: %w", unsure, len(changes), ctx.Err()), last, summary(refused))
}

// each is put with what became of each change, nil for one that shows here, and of how many ctx's end, or the store's, has left that unsure:
// theirs are errors that another attempt may mend.
func (c *cluster) each(ctx context.Context, changes []change) (out []error, unsure int) {
	out = make([]error, len(changes))
	left := make([]int, len(changes))
	for i := range left {
		left[i], out[i] = i, ErrLoading
	}
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, routeMost) {
		select {
		case <-c.closed:
			return out, len(left)
		default:
		}
		changed := c.wait()
		var again []int
		for n, o := range c.round(ctx, pick(changes, left)) {
			if out[left[n]] = o.Err; o.Err != nil && retriable(o.Err) {
				again = append(again, left[n])
			}
		}
		if left = again; len(left) == 0 || ctx.Err() != nil {
			return out, len(left)
		}
		timer := time.NewTimer(jitter(wait))
		select {
		case <-changed:
			// What changed may be another partition's; a storm of changes must not become one of requests.
			pause(ctx, 10*time.Millisecond)
		case <-timer.C:
		case <-c.closed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// retriable reports whether a change may be stored by another attempt.
func retriable(err error) bool {
	return errors.Is(err, ErrNotCoordinator) || errors.Is(err, ErrLoading) || errors.Is(err, ErrUnreachable)
}

// ErrUnreachable: the owner did not answer; it may have stored the change all the same.
var ErrUnreachable = errors.New("the owner of the state does not answer")

// summary is nil, the only error, or the first of several with their number.
func summary(errs []error) error {
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	// One that was fenced tells more than one that was refused for another reason: the caller does not lead.
	slices.SortStableFunc(errs, func(a, b error) int {
		switch x, y := errors.Is(a, ErrFencedLeaderEpoch), errors.Is(b, ErrFencedLeaderEpoch); {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	})
	return fmt.Errorf("%d changes were refused: %w", len(errs), errs[0])
}

// round asks every owner once.
func (c *cluster) round(ctx context.Context, changes []change) []Outcome {
	out := make([]Outcome, len(changes))
	local := map[int32][]int{}
	remote := map[string][]int{}
	members := map[string]Member{}
	for i, ch := range changes {
		m, ok := c.target(ch.record.partition)
		switch {
		case !ok:
			out[i].Err = ErrNotCoordinator
		case m.Self:
			local[ch.record.partition] = append(local[ch.record.partition], i)
		default:
			members[m.ProcessID] = m
			remote[m.ProcessID] = append(remote[m.ProcessID], i)
		}
	}
	var tasks sync.WaitGroup
	for p, list := range local {
		tasks.Go(func() { fill(out, list, c.store(ctx, p, pick(changes, list))) })
	}
	for id, list := range remote {
		tasks.Go(func() { fill(out, list, c.ask(ctx, members[id], pick(changes, list))) })
	}
	tasks.Wait()
	return out
}

func pick(changes []change, list []int) []change {
	out := make([]change, 0, len(list))
	for _, i := range list {
		out = append(out, changes[i])
	}
	return out
}

func fill(out []Outcome, list []int, from []Outcome) {
	for k, i := range list {
		out[i] = from[k]
	}
}

func all(n int, err error) []Outcome {
	out := make([]Outcome, n)
	for i := range out {
		out[i] = Outcome{-1, err}
	}
	return out
}

// ask has another process store changes and waits until they have come back by the topic.
func (c *cluster) ask(ctx context.Context, to Member, changes []change) []Outcome {
	ctx, cancel := context.WithTimeout(ctx, peerLimit)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() { c.whileAlive(ctx, to, cancel) })
	var states []PartitionState
	var records []Record
	for _, ch := range changes {
		if ch.state != nil {
			states = append(states, *ch.state)
		} else {
			records = append(records, Record{ch.record.keyBytes, ch.record.value, ch.record.base})
		}
	}
	call := func(n int, do func() ([]Outcome, error)) []Outcome {
		if n == 0 {
			return nil
		}
		out, err := do()
		if err == nil && len(out) != n {
			err = fmt.Errorf("%d outcomes for %d changes", len(out), n)
		}
		if err != nil {
			return all(n, fmt.Errorf("%w: %s at %s: %w", ErrUnreachable, to.ProcessID, to.Admin, err))
		}
		return out
	}
	ofStates := call(len(states), func() ([]Outcome, error) { return c.peer.WriteStates(ctx, to, states) })
	ofRecords := call(len(records), func() ([]Outcome, error) { return c.peer.WriteRecords(ctx, to, records) })
	out := make([]Outcome, 0, len(changes))
	for _, ch := range changes {
		from := &ofRecords
		if ch.state != nil {
			from = &ofStates
		}
		o := (*from)[0]
		*from = (*from)[1:]
		if o.Err == nil && o.Offset >= 0 && c.reached(ctx, ch.record.partition, o.Offset) != nil {
			o.Err = fmt.Errorf("%w: what it stored at offset %d can't be read yet", ErrUnreachable, o.Offset)
		}
		out = append(out, o)
	}
	return out
}

// whileAlive cancels a request once its process is held dead: somebody else answers sooner than that one.
func (c *cluster) whileAlive(ctx context.Context, m Member, cancel context.CancelFunc) {
	for {
		changed := c.live.Changed()
		if !c.live.Alive(m) {
			cancel()
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// store writes changes of one partition of the state topic, as its owner.
func (c *cluster) store(ctx context.Context, partition int32, changes []change) []Outcome {
	s := c.shards[partition]
	if err := c.ready(ctx, s); err != nil {
		return all(len(changes), err)
	}
	if err := s.acquire(ctx); err != nil {
		return all(len(changes), err)
	}
	defer s.release()
	out := all(len(changes), nil)
	var records []record
	var of []int // index of changes, by record
	for i, ch := range changes {
		list := []record{ch.record}
		if ch.state != nil {
			var err error
			if list, err = c.stateRecords(*ch.state); err != nil {
				out[i].Err = err
				continue
			}
		}
		if slices.ContainsFunc(list, c.outdated) {
			out[i].Err = ErrChanged
			continue
		}
		for _, r := range list {
			if offset, same := c.table.same(r); same {
				out[i].Offset = max(out[i].Offset, offset)
				continue
			}
			records, of = append(records, r), append(of, i)
		}
	}
	if len(records) == 0 {
		return out
	}
	offsets, err := c.write(ctx, s, records)
	for k, i := range of {
		if k < len(offsets) {
			out[i].Offset = max(out[i].Offset, offsets[k])
		} else {
			out[i].Err = err
		}
	}
	return out
}

// outdated reports whether a record was to replace another one than stands there. One that says the same was stored before, or need not be.
func (c *cluster) outdated(r record) bool {
	if _, same := c.table.same(r); same || r.base == nil {
		return false
	}
	return *r.base != c.table.live(r.keyBytes)
}

// stateRecords encodes a state unless another leader's was stored since.
func (c *cluster) stateRecords(s PartitionState) ([]record, error) {
	if known, ok := c.table.state(s.ID); ok && known.Mirror == s.Mirror && known.LeaderEpoch > s.LeaderEpoch {
		if s.LeaderEpoch > 0 {
			return nil, fmt.Errorf("partition %d of %s: leader epoch %d, stored for %d: %w",
				s.ID.Partition, s.ID.Topic, s.LeaderEpoch, known.LeaderEpoch, ErrFencedLeaderEpoch)
		}
		s.LeaderEpoch = known.LeaderEpoch
	}
	return stateRecords(s, c.n)
}

// ready waits a moment for the end of a claim under way.
func (c *cluster) ready(ctx context.Context, s *shard) error {
	if held, _ := s.holds(); held {
		return nil
	}
	timer := time.NewTimer(readyLimit)
	defer timer.Stop()
	for {
		if m, ok := c.target(s.partition); !ok || !m.Self {
			return ErrNotCoordinator
		}
		changed := c.wait()
		held, ready := s.holds()
		if held {
			return nil
		}
		select {
		case <-ready:
		case <-changed:
		case <-timer.C:
			return ErrLoading
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// asked stores what another process asks for; what this one does not own is refused.
func (c *cluster) asked(ctx context.Context, changes []change) []Outcome {
	out := all(len(changes), ErrNotCoordinator)
	mine := map[int32][]int{}
	for i, ch := range changes {
		if m, ok := c.target(ch.record.partition); ok && m.Self {
			mine[ch.record.partition] = append(mine[ch.record.partition], i)
		}
	}
	var tasks sync.WaitGroup
	for p, list := range mine {
		tasks.Go(func() { fill(out, list, c.store(ctx, p, pick(changes, list))) })
	}
	tasks.Wait()
	return out
}

func (c *cluster) stateChanges(states []PartitionState) []change {
	out := make([]change, 0, len(states))
	for _, st := range states {
		p := kip1279.StatePartitionOf(st.Mirror, st.ID.Topic, st.ID.Partition, c.n)
		out = append(out, change{state: &st, record: record{partition: p}})
	}
	return out
}

// recordChanges reads records that another process sent.
func (c *cluster) recordChanges(records []Record) ([]change, error) {
	out := make([]change, 0, len(records))
	for _, r := range records {
		k, err := kip1279.DecodeStateKey(r.Key)
		if err == nil && k.Type == kip1279.RecordOwner {
			err = errors.New("owner records are the owner's")
		}
		if err == nil && r.Value != nil {
			_, err = kip1279.DecodeStateValue(k.Type, r.Value)
		}
		if err != nil {
			return nil, err
		}
		n := newRecord(k, nil, c.n)
		n.value, n.base = r.Value, r.Base
		out = append(out, change{record: n})
	}
	return out, nil
}

// states reads states as their owners have them.
func (c *cluster) states(ctx context.Context, mirror string, ids []protocol.PartitionID) []ReadOutcome {
	out := make([]ReadOutcome, len(ids))
	remote := map[string][]int{}
	members := map[string]Member{}
	for i, id := range ids {
		p := kip1279.StatePartitionOf(mirror, id.Topic, id.Partition, c.n)
		m, ok := c.target(p)
		if ok && !m.Self {
			members[m.ProcessID] = m
			remote[m.ProcessID] = append(remote[m.ProcessID], i)
			continue
		}
		out[i] = c.readOwn(ctx, p, mirror, id)
	}
	var tasks sync.WaitGroup
	for process, list := range remote {
		tasks.Go(func() {
			asked := make([]protocol.PartitionID, 0, len(list))
			for _, i := range list {
				asked = append(asked, ids[i])
			}
			ctx, cancel := context.WithTimeout(ctx, peerLimit)
			defer cancel()
			got, err := c.peer.ReadStates(ctx, members[process], mirror, asked)
			for k, i := range list {
				if err != nil || k >= len(got) {
					out[i].Err = errors.Join(ErrUnreachable, err)
					continue
				}
				out[i] = got[k]
			}
		})
	}
	tasks.Wait()
	return out
}

// readOwn reads a state that this process owns.
func (c *cluster) readOwn(ctx context.Context, partition int32, mirror string, id protocol.PartitionID) ReadOutcome {
	if err := c.ready(ctx, c.shards[partition]); err != nil {
		return ReadOutcome{Err: err}
	}
	s, ok := c.table.look(mirror, id)
	return ReadOutcome{State: s, Known: ok && s.Mirror == mirror}
}
