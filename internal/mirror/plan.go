package mirror

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// logs answers for the logs of a cluster; *kadm.Client.
type logs interface {
	ListStartOffsets(ctx context.Context, topics ...string) (kadm.ListedOffsets, error)
	ListEndOffsets(ctx context.Context, topics ...string) (kadm.ListedOffsets, error)
	OffsetForLeaderEpoch(ctx context.Context, r kadm.OffsetForLeaderEpochRequest) (kadm.OffsetsForLeaderEpochs, error)
}

// extent is where a log begins and ends: the offset of its first record, and the one after its last.
type extent struct{ start, end int64 }

// extents asks where the logs of a topic begin and end. An error of one partition is one of all; those that pass by themselves, such
// as leadership on its way elsewhere, are given some time.
func extents(ctx context.Context, l logs, topic string) (map[int32]extent, error) {
	deadline := time.Now().Add(extentsFor)
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		out, err := extentsNow(ctx, l, topic)
		if err == nil || !kerr.IsRetriable(err) || time.Now().Add(wait).After(deadline) {
			return out, err
		}
		t := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, err
		}
	}
}

// held tells where the logs of a topic of the destination begin and end. For one that kmirror leads without knowing it, since the start that
// created it was cut short before anything was stored, no leader answers; its replicas do, and nothing was ever written to it without them.
func (s *startRun) held(ctx context.Context, it *kraft.Topic, known *coordinator.Topic) (map[int32]extent, error) {
	ours := slices.ContainsFunc(it.Partitions, func(p *kraft.Partition) bool { return s.m.guest(p.Leader) })
	if !ours || known != nil && known.TopicID == it.ID {
		return extents(ctx, s.here, it.Name)
	}
	ids := make([]protocol.PartitionID, len(it.Partitions))
	for n := range ids {
		ids[n] = protocol.PartitionID{Topic: it.ID, Partition: int32(n)}
	}
	ends, err := s.m.cfg.LogEnds(ctx, ids)
	if err != nil {
		return nil, err
	}
	out := map[int32]extent{}
	for n, id := range ids {
		for _, b := range s.m.real(it.Partitions[n].ISR) {
			end, ok := ends[id][b]
			if !ok {
				return nil, fmt.Errorf("broker %d does not tell where its log of %s-%d ends", b, it.Name, n)
			}
			out[int32(n)] = extent{0, max(out[int32(n)].end, end)}
		}
		if _, ok := out[int32(n)]; !ok {
			return nil, fmt.Errorf("no real replica of %s-%d is in sync: one has to come back first", it.Name, n)
		}
	}
	return out, nil
}

// extentsFor bounds the attempts of extents.
const extentsFor = 5 * time.Second

func extentsNow(ctx context.Context, l logs, topic string) (map[int32]extent, error) {
	starts, err := l.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, err
	}
	ends, err := l.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	out := map[int32]extent{}
	ends.Each(func(o kadm.ListedOffset) {
		start, _ := starts.Lookup(topic, o.Partition)
		out[o.Partition] = extent{start.Offset, o.Offset}
	})
	return out, nil
}

// count adds to a plan what a start truncates at the destination and what it copies from the source. held is what the destination
// has; nil for a topic that is to be created.
func (s *startRun) count(ctx context.Context, plan *admin.TopicPlan, t coordinator.Topic, held map[int32]extent) {
	source, err := extents(ctx, s.there, t.Name)
	if err != nil {
		source = nil // what is not known counts as -1
	}
	keep := s.kept(ctx, t, held)
	for p := range t.Partitions {
		have, exists := held[p]
		if held != nil && !exists {
			continue
		}
		pp := admin.PartitionPlan{Partition: p, Lost: -1, Truncated: -1, Copied: -1, Lag: -1}
		if keep[p] >= 0 {
			pp.Truncated = max(0, have.end-max(keep[p], have.start))
			pp.Lost = pp.Truncated
		}
		if from, ok := source[p]; ok {
			pp.Lag = max(0, from.end-max(have.end, from.start))
			if keep[p] >= 0 {
				pp.Copied = max(0, from.end-max(keep[p], from.start))
			}
		}
		plan.Partitions = append(plan.Partitions, pp)
	}
}

// kept returns up to where each log of the destination stays as it is: the end of the last mirrored epoch there or at the source,
// whichever comes first; 0 where nothing is in common, -1 where it is not known.
func (s *startRun) kept(ctx context.Context, t coordinator.Topic, held map[int32]extent) map[int32]int64 {
	out, req := map[int32]int64{}, kadm.OffsetForLeaderEpochRequest{}
	for p := range t.Partitions {
		if epoch := alignEpoch(t, p); epoch >= 0 && held[p].end > 0 {
			out[p] = -1
			req.Add(t.Name, p, epoch)
		}
	}
	if len(req) == 0 {
		return out
	}
	here, err := s.here.OffsetForLeaderEpoch(ctx, req)
	if err != nil {
		return out
	}
	there, err := s.there.OffsetForLeaderEpoch(ctx, req)
	if err != nil {
		return out
	}
	for p, o := range here[t.Name] {
		if other, ok := there[t.Name][p]; ok && o.Err == nil && o.EndOffset >= 0 && other.Err == nil && other.EndOffset >= 0 {
			out[p] = min(o.EndOffset, other.EndOffset, held[p].end)
		}
	}
	return out
}
