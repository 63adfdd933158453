package proxy

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"net"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/fetch"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

const (
	// redirectVersion is the first Fetch version with PreferredReadReplica, and the first that followers serve.
	redirectVersion = 11
	// holdStep is how often a fetch that waits for a replica that covers its offset is looked at again.
	holdStep = 50 * time.Millisecond
	// maxHold bounds what a client may ask us to wait.
	maxHold = 5 * time.Minute
)

// fetch serves replicas from the Leader and sends consumers to real replicas.
func (c *conn) fetch(h protocol.RequestHeader, req *kmsg.FetchRequest) error {
	if replicaOf(req) >= 0 {
		return c.replicaFetch(h, req)
	}
	// Sessions are never granted, so that one that is named is another broker's; epoch -1 only closes it.
	if req.SessionID != 0 && req.SessionEpoch != -1 {
		resp := kmsg.NewPtrFetchResponse()
		resp.ErrorCode = codeFetchSessionNotFound
		return c.reply(h, resp)
	}
	resp, err := c.consumerFetch(h, req)
	if err != nil {
		return err
	}
	return c.reply(h, resp)
}

// replicaOf is the replica that asks, negative for a consumer.
func replicaOf(req *kmsg.FetchRequest) int32 {
	if req.Version >= 15 {
		return req.ReplicaState.ID
	}
	return req.ReplicaID
}

func (c *conn) replicaFetch(h protocol.RequestHeader, req *kmsg.FetchRequest) error {
	if !c.l.InterBroker || !c.may(mayClusterAction) {
		return c.reply(h, fetchRefusal(req))
	}
	c.lease.release() // brokers of the destination are trusted, and wait long
	bufs, err := c.s.replicaFetch(c.ctx, req, c.l.NodeID, h.CorrelationID)
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case err != nil:
		return closef("replica fetch", "Fetch of a replica: %w", err)
	}
	return c.replyBuffers(bufs)
}

// refuseFetch answers every partition of the request with one error.
func refuseFetch(req *kmsg.FetchRequest, resp *kmsg.FetchResponse, code int16) {
	for i := range req.Topics {
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = req.Topics[i].Topic, req.Topics[i].TopicID
		for j := range req.Topics[i].Partitions {
			rt.Partitions = append(rt.Partitions, fetchError(req.Topics[i].Partitions[j].Partition, code))
		}
		resp.Topics = append(resp.Topics, rt)
	}
}

func fetchError(partition int32, code int16) kmsg.FetchResponseTopicPartition {
	rp := kmsg.NewFetchResponseTopicPartition()
	rp.Partition, rp.ErrorCode, rp.HighWatermark = partition, code, -1
	// Not null: some clients take a null record set for a broken answer.
	rp.RecordBatches = []byte{}
	rp.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{} // as brokers send it
	return rp
}

// consumerFetch answers a consumer. It waits, for as long as the consumer does, while no replica could serve any of what
// is asked, so that consumers don't ask in a tight loop.
func (c *conn) consumerFetch(h protocol.RequestHeader, req *kmsg.FetchRequest) (*kmsg.FetchResponse, error) {
	wait := min(max(time.Duration(req.MaxWaitMillis)*time.Millisecond, 0), maxHold)
	deadline := time.Now().Add(wait)
	back := c.lease.waits(c.cancel)
	defer func() { c.report(back()) }()
	for {
		a := c.planFetch(c.s.cfg.Images.Image(), h, req)
		left := time.Until(deadline)
		if !a.waiting || left <= 0 || c.stopping() {
			if req.Version < redirectVersion {
				c.fetchForOldClient(req, a, max(left, 0))
			}
			return a.resp, nil
		}
		timer := time.NewTimer(min(left, holdStep))
		select {
		case <-timer.C:
		case <-c.stopped:
		case <-c.ctx.Done():
			timer.Stop()
			return nil, c.ctx.Err()
		}
		timer.Stop()
		if hasLeft(c.nc) {
			return nil, context.Canceled // nobody waits
		}
	}
}

// fetchPlan is an answer to a consumer: every partition with an error or the replica that has the records.
type fetchPlan struct {
	img  *kraft.Image
	resp *kmsg.FetchResponse
	// waiting: there are partitions, and of none of them there is anything to say but that it is not available yet.
	waiting bool
}

func (c *conn) planFetch(img *kraft.Image, h protocol.RequestHeader, req *kmsg.FetchRequest) *fetchPlan {
	a := &fetchPlan{img: img, resp: kmsg.NewPtrFetchResponse()}
	asked, unavailable := 0, 0
	pick := c.newPicker(img, h, req.Rack)
	for i := range req.Topics {
		t := &req.Topics[i]
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		topic := topicOf(img, t.Topic, t.TopicID)
		for j := range t.Partitions {
			rp := c.planPartition(img, pick, req, named{t.Topic, topic}, &t.Partitions[j])
			asked++
			if rp.ErrorCode == codeOffsetNotAvailable {
				unavailable++
			}
			if topic == nil && req.Version >= 13 {
				rp.ErrorCode = codeUnknownTopicID
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		a.resp.Topics = append(a.resp.Topics, rt)
	}
	a.waiting = asked > 0 && asked == unavailable
	if req.Version >= 16 {
		c.addFetchLeaders(img, a.resp)
	}
	return a
}

func (c *conn) planPartition(
	img *kraft.Image, pick *picker, req *kmsg.FetchRequest, topic named, asked *kmsg.FetchRequestTopicPartition,
) kmsg.FetchResponseTopicPartition {
	p := c.lookup(img, topic, asked.Partition, asked.CurrentLeaderEpoch)
	rp := fetchError(asked.Partition, p.code)
	st, code := c.readable(p)
	switch {
	case code != 0:
		rp.ErrorCode = code
	case asked.FetchOffset < st.LogStart || asked.FetchOffset > st.LogEnd:
		rp.ErrorCode = codeOffsetOutOfRange
	case req.Version < 10 && zstdTopic(img, p.topic):
		rp.ErrorCode = codeUnsupportedCodec
	default:
		rp.HighWatermark, rp.LogStartOffset = st.HighWatermark, st.LogStart
		if rp.PreferredReadReplica = pick.replica(p, st, asked.FetchOffset); rp.PreferredReadReplica < 0 {
			rp.ErrorCode = codeOffsetNotAvailable
		}
	}
	if (p.code == codeNotLeader || p.code == codeFencedLeaderEpoch) && req.Version >= 12 {
		rp.CurrentLeader.LeaderID, rp.CurrentLeader.LeaderEpoch = p.part.Leader, p.part.LeaderEpoch
	}
	return rp
}

// readable returns what the Leader knows of a partition that consumers may be told about, else the error to answer.
func (c *conn) readable(p led) (fetch.Status, int16) {
	switch {
	case p.code != 0:
		return fetch.Status{}, p.code
	case p.mirror == "":
		// A stray, or definitions are not loaded yet: real brokers will lead it soon, or we shall know more.
		return fetch.Status{}, codeNotLeader
	}
	st, ok := c.s.cfg.Leader.Status(p.id)
	serving := ok && st.RollCall && st.Leader == c.l.NodeID
	switch st.Role {
	case fetch.RoleMirror, fetch.RoleFrozen, fetch.RoleDrain, fetch.RoleTail:
	default:
		serving = false
	}
	if !serving || st.HighWatermark < 0 || st.LogStart < 0 || st.LogEnd < 0 {
		return st, codeOffsetNotAvailable
	}
	return st, 0
}

func zstdTopic(img *kraft.Image, t *kraft.Topic) bool {
	v, _ := img.TopicConfig(t.Name, "compression.type")
	return v == "zstd"
}

func (c *conn) addFetchLeaders(img *kraft.Image, resp *kmsg.FetchResponse) {
	seen := make(map[int32]bool)
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			id := p.CurrentLeader.LeaderID
			host, port, rack, ok := c.endpointOf(img, id)
			if seen[id] || !ok {
				continue
			}
			seen[id] = true
			b := kmsg.NewFetchResponseBroker()
			b.NodeID, b.Host, b.Port, b.Rack = id, host, port, rack
			resp.Brokers = append(resp.Brokers, b)
		}
	}
}

// picker chooses the real replica that a client reads a partition from.
type picker struct {
	c    *conn
	img  *kraft.Image
	rack string
	// client spreads clients over replicas; the same one is sent to the same replica as long as that one is fit.
	client string
	// few: prefer replicas that are connected or were chosen already, since we ask them ourselves.
	few    bool
	chosen map[int32]bool
}

func (c *conn) newPicker(img *kraft.Image, h protocol.RequestHeader, rack string) *picker {
	p := &picker{c: c, img: img, rack: rack, few: h.Key != keyFetch || h.Version < redirectVersion}
	p.client, _, _ = net.SplitHostPort(remoteOf(c.nc))
	if h.ClientID != nil {
		p.client += *h.ClientID
	}
	p.chosen = make(map[int32]bool)
	if c.up != nil {
		p.chosen[c.up.broker] = true
	}
	return p
}

// replica returns an in-sync, unfenced real replica whose log reaches offset, or -1.
func (p *picker) replica(l led, st fetch.Status, offset int64) int32 {
	best, bestRank := int32(-1), uint64(0)
	for _, id := range l.part.ISR {
		b := p.img.Brokers[id]
		if _, ok := p.c.s.targetOf(b, p.c.l.Name); !ok {
			continue
		}
		if f, ok := st.Followers[id]; !ok || f.FetchOffset < offset {
			continue
		}
		if r := p.rank(l, b); best < 0 || r > bestRank {
			best, bestRank = id, r
		}
	}
	if best >= 0 {
		p.chosen[best] = true
	}
	return best
}

// rank orders fit replicas: the client's rack first, then by a hash of client, partition and replica.
func (p *picker) rank(l led, b *kraft.Broker) uint64 {
	f := fnv.New64a()
	f.Write([]byte(p.client))
	f.Write(l.id.Topic[:])
	f.Write([]byte{byte(l.id.Partition), byte(l.id.Partition >> 8), byte(b.ID), byte(b.ID >> 8), byte(b.ID >> 16)})
	// FNV's high bits barely move with the last bytes.
	r := f.Sum64()
	r = (r ^ r>>33) * 0xff51afd7ed558ccd
	r = (r ^ r>>33) >> 2
	if p.few && p.chosen[b.ID] || !p.few && p.rack != "" && b.Rack == p.rack {
		r |= 1 << 63
	}
	return r
}

// fetchForOldClient replaces, in the answer to a client that can't be sent to another replica, every replica by what it
// answers. Replicas are asked one after the other and share the time that the client waits.
func (c *conn) fetchForOldClient(req *kmsg.FetchRequest, a *fetchPlan, wait time.Duration) {
	asks := make(map[int32]*kmsg.FetchRequest)
	var order []int32
	for i := range a.resp.Topics {
		for j := range a.resp.Topics[i].Partitions {
			rp := &a.resp.Topics[i].Partitions[j]
			broker := rp.PreferredReadReplica
			if rp.PreferredReadReplica = -1; rp.ErrorCode == codeOffsetNotAvailable {
				// Not known to clients of that age.
				rp.ErrorCode = codeNotLeader
			}
			if broker < 0 {
				continue
			}
			if asks[broker] == nil {
				asks[broker] = oldClientFetch(req)
				order = append(order, broker)
			}
			addFetch(asks[broker], a.resp.Topics[i].Topic, req.Topics[i].Partitions[j])
		}
	}
	slices.SortFunc(order, func(x, y int32) int { return cmp.Compare(x, y) })
	for _, broker := range order {
		ask := asks[broker]
		share := wait / time.Duration(len(order))
		ask.MaxWaitMillis = int32(share.Milliseconds())
		answer, err := c.readReplica(broker, ask, share)
		if err != nil {
			c.s.quiet.Warn("old fetch", "a replica could not be read for a client with an old Fetch version",
				"broker", broker, "err", err)
		}
		mergeFetch(a.resp, ask, answer)
	}
}

// readReplica reads records over connections of the client's own principal only.
func (c *conn) readReplica(broker int32, ask *kmsg.FetchRequest, wait time.Duration) (*kmsg.FetchResponse, error) {
	if c.sasl && (c.up == nil || c.up.broker != broker) {
		return nil, errors.New("the client is authenticated at another broker")
	}
	resp, err := c.askReplica(broker, ask, wait)
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.FetchResponse), nil
}

func oldClientFetch(req *kmsg.FetchRequest) *kmsg.FetchRequest {
	ask := kmsg.NewPtrFetchRequest()
	ask.Version = redirectVersion
	ask.MinBytes, ask.IsolationLevel = req.MinBytes, req.IsolationLevel
	// The answer is held in memory. A batch that is larger comes nevertheless, alone.
	if ask.MaxBytes = maxOwnReplyBytes; req.Version >= 3 {
		ask.MaxBytes = min(ask.MaxBytes, req.MaxBytes)
	}
	ask.SessionEpoch = -1
	return ask
}

func addFetch(ask *kmsg.FetchRequest, topic string, p kmsg.FetchRequestTopicPartition) {
	if n := len(ask.Topics); n == 0 || ask.Topics[n-1].Topic != topic {
		t := kmsg.NewFetchRequestTopic()
		t.Topic = topic
		ask.Topics = append(ask.Topics, t)
	}
	q := kmsg.NewFetchRequestTopicPartition()
	q.Partition, q.FetchOffset, q.PartitionMaxBytes = p.Partition, p.FetchOffset, p.PartitionMaxBytes
	t := &ask.Topics[len(ask.Topics)-1]
	t.Partitions = append(t.Partitions, q)
}

// mergeFetch puts what a replica answered to ask into resp. Whatever it does not answer, or calls out of range although
// our log covers it, is something for the client to ask again.
func mergeFetch(resp *kmsg.FetchResponse, ask *kmsg.FetchRequest, answer *kmsg.FetchResponse) {
	got := make(map[protocol.TopicPartition]kmsg.FetchResponseTopicPartition)
	if answer != nil && answer.ErrorCode == 0 {
		for _, t := range answer.Topics {
			for _, p := range t.Partitions {
				got[protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}] = p
			}
		}
	}
	asked := make(map[protocol.TopicPartition]bool)
	for _, t := range ask.Topics {
		for _, p := range t.Partitions {
			asked[protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}] = true
		}
	}
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			rp := &resp.Topics[i].Partitions[j]
			key := protocol.TopicPartition{Topic: resp.Topics[i].Topic, Partition: rp.Partition}
			if !asked[key] {
				continue
			}
			p, ok := got[key]
			if !ok || p.ErrorCode == codeOffsetOutOfRange || p.ErrorCode == codeOffsetNotAvailable {
				*rp = fetchError(rp.Partition, codeNotLeader)
				continue
			}
			p.PreferredReadReplica = -1
			*rp = p
		}
	}
}
