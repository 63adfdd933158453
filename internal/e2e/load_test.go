package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// codecs by topic suffix.
var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(),
	"zstd": kgo.ZstdCompression(),
}

// loadCodecs makes a topic of one partition for each codec, with and without idempotence.
func loadCodecs(tb testing.TB, src *testkafka.Cluster) (topics []string) {
	tb.Helper()
	for name, codec := range codecs {
		topic := "codec-" + name
		createTopic(tb, src, topic, 1, nil)
		opts := []kgo.Opt{kgo.ProducerBatchCompression(codec)}
		produce(tb, client(tb, src, append(opts, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))...), topic, 1, 300, 400)
		produce(tb, client(tb, src, opts...), topic, 1, 300, 400)
		topics = append(topics, topic)
	}
	return topics
}

// transact runs transactions on one partition: n records each, ended as told ('c' commit, 'a' abort, 'o' left open).
func transact(tb testing.TB, c *testkafka.Cluster, id, topic string, partition int32, n int, ends string) {
	tb.Helper()
	ctx := timeout(tb, time.Minute)
	cl := client(tb, c, kgo.TransactionalID(id), kgo.TransactionTimeout(10*time.Minute))
	for i, end := range ends {
		if err := cl.BeginTransaction(); err != nil {
			tb.Fatal(err)
		}
		for j := range n {
			r := &kgo.Record{Topic: topic, Partition: partition, Value: fmt.Appendf(nil, "%s/%d/%c/%d", id, i, end, j)}
			cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
				if err != nil {
					tb.Errorf("transactional produce: %v", err)
				}
			})
		}
		if err := cl.Flush(ctx); err != nil {
			tb.Fatal(err)
		}
		if end == 'o' {
			return // closing the client leaves the transaction open
		}
		if err := cl.EndTransaction(ctx, kgo.TransactionEndTry(end == 'c')); err != nil {
			tb.Fatal(err)
		}
	}
}

// loadOddities makes one topic for each odd kind of record.
func loadOddities(tb testing.TB, src *testkafka.Cluster) (topics []string) {
	tb.Helper()
	ctx := timeout(tb, time.Minute)
	createTopic(tb, src, "odd", 3, map[string]string{"max.message.bytes": "10000000"}) // partition 2 stays empty
	cl := client(tb, src, kgo.ProducerBatchMaxBytes(9<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))
	rs := []*kgo.Record{
		{Topic: "odd", Partition: 0, Key: nil, Value: []byte("null key")},
		{Topic: "odd", Partition: 0, Key: []byte("null value"), Value: nil},
		{Topic: "odd", Partition: 0, Key: []byte{}, Value: []byte{}},
		{Topic: "odd", Partition: 0, Value: []byte("headers"),
			Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a", Value: nil}, {Key: "", Value: []byte{0}}}},
		{Topic: "odd", Partition: 1, Value: []byte(strings.Repeat("five megabytes! ", 5<<20/16))},
		{Topic: "odd", Partition: 1, Value: []byte("after the big one")},
	}
	for _, r := range rs { // one batch each
		if err := cl.ProduceSync(ctx, r).FirstErr(); err != nil {
			tb.Fatal(err)
		}
	}
	return []string{"odd"}
}

// loadTrimmed makes a topic whose log starts in the middle of a batch.
func loadTrimmed(tb testing.TB, src *testkafka.Cluster, topic string, before int64) {
	tb.Helper()
	createTopic(tb, src, topic, 1, nil)
	cl := client(tb, src)
	produce(tb, cl, topic, 1, 500, 100)
	produce(tb, cl, topic, 1, 500, 100)
	deleteBefore(tb, src, topic, 0, before)
}

// deleteBefore moves the log start of a partition (DeleteRecords).
func deleteBefore(tb testing.TB, c *testkafka.Cluster, topic string, partition int32, before int64) {
	tb.Helper()
	offs := kadm.Offsets{}
	offs.AddOffset(topic, partition, before, -1)
	rs, err := kadm.NewClient(client(tb, c)).DeleteRecords(timeout(tb, 20*time.Second), offs)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		tb.Fatalf("delete records of %s: %v", topic, err)
	}
}

// loadCompacted makes a compacted topic in which the cleaner has left holes, and is not done yet.
func loadCompacted(tb testing.TB, src *testkafka.Cluster, topic string) {
	tb.Helper()
	createTopic(tb, src, topic, 1, map[string]string{"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"})
	cl := client(tb, src, kgo.ProducerBatchMaxBytes(64<<10), kgo.ProducerBatchCompression(kgo.NoCompression()))
	for range 6 {
		produce(tb, cl, topic, 1, 1000, 900) // the same 1000 keys each time
	}
	produce(tb, cl, topic, 1, 1500, 900) // 500 keys of their own at the end
	node := src.Node(src.Brokers()[0])
	eventually(tb, 90*time.Second, "the cleaner at work", func() error {
		if n := testkafka.LogBytes(node, topic, 0); n > 4<<20 {
			return fmt.Errorf("%d bytes", n)
		}
		return nil
	})
}

// holdCleaner keeps the cleaner off a topic from now on.
func holdCleaner(tb testing.TB, src *testkafka.Cluster, topic string) {
	tb.Helper()
	v := "9223372036854775807"
	rs, err := kadm.NewClient(client(tb, src)).AlterTopicConfigs(timeout(tb, 20*time.Second),
		[]kadm.AlterConfig{{Name: "min.compaction.lag.ms", Value: &v}}, topic)
	if err == nil {
		_, err = rs.On(topic, nil)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// flow keeps producing to all partitions of a topic until stopped; stop waits for the last acknowledgement and returns how
// many records went out.
func flow(tb testing.TB, c *testkafka.Cluster, topic string, partitions int32, perSecond int) (stop func() int) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cl := client(tb, c)
	var wg sync.WaitGroup
	n := 0
	wg.Go(func() {
		t := time.NewTicker(10 * time.Millisecond)
		defer t.Stop()
		for ctx.Err() == nil {
			for range max(1, perSecond/100) {
				cl.Produce(context.Background(), &kgo.Record{Topic: topic, Partition: int32(n) % partitions,
					Value: fmt.Appendf(nil, "flow %d", n)}, func(_ *kgo.Record, err error) {
					if err != nil {
						tb.Errorf("flow to %s: %v", topic, err)
					}
				})
				n++
			}
			select {
			case <-ctx.Done():
			case <-t.C:
			}
		}
		if err := cl.Flush(timeout(tb, time.Minute)); err != nil {
			tb.Errorf("flow to %s: %v", topic, err)
		}
	})
	var once sync.Once
	stop = func() int {
		once.Do(func() { cancel(); wg.Wait() })
		return n
	}
	tb.Cleanup(func() { stop() })
	return stop
}
