package testkafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/protocol"
)

// AwaitWritable produces one record with acks=all to every partition of topics (name: partitions) of a cluster, again after a pause
// while it is refused, and returns when each was accepted. Begin it before what is to make them writable, so that its client knows
// the topics by then.
func AwaitWritable(ctx context.Context, c *Cluster, topics map[string]int32, pause time.Duration,
) (map[protocol.TopicPartition]time.Time, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap(ClientListener)...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.DisableIdempotentWrite(), kgo.ProducerLinger(0), kgo.RecordRetries(1),
		kgo.MetadataMinAge(pause), kgo.ProduceRequestTimeout(5*time.Second),
		// The default grows to seconds, which would be measured too.
		kgo.RetryBackoffFn(func(int) time.Duration { return pause }))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var due []protocol.TopicPartition
	for name, n := range topics {
		for p := range n {
			due = append(due, protocol.TopicPartition{Topic: name, Partition: p})
		}
	}
	type outcome struct {
		tp  protocol.TopicPartition
		err error
		at  time.Time
	}
	outcomes := make(chan outcome, len(due)) // one of each partition is under way at most, so nobody blocks
	accepted, total := map[protocol.TopicPartition]time.Time{}, len(due)
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var last error
	for len(accepted) < total {
		for _, tp := range due {
			cl.Produce(ctx, &kgo.Record{Topic: tp.Topic, Partition: tp.Partition, Value: []byte("writable")}, func(_ *kgo.Record, err error) {
				outcomes <- outcome{tp, err, time.Now()}
			})
		}
		due = due[:0]
		for wait := true; wait; {
			select {
			case <-ctx.Done():
				return accepted, fmt.Errorf("%d of %d partitions accept no record: %w (last refusal: %v)", total-len(accepted), total, ctx.Err(), last)
			case o := <-outcomes:
				if o.err == nil {
					accepted[o.tp] = o.at
				} else {
					due, last = append(due, o.tp), fmt.Errorf("%v: %w", o.tp, o.err)
				}
				wait = len(accepted) < total
			case <-tick.C:
				wait = len(due) == 0
			}
		}
	}
	return accepted, nil
}
