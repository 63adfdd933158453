package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/records"
)

// Tasks of a stop, by their names in the log and in descriptions.
const (
	drainTask    = "ask whether sources rest"
	settleTask   = "compare log ends of real replicas"
	retakeTask   = "take leadership back"
	releaseTask  = "let the longest replica lead"
	tailTask     = "list producer ids"
	handOverTask = "hand over"
	regrowTask   = "add replicas of a topic handed over"
)

func unlockTask(topic string) string { return "unlock " + topic }

// stopWork is what the manager holds of a partition that stops, besides the machine.
type stopWork struct {
	// settledAt is the leader epoch of a real leader under which all in-sync replicas were seen to end alike, -1 for none. Under the
	// lock nothing is appended, so it holds until the next leader.
	settledAt int32
	// settledEpoch is the epoch of the last record then, -1 while unknown: a replica that led has the epoch of that too, without a
	// record of it.
	settledEpoch int32
	// end and epoch are where the frozen log ends, lme is the last mirrored epoch, once marked.
	end        int64
	epoch, lme int32
	// tail is made of the producer ids that replicas know; nil until they were asked.
	tail *replica.Tail
}

// mark takes down where a frozen log ends. A stop before the log was aligned must not claim more in common with the source than
// the alignment would have left: what lies above is the destination's own.
func (p *part) mark(st replica.Status) {
	p.work.end, p.work.epoch, p.work.lme = st.LogEnd, st.LastEpoch, st.LastEpoch
	if last := p.work.settledEpoch; last >= 0 && last < p.work.epoch {
		p.work.epoch, p.work.lme = last, min(p.work.lme, last)
	}
	if !p.machine.Aligned {
		p.work.lme = min(p.work.lme, alignEpoch(p.topic, p.id.Partition))
	}
	if st.RolledBack {
		p.work.lme = coordinator.ForgetEpoch // a source set back has other records under that epoch: they have nothing in common
	}
}

// settle compares the log ends of the in-sync replicas of partitions that real brokers lead under the lock.
func (m *Manager) settle(ctx context.Context, ids []protocol.PartitionID) error {
	img := m.cfg.Destination.Image()
	ends, err := m.cfg.LogEnds(ctx, ids)
	epochs, lastErr := m.cfg.LastEpochs(ctx, ids)
	err = errors.Join(err, lastErr)
	var waiting error
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		p, ip := m.parts[id], img.Partition(id)
		if p == nil || ip == nil || ip.Leader < 0 || m.guest(ip.Leader) {
			continue
		}
		if last, ok := epochs[id]; ok && alike(ends[id], m.real(ip.ISR)) {
			p.work.settledAt, p.work.settledEpoch = ip.LeaderEpoch, last
			continue
		}
		waiting = fmt.Errorf("in-sync replicas of %s-%d end at %v: they copy from broker %d first", p.topic.Name, id.Partition, ends[id], ip.Leader)
	}
	return errors.Join(err, waiting)
}

// alike reports whether the ends of all the brokers are known and the same.
func alike(ends map[int32]int64, brokers []int32) bool {
	if len(brokers) == 0 {
		return false
	}
	for _, b := range brokers {
		if end, ok := ends[b]; !ok || end != ends[brokers[0]] {
			return false
		}
	}
	return true
}

// release lets the longest in-sync real replica lead under the lock: the others lack records that nobody else can give them.
func (m *Manager) release(ctx context.Context, ids []protocol.PartitionID) error {
	img, statuses := m.cfg.Destination.Image(), m.cfg.Data.Statuses()
	lists, elect := map[protocol.TopicPartition][]int32{}, map[protocol.TopicPartition]protocol.PartitionID{}
	for _, id := range ids {
		ip, st := img.Partition(id), statuses[id]
		if ip == nil || !m.cfg.Destination.Owns(ip.Leader) {
			continue
		}
		longest, end := int32(-1), int64(-1)
		for _, b := range m.real(ip.ISR) {
			if f := st.Followers[b]; f.FetchOffset > end {
				longest, end = b, f.FetchOffset
			}
		}
		if longest < 0 {
			continue
		}
		tp := nameOf(img, id)
		rest := slices.DeleteFunc(slices.Clone(targets(ip)), func(b int32) bool { return b == longest })
		lists[tp], elect[tp] = append([]int32{longest}, rest...), id
	}
	failed := m.cfg.Destination.Reassign(ctx, lists)
	errs := []error{joinErrors("reorder", failed)}
	dropFailed(elect, failed)
	if len(elect) > 0 {
		errs = append(errs, joinErrors("elect", m.cfg.Destination.ElectPreferred(ctx, slices.Collect(maps.Keys(elect)))))
	}
	return errors.Join(errs...)
}

// makeTails makes what ends each log of the producer ids that its replicas know.
func (m *Manager) makeTails(ctx context.Context, ids []protocol.PartitionID) error {
	known, err := m.cfg.ProducerIDs(ctx, ids)
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, producers := range known {
		if p := m.parts[id]; p != nil {
			slices.Sort(producers)
			p.work.tail = newTail(p.work.end, slices.Compact(producers), m.sourceCluster(p.topic.Mirror), time.Now())
		}
	}
	return err
}

// sourceCluster is the id of a mirror's source cluster, empty when the mirror is not known.
func (m *Manager) sourceCluster(mirror string) string {
	def, _ := m.cfg.Store.Mirror(mirror)
	return def.SourceClusterID
}

// newTail makes what ends a mirrored log at an offset: an ABORT marker for each producer id, then KIP-1279's MIRROR_PID_RESET.
//
// A marker closes the id's transaction where one is open. Its producer epoch of -1 makes brokers forget epoch and sequences, so that
// a producer of the destination that happens to have the same id is neither taken for an old one nor refused; its coordinator
// epoch of 0 leaves that of the destination's own coordinator in force (fact 44 of docs/kafka-facts.md).
func newTail(end int64, ids []int64, sourceCluster string, now time.Time) *replica.Tail {
	t := &replica.Tail{End: end}
	add := func(c records.Control) {
		c.BaseOffset, c.Timestamp = t.End, now.UnixMilli()
		t.Batches = records.AppendControl(t.Batches, c)
		t.End++
	}
	for _, id := range ids {
		add(records.Control{ProducerID: id, ProducerEpoch: -1, Type: records.ControlAbort, Transactional: true, Value: records.EndTxnValue(0)})
	}
	add(records.Control{ProducerID: -1, ProducerEpoch: -1, Type: records.ControlMirrorPidReset, Value: records.PidResetValue(sourceCluster)})
	return t
}

// unlockTopic gives a topic its own configs back. While our ids lead, or real brokers with nothing in the ELR, both halves go at
// once. With eligible leader replicas min.insync.replicas must not change (fact 12 of docs/kafka-facts.md): then the size half goes
// first, and handing over to the in-sync replicas has the controller clear them.
func (m *Manager) unlockTopic(ctx context.Context, t coordinator.Topic) error {
	img := m.cfg.Destination.Image()
	it := img.Topics[t.TopicID]
	if it == nil {
		return fmt.Errorf("topic %s is gone", t.Name)
	}
	if free(img, t) {
		return nil // the round that asked had looked before
	}
	ids := make([]protocol.PartitionID, len(it.Partitions))
	for i := range ids {
		ids[i] = protocol.PartitionID{Topic: t.TopicID, Partition: int32(i)}
	}
	if slices.ContainsFunc(it.Partitions, func(p *kraft.Partition) bool { return len(p.ELR) > 0 }) {
		if err := m.trueValues(ctx, t, sizeConfig); err != nil {
			return err
		}
		m.fault("size unlocked")
		if err := m.handOver(ctx, ids); err != nil {
			return err
		}
		if err := m.clearELR(ctx, ids); err != nil {
			return err
		}
	}
	if err := m.trueValues(ctx, t, sizeConfig, minISRConfig); err != nil {
		return err
	}
	return m.await(ctx, ids, "an end of the lock", func(protocol.PartitionID, *kraft.Partition) bool {
		return free(m.cfg.Destination.Image(), t)
	})
}

// clearELR has the controller clear the eligible leader replicas of partitions that were handed over: it judges by the list before a
// change, so the hand-over itself leaves them, and takes another change (fact 28 of docs/kafka-facts.md). Another order is one; a
// single replica gets a second one for a moment.
func (m *Manager) clearELR(ctx context.Context, ids []protocol.PartitionID) error {
	img := m.cfg.Destination.Image()
	lists, before := map[protocol.TopicPartition][]int32{}, map[protocol.TopicPartition][]int32{}
	for _, id := range ids {
		ip := img.Partition(id)
		if ip == nil || len(ip.ELR) == 0 {
			continue
		}
		tp, list := nameOf(img, id), slices.Clone(ip.Replicas)
		before[tp] = ip.Replicas
		if n := len(list); n > 1 {
			list[n-1], list[n-2] = list[n-2], list[n-1]
		} else if other := slices.DeleteFunc(m.placeable(img), func(b int32) bool { return slices.Contains(list, b) }); len(other) > 0 {
			list = append(list, other[0])
		}
		lists[tp] = list
	}
	if err := joinErrors("reorder", m.cfg.Destination.Reassign(ctx, lists)); err != nil {
		return err
	}
	if err := m.await(ctx, ids, "an end of eligible leader replicas", func(_ protocol.PartitionID, ip *kraft.Partition) bool {
		return len(ip.ELR) == 0
	}); err != nil {
		return err
	}
	maps.DeleteFunc(before, func(tp protocol.TopicPartition, list []int32) bool { return len(list) > 1 })
	return joinErrors("take back a second replica of", m.cfg.Destination.Reassign(ctx, before))
}

// trueValues sets configs of a topic to what they are without the lock.
func (m *Manager) trueValues(ctx context.Context, t coordinator.Topic, keys ...string) error {
	set := map[string]string{}
	var remove []string
	for _, k := range keys {
		if v, ok := t.TrueConfigs[k]; ok {
			set[k] = v
		} else {
			remove = append(remove, k)
		}
	}
	return m.cfg.Destination.SetTopicConfigs(ctx, t.Name, set, remove)
}

// free reports whether neither half of the lock is on.
func free(img *kraft.Image, t coordinator.Topic) bool {
	for _, k := range []string{sizeConfig, minISRConfig} {
		now, is := img.TopicConfig(t.Name, k)
		want, should := t.TrueConfigs[k]
		if is != should || now != want {
			return false
		}
	}
	return true
}

// handOver gives partitions to their in-sync real replicas and takes our ids out of the lists. Replicas that are not in sync are
// left out: a reassignment ends only when every target is in sync (fact 13 of docs/kafka-facts.md).
func (m *Manager) handOver(ctx context.Context, ids []protocol.PartitionID) error {
	img := m.cfg.Destination.Image()
	lists, moved := map[protocol.TopicPartition][]int32{}, []protocol.PartitionID{}
	var waiting error
	for _, id := range ids {
		ip := img.Partition(id)
		if ip == nil || m.handedOver(ip) {
			continue
		}
		to := m.real(slices.DeleteFunc(slices.Clone(ip.Replicas), func(b int32) bool { return !slices.Contains(ip.ISR, b) }))
		if len(to) == 0 {
			waiting = fmt.Errorf("no real replica of %s-%d is in sync: one has to come back first", img.Topics[id.Topic].Name, id.Partition)
			continue
		}
		lists[nameOf(img, id)] = to
		moved = append(moved, id)
	}
	failed := m.cfg.Destination.Reassign(ctx, lists)
	if err := errors.Join(joinErrors("hand over", failed), waiting); err != nil {
		return err
	}
	return m.await(ctx, moved, "a hand-over", func(_ protocol.PartitionID, ip *kraft.Partition) bool { return m.handedOver(ip) })
}

// handedOver reports whether no id of kmirror is left in a partition.
func (m *Manager) handedOver(ip *kraft.Partition) bool {
	return !slices.ContainsFunc(ip.Replicas, m.guest) && !m.guest(ip.Leader)
}

// guest reports whether a node id is kmirror's, of this process or another: it holds no log.
func (m *Manager) guest(id int32) bool { return m.cfg.Destination.Guest(id) }
