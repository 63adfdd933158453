package broker

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

const (
	// joinWait is the long poll at a leader's end. It is far below replica.lag.time.max.ms (30 s).
	joinWait = 500 * time.Millisecond
	// joinPause is the time between fetches while the leader has not taken us in.
	joinPause = 20 * time.Millisecond
)

// joiner fetches at the log ends of real leaders as one of our node ids, so that they take it into their ISRs. It keeps
// nothing of what it is sent. Its owner is one goroutine.
type joiner struct {
	b       *Broker
	m       *member
	clients map[string]*kgo.Client
	// joined are partitions seen with us in the ISR; err is why the others are not there yet.
	joined map[protocol.PartitionID]bool
	err    map[protocol.PartitionID]error
}

// JoinISR brings one of our node ids into the ISR of partitions led by real brokers, by fetching at the leader's log end
// as a replica. It returns once the image shows all of them joined, or led by us, or gone; the result has an entry for
// each, nil when it joined. Replica lists that don't name the node yet are waited for. After the return fetching goes on,
// or the leader would drop us after 30 s, until leadership is ours or the list does not name us, and no longer than ctx
// and Run: end ctx only when leadership has been taken.
//
// Members of an ISR hold the high watermark: while we claim to have all that the leader has, nobody checks it.
func (b *Broker) JoinISR(ctx context.Context, node int32, parts []protocol.PartitionID) map[protocol.PartitionID]error {
	out := map[protocol.PartitionID]error{}
	m := b.member(node)
	b.mu.Lock()
	running := b.running
	if m == nil || running == nil {
		b.mu.Unlock()
		for _, id := range parts {
			out[id] = fmt.Errorf("join ISR: node id %d is not ours, or does not run", node)
		}
		return out
	}
	b.keepers.Add(1)
	b.mu.Unlock()
	j := &joiner{b: b, m: m, clients: map[string]*kgo.Client{},
		joined: map[protocol.PartitionID]bool{}, err: map[protocol.PartitionID]error{}}
	result := make(chan map[protocol.PartitionID]error, 1)
	go func() {
		defer b.keepers.Done()
		ctx, cancel := untilClosed(ctx, running.Done())
		defer cancel()
		j.run(ctx, parts, result)
	}()
	return <-result
}

// run fetches until nothing is left to do, and sends the result once all have joined or ctx ended.
func (j *joiner) run(ctx context.Context, parts []protocol.PartitionID, result chan<- map[protocol.PartitionID]error) {
	defer func() {
		for _, cl := range j.clients {
			cl.Close()
		}
	}()
	report := sync.OnceFunc(func() { result <- j.result(ctx, parts) })
	defer report()
	b := backoff{min: joinPause, max: joinWait}
	left := parts
	for ctx.Err() == nil {
		changed := j.b.Changed()
		img := j.b.Image()
		todo, waiting := j.sort(img, left)
		left = slices.Concat(slices.Concat(slices.Collect(maps.Values(todo))...), waiting)
		pending := slices.ContainsFunc(left, func(id protocol.PartitionID) bool { return !j.joined[id] })
		if !pending {
			report()
		}
		if len(left) == 0 {
			return
		}
		if len(todo) == 0 {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		ok := j.round(ctx, img, todo)
		if ok {
			b.reset()
		}
		if !ok || pending {
			_ = b.wait(ctx)
		}
	}
}

func (j *joiner) result(ctx context.Context, parts []protocol.PartitionID) map[protocol.PartitionID]error {
	out := map[protocol.PartitionID]error{}
	for _, id := range parts {
		if out[id] = nil; !j.joined[id] {
			out[id] = j.reason(ctx, id)
		}
	}
	return out
}

func (j *joiner) reason(ctx context.Context, id protocol.PartitionID) error {
	if err := j.err[id]; err != nil {
		return fmt.Errorf("join ISR: %w", err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("join ISR: the image does not show node id %d in it: %w", j.m.node.ID, ctx.Err())
	}
	return nil
}

// sort groups the partitions that need fetching by leader. Done ones are left out, those that the image does not show
// ready are waiting.
func (j *joiner) sort(img *kraft.Image, parts []protocol.PartitionID) (todo map[int32][]protocol.PartitionID, waiting []protocol.PartitionID) {
	todo = map[int32][]protocol.PartitionID{}
	for _, id := range parts {
		p := img.Partition(id)
		switch {
		case p == nil:
			j.err[id] = kerr.UnknownTopicID
		case j.b.Owns(p.Leader):
			j.joined[id] = true
		case !slices.Contains(p.Replicas, j.m.node.ID):
			if !j.joined[id] {
				j.err[id] = fmt.Errorf("node id %d is not in the replica list", j.m.node.ID)
				waiting = append(waiting, id)
			}
		case p.Leader < 0:
			j.err[id] = kerr.LeaderNotAvailable
			waiting = append(waiting, id)
		default:
			if slices.Contains(p.ISR, j.m.node.ID) {
				j.joined[id] = true
			}
			todo[p.Leader] = append(todo[p.Leader], id)
		}
	}
	return todo, waiting
}

// round asks every leader once for its ends and fetches there, all leaders at the same time. ok says that all answered
// without an error.
func (j *joiner) round(ctx context.Context, img *kraft.Image, todo map[int32][]protocol.PartitionID) (ok bool) {
	answers := make(chan map[protocol.PartitionID]error, len(todo))
	for leader, ids := range todo {
		cl, err := j.client(img, leader)
		if err != nil {
			answers <- failAll(ids, err)
			continue
		}
		req := j.listOffsets(img, ids)
		go func() { answers <- j.fetchAtEnd(ctx, cl, img, ids, req) }()
	}
	ok = true
	for range todo {
		for id, err := range <-answers {
			j.err[id] = err
			ok = ok && err == nil
		}
	}
	return ok
}

func failAll(ids []protocol.PartitionID, err error) map[protocol.PartitionID]error {
	out := map[protocol.PartitionID]error{}
	for _, id := range ids {
		out[id] = err
	}
	return out
}

// client returns the connection to a real broker's inter-broker endpoint.
func (j *joiner) client(img *kraft.Image, leader int32) (*kgo.Client, error) {
	reg := img.Brokers[leader]
	if reg == nil {
		return nil, fmt.Errorf("leader %d is not registered", leader)
	}
	i := slices.IndexFunc(reg.Endpoints, func(e kraft.Endpoint) bool { return e.Name == j.b.cfg.InterBrokerListener })
	if i < 0 {
		return nil, fmt.Errorf("broker %d has no listener %q", leader, j.b.cfg.InterBrokerListener)
	}
	addr := net.JoinHostPort(reg.Endpoints[i].Host, strconv.Itoa(int(reg.Endpoints[i].Port)))
	if cl := j.clients[addr]; cl != nil {
		return cl, nil
	}
	cl, err := newClient(addr, j.b.cfg.ReplicationOpts)
	if err == nil {
		j.clients[addr] = cl
	}
	return cl, err
}

// fetchAtEnd asks one leader for the log ends and fetches there.
func (j *joiner) fetchAtEnd(ctx context.Context, cl *kgo.Client, img *kraft.Image, ids []protocol.PartitionID, req kmsg.Request) map[protocol.PartitionID]error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	broker := cl.SeedBrokers()[0]
	kr, err := broker.Request(ctx, req)
	if err != nil {
		return failAll(ids, err)
	}
	errs := failAll(ids, errNoAnswer)
	ends := map[protocol.PartitionID]int64{}
	for _, t := range kr.(*kmsg.ListOffsetsResponse).Topics {
		for _, p := range t.Partitions {
			id := protocol.PartitionID{Topic: img.Names[t.Topic], Partition: p.Partition}
			if errs[id] = kerr.ErrorForCode(p.ErrorCode); errs[id] == nil {
				ends[id] = p.Offset
			}
		}
	}
	if len(ends) == 0 {
		return errs
	}
	kr, err = broker.Request(ctx, j.fetch(img, ends))
	if err != nil {
		return failAll(ids, err)
	}
	resp := kr.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return failAll(ids, err)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			topic := protocol.UUID(t.TopicID)
			if topic.IsZero() {
				topic = img.Names[t.Topic]
			}
			errs[protocol.PartitionID{Topic: topic, Partition: p.Partition}] = kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return errs
}

// listOffsets asks for the log ends: to a replica, "latest" is the end and not the high watermark.
func (j *joiner) listOffsets(img *kraft.Image, ids []protocol.PartitionID) *kmsg.ListOffsetsRequest {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = j.m.node.ID
	topics := map[protocol.UUID]int{}
	for _, id := range ids {
		i, ok := topics[id.Topic]
		if !ok {
			i = len(req.Topics)
			topics[id.Topic] = i
			t := kmsg.NewListOffsetsRequestTopic()
			t.Topic = img.Topics[id.Topic].Name
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp, p.CurrentLeaderEpoch = id.Partition, -1, img.Partition(id).LeaderEpoch
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
	}
	return req
}

func (j *joiner) fetch(img *kraft.Image, ends map[protocol.PartitionID]int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.ReplicaState.ID, req.ReplicaState.Epoch = j.m.node.ID, j.m.node.ID, j.m.epoch()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = int32(joinWait.Milliseconds()), 1, 1, -1
	for id := range ends {
		if !j.joined[id] {
			req.MaxWaitMillis = 0 // one fetch at the end is enough, and the next round must see what came of it
		}
	}
	topics := map[protocol.UUID]int{}
	for id, end := range ends {
		i, ok := topics[id.Topic]
		if !ok {
			i = len(req.Topics)
			topics[id.Topic] = i
			t := kmsg.NewFetchRequestTopic()
			t.Topic, t.TopicID = img.Topics[id.Topic].Name, id.Topic
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.CurrentLeaderEpoch = id.Partition, end, img.Partition(id).LeaderEpoch
		p.LogStartOffset, p.PartitionMaxBytes = 0, 1
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
	}
	return req
}
