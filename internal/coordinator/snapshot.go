package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/protocol"
)

// ErrNoState: the cluster has no state topic, so it never was the destination of a kmirror.
var ErrNoState = errors.New("there is no state topic")

// Snapshot is what the state topic of another cluster held when it was read. Like a Store's, what its methods return is
// shared and must not be changed.
type Snapshot struct{ table *table }

// Mirrors returns all definitions, sorted by name.
func (s *Snapshot) Mirrors() []Mirror { return s.table.mirrorList() }

// Topics returns all topics, sorted by name.
func (s *Snapshot) Topics() []Topic { return s.table.topicList() }

// State returns the state of a partition by that cluster's topic id, as Store.State does.
func (s *Snapshot) State(id protocol.PartitionID) (PartitionState, bool) { return s.table.state(id) }

// ReadSnapshot reads the whole state topic (empty: DefaultTopic) of the cluster that opts lead to, as an ordinary consumer
// without a group, and nothing that is not committed. It needs DESCRIBE and READ on the topic. Where the topic does not exist the
// error is ErrNoState. It goes on trying while brokers are away, until ctx ends.
func ReadSnapshot(ctx context.Context, opts []kgo.Opt, topic string) (*Snapshot, error) {
	if topic == "" {
		topic = DefaultTopic
	}
	s, err := readSnapshot(ctx, opts, topic)
	if err == nil || errors.Is(err, ErrNoState) {
		return s, err
	}
	if errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) {
		err = fmt.Errorf("%w: grant DESCRIBE and READ on topic %s there to the principal that kmirror has at that cluster", err, topic)
	}
	return nil, fmt.Errorf("read %s of another cluster: %w", topic, err)
}

func readSnapshot(ctx context.Context, opts []kgo.Opt, topic string) (*Snapshot, error) {
	cl, err := kgo.NewClient(append(slices.Clone(opts), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), kgo.MetadataMinAge(freshness))...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	from, goal, err := span(ctx, kadm.NewClient(cl), topic)
	if err != nil {
		return nil, err
	}
	cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	out := &Snapshot{newTable(slog.New(slog.DiscardHandler))}
	for len(goal) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%d partitions are not read to their end: %w", len(goal), err)
		}
		if err := fatal(fetches); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				out.table.apply(r.Key, r.Value, r.Offset)
			}
			if end, ok := goal[r.Partition]; ok && r.Offset+1 >= end {
				delete(goal, r.Partition)
			}
		})
	}
	return out, nil
}

// fatal returns what keeps a partition from being read for good.
func fatal(fetches kgo.Fetches) error {
	for _, e := range fetches.Errors() {
		if errors.Is(e.Err, kerr.UnknownTopicOrPartition) || errors.Is(e.Err, kerr.UnknownTopicID) {
			return ErrNoState // deleted while it was read
		}
		if !kerr.IsRetriable(e.Err) {
			return e.Err
		}
	}
	return nil
}

// span returns, for each partition that has records, where they begin and where the last committed one ends.
func span(ctx context.Context, adm *kadm.Client, topic string) (map[int32]kgo.Offset, map[int32]int64, error) {
	meta, err := adm.Metadata(ctx, topic)
	if err != nil {
		return nil, nil, err
	}
	switch err := meta.Topics[topic].Err; {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return nil, nil, ErrNoState
	case err != nil:
		return nil, nil, err
	}
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, nil, err
	}
	ends, err := adm.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, nil, err
	}
	from, goal := map[int32]kgo.Offset{}, map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if start, ok := starts.Lookup(o.Topic, o.Partition); ok && start.Offset < o.Offset {
			from[o.Partition], goal[o.Partition] = kgo.NewOffset().At(start.Offset), o.Offset
		}
	})
	return from, goal, nil
}
