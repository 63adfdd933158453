package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"kmirror/internal/broker"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// own returns our ids among a replica list, in its order.
func (m *Manager) own(ids []int32) []int32 {
	return slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return !m.cfg.Destination.Owns(id) })
}

// real returns the ids of real brokers among a list, in its order.
func (m *Manager) real(ids []int32) []int32 {
	return slices.DeleteFunc(slices.Clone(ids), m.guest)
}

// outOfSync returns the real replicas that are not in the ISR.
func (m *Manager) outOfSync(ip *kraft.Partition) []int32 {
	return slices.DeleteFunc(m.real(ip.Replicas), func(id int32) bool { return slices.Contains(ip.ISR, id) })
}

// leadingList is the replica list with which we lead: ours first, in the order they have when they are all there, then one id of the
// process that stands by, then the real brokers.
func (m *Manager) leadingList(id protocol.PartitionID, ip *kraft.Partition) []int32 {
	mine := m.own(ip.Replicas)
	for _, id := range m.cfg.NodeIDs {
		if !slices.Contains(mine, id) {
			mine = append(mine, id)
		}
	}
	if by, ok := m.standby(id); ok {
		mine = append(mine, by)
	}
	return append(mine, m.real(ip.Replicas)...)
}

// nameOf is a partition of an image by its topic's name.
func nameOf(img *kraft.Image, id protocol.PartitionID) protocol.TopicPartition {
	return protocol.TopicPartition{Topic: img.Topics[id.Topic].Name, Partition: id.Partition}
}

// targets returns the replica list without what a reassignment under way removes.
func targets(ip *kraft.Partition) []int32 {
	return slices.DeleteFunc(slices.Clone(ip.Replicas), func(id int32) bool { return slices.Contains(ip.Removing, id) })
}

// leadTask names the task in the log and in descriptions.
const leadTask = "take leadership"

// takeLead brings leadership to one of our ids: replica list, one id into the ISR of the real leader, election. Each step
// is left out where the image shows it done. Ids that are fenced can't lead, so nothing is asked for while we fence ourselves.
func (m *Manager) takeLead(ctx context.Context, ids []protocol.PartitionID) error {
	if err := m.cfg.Destination.Ready(); errors.Is(err, broker.ErrSelfFenced) {
		return err
	}
	ids, unreachable := m.withSource(ctx, ids)
	return errors.Join(m.lead(ctx, ids), unreachable)
}

// withSource returns the partitions whose source answers. The others stay with the real broker that leads them: it serves
// consumers in every way, which we could not do without the source's epochs, and the lock keeps them from being written.
func (m *Manager) withSource(ctx context.Context, ids []protocol.PartitionID) ([]protocol.PartitionID, error) {
	byMirror := map[string][]protocol.PartitionID{}
	for _, id := range ids {
		if mirror, ok := m.mirrorOfTopic(id.Topic); ok {
			byMirror[mirror] = append(byMirror[mirror], id)
		}
	}
	var (
		mu    sync.Mutex
		pings sync.WaitGroup
		out   []protocol.PartitionID
		errs  []error
	)
	for name, of := range byMirror { // all at once: dead sources take their time, and others must not wait for it
		pings.Go(func() {
			err := m.cfg.PingSource(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				out = append(out, of...)
				return
			}
			errs = append(errs, fmt.Errorf("the source of mirror %s does not answer, its topics stay with real brokers meanwhile: %w", name, err))
		})
	}
	pings.Wait()
	return out, errors.Join(errs...)
}

// pingSource asks a mirror's source for its brokers.
func (m *Manager) pingSource(ctx context.Context, name string) error {
	def, err := m.definition(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	_, err = m.sources.clusterOf(ctx, name, def.Config)
	return err
}

// lead does what takeLead says for partitions whose source answers. A partition that fails a step takes no part in the
// next one, and holds nobody else up.
func (m *Manager) lead(ctx context.Context, ids []protocol.PartitionID) error {
	img := m.cfg.Destination.Image()
	lists, cancelled := map[protocol.TopicPartition][]int32{}, map[protocol.PartitionID][]int32{}
	join := map[int32][]protocol.PartitionID{}
	elect := map[protocol.TopicPartition]protocol.PartitionID{}
	for _, id := range ids {
		ip, t := img.Partition(id), img.Topics[id.Topic]
		if ip == nil || m.cfg.Destination.Owns(ip.Leader) {
			continue
		}
		tp := protocol.TopicPartition{Topic: t.Name, Partition: id.Partition}
		if want := m.leadingList(id, ip); !slices.Equal(targets(ip), want) {
			lists[tp] = want
			if len(ip.Adding)+len(ip.Removing) > 0 {
				cancelled[id] = targets(ip)
			}
		}
		elect[tp] = id
	}
	var errs []error
	if len(lists) > 0 {
		m.log.Info("taking our place in replica lists", "partitions", len(lists))
		failed := m.reassignToLead(ctx, lists)
		errs = append(errs, joinErrors("reassign", failed))
		dropFailed(elect, failed)
		m.fault("listed")
	}
	for _, id := range elect {
		if ip := img.Partition(id); ip.Leader >= 0 && !slices.Contains(ip.ISR, m.leadingList(id, ip)[0]) {
			first := m.leadingList(id, ip)[0]
			join[first] = append(join[first], id)
		}
	}
	// Fetching goes on until leadership is ours; those that can't join leave time for awaiting the others.
	joining, cancel := context.WithTimeout(ctx, taskLimit/2)
	defer cancel()
	asked, over := slices.Collect(maps.Values(elect)), m.takeoverEnds(cancelled)
	var watch sync.WaitGroup
	ended := false
	watch.Go(func() {
		if ended = m.await(joining, asked, "leadership", over) == nil; ended {
			cancel() // nothing is left to be fetched for
		}
	})
	err := m.joinAndElect(joining, join, elect)
	cancel()
	watch.Wait()
	if !ended { // else what was cut short is no failure, and would hide those that are
		errs = append(errs, err, m.await(ctx, slices.Collect(maps.Values(elect)), "leadership", over))
	}
	return errors.Join(errs...)
}

// takeoverEnds tells of partitions that we are taking whether that is over: we lead, or another process has set its own list over ours. Two that
// begin in the same moment don't know of each other yet; the one whose list is gone would wait for nothing, and hold the partition.
// cancelled are lists that were not reached before ours was set: an image that lags shows them, and then that they are gone, by our own doing.
func (m *Manager) takeoverEnds(cancelled map[protocol.PartitionID][]int32) func(protocol.PartitionID, *kraft.Partition) bool {
	headed := map[protocol.PartitionID]bool{}
	return func(id protocol.PartitionID, ip *kraft.Partition) bool {
		to := targets(ip)
		ours := len(to) > 0 && m.cfg.Destination.Owns(to[0])
		if ours && !slices.Equal(to, cancelled[id]) {
			headed[id] = true
		}
		return m.cfg.Destination.Owns(ip.Leader) || headed[id] && !ours
	}
}

// reassignToLead sets replica lists with which we are to lead. Where another process does not open its ids for them (it may stand still, or not
// hear its controller, and not be held dead yet) we go on without it: a standby comes later, leadership must not wait for one.
func (m *Manager) reassignToLead(ctx context.Context, lists map[protocol.TopicPartition][]int32) map[protocol.TopicPartition]error {
	failed := m.cfg.Destination.Reassign(ctx, lists)
	alone := map[protocol.TopicPartition][]int32{}
	for tp, err := range failed {
		if errors.Is(err, broker.ErrPeer) {
			alone[tp] = slices.DeleteFunc(slices.Clone(lists[tp]), func(id int32) bool { return m.guest(id) && !m.cfg.Destination.Owns(id) })
		}
	}
	if len(alone) > 0 {
		m.log.Warn("taking our place without a standby, which does not answer", "partitions", len(alone))
		maps.Copy(failed, m.cfg.Destination.Reassign(ctx, alone))
	}
	return failed
}

// joinAndElect brings our ids into ISRs and elects each as soon as it is in: between the two a locked partition meets its min ISR
// while nothing fits, which transaction coordinators take for hopeless. What failed is taken out of elect.
func (m *Manager) joinAndElect(ctx context.Context, join map[int32][]protocol.PartitionID,
	elect map[protocol.TopicPartition]protocol.PartitionID) error {
	joined := make(chan map[protocol.PartitionID]error, 1)
	go func() { joined <- m.joinAll(ctx, join) }()
	var errs []error
	asked := map[protocol.TopicPartition]bool{}
	electReady := func() {
		img := m.cfg.Destination.Image()
		var ready []protocol.TopicPartition
		for tp, id := range elect {
			if ip := img.Partition(id); ip != nil && !asked[tp] && slices.Contains(ip.ISR, m.leadingList(id, ip)[0]) {
				ready, asked[tp] = append(ready, tp), true
			}
		}
		if len(ready) > 0 {
			m.fault("joined")
			failed := m.cfg.Destination.ElectPreferred(ctx, ready)
			errs = append(errs, joinErrors("elect", failed))
			dropFailed(elect, failed)
		}
	}
	for {
		changed := m.cfg.Destination.Changed()
		electReady()
		select {
		case failed := <-joined:
			electReady()
			errs = append(errs, joinErrors("join ISR of", failed))
			maps.DeleteFunc(elect, func(_ protocol.TopicPartition, id protocol.PartitionID) bool { return failed[id] != nil })
			return errors.Join(errs...)
		case <-changed:
		}
	}
}

// dropFailed takes partitions that had an error out of a set.
func dropFailed(set map[protocol.TopicPartition]protocol.PartitionID, failed map[protocol.TopicPartition]error) {
	maps.DeleteFunc(set, func(tp protocol.TopicPartition, _ protocol.PartitionID) bool { return failed[tp] != nil })
}

// joinAll brings our node ids into the ISRs of partitions, all at once, and returns what failed.
func (m *Manager) joinAll(ctx context.Context, join map[int32][]protocol.PartitionID) map[protocol.PartitionID]error {
	var (
		mu  sync.Mutex
		wg  sync.WaitGroup
		all = map[protocol.PartitionID]error{}
	)
	for node, parts := range join {
		wg.Go(func() {
			errs := m.cfg.Destination.JoinISR(ctx, node, parts)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(all, errs)
		})
	}
	wg.Wait()
	return all
}

// await blocks until ok holds for every partition in the image; partitions that are gone count as done.
func (m *Manager) await(ctx context.Context, ids []protocol.PartitionID, what string, ok func(protocol.PartitionID, *kraft.Partition) bool) error {
	left := 0
	if err := m.awaitImage(ctx, func(img *kraft.Image) bool {
		left = 0
		for _, id := range ids {
			if ip := img.Partition(id); ip != nil && !ok(id, ip) {
				left++
			}
		}
		return left == 0
	}); err != nil {
		return fmt.Errorf("%s of %d partitions not seen in the metadata log: %w", what, left, err)
	}
	return nil
}

// awaitImage waits until seen is content with the image. The error is ctx's.
func (m *Manager) awaitImage(ctx context.Context, seen func(*kraft.Image) bool) error {
	for {
		changed := m.cfg.Destination.Changed()
		if seen(m.cfg.Destination.Image()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// bumpTask, dropTask and lockTask name tasks in the log and in descriptions.
const (
	bumpTask = "raise leader epochs"
	dropTask = "drop replicas out of sync"
)

func lockTask(topic string) string { return "lock " + topic }

// bumpEpochs raises leader epochs by one at a time: another of our ids goes to the head of the list and is elected. It returns when
// all are at their minimum, or when nothing more can be done now, which is an error; the next round asks again.
func (m *Manager) bumpEpochs(ctx context.Context, ids []protocol.PartitionID, minimum map[protocol.PartitionID]int32) error {
	var errs []error
	var alone []protocol.PartitionID          // with nobody of ours to lead instead
	gaveUp := map[protocol.PartitionID]bool{} // until the next call; the others go on
	for ctx.Err() == nil {
		img := m.cfg.Destination.Image()
		lists, at := map[protocol.TopicPartition][]int32{}, map[protocol.PartitionID]int32{}
		elect := map[protocol.TopicPartition]protocol.PartitionID{}
		for _, id := range ids {
			ip := img.Partition(id)
			if ip == nil || ip.LeaderEpoch >= minimum[id] || gaveUp[id] {
				continue
			}
			next, ok := m.flip(ip)
			if !ok {
				alone, gaveUp[id] = append(alone, id), true
				continue
			}
			tp := nameOf(img, id)
			lists[tp], at[id], elect[tp] = next, ip.LeaderEpoch, id
		}
		if len(lists) == 0 {
			if len(alone) > 0 {
				errs = append(errs, fmt.Errorf("%d partitions need a higher leader epoch, and no other node id of ours is in sync to lead them "+
					"(or a reassignment is under way): see whether all node ids are registered and unfenced", len(alone)))
			}
			return errors.Join(errs...)
		}
		failed := m.cfg.Destination.Reassign(ctx, lists)
		errs = append(errs, joinErrors("reorder", failed))
		dropFailed(elect, failed)
		m.fault("reordered")
		if len(elect) > 0 {
			failed = m.cfg.Destination.ElectPreferred(ctx, slices.Collect(maps.Keys(elect)))
			errs = append(errs, joinErrors("elect", failed))
			dropFailed(elect, failed)
		}
		if err := m.pace(ctx, at, minimum); err != nil {
			return errors.Join(append(errs, err)...)
		}
		moved := slices.Collect(maps.Values(elect))
		for id := range at {
			gaveUp[id] = !slices.Contains(moved, id)
		}
		if err := m.await(ctx, moved, "a higher leader epoch", func(id protocol.PartitionID, ip *kraft.Partition) bool {
			return ip.LeaderEpoch > at[id]
		}); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// pace slows large gaps down, so that the controller of a busy cluster is not flooded by the two metadata records of each step:
// gaps beyond what is usual go at stepsPerSecond over all partitions.
func (m *Manager) pace(ctx context.Context, at, minimum map[protocol.PartitionID]int32) error {
	far, most := 0, int32(0)
	for id, epoch := range at {
		if gap := minimum[id] - epoch; gap > statemachine.EpochIncrement {
			far, most = far+1, max(most, gap)
		}
	}
	if far == 0 {
		return nil
	}
	if most%100 == 0 {
		m.log.Warn("raising leader epochs over a large gap", "partitions", far, "steps_left", most)
	}
	t := time.NewTimer(time.Second * time.Duration(far) / stepsPerSecond)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// flip returns the replica list that moves leadership from our leading id to another of ours that is in sync. It is not
// possible while a reassignment is under way, which a new one would cancel.
func (m *Manager) flip(ip *kraft.Partition) ([]int32, bool) {
	if !m.cfg.Destination.Owns(ip.Leader) || len(ip.Adding) > 0 || len(ip.Removing) > 0 {
		return nil, false
	}
	for _, id := range m.own(ip.Replicas) {
		if id != ip.Leader && slices.Contains(ip.ISR, id) {
			rest := slices.DeleteFunc(slices.Clone(ip.Replicas), func(o int32) bool { return o == id })
			return append([]int32{id}, rest...), true
		}
	}
	return nil, false
}

// tend watches over a partition that mirrors: what others changed is noticed, our ids and real replicas that are missing come
// back.
func (m *Manager) tend(r *round, p *part, ip *kraft.Partition) {
	switch p.machine.State {
	case statemachine.Stopping:
		p.led, p.ours = false, false // leadership comes and goes by our own doing
		return
	case statemachine.Stopped:
		p.led, p.ours = false, false
		m.tendStopped(r, p, ip)
		return
	}
	led, ours := m.cfg.Destination.Owns(ip.Leader), len(m.own(ip.Replicas)) == len(m.cfg.NodeIDs)
	if m.busy[p.id] == "" { // else our ids may be gone for a moment: a reassignment that did not end is cancelled before it is made anew
		m.foreignSeen(r, p, ip, led, ours)
		p.led, p.ours = led, ours
	}
	if p.machine.State != statemachine.Mirroring || !led || m.yields(r, p, ip) {
		return
	}
	if len(ip.Adding)+len(ip.Removing) > 0 {
		if p.stale(ip, r.now) {
			r.regrow = append(r.regrow, p.id)
		}
		return
	}
	p.complete = time.Time{}
	if !slices.Equal(ip.Replicas, m.leadingList(p.id, ip)) || len(m.missing(r.img, p, ip)) > 0 {
		r.regrow = append(r.regrow, p.id)
	}
	if p.id.Partition == 0 && m.lockOutgrown(r.img, p.topic) {
		r.lock[p.id.Topic] = p.topic
	}
}

// foreignSeen counts what others took from a partition: leadership, or our places.
func (m *Manager) foreignSeen(r *round, p *part, ip *kraft.Partition, led, ours bool) {
	// Who is fenced, for want of heartbeats that came through, loses its place in the ISR with the leadership, or keeps it where nobody else is
	// in it, and then nobody leads: nobody took that away.
	deposed := p.led && !led && ip.Leader >= 0 && !m.guest(ip.Leader) && len(m.own(ip.ISR)) > 0
	if m.cfg.Destination.Ready() == nil && (deposed || p.ours && !ours && !m.taken(ip)) {
		m.log.Warn("others changed a mirror partition; it is being repaired", "topic", p.topic.Name, "partition", p.id.Partition,
			"leader", ip.Leader, "replicas", ip.Replicas)
		m.cfg.OnForeign()
		m.contested(r, p)
	}
}

// stale reports whether a reassignment has had all that it waits for, and has not ended: one that crossed with another may stay so for
// good, until it is cancelled (fact 13 of docs/kafka-facts.md).
func (p *part) stale(ip *kraft.Partition, now time.Time) bool {
	for _, id := range targets(ip) {
		if !slices.Contains(ip.ISR, id) {
			p.complete = time.Time{}
			return false
		}
	}
	if p.complete.IsZero() {
		p.complete = now
	}
	return now.Sub(p.complete) > staleAfter
}

// contested gives a partition up that others take away again and again: somebody manages it, and a fight helps nobody. The lock
// stays on.
func (m *Manager) contested(r *round, p *part) {
	p.foreign = slices.DeleteFunc(append(p.foreign, r.now), func(t time.Time) bool { return r.now.Sub(t) > foreignWithin })
	if len(p.foreign) < foreignLimit || p.machine.State == statemachine.Failed {
		return
	}
	p.foreign = nil
	m.step(r, p, statemachine.Fail{Final: true,
		Reason: fmt.Sprintf("others took leadership or replicas away %d times within %s", foreignLimit, foreignWithin),
		Hint:   "find who manages this topic (a balancer, an operator, a script), exclude it there, and start it again"})
}

// dropLaggards takes real replicas out of sync off the replica lists: an old suffix of theirs could carry the source's
// epoch numbers with other data, and nobody would notice (B5 of the review of Kafka's internals).
func (m *Manager) dropLaggards(ctx context.Context, ids []protocol.PartitionID) error {
	img := m.cfg.Destination.Image()
	lists := map[protocol.TopicPartition][]int32{}
	var waiting error
	for _, id := range ids {
		ip := img.Partition(id)
		if ip == nil {
			continue
		}
		if len(m.real(ip.ISR)) == 0 {
			waiting = fmt.Errorf("no real replica of partition %d of %s is in sync: one has to come back first", id.Partition, img.Topics[id.Topic].Name)
			continue
		}
		out := m.outOfSync(ip)
		keep := slices.DeleteFunc(slices.Clone(ip.Replicas), func(b int32) bool { return slices.Contains(out, b) })
		lists[nameOf(img, id)] = keep
	}
	return errors.Join(joinErrors("drop replicas of", m.cfg.Destination.Reassign(ctx, lists)), waiting)
}
