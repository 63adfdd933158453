package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// scenarioA is KIP-1279's first mirror: nothing is remembered (LME -1), and both sides have records under the same leader epoch.
func (p *pair) scenarioA(t *testing.T) {
	const topic = "scenario-a"
	createTopic(t, p.a, topic, 1, nil)
	createTopic(t, p.b, topic, 1, nil)
	sameEpoch(t, topic, p.a, p.b)
	sameEpoch(t, topic, p.b, p.a)
	writable(t, p.a, topic, numbered(40, "A")...)
	writable(t, p.b, topic, numbered(30, "B")...)
	if a, b := epochOf(t, p.a, topic), epochOf(t, p.b, topic); a != b {
		t.Fatalf("A is at epoch %d, B at %d", a, b)
	}
	p.atB.refusedAs(4, "INCONSISTENT_TOPIC_ID", "start", "--mirror", "m", "--topics", topic)
	p.atB.must("start", "--mirror", "m", "--topics", topic, "--overwrite", "--yes")
	p.atB.healed(p.a, time.Minute, topic, 3)
	agree(t, topic, 0, 3, p.a, p.b)
}

// scenarioB is KIP-1279's second one: the last mirrored epoch is 1, and then both sides have written under the same, later epoch.
func (p *pair) scenarioB(t *testing.T) {
	const topic = "scenario-b"
	createTopic(t, p.a, topic, 1, nil)
	writable(t, p.a, topic, numbered(10, "epoch 0")...)
	moveLeaders(t, p.a, topic)
	writable(t, p.a, topic, numbered(10, "epoch 1")...)
	lme := epochOf(t, p.a, topic)
	p.atB.mirror(topic)
	p.atB.healed(p.a, time.Minute, topic, 3)
	p.atB.verb("failover", topic)
	if parts := p.atB.get(30*time.Second, "STOPPED", topic); parts[0].LastMirroredEpoch == nil || *parts[0].LastMirroredEpoch != lme {
		t.Errorf("the last mirrored epoch is %v, want %d", deref(parts[0].LastMirroredEpoch), lme)
	}
	onB := numbered(5, "B")
	writable(t, p.b, topic, onB...)
	sameEpoch(t, topic, p.a, p.b)
	writable(t, p.a, topic, numbered(8, "A alone")...)
	leads(t, p.a, topic, 3, time.Minute)
	common := parted(t, p.b, topic)
	a, b := batchesOf(t, p.a.Node(1), topic, 0), batchesOf(t, p.b.Node(1), topic, 0)
	if ea, eb := a[len(a)-1].PartitionLeaderEpoch(), b[len(b)-1].PartitionLeaderEpoch(); ea != eb {
		t.Fatalf("the last batch of A has epoch %d, that of B %d", ea, eb)
	}
	p.atA.back(p.b, topic, common)
	want := slices.Concat(numbered(10, "epoch 0"), numbered(10, "epoch 1"), onB)
	if got := valuesIn(t, p.a, topic, 0, kgo.ReadUncommitted()); !slices.Equal(got, want) {
		t.Errorf("A has %q, want %d records", got, len(want))
	}
}

// sameEpoch elects leaders of a cluster until it is at the leader epoch of another one.
func sameEpoch(t *testing.T, topic string, c, other *testkafka.Cluster) {
	t.Helper()
	for epochOf(t, c, topic) < epochOf(t, other, topic) {
		moveLeaders(t, c, topic)
	}
}

// epochOf is the leader epoch of partition 0, once all brokers know it.
func epochOf(t *testing.T, c *testkafka.Cluster, topic string) int32 {
	t.Helper()
	return epochAt(t, c, topic, 0)
}

// epochAt is epochOf for any partition.
func epochAt(t *testing.T, c *testkafka.Cluster, topic string, partition int32) (epoch int32) {
	t.Helper()
	eventually(t, 30*time.Second, "brokers of one mind on "+topic, func() error {
		d, err := agreed(t, c, topic)
		if err == nil {
			epoch = d.Partitions[partition].LeaderEpoch
		}
		return err
	})
	return epoch
}

// agreed is what all brokers that run say of a topic's partitions; an error where they differ, as they do for a moment after a change.
func agreed(tb testing.TB, c *testkafka.Cluster, topic string) (d kadm.TopicDetail, err error) {
	tb.Helper()
	said := map[string]int32{}
	for _, id := range c.Brokers() {
		n := c.Node(id)
		if n.PID() == 0 {
			continue
		}
		cl, err := kgo.NewClient(kgo.SeedBrokers(n.Addr(testkafka.ClientListener)))
		if err != nil {
			tb.Fatal(err)
		}
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = metadataOf(topic).Topics
		ctx, cancel := context.WithTimeout(context.Background(), patience(10*time.Second))
		resp, err := req.RequestWith(ctx, cl.SeedBrokers()[0])
		cancel()
		cl.Close()
		if err != nil {
			return d, err
		}
		t := &resp.Topics[0]
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return d, fmt.Errorf("broker %d: %w", id, err)
		}
		d = kadm.TopicDetail{Topic: topic, ID: t.TopicID, Partitions: kadm.PartitionDetails{}}
		for i := range t.Partitions {
			p := &t.Partitions[i]
			d.Partitions[p.Partition] = kadm.PartitionDetail{Topic: topic, Partition: p.Partition, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch,
				Replicas: p.Replicas, ISR: p.ISR}
		}
		said[fmt.Sprint(d)] = id
	}
	if len(said) != 1 {
		return d, fmt.Errorf("%v", said)
	}
	return d, nil
}

// unclean has A elect a replica that lacks what B has copied: of one topic while B mirrors it, of another after B was made its
// leader and before A follows.
func (p *pair) unclean(t *testing.T) {
	const live, back = "unclean-live", "unclean-back"
	topics := []string{live, back}
	for _, topic := range topics {
		createOn(t, p.a, topic, []int32{2, 3}, map[string]string{"unclean.leader.election.enable": "true", "min.insync.replicas": "1"})
		writable(t, p.a, topic, numbered(20, "both replicas")...)
		p.atB.mirror(topic)
		p.atB.healed(p.a, time.Minute, topic, 3)
	}
	stopBroker(t, p.a, 3)
	for _, topic := range topics {
		writable(t, p.a, topic, numbered(20, "lost")...)
		p.atB.caughtUp(p.a, 3, 30*time.Second, topic)
	}
	p.atB.verb("failover", back)
	onB := numbered(5, "B")
	writable(t, p.b, back, onB...)
	common := parted(t, p.b, back)
	stopBroker(t, p.a, 2)
	startBroker(t, p.a, 3)
	for _, topic := range topics {
		writable(t, p.a, topic, numbered(10, "instead")...)
		if got := len(valuesIn(t, p.a, topic, 0, kgo.ReadUncommitted())); got != 30 {
			t.Fatalf("A did not elect the replica that lacks records: it has %d", got)
		}
	}
	startBroker(t, p.a, 2)
	for _, topic := range topics {
		leads(t, p.a, topic, 2, 30*time.Second)
	}
	// Its last records were lost at the source, which says so by a later epoch: they go at the destination too.
	p.atB.healed(p.a, time.Minute, live, 3)
	agree(t, live, 0, 2, p.a, p.b)
	if n := p.atB.counted("kmirror_divergence_total", live); n == 0 {
		t.Error("no divergence was counted")
	}
	// B has them, and took over; A's follow.
	p.atA.mirror(back)
	p.atA.healed(p.b, time.Minute, back, 2)
	agree(t, back, 0, 2, p.a, p.b)
	want := slices.Concat(numbered(20, "both replicas"), numbered(20, "lost"), onB)
	if got := valuesIn(t, p.a, back, 0, kgo.ReadUncommitted()); !slices.Equal(got, want) {
		t.Errorf("A has %q, want %d records, of which the first %d come from it", got, len(want), common)
	}
}

// createOn makes a topic of one partition on given brokers.
func createOn(t *testing.T, c *testkafka.Cluster, topic string, replicas []int32, configs map[string]string) {
	t.Helper()
	createAt(t, c, topic, [][]int32{replicas}, configs)
}

// createAt makes a topic with the brokers of each partition.
func createAt(t *testing.T, c *testkafka.Cluster, topic string, replicas [][]int32, configs map[string]string) {
	t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = topic, -1, -1
	for p, list := range replicas {
		rt.ReplicaAssignment = append(rt.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: int32(p), Replicas: list})
	}
	for k, v := range configs {
		rc := kmsg.NewCreateTopicsRequestTopicConfig()
		rc.Name, rc.Value = k, &v
		rt.Configs = append(rt.Configs, rc)
	}
	req.Topics, req.TimeoutMillis = append(req.Topics, rt), 20000
	created(t, c, topic, func() error {
		resp, err := req.RequestWith(timeout(t, 30*time.Second), client(t, c))
		if err == nil {
			err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
		}
		return err
	})
}

// setBack: the source is restored from a copy of its disks and goes on under the epoch that it had been at, with other records than
// it had then. Where it has less than was copied, or a batch that does not fit it, the partition is FAILED and nothing of it is cut;
// where it has as much by now, in batches that fit, only verify can tell.
func (b *bed) setBack(t *testing.T) {
	const less, across, more = "set-back-less", "set-back-across", "set-back-more"
	topics := []string{less, across, more}
	for _, topic := range topics {
		b.mirror(t, topic, 1, func() { writable(t, b.src, topic, numbered(50, "before the copy")...) })
	}
	n, saved := b.src.Node(1), t.TempDir()
	stopBroker(t, b.src, 1)
	if err := os.CopyFS(saved, os.DirFS(n.LogDir())); err != nil {
		t.Fatal(err)
	}
	startBroker(t, b.src, 1)
	epoch := map[string]int32{}
	for _, topic := range topics {
		writable(t, b.src, topic, numbered(40, "lost with the disks")...)
		b.s.healed(b.src, time.Minute, topic, 3)
		epoch[topic] = epochOf(t, b.src, topic)
	}
	stopBroker(t, b.src, 1)
	if err := os.RemoveAll(n.LogDir()); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(n.LogDir(), os.DirFS(saved)); err != nil {
		t.Fatal(err)
	}
	// kmirror is down until the source has written, else what it sees is a matter of luck.
	b.s.kill()
	startBroker(t, b.src, 1)
	for topic, many := range map[string][]int{less: {10}, across: {60}, more: {40, 20}} { // in batches of
		for _, n := range many {
			writable(t, b.src, topic, numbered(n, "after the copy")...)
		}
		if now := epochOf(t, b.src, topic); now != epoch[topic] {
			t.Fatalf("%s is at epoch %d, it was at %d: this shows nothing", topic, now, epoch[topic])
		}
	}
	b.s.start()
	for _, topic := range []string{less, across} {
		parts := b.s.get(time.Minute, "FAILED", topic)
		t.Logf("FAILED: %s; %s", *parts[0].Error, *parts[0].Hint)
		for _, id := range b.dst.Brokers() {
			var v replicaView
			eventually(t, 30*time.Second, "view of a broker", func() (err error) { v, err = viewOf(t, b.dst.Node(id), topic, 0); return err })
			if v.end != 90 {
				t.Errorf("%s on broker %d ends at %d, want 90: what was copied is the only copy", topic, id, v.end)
			}
		}
	}
	b.s.caughtUp(b.src, 3, time.Minute, more)
	for _, topic := range topics {
		if out, errs, code := b.s.run("verify", "--mirror", "m", "--topics", topic); code != 6 || !strings.Contains(out, "offset 50") {
			t.Errorf("verify of %s: exit %d, want 6 and a difference at offset 50:\n%s%s", topic, code, out, errs)
		}
	}
	t.Logf("what was FAILED failed over in %s", b.s.verb("failover", strings.Join(topics, ",")))
	for _, topic := range []string{less, across} {
		if got := valuesIn(t, b.dst, topic, 0, kgo.ReadUncommitted()); !slices.Equal(got[50:], numbered(40, "lost with the disks")) {
			t.Errorf("%s: after the failover the destination has %q", topic, got)
		}
	}
	b.stopped = append(b.stopped, topics...)
}
