package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// patient is a mirror under load that things are done to.
type patient struct {
	t          *testing.T
	src, dst   *testkafka.Cluster
	s          *shim
	topic      string
	partitions int32
	consumer   *tail
	stop       func() int
}

// small are options of a producer whose batches are many and no smaller than what went in.
var small = []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(16 << 10)}

// newPatient mirrors a topic of some 10 MB, keeps producing to it and keeps a consumer at the destination.
func newPatient(t *testing.T, src, dst *testkafka.Cluster) *patient {
	p := &patient{t: t, src: src, dst: dst, topic: "orders", partitions: 3}
	createTopic(t, src, p.topic, p.partitions, nil)
	produce(t, client(t, src, small...), p.topic, p.partitions, 3500, 1000)
	p.s = newShim(t, dst, "")
	p.s.create(src)
	p.s.mirror(p.topic)
	p.s.caughtUp(src, 3, time.Minute, p.topic)
	p.stop = flow(t, src, p.topic, p.partitions, 300)
	p.consumer = follow(t, dst, p.topic, p.partitions)
	p.consumer.reaches(t, src, time.Minute)
	return p
}

// heals does something to the mirror as a subtest and wants it whole again afterwards, with nobody's help.
func (p *patient) heals(name string, harm func(t *testing.T)) {
	p.t.Helper()
	if p.t.Failed() {
		return
	}
	p.t.Run(name, func(t *testing.T) {
		p.s.tb = t
		defer func() { p.s.tb = p.t }()
		harm(t)
		begin := time.Now()
		p.s.healed(p.src, 90*time.Second, p.topic, 3)
		p.consumer.reaches(t, p.src, time.Minute)
		t.Logf("whole again after %s", time.Since(begin).Round(100*time.Millisecond))
	})
}

// check ends the load and compares.
func (p *patient) check() {
	p.t.Helper()
	p.t.Logf("%d records under load", p.stop())
	p.s.healed(p.src, time.Minute, p.topic, 3)
	p.s.equal(p.src, p.topic, p.partitions, 3)
	p.consumer.check(p.t, p.src)
}

// TestHealDestination does to the destination what happens to clusters.
func TestHealDestination(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	// The broker that is going to lose its log copies in small steps, so that there is time to see it in an ISR.
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1,
		NodeProperties: map[int32]map[string]string{2: {"replica.fetch.max.bytes": "16384"}}})
	p := newPatient(t, src, dst)
	const idle = "idle" // nothing new comes here: where the broker was before is where the watermark still is
	createTopic(t, src, idle, 1, nil)
	produce(t, client(t, src, small...), idle, 1, 10000, 1000)
	p.s.mirror(idle)
	p.s.healed(src, time.Minute, idle, 3)

	p.heals("broker killed, wiped, restarted", func(t *testing.T) {
		n := dst.Node(2)
		epoch := brokerEpoch(t, n)
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		eventually(t, 30*time.Second, "out of all ISRs", func() error {
			d, err := agreed(t, dst, idle) // later nobody names it who has only not heard yet
			if err == nil && slices.Contains(d.Partitions[0].ISR, n.ID) {
				err = fmt.Errorf("in sync: %v", d.Partitions[0].ISR)
			}
			return err
		})
		if err := n.Wipe(); err != nil {
			t.Fatal(err)
		}
		late := p.lateFetches(t, n, epoch, idle, 10000)
		if err := n.Spawn(); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "in sync again", func() error { return p.inISR(t, n, idle) })
		if err := n.Wait(timeout(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		if codes := late(); codes[kerr.StaleBrokerEpoch.Code] == 0 {
			t.Errorf("fetches of the incarnation before were answered by code: %v", codes)
		}
		sameLogs(t, src, dst, idle, 0, 0, 3)
	})
	p.heals("rolling restart", func(t *testing.T) {
		hw := watchMarks(t, dst, p.topic, p.partitions)
		for _, id := range dst.Brokers() {
			stopBroker(t, dst, id)
			startBroker(t, dst, id)
			p.s.healed(src, time.Minute, p.topic, 3)
		}
		hw.never(t)
	})
	p.heals("controller restarted", func(t *testing.T) {
		n := dst.Node(101)
		if err := n.Stop(); err != nil {
			t.Fatal(err)
		}
		p.consumer.reaches(t, src, 30*time.Second) // nothing stops for want of a controller
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	})
	p.check()
}

// inISR wants a broker that runs to be in the ISR of partition 0 of a topic, and only once it has all of the log.
func (p *patient) inISR(t *testing.T, n *testkafka.Node, topic string) error {
	t.Helper()
	d, err := replicasOf(t, p.dst, topic)
	if err != nil {
		return err
	}
	if !slices.Contains(d.Partitions[0].ISR, n.ID) {
		return fmt.Errorf("in sync: %v", d.Partitions[0].ISR)
	}
	_, has, err := logDigest(n, topic, 0, 0)
	if end := endOffsets(t, p.src, topic)[tp{topic, 0}]; err != nil || has < end {
		t.Fatalf("broker %d is in the ISR of %s and its log ends at %d of %d (%v)", n.ID, topic, has, end, err)
	}
	return nil
}

// brokerEpoch is the epoch of a broker's present registration, as it logged it.
func brokerEpoch(t *testing.T, n *testkafka.Node) (epoch int64) {
	t.Helper()
	log, err := os.ReadFile(n.Log())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if _, after, ok := strings.Cut(line, " with broker epoch "); ok {
			if _, err := fmt.Sscan(after, &epoch); err != nil {
				t.Fatal(err)
			}
		}
	}
	return epoch
}

// lateFetches lets fetches of a broker's former incarnation arrive at our node ids again and again, as if they had been on the
// way all the time: it is at offset end of a topic (KAFKA-15221). The function it returns ends that, and returns how
// often each code was the answer.
func (p *patient) lateFetches(t *testing.T, n *testkafka.Node, epoch int64, topic string, end int64) (stop func() map[int16]int) {
	t.Helper()
	d, err := replicasOf(t, p.dst, topic)
	if err != nil {
		t.Fatal(err)
	}
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.ReplicaState.ID, req.ReplicaState.Epoch = -1, n.ID, epoch
	req.SessionEpoch = -1
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = topic, d.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.FetchOffset, rp.CurrentLeaderEpoch, rp.PartitionMaxBytes = end, -1, 1
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)

	ctx, cancel := context.WithCancel(context.Background())
	host, port, err := net.SplitHostPort(p.s.repl)
	if err != nil {
		t.Fatal(err)
	}
	first, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	codes := make(chan map[int16]int, 1)
	go func() {
		seen := map[int16]int{}
		var ends []*kgo.Client
		for i := range 2 {
			cl, err := kgo.NewClient(kgo.SeedBrokers(net.JoinHostPort(host, strconv.Itoa(first+i))))
			if err != nil {
				t.Error(err)
				break
			}
			defer cl.Close()
			ends = append(ends, cl)
		}
		polled(time.Hour, func() bool {
			for _, cl := range ends {
				resp, err := cl.SeedBrokers()[0].Request(ctx, req)
				if err != nil {
					continue
				}
				r := resp.(*kmsg.FetchResponse)
				seen[r.ErrorCode]++
				for _, rt := range r.Topics {
					for _, rp := range rt.Partitions {
						seen[rp.ErrorCode]++
					}
				}
			}
			return ctx.Err() != nil
		})
		codes <- seen
	}()
	stop = sync.OnceValue(func() map[int16]int { cancel(); return <-codes })
	t.Cleanup(func() { stop() })
	return stop
}

// TestHealController kills the active one of three controllers, twice.
func TestHealController(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Combined: 3})
	p := newPatient(t, src, dst)
	for _, name := range []string{"active controller killed", "the next one killed"} {
		p.heals(name, func(t *testing.T) {
			n := dst.Node(activeController(t, dst))
			if err := n.Kill(); err != nil {
				t.Fatal(err)
			}
			p.consumer.reaches(t, src, time.Minute) // not before the dead broker is out of the ISR, by another controller
			if err := n.Start(); err != nil {
				t.Fatal(err)
			}
		})
	}
	p.check()
}

func activeController(t *testing.T, c *testkafka.Cluster) int32 {
	t.Helper()
	return quorumOf(t, c).LeaderID
}

// quorumOf describes the quorum of a cluster's controllers.
func quorumOf(t *testing.T, c *testkafka.Cluster) kmsg.DescribeQuorumResponseTopicPartition {
	t.Helper()
	req := kmsg.NewPtrDescribeQuorumRequest()
	rt := kmsg.NewDescribeQuorumRequestTopic()
	rt.Topic = "__cluster_metadata"
	rt.Partitions = append(rt.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, rt)
	var p kmsg.DescribeQuorumResponseTopicPartition
	eventually(t, 30*time.Second, "the quorum's leader", func() error { // none answers while they elect one
		resp, err := client(t, c).Request(timeout(t, 10*time.Second), req)
		if err != nil {
			return err
		}
		r := resp.(*kmsg.DescribeQuorumResponse)
		if r.ErrorCode != 0 || len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 || r.Topics[0].Partitions[0].LeaderID < 0 {
			return fmt.Errorf("%+v", r)
		}
		p = r.Topics[0].Partitions[0]
		return nil
	})
	return p
}

// TestHealSource moves the source's leaders, stops one of its brokers, and takes the whole source away for a while.
func TestHealSource(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := testkafka.Start(t, testkafka.Options{Name: "src", Brokers: 3})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3})
	p := newPatient(t, src, dst)

	p.heals("leaders moved", func(t *testing.T) {
		ahead := p.s.epochs()
		for range 12 { // further than the destination's epochs are ahead at first, if nothing has raised them since
			moveLeaders(t, src, p.topic)
		}
		for i, was := range ahead {
			for epochAt(t, src, p.topic, int32(i)) <= was.destination {
				moveLeaders(t, src, p.topic)
			}
		}
		p.s.healed(src, time.Minute, p.topic, 3)
		eventually(t, 30*time.Second, "epochs of the source that are above those of the destination before", func() error {
			for i, e := range p.s.epochs() {
				if was := ahead[i]; e.source <= was.destination {
					return fmt.Errorf("partition %d: the source went from epoch %d to %d only, the destination was at %d all the time", i, was.source,
						e.source, was.destination)
				}
			}
			return nil
		})
	})
	p.heals("leader stopped", func(t *testing.T) {
		d, err := replicasOf(t, src, p.topic)
		if err != nil {
			t.Fatal(err)
		}
		// Node 1 is the source's controller as well.
		leader := max(d.Partitions[0].Leader, d.Partitions[1].Leader, d.Partitions[2].Leader)
		if leader == 1 {
			t.Fatal("node 1 leads all partitions")
		}
		stopBroker(t, src, leader)
		p.consumer.reaches(t, src, time.Minute)
		startBroker(t, src, leader)
	})
	p.heals("source gone for 30 s", func(t *testing.T) {
		for _, n := range src.Nodes() {
			if err := n.Pause(); err != nil {
				t.Fatal(err)
			}
			defer n.Resume()
		}
		polled(30*time.Second, func() bool { return false })
		parts, err := p.s.describe("--topics", p.topic)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range parts {
			if i.State != "MIRRORING" || len(i.ISRReal) != 3 {
				t.Errorf("without its source partition %d is %s, in sync %v, error %v", i.Partition, i.State, i.ISRReal, deref(i.Error))
			}
		}
		late, want := follow(t, dst, p.topic, p.partitions), p.consumer.at()
		eventually(t, 30*time.Second, "a new consumer reads what is there", func() error {
			if at := late.at(); !slices.Equal(at, want) {
				return fmt.Errorf("at %v of %v", at, want)
			}
			return nil
		})
	})
	p.check()
}

// epochs are leader epochs of a partition.
type epochs struct{ source, destination int32 }

// epochs waits until those of all mirror partitions are known, and returns them: of one whose leadership moves just now they are not.
func (s *shim) epochs() (out []epochs) {
	s.tb.Helper()
	eventually(s.tb, 30*time.Second, "epochs of all partitions", func() error {
		out = nil
		parts, err := s.describe()
		for _, p := range parts {
			if p.SourceEpoch == nil || p.DestinationEpoch == nil {
				return fmt.Errorf("%s-%d: %v at the source, %v at the destination", p.Topic, p.Partition,
					deref(p.SourceEpoch), deref(p.DestinationEpoch))
			}
			out = append(out, epochs{*p.SourceEpoch, *p.DestinationEpoch})
		}
		return err
	})
	return out
}

// moveLeaders makes the second replica of every partition the leader: first in the list, then elected.
func moveLeaders(t *testing.T, c *testkafka.Cluster, topic string) {
	t.Helper()
	var d kadm.TopicDetail
	// A broker that has not heard of the move before would have it made again.
	eventually(t, 30*time.Second, "brokers of one mind on "+topic, func() (err error) { d, err = agreed(t, c, topic); return err })
	adm, ctx := kadm.NewClient(client(t, c)), timeout(t, time.Minute)
	var req kadm.AlterPartitionAssignmentsReq
	set := kadm.TopicsSet{}
	for _, p := range d.Partitions {
		req.Assign(topic, p.Partition, append(slices.Clone(p.Replicas[1:]), p.Replicas[0]))
		set.Add(topic, p.Partition)
	}
	rs, err := adm.AlterPartitionAssignments(ctx, req)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "leaders elected", func() error {
		_, err := adm.ElectLeaders(ctx, kadm.ElectPreferredReplica, set)
		if err != nil {
			return err
		}
		now, err := replicasOf(t, c, topic)
		if err != nil {
			return err
		}
		for i, p := range d.Partitions {
			if got := now.Partitions[i].Leader; got != p.Replicas[1] {
				return fmt.Errorf("partition %d is led by %d, not %d", i, got, p.Replicas[1])
			}
		}
		return nil
	})
}
