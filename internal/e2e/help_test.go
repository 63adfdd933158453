package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// tp names a partition.
type tp struct {
	topic     string
	partition int32
}

// inLong reports whether this is make long, which has time and the machine for itself.
func inLong() bool { return os.Getenv("KMIRROR_LONG") != "" }

// onlyInLong leaves a test to make long: all of them together would take make test beyond its time.
func onlyInLong(t *testing.T) {
	t.Helper()
	if !inLong() {
		t.Skip("takes minutes; make long runs it")
	}
}

// patience makes a limit that only ends a wait, and claims nothing, long enough for a machine with much else to do: make test runs there too.
func patience(limit time.Duration) time.Duration {
	if inLong() {
		return limit
	}
	return 3 * limit
}

// eventually tries until it works; the last reason is the failure. How long something may take at most is measured where it is a claim: the
// limit here ends the wait, and is stretched by patience.
func eventually(tb testing.TB, limit time.Duration, what string, try func() error) {
	tb.Helper()
	limit = patience(limit)
	begin, wait := time.Now(), 20*time.Millisecond
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Since(begin) > limit {
			tb.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		time.Sleep(wait)
		wait = min(2*wait, 500*time.Millisecond)
	}
}

// polled asks again and again until it is done, or for as long as limit; it reports which.
func polled(limit time.Duration, done func() bool) bool {
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if done() {
			return true
		}
		if time.Since(begin) > limit {
			return false
		}
	}
}

func freePort(tb testing.TB) int { return freePorts(tb, 1) }

// freePorts returns the first of n ports in a row that are free and that nobody else in these tests is given.
func freePorts(tb testing.TB, n int) int {
	tb.Helper()
	p, err := testkafka.FreePorts(n)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// portPair returns two ports in a row: a listener's second node id has the next port.
func portPair(tb testing.TB) int { return freePorts(tb, 2) }

// client is a franz-go client of a cluster that ends with the test. At a secure cluster it may do everything.
func client(tb testing.TB, c *testkafka.Cluster, opts ...kgo.Opt) *kgo.Client {
	tb.Helper()
	cl, err := kgo.NewClient(slices.Concat(c.Opts(), []kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(100 * time.Millisecond)}, opts)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cl.Close)
	return cl
}

// timeout is a context for what is to succeed, with patience; what is to fail would take that long.
func timeout(tb testing.TB, d time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience(d))
	tb.Cleanup(cancel)
	return ctx
}

// createTopic makes a topic and returns when it has leaders.
func createTopic(tb testing.TB, c *testkafka.Cluster, name string, partitions int32, configs map[string]string) {
	tb.Helper()
	adm := kadm.NewClient(client(tb, c))
	cfg := map[string]*string{}
	for k, v := range configs {
		cfg[k] = &v
	}
	created(tb, c, name, func() error {
		rs, err := adm.CreateTopics(timeout(tb, 30*time.Second), partitions, -1, cfg, name)
		if err == nil {
			err = rs.Error()
		}
		return err
	})
}

// created is made, and returns when the topic has leaders.
func created(tb testing.TB, c *testkafka.Cluster, name string, ask func() error) {
	tb.Helper()
	made(tb, name, ask)
	adm := kadm.NewClient(client(tb, c))
	eventually(tb, 30*time.Second, "leaders of "+name, func() error {
		offs, err := adm.ListEndOffsets(timeout(tb, 5*time.Second), name)
		if err != nil {
			return err
		}
		return offs.Error()
	})
}

// made asks for a topic until it is made.
func made(tb testing.TB, name string, ask func() error) {
	tb.Helper()
	tried := false
	// A broker that the controller has just fenced, on a machine that had no time for it, is missed only for now.
	eventually(tb, 30*time.Second, "create "+name, func() error {
		err := ask()
		if tried && errors.Is(err, kerr.TopicAlreadyExists) {
			return nil // by the try before, whose answer was lost
		}
		tried = true
		return err
	})
}

// endOffsets are the high watermarks of topics. A leader that has just been elected may not know its own yet.
func endOffsets(tb testing.TB, c *testkafka.Cluster, topics ...string) map[tp]int64 {
	tb.Helper()
	out := map[tp]int64{}
	adm := kadm.NewClient(client(tb, c))
	eventually(tb, 30*time.Second, fmt.Sprintf("end offsets of %v", topics), func() error {
		offs, err := adm.ListEndOffsets(timeout(tb, 20*time.Second), topics...)
		if err == nil {
			err = offs.Error()
		}
		offs.Each(func(o kadm.ListedOffset) { out[tp{o.Topic, o.Partition}] = o.Offset })
		return err
	})
	return out
}

// produce writes n records of about size bytes to each of the partitions, waits for all of them, and fails the test otherwise.
func produce(tb testing.TB, cl *kgo.Client, topic string, partitions int32, n, size int) {
	tb.Helper()
	var recs []*kgo.Record
	pad := strings.Repeat("x", size)
	for p := range partitions {
		for i := range n {
			recs = append(recs, &kgo.Record{Topic: topic, Partition: p, Key: fmt.Appendf(nil, "k%d", i), Value: fmt.Appendf(nil, "%d/%d/%s", p, i, pad)})
		}
	}
	if err := cl.ProduceSync(timeout(tb, time.Minute), recs...).FirstErr(); err != nil {
		tb.Fatalf("produce to %s: %v", topic, err)
	}
}

// sameSegments compares a topic's segment files on the source's leader (a single node) with those of every broker of the
// destination that holds a replica, and wants at least replicas of them.
func sameSegments(tb testing.TB, src, dst *testkafka.Cluster, topic string, partitions int32, replicas int) {
	tb.Helper()
	eventually(tb, 30*time.Second, "equal segments of "+topic, func() error {
		for p := range partitions {
			want, err := sums(src, topic, p)
			if err != nil || len(want) != 1 {
				return fmt.Errorf("%s-%d: source has %d different copies, err %v", topic, p, len(want), err)
			}
			got, err := sums(dst, topic, p)
			if err != nil {
				return err
			}
			n := 0
			for sum, nodes := range got {
				if want[sum] == nil {
					return fmt.Errorf("%s-%d differs on brokers %v: %s, want %v", topic, p, nodes, sum, slices.Collect(maps.Keys(want)))
				}
				n += len(nodes)
			}
			if n < replicas {
				return fmt.Errorf("%s-%d is on %d brokers, want %d", topic, p, n, replicas)
			}
		}
		return nil
	})
}

// sums groups the nodes of a cluster by what their copy of a partition looks like: names and digests of its segments.
// Empty segments count as not there, since brokers roll at other moments than their leader.
func sums(c *testkafka.Cluster, topic string, partition int32) (map[string][]int32, error) {
	out := map[string][]int32{}
	for _, n := range c.Nodes() {
		if !n.Broker {
			continue
		}
		if len(testkafka.SegmentFiles(n, topic, partition)) == 0 {
			continue
		}
		s, err := testkafka.SegmentSums(n, topic, partition)
		if err != nil {
			return nil, err
		}
		var b strings.Builder
		for _, f := range slices.Sorted(maps.Keys(s)) {
			fmt.Fprintf(&b, "%s:%.16s ", f, s[f])
		}
		out[b.String()] = append(out[b.String()], n.ID)
	}
	return out, nil
}
