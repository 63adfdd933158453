package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
	"kmirror/protocol"
	"kmirror/statemachine"
)

const (
	// failoverBar is what a failover may take, in seconds.
	failoverBar = 3
	// failoverRecords go into each partition, by failoverProducers idempotent producers: each leaves a producer id behind, which a
	// stop must close.
	failoverRecords   = 40
	failoverProducers = 4
	// failoverQuiet is how long leader epochs must have rested before a run: raising them goes on in the background.
	failoverQuiet = 3 * time.Second
)

// failover measures how long many partitions with data take to be writable, from the command on.
func (b *bed) failover(ctx context.Context) error {
	client, err := admin.NewClient(admin.ClientConfig{Addresses: []string{b.shim.admin}, ClientID: "kmirror-bench"})
	if err != nil {
		return err
	}
	defer client.Close()
	fmt.Printf("Failover of %d partitions in %d topics, %d records of %d bytes and %d producer ids each:\n",
		b.failing-b.failing%b.topics, b.topics, failoverRecords, b.size, failoverProducers)
	var runs []failoverRun
	for i := range b.runs {
		r, err := b.failoverOnce(ctx, client, fmt.Sprintf("fail%d-", i))
		if err != nil {
			return fmt.Errorf("failover run %d: %w", i+1, err)
		}
		runs = append(runs, r)
		fmt.Printf("  run %d: first writable %.2f s, half %.2f s, all %.2f s; the command returned after %.2f s; kmirror used %.2f CPU-s, with the brokers %.2f\n",
			i+1, r.writable[0].Seconds(), r.writable[len(r.writable)/2].Seconds(), r.all().Seconds(), r.command.Seconds(), r.own.Seconds(),
			r.cpu.Seconds())
		if b.phases || r.all().Seconds() > failoverBar {
			r.print()
		}
	}
	bar("all partitions writable, s", median(runs, func(r failoverRun) float64 { return r.all().Seconds() }), "<", failoverBar)
	return nil
}

// failoverRun is one failover. Times are from the command on.
type failoverRun struct {
	writable []time.Duration // when each partition accepted a record, sorted
	command  time.Duration   // until it returned
	own, cpu time.Duration   // CPU of kmirror, and of it with all brokers
	phases   []phase
}

func (r failoverRun) all() time.Duration { return r.writable[len(r.writable)-1] }

func (r failoverRun) print() {
	for _, p := range r.phases {
		fmt.Printf("    %7.3f - %7.3f s  %5d  %s", p.first.Seconds(), p.last.Seconds(), p.count, p.name)
		if p.runs > 0 {
			fmt.Printf(": %d runs, %.3f s together", p.runs, p.took.Seconds())
		}
		fmt.Println()
	}
}

// failoverOnce mirrors new topics and fails them over.
func (b *bed) failoverOnce(ctx context.Context, client *admin.Client, prefix string) (r failoverRun, err error) {
	topics := map[string]int32{}
	for i := range b.topics {
		topics[fmt.Sprintf("%s%d", prefix, i)] = int32(b.failing / b.topics)
	}
	if err := b.fill(ctx, topics); err != nil {
		return r, fmt.Errorf("loading: %w", err)
	}
	pattern := "/" + prefix + ".*/"
	// On a busy machine topics may take longer to create than a command waits, and be in the middle of it for the next one.
	var refused error
	if err := poll(ctx, 5*time.Minute, time.Second, func() (bool, error) {
		refused = b.shim.run("start", "--mirror", "bench", "--topics", pattern)
		return refused == nil, nil
	}); err != nil {
		return r, errors.Join(err, refused)
	}
	if err := b.ready(ctx, client, pattern); err != nil {
		return r, err
	}
	before, _, err := testkafka.Usage(b.shim.cmd.Process.Pid)
	if err != nil {
		return r, err
	}
	all := b.cpu()
	began, accepted, err := b.command(ctx, &r, topics, pattern)
	if err != nil {
		return r, err
	}
	for _, at := range accepted {
		r.writable = append(r.writable, at.Sub(began))
	}
	slices.Sort(r.writable)
	after, _, err := testkafka.Usage(b.shim.cmd.Process.Pid)
	if err != nil {
		return r, err
	}
	r.own, r.cpu = after-before, b.cpu()-all
	if r.phases, err = b.shim.phases(began, time.Now()); err != nil {
		return r, err
	}
	return r, b.dropTopics(ctx, topics)
}

// command fails topics over while a producer tries each of their partitions, and returns when it began and when they accepted records.
func (b *bed) command(ctx context.Context, r *failoverRun, topics map[string]int32, pattern string,
) (began time.Time, accepted map[protocol.TopicPartition]time.Time, err error) {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		limited, cancel := context.WithTimeout(gctx, 2*time.Minute)
		defer cancel()
		var err error
		accepted, err = testkafka.AwaitWritable(limited, b.dst, topics, 50*time.Millisecond)
		return err
	})
	g.Go(func() error {
		// The producer gets to know the topics first.
		warm := time.NewTimer(time.Second)
		defer warm.Stop()
		select {
		case <-warm.C:
		case <-gctx.Done():
			return gctx.Err()
		}
		began = time.Now()
		err := b.shim.run("failover", "--mirror", "bench", "--topics", pattern)
		r.command = time.Since(began)
		return err
	})
	err = g.Wait()
	return began, accepted, err
}

// fill makes the topics at the source and gives every partition its records, by several producers.
func (b *bed) fill(ctx context.Context, topics map[string]int32) error {
	var names []string
	partitions := int32(0)
	for name, n := range topics {
		names, partitions = append(names, name), n
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.src.Bootstrap(testkafka.ClientListener)...))
	if err != nil {
		return err
	}
	defer cl.Close()
	rs, err := kadm.NewClient(cl).CreateTopics(ctx, partitions, 1, nil, names...)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		return err
	}
	value := []byte(strings.Repeat("kmirror bench ", b.size/14+1)[:b.size])
	for range failoverProducers {
		if err := b.fillAs(ctx, names, partitions, value); err != nil {
			return err
		}
	}
	return nil
}

// fillAs writes as one producer.
func (b *bed) fillAs(ctx context.Context, names []string, partitions int32, value []byte) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.src.Bootstrap(testkafka.ClientListener)...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.UnknownTopicRetries(-1))
	if err != nil {
		return err
	}
	defer cl.Close()
	var records []*kgo.Record
	for range failoverRecords / failoverProducers {
		for _, name := range names {
			for p := range partitions {
				records = append(records, &kgo.Record{Topic: name, Partition: p, Value: value})
			}
		}
	}
	return cl.ProduceSync(ctx, records...).FirstErr()
}

// ready waits until all partitions are mirrored without lag, with every real broker in sync and leader epochs at rest.
func (b *bed) ready(ctx context.Context, client *admin.Client, pattern string) error {
	epochs, since, says := int64(-1), time.Now(), "nothing"
	err := poll(ctx, 5*time.Minute, 500*time.Millisecond, func() (bool, error) {
		parts, err := client.Describe(ctx, admin.DescribeRequest{Mirrors: []string{"bench"}, Topics: []string{pattern}})
		if err != nil {
			return false, err
		}
		now, settled := int64(0), 0
		for _, p := range parts {
			if p.State == statemachine.Mirroring.String() && p.Lag != nil && *p.Lag == 0 && len(p.ISRReal) == len(b.dst.Brokers()) {
				settled++
			}
			if p.DestinationEpoch != nil {
				now += int64(*p.DestinationEpoch)
			}
		}
		says = fmt.Sprintf("%d of %d partitions are settled", settled, len(parts))
		if now != epochs || settled < len(parts) || settled == 0 {
			epochs, since = now, time.Now()
		}
		return time.Since(since) > failoverQuiet, nil
	})
	if err != nil {
		return errors.Join(err, errors.New(says))
	}
	return nil
}

// dropTopics makes room for the next run.
func (b *bed) dropTopics(ctx context.Context, topics map[string]int32) error {
	for _, c := range []*testkafka.Cluster{b.src, b.dst} {
		cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...))
		if err != nil {
			return err
		}
		var names []string
		for name := range topics {
			names = append(names, name)
		}
		rs, err := kadm.NewClient(cl).DeleteTopics(ctx, names...)
		cl.Close()
		if err == nil {
			err = rs.Error()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// phase is one kind of thing in kmirror's log: when it was there first and last since a moment, and for how many partitions.
type phase struct {
	name        string
	first, last time.Duration
	count       int
	// runs of a task took that long together.
	runs int
	took time.Duration
}

// phases reads kmirror's log between two moments: partitions that change their state or get on with their stop, and the manager's
// tasks, whose begin and end are told.
func (s *shim) phases(from, to time.Time) ([]phase, error) {
	f, err := os.Open(s.log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := map[string]*phase{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var l struct {
			Time       time.Time
			Msg        string
			To, Step   string
			Name       string
			Partitions int
			Took       time.Duration
		}
		if json.Unmarshal(lines.Bytes(), &l) != nil || l.Time.Before(from) || l.Time.After(to) {
			continue
		}
		at, n := l.Time.Sub(from), 1
		first := at
		var name string
		switch l.Msg {
		case "partition state":
			name = "partitions become " + l.To
		case "partition stop":
			name = "partitions are " + l.Step
		case "task":
			// Tasks of one topic each are counted together.
			name, _, _ = strings.Cut(l.Name, " fail")
			name, n, first = "task: "+name, l.Partitions, at-l.Took
		default:
			continue
		}
		p := found[name]
		if p == nil {
			p = &phase{name: name, first: first}
			found[name] = p
		}
		p.first, p.last, p.count = min(p.first, first), max(p.last, at), p.count+n
		if l.Msg == "task" {
			p.runs, p.took = p.runs+1, p.took+l.Took
		}
	}
	var out []phase
	for _, p := range found {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b phase) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.name, b.name)) })
	return out, lines.Err()
}
