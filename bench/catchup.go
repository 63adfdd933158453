package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// result of one catch-up run.
type result struct {
	whole, copying time.Duration // from the request; from the first byte
	bytes          int64         // of the topic's log files at the source
	own            time.Duration // CPU of kmirror
	all            time.Duration // CPU of all brokers and kmirror
	source         time.Duration // CPU of the node that is copied from
}

func (r result) rate() float64                 { return float64(r.bytes) / 1e6 / r.copying.Seconds() }
func (r result) perGB(d time.Duration) float64 { return d.Seconds() / (float64(r.bytes) / 1e9) }

// catchUp copies the same amount of data by native followers ([1] -> [1,2,3]) and by kmirror (RF 3), alternating.
func (b *bed) catchUp(ctx context.Context) error {
	fmt.Printf("loading %d records of %d bytes, %d partitions: once at the destination, %d times at the source\n", b.records, b.size,
		b.partitions, b.runs+1)
	if err := b.load(ctx, b.dst, "nat", map[int32][]int32{0: {1}, 1: {1}, 2: {1}, 3: {1}}); err != nil {
		return err
	}
	for i := range b.runs + 1 {
		if err := b.load(ctx, b.src, fmt.Sprintf("big%d", i), nil); err != nil {
			return err
		}
	}
	var native, mirror []result
	for i := range b.runs + 1 {
		n, err := b.native(ctx)
		if err != nil {
			return fmt.Errorf("native run: %w", err)
		}
		k, err := b.mirror(ctx, fmt.Sprintf("big%d", i))
		if err != nil {
			return fmt.Errorf("kmirror run: %w", err)
		}
		what := fmt.Sprintf("run %d", i)
		if i == 0 {
			what = "warm-up"
		} else {
			native, mirror = append(native, n), append(mirror, k)
		}
		fmt.Printf("%-8s native %s | kmirror %s, own %.2f CPU-s/GB, %.1f s from the command\n", what, n, k, k.perGB(k.own), k.whole.Seconds())
	}
	nat, kmi := median(native, result.rate), median(mirror, result.rate)
	own := median(mirror, func(r result) float64 { return r.perGB(r.own) })
	peak := float64(b.shim.peak()) / 1e6
	fmt.Printf("\nCatch-up, medians of %d: native %.0f MB/s, kmirror %.0f MB/s\n", b.runs, nat, kmi)
	bar("kmirror / native catch-up rate", kmi/nat, ">=", 0.7)
	bar("kmirror's own CPU, s per GB", own, "<", 1.6)
	bar("kmirror's peak resident memory, MB", peak, "<", 400)
	for what, rs := range map[string][]result{"native, 2 copies": native, "kmirror, 3 copies": mirror} {
		fmt.Printf("  CPU-s per GB, %-18s all %.2f, the node copied from %.2f, the rest %.2f\n", what+":",
			median(rs, func(r result) float64 { return r.perGB(r.all) }), median(rs, func(r result) float64 { return r.perGB(r.source) }),
			median(rs, func(r result) float64 { return r.perGB(r.all - r.source - r.own) }))
	}
	fmt.Println()
	return nil
}

func (r result) String() string {
	return fmt.Sprintf("%.2f s %.0f MB/s", r.copying.Seconds(), r.rate())
}

// bar prints a figure beside what it is held against.
func bar(what string, got float64, op string, want float64) {
	ok := got >= want
	if op == "<" {
		ok = got < want
	}
	verdict := "holds"
	if !ok {
		verdict = "MISSED"
	}
	fmt.Printf("  %-40s %8.2f   bar %s %.3g: %s\n", what, got, op, want, verdict)
}

func median[T any](rs []T, f func(T) float64) float64 {
	var v []float64
	for _, r := range rs {
		v = append(v, f(r))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// load makes a topic and fills it.
func (b *bed) load(ctx context.Context, c *testkafka.Cluster, topic string, lists map[int32][]int32) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap("CLIENT")...), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite(), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(65536), kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(200_000))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	rs, err := adm.CreateTopics(ctx, int32(b.partitions), 1, nil, topic)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		return err
	}
	if lists != nil {
		if err := reassign(ctx, adm, topic, b.partitions, []int32{1}); err != nil {
			return err
		}
		if err := until(ctx, 30*time.Second, func() (bool, error) { return isr(ctx, adm, topic, 1) }); err != nil {
			return err
		}
	}
	value := []byte(strings.Repeat("kmirror bench ", b.size/14+1)[:b.size])
	var failed error
	for range b.records {
		cl.Produce(ctx, &kgo.Record{Topic: topic, Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	return failed
}

func reassign(ctx context.Context, adm *kadm.Client, topic string, partitions int, to []int32) error {
	var req kadm.AlterPartitionAssignmentsReq
	for p := range partitions {
		req.Assign(topic, int32(p), to)
	}
	rs, err := adm.AlterPartitionAssignments(ctx, req)
	if err == nil {
		err = rs.Error()
	}
	return err
}

// isr reports whether all partitions have exactly n replicas and all are in sync.
func isr(ctx context.Context, adm *kadm.Client, topic string, n int) (bool, error) {
	ts, err := adm.ListTopics(ctx, topic)
	if err != nil {
		return false, err
	}
	for _, p := range ts[topic].Partitions {
		if len(p.Replicas) != n || len(p.ISR) != n {
			return false, nil
		}
	}
	return true, nil
}

// native lets broker 1's followers copy the topic and takes their copies away again.
func (b *bed) native(ctx context.Context) (result, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.dst.Bootstrap("CLIENT")...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return result{}, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	r := result{bytes: b.logBytes(b.dst.Node(1), "nat")}
	before, begin := b.cpu(), time.Now()
	from, _, err := testkafka.Usage(b.dst.Node(1).PID())
	if err != nil {
		return r, err
	}
	if err := reassign(ctx, adm, "nat", b.partitions, []int32{1, 2, 3}); err != nil {
		return r, err
	}
	var first time.Time
	err = until(ctx, 5*time.Minute, func() (bool, error) {
		if first.IsZero() && b.logBytes(b.dst.Node(2), "nat")+b.logBytes(b.dst.Node(3), "nat") > 0 {
			first = time.Now()
		}
		if b.logBytes(b.dst.Node(2), "nat") < r.bytes || b.logBytes(b.dst.Node(3), "nat") < r.bytes {
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return r, err
	}
	r.whole, r.copying, r.all = time.Since(begin), time.Since(first), b.cpu()-before
	at, _, err := testkafka.Usage(b.dst.Node(1).PID())
	if r.source = at - from; err != nil {
		return r, err
	}
	if err := until(ctx, time.Minute, func() (bool, error) { return isr(ctx, adm, "nat", 3) }); err != nil {
		return r, err
	}
	if err := reassign(ctx, adm, "nat", b.partitions, []int32{1}); err != nil {
		return r, err
	}
	return r, until(ctx, time.Minute, func() (bool, error) {
		return b.logBytes(b.dst.Node(2), "nat")+b.logBytes(b.dst.Node(3), "nat") == 0, nil
	})
}

// mirror lets kmirror bring a topic of the source to all three brokers.
func (b *bed) mirror(ctx context.Context, topic string) (result, error) {
	r := result{bytes: b.logBytes(b.src.Node(1), topic)}
	before, begin := b.cpu(), time.Now()
	own, _, err := testkafka.Usage(b.shim.cmd.Process.Pid)
	if err != nil {
		return r, err
	}
	from, _, err := testkafka.Usage(b.src.Node(1).PID())
	if err != nil {
		return r, err
	}
	if err := b.shim.run("start", "--mirror", "bench", "--topics", topic); err != nil {
		return r, err
	}
	var first time.Time
	err = until(ctx, 5*time.Minute, func() (bool, error) {
		done, some := true, false
		for _, id := range []int32{1, 2, 3} {
			n := b.logBytes(b.dst.Node(id), topic)
			done, some = done && n >= r.bytes, some || n > 0
		}
		if some && first.IsZero() {
			first = time.Now()
		}
		return done, nil
	})
	if err != nil {
		return r, err
	}
	r.whole, r.copying, r.all = time.Since(begin), time.Since(first), b.cpu()-before
	at, _, err := testkafka.Usage(b.src.Node(1).PID())
	if err != nil {
		return r, err
	}
	end, _, err := testkafka.Usage(b.shim.cmd.Process.Pid)
	r.own, r.source = end-own, at-from
	return r, err
}

// logBytes adds up a topic's log files on a node.
func (b *bed) logBytes(n *testkafka.Node, topic string) int64 {
	var sum int64
	for p := range b.partitions {
		sum += max(testkafka.LogBytes(n, topic, int32(p)), 0)
	}
	return sum
}

// cpu is what brokers and kmirror have used so far.
func (b *bed) cpu() time.Duration {
	var sum time.Duration
	pids := []int{b.shim.cmd.Process.Pid}
	for _, n := range append(b.src.Nodes(), b.dst.Nodes()...) {
		pids = append(pids, n.PID())
	}
	for _, pid := range pids {
		d, _, _ := testkafka.Usage(pid)
		sum += d
	}
	return sum
}
