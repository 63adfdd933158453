package e2e

import (
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"kmirror/internal/testkafka"
	"kmirror/records"
)

// sequenced is a batch as an idempotent producer makes it.
type sequenced struct {
	id    int64
	epoch int16
	first int32
	n     int32
}

func (q sequenced) String() string {
	return fmt.Sprintf("id %d, epoch %d, sequences %d to %d", q.id, q.epoch, q.first, q.first+q.n-1)
}

func (q sequenced) bytes() []byte {
	var rs []byte
	for i := range q.n {
		r := kmsg.NewRecord()
		r.OffsetDelta, r.Value = i, fmt.Appendf(nil, "%d/%d/%d", q.id, q.epoch, q.first+i)
		r.Length = int32(len(r.AppendTo(nil)) - 1) // a length below 64 takes one byte
		rs = r.AppendTo(rs)
	}
	b := kmsg.NewRecordBatch()
	b.Magic, b.NumRecords, b.LastOffsetDelta, b.Records = 2, q.n, q.n-1, rs
	b.PartitionLeaderEpoch, b.ProducerID, b.ProducerEpoch, b.FirstSequence = -1, q.id, q.epoch, q.first
	b.FirstTimestamp = time.Now().UnixMilli()
	b.MaxTimestamp = b.FirstTimestamp
	b.Length = int32(len(b.AppendTo(nil)) - 12)
	b.CRC = int32(crc32.Checksum(b.AppendTo(nil)[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b.AppendTo(nil)
}

// hand produces hand-made batches to partition 0 of a topic.
type hand struct {
	tb    testing.TB
	to    *kgo.Broker
	topic string
}

func handAt(tb testing.TB, c *testkafka.Cluster, topic string) *hand {
	tb.Helper()
	d, err := replicasOf(tb, c, topic)
	if err != nil {
		tb.Fatal(err)
	}
	v := kversion.Stable()
	v.SetMaxKeyVersion(int16(kmsg.Produce), 9) // later ones go by topic id
	return &hand{tb, client(tb, c, kgo.MaxVersions(v)).Broker(int(d.Partitions[0].Leader)), topic}
}

// put produces a batch and returns the offset that it was acknowledged with.
func (h *hand) put(q sequenced) (int64, error) {
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 10000
	t := kmsg.NewProduceRequestTopic()
	t.Topic = h.topic
	p := kmsg.NewProduceRequestTopicPartition()
	p.Records = q.bytes()
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := h.to.Request(timeout(h.tb, 20*time.Second), req)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", q, err)
	}
	rp := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	if rp.ErrorCode != 0 {
		return -1, fmt.Errorf("%s: error %d", q, rp.ErrorCode)
	}
	return rp.BaseOffset, nil
}

// putAll produces many batches at once.
func (h *hand) putAll(qs []sequenced) {
	h.tb.Helper()
	var wg sync.WaitGroup
	limit := make(chan struct{}, 64)
	for _, q := range qs {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			if _, err := h.put(q); err != nil {
				h.tb.Error(err)
			}
		})
	}
	wg.Wait()
	if h.tb.Failed() {
		h.tb.FailNow()
	}
}

// mirroredIDs are those of the batches below an offset.
func mirroredIDs(batches []records.Batch, end int64) []int64 {
	ids := map[int64]bool{}
	for _, b := range batches {
		if b.BaseOffset() < end && b.ProducerID() >= 0 {
			ids[b.ProducerID()] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// producerIDs: after a failover a producer whose id, epoch and sequence came from the source is nobody special. The ids are those
// that the destination's brokers give out as well, which each begin with a thousand of their own.
func (b *bed) producerIDs(t *testing.T) {
	const topic, ids, late = "ids", 3000, 2990
	b.mirror(t, topic, 1, func() {
		h := handAt(t, b.src, topic)
		qs := make([]sequenced, ids)
		for i := range qs {
			qs[i] = sequenced{id: int64(i), n: 2}
		}
		qs[late].epoch = 5
		h.putAll(qs)
		h.putAll([]sequenced{{id: late, epoch: 5, first: 2, n: 2}})
	})
	took := b.s.verb("failover", topic)
	leads(t, b.dst, topic, 3, time.Minute) // one that was fenced for want of time is back
	log := batchesOf(t, b.dst.Node(2), topic, 0)
	end, aborted := tailOf(t, log)
	t.Logf("%d producer ids: failed over in %s", len(aborted), took)
	if mirrored := mirroredIDs(log, end); len(mirrored) != ids || !slices.Equal(mirrored, aborted) {
		t.Errorf("%d producer ids were mirrored, %d have a marker", len(mirrored), len(aborted))
	}
	if took > patience(10*time.Second) {
		t.Errorf("the failover took %s", took)
	}
	next := endOffsets(t, b.dst, topic)[tp{topic, 0}]
	h := handAt(t, b.dst, topic)
	for _, q := range []sequenced{
		{id: 2500, n: 2},                     // what is there already: the same sequences
		{id: 2501, first: 2, n: 2},           // the next ones
		{id: 2502, n: 1},                     // from 0 on, in another batch
		{id: 2503, first: 7, n: 2},           // with a gap
		{id: 2504, epoch: 9, n: 2},           // a later epoch
		{id: 2505, epoch: 9, first: 5, n: 2}, // of which something is missing
		{id: late, epoch: 3, n: 2},           // an older one
		{id: late + 1, epoch: 0, n: 1},
	} {
		for _, again := range []bool{false, true} {
			at, err := h.put(q)
			if err != nil || at != next {
				t.Errorf("%s, again %v: acknowledged at %d, want %d (%v)", q, again, at, next, err)
			}
			if now := endOffsets(t, b.dst, topic)[tp{topic, 0}]; now != next+int64(q.n) {
				t.Errorf("%s, again %v: the log ends at %d, want %d", q, again, now, next+int64(q.n))
			}
		}
		next += int64(q.n)
	}
	b.realProducers(t, topic, next, ids)
	b.stopped = append(b.stopped, topic)
}

// realProducers writes with the clients that people have and wants every record there, of producers whose ids were mirrored.
func (b *bed) realProducers(t *testing.T, topic string, from int64, ids int64) {
	brokers := strings.Join(b.dst.Bootstrap("CLIENT"), ",")
	want := map[string]int{}
	for i := range 4 { // a new producer each
		v := fmt.Sprintf("franz-go %d", i)
		writable(t, b.dst, topic, v, v)
		want[v] += 2
		transact(t, b.dst, fmt.Sprintf("franz-%d", i), topic, 0, 2, "ca")
		for j := range 2 {
			want[fmt.Sprintf("franz-%d/0/c/%d", i, j)]++
		}
	}
	console := testkafka.Tool(timeout(t, time.Minute), "", "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", brokers, "--topic", topic,
		"--command-property", "enable.idempotence=true")
	console.Stdin = strings.NewReader("console 1\nconsole 2\n")
	want["console 1"], want["console 2"] = 1, 1
	const transactional = 25
	perf := testkafka.Tool(timeout(t, time.Minute), "", "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records",
		fmt.Sprint(transactional), "--record-size", "33", "--throughput", "-1", "--bootstrap-server", brokers, "--transactional-id", "java",
		"--transaction-duration-ms", "50")
	for name, cmd := range map[string]interface{ CombinedOutput() ([]byte, error) }{"console producer": console, "transactional Java producer": perf} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%.2000s", name, err, out)
		}
	}
	noneHangs(t, b.dst) // until then the last transaction's records are not committed for readers
	java := 0
	for _, v := range valuesIn(t, b.dst, topic, 0, kgo.ReadCommitted()) {
		if want[v] > 0 {
			want[v]--
		} else if len(v) == 33 {
			java++
		}
	}
	for v, n := range want {
		if n != 0 {
			t.Errorf("%d records %q were acknowledged and are not there", n, v)
		}
	}
	if java != transactional {
		t.Errorf("%d records of the transactional Java producer are there, want %d", java, transactional)
	}
	collided := map[int64]bool{}
	for _, q := range batchesOf(t, b.dst.Node(2), topic, 0) {
		if id := q.ProducerID(); q.BaseOffset() >= from && id >= 0 && id < ids {
			collided[id] = true
		}
	}
	if len(collided) != 10 {
		t.Errorf("10 producers wrote, %d of them under ids that were mirrored: %v", len(collided), slices.Sorted(maps.Keys(collided)))
	}
}
