package mirror

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// round is one look at everything: what the machines ask for, gathered so that many partitions share a request.
type round struct {
	img      *kraft.Image
	procs    []Process
	dead     []int32
	settled  bool // what is known of processes has not changed lately
	statuses map[protocol.PartitionID]replica.Status
	now      time.Time

	lead, drop, regrow                              []protocol.PartitionID
	settle, retake, release, tails, handOver, grown []protocol.PartitionID
	bump                                            map[protocol.PartitionID]int32
	lock, unlock, noted                             map[protocol.UUID]coordinator.Topic
	assign                                          []replica.Assignment
	unassign                                        []protocol.PartitionID
	store                                           []*part
	draining                                        []coordinator.Topic
	// topic is what holds for all partitions of the topic that is looked at.
	topic topicFacts
}

// topicFacts is what the partitions of a topic are asked for together.
type topicFacts struct {
	// tailed: each is at StopTailed, or STOPPED, by what is stored. stopped: each is STOPPED.
	tailed, stopped bool
	// short: one has fewer real replicas than it is to have.
	short bool
	// locked: both halves of the lock are on; open: not even that of the size is; free: neither is.
	locked, open, free bool
}

// reconcile looks at every mirror topic once.
func (m *Manager) reconcile(ctx context.Context) {
	r := &round{
		img: m.cfg.Destination.Image(), statuses: m.cfg.Data.Statuses(), now: time.Now(),
		bump: map[protocol.PartitionID]int32{}, lock: map[protocol.UUID]coordinator.Topic{},
		unlock: map[protocol.UUID]coordinator.Topic{}, noted: map[protocol.UUID]coordinator.Topic{},
	}
	if m.cfg.Destination.Ready() != nil && r.img.Offset < 0 {
		return
	}
	m.syncMirrors()
	r.procs, r.dead = m.processes()
	r.settled = m.settled(r.procs, r.now)
	topics := slices.DeleteFunc(slices.Clone(m.cfg.Store.Topics()), func(t coordinator.Topic) bool {
		return t.TopicID.IsZero() || m.takenOver(t)
	})
	stand := &standing{procs: r.procs, mirrors: map[protocol.UUID]string{}}
	for _, t := range topics {
		stand.mirrors[t.TopicID] = t.Mirror
	}
	m.standing.Store(stand)
	gone, bystander := m.lookTopics(r, topics)
	if gone = append(gone, r.unassign...); len(gone) > 0 {
		m.cfg.Data.Unassign(gone...)
	}
	if bystander {
		return
	}
	m.persist(ctx, r)
	if len(r.assign) > 0 {
		m.cfg.Data.Assign(r.assign...)
	}
	m.act(ctx, r)
}

// lookTopics looks at each topic, and returns the partitions that the data path has to give up. A bystander is no member of the
// destination: it only describes.
func (m *Manager) lookTopics(r *round, topics []coordinator.Topic) (gone []protocol.PartitionID, bystander bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, writable := map[protocol.PartitionID]bool{}, map[protocol.UUID]bool{}
	// The image shows node ids that lead by their numbers: whose they are, the controller says.
	bystander = m.cfg.Registered != nil && !m.cfg.Registered()
	if m.stoodBy && !bystander {
		clear(m.parts) // others have led meanwhile, by the same ids even: what they have stored holds
	}
	m.stoodBy = bystander
	for _, t := range topics {
		if bystander {
			r.topic = m.topicFacts(r, t)
		} else {
			m.lookTopic(r, t, seen)
		}
		writable[t.TopicID] = t.Desired == statemachine.Stopped && r.topic.stopped
	}
	m.writable.Store(&writable)
	if bystander {
		return m.standBy(), true
	}
	for id := range m.parts {
		if !seen[id] {
			gone = append(gone, id)
			delete(m.parts, id)
		}
	}
	m.strays(r)
	return gone, false
}

// act starts the tasks that the round asks for.
func (m *Manager) act(ctx context.Context, r *round) {
	m.task(ctx, leadTask, r.lead, m.takeLead)
	for _, t := range r.lock {
		m.task(ctx, lockTask(t.Name), topicBusy(t),
			func(ctx context.Context, _ []protocol.PartitionID) error { return m.lockTopic(ctx, t) })
	}
	m.task(ctx, dropTask, r.drop, m.dropLaggards)
	m.actStop(ctx, r)
	m.task(ctx, "add replicas back", r.regrow, m.addReplicas)
	if len(r.bump) > 0 {
		ids := make([]protocol.PartitionID, 0, len(r.bump))
		for id := range r.bump {
			ids = append(ids, id)
		}
		m.task(ctx, bumpTask, ids, func(ctx context.Context, ids []protocol.PartitionID) error {
			return m.bumpEpochs(ctx, ids, r.bump)
		})
	}
}

// lookTopic steps the machines of a topic's partitions. Called with m.mu held.
func (m *Manager) lookTopic(r *round, t coordinator.Topic, seen map[protocol.PartitionID]bool) {
	r.topic = m.topicFacts(r, t)
	for p := range t.Partitions {
		id := protocol.PartitionID{Topic: t.TopicID, Partition: p}
		if !m.lookChoice(r, t.Mirror, id, r.img.Partition(id)) {
			continue
		}
		seen[id] = true
		m.look(r, t, id)
	}
	if t.Drain && !r.topic.tailed {
		r.draining = append(r.draining, t)
	} else {
		delete(m.rests, t.TopicID)
	}
	mine := m.cfg.Coordinates == nil || m.cfg.Coordinates(t.Mirror)
	if mine && (t.Regrow || t.Drain) && r.topic.stopped && !r.topic.short {
		t.Regrow, t.Drain = false, false
		r.noted[t.TopicID] = t
	}
}

// look steps one partition's machine. Called with m.mu held.
func (m *Manager) look(r *round, t coordinator.Topic, id protocol.PartitionID) {
	p := m.parts[id]
	read, known := m.cfg.Store.Look(t.Mirror, id)
	if p == nil || !p.topic.Started.Equal(t.Started) || known && m.overtaken(p, read, r.img.Partition(id)) {
		// Taken up, or started anew: start has stored PREPARING before the topic. Nothing from before says anything about it. Or an
		// operator has sent a FAILED one on.
		p = m.load(t, id, read, known)
		m.parts[id] = p
	}
	p.topic, p.read = t, read
	if p.startsAnew(r.now) {
		return
	}
	defer func() {
		if p.dirty && !slices.Contains(r.store, p) {
			r.store = append(r.store, p) // not stored in an earlier round, and nothing is asked for in this one
		}
	}()
	if state := p.machine.State; t.Desired == statemachine.Mirroring && (state == statemachine.Unknown || state == statemachine.Stopped) {
		m.step(r, p, statemachine.Start{Overwrite: t.Overwrite})
	}
	if p.machine.State == statemachine.Failed && !p.retryAt.IsZero() && r.now.After(p.retryAt) {
		p.retryAt = time.Time{}
		m.step(r, p, statemachine.RetryDue{})
	}
	ip := r.img.Partition(id)
	if ip == nil {
		m.lookGone(r, p)
		return
	}
	p.seen = true
	st, led := r.statuses[id]
	// What the data path says of a partition just taken up is from before; nothing of a source matters to a stop.
	fatal := p.assigned && led && st.Err != nil && st.Fatal && p.machine.State != statemachine.Stopping
	if fatal && p.machine.State != statemachine.Failed {
		m.step(r, p, statemachine.Fail{Final: true, Reason: st.Err.Error(), Hint: finalHint(st.Err)})
	}
	m.tiered(r, p)
	f := m.facts(r, p, ip, st, led)
	m.faultsSeen(p, f, st)
	m.step(r, p, statemachine.Observe{Facts: f})
	m.tend(r, p, ip)
}

// lookGone deals with a partition that the image does not show.
func (m *Manager) lookGone(r *round, p *part) {
	// A topic just created may be in the store before it is in the image.
	gone := p.seen || r.now.Sub(p.loaded) > taskLimit
	if gone && p.topic.Desired == statemachine.Stopped {
		// Nothing is left to stop.
		m.step(r, p, statemachine.Observe{Facts: statemachine.Facts{Desired: statemachine.Stopped, Open: true, TopicTailed: r.topic.tailed,
			Free: true, HandedOver: true, SLE: -1, LME: -1}})
		return
	}
	if state := p.machine.State; !gone || state == statemachine.Failed || state == statemachine.Stopped || m.creating[p.topic.Name] {
		return
	}
	if r.img.TopicByName(p.topic.Name) == nil {
		m.step(r, p, statemachine.Fail{Final: true, Reason: "the topic no longer exists at the destination",
			Hint: "start it again to mirror it from scratch"})
		return
	}
	m.step(r, p, statemachine.Fail{Final: true, Reason: "the topic was deleted and made anew at the destination by others",
		Hint: "start it again, with --overwrite where the new one holds data"})
}

// overtaken reports whether another state was stored since ours: FAILED partitions are sent on by storing where they go on, since
// whoever is asked to need not be the process that leads them. In other states a newer one is that of a start, which stores it before
// its topic: taken up with the topic as it was, it would be stopped at once.
//
// So are those that others have led since, when this process was stopped (SIGSTOP), say, and do not lead here again: they stored how far
// they have come, the last mirrored epoch with it, and that must not be lost.
func (m *Manager) overtaken(p *part, s coordinator.PartitionState, ip *kraft.Partition) bool {
	if s.Mirror == p.topic.Mirror && s.LeaderEpoch > p.epoch && ip != nil && !m.cfg.Destination.Owns(ip.Leader) {
		return true
	}
	return p.machine.State == statemachine.Failed && s.State != p.machine.State && s.Since.After(p.since)
}

// startsAnew reports whether a start has stored PREPARING and its topic is still to come: what the machine makes of the topic as it was is
// not to be stored over it. A start that was cut short in between holds nothing up for long.
func (p *part) startsAnew(now time.Time) bool {
	s := p.read
	if p.machine.State == s.State || s.State != statemachine.Preparing || s.Mirror != p.topic.Mirror || !s.Since.After(p.since) {
		p.awaits = time.Time{}
		return false
	}
	if p.awaits.IsZero() {
		p.awaits = now
	}
	return now.Sub(p.awaits) < taskLimit
}

// load takes a partition over from what is stored.
func (m *Manager) load(t coordinator.Topic, id protocol.PartitionID, s coordinator.PartitionState, known bool) *part {
	p := &part{topic: t, id: id, machine: statemachine.New(), since: time.Now(), loaded: time.Now(),
		work: stopWork{settledAt: -1, settledEpoch: -1, lme: -1}}
	if !known {
		return p
	}
	p.since, p.epoch = s.Since, s.LeaderEpoch
	p.work.lme, p.work.end, p.work.epoch = s.LastMirrorEpoch, s.StopEnd, s.StopEpoch
	// A Load can't be refused; what it asks for is done by the next Observe, but for a retry whose back-off starts anew.
	if eff, err := p.machine.Step(loaded(s)); err == nil && len(eff) > 0 {
		p.retryAt = time.Now().Add(retryBase)
	}
	return p
}

// facts puts together what the image and the data path say of a partition.
func (m *Manager) facts(r *round, p *part, ip *kraft.Partition, st replica.Status, led bool) statemachine.Facts {
	f := statemachine.Facts{
		Desired: p.topic.Desired, Leading: m.cfg.Destination.Owns(ip.Leader), Locked: r.topic.locked, Open: r.topic.open,
		DLE: ip.LeaderEpoch, SLE: -1, LME: p.work.lme, TopicTailed: r.topic.tailed, Free: r.topic.free, HandedOver: m.handedOver(ip),
	}
	if p.topic.Drain && f.Desired == statemachine.Stopped && !m.drained(r, p) {
		f.Desired = statemachine.Mirroring
	}
	if !f.Leading {
		f.Converged = ip.Leader >= 0 && p.work.settledAt == ip.LeaderEpoch
	}
	if !led || st.LeaderEpoch != ip.LeaderEpoch {
		return f
	}
	whole := len(m.outOfSync(ip)) == 0
	f.SLE, f.Blocked = st.SourceEpoch, st.EpochBlocked
	f.Aligned = st.Role == replica.RoleTruncate && st.Truncated && whole
	f.Converged = (st.Role == replica.RoleDrain || st.Role == replica.RoleFrozen) && st.Converged && whole
	f.Stuck = st.Role == replica.RoleDrain && st.Stuck
	f.Tailed = st.Role == replica.RoleTail && st.Tailed && whole
	f.Flowing = st.Err == nil && !st.LastSourceFetch.IsZero() && st.Role == replica.RoleMirror
	return f
}

// step feeds one event and gathers the effects. Called with m.mu held.
func (m *Manager) step(r *round, p *part, ev statemachine.Event) {
	before, stop := p.machine.State, p.machine.Stop
	effects, err := p.machine.Step(ev)
	if err != nil {
		m.log.Error("state machine refused an event", "topic", p.topic.Name, "partition", p.id.Partition, "err", err)
		return
	}
	if p.machine.State != before {
		p.since = later(r.now, p.since)
		m.log.Info("partition state", "mirror", p.topic.Mirror, "topic", p.topic.Name, "partition", p.id.Partition,
			"from", before.String(), "to", p.machine.State.String(), "reason", p.machine.Reason)
	}
	if p.machine.Stop != stop {
		m.log.Debug("partition stop", "topic", p.topic.Name, "partition", p.id.Partition, "step", p.machine.Stop.String())
	}
	for _, e := range effects {
		m.gather(r, p, e)
	}
}

func (m *Manager) gather(r *round, p *part, e statemachine.Effect) {
	switch e := e.(type) {
	case statemachine.Store:
		p.dirty = true
	case statemachine.Lead:
		r.lead = append(r.lead, p.id)
		m.setRole(r, p, replica.RoleWait)
	case statemachine.Lock:
		r.lock[p.id.Topic] = p.topic
	case statemachine.Align:
		m.setRole(r, p, replica.RoleTruncate)
		if st := r.statuses[p.id]; st.Role == replica.RoleTruncate && st.Truncated {
			m.dropOutOfSync(r, p)
		}
	case statemachine.Bump:
		r.bump[p.id] = e.Min
	case statemachine.Serve:
		m.setRole(r, p, replica.RoleMirror)
	case statemachine.Freeze:
		m.setRole(r, p, replica.RoleFrozen)
	case statemachine.RetryAfter:
		d := min(retryMax, retryBase<<min(e.Attempt-1, 12))
		p.retryAt = r.now.Add(d - d/5 + rand.N(d/5+1))
	default:
		m.gatherStop(r, p, e)
	}
	if p.dirty && !slices.Contains(r.store, p) {
		r.store = append(r.store, p)
	}
}

// dropOutOfSync has real replicas that are not in sync taken off the list, where there are some.
func (m *Manager) dropOutOfSync(r *round, p *part) {
	if ip := r.img.Partition(p.id); ip != nil && len(m.outOfSync(ip)) > 0 {
		r.drop = append(r.drop, p.id)
	}
}

// setRole queues an assignment when it differs from the last one.
func (m *Manager) setRole(r *round, p *part, role replica.Role) {
	a := replica.Assignment{ID: p.id, Topic: p.topic.Name, Role: role, Mirror: p.topic.Mirror, SourceTopicID: p.topic.SourceTopicID,
		MinRealISR: m.minReal(p.topic)}
	switch role {
	case replica.RoleTruncate:
		a.TruncateTo = alignTo(p.topic, p.id.Partition)
	case replica.RoleTail:
		a.TruncateTo, a.Tail = replica.Divergence{Epoch: p.work.epoch, EndOffset: p.work.end}, p.work.tail
	}
	if p.machine.State == statemachine.Stopping {
		a.MinRealISR = 1 // the operator wants out with what there is
	}
	if p.assigned && p.role == a {
		return
	}
	p.role, p.assigned = a, true
	r.assign = append(r.assign, a)
}

// minReal is the least number of real in-sync replicas of a topic: configured, or the topic's true min.insync.replicas.
func (m *Manager) minReal(t coordinator.Topic) int {
	if m.cfg.MinRealISR > 0 {
		return m.cfg.MinRealISR
	}
	return trueMinISR(t)
}

// trueMinISR is the effective min.insync.replicas without the lock, which can't be above the number of real replicas.
func trueMinISR(t coordinator.Topic) int {
	n := max(int(t.MinISR), 1)
	if t.Replicas > 0 {
		n = min(n, int(t.Replicas))
	}
	return n
}

// strays assigns partitions that we lead without their being mirrors. Called with m.mu held.
func (m *Manager) strays(r *round) {
	for id, t := range r.img.Topics {
		if !m.strayLocked(t) {
			continue
		}
		for n, ip := range t.Partitions {
			pid := protocol.PartitionID{Topic: id, Partition: int32(n)}
			if st, ok := r.statuses[pid]; m.cfg.Destination.Owns(ip.Leader) && (!ok || st.Role != replica.RoleStray) {
				r.assign = append(r.assign, replica.Assignment{ID: pid, Topic: t.Name, Role: replica.RoleStray})
			}
		}
	}
}

// isStray tells whether a topic that names our ids is none of ours and may be moved off.
func (m *Manager) isStray(t *kraft.Topic) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.strayLocked(t)
}

// strayLocked is isStray with m.mu held. A topic with the lock on it is never a stray, known or not: it may be a mirror whose
// record was lost, and what looks like an empty log would truncate its replicas.
func (m *Manager) strayLocked(t *kraft.Topic) bool {
	if m.creating[t.Name] {
		return false
	}
	if v, ok := m.cfg.Destination.Image().TopicConfig(t.Name, sizeConfig); ok && v == "0" {
		return false
	}
	known, ok := m.cfg.Store.TopicByName(t.Name)
	if ok && m.isStopped(t.ID) {
		return true // handed over: whoever names our ids in it wants a broker
	}
	return !ok || known.TopicID != t.ID && !known.TopicID.IsZero()
}

// loaded is a stored state as the machine takes it.
func loaded(s coordinator.PartitionState) statemachine.Load {
	return statemachine.Load{State: s.State, Previous: s.Previous, Retry: int(max(s.Retry, 0)), Reason: s.Error, Hint: s.Hint, Final: s.Retry < 0,
		Stop: s.Stop, Aligned: s.Aligned}
}

// storedState is what is stored of a machine. Until a stop is marked the last mirrored epoch stays what it was.
func storedState(machine *statemachine.Machine, mirror string, id protocol.PartitionID, since time.Time, work stopWork) coordinator.PartitionState {
	s := coordinator.PartitionState{Mirror: mirror, ID: id, State: machine.State, Previous: machine.Previous, Since: since,
		Retry: int16(min(machine.Retry, 1<<14)), Error: machine.Reason, Hint: machine.Hint, LastMirrorEpoch: -1,
		Stop: machine.Stop, Aligned: machine.Aligned}
	if machine.Final {
		s.Retry = -1
	}
	switch {
	case machine.Stop != statemachine.StopFreeze:
		s.LastMirrorEpoch, s.StopEnd, s.StopEpoch = work.lme, work.end, work.epoch
		if s.LastMirrorEpoch < 0 {
			s.LastMirrorEpoch = coordinator.ForgetEpoch
		}
	case work.lme == coordinator.ForgetEpoch:
		s.LastMirrorEpoch = work.lme
	}
	return s
}
