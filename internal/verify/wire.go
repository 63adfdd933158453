package verify

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/records"
)

// side is one broker's copy of the partition.
type side struct {
	cl     *kgo.Client
	broker int32
	// source: the leader at the source; false: a replica at the destination.
	source bool
	// sent: the leader at the source has sent us to broker, a follower (KIP-392).
	sent      bool
	topic     string
	id        protocol.UUID
	partition int32
}

// String names the side for messages.
func (s side) String() string {
	if s.source {
		return fmt.Sprintf("source broker %d", s.broker)
	}
	return fmt.Sprintf("broker %d", s.broker)
}

// chunk is what one side holds from an offset on.
type chunk struct {
	batches []records.Batch
	// until is where what is known ends: all batches that begin in [offset asked, until) are in batches.
	until int64
	hw    int64
	bytes int64
	// corrupt: at until stands something that is no batch.
	corrupt *records.CorruptError
}

// minFollowerFetch is the first Fetch version that followers answer for consumers (KIP-392).
const minFollowerFetch = 11

// errBehind: a replica's high watermark has not reached the offset yet.
var errBehind = errors.New("high watermark has not reached the offset yet")

// sideError says which side an error is from.
type sideError struct {
	side side
	err  error
}

func (e *sideError) Error() string { return e.side.String() + ": " + e.err.Error() }
func (e *sideError) Unwrap() error { return e.err }

// fetch reads about maxBytes from offset on: at least one batch where there is one below the high watermark, however large.
func (s side) fetch(ctx context.Context, offset int64, maxBytes int32) (chunk, error) {
	p, throttled, err := s.fetchRaw(ctx, offset, maxBytes)
	if err != nil {
		return chunk{}, &sideError{s, err}
	}
	c := chunk{hw: p.HighWatermark, bytes: int64(len(p.RecordBatches)), until: offset}
	if err := c.cut(p.RecordBatches, offset); err != nil {
		return chunk{}, &sideError{s, err}
	}
	if len(c.batches) > 0 || c.corrupt != nil {
		return c, nil
	}
	switch {
	case throttled:
		return chunk{}, &sideError{s, kerr.ThrottlingQuotaExceeded}
	case c.hw <= offset:
		return chunk{}, &sideError{s, errBehind}
	case c.bytes > 0:
		// A broker that does not return the first batch whole is of before Fetch v3; we never speak that.
		return chunk{}, &sideError{s, fmt.Errorf("answered only a part of the batch at offset %d", offset)}
	}
	// Nothing up to the high watermark: a cleaner has taken all of it.
	c.until = c.hw
	return c, nil
}

// cut splits raw into batches, which must ascend from one that holds offset or follows it.
func (c *chunk) cut(raw []byte, offset int64) error {
	for {
		b, rest, err := records.Split(raw)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, records.ErrPartial):
			return nil
		case errors.As(err, &c.corrupt):
			return nil
		case err != nil:
			return err
		}
		if b.NextOffset() <= c.until || len(c.batches) > 0 && b.BaseOffset() < c.until {
			return fmt.Errorf("answered batch %d-%d when asked for offset %d", b.BaseOffset(), b.LastOffset(), offset)
		}
		c.batches = append(c.batches, b)
		c.until = b.NextOffset()
		raw = rest
	}
}

func (s side) fetchRaw(ctx context.Context, offset int64, maxBytes int32) (
	p *kmsg.FetchResponseTopicPartition, throttled bool, err error,
) {
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis = 200
	req.MinBytes = 1
	req.MaxBytes = maxBytes
	part := kmsg.NewFetchRequestTopicPartition()
	part.Partition = s.partition
	part.FetchOffset = offset
	part.PartitionMaxBytes = maxBytes
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID = s.topic, s.id
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	resp, err := ask[*kmsg.FetchResponse](ctx, s, req)
	if err != nil {
		return nil, false, err
	}
	if !s.source && resp.Version < minFollowerFetch {
		return nil, false, fmt.Errorf("speaks Fetch up to version %d, followers are read from %d on", resp.Version, minFollowerFetch)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, false, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, false, errors.New("answer to Fetch is not about the partition asked for")
	}
	p = &resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		return nil, false, err
	}
	if p.PreferredReadReplica >= 0 && len(p.RecordBatches) == 0 {
		if s.source && !s.sent { // a kmirror leads there, since the topic is a mirror at the source too: a real broker has the log
			s.broker, s.sent = p.PreferredReadReplica, true
			return s.fetchRaw(ctx, offset, maxBytes)
		}
		return nil, false, fmt.Errorf("sends consumers to broker %d instead of answering", p.PreferredReadReplica)
	}
	return p, resp.ThrottleMillis > 0, nil
}

// ListOffsets timestamps.
const (
	latest   = -1
	earliest = -2
)

// debugReplica as replica id makes a follower answer ListOffsets itself (FetchRequest.DEBUGGING_CONSUMER_ID).
const debugReplica = -2

// listOffset returns the log start (earliest) or the first offset at or after a time in Unix milliseconds, -1 for none.
func (s side) listOffset(ctx context.Context, timestamp int64) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	if !s.source {
		req.ReplicaID = debugReplica
	}
	part := kmsg.NewListOffsetsRequestTopicPartition()
	part.Partition = s.partition
	part.Timestamp = timestamp
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = s.topic
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	resp, err := ask[*kmsg.ListOffsetsResponse](ctx, s, req)
	switch {
	case err != nil:
	case len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1:
		err = errors.New("answer to ListOffsets is not about the partition asked for")
	default:
		p := resp.Topics[0].Partitions[0]
		if err = kerr.ErrorForCode(p.ErrorCode); err == nil {
			return p.Offset, nil
		}
	}
	return 0, &sideError{s, err}
}

// highWatermark reads it where it stands; offset must be within the log.
func (s side) highWatermark(ctx context.Context, offset int64) (int64, error) {
	p, _, err := s.fetchRaw(ctx, offset, 1)
	if err != nil {
		return 0, &sideError{s, err}
	}
	return p.HighWatermark, nil
}

func ask[R kmsg.Response](ctx context.Context, s side, req kmsg.Request) (R, error) {
	var none R
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	resp, err := s.cl.Broker(int(s.broker)).Request(ctx, req)
	if err != nil {
		return none, err
	}
	r, ok := resp.(R)
	if !ok {
		return none, fmt.Errorf("%s: unexpected %T", kmsg.NameForKey(req.Key()), resp)
	}
	return r, nil
}

// leaderOf asks for a partition's leader and its topic's id; the id is zero at brokers of before 2.8.
func leaderOf(ctx context.Context, cl *kgo.Client, topic string, partition int32) (int32, protocol.UUID, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(topic)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return 0, protocol.UUID{}, err
	}
	if len(resp.Topics) != 1 {
		return 0, protocol.UUID{}, errors.New("answer to Metadata is not about the topic asked for")
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		return 0, protocol.UUID{}, err
	}
	id := protocol.UUID(resp.Topics[0].TopicID)
	for _, p := range resp.Topics[0].Partitions {
		if p.Partition != partition {
			continue
		}
		if p.Leader < 0 {
			return 0, id, kerr.LeaderNotAvailable
		}
		return p.Leader, id, nil
	}
	return 0, id, kerr.UnknownTopicOrPartition
}
