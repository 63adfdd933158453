package proxy

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/fetch"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// Timestamps of ListOffsets with a meaning of their own.
const (
	offsetLatest        int64 = -1
	offsetEarliest      int64 = -2
	offsetEarliestLocal int64 = -4
	offsetLatestTiered  int64 = -5
)

// debugReplica asks a follower as if it were a leader.
const debugReplica int32 = -2

// offsetQuery is one partition of a ListOffsets request that needs a replica's word.
type offsetQuery struct {
	topic     string
	partition int32
	timestamp int64
	// bound: what a consumer of this isolation level may be told lies below it.
	bound  int64
	status fetch.Status
	out    *kmsg.ListOffsetsResponseTopicPartition
}

// listOffsets answers partition by partition: replicas from our log, the end for consumers from our high watermark, and
// all that needs a log from a real replica's.
func (c *conn) listOffsets(req *kmsg.ListOffsetsRequest) *kmsg.ListOffsetsResponse {
	img := c.s.cfg.Images.Image()
	resp := kmsg.NewPtrListOffsetsResponse()
	resp.Topics = make([]kmsg.ListOffsetsResponseTopic, len(req.Topics))
	pick := c.newPicker(img, protocol.RequestHeader{Key: req.Key(), Version: req.Version}, "")
	lookups := make(map[int32][]*offsetQuery)
	for i := range req.Topics {
		t, rt := &req.Topics[i], &resp.Topics[i]
		rt.Default()
		rt.Topic = t.Topic
		rt.Partitions = make([]kmsg.ListOffsetsResponseTopicPartition, len(t.Partitions))
		topic := img.TopicByName(t.Topic)
		for j := range t.Partitions {
			asked, out := &t.Partitions[j], &rt.Partitions[j]
			out.Default()
			out.Partition = asked.Partition
			p := c.lookup(img, named{t.Topic, topic}, asked.Partition, asked.CurrentLeaderEpoch)
			if req.ReplicaID != -1 {
				c.replicaOffset(p, asked.Timestamp, out)
			} else if q := c.consumerOffset(p, req, asked, out); q != nil {
				c.planLookup(pick, p, q, lookups)
			}
		}
	}
	for broker, queries := range lookups {
		c.lookupOffsets(broker, req, queries)
	}
	if req.Version < 5 {
		eachOffset(resp, func(p *kmsg.ListOffsetsResponseTopicPartition) {
			if p.ErrorCode == codeOffsetNotAvailable {
				p.ErrorCode = codeLeaderNotAvailable
			}
		})
	}
	if req.Version == 0 {
		eachOffset(resp, func(p *kmsg.ListOffsetsResponseTopicPartition) {
			if p.ErrorCode == 0 && p.Offset >= 0 {
				p.OldStyleOffsets = []int64{p.Offset}
			}
		})
	}
	return resp
}

func eachOffset(resp *kmsg.ListOffsetsResponse, f func(*kmsg.ListOffsetsResponseTopicPartition)) {
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			f(&resp.Topics[i].Partitions[j])
		}
	}
}

// replicaOffset answers a replica: it truncates to the latest offset after OFFSET_OUT_OF_RANGE, so that is our log's end,
// never the high watermark.
func (c *conn) replicaOffset(p led, timestamp int64, out *kmsg.ListOffsetsResponseTopicPartition) {
	if out.ErrorCode = p.code; p.code != 0 {
		return
	}
	st, ok := c.s.cfg.Leader.Status(p.id)
	// Before the roll call too, once the source's log start is known: replicas below it ask in order to get into the roll.
	if !ok || !st.RollCall && st.SourceStart < 0 || st.Leader != c.l.NodeID || st.LogEnd < 0 || st.LogStart < 0 {
		out.ErrorCode = codeOffsetNotAvailable
		return
	}
	switch timestamp {
	case offsetLatest:
		out.Offset, out.LeaderEpoch = st.LogEnd, st.LastEpoch
	case offsetEarliest, offsetEarliestLocal:
		out.Offset = st.LogStart
	}
}

// consumerOffset answers what our own knowledge suffices for and returns a query for the rest.
func (c *conn) consumerOffset(
	p led, req *kmsg.ListOffsetsRequest, asked *kmsg.ListOffsetsRequestTopicPartition,
	out *kmsg.ListOffsetsResponseTopicPartition,
) *offsetQuery {
	st, code := c.readable(p)
	hw, ok := c.s.cfg.Leader.HighWatermark(p.id)
	if code == 0 && !ok {
		code = codeOffsetNotAvailable
	}
	if out.ErrorCode = code; code != 0 {
		return nil
	}
	switch {
	case asked.Timestamp == offsetLatestTiered:
		// No tiered storage where a mirror goes.
		return nil
	case asked.Timestamp == offsetLatest && req.IsolationLevel == 0:
		out.Offset, out.LeaderEpoch = hw, st.LastEpoch
		return nil
	}
	return &offsetQuery{topic: p.topic.Name, partition: asked.Partition, timestamp: asked.Timestamp,
		bound: hw, status: st, out: out}
}

// planLookup assigns a query to a replica that has all that consumers may see.
func (c *conn) planLookup(pick *picker, p led, q *offsetQuery, lookups map[int32][]*offsetQuery) {
	broker := pick.replica(p, q.status, q.bound)
	if broker < 0 {
		q.out.ErrorCode = codeOffsetNotAvailable
		return
	}
	lookups[broker] = append(lookups[broker], q)
}

// lookupOffsets asks one replica for the last stable offsets where the client reads committed records only, and for the
// offsets by timestamp.
func (c *conn) lookupOffsets(broker int32, req *kmsg.ListOffsetsRequest, queries []*offsetQuery) {
	for _, q := range queries {
		q.out.ErrorCode = codeOffsetNotAvailable
	}
	if req.IsolationLevel == 1 {
		stable, err := c.stableOffsets(broker, queries)
		if err != nil {
			c.warnLookup(broker, err)
			return
		}
		var rest []*offsetQuery
		for _, q := range queries {
			lso, ok := stable[protocol.TopicPartition{Topic: q.topic, Partition: q.partition}]
			if !ok {
				continue
			}
			if q.bound = min(q.bound, lso); q.timestamp == offsetLatest {
				q.out.ErrorCode, q.out.Offset, q.out.LeaderEpoch = 0, q.bound, q.status.LastEpoch
				continue
			}
			rest = append(rest, q)
		}
		queries = rest
	}
	if len(queries) == 0 {
		return
	}
	if err := c.offsetsByTime(broker, req.Version, queries); err != nil {
		c.warnLookup(broker, err)
	}
}

func (c *conn) warnLookup(broker int32, err error) {
	c.s.quiet.Warn("lookup", "offsets could not be looked up at a replica", "broker", broker, "err", err)
}

// offsetsByTime fills in what a replica answers to the same question. It answers with what is in its whole log: offsets
// that consumers must not see yet become "none".
func (c *conn) offsetsByTime(broker int32, version int16, queries []*offsetQuery) error {
	ask := kmsg.NewPtrListOffsetsRequest()
	ask.Version = max(version, 1)
	ask.ReplicaID = debugReplica
	ask.TimeoutMillis = int32(askTimeout.Milliseconds())
	byPartition := make(map[protocol.TopicPartition]*offsetQuery)
	for _, q := range queries {
		if n := len(ask.Topics); n == 0 || ask.Topics[n-1].Topic != q.topic {
			t := kmsg.NewListOffsetsRequestTopic()
			t.Topic = q.topic
			ask.Topics = append(ask.Topics, t)
		}
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = q.partition, q.timestamp
		t := &ask.Topics[len(ask.Topics)-1]
		t.Partitions = append(t.Partitions, p)
		byPartition[protocol.TopicPartition{Topic: q.topic, Partition: q.partition}] = q
	}
	resp, err := c.askReplica(broker, ask, 0)
	if err != nil {
		return err
	}
	for _, t := range resp.(*kmsg.ListOffsetsResponse).Topics {
		for _, p := range t.Partitions {
			q := byPartition[protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}]
			if q == nil || p.ErrorCode != 0 {
				continue
			}
			q.out.ErrorCode = 0
			byTime := q.timestamp != offsetEarliest && q.timestamp != offsetEarliestLocal
			if !byTime || p.Offset < q.bound {
				q.out.Offset, q.out.Timestamp, q.out.LeaderEpoch = p.Offset, p.Timestamp, p.LeaderEpoch
			}
		}
	}
	return nil
}

// stableOffsets asks a replica for last stable offsets, which only answers to Fetch carry, by fetches that find nothing.
func (c *conn) stableOffsets(broker int32, queries []*offsetQuery) (map[protocol.TopicPartition]int64, error) {
	ask := kmsg.NewPtrFetchRequest()
	ask.Version = redirectVersion
	ask.IsolationLevel, ask.MaxBytes, ask.SessionEpoch = 1, 1, -1
	for _, q := range queries {
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.PartitionMaxBytes = q.partition, q.bound, 1
		addFetch(ask, q.topic, p)
	}
	resp, err := c.askReplica(broker, ask, 0)
	if err != nil {
		return nil, err
	}
	stable := make(map[protocol.TopicPartition]int64)
	for _, t := range resp.(*kmsg.FetchResponse).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == 0 && p.LastStableOffset >= 0 {
				stable[protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}] = p.LastStableOffset
			}
		}
	}
	return stable, nil
}

// offsetForLeaderEpoch answers as the leader that we are.
func (c *conn) offsetForLeaderEpoch(req *kmsg.OffsetForLeaderEpochRequest) *kmsg.OffsetForLeaderEpochResponse {
	img := c.s.cfg.Images.Image()
	consumer := req.ReplicaID < 0
	resp := kmsg.NewPtrOffsetForLeaderEpochResponse()
	for i := range req.Topics {
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = req.Topics[i].Topic
		topic := img.TopicByName(rt.Topic)
		for _, asked := range req.Topics[i].Partitions {
			rt.Partitions = append(rt.Partitions, c.epochEnd(img, named{rt.Topic, topic}, consumer, asked))
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (c *conn) epochEnd(
	img *kraft.Image, topic named, consumer bool, asked kmsg.OffsetForLeaderEpochRequestTopicPartition,
) kmsg.OffsetForLeaderEpochResponseTopicPartition {
	out := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
	out.Partition = asked.Partition
	p := c.lookup(img, topic, asked.Partition, asked.CurrentLeaderEpoch)
	if out.ErrorCode = p.code; p.code != 0 {
		return out
	}
	if consumer && p.mirror == "" {
		out.ErrorCode = codeNotLeader
		return out
	}
	epoch, end, ok := c.s.cfg.Leader.EpochEnd(p.id, asked.LeaderEpoch)
	if !ok {
		out.ErrorCode = codeLeaderNotAvailable
		return out
	}
	out.LeaderEpoch, out.EndOffset = epoch, end
	return out
}
