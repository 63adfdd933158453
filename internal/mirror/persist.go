package mirror

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol"
)

// unstoredLimit bounds another attempt to store what could not be stored before: the loop waits for it, with all other topics.
const unstoredLimit = 2 * time.Second

// persist stores the states that changed, before anything that depends on them is done. Of topics whose states are not all stored nothing of the
// round is done. Others go on: one partition of the state topic that can't be written to must not hold up a stop of what has nothing to do with it.
func (m *Manager) persist(ctx context.Context, r *round) {
	if len(r.store) == 0 {
		return
	}
	states := make([]coordinator.PartitionState, 0, len(r.store))
	for _, p := range r.store {
		s := storedState(p.machine, p.topic.Mirror, p.id, p.since, p.work).Over(p.read)
		if ip := r.img.Partition(p.id); ip != nil {
			s.LeaderEpoch = max(ip.LeaderEpoch, 0) // who knows of an older leader than another has written for is refused
		}
		states = append(states, s)
	}
	began := time.Now()
	errs := m.putStates(ctx, r.store, states)
	m.mu.Lock()
	defer m.mu.Unlock()
	held := map[protocol.UUID]bool{}
	var stored []*part
	var last error
	for i, p := range r.store {
		if p.unstored = errs[i]; p.unstored != nil {
			held[p.id.Topic], last = true, errs[i]
			continue
		}
		p.dirty, p.epoch = false, max(p.epoch, states[i].LeaderEpoch)
		stored = append(stored, p)
	}
	if last != nil {
		m.log.Warn("partition states not stored, will be tried again", "partitions", len(states)-len(stored), "of", len(states), "topics", len(held),
			"err", last)
		m.hold(r, held)
	} else {
		m.log.Debug("task", "name", "store partition states", "partitions", len(states), "took", time.Since(began))
	}
	m.faultsStored(stored)
}

// putStates stores the states of parts and returns what became of each. Those that could not be stored the last time are waited for less.
func (m *Manager) putStates(ctx context.Context, parts []*part, states []coordinator.PartitionState) []error {
	errs := make([]error, len(parts))
	lists := map[bool][]int{}
	for i, p := range parts {
		again := p.unstored != nil
		lists[again] = append(lists[again], i)
	}
	var both sync.WaitGroup
	for again, list := range lists {
		limit := taskLimit
		if again {
			limit = unstoredLimit
		}
		both.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			these := make([]coordinator.PartitionState, len(list))
			for n, i := range list {
				these[n] = states[i]
			}
			for n, err := range m.cfg.Store.PutStates(ctx, these) {
				errs[list[n]] = err
			}
		})
	}
	both.Wait()
	return errs
}

// hold takes all that concerns some topics out of a round; the next one asks for it again. Called with m.mu held.
func (m *Manager) hold(r *round, topics map[protocol.UUID]bool) {
	for _, ids := range []*[]protocol.PartitionID{&r.lead, &r.drop, &r.regrow, &r.settle, &r.retake, &r.release, &r.tails, &r.handOver, &r.grown} {
		*ids = slices.DeleteFunc(*ids, func(id protocol.PartitionID) bool { return topics[id.Topic] })
	}
	maps.DeleteFunc(r.bump, func(id protocol.PartitionID, _ int32) bool { return topics[id.Topic] })
	for _, of := range []map[protocol.UUID]coordinator.Topic{r.lock, r.unlock, r.noted} {
		maps.DeleteFunc(of, func(id protocol.UUID, _ coordinator.Topic) bool { return topics[id] })
	}
	r.assign = slices.DeleteFunc(r.assign, func(a replica.Assignment) bool {
		if p := m.parts[a.ID]; p != nil && topics[a.ID.Topic] {
			p.assigned = false // what was queued is not assigned
		}
		return topics[a.ID.Topic]
	})
}
