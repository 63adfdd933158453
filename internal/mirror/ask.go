package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// debugReplica is the replica id under which a follower answers ListOffsets, with its log end (fact 15 of docs/kafka-facts.md).
const debugReplica = -2

// logEnds asks each in-sync real replica for its log end: one request a broker.
func (m *Manager) logEnds(ctx context.Context, ids []protocol.PartitionID) (map[protocol.PartitionID]map[int32]int64, error) {
	out := map[protocol.PartitionID]map[int32]int64{}
	request := func(topics map[string][]protocol.PartitionID) kmsg.Request {
		req := kmsg.NewPtrListOffsetsRequest()
		req.ReplicaID = debugReplica
		for name, parts := range topics {
			t := kmsg.NewListOffsetsRequestTopic()
			t.Topic = name
			for _, id := range parts {
				p := kmsg.NewListOffsetsRequestTopicPartition()
				p.Partition, p.Timestamp, p.CurrentLeaderEpoch = id.Partition, -1, -1
				t.Partitions = append(t.Partitions, p)
			}
			req.Topics = append(req.Topics, t)
		}
		return req
	}
	err := m.askReplicas(ctx, m.cfg.Destination.Image(), ids, "log end", request, func(a replicaAnswer) {
		for _, t := range a.resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				id, ok := a.of(t.Topic, p.Partition, p.ErrorCode)
				if !ok {
					continue
				}
				if out[id] == nil {
					out[id] = map[int32]int64{}
				}
				out[id][a.broker] = p.Offset
			}
		}
	})
	return out, err
}

// producerIDs asks the in-sync real replicas for the producer ids that they know of partitions; one that knows an id twice is no
// error. Followers answer as well as leaders do, so it works with the source dead and kmirror just restarted. Partitions of which
// not all in-sync replicas answered are left out: each forgets ids by its own clock.
func (m *Manager) producerIDs(ctx context.Context, ids []protocol.PartitionID) (map[protocol.PartitionID][]int64, error) {
	img := m.cfg.Destination.Image()
	known, answers := map[protocol.PartitionID][]int64{}, map[protocol.PartitionID]int{}
	request := func(topics map[string][]protocol.PartitionID) kmsg.Request {
		req := kmsg.NewPtrDescribeProducersRequest()
		for name, parts := range topics {
			t := kmsg.NewDescribeProducersRequestTopic()
			t.Topic = name
			for _, id := range parts {
				t.Partitions = append(t.Partitions, id.Partition)
			}
			req.Topics = append(req.Topics, t)
		}
		return req
	}
	err := m.askReplicas(ctx, img, ids, "producer ids", request, func(a replicaAnswer) {
		for _, t := range a.resp.(*kmsg.DescribeProducersResponse).Topics {
			for _, p := range t.Partitions {
				id, ok := a.of(t.Topic, p.Partition, p.ErrorCode)
				if !ok {
					continue
				}
				answers[id]++
				for _, active := range p.ActiveProducers {
					known[id] = append(known[id], active.ProducerID)
				}
			}
		}
	})
	for _, id := range ids {
		if ip := img.Partition(id); ip == nil || answers[id] < max(1, len(m.real(ip.ISR))) {
			delete(known, id)
		} else if known[id] == nil {
			known[id] = []int64{}
		}
	}
	return known, err
}

// replicaAnswer is what one broker answers of its replicas.
type replicaAnswer struct {
	broker int32
	resp   kmsg.Response
	what   string
	img    *kraft.Image
	err    *error
}

// of returns which partition a part of the answer is about, false where it is an error, which is kept.
func (a replicaAnswer) of(topic string, partition int32, code int16) (protocol.PartitionID, bool) {
	if e := kerr.ErrorForCode(code); e != nil {
		*a.err = fmt.Errorf("%s of %s-%d on broker %d: %w", a.what, topic, partition, a.broker, e)
		return protocol.PartitionID{}, false
	}
	return protocol.PartitionID{Topic: a.img.Names[topic], Partition: partition}, true
}

// askReplicas asks the in-sync real replicas of partitions for something, one request a broker and all at once: a dead one does not
// hold up the others, and gets pingLimit. take is called with one answer at a time.
func (m *Manager) askReplicas(ctx context.Context, img *kraft.Image, ids []protocol.PartitionID, what string,
	request func(topics map[string][]protocol.PartitionID) kmsg.Request, take func(replicaAnswer),
) error {
	cl, err := m.sources.destinationClient()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		errs []error
	)
	for b, parts := range m.byBroker(img, ids) {
		wg.Go(func() {
			resp, err := cl.Broker(int(b)).Request(ctx, request(byTopic(img, parts)))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("%s of broker %d: %w", what, b, err))
				return
			}
			take(replicaAnswer{broker: b, resp: resp, what: what, img: img, err: &err})
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// lastEpochs asks the real leaders of partitions for the epoch of the last record, -1 for an empty log: below its own, of which there is
// no record under the lock.
func (m *Manager) lastEpochs(ctx context.Context, ids []protocol.PartitionID) (map[protocol.PartitionID]int32, error) {
	adm, err := m.sources.destination()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	img, req := m.cfg.Destination.Image(), kadm.OffsetForLeaderEpochRequest{}
	for _, id := range ids {
		if ip := img.Partition(id); ip != nil && ip.Leader >= 0 && !m.guest(ip.Leader) {
			req.Add(img.Topics[id.Topic].Name, id.Partition, max(ip.LeaderEpoch-1, 0))
		}
	}
	out := map[protocol.PartitionID]int32{}
	if len(req) == 0 {
		return out, nil
	}
	answers, err := adm.OffsetForLeaderEpoch(ctx, req)
	for topic, parts := range answers {
		for n, a := range parts {
			if a.Err != nil {
				err = errors.Join(err, fmt.Errorf("last epoch of %s-%d: %w", topic, n, a.Err))
				continue
			}
			out[protocol.PartitionID{Topic: img.Names[topic], Partition: n}] = a.LeaderEpoch
		}
	}
	return out, err
}

// byBroker groups partitions by their in-sync real replicas.
func (m *Manager) byBroker(img *kraft.Image, ids []protocol.PartitionID) map[int32][]protocol.PartitionID {
	out := map[int32][]protocol.PartitionID{}
	for _, id := range ids {
		if ip := img.Partition(id); ip != nil {
			for _, b := range m.real(ip.ISR) {
				out[b] = append(out[b], id)
			}
		}
	}
	return out
}

func byTopic(img *kraft.Image, ids []protocol.PartitionID) map[string][]protocol.PartitionID {
	out := map[string][]protocol.PartitionID{}
	for _, id := range ids {
		out[img.Topics[id.Topic].Name] = append(out[img.Topics[id.Topic].Name], id)
	}
	return out
}
