package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// TestFencesItself: a kmirror that does not reach the brokers' client listener makes clients choose others, and mirrors on once it does.
func TestFencesItself(t *testing.T) {
	onlyInLong(t)
	t.Parallel()
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst, s, wires := wiredShim(t)
	createTopic(t, src, "orders", 2, nil)
	produce(t, client(t, src), "orders", 2, 100, 100)
	s.start()
	s.create(src)
	s.mirror("orders")
	s.healed(src, time.Minute, "orders", 2)
	cl := client(t, dst)
	s.is(t, cl, false)

	cut := func(ids ...int32) {
		for id, w := range wires {
			if w.cut(); slices.Contains(ids, id) {
				w.cut(s)
			}
		}
	}
	cut(1)
	polled(10*time.Second, func() bool { return false })
	s.is(t, cl, false) // one broker is left

	cut(1, 2)
	began := time.Now()
	eventually(t, 40*time.Second, "fenced", func() error { return s.fenced(cl, true) })
	t.Logf("fenced %s after the cut", time.Since(began).Round(100*time.Millisecond))
	s.is(t, cl, true)
	s.locked(t)
	if err := produceTo(t, dst, "orders"); err == nil {
		t.Error("a client wrote to the mirror")
	}
	produce(t, client(t, src), "orders", 2, 100, 100)
	parts, err := s.describe("--topics", "orders")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if why := fmt.Sprint(deref(p.Error)); !strings.Contains(why, "has fenced itself") {
			t.Errorf("describe says of partition %d: %s", p.Partition, why)
		}
	}

	cut()
	began = time.Now()
	s.ready(time.Minute)
	t.Logf("not fenced %s after the cut was mended", time.Since(began).Round(100*time.Millisecond))
	s.healed(src, time.Minute, "orders", 2)
	s.is(t, cl, false)
	s.equal(src, "orders", 2, 2)
	s.must("verify", "--mirror", "m")
	for _, name := range []string{"kmirror_foreign_reassignments_total", "kmirror_watermark_regressions_total"} {
		if n := s.total(name); n != 0 {
			t.Errorf("%s is %d", name, n)
		}
	}
}

// TestFencesOneOfTwo: of two processes the one that reaches the brokers takes over from the other, and gives back.
func TestFencesOneOfTwo(t *testing.T) {
	onlyInLong(t)
	t.Parallel()
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst, a, wires := wiredShim(t)
	b := makeShim(t, dst, 9003, "")
	createTopic(t, src, "orders", 8, nil)
	produce(t, client(t, src), "orders", 8, 100, 100)
	a.start()
	a.create(src)
	a.mirror("orders")
	a.healed(src, time.Minute, "orders", 2)
	b.start()
	led := func(by ...int32) error {
		d, err := replicasOf(t, dst, "orders")
		if err != nil {
			return err
		}
		seen := map[int32]bool{}
		for _, p := range d.Partitions {
			if !slices.Contains(by, p.Leader) {
				return fmt.Errorf("partition %d is led by %d", p.Partition, p.Leader)
			}
			seen[(p.Leader-1)/2] = true // both ids of a process
		}
		if len(seen) != len(by)/2 {
			return fmt.Errorf("led by %v only", seen)
		}
		return nil
	}
	eventually(t, time.Minute, "both lead", func() error { return led(9001, 9002, 9003, 9004) })
	for _, w := range wires {
		w.cut(a)
	}
	eventually(t, 60*time.Second, "the other leads all", func() error { return led(9003, 9004) })
	produce(t, client(t, src), "orders", 8, 100, 100)
	b.caughtUp(src, 2, 30*time.Second, "orders")
	eventually(t, 30*time.Second, "fenced", func() error { // the other may have taken over before, since this one's group was cut off too
		if n := a.total("kmirror_self_fenced"); n != 1 {
			return fmt.Errorf("kmirror_self_fenced is %d", n)
		}
		return nil
	})
	for _, w := range wires {
		w.cut()
	}
	a.ready(time.Minute)
	eventually(t, time.Minute, "both lead again", func() error { return led(9001, 9002, 9003, 9004) })
	b.caughtUp(src, 2, 30*time.Second, "orders")
	a.equal(src, "orders", 8, 2)
	for _, s := range []*shim{a, b} {
		if n := s.total("kmirror_foreign_reassignments_total") + s.total("kmirror_watermark_regressions_total"); n != 0 {
			t.Errorf("%s counted %d changes by others and watermarks that went back", s.admin, n)
		}
	}
}

// wiredShim is a kmirror, not started, in front of two brokers whose client listeners can be cut off from it.
func wiredShim(t *testing.T) (*testkafka.Cluster, *shim, map[int32]*wire) {
	t.Helper()
	wires, advertised := map[int32]*wire{1: newWire(t), 2: newWire(t)}, map[int32]map[string]string{}
	for id, w := range wires {
		advertised[id] = map[string]string{testkafka.ClientListener: w.addr()}
	}
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 2, Controllers: 1, Advertised: advertised})
	s := makeShim(t, dst, 9001, "fence_after: 4s\nfence_slower_than: 3s\n")
	for id, w := range wires {
		direct := dst.Node(id).Addr(testkafka.ClientListener)
		w.leads(direct)
		s.rewrite(direct, w.addr())
	}
	return dst, s, wires
}

// fenced compares who is told to clients, what the process says of itself, and the controller's view.
func (s *shim) fenced(cl *kgo.Client, want bool) error {
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeFencedBrokers = true
	broker := cl.SeedBrokers()[0] // itself: kmirror may hang with what it forwards
	resp, err := req.RequestWith(timeout(s.tb, 10*time.Second), broker)
	if err != nil {
		return err
	}
	is := map[int32]bool{}
	for _, b := range resp.Brokers {
		is[b.NodeID] = b.IsFenced
	}
	if is[9001] != want || is[9002] != want || is[1] || is[2] || len(is) != 4 {
		return fmt.Errorf("fenced: %v", is)
	}
	meta, err := kmsg.NewPtrMetadataRequest().RequestWith(timeout(s.tb, 10*time.Second), broker)
	if err != nil {
		return err
	}
	for _, b := range meta.Brokers {
		if b.NodeID > 9000 && want {
			return fmt.Errorf("clients are told of node %d", b.NodeID)
		}
	}
	return nil
}

// is wants everything to say that the process is fenced, or is not.
func (s *shim) is(t *testing.T, cl *kgo.Client, fenced bool) {
	t.Helper()
	if err := s.fenced(cl, fenced); err != nil {
		t.Error(err)
	}
	if n := s.total("kmirror_self_fenced"); (n == 1) != fenced {
		t.Errorf("kmirror_self_fenced is %d", n)
	}
	resp, err := http.Get("http://" + s.http + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	b.ReadFrom(resp.Body)
	if says := strings.Contains(b.String(), "has fenced itself") &&
		strings.Contains(b.String(), "listener CLIENT: none of the 2 live brokers"); says != fenced {
		t.Errorf("readyz %d: %s", resp.StatusCode, &b)
	}
}

// locked wants the topic to be led by real brokers and to refuse what clients write.
func (s *shim) locked(t *testing.T) {
	t.Helper()
	d, err := replicasOf(t, s.dst, "orders")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Partitions {
		if p.Leader != 1 && p.Leader != 2 || !slices.Contains(p.Replicas, 9001) || slices.Contains(p.ISR, 9001) {
			t.Errorf("partition %d: leader %d, replicas %v, in sync %v", p.Partition, p.Leader, p.Replicas, p.ISR)
		}
	}
	if cfg := topicConfigs(t, s.dst, "orders"); cfg["max.message.bytes"] != "0" || cfg["min.insync.replicas"] == "" {
		t.Errorf("lock: %v", cfg)
	}
}

// produceTo tries to write one record.
func produceTo(t *testing.T, c *testkafka.Cluster, topic string) error {
	t.Helper()
	cl := client(t, c, kgo.RecordRetries(2), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))
	return cl.ProduceSync(timeout(t, 20*time.Second), &kgo.Record{Topic: topic, Value: []byte("no")}).FirstErr()
}
