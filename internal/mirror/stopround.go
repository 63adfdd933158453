package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// gatherStop is gather for the effects of pausing and stopping.
func (m *Manager) gatherStop(r *round, p *part, e statemachine.Effect) {
	switch e.(type) {
	case statemachine.Drain:
		m.setRole(r, p, replica.RoleDrain)
		m.dropOutOfSync(r, p)
	case statemachine.Settle:
		if ip := r.img.Partition(p.id); ip != nil && m.guest(ip.Leader) {
			m.retakeFrom(r, p) // a dead process holds no log to compare, and the controller takes its time to see that it is dead
			return
		}
		r.settle = append(r.settle, p.id)
	case statemachine.Retake:
		m.retakeFrom(r, p)
	case statemachine.Release:
		r.release = append(r.release, p.id)
	case statemachine.Mark:
		p.mark(r.statuses[p.id])
		m.step(r, p, statemachine.Marked{})
	case statemachine.Tail:
		m.dropOutOfSync(r, p)
		if p.work.tail == nil {
			m.setRole(r, p, replica.RoleDrain)
			r.tails = append(r.tails, p.id)
			return
		}
		m.setRole(r, p, replica.RoleTail)
	case statemachine.Hold:
		// After a restart the tail's bytes are gone, and not needed: a log that ends where its followers end serves as well.
		if !p.assigned || p.role.Role != replica.RoleTail {
			m.setRole(r, p, replica.RoleStray)
		}
	case statemachine.Unlock:
		if m.groupsFirst(p.topic) {
			return // clients are not to start before their groups are where they were at the source
		}
		r.unlock[p.id.Topic] = p.topic
	case statemachine.HandOver:
		r.handOver = append(r.handOver, p.id)
	}
}

// retakeFrom asks for leadership, whoever has it.
func (m *Manager) retakeFrom(r *round, p *part) {
	r.retake = append(r.retake, p.id)
	m.setRole(r, p, replica.RoleDrain)
}

// actStop starts the tasks of stops.
func (m *Manager) actStop(ctx context.Context, r *round) {
	m.task(ctx, settleTask, r.settle, m.settle)
	m.task(ctx, retakeTask, r.retake, m.lead) // without asking for the source
	m.task(ctx, releaseTask, r.release, m.release)
	m.task(ctx, tailTask, r.tails, m.makeTails)
	m.task(ctx, handOverTask, r.handOver, m.handOver)
	m.task(ctx, regrowTask, r.grown, m.growBack)
	for _, t := range r.unlock {
		m.task(ctx, unlockTask(t.Name), topicBusy(t), func(ctx context.Context, _ []protocol.PartitionID) error { return m.unlockTopic(ctx, t) })
	}
	if len(r.draining) > 0 {
		m.task(ctx, drainTask, []protocol.PartitionID{{Partition: -2}}, func(ctx context.Context, _ []protocol.PartitionID) error {
			return m.askEnds(ctx, r.draining)
		})
	}
	var noted []protocol.PartitionID
	for _, t := range r.noted {
		noted = append(noted, topicBusy(t)...)
	}
	m.task(ctx, "store topics", noted, func(ctx context.Context, ids []protocol.PartitionID) error {
		topics := make([]coordinator.Topic, len(ids))
		for i, id := range ids {
			topics[i] = r.noted[id.Topic]
		}
		return m.note(ctx, topics...)
	})
}

// topicBusy is what tasks about a whole topic hold.
func topicBusy(t coordinator.Topic) []protocol.PartitionID {
	return []protocol.PartitionID{{Topic: t.TopicID, Partition: -1}}
}

// topicFacts looks at a topic's configs, and at what is stored of its partitions. Called with m.mu held.
func (m *Manager) topicFacts(r *round, t coordinator.Topic) topicFacts {
	size, _ := r.img.TopicConfig(t.Name, sizeConfig)
	f := topicFacts{locked: m.locked(r.img, t), open: size != "0", free: free(r.img, t)}
	if t.Desired != statemachine.Stopped {
		return f
	}
	f.tailed, f.stopped = true, true
	for n := range t.Partitions {
		s, ok := m.cfg.Store.State(protocol.PartitionID{Topic: t.TopicID, Partition: n})
		stopped := ok && s.State == statemachine.Stopped
		f.stopped = f.stopped && stopped
		if ip := r.img.Partition(protocol.PartitionID{Topic: t.TopicID, Partition: n}); ip != nil && len(m.real(targets(ip))) < int(t.Replicas) {
			f.short = true
		}
		f.tailed = f.tailed && (stopped || ok && s.State == statemachine.Stopping && s.Stop == statemachine.StopTailed)
	}
	return f
}

// tendStopped gives a partition that was handed over the replicas that were not in sync then. Called with m.mu held.
func (m *Manager) tendStopped(r *round, p *part, ip *kraft.Partition) {
	if p.assigned {
		p.assigned = false
		r.unassign = append(r.unassign, p.id)
	}
	if !p.topic.Regrow || len(m.real(ip.Replicas)) >= int(p.topic.Replicas) {
		return
	}
	if len(ip.Adding)+len(ip.Removing) == 0 && len(m.missing(r.img, p, ip)) > 0 {
		r.grown = append(r.grown, p.id)
	}
}

// rest is what the source says of a topic that is to be promoted: where its logs end, when it was asked last, and for how long they were
// seen to end there.
type rest struct {
	ends  map[int32]int64
	asked time.Time
	quiet time.Duration
}

// noted is the rest after another answer. Time in which nobody asks, or the source does not answer, counts for no more than a tick: where
// a broker or the whole machine stood still, so did the writers, and they go on with it.
func (r rest) noted(ends map[int32]int64, now time.Time) rest {
	if !maps.Equal(r.ends, ends) {
		return rest{ends: ends, asked: now}
	}
	r.quiet, r.asked = r.quiet+min(now.Sub(r.asked), tick), now
	return r
}

// askEnds asks the sources of topics that are to be promoted where their logs end.
func (m *Manager) askEnds(ctx context.Context, topics []coordinator.Topic) error {
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	byMirror := map[string][]coordinator.Topic{}
	for _, t := range topics {
		byMirror[t.Mirror] = append(byMirror[t.Mirror], t)
	}
	var errs []error
	for mirror, of := range byMirror {
		ends, err := m.cfg.SourceEnds(ctx, mirror, of)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		now := time.Now()
		m.mu.Lock()
		for _, t := range of {
			r := m.rests[t.TopicID].noted(ends[t.TopicID], now)
			m.rests[t.TopicID] = r
			if outgrown(r.ends, t) {
				errs = append(errs, fmt.Errorf("topic %s has %d partitions at the source and %d here: its promote waits for the new ones",
					t.Name, len(r.ends), t.Partitions))
			}
		}
		m.mu.Unlock()
	}
	return errors.Join(errs...)
}

// outgrown reports whether a source has partitions of a topic that are not mirrored yet.
func outgrown(ends map[int32]int64, t coordinator.Topic) bool { return len(ends) > int(t.Partitions) }

// drained reports whether a partition has all of a topic that rests at the source: while its writers are at work anywhere in the topic,
// "all" would be a matter of luck, and so it would be while the source has partitions that are not mirrored yet. Called with m.mu held.
func (m *Manager) drained(r *round, p *part) bool {
	at := m.rests[p.id.Topic]
	st, led := r.statuses[p.id]
	end, known := at.ends[p.id.Partition]
	return led && known && st.Role == replica.RoleMirror && r.now.Sub(at.asked) < restFor && at.quiet >= restFor &&
		st.HighWatermark >= end && !outgrown(at.ends, p.topic)
}
