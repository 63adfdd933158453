package broker

import (
	"context"
	"fmt"
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
// nothing of what it is sent. There is one worker for each leader: one that waits for data must not hold up others, whose
// high watermark waits for our next fetch.
type joiner struct {
	b     *Broker
	m     *member
	parts []protocol.PartitionID

	mu      sync.Mutex
	clients map[string]*kgo.Client
	workers map[int32]bool // by leader
	// joined are partitions seen with us in the ISR, done those that need no more fetching; err is why the others have
	// not joined yet.
	joined, done map[protocol.PartitionID]bool
	err          map[protocol.PartitionID]error
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
	j := &joiner{b: b, m: m, parts: slices.Clone(parts), clients: map[string]*kgo.Client{}, workers: map[int32]bool{},
		joined: map[protocol.PartitionID]bool{}, done: map[protocol.PartitionID]bool{}, err: map[protocol.PartitionID]error{}}
	result := make(chan map[protocol.PartitionID]error, 1)
	go func() {
		defer b.keepers.Done()
		ctx, cancel := untilClosed(ctx, running.Done())
		defer cancel()
		j.run(ctx, result)
	}()
	return <-result
}

// run has workers fetch until nothing is left to do, and sends the result once all have joined or ctx ended.
func (j *joiner) run(ctx context.Context, result chan<- map[protocol.PartitionID]error) {
	defer func() {
		for _, cl := range j.clients {
			cl.Close()
		}
	}()
	var workers sync.WaitGroup
	defer workers.Wait()
	report := sync.OnceFunc(func() { result <- j.result(ctx) })
	defer report()
	for ctx.Err() == nil {
		changed := j.b.Changed()
		leaders, pending, left := j.look()
		if pending == 0 {
			report()
		}
		if left == 0 {
			return
		}
		for _, leader := range leaders {
			workers.Go(func() { j.work(ctx, leader) })
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

func (j *joiner) result(ctx context.Context) map[protocol.PartitionID]error {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := map[protocol.PartitionID]error{}
	for _, id := range j.parts {
		switch err := j.err[id]; {
		case j.joined[id]:
			out[id] = nil
		case err != nil:
			out[id] = fmt.Errorf("join ISR: %w", err)
		default:
			out[id] = fmt.Errorf("join ISR: the image does not show node id %d in it: %w", j.m.node.ID, ctx.Err())
		}
	}
	return out
}

// look takes the newest image in. It returns the leaders that need a worker and have none, which it notes as having one,
// how many partitions have not joined, and how many are not done.
func (j *joiner) look() (leaders []int32, pending, left int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	img := j.b.Image()
	for _, id := range j.parts {
		leader, fetch := j.need(img, id)
		if j.done[id] {
			continue
		}
		left++
		if !j.joined[id] {
			pending++
		}
		if fetch && !j.workers[leader] {
			j.workers[leader] = true
			leaders = append(leaders, leader)
		}
	}
	return leaders, pending, left
}

// need says which leader a partition is to be fetched from, if any, and notes how far it is. Callers hold mu.
func (j *joiner) need(img *kraft.Image, id protocol.PartitionID) (leader int32, fetch bool) {
	p := img.Partition(id)
	switch {
	case j.done[id]:
		return 0, false
	case p == nil:
		j.done[id], j.err[id] = true, kerr.UnknownTopicID
		return 0, false
	case j.b.Owns(p.Leader):
		j.done[id], j.joined[id] = true, true
		return 0, false
	case !slices.Contains(p.Replicas, j.m.node.ID):
		j.done[id] = j.joined[id] // taken off the list again
		if !j.joined[id] {
			j.err[id] = fmt.Errorf("node id %d is not in the replica list", j.m.node.ID)
		}
		return 0, false
	case p.Leader < 0:
		j.err[id] = kerr.LeaderNotAvailable
		return 0, false
	}
	if slices.Contains(p.ISR, j.m.node.ID) {
		j.joined[id] = true
	}
	return p.Leader, true
}

// work fetches from one leader until it leads nothing of ours any more.
func (j *joiner) work(ctx context.Context, leader int32) {
	b := backoff{min: joinPause, max: joinWait}
	for ctx.Err() == nil {
		img, ids, pending := j.from(leader)
		if len(ids) == 0 {
			return
		}
		errs := j.fetchAtEnd(ctx, leader, img, ids, pending)
		failed := j.note(errs)
		if !failed {
			b.reset()
		}
		if failed || pending {
			_ = b.wait(ctx)
		}
	}
}

// from lists what is to be fetched from a leader; nothing ends its worker. The image is read under mu, so that look either
// sees the worker gone or the worker sees what look saw.
func (j *joiner) from(leader int32) (img *kraft.Image, ids []protocol.PartitionID, pending bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	img = j.b.Image()
	for _, id := range j.parts {
		if l, fetch := j.need(img, id); fetch && l == leader {
			ids = append(ids, id)
			pending = pending || !j.joined[id]
		}
	}
	if len(ids) == 0 {
		delete(j.workers, leader)
	}
	return img, ids, pending
}

func (j *joiner) note(errs map[protocol.PartitionID]error) (failed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, err := range errs {
		j.err[id] = err
		failed = failed || err != nil
	}
	return failed
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
	j.mu.Lock()
	defer j.mu.Unlock()
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
func (j *joiner) fetchAtEnd(
	ctx context.Context, leader int32, img *kraft.Image, ids []protocol.PartitionID, pending bool,
) map[protocol.PartitionID]error {
	cl, err := j.client(img, leader)
	if err != nil {
		return failAll(ids, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	broker := cl.SeedBrokers()[0]
	kr, err := broker.Request(ctx, j.listOffsets(img, ids))
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
	kr, err = broker.Request(ctx, j.fetch(img, ends, pending))
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

func (j *joiner) fetch(img *kraft.Image, ends map[protocol.PartitionID]int64, pending bool) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.ReplicaState.ID, req.ReplicaState.Epoch = j.m.node.ID, j.m.node.ID, j.m.epoch()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = int32(joinWait.Milliseconds()), 1, 1, -1
	if pending {
		req.MaxWaitMillis = 0 // one fetch at the end is enough; the next ask must see what came of it
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
