package mirror

import (
	"context"

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
		r.settle = append(r.settle, p.id)
	case statemachine.Retake:
		r.retake = append(r.retake, p.id)
		m.setRole(r, p, replica.RoleDrain)
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
		r.unlock[p.id.Topic] = p.topic
	case statemachine.HandOver:
		r.handOver = append(r.handOver, p.id)
	}
}

// actStop starts the tasks of stops.
func (m *Manager) actStop(ctx context.Context, r *round) {
	m.task(ctx, settleTask, r.settle, m.settle)
	m.task(ctx, retakeTask, r.retake, m.retake)
	m.task(ctx, releaseTask, r.release, m.release)
	m.task(ctx, tailTask, r.tails, m.makeTails)
	m.task(ctx, handOverTask, r.handOver, m.handOver)
	m.task(ctx, regrowTask, r.grown, m.growBack)
	for _, t := range r.unlock {
		m.task(ctx, unlockTask(t.Name), topicBusy(t), func(ctx context.Context, _ []protocol.PartitionID) error { return m.unlockTopic(ctx, t) })
	}
	for _, t := range r.noted {
		m.task(ctx, "store topic "+t.Name, topicBusy(t), func(ctx context.Context, _ []protocol.PartitionID) error { return m.note(ctx, t) })
	}
}

// topicBusy is what tasks about a whole topic hold.
func topicBusy(t coordinator.Topic) []protocol.PartitionID {
	return []protocol.PartitionID{{Topic: t.TopicID, Partition: -1}}
}

// logEndAt is where a log ends, as a divergence: an empty one is truncated whole.
func logEndAt(epoch int32, end int64) replica.Divergence {
	if epoch < 0 || end <= 0 {
		return replica.Divergence{}
	}
	return replica.Divergence{Epoch: epoch, EndOffset: end}
}

// topicFacts looks at what is stored of a topic's partitions. Called with m.mu held.
func (m *Manager) topicFacts(r *round, t coordinator.Topic) topicFacts {
	if t.Desired != statemachine.Stopped {
		return topicFacts{}
	}
	f := topicFacts{tailed: true, stopped: true, draining: t.Drain}
	for n := range t.Partitions {
		s, ok := m.cfg.Store.State(protocol.PartitionID{Topic: t.TopicID, Partition: n})
		stopped := ok && s.State == statemachine.Stopped
		f.stopped = f.stopped && stopped
		f.tailed = f.tailed && (stopped || ok && s.State == statemachine.Stopping && s.Stop == statemachine.StopTailed)
	}
	return f
}

// endDrain begins the stop of a topic that was to be drained first, once every partition has all of a source that rests: while its
// writers are at work, "all" would be a matter of luck. Called with m.mu held.
func (m *Manager) endDrain(r *round, t coordinator.Topic) {
	if !r.topic.draining {
		return
	}
	for n := range t.Partitions {
		if p := m.parts[protocol.PartitionID{Topic: t.TopicID, Partition: n}]; p == nil || !p.drained(r) {
			return
		}
	}
	t.Drain = false
	r.noted[t.TopicID] = t
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
	r.topic.short = true
	if len(ip.Adding)+len(ip.Removing) == 0 && len(m.missing(r.img, p, ip)) > 0 {
		r.grown = append(r.grown, p.id)
	}
}

// drained reports whether a partition has all that a source has which rests.
func (p *part) drained(r *round) bool {
	st, led := r.statuses[p.id]
	if !led || st.Role != replica.RoleMirror || st.SourceEnd < 0 || r.now.Sub(st.LastSourceFetch) > restFor {
		p.sourceEnd = -1
		return false
	}
	if st.SourceEnd != p.sourceEnd {
		p.sourceEnd, p.restsSince = st.SourceEnd, r.now
	}
	return st.HighWatermark >= st.SourceEnd && r.now.Sub(p.restsSince) >= restFor
}
