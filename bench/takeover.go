package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// takeoverBar is for how long mirroring may rest when a process is killed, in seconds.
const takeoverBar = 4

// takeover measures for how long mirroring rests when one of two processes is killed: from SIGKILL until a record that was
// produced at the source after it can be read at the destination, from every partition.
func (b *bed) takeover(ctx context.Context) error {
	const topic = "takeover"
	if err := makeTopic(ctx, b.src, topic, b.partitions, 1); err != nil {
		return err
	}
	if err := b.shim.run("start", "--mirror", "bench", "--topics", topic); err != nil {
		return err
	}
	set := b.settings
	set.profile = ""
	other, err := startShim(ctx, set, filepath.Join(b.shim.dir, "other"), 9003, b.dst)
	if err != nil {
		return err
	}
	defer other.stop()
	fmt.Printf("Takeover from a killed process, %d partitions, one of two processes killed:\n", b.partitions)
	var runs []takeoverRun
	for i := range b.runs {
		led, err := b.shared(ctx, topic)
		if err != nil {
			return fmt.Errorf("takeover run %d: %w", i+1, err)
		}
		r, err := b.takeoverOnce(ctx, other, topic)
		if err != nil {
			return fmt.Errorf("takeover run %d: %w", i+1, err)
		}
		runs = append(runs, r)
		fmt.Printf("  run %d: it led %d; first readable %.2f s, all %.2f s after SIGKILL\n", i+1, led, r[0].Seconds(), r.all().Seconds())
		if err := other.start(ctx); err != nil {
			return err
		}
	}
	bar("takeover from a killed process, s", median(runs, func(r takeoverRun) float64 { return r.all().Seconds() }), "<", takeoverBar)
	return nil
}

// takeoverRun is when each partition's record was readable, sorted.
type takeoverRun []time.Duration

func (r takeoverRun) all() time.Duration { return r[len(r)-1] }

func (b *bed) takeoverOnce(ctx context.Context, victim *shim, topic string) (takeoverRun, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	from := map[int32]kgo.Offset{}
	for p := range b.partitions {
		from[int32(p)] = kgo.NewOffset().AtStart()
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(b.dst.Bootstrap("CLIENT")...), kgo.MetadataMinAge(100*time.Millisecond),
		// As Java consumers: a fetch under way holds up those of partitions that come to the same broker meanwhile.
		kgo.FetchMaxWait(500*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	producer, err := kgo.NewClient(kgo.SeedBrokers(b.src.Bootstrap("CLIENT")...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	var run takeoverRun
	began := time.Now()
	for round := range 2 { // the first lets both clients get to know everybody
		if round == 1 {
			began = time.Now()
			if err := victim.cmd.Process.Kill(); err != nil {
				return nil, err
			}
			_ = victim.cmd.Wait()
		}
		due := map[int32]int64{}
		for p := range b.partitions {
			r := &kgo.Record{Topic: topic, Partition: int32(p), Value: fmt.Append(nil, round)}
			if err := producer.ProduceSync(ctx, r).FirstErr(); err != nil {
				return nil, err
			}
			due[r.Partition] = r.Offset
		}
		for len(due) > 0 {
			fetches := consumer.PollFetches(ctx)
			if ctx.Err() != nil {
				return nil, fmt.Errorf("records of %d partitions can't be read", len(due))
			}
			fetches.EachRecord(func(r *kgo.Record) {
				if at, ok := due[r.Partition]; ok && r.Offset >= at {
					delete(due, r.Partition)
					if round == 1 {
						run = append(run, time.Since(began))
					}
				}
			})
		}
	}
	slices.Sort(run)
	return run, nil
}

// shared waits until two processes share a topic, with all replicas in sync, and returns how many partitions the second one leads.
func (b *bed) shared(ctx context.Context, topic string) (led int, err error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.dst.Bootstrap("CLIENT")...), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	since := time.Now()
	err = until(ctx, 2*time.Minute, func() (bool, error) {
		ts, err := kadm.NewClient(cl).ListTopics(ctx, topic)
		if err != nil {
			return false, nil
		}
		before := led
		led = 0
		for _, d := range ts[topic].Partitions {
			if len(d.ISR) != 6 || len(d.Replicas) != 6 || d.Leader < 9001 {
				since = time.Now()
				return false, nil
			}
			if d.Leader > 9002 {
				led++
			}
		}
		if led != before || led == 0 || led == b.partitions {
			since = time.Now()
		}
		return time.Since(since) > 2*time.Second, nil
	})
	return led, err
}
