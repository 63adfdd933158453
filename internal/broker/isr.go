package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// alterTimeout bounds the wait for an AlterPartition answer. Without one the outcome is unknown until the image shows it, so
// a controller that is merely slow gets its time.
const alterTimeout = 10 * time.Second

// isrQueue sends the proposals of one leading node id. One request is in flight; what is proposed meanwhile goes with the
// next one, as Kafka's brokers do it.
type isrQueue struct {
	b *Broker
	m *member

	mu      sync.Mutex
	waiting []*isrCall
	signal  chan struct{}
}

func newISRQueue(b *Broker, m *member) *isrQueue {
	return &isrQueue{b: b, m: m, signal: make(chan struct{}, 1)}
}

// isrCall is one caller's proposals; done is closed when outcomes or err are set.
type isrCall struct {
	ctx       context.Context
	proposals []kraft.ISRProposal
	outcomes  []kraft.ISROutcome
	err       error
	done      chan struct{}
}

// AlterISR proposes ISRs to the controller as the leaders that the proposals name, and blocks until it answered or ctx
// ended. Outcomes stand in the order of the proposals. After an error the outcome of each is unknown, and nothing is sent
// again: the image will show it. Callers keep to one proposal in flight per partition.
func (b *Broker) AlterISR(ctx context.Context, proposals []kraft.ISRProposal) ([]kraft.ISROutcome, error) {
	calls := map[int32]*isrCall{}
	index := map[int32][]int{}
	for i, p := range proposals {
		if b.isr[p.Leader] == nil {
			return nil, fmt.Errorf("AlterISR: node id %d is not ours", p.Leader)
		}
		c := calls[p.Leader]
		if c == nil {
			c = &isrCall{ctx: ctx, done: make(chan struct{})}
			calls[p.Leader] = c
		}
		c.proposals = append(c.proposals, p)
		index[p.Leader] = append(index[p.Leader], i)
	}
	for id, c := range calls {
		b.isr[id].add(c)
	}
	out := make([]kraft.ISROutcome, len(proposals))
	var errs []error
	for id, c := range calls {
		select {
		case <-c.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-b.ended:
			return nil, errClosed
		}
		errs = append(errs, c.err)
		for i, o := range c.outcomes {
			out[index[id][i]] = o
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

func (q *isrQueue) add(c *isrCall) {
	q.mu.Lock()
	q.waiting = append(q.waiting, c)
	q.mu.Unlock()
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

// run sends what waits until ctx ends.
func (q *isrQueue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.signal:
		}
		q.mu.Lock()
		calls := q.waiting
		q.waiting = nil
		q.mu.Unlock()
		q.send(ctx, calls)
	}
}

func (q *isrQueue) send(ctx context.Context, calls []*isrCall) {
	var live []*isrCall
	var proposals []kraft.ISRProposal
	for _, c := range calls {
		if c.ctx.Err() != nil {
			c.err = c.ctx.Err()
			close(c.done)
			continue
		}
		live = append(live, c)
		proposals = append(proposals, c.proposals...)
	}
	if len(live) == 0 {
		return
	}
	outcomes, err := q.request(ctx, proposals)
	for _, c := range live {
		if c.err = err; err == nil {
			c.outcomes, outcomes = outcomes[:len(c.proposals)], outcomes[len(c.proposals):]
		}
		close(c.done)
	}
}

func (q *isrQueue) request(ctx context.Context, proposals []kraft.ISRProposal) ([]kraft.ISROutcome, error) {
	req := alterPartition(q.m.node.ID, q.m.epoch(), proposals)
	kr, err := q.b.ctl.try(ctx, req, alterTimeout)
	if err != nil {
		return nil, err
	}
	resp := kr.(*kmsg.AlterPartitionResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, fmt.Errorf("AlterPartition: %w", err)
	}
	got := map[protocol.PartitionID]kraft.ISROutcome{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			got[protocol.PartitionID{Topic: t.TopidID, Partition: p.Partition}] = kraft.ISROutcome{
				ErrorCode: p.ErrorCode, Leader: p.LeaderID, LeaderEpoch: p.LeaderEpoch,
				PartitionEpoch: p.PartitionEpoch, ISR: p.ISR,
			}
		}
	}
	out := make([]kraft.ISROutcome, len(proposals))
	for i, p := range proposals {
		o, ok := got[p.ID]
		if !ok {
			return nil, fmt.Errorf("AlterPartition: no answer for partition %d of topic %s", p.ID.Partition, p.ID.Topic)
		}
		out[i] = o
	}
	return out, nil
}

func alterPartition(node int32, epoch int64, proposals []kraft.ISRProposal) *kmsg.AlterPartitionRequest {
	req := kmsg.NewPtrAlterPartitionRequest()
	req.BrokerID, req.BrokerEpoch = node, epoch
	topics := map[protocol.UUID]int{}
	for _, p := range proposals {
		i, ok := topics[p.ID.Topic]
		if !ok {
			i = len(req.Topics)
			topics[p.ID.Topic] = i
			t := kmsg.NewAlterPartitionRequestTopic()
			t.TopicID = p.ID.Topic
			req.Topics = append(req.Topics, t)
		}
		x := kmsg.NewAlterPartitionRequestTopicPartition()
		x.Partition, x.LeaderEpoch, x.PartitionEpoch = p.ID.Partition, p.LeaderEpoch, p.PartitionEpoch
		x.LeaderRecoveryState = p.RecoveryState
		for _, m := range p.ISR {
			e := kmsg.NewAlterPartitionRequestTopicPartitionNewEpochISR()
			e.BrokerID, e.BrokerEpoch = m.ID, m.Epoch
			x.NewEpochISR = append(x.NewEpochISR, e)
			x.NewISR = append(x.NewISR, m.ID) // version 2 has ids only
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, x)
	}
	return req
}
