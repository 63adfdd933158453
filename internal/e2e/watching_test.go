package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
	"kmirror/protocol"
)

// tail is a consumer that reads a topic all the time and keeps every record it was given.
type tail struct {
	topic string
	mu    sync.Mutex
	seen  [][]string // values by partition and offset
	wrong []string
}

// follow starts a consumer of all partitions of a topic without transactions, from offset 0. It never goes by a reset
// policy: an offset that is out of range, or lost, is something wrong.
func follow(tb testing.TB, c *testkafka.Cluster, topic string, partitions int32) *tail {
	tb.Helper()
	f := &tail{topic: topic, seen: make([][]string, partitions)}
	from := map[int32]kgo.Offset{}
	for p := range partitions {
		from[p] = kgo.NewOffset().At(0)
	}
	cl, err := kgo.NewClient(append(c.Opts(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.FetchMaxWait(200*time.Millisecond), kgo.MetadataMinAge(100*time.Millisecond),
		kgo.MetadataMaxAge(2*time.Second),
		// By default franz-go holds on to a preferred replica that is dead for half an hour; others ask the leader at once.
		kgo.RecheckPreferredReplicaInterval(2*time.Second))...)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			f.take(cl.PollFetches(ctx))
		}
	})
	tb.Cleanup(func() { cancel(); wg.Wait(); cl.Close() })
	return f
}

func (f *tail) take(fs kgo.Fetches) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fs.EachError(func(_ string, p int32, err error) {
		if !errors.Is(err, context.Canceled) {
			f.wrong = append(f.wrong, fmt.Sprintf("partition %d: %v", p, err))
		}
	})
	fs.EachRecord(func(r *kgo.Record) {
		if due := int64(len(f.seen[r.Partition])); r.Offset != due {
			f.wrong = append(f.wrong, fmt.Sprintf("partition %d: offset %d came where %d was due", r.Partition, r.Offset, due))
			return
		}
		f.seen[r.Partition] = append(f.seen[r.Partition], string(r.Value))
	})
}

// at returns the next offset of each partition.
func (f *tail) at() []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]int64, len(f.seen))
	for p, s := range f.seen {
		out[p] = int64(len(s))
	}
	return out
}

// reaches waits until the consumer has seen a cluster's log as it ends now.
func (f *tail) reaches(tb testing.TB, c *testkafka.Cluster, limit time.Duration) {
	tb.Helper()
	want := endOffsets(tb, c, f.topic)
	eventually(tb, limit, "the consumer at the end of "+f.topic, func() error {
		for p, at := range f.at() {
			if w := want[tp{f.topic, int32(p)}]; at < w {
				return fmt.Errorf("partition %d: at %d of %d; so far wrong: %.500v", p, at, w, f.errors())
			}
		}
		return nil
	})
}

func (f *tail) errors() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.wrong)
}

// check wants what the consumer saw to be what a source has at the same offsets, and that nothing came twice, out of order
// or with an error.
func (f *tail) check(tb testing.TB, src *testkafka.Cluster) {
	tb.Helper()
	f.reaches(tb, src, 30*time.Second)
	if wrong := f.errors(); len(wrong) > 0 {
		tb.Errorf("the consumer of %s: %d times wrong, first %q", f.topic, len(wrong), wrong[:min(3, len(wrong))])
	}
	truth := follow(tb, src, f.topic, int32(len(f.seen)))
	truth.reaches(tb, src, 30*time.Second)
	f.mu.Lock()
	defer f.mu.Unlock()
	truth.mu.Lock()
	defer truth.mu.Unlock()
	for p, got := range f.seen {
		for o, v := range got {
			if o >= len(truth.seen[p]) || truth.seen[p][o] != v {
				tb.Fatalf("%s-%d: at offset %d the consumer saw %.60q, which the source does not have there", f.topic, p, o, v)
			}
		}
	}
}

// Where a high watermark was seen.
const (
	toConsumer = "to a consumer"
	onDisk     = "on disk"
)

// marks samples the high watermarks of a topic on every broker, as consumers are told and as brokers write them to disk.
type marks struct {
	topic      string
	partitions int32

	mu      sync.Mutex
	highest map[string]int64
	told    map[tp]map[int32]int64 // by partition and broker: what consumers were told last
	floor   map[tp]int64           // while real brokers may lead: the least that any broker told
	samples int
	fallen  []string
}

// watchMarks samples until the test ends.
func watchMarks(tb testing.TB, c *testkafka.Cluster, topic string, partitions int32) *marks {
	tb.Helper()
	m := &marks{topic: topic, partitions: partitions, highest: map[string]int64{}, told: map[tp]map[int32]int64{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, n := range c.Nodes() {
		if !n.Broker {
			continue
		}
		cl, err := kgo.NewClient(kgo.SeedBrokers(n.Addr("CLIENT")), kgo.MaxVersions(fetchEleven()))
		if err != nil {
			tb.Fatal(err)
		}
		wg.Go(func() {
			defer cl.Close()
			polled(time.Hour, func() bool { m.sample(ctx, cl, n); return ctx.Err() != nil })
		})
	}
	tb.Cleanup(func() { cancel(); wg.Wait() })
	return m
}

// sample asks a broker once. A broker that does not answer, or has no replica just now, tells nothing.
func (m *marks) sample(ctx context.Context, cl *kgo.Client, n *testkafka.Node) {
	if disk, err := testkafka.Checkpoints(n); err == nil {
		for p := range m.partitions {
			if hw, ok := disk[protocol.TopicPartition{Topic: m.topic, Partition: p}]; ok {
				m.note(n.ID, p, onDisk, hw)
			}
		}
	}
	if n.PID() == 0 {
		return
	}
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxBytes, req.SessionEpoch = -1, 1, -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic = m.topic
	for i := range m.partitions {
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch, p.PartitionMaxBytes = i, -1, 1
		t.Partitions = append(t.Partitions, p)
	}
	req.Topics = append(req.Topics, t)
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	resp, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return
	}
	for _, t := range resp.(*kmsg.FetchResponse).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == 0 {
				m.note(n.ID, p.Partition, toConsumer, p.HighWatermark)
			}
		}
	}
}

func (m *marks) note(broker, partition int32, where string, hw int64) {
	key := fmt.Sprintf("broker %d, %s-%d, %s", broker, m.topic, partition, where)
	at := tp{m.topic, partition}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.samples++
	if where == toConsumer {
		if m.told[at] == nil {
			m.told[at] = map[int32]int64{}
		}
		m.told[at][broker] = hw
	}
	if floor, ok := m.floor[at]; ok && hw >= floor {
		m.highest[key] = hw
		return
	}
	if was := m.highest[key]; hw < was {
		m.fallen = append(m.fallen, fmt.Sprintf("%s %s: %d after %d", time.Now().Format("15:04:05.000"), key, hw, was))
	}
	m.highest[key] = max(m.highest[key], hw)
}

// highestTold is the highest watermark of a partition that any broker last told a consumer.
func (m *marks) highestTold(partition int32) (hw int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, told := range m.told[tp{m.topic, partition}] {
		hw = max(hw, told)
	}
	return hw
}

// unled allows for what an election of a real broker does in any Kafka cluster: followers take over the watermark of the
// new leader, which may have heard a little less from the old one. None may fall below what all brokers had heard.
func (m *marks) unled() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.floor = map[tp]int64{}
	for at, brokers := range m.told {
		m.floor[at] = slices.Min(slices.Collect(maps.Values(brokers)))
	}
}

// led ends what unled allows.
func (m *marks) led() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.floor = nil
}

// never wants that no high watermark ever went back.
func (m *marks) never(tb testing.TB) {
	tb.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.samples == 0 {
		tb.Errorf("no high watermark of %s was seen", m.topic)
	}
	if n := len(m.fallen); n > 0 {
		tb.Errorf("high watermarks of %s went back, %d of %d samples:\n%s", m.topic, n, m.samples, fmt.Sprint(m.fallen[:min(n, 12)]))
	}
}

// replicasOf asks a cluster for a topic's partitions, whoever answers.
func replicasOf(tb testing.TB, c *testkafka.Cluster, topic string) (kadm.TopicDetail, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cl, err := kgo.NewClient(c.Opts()...)
	if err != nil {
		tb.Fatal(err)
	}
	defer cl.Close()
	ts, err := kadm.NewClient(cl).ListTopics(ctx, topic)
	if err == nil {
		err = ts.Error()
	}
	return ts[topic], err
}

// healed waits until a mirror is whole again: caught up, all replicas and both our ids in sync as everybody sees it, and the
// destination's leader epochs above the source's.
func (s *shim) healed(src *testkafka.Cluster, limit time.Duration, topic string, brokers int) {
	s.tb.Helper()
	s.caughtUp(src, brokers, limit, topic)
	eventually(s.tb, limit, "all replicas of "+topic+" in sync, and epochs above the source's", func() error {
		d, err := replicasOf(s.tb, s.dst, topic)
		if err != nil {
			return err
		}
		for _, p := range d.Partitions {
			if p.Leader != 9001 && p.Leader != 9002 || len(p.ISR) != brokers+2 || len(p.Replicas) != brokers+2 {
				return fmt.Errorf("partition %d: leader %d, replicas %v, in sync %v", p.Partition, p.Leader, p.Replicas, p.ISR)
			}
		}
		parts, err := s.describe("--topics", topic)
		if err != nil {
			return err
		}
		for _, p := range parts {
			if p.State != "MIRRORING" || p.SourceEpoch == nil || p.DestinationEpoch == nil || *p.DestinationEpoch <= *p.SourceEpoch {
				return fmt.Errorf("partition %d is %s at epoch %v, the source at %v (%v)", p.Partition, p.State, deref(p.DestinationEpoch),
					deref(p.SourceEpoch), deref(p.Error))
			}
		}
		return nil
	})
}

// equal wants every partition's log to be the same on the source and on so many brokers of the destination.
func (s *shim) equal(src *testkafka.Cluster, topic string, partitions int32, brokers int) {
	s.tb.Helper()
	for p := range partitions {
		sameLogs(s.tb, src, s.dst, topic, p, 0, brokers)
	}
}
