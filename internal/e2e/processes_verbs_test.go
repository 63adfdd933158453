package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/internal/testkafka"
	"kmirror/records"
)

// TestProcessesOperated runs two kmirror processes in front of one destination and asks one or the other for everything, also while
// one of them is gone, or goes in the middle.
func TestProcessesOperated(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	onlyInLong(t)
	p := newCouple(t)
	p.try(t, "either is asked", p.eitherAsked)
	p.try(t, "a topic starts and stops with both up", p.startsAndStops)
	p.try(t, "stopped while one is down", p.stoppedByOne)
	if os.Getenv("KMIRROR_ALL_PROCESSES") != "" {
		p.try(t, "one dies in the middle of a stop", p.tornStop)
	}
	p.try(t, "one retires", p.retires)
	p.check(t, p.a)
}

// alike wants both processes to tell the same of a topic.
func (p *couple) alike(t *testing.T, state, topic string) {
	t.Helper()
	eventually(t, 30*time.Second, "both processes tell the same of "+topic, func() error {
		a, b := described(p.a.get(30*time.Second, state, topic)), described(p.b.get(30*time.Second, state, topic))
		if !maps.Equal(a, b) {
			return fmt.Errorf("one tells %v, the other %v", a, b)
		}
		return nil
	})
}

func (p *couple) eitherAsked(t *testing.T) {
	p.alike(t, "MIRRORING", p.topic)
	for _, s := range [][2]*shim{{p.a, p.b}, {p.b, p.a}} {
		t.Logf("paused in %s", s[0].verb("pause", p.topic))
		p.alike(t, "PAUSED", p.topic)
		before := endOffsets(t, p.dst, p.topic)
		polled(time.Second, func() bool { return false })
		if after := endOffsets(t, p.dst, p.topic); !maps.Equal(before, after) {
			t.Errorf("written while PAUSED: %v, then %v", before, after)
		}
		t.Logf("resumed in %s", s[1].verb("resume", p.topic))
		p.alike(t, "MIRRORING", p.topic)
	}
	p.consumer.reaches(t, p.src, 30*time.Second)
	names := []string{p.a.must("list"), p.b.must("list")}
	if names[0] != names[1] || !strings.Contains(names[0], "m") {
		t.Errorf("list: %q and %q", names[0], names[1])
	}
}

// begun mirrors another topic with both up.
func (p *couple) begun(t *testing.T, by *shim, topic string) {
	t.Helper()
	createTopic(t, p.src, topic, p.partitions, nil)
	produce(t, client(t, p.src), topic, p.partitions, 100, 100)
	by.mirror(topic)
	by.caughtUp(p.src, 3, time.Minute, topic)
	p.spread(t, time.Minute, topic)
}

// ended wants a topic to be handed over to real brokers whole.
func (p *couple) ended(t *testing.T, topic string) {
	t.Helper()
	leads(t, p.dst, topic, 3, 30*time.Second)
	produce(t, client(t, p.dst), topic, p.partitions, 1, 10)
	for n := range p.partitions {
		agree(t, topic, n, 3, p.dst)
		batches := batchesOf(t, p.dst.Node(1), topic, n)
		if end, _ := tailOf(t, batches); end != 100 {
			t.Errorf("partition %d of %s: the source's part ends at %d", n, topic, end)
		}
		resets := 0
		for _, b := range batches {
			if kind, err := records.ControlType(b); b.IsControl() && err == nil && kind == records.ControlMirrorPidReset {
				resets++
			}
		}
		if resets != 1 {
			t.Errorf("partition %d of %s was ended %d times", n, topic, resets)
		}
	}
}

func (p *couple) startsAndStops(t *testing.T) {
	p.begun(t, p.b, "more")
	p.alike(t, "MIRRORING", "more")
	counts := map[string]int64{}
	for _, s := range []*shim{p.a, p.b} {
		led := s.counted(`kmirror_partition_state`, "more")
		if led == 0 {
			t.Errorf("%s counts no partition of its own", s.admin)
		}
		counts[s.admin] = led
	}
	if sum := counts[p.a.admin] + counts[p.b.admin]; sum != int64(p.partitions) {
		t.Errorf("partitions by process in the metrics: %v", counts)
	}
	t.Logf("promoted in %s", p.a.verb("promote", "more"))
	p.alike(t, "STOPPED", "more")
	p.ended(t, "more")
}

func (p *couple) stoppedByOne(t *testing.T) {
	p.begun(t, p.a, "left")
	p.b.kill()
	took := p.a.verb("failover", "left")
	t.Logf("failed over in %s with one process just killed", took)
	if _, bar := sessions(); took > bar {
		t.Errorf("a failover with one process just killed took %s, at most %s were to be", took, bar)
	}
	p.a.get(30*time.Second, "STOPPED", "left")
	p.ended(t, "left")
	p.b.start()
	p.spread(t, time.Minute, p.topic)
	p.alike(t, "STOPPED", "left")
}

// tornStop ends a process when it has stored how far the stop of its part has come, once the one that was asked and once the other.
func (p *couple) tornStop(t *testing.T) {
	for i, point := range []string{"stored STOPPING mark", "tail served"} {
		topic, dies, stays := fmt.Sprintf("torn-%d", i), p.a, p.b
		if i > 0 {
			dies, stays = p.b, p.a
		}
		fault := filepath.Join(t.TempDir(), "fault")
		dies.kill()
		dies.env = []string{"TEST_KMIRROR_FAULT_POINT=@" + fault}
		dies.start()
		p.spread(t, time.Minute, p.topic)
		p.begun(t, stays, topic)
		if err := os.WriteFile(fault, []byte(point), 0o600); err != nil {
			t.Fatal(err)
		}
		out, errs, code := dies.run("failover", "--mirror", "m", "--topics", topic, "--wait", "1s")
		t.Logf("%s: the command ended with %d\n%s%s", point, code, out, errs)
		select {
		case <-dies.done:
			dies.cmd, dies.env = nil, nil
		case <-time.After(30 * time.Second):
			t.Fatalf("the process did not come by %q", point)
		}
		began := time.Now()
		stays.get(40*time.Second, "STOPPED", topic)
		t.Logf("STOPPED %s after one process died", time.Since(began).Round(10*time.Millisecond))
		p.ended(t, topic)
		dies.start()
		p.spread(t, time.Minute, p.topic)
		p.alike(t, "STOPPED", topic)
	}
}

func (p *couple) retires(t *testing.T) {
	out := p.a.must("retire", "--node-ids", "9003,9004")
	t.Log(out)
	select {
	case err := <-p.b.done:
		p.b.cmd = nil
		if err != nil {
			t.Errorf("the process that retired: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the process that retired goes on")
	}
	p.ledBy(t, 10*time.Second, p.a, p.topic)
	eventually(t, 30*time.Second, "nothing names the ids that retired", func() error {
		d, err := replicasOf(t, p.dst, p.topic)
		if err != nil {
			return err
		}
		for _, q := range d.Partitions {
			if len(q.Replicas) != 5 || len(q.ISR) != 5 || slices.Max(q.Replicas) != 9002 {
				return fmt.Errorf("partition %d: replicas %v, in sync %v", q.Partition, q.Replicas, q.ISR)
			}
		}
		return nil
	})
	if got := p.a.get(30*time.Second, "MIRRORING", p.topic); len(got) != int(p.partitions) {
		t.Errorf("%d partitions described", len(got))
	}
	p.mirrors(t, time.Now())
	if n := registered(t, p.dst); slices.Contains(n, 9003) || slices.Contains(n, 9004) {
		t.Errorf("brokers of the destination: %v", n)
	}
}

// registered are the ids of a cluster's brokers, as clients are told.
func registered(t *testing.T, c *testkafka.Cluster) []int32 {
	t.Helper()
	meta, err := kadm.NewClient(client(t, c)).BrokerMetadata(timeout(t, 10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return meta.Brokers.NodeIDs()
}
