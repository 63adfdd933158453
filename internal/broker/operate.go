package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// operatorTimeout bounds one try of a request that the controller may take its time for.
const operatorTimeout = 15 * time.Second

// NewTopic is a topic with its replica assignment: Assignment[p] are the replicas of partition p, the preferred leader
// first.
type NewTopic struct {
	Name       string
	Assignment [][]int32
	Configs    map[string]string
}

// CreateTopic creates a topic and returns its id. Where the assignment names ids of ours, the cordon is lifted meanwhile.
// A topic of that name that exists already is kerr.TopicAlreadyExists, unless it is the one that an earlier try of this
// very call has made.
func (b *Broker) CreateTopic(ctx context.Context, t NewTopic) (protocol.UUID, error) {
	release, err := b.cordon.lift(ctx, slices.Concat(t.Assignment...))
	if err != nil {
		return protocol.UUID{}, err
	}
	defer release()
	before := b.Image().Offset
	kr, repeated, err := b.ctl.insist(ctx, operatorTimeout, func() kmsg.Request { return createTopics(t) })
	if err != nil {
		return protocol.UUID{}, err
	}
	resp := kr.(*kmsg.CreateTopicsResponse)
	if len(resp.Topics) != 1 {
		return protocol.UUID{}, fmt.Errorf("create topic %s: the answer holds %d topics", t.Name, len(resp.Topics))
	}
	r := resp.Topics[0]
	err = codeError(r.ErrorCode, r.ErrorMessage)
	if repeated && r.ErrorCode == kerr.TopicAlreadyExists.Code {
		if id, ok := b.createdByUs(ctx, t, before); ok {
			return id, nil
		}
	}
	if err != nil {
		return protocol.UUID{}, fmt.Errorf("create topic %s: %w", t.Name, err)
	}
	return r.TopicID, nil
}

// createdByUs looks at a topic that turned out to exist after a try without an answer: it is ours when it was not there
// before and is placed as asked.
func (b *Broker) createdByUs(ctx context.Context, t NewTopic, before int64) (protocol.UUID, bool) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if b.awaitImage(ctx, func(i *kraft.Image) bool { return i.Offset > before && i.TopicByName(t.Name) != nil }) != nil {
		return protocol.UUID{}, false
	}
	it := b.Image().TopicByName(t.Name)
	if it == nil || len(it.Partitions) != len(t.Assignment) {
		return protocol.UUID{}, false
	}
	for i, p := range it.Partitions {
		if !slices.Equal(p.Replicas, t.Assignment[i]) {
			return protocol.UUID{}, false
		}
	}
	return it.ID, true
}

func createTopics(t NewTopic) *kmsg.CreateTopicsRequest {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = int32(operatorTimeout.Milliseconds())
	x := kmsg.NewCreateTopicsRequestTopic()
	x.Topic, x.NumPartitions, x.ReplicationFactor = t.Name, -1, -1
	for i, replicas := range t.Assignment {
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition, a.Replicas = int32(i), replicas
		x.ReplicaAssignment = append(x.ReplicaAssignment, a)
	}
	for _, k := range slices.Sorted(maps.Keys(t.Configs)) {
		v := t.Configs[k]
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = k, &v
		x.Configs = append(x.Configs, c)
	}
	req.Topics = append(req.Topics, x)
	return req
}

// Reassign sets the replica lists of partitions, many in one request. A reassignment of the same partition that has not
// ended is cancelled first: it would neither complete nor be cleared by the new one. Where a list names ids of ours the
// cordon is lifted meanwhile. The result has an entry for every partition, nil where the controller accepted; that the
// reassignment is complete shows in the image.
func (b *Broker) Reassign(ctx context.Context, lists map[protocol.TopicPartition][]int32) map[protocol.TopicPartition]error {
	if len(lists) == 0 {
		return nil
	}
	release, err := b.cordon.lift(ctx, slices.Concat(slices.Collect(maps.Values(lists))...))
	if err != nil {
		return allFailed(maps.Keys(lists), err)
	}
	defer release()
	var unfinished []protocol.TopicPartition
	img := b.Image()
	for tp := range lists {
		if p := partitionOf(img, tp); p != nil && len(p.Adding)+len(p.Removing) > 0 {
			unfinished = append(unfinished, tp)
		}
	}
	out := b.CancelReassign(ctx, unfinished)
	if out == nil {
		out = map[protocol.TopicPartition]error{}
	}
	left := map[protocol.TopicPartition][]int32{}
	for tp, l := range lists {
		if out[tp] == nil {
			left[tp] = l
		}
	}
	maps.Copy(out, b.alterAssignments(ctx, left))
	return out
}

// CancelReassign cancels reassignments. That there is none any more is no error.
func (b *Broker) CancelReassign(ctx context.Context, parts []protocol.TopicPartition) map[protocol.TopicPartition]error {
	lists := map[protocol.TopicPartition][]int32{}
	for _, tp := range parts {
		lists[tp] = nil
	}
	out := b.alterAssignments(ctx, lists)
	for tp, err := range out {
		if kerrCode(err) == kerr.NoReassignmentInProgress.Code {
			out[tp] = nil
		}
	}
	return out
}

// alterAssignments sends replica lists, nil for "cancel".
func (b *Broker) alterAssignments(
	ctx context.Context, lists map[protocol.TopicPartition][]int32,
) map[protocol.TopicPartition]error {
	if len(lists) == 0 {
		return nil
	}
	kr, _, err := b.ctl.insist(ctx, operatorTimeout, func() kmsg.Request {
		req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		req.TimeoutMillis = int32(operatorTimeout.Milliseconds())
		for topic, parts := range byTopic(maps.Keys(lists)) {
			t := kmsg.NewAlterPartitionAssignmentsRequestTopic()
			t.Topic = topic
			for _, n := range parts {
				p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
				p.Partition, p.Replicas = n, lists[protocol.TopicPartition{Topic: topic, Partition: n}]
				t.Partitions = append(t.Partitions, p)
			}
			req.Topics = append(req.Topics, t)
		}
		return req
	})
	if err != nil {
		return allFailed(maps.Keys(lists), err)
	}
	resp := kr.(*kmsg.AlterPartitionAssignmentsResponse)
	if err := codeError(resp.ErrorCode, resp.ErrorMessage); err != nil {
		return allFailed(maps.Keys(lists), fmt.Errorf("reassign: %w", err))
	}
	out := allFailed(maps.Keys(lists), errNoAnswer)
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			tp := protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}
			out[tp] = wrapPartition("reassign", tp, codeError(p.ErrorCode, p.ErrorMessage))
		}
	}
	return out
}

// ElectPreferred makes the first replica of each partition its leader. That it leads already is no error.
func (b *Broker) ElectPreferred(ctx context.Context, parts []protocol.TopicPartition) map[protocol.TopicPartition]error {
	if len(parts) == 0 {
		return nil
	}
	kr, _, err := b.ctl.insist(ctx, operatorTimeout, func() kmsg.Request {
		req := kmsg.NewPtrElectLeadersRequest()
		req.ElectionType, req.TimeoutMillis = 0, int32(operatorTimeout.Milliseconds())
		for topic, nums := range byTopic(slices.Values(parts)) {
			t := kmsg.NewElectLeadersRequestTopic()
			t.Topic, t.Partitions = topic, nums
			req.Topics = append(req.Topics, t)
		}
		return req
	})
	if err != nil {
		return allFailed(slices.Values(parts), err)
	}
	resp := kr.(*kmsg.ElectLeadersResponse)
	if err := codeError(resp.ErrorCode, nil); err != nil {
		return allFailed(slices.Values(parts), fmt.Errorf("elect leaders: %w", err))
	}
	out := allFailed(slices.Values(parts), errNoAnswer)
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			tp := protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}
			err := codeError(p.ErrorCode, p.ErrorMessage)
			if p.ErrorCode == kerr.ElectionNotNeeded.Code {
				err = nil
			}
			out[tp] = wrapPartition("elect leader of", tp, err)
		}
	}
	return out
}

// CreatePartitions gives a topic more partitions, assignment[i] being the replicas of the i-th new one. total is how many there are
// then. Where the assignment names ids of ours, the cordon is lifted meanwhile. That they are there shows in the image.
func (b *Broker) CreatePartitions(ctx context.Context, topic string, total int32, assignment [][]int32) error {
	release, err := b.cordon.lift(ctx, slices.Concat(assignment...))
	if err != nil {
		return err
	}
	defer release()
	kr, repeated, err := b.ctl.insist(ctx, operatorTimeout, func() kmsg.Request { return createPartitions(topic, total, assignment) })
	if err != nil {
		return err
	}
	resp := kr.(*kmsg.CreatePartitionsResponse)
	if len(resp.Topics) != 1 {
		return fmt.Errorf("add partitions to %s: the answer holds %d topics", topic, len(resp.Topics))
	}
	if repeated && resp.Topics[0].ErrorCode == kerr.InvalidPartitions.Code {
		if t := b.Image().TopicByName(topic); t != nil && len(t.Partitions) == int(total) {
			return nil // by an earlier try without an answer
		}
	}
	if err := codeError(resp.Topics[0].ErrorCode, resp.Topics[0].ErrorMessage); err != nil {
		return fmt.Errorf("add partitions to %s: %w", topic, err)
	}
	return nil
}

func createPartitions(topic string, total int32, assignment [][]int32) *kmsg.CreatePartitionsRequest {
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.TimeoutMillis = int32(operatorTimeout.Milliseconds())
	x := kmsg.NewCreatePartitionsRequestTopic()
	x.Topic, x.Count = topic, total
	for _, replicas := range assignment {
		a := kmsg.NewCreatePartitionsRequestTopicAssignment()
		a.Replicas = replicas
		x.Assignment = append(x.Assignment, a)
	}
	req.Topics = append(req.Topics, x)
	return req
}
