package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
)

const (
	// demoLineRate is how fast kmirror reads from A when the disaster comes, in bytes per second: a line that is slower than those
	// who write.
	demoLineRate = 50_000
	// demoBehind is how many records the mirror is behind at least when A is killed.
	demoBehind = 1000
	// writeAtOnce records go into each request of the writer, one every writeEvery.
	writeAtOnce = 20
	writeEvery  = 20 * time.Millisecond
)

// fork is where B took over from A.
type fork struct {
	// ends are B's log ends at the failover, by partition; bytes the size of its logs then.
	ends  map[int32]int64
	bytes int64
	// lost is what A has beyond.
	lost int64
}

// offsets sums up offsets by partition.
func offsets(m map[int32]int64) (sum int64) {
	for _, o := range m {
		sum += o
	}
	return sum
}

// writer writes to A until it is stopped or A is gone. While somebody holds mu it rests between two requests, all of the last one
// acknowledged.
type writer struct {
	mu     sync.Mutex
	ends   map[int32]int64 // A's log ends, as far as acknowledged
	cancel context.CancelFunc
	done   chan error // of what it was about to write at the end
}

// write starts a writer.
func (d *demo) write(ctx context.Context) (*writer, error) {
	ends, err := d.ends(ctx, d.a)
	if err != nil {
		return nil, err
	}
	// What is under way when A dies must end with the writer: it is not to arrive when A is back.
	cl, err := d.kafka(d.a, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.AllowIdempotentProduceCancellation())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &writer{ends: ends, cancel: cancel, done: make(chan error, 1)}
	go func() {
		defer cl.Close()
		w.done <- w.run(ctx, cl)
	}()
	return w, nil
}

func (w *writer) run(ctx context.Context, cl *kgo.Client) error {
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	for n := 2 * demoRecords; ; n += writeAtOnce {
		batch := make([]*kgo.Record, writeAtOnce)
		for i := range batch {
			batch[i] = order(n + i)
		}
		w.mu.Lock()
		rs := cl.ProduceSync(ctx, batch...)
		for _, r := range rs {
			if r.Err == nil {
				w.ends[r.Record.Partition] = max(w.ends[r.Record.Partition], r.Record.Offset+1)
			}
		}
		w.mu.Unlock()
		if err := rs.FirstErr(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// acked returns A's log ends, as far as acknowledged.
func (w *writer) acked() map[int32]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.ends)
}

// stop ends the writer, and fails when it was through with all that it had to write: then A was not killed while it wrote.
func (w *writer) stop() error {
	w.cancel()
	if err := <-w.done; err == nil {
		return errors.New("the writer was not interrupted")
	}
	return nil
}

// disaster kills A while it is written to and the mirror is behind, and fails over.
func (d *demo) disaster(ctx context.Context) error {
	w, err := d.write(ctx)
	if err != nil {
		return err
	}
	if err := d.await(ctx, "disaster", time.Minute, func(ctx context.Context) (string, bool, error) {
		n, err := d.behind(ctx, w)
		if err != nil {
			return err.Error(), false, nil
		}
		return fmt.Sprintf("a writer at work, the mirror %s records behind", grouped(n)), n >= demoBehind, nil
	}); err != nil {
		w.cancel()
		return err
	}
	pid := d.a.Node(1).PID()
	if err := d.killSource(ctx, w); err != nil {
		w.cancel()
		return err
	}
	plan, took, err := d.failOver(ctx)
	if err = errors.Join(err, w.stop()); err != nil {
		return err
	}
	back := make(chan error, 1)
	go func() { back <- d.a.Node(1).Start() }()
	if err := d.await(ctx, "disaster", 2*time.Minute, func(context.Context) (string, bool, error) {
		select {
		case err := <-back:
			return "", err == nil, err
		default:
			return "failed over; A comes back", false, nil
		}
	}); err != nil {
		return err
	}
	if err := d.shim.limit(0); err != nil { // whoever starts it again wants no slow line
		return err
	}
	return d.countLoss(ctx, plan, took, pid)
}

// behind is how many records of what A acknowledged B's consumers can't read yet.
func (d *demo) behind(ctx context.Context, w *writer) (int64, error) {
	at, err := d.described(ctx, func(p admin.PartitionInfo) *int64 { return p.DestinationOffset })
	if err != nil {
		return 0, err
	}
	return offsets(w.acked()) - offsets(at), nil
}

// described takes an offset of each partition out of describe; unknown ones are left out.
func (d *demo) described(ctx context.Context, offset func(admin.PartitionInfo) *int64) (map[int32]int64, error) {
	parts, err := d.shim.client.Describe(ctx, admin.DescribeRequest{Mirrors: []string{demoMirror}, Topics: []string{demoTopic}})
	if err != nil {
		return nil, err
	}
	out := map[int32]int64{}
	for _, p := range parts {
		if o := offset(p); o != nil {
			out[p.Partition] = *o
		}
	}
	return out, nil
}

// killSource kills A between two requests of the writer, once kmirror has heard of all that was acknowledged: what nobody at B has
// heard of, nobody there can count as lost. It returns when B has all that kmirror had read until then.
func (d *demo) killSource(ctx context.Context, w *writer) error {
	killAtRest := func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if err := d.await(ctx, "disaster", 30*time.Second, func(ctx context.Context) (string, bool, error) {
			known, err := d.described(ctx, func(p admin.PartitionInfo) *int64 { return p.SourceOffset })
			return "kmirror reads where A's logs end", err == nil && maps.Equal(known, w.ends), nil
		}); err != nil {
			return err
		}
		return d.a.Node(1).Kill()
	}
	if err := killAtRest(); err != nil {
		return err
	}
	var before map[int32]int64
	rests := 0
	return d.await(ctx, "disaster", 30*time.Second, func(ctx context.Context) (string, bool, error) {
		now, err := d.described(ctx, func(p admin.PartitionInfo) *int64 { return p.DestinationOffset })
		if rests++; err != nil || !maps.Equal(now, before) {
			before, rests = now, 0
		}
		return "A is killed; B takes what was on its way", rests >= 5, nil
	})
}

// failOver returns what --dry-run said would be lost, and how long all partitions took to accept a record.
func (d *demo) failOver(ctx context.Context) (plan int64, took time.Duration, err error) {
	if d.fork.ends, err = d.ends(ctx, d.b); err != nil {
		return 0, 0, err
	}
	d.fork.bytes = d.logBytes(d.b, 1)
	text, err := d.shim.command(ctx, "failover", "--mirror", demoMirror, "--topics", demoTopic, "--dry-run", "-o", "json")
	if err != nil {
		return 0, 0, err
	}
	var rows []partitionResult
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		return 0, 0, fmt.Errorf("kmirror failover --dry-run: %w", err)
	}
	for _, r := range rows {
		if r.Lost == nil {
			return 0, 0, fmt.Errorf("kmirror failover --dry-run does not know what is lost: %s", text)
		}
		plan += *r.Lost
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	type result struct {
		at  time.Time
		err error
	}
	writable := make(chan result, 1)
	go func() {
		var last time.Time
		accepted, err := testkafka.AwaitWritable(ctx, d.b, map[string]int32{demoTopic: demoPartitions}, 10*time.Millisecond)
		for _, at := range accepted {
			if at.After(last) {
				last = at
			}
		}
		writable <- result{last, err}
	}()
	began := time.Now()
	if _, err = d.shim.command(ctx, "failover", "--mirror", demoMirror, "--topics", demoTopic); err != nil {
		cancel()
	}
	r := <-writable
	return plan, r.at.Sub(began), errors.Join(err, r.err)
}

// countLoss compares what A has beyond B, now that it is back, with what was said.
func (d *demo) countLoss(ctx context.Context, plan int64, took time.Duration, pid int) error {
	ends, err := d.ends(ctx, d.a)
	if err != nil {
		return err
	}
	for p, end := range ends {
		if end < d.fork.ends[p] {
			return fmt.Errorf("%s-%d ends at %d on A and at %d on B", demoTopic, p, end, d.fork.ends[p])
		}
	}
	d.fork.lost = offsets(ends) - offsets(d.fork.ends)
	if d.fork.lost != plan || plan == 0 {
		return fmt.Errorf("--dry-run said that %d records would be lost, A has %d that B has not", plan, d.fork.lost)
	}
	d.line("disaster", fmt.Sprintf("A killed mid-write; dry-run: lose %s; failover %s; measured %s", grouped(plan), seconds(took),
		grouped(d.fork.lost)),
		fmt.Sprintf("kill -9 %d", pid),
		d.shim.line("failover", "--mirror", demoMirror, "--topics", demoTopic, "--dry-run"),
		d.shim.line("failover", "--mirror", demoMirror, "--topics", demoTopic),
		fmt.Sprintf("echo yes | kcat -P -b %s -t %s -X acks=all", d.servers(d.b), demoTopic),
		fmt.Sprintf("%s --bootstrap-server %s --topic %s", d.tool("org.apache.kafka.tools.GetOffsetShell"), d.servers(d.a), demoTopic))
	return nil
}
