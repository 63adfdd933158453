package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

const (
	perSecond = 2000 // records of 1000 bytes: 2 MB/s
	warmUp    = 3 * time.Second
)

// steady compares how long a record takes from its acknowledgement to a consumer at the destination: produced there, to a
// topic of RF 3, and produced at the source and mirrored.
func (b *bed) steady(ctx context.Context) error {
	for _, c := range []struct {
		at    *testkafka.Cluster
		topic string
		rf    int16
	}{{b.dst, "lat-native", 3}, {b.src, "lat-mirror", 1}} {
		if err := makeTopic(ctx, c.at, c.topic, b.partitions, c.rf); err != nil {
			return err
		}
	}
	if err := b.shim.run("start", "--mirror", "bench", "--topics", "lat-mirror"); err != nil {
		return err
	}
	if err := b.settled(ctx, "lat-mirror"); err != nil {
		return err
	}
	native, err := stream(ctx, b.dst, b.dst, "lat-native", b.partitions, b.latency)
	if err != nil {
		return err
	}
	mirror, err := stream(ctx, b.src, b.dst, "lat-mirror", b.partitions, b.latency)
	if err != nil {
		return err
	}
	fmt.Println("Steady 2 MB/s, from acknowledgement to the consumer at the destination, ms (p50/p99/max):")
	fmt.Printf("  native %s\n  kmirror %s\n", native, mirror)
	bar("kmirror p99, ms (or no worse than native)", mirror.q(0.99), "<", max(50, native.q(0.99)))
	return nil
}

// settled waits until the topic is mirrored with its epochs raised, so that leadership no longer moves.
func (b *bed) settled(ctx context.Context, topic string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.dst.Bootstrap("CLIENT")...), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	var last kadm.PartitionDetails
	since := time.Now()
	return until(ctx, time.Minute, func() (bool, error) {
		ts, err := kadm.NewClient(cl).ListTopics(ctx, topic)
		if err != nil {
			return false, nil
		}
		now := ts[topic].Partitions
		for p, d := range now {
			if len(now) != b.partitions || last[p].LeaderEpoch != d.LeaderEpoch || len(d.ISR) < 5 {
				last, since = now, time.Now()
				return false, nil
			}
		}
		return len(now) == b.partitions && time.Since(since) > 2*time.Second, nil
	})
}

func makeTopic(ctx context.Context, c *testkafka.Cluster, topic string, partitions int, rf int16) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap("CLIENT")...))
	if err != nil {
		return err
	}
	defer cl.Close()
	_, err = kadm.NewClient(cl).CreateTopic(ctx, int32(partitions), rf, nil, topic)
	return err
}

// delays in milliseconds, sorted.
type delays []float64

func (d delays) q(f float64) float64 { return d[min(len(d)-1, int(f*float64(len(d))))] }

func (d delays) String() string {
	return fmt.Sprintf("%.1f / %.1f / %.1f (%d records)", d.q(0.5), d.q(0.99), d[len(d)-1], len(d))
}

// sender notes when each of its records was acknowledged.
type sender struct {
	mu     sync.Mutex
	acked  []time.Time
	failed error
}

// run sends a record for each place in acked, perSecond of them a second, with its number in front.
func (s *sender) run(ctx context.Context, prod *kgo.Client, topic string) {
	tick := time.NewTicker(time.Second / perSecond * 10)
	defer tick.Stop()
	total := len(s.acked)
	for i := 0; i < total && ctx.Err() == nil; i += 10 {
		<-tick.C
		for n := i; n < min(i+10, total); n++ {
			v := make([]byte, 1000)
			binary.BigEndian.PutUint64(v, uint64(n))
			prod.Produce(ctx, &kgo.Record{Topic: topic, Value: v}, func(_ *kgo.Record, err error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.acked[n] = time.Now()
				if err != nil {
					s.failed = err
				}
			})
		}
	}
}

// stream produces at one cluster, consumes at another, and returns the delays after the warm-up. Every record must arrive.
func stream(ctx context.Context, from, to *testkafka.Cluster, topic string, partitions int, d time.Duration) (delays, error) {
	ctx, cancel := context.WithTimeout(ctx, d+time.Minute)
	defer cancel()
	starts := map[string]map[int32]kgo.Offset{topic: {}}
	for p := range partitions {
		starts[topic][int32(p)] = kgo.NewOffset().AtStart()
	}
	cons, err := kgo.NewClient(kgo.SeedBrokers(to.Bootstrap("CLIENT")...), kgo.ConsumePartitions(starts), kgo.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer cons.Close()
	prod, err := kgo.NewClient(kgo.SeedBrokers(from.Bootstrap("CLIENT")...), kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite(),
		kgo.ProducerLinger(time.Millisecond), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		return nil, err
	}
	defer prod.Close()
	total := int(d.Seconds() * perSecond)
	sent, seen := sender{acked: make([]time.Time, total)}, make([]time.Time, total)
	var wg sync.WaitGroup
	wg.Go(func() { sent.run(ctx, prod, topic) })
	for got := 0; got < total; {
		fs := cons.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			wg.Wait()
			return nil, fmt.Errorf("%s: %d of %d records arrived: %w", topic, got, total, err)
		}
		now := time.Now()
		fs.EachRecord(func(r *kgo.Record) {
			seen[binary.BigEndian.Uint64(r.Value)] = now
			got++
		})
	}
	wg.Wait()
	if err := prod.Flush(ctx); err != nil {
		return nil, err
	}
	sent.mu.Lock()
	defer sent.mu.Unlock()
	if sent.failed != nil {
		return nil, sent.failed
	}
	var out delays
	for i := int(warmUp.Seconds() * perSecond); i < total; i++ {
		out = append(out, max(0, float64(seen[i].Sub(sent.acked[i]).Microseconds())/1000))
	}
	slices.Sort(out)
	return out, nil
}
