package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// bed is two clusters with kmirror before the destination. One thing after another is done there, each with topics of its own.
type bed struct {
	t        *testing.T
	src, dst *testkafka.Cluster
	s        *shim
	// stopped are topics that were failed over and have to outlive a restart of all brokers.
	stopped []string
}

// try runs a subtest.
func (b *bed) try(name string, f func(t *testing.T)) {
	b.t.Run(name, func(t *testing.T) {
		b.s.tb = t
		defer func() { b.s.tb = b.t }()
		f(t)
	})
}

// mirror makes a topic at the source, mirrors it and waits until it is at the end.
func (b *bed) mirror(t *testing.T, topic string, partitions int32, fill func()) {
	t.Helper()
	createTopic(t, b.src, topic, partitions, nil)
	fill()
	b.s.mirror(topic)
	b.s.healed(b.src, time.Minute, topic, 3)
}

// TestFailover ends mirrors in every way that operators do or have to.
func TestFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1})
	elrOn(t, dst)
	b := &bed{t: t, src: src, dst: dst, s: newShim(t, dst, "")}
	b.s.create(src)
	b.try("promote", b.promote)
	b.try("open transactions", b.openTransactions)
	b.try("producer ids", b.producerIDs)
	b.try("pause", b.pauses)
	b.try("a broker down", b.brokerDown)
	b.try("source set back", b.setBack)
	b.try("source killed", b.disaster)
	b.try("source and kmirror killed", b.orphans)
	b.try("restart of all brokers", b.restart)
}

// promote: a producer is at work when promote begins and stops after a while, in which the source stands still for as long as it has to rest
// for a promote. All that was acknowledged is there.
func (b *bed) promote(t *testing.T) {
	const topic = "promote"
	b.mirror(t, topic, 3, func() { produce(t, client(t, b.src), topic, 3, 100, 100) })
	stop := flow(t, b.src, topic, 3, 500)
	ended := make(chan int, 1)
	go func() {
		source := b.src.Node(1)
		time.Sleep(time.Second)
		err := source.Pause()
		time.Sleep(2500 * time.Millisecond)
		if err = errors.Join(err, source.Resume()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		ended <- stop()
	}()
	took := b.s.verb("promote", topic)
	n := <-ended
	t.Logf("promoted in %s, under a producer that stopped after 4.5 s", took)
	got := 0
	for p := range int32(3) {
		src, dst := valuesIn(t, b.src, topic, p, kgo.ReadUncommitted()), valuesIn(t, b.dst, topic, p, kgo.ReadUncommitted())
		if !slices.Equal(src, dst) {
			t.Errorf("partition %d: %d records at the source, %d at the destination", p, len(src), len(dst))
		}
		got += len(dst)
	}
	if got != n+300 {
		t.Errorf("%d records are at the destination, %d were acknowledged at the source", got, n+300)
	}
	leads(t, b.dst, topic, 3, 30*time.Second)
	writable(t, b.dst, topic, "after promote")
	if took := b.s.verb("promote", topic); took > patience(15*time.Second) {
		t.Errorf("a goal already reached took %s", took)
	}
	if cfg := topicConfigs(t, b.dst, topic); cfg["max.message.bytes"] != "" || cfg["min.insync.replicas"] != "" {
		t.Errorf("still locked: %v", cfg)
	}
	b.stopped = append(b.stopped, topic)
}

// openTransactions: what a source's producer left open is aborted by the failover.
func (b *bed) openTransactions(t *testing.T) {
	const topic = "open"
	b.mirror(t, topic, 1, func() {
		transact(t, b.src, "done", topic, 0, 10, "ca")
		transact(t, b.src, "left-1", topic, 0, 10, "o")
		transact(t, b.src, "done-later", topic, 0, 10, "c")
		transact(t, b.src, "left-2", topic, 0, 10, "co")
	})
	committed := func(from []string) (out []string) {
		for _, v := range from {
			if strings.Contains(v, "/c/") {
				out = append(out, v)
			}
		}
		return out
	}
	want := committed(valuesIn(t, b.src, topic, 0, kgo.ReadUncommitted()))
	if len(want) != 30 || len(valuesIn(t, b.dst, topic, 0, kgo.ReadCommitted())) != 10 {
		t.Fatalf("%d records were committed, and those behind the open transaction show", len(want))
	}
	took := b.s.verb("failover", topic)
	leads(t, b.dst, topic, 3, time.Minute) // one that was fenced for want of time is back
	end := endOffsets(t, b.dst, topic)[tp{topic, 0}]
	at, aborted := tailOf(t, batchesOf(t, b.dst.Node(1), topic, 0))
	t.Logf("failed over in %s; the mirrored log ends at %d, then come markers of producer ids %v; the log ends at %d", took, at, aborted, end)
	if src := endOffsets(t, b.src, topic)[tp{topic, 0}]; at != src {
		t.Errorf("the mirrored log ends at %d, the source's at %d", at, src)
	}
	b.committedOnly(t, topic, end, want)
	want = append(want, "after")
	writable(t, b.dst, topic, "after")
	transact(t, b.dst, "new", topic, 0, 3, "ca")
	for j := range 3 {
		want = append(want, fmt.Sprintf("new/0/c/%d", j))
	}
	b.committedOnly(t, topic, end+1+4+4, want)
	b.stopped = append(b.stopped, topic)
}

// committedOnly wants readers of committed records to see just those, up to the log's very end.
func (b *bed) committedOnly(t *testing.T, topic string, end int64, want []string) {
	t.Helper()
	stableEnds(t, b.dst, topic, 0, end)
	if got := valuesIn(t, b.dst, topic, 0, kgo.ReadCommitted()); !slices.Equal(got, want) {
		t.Errorf("franz-go reads %d committed records, want %d: %.300q", len(got), len(want), got)
	}
	var got []string
	for _, r := range readConsole(t, strings.Join(b.dst.Bootstrap("CLIENT"), ","), topic, "read_committed", "consumer", len(want)) {
		got = append(got, r.value)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the console consumer reads %d committed records, want %d: %.300q", len(got), len(want), got)
	}
}

// brokerDown: a broker of the destination that has just died, or died long ago, keeps no topic from being failed over, and gets
// its replicas back.
func (b *bed) brokerDown(t *testing.T) {
	topics := []string{"down-now", "down-long"}
	for _, topic := range topics {
		b.mirror(t, topic, 2, func() { produce(t, client(t, b.src), topic, 2, 200, 100) })
	}
	n := b.dst.Node(3)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	produce(t, client(t, b.src), topics[0], 2, 50, 100)
	t.Logf("failed over with a broker killed just before in %s", b.s.verb("failover", topics[0]))
	eventually(t, 30*time.Second, "the broker out of all ISRs", func() error {
		d, err := replicasOf(t, b.dst, topics[1])
		for _, p := range d.Partitions {
			if slices.Contains(p.ISR, 3) {
				err = fmt.Errorf("partition %d: in sync %v", p.Partition, p.ISR)
			}
		}
		return err
	})
	produce(t, client(t, b.src), topics[1], 2, 50, 100)
	b.s.caughtUp(b.src, 2, 30*time.Second, topics[1])
	took := b.s.verb("failover", topics[1])
	t.Logf("failed over with a broker dead for long in %s", took)
	if took > patience(10*time.Second) {
		t.Errorf("a dead broker held the failover up for %s", took)
	}
	for _, topic := range topics {
		writable(t, b.dst, topic, "with a broker down")
	}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	for _, topic := range topics {
		leads(t, b.dst, topic, 3, time.Minute)
		for p := range int32(2) {
			agree(t, topic, p, 3, b.dst)
			at, _ := tailOf(t, batchesOf(t, n, topic, p))
			end := endOffsets(t, b.src, topic)[tp{topic, p}]
			// What came in the moment of the broker's death may not have been copied; nothing else is lost.
			if at > end || at < end-50 || topic == topics[1] && at != end {
				t.Errorf("%s-%d: mirrored up to %d, the source has %d", topic, p, at, end)
			}
		}
	}
	b.stopped = append(b.stopped, topics...)
}

// disaster kills the source while it is written to. What is missing afterwards is what no replica had, and the dry run said so.
func (b *bed) disaster(t *testing.T) {
	b.s.createAs("slow", b.src, "mirror.throttle.bytes.per.second=100000", "mirror.fetch.response.max.bytes=65536", "mirror.fetch.max.bytes=65536")
	createTopic(t, b.src, "lagging", 1, nil)
	produce(t, client(t, b.src, small...), "lagging", 1, 15000, 1000) // two and a half minutes of it
	b.mirror(t, "busy", 1, func() { produce(t, client(t, b.src), "busy", 1, 100, 100) })
	b.s.must("start", "--mirror", "slow", "--topics", "lagging")
	eventually(t, 30*time.Second, "some of it copied", func() error {
		parts, err := b.s.describe("--topics", "lagging")
		if err == nil && (len(parts) != 1 || parts[0].DestinationOffset == nil || *parts[0].DestinationOffset == 0 || parts[0].Lag == nil) {
			err = fmt.Errorf("%+v", parts)
		}
		return err
	})
	acked := writeUntilKilled(t, b.src, "busy", 200)
	if err := b.src.Node(1).Kill(); err != nil {
		t.Fatal(err)
	}
	wrote := acked()
	said := map[string]int64{}
	for mirror, topic := range map[string]string{"slow": "lagging", "m": "busy"} {
		plan := b.s.plan("failover", mirror, topic)
		if len(plan) != 1 || plan[0].Lost == nil {
			t.Fatalf("%s: the dry run does not know what is lost: %+v", topic, plan)
		}
		said[topic] = *plan[0].Lost
		begin := time.Now()
		b.s.must("failover", "--mirror", mirror, "--topics", topic)
		t.Logf("%s: the source dead, failed over in %s", topic, time.Since(begin).Round(10*time.Millisecond))
	}
	startBroker(t, b.src, 1)
	for topic, lost := range said {
		missing := b.missing(t, topic)
		t.Logf("%s: %d records are missing, the dry run said %d", topic, missing, lost)
		switch {
		case topic == "lagging" && (missing != lost || lost < 500):
			t.Errorf("%s: %d records are missing, the dry run said %d", topic, missing, lost)
		case topic == "busy" && (missing < lost || endOffsets(t, b.src, topic)[tp{topic, 0}] < int64(wrote)):
			// What was written after the last answer to kmirror, nobody can know.
			t.Errorf("%s: %d records are missing, the dry run said %d; %d were acknowledged", topic, missing, lost, wrote)
		}
		writable(t, b.dst, topic, "after the disaster")
	}
	b.stopped = append(b.stopped, "lagging", "busy")
}

// missing wants the destination to have the beginning of what the source has and nothing else, on all brokers, and returns how
// many records it lacks.
func (b *bed) missing(t *testing.T, topic string) int64 {
	t.Helper()
	agree(t, topic, 0, 3, b.dst)
	src, dst := valuesIn(t, b.src, topic, 0, kgo.ReadUncommitted()), valuesIn(t, b.dst, topic, 0, kgo.ReadUncommitted())
	log := batchesOf(t, b.dst.Node(1), topic, 0)
	at, aborted := tailOf(t, log)
	if int64(len(dst)) != at || len(dst) > len(src) || !slices.Equal(src[:len(dst)], dst) {
		t.Errorf("%s: the destination's %d records, mirrored up to %d, are not the beginning of the source's %d", topic, len(dst), at, len(src))
	}
	if ids := mirroredIDs(log, at); !slices.Equal(ids, aborted) {
		t.Errorf("%s: producer ids %v were mirrored, %v have a marker", topic, ids, aborted)
	}
	return int64(len(src) - len(dst))
}

// orphans: source and kmirror are killed at once, of one topic while a replica in sync lacks what the others have. kmirror comes
// back, the source does not.
func (b *bed) orphans(t *testing.T) {
	topics := []string{"orphan", "orphan-uneven"}
	for _, topic := range topics {
		b.mirror(t, topic, 1, func() { produce(t, client(t, b.src), topic, 1, 100, 100) })
	}
	behind := b.dst.Node(3)
	if err := behind.Pause(); err != nil {
		t.Fatal(err)
	}
	produce(t, client(t, b.src), topics[1], 1, 50, 100)
	for _, id := range []int32{1, 2} {
		eventually(t, 30*time.Second, "the last records on a broker", func() error {
			_, end, err := logDigest(b.dst.Node(id), topics[1], 0, 0)
			if err == nil && end != 150 {
				err = fmt.Errorf("broker %d ends at %d", id, end)
			}
			return err
		})
	}
	if err := b.src.Node(1).Kill(); err != nil {
		t.Fatal(err)
	}
	b.s.kill()
	if err := behind.Resume(); err != nil {
		t.Fatal(err)
	}
	b.s.start()
	t.Logf("source and kmirror killed, kmirror just back: failed over in %s", b.s.verb("failover", "/orphan.*/"))
	for _, topic := range topics {
		leads(t, b.dst, topic, 3, 30*time.Second)
		stableEnds(t, b.dst, topic, 0, endOffsets(t, b.dst, topic)[tp{topic, 0}])
	}
	startBroker(t, b.src, 1)
	for _, topic := range topics {
		// The controller may have let the replica lead that lacked records, all of them or those that its last fetch had not brought: they
		// were not committed.
		if missing := b.missing(t, topic); missing != 0 && (topic == topics[0] || missing > 50) {
			t.Errorf("%s: %d records are missing", topic, missing)
		}
		writable(t, b.dst, topic, "orphaned")
	}
	b.stopped = append(b.stopped, topics...)
}

// writeUntilKilled produces to a topic one record after another until its cluster dies. It returns once so many are acknowledged;
// the function returned waits for the cluster's death and says how many were in all.
func writeUntilKilled(t *testing.T, c *testkafka.Cluster, topic string, first int) func() int {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	// What an idempotent producer has sent, it waits for without end.
	cl := client(t, c, kgo.RecordDeliveryTimeout(5*time.Second), kgo.ProducerLinger(0), kgo.DisableIdempotentWrite())
	var wg sync.WaitGroup
	n, begun := 0, make(chan struct{})
	wg.Go(func() {
		for reached := false; ctx.Err() == nil; {
			if n == first && !reached {
				reached = true
				close(begun)
			}
			r := &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "busy %d", n)}
			switch err := cl.ProduceSync(ctx, r).FirstErr(); {
			case err == nil:
				n++
			case reached: // before that it was only slow
				return
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	select {
	case <-begun:
	case <-time.After(patience(30 * time.Second)):
		t.Fatalf("%d records were not acknowledged in time", first)
	}
	return func() int { wg.Wait(); return n }
}

// restart: all brokers come up over logs with markers and resets that they did not write, and show the same.
func (b *bed) restart(t *testing.T) {
	before := map[string]map[int32]string{}
	for _, topic := range b.stopped {
		agree(t, topic, 0, 3, b.dst)
		before[topic] = digests(t, b.dst, topic)
	}
	committed := map[string][]string{}
	for _, topic := range b.stopped {
		committed[topic] = valuesIn(t, b.dst, topic, 0, kgo.ReadCommitted())
	}
	for _, id := range b.dst.Brokers() { // one killed: it has to recover its logs from the bytes
		end := b.dst.Node(id).Stop
		if id == 2 {
			end = b.dst.Node(id).Kill
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		startBroker(t, b.dst, id)
	}
	for _, topic := range b.stopped {
		leads(t, b.dst, topic, 3, 30*time.Second)
		for id, now := range digests(t, b.dst, topic) {
			if now != before[topic][id] {
				t.Errorf("%s on broker %d: %s before the restart, %s after it", topic, id, before[topic][id], now)
			}
		}
		stableEnds(t, b.dst, topic, 0, endOffsets(t, b.dst, topic)[tp{topic, 0}])
		if now := valuesIn(t, b.dst, topic, 0, kgo.ReadCommitted()); !slices.Equal(now, committed[topic]) {
			t.Errorf("%s: %d records before the restart, %d after it", topic, len(committed[topic]), len(now))
		}
	}
	noneHangs(t, b.dst)
}
