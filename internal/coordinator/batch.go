package coordinator

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/wait"
)

const (
	// batchLimit bounds a batch in bytes, well below the default of max.message.bytes.
	batchLimit = 512 << 10
	// produceTimeout is how long a broker may wait for its followers before it answers that it did in vain.
	produceTimeout = 5 * time.Second
	// sendLimit bounds one request to a leader.
	sendLimit = 10 * time.Second
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// producer is a producer id with the epoch and the sequence number of the next record.
type producer struct {
	id    int64
	epoch int16
	seq   int32
}

// appendBatch encodes records as a batch that is no transaction's: brokers compare the epoch with the newest that the
// partition has of the producer id, and the sequence with the last one.
func appendBatch(dst []byte, p producer, now time.Time, records []record) []byte {
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(len(records) - 1), FirstTimestamp: now.UnixMilli(),
		MaxTimestamp: now.UnixMilli(), ProducerID: p.id, ProducerEpoch: p.epoch, FirstSequence: p.seq, NumRecords: int32(len(records)),
	}
	for i, r := range records {
		k := kmsg.Record{OffsetDelta: int32(i), Key: r.keyBytes, Value: r.value}
		k.Length = int32(len(k.AppendTo(nil)) - 1) // a length of 0 takes one byte
		b.Records = k.AppendTo(b.Records)
	}
	at := len(dst)
	dst = b.AppendTo(dst)
	out := dst[at:]
	binary.BigEndian.PutUint32(out[8:], uint32(len(out)-12))
	binary.BigEndian.PutUint32(out[17:], crc32.Checksum(out[21:], castagnoli))
	return dst
}

// split cuts records into batches of at most batchLimit bytes of keys and values, one record at least.
func split(records []record) [][]record {
	var out [][]record
	size, from := 0, 0
	for i, r := range records {
		n := len(r.keyBytes) + len(r.value) + 32
		if i > from && size+n > batchLimit {
			out, from, size = append(out, records[from:i]), i, 0
		}
		size += n
	}
	if from < len(records) {
		out = append(out, records[from:])
	}
	return out
}

// sender brings batches to the leaders of the state topic's partitions. What waits for the same leader goes in one request:
// brokers handle one request of a connection after the other, and each waits for the followers.
type sender struct {
	client *kgo.Client
	topic  string
	log    *slog.Logger
	// life ends the requests.
	life context.Context
	wg   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	topicID [16]byte
	leaders map[int32]int32  // by partition
	queues  map[int32]*queue // by leader

	refresh sync.Mutex
	asked   time.Time // for the leaders; under refresh
}

// queue holds what is to go to one leader.
type queue struct {
	parcels []*parcel
	busy    bool
}

type parcel struct {
	partition int32
	batch     []byte
	done      chan sent // buffered
}

type sent struct {
	offset int64
	err    error
}

func newSender(life context.Context, client *kgo.Client, topic string, log *slog.Logger) *sender {
	return &sender{client: client, topic: topic, log: log, life: life, leaders: map[int32]int32{}, queues: map[int32]*queue{}}
}

// close waits for requests under way, which end with life, and lets no more begin.
func (s *sender) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.wg.Wait()
}

// send brings a batch to the log and returns the offset of its first record. It tries again what a retry may mend until ctx
// ends; then nobody knows whether the batch is, or will be, in the log.
func (s *sender) send(ctx context.Context, partition int32, batch []byte) (int64, error) {
	var last error
	for back := 20 * time.Millisecond; ; back = min(2*back, time.Second) {
		offset, err := s.once(ctx, partition, batch)
		if err == nil || !again(err) {
			return offset, err
		}
		if ctx.Err() == nil {
			last = err
			s.log.Debug("writing is held up, trying again", "partition", partition, "err", err)
		}
		if !pause(ctx, back) {
			return 0, errors.Join(ctx.Err(), last)
		}
		s.forget(partition)
	}
}

// again reports whether the same batch may be sent once more: brokers recognise it if it was appended.
func again(err error) bool {
	var k *kerr.Error
	if errors.As(err, &k) {
		return k.Retriable
	}
	return !errors.Is(err, kgo.ErrClientClosed)
}

func (s *sender) once(ctx context.Context, partition int32, batch []byte) (int64, error) {
	leader, err := s.leader(ctx, partition)
	if err != nil {
		return 0, err
	}
	p := &parcel{partition: partition, batch: batch, done: make(chan sent, 1)}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return 0, kgo.ErrClientClosed
	}
	q := s.queues[leader]
	if q == nil {
		q = &queue{}
		s.queues[leader] = q
	}
	q.parcels = append(q.parcels, p)
	if !q.busy {
		q.busy = true
		s.wg.Go(func() { s.flush(leader, q) })
	}
	s.mu.Unlock()
	select {
	case r := <-p.done:
		return r.offset, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// flush sends what is queued until nothing is left.
func (s *sender) flush(leader int32, q *queue) {
	for {
		s.mu.Lock()
		parcels, id := q.parcels, s.topicID
		q.parcels = nil
		if len(parcels) == 0 {
			q.busy = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		s.request(leader, id, parcels)
	}
}

func (s *sender) request(leader int32, id [16]byte, parcels []*parcel) {
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic, topic.TopicID = s.topic, id
	waiting := map[int32]*parcel{}
	for _, p := range parcels {
		if waiting[p.partition] != nil {
			// Somebody gave up waiting for the first; this one must not overtake it, and would be refused if it did.
			p.done <- sent{err: kerr.RequestTimedOut}
			continue
		}
		waiting[p.partition] = p
		part := kmsg.NewProduceRequestTopicPartition()
		part.Partition, part.Records = p.partition, p.batch
		topic.Partitions = append(topic.Partitions, part)
	}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, int32(produceTimeout.Milliseconds())
	req.Topics = append(req.Topics, topic)
	ctx, cancel := context.WithTimeout(s.life, sendLimit)
	defer cancel()
	resp, err := s.client.Broker(int(leader)).Request(ctx, req)
	if err == nil {
		for _, t := range resp.(*kmsg.ProduceResponse).Topics {
			for _, p := range t.Partitions {
				if w := waiting[p.Partition]; w != nil {
					delete(waiting, p.Partition)
					w.done <- sent{p.BaseOffset, kerr.ErrorForCode(p.ErrorCode)}
				}
			}
		}
		err = errors.New("the broker left a partition out of its answer")
	}
	for _, w := range waiting {
		w.done <- sent{err: err}
	}
}

// leader returns the broker that leads a partition.
func (s *sender) leader(ctx context.Context, partition int32) (int32, error) {
	if id, ok := s.known(partition); ok {
		return id, nil
	}
	s.refresh.Lock() // one asks, the others find what it found
	defer s.refresh.Unlock()
	if id, ok := s.known(partition); ok {
		return id, nil
	}
	if time.Since(s.asked) < freshness/4 {
		return 0, kerr.LeaderNotAvailable
	}
	s.asked = time.Now()
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &s.topic
	req.Topics = append(req.Topics, topic)
	ctx, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	resp, err := req.RequestWith(ctx, s.client)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return 0, err
		}
		s.topicID = t.TopicID
		for _, p := range t.Partitions {
			if p.Leader >= 0 {
				s.leaders[p.Partition] = p.Leader
			} else {
				delete(s.leaders, p.Partition)
			}
		}
	}
	if id, ok := s.leaders[partition]; ok {
		return id, nil
	}
	return 0, kerr.LeaderNotAvailable
}

func (s *sender) known(partition int32) (int32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.leaders[partition]
	return id, ok
}

// forget makes the next batch of a partition ask for its leader.
func (s *sender) forget(partition int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leaders, partition)
}

// pause waits about d; false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool { return wait.For(ctx, jitter(d)) }
