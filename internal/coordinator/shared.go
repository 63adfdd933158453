package coordinator

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// shared returns this process's part among those that share the topic, nil while it is not loaded.
func (s *Store) shared() *cluster {
	select {
	case <-s.loaded:
		return s.cluster
	default:
		return nil
	}
}

// Members returns the processes that share the topic, sorted by process id: the members of the group, dead ones among them until
// their session ends (6 s), or this process alone before the group has come together. Changed tells of changes.
func (s *Store) Members() []Member {
	if c := s.shared(); c != nil {
		return c.members()
	}
	return []Member{s.cfg.Self}
}

// Others returns the other processes that are members or have claimed a partition, dead ones among them, sorted by process id.
func (s *Store) Others() []Member {
	if c := s.shared(); c != nil {
		return c.others()
	}
	return nil
}

// MetadataOwner returns the metadata coordinator of a mirror: the owner of the partition that its definition lies in. It
// is false before the topic is loaded and while it is not known. Between two owners both may hold themselves for it for a moment.
func (s *Store) MetadataOwner(mirror string) (Member, bool) {
	c := s.shared()
	if c == nil {
		return Member{}, false
	}
	return c.target(kip1279.MirrorPartitionOf(mirror, s.partitions))
}

// WriteStates stores states for another process; those whose partition this one does not own are refused with
// ErrNotCoordinator. Outcomes come in the order of states.
func (s *Store) WriteStates(ctx context.Context, states []PartitionState) []Outcome {
	c := s.shared()
	if c == nil {
		return all(len(states), ErrNotCoordinator)
	}
	for _, st := range states {
		if err := ValidateName(st.Mirror); err != nil {
			return all(len(states), err)
		}
	}
	return c.asked(ctx, c.stateChanges(states))
}

// PassStates has the owners of states store them, and says of each, in their order, what became of it. What moves to another owner
// meanwhile, or is being loaded, is tried again for a while.
func (s *Store) PassStates(ctx context.Context, states []PartitionState) []Outcome {
	c := s.shared()
	if c == nil {
		return all(len(states), ErrLoading)
	}
	for _, st := range states {
		if err := ValidateName(st.Mirror); err != nil {
			return all(len(states), err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, peerLimit)
	defer cancel()
	changes := c.stateChanges(states)
	out := c.round(ctx, changes)
	for back := 20 * time.Millisecond; pause(ctx, back); back = min(2*back, routeMost) {
		var again []int
		for i, o := range out {
			if retriable(o.Err) {
				again = append(again, i)
			}
		}
		if len(again) == 0 {
			break
		}
		fill(out, again, c.round(ctx, pick(changes, again)))
	}
	return out
}

// WriteRecords stores records for another process, as WriteStates does. Records that are not understood are an error for all.
func (s *Store) WriteRecords(ctx context.Context, records []Record) []Outcome {
	c := s.shared()
	if c == nil {
		return all(len(records), ErrNotCoordinator)
	}
	changes, err := c.recordChanges(records)
	if err != nil {
		return all(len(records), err)
	}
	return c.asked(ctx, changes)
}

// OwnStates answers another process with states as this one, their owner, has them, in the order of ids; ErrNotCoordinator for
// those of another owner.
func (s *Store) OwnStates(ctx context.Context, mirror string, ids []protocol.PartitionID) []ReadOutcome {
	out := make([]ReadOutcome, len(ids))
	c := s.shared()
	for i, id := range ids {
		if c == nil {
			out[i].Err = ErrNotCoordinator
			continue
		}
		out[i] = c.readOwn(ctx, kip1279.StatePartitionOf(mirror, id.Topic, id.Partition, s.partitions), mirror, id)
	}
	return out
}

// ReadStates asks the owners for states, in the order of ids. State answers at once with what has been read here, which
// may be older by a moment; who takes a partition over from another process asks the owner.
func (s *Store) ReadStates(ctx context.Context, mirror string, ids []protocol.PartitionID) []ReadOutcome {
	if c := s.shared(); c != nil {
		return c.states(ctx, mirror, ids)
	}
	out := make([]ReadOutcome, len(ids))
	for i, id := range ids {
		st, ok := s.State(id)
		out[i] = ReadOutcome{State: st, Known: ok && st.Mirror == mirror}
	}
	return out
}

// Fresh waits until all has been read here that was stored of a mirror's definition, topics and ACLs before the call. What was read before
// may be old: a process that was stopped (SIGSTOP) goes on with what it knew.
func (s *Store) Fresh(ctx context.Context, mirror string) error {
	if err := s.awaitLoaded(ctx); err != nil {
		return err
	}
	p := kip1279.MirrorPartitionOf(mirror, s.partitions)
	part := kmsg.NewListOffsetsRequestTopicPartition()
	part.Partition, part.Timestamp = p, -1
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic, topic.Partitions = s.cfg.Topic, []kmsg.ListOffsetsRequestTopicPartition{part}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.Topics = -1, []kmsg.ListOffsetsRequestTopic{topic}
	resp, err := req.RequestWith(ctx, s.cluster.client)
	if err != nil {
		return fmt.Errorf("where partition %d of %s ends: %w", p, s.cfg.Topic, err)
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return fmt.Errorf("where partition %d of %s ends: no answer", p, s.cfg.Topic)
	}
	end := resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(end.ErrorCode); err != nil {
		return fmt.Errorf("where partition %d of %s ends: %w", p, s.cfg.Topic, err)
	}
	// The last record is always there: cleaners leave the segment alone that is written to.
	if err := s.cluster.reached(ctx, p, end.Offset-1); err != nil {
		return fmt.Errorf("partition %d of %s is not read up to %d: %w", p, s.cfg.Topic, end.Offset, err)
	}
	return nil
}
