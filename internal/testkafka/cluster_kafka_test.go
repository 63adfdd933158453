package testkafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/protocol"
)

const testLimit = 2 * time.Minute

// shortSession lets a killed broker come back sooner than after Kafka's 9 s.
var shortSession = map[string]string{
	"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500",
	"replica.high.watermark.checkpoint.interval.ms": "200",
}

func TestCombinedNodeKeepsItsTopics(t *testing.T) {
	EnsureKcat(t)
	c := Start(t, Options{Name: "combined", Properties: shortSession})
	n := c.Node(1)
	if n == nil || !n.Broker || !n.Controller || len(c.Nodes()) != 1 {
		t.Fatalf("nodes = %v", c.Nodes())
	}
	create(t, c, "orders", 1)
	produce(t, c, "orders", 100)
	addr, pid := n.Addr(ClientListener), n.PID()

	must(t, n.Kill())
	if n.PID() != 0 {
		t.Errorf("pid %d after Kill", n.PID())
	}
	must(t, n.Start())
	if n.Addr(ClientListener) != addr || n.PID() == pid || n.PID() == 0 {
		t.Errorf("restarted at %s with pid %d, was at %s with %d", n.Addr(ClientListener), n.PID(), addr, pid)
	}
	out, err := Kcat(t.Context(), "-C", "-b", addr, "-t", "orders", "-e", "-q", "-f", "%o\n").Output()
	if err != nil || bytes.Count(out, []byte("\n")) != 100 {
		t.Errorf("kcat read %d lines, %v", bytes.Count(out, []byte("\n")), err)
	}
	if err := n.Start(); err == nil {
		t.Error("a running node was started")
	}
	if err := n.Wipe(); err == nil {
		t.Error("a running node was wiped")
	}

	must(t, n.Stop())
	l, err := net.Listen("tcp", addr)
	must(t, err)
	if err := n.Start(); err == nil || !strings.Contains(err.Error(), "ended: exit status") {
		t.Errorf("start on a taken port: %v", err)
	}
	must(t, l.Close())
	if !c.portTaken() {
		t.Error("a bind error in the log is not recognized")
	}
	c.AllowFaults("ended by itself")
	must(t, n.Start())
}

func TestNodesFailAndReturn(t *testing.T) {
	c := Start(t, Options{Name: "separate", Brokers: 3, Controllers: 1, Properties: shortSession})
	if !slices.Equal(c.Brokers(), []int32{1, 2, 3}) || len(c.Controllers()) != 1 || len(c.Bootstrap(ReplListener)) != 3 {
		t.Fatalf("brokers %v, controllers %v, inter-broker %v", c.Brokers(), c.Controllers(), c.Bootstrap(ReplListener))
	}
	create(t, c, "orders", 3)
	produce(t, c, "orders", 1000)
	awaitSameLogs(t, c, "orders")

	c.Node(2).paused(t, func() {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := c.Node(2).askBrokers(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a paused node's answer: %v", err)
		}
	})
	must(t, c.Node(2).Wait(t.Context()))

	must(t, c.Node(3).Kill())
	id, err := c.Node(3).directoryID()
	must(t, err)
	must(t, c.Node(3).Wipe())
	if LogBytes(c.Node(3), "orders", 0) != 0 {
		t.Error("a wiped node holds data")
	}
	must(t, c.Node(3).Start())
	if again, err := c.Node(3).directoryID(); err != nil || again != id {
		t.Errorf("directory id %v, %v after Wipe, was %v", again, err, id)
	}
	must(t, c.Node(101).Stop())
	must(t, c.Node(101).Start())
	produce(t, c, "orders", 10)
	awaitSameLogs(t, c, "orders")
	for _, id := range c.Brokers() {
		epochs, err := EpochCheckpoint(c.Node(id), "orders", 0)
		if err != nil || len(epochs) == 0 || epochs[0] != (EpochStart{}) {
			t.Errorf("epochs on %d: %v, %v", id, epochs, err)
		}
		awaitMark(t, c.Node(id), protocol.TopicPartition{Topic: "orders"}, 1010)
	}
	if f := c.lasting(); len(f) != 0 {
		t.Errorf("faults of a healthy cluster: %q", f)
	}
	plantFaults(t, c)
}

// plantFaults breaks what Faults must find, then allows it.
func plantFaults(t *testing.T, c *Cluster) {
	t.Helper()
	log, err := os.OpenFile(c.Node(2).Log(), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = fmt.Fprintln(log, "[2026] WARN Partition planted-0 marked as failed (kafka.server.ReplicaFetcherThread)")
	must(t, errors.Join(err, log.Close()))
	victim := c.Node(3)
	must(t, syscall.Kill(victim.PID(), syscall.SIGKILL))
	<-victim.process().done
	got := c.Faults()
	if len(got) != 2 || !strings.Contains(got[0], "node 2 of separate: [2026] WARN Partition planted-0") ||
		!strings.Contains(got[1], "node 3 of separate: ended by itself: signal: killed") {
		t.Errorf("Faults = %q", got)
	}
	c.AllowFaults("planted-0")
	c.AllowFaults("ended by itself")
	if got := c.Faults(); len(got) != 0 {
		t.Errorf("allowed, but Faults = %q", got)
	}
}

func TestPreviousVersionWithThreeControllers(t *testing.T) {
	c := Start(t, Options{Name: "previous", Version: Previous, Controllers: 3, Listeners: []string{"PLAIN", "OTHER"},
		FormatArgs: []string{"--feature", "eligible.leader.replicas.version=0"}})
	if n, err := JarsUnmodified(Previous); n < 15 || err != nil {
		t.Errorf("JarsUnmodified = %d, %v", n, err)
	}
	if got := c.Bootstrap("OTHER"); len(got) != 1 || len(c.Controllers()) != 3 {
		t.Errorf("other listener %v, controllers %v", got, c.Controllers())
	}
	out, err := Tool(t.Context(), Previous, "org.apache.kafka.tools.FeatureCommand", "--bootstrap-server",
		c.Bootstrap("PLAIN")[0], "describe").Output()
	if err != nil || !bytes.Contains(out, []byte("eligible.leader.replicas.version")) ||
		!slices.ContainsFunc(strings.Split(string(out), "\n"), func(line string) bool {
			return strings.Contains(line, "eligible.leader.replicas.version") && strings.Contains(line, "FinalizedVersionLevel: 0")
		}) {
		t.Errorf("features: %v\n%s", err, out)
	}
	// Whichever led, the quorum does without it, and it comes back.
	must(t, c.Node(101).Kill())
	must(t, c.Node(101).Start())
	must(t, c.Node(1).Stop())
	must(t, c.Node(1).Start())
}

func TestLaunchTellsWhy(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kafka")
	}
	_, err := Launch(t.Context(), t.TempDir(), Options{Properties: map[string]string{"num.io.threads": "zero"}}, nil)
	if err == nil || !strings.Contains(err.Error(), "Not a number of type INT") {
		t.Errorf("Launch with a bad property: %v", err)
	}
}

func (n *Node) paused(t *testing.T, f func()) {
	t.Helper()
	must(t, n.Pause())
	f()
	must(t, n.Resume())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func client(t *testing.T, c *Cluster) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap(ClientListener)...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(t, err)
	return cl
}

func create(t *testing.T, c *Cluster, topic string, replicas int16) {
	t.Helper()
	cl := client(t, c)
	defer cl.Close()
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), 1, replicas, nil, topic); err != nil {
		t.Fatal(err)
	}
}

func produce(t *testing.T, c *Cluster, topic string, count int) {
	t.Helper()
	cl := client(t, c)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	records := make([]*kgo.Record, count)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "value %d", i)}
	}
	must(t, cl.ProduceSync(ctx, records...).FirstErr())
}

// awaitSameLogs waits until partition 0 of a topic has the same bytes on every broker.
func awaitSameLogs(t *testing.T, c *Cluster, topic string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	var sums []map[string]string
	err := poll(ctx, func() (bool, error) {
		sums = nil
		for _, id := range c.Brokers() {
			s, err := SegmentSums(c.Node(id), topic, 0)
			if err != nil {
				return false, nil // not created yet
			}
			sums = append(sums, s)
		}
		return !slices.ContainsFunc(sums[1:], func(s map[string]string) bool { return !maps.Equal(s, sums[0]) }), nil
	})
	if err != nil || LogBytes(c.Node(1), topic, 0) == 0 {
		t.Fatalf("logs of %s: %v: %v", topic, err, sums)
	}
}

func awaitMark(t *testing.T, n *Node, tp protocol.TopicPartition, want int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	var marks map[protocol.TopicPartition]int64
	err := poll(ctx, func() (ok bool, err error) {
		marks, err = Checkpoints(n)
		return marks[tp] == want, err
	})
	if err != nil {
		t.Errorf("checkpoint of %v: %v, want %d for %v: %v", n, marks, want, tp, err)
	}
}
