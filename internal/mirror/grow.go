package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// missing returns live real brokers to add so that the partition has as many real replicas as the topic was started with.
// Whether a broker's old log is gone is asked of it before it is added.
func (m *Manager) missing(img *kraft.Image, p *part, ip *kraft.Partition) []int32 {
	want := int(p.topic.Replicas) - len(m.real(ip.Replicas))
	if want <= 0 {
		return nil
	}
	var out []int32
	for _, b := range m.placeable(img) {
		if len(out) < want && !slices.Contains(ip.Replicas, b) {
			out = append(out, b)
		}
	}
	return out
}

// addReplicas gives partitions their missing replicas. A broker that was dropped for being out of sync must not come back with
// its old log, whose suffix could carry the source's epochs with other data: it is added only once it holds none.
func (m *Manager) addReplicas(ctx context.Context, ids []protocol.PartitionID) error {
	return m.grow(ctx, ids, m.leadingList)
}

// growBack gives topics that were handed over the replicas that were not in sync then, once their brokers are alive and hold no log
// of an earlier life any more.
func (m *Manager) growBack(ctx context.Context, ids []protocol.PartitionID) error {
	return m.grow(ctx, ids, func(_ protocol.PartitionID, ip *kraft.Partition) []int32 { return slices.Clone(ip.Replicas) })
}

// grow sets replica lists to what list says, each with the real replicas that the partition misses.
func (m *Manager) grow(ctx context.Context, ids []protocol.PartitionID, list func(protocol.PartitionID, *kraft.Partition) []int32) error {
	img := m.cfg.Destination.Image()
	lists, add := map[protocol.TopicPartition][]int32{}, map[protocol.TopicPartition][]int32{}
	m.mu.Lock()
	for _, id := range ids {
		if p, ip := m.parts[id], img.Partition(id); p != nil && ip != nil {
			tp := nameOf(img, id)
			lists[tp], add[tp] = list(id, ip), m.missing(img, p, ip)
		}
	}
	m.mu.Unlock()
	return m.reassignWith(ctx, lists, add)
}

// reassignWith sets replica lists, each with those brokers added that hold no log of the partition.
func (m *Manager) reassignWith(ctx context.Context, lists, add map[protocol.TopicPartition][]int32) error {
	img := m.cfg.Destination.Image()
	var errs []error
	for tp, brokers := range add {
		for _, b := range brokers {
			held, err := m.cfg.HoldsLog(ctx, b, tp)
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("whether broker %d still holds a log of %s: %w", b, tp, err))
			case !held:
				lists[tp] = append(lists[tp], b)
			}
		}
	}
	now, asked := m.cfg.Destination.Image(), map[protocol.PartitionID][]int32{}
	maps.DeleteFunc(lists, func(tp protocol.TopicPartition, want []int32) bool {
		id := protocol.PartitionID{Topic: img.Names[tp.Topic], Partition: tp.Partition}
		was, is := img.Partition(id), now.Partition(id)
		// What changed while brokers were asked is looked at again in the next round.
		if was == nil || is == nil || !slices.Equal(was.Replicas, is.Replicas) || slices.Equal(want, is.Replicas) {
			return true
		}
		asked[id] = want
		return false
	})
	if len(lists) == 0 {
		return errors.Join(errs...)
	}
	failed := m.cfg.Destination.Reassign(ctx, lists)
	maps.DeleteFunc(asked, func(id protocol.PartitionID, _ []int32) bool {
		return failed[nameOf(img, id)] != nil
	})
	// Who goes by the image that was there before would add others, and take those that are being added off again.
	errs = append(errs, joinErrors("add replicas of", failed), m.await(ctx, slices.Collect(maps.Keys(asked)), "new replica lists",
		func(id protocol.PartitionID, ip *kraft.Partition) bool { return slices.Equal(targets(ip), asked[id]) }))
	return errors.Join(errs...)
}

// holdsLog asks a broker whether it has a log of a partition, one that it is about to delete left out.
func (m *Manager) holdsLog(ctx context.Context, broker int32, tp protocol.TopicPartition) (bool, error) {
	cl, err := m.sources.destination()
	if err != nil {
		return false, err
	}
	var set kadm.TopicsSet
	set.Add(tp.Topic, tp.Partition)
	dirs, err := cl.DescribeBrokerLogDirs(ctx, broker, set)
	if err != nil {
		return false, err
	}
	if err := dirs.Error(); err != nil {
		return false, err
	}
	_, held := dirs.LookupPartition(tp.Topic, tp.Partition)
	return held, nil
}
