package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
	"kmirror/internal/unlock"
)

// TestUnlock loses kmirror, the source and a broker of the destination at once, and gives the topics back without any of them: by
// kmirror unlock, and by the commands of docs/failover.md as they stand there.
func TestUnlock(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	w := newWayOut(t)
	stock := newTools(t, w.dst)
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"refused while kmirror leads", w.refusedWhileServing},
		{"kmirror, the source and a broker are lost", w.lose},
		{"unlock without the broker", w.brokerDown},
		{"stock tools without the broker", func(t *testing.T) { w.stockTools(t, stock) }},
		{"the broker comes back", func(t *testing.T) { startBroker(t, w.dst, 3); w.alive(t, 3) }},
		{"unlock goes on", w.brokerBack},
		{"stock tools go on", func(t *testing.T) { w.stockToolsEnd(t, stock) }},
		{"a partition without leader", func(t *testing.T) { w.leaderless(t, stock) }},
		{"unlock with all brokers", w.allUp},
		{"kmirror and the source come back", w.comeBack},
		{"kmirror goes for good", func(t *testing.T) { w.goodbye(t, stock) }},
	} {
		if !t.Run(step.name, step.run) {
			return // each begins where the one before it ended
		}
	}
}

// wayOut is a mirror of topics that are given back in different ways.
type wayOut struct {
	src, dst *testkafka.Cluster
	s        *shim
	// ends are the log ends of the topics before kmirror comes back, as the leaders tell them.
	ends map[tp]int64
}

// The topics: orders and stock have an open transaction; alone has one replica, on broker 3, single and lone on broker 1; taken was
// there before kmirror, too.
var wayOutTopics = []string{"orders", "stock", "alone", "single", "lone", "taken"}

func newWayOut(t *testing.T) *wayOut {
	t.Helper()
	w := &wayOut{src: testkafka.Start(t, testkafka.Options{Name: "src"}),
		dst: testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1})}
	elrOn(t, w.dst)
	createTopic(t, w.dst, "taken", 1, map[string]string{"min.insync.replicas": "1"})
	createTopicOn(t, w.dst, "alone", 3)
	createTopicOn(t, w.dst, "single", 1)
	createTopicOn(t, w.dst, "lone", 1)
	createTopic(t, w.src, "orders", 2, map[string]string{"max.message.bytes": "2000000"})
	createTopic(t, w.src, "stock", 2, nil)
	for _, name := range []string{"alone", "single", "lone", "taken"} {
		createTopic(t, w.src, name, 1, nil)
	}
	for _, name := range wayOutTopics {
		produce(t, client(t, w.src), name, 1, 200, 100)
	}
	for _, name := range []string{"orders", "stock"} {
		transact(t, w.src, "txn-"+name, name, 0, 10, "cao")
	}
	w.s = newShim(t, w.dst, "")
	w.s.create(w.src)
	w.s.mirror(wayOutTopics...)
	w.s.caughtUp(w.src, 1, time.Minute, "alone", "single", "lone")
	w.s.caughtUp(w.src, 3, time.Minute, "orders", "stock", "taken")
	return w
}

// createTopicOn makes a topic with one replica on a broker.
func createTopicOn(t *testing.T, c *testkafka.Cluster, topic string, broker int32) {
	t.Helper()
	adm := kadm.NewClient(client(t, c))
	made, err := adm.CreateTopic(timeout(t, 20*time.Second), 1, 1, nil, topic)
	if err != nil || made.Err != nil {
		t.Fatal(err, made.Err)
	}
	var req kadm.AlterPartitionAssignmentsReq
	req.Assign(topic, 0, []int32{broker})
	if _, err := adm.AlterPartitionAssignments(timeout(t, 20*time.Second), req); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, topic+" in its place", func() error { return replicasAre(t, c, topic, broker) })
}

// replicasAre wants every partition of a topic on exactly these brokers, all in sync, led by one of them.
func replicasAre(tb testing.TB, c *testkafka.Cluster, topic string, want ...int32) error {
	tb.Helper()
	d, err := replicasOf(tb, c, topic)
	if err != nil {
		return err
	}
	for _, p := range d.Partitions {
		rs, isr := slices.Sorted(slices.Values(p.Replicas)), slices.Sorted(slices.Values(p.ISR))
		if !slices.Equal(rs, want) || !slices.Equal(isr, want) || !slices.Contains(want, p.Leader) {
			return fmt.Errorf("partition %d: leader %d, replicas %v, in sync %v", p.Partition, p.Leader, rs, isr)
		}
	}
	return nil
}

// on waits until brokers say so of a topic: those who are asked hear of it a moment after unlock does.
func (w *wayOut) on(t *testing.T, topic string, want ...int32) {
	t.Helper()
	eventually(t, 30*time.Second, topic+" in its place", func() error { return replicasAre(t, w.dst, topic, want...) })
}

// unlock runs the command and wants its exit code.
func (w *wayOut) unlock(t *testing.T, code int, args ...string) (out []unlock.Result, stderr string) {
	t.Helper()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	ctx := timeout(t, 3*time.Minute)
	cmd := exec.CommandContext(ctx, bin, append([]string{"unlock", "--config", w.s.config, "-o", "json"}, args...)...)
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	begin := time.Now()
	_ = cmd.Run() // the exit code says it
	t.Logf("unlock %s: exit %d after %s\n%s%s", strings.Join(args, " "), cmd.ProcessState.ExitCode(),
		time.Since(begin).Round(time.Millisecond), o.String(), e.String())
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("exit %d, want %d", got, code)
	}
	if o.Len() > 0 {
		if err := json.Unmarshal([]byte(o.String()), &out); err != nil {
			t.Fatal(err)
		}
	}
	return out, e.String()
}

func (w *wayOut) refusedWhileServing(t *testing.T) {
	if _, text := w.unlock(t, 4, "--topics", "orders"); !strings.Contains(text, "kmirror serve is running") ||
		!strings.Contains(text, "kmirror failover") {
		t.Errorf("stderr %q", text)
	}
	if _, text := w.unlock(t, 2, "--topics", "orders,no-such"); !strings.Contains(text, "no-such") {
		t.Errorf("stderr %q", text)
	}
	if _, text := w.unlock(t, 0, "--topics", "/.*/", "--dry-run"); !strings.Contains(text, "kmirror serve seems to run") {
		t.Errorf("a dry run does not say that serve runs: %q", text)
	}
	if got := topicConfigs(t, w.dst, "orders")["max.message.bytes"]; got != "0" {
		t.Errorf("max.message.bytes is %q afterwards", got)
	}
	w.s.tb = t
	w.s.caughtUp(w.src, 3, 20*time.Second, "orders")
}

// lose kills broker 3 of the destination, lets more records come, and kills kmirror and the source.
func (w *wayOut) lose(t *testing.T) {
	t.Helper()
	w.s.tb = t
	if err := w.dst.Node(3).Kill(); err != nil {
		t.Fatal(err)
	}
	produce(t, client(t, w.src), "orders", 2, 100, 100)
	produce(t, client(t, w.src), "stock", 2, 100, 100)
	w.s.caughtUp(w.src, 2, time.Minute, "orders", "stock")
	eventually(t, 30*time.Second, "broker 3 out of all ISRs", func() error {
		d, err := replicasOf(t, w.dst, "alone")
		if err == nil && slices.Contains(d.Partitions[0].ISR, 3) {
			err = fmt.Errorf("in sync: %v", d.Partitions[0].ISR)
		}
		return err
	})
	w.s.kill()
	if err := w.src.Node(1).Kill(); err != nil {
		t.Fatal(err)
	}
}

// writable wants every partition to take writes that all in-sync replicas acknowledge, and to be readable from the beginning.
func (w *wayOut) writable(t *testing.T, topic string) {
	t.Helper()
	before := endOffsets(t, w.dst, topic)
	var n int32
	for at := range before {
		n = max(n, at.partition+1)
	}
	produce(t, client(t, w.dst, kgo.RequiredAcks(kgo.AllISRAcks())), topic, n, 20, 100)
	produce(t, client(t, w.dst, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()), topic, n, 5, 100)
	var after map[tp]int64
	eventually(t, 30*time.Second, "25 more records in each partition of "+topic, func() error {
		after = endOffsets(t, w.dst, topic)
		for at, end := range before {
			if after[at] != end+25 {
				return fmt.Errorf("partition %d ends at %d, was at %d", at.partition, after[at], end)
			}
		}
		return nil
	})
	// Gaps are control records only, so the offsets alone say whether all was read.
	cl := client(t, w.dst, kgo.ConsumeTopics(topic), kgo.KeepControlRecords(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	next, ctx := map[tp]int64{}, timeout(t, 30*time.Second)
	for !behindNone(next, after) {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			t.Fatalf("%s is read up to %v of %v: %v", topic, next, after, err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			if at := (tp{r.Topic, r.Partition}); r.Offset == next[at] {
				next[at]++
			} else {
				t.Fatalf("%s-%d: offset %d came where %d was due", r.Topic, r.Partition, r.Offset, next[at])
			}
		})
	}
}

func behindNone(next, ends map[tp]int64) bool {
	for at, end := range ends {
		if next[at] < end {
			return false
		}
	}
	return true
}

// trueConfigs wants the two configs of the lock to be as they were before kmirror came, "" for not set.
func (w *wayOut) trueConfigs(t *testing.T, topic, size, minISR string) {
	t.Helper()
	has(t, w.dst, topic, map[string]string{"max.message.bytes": size, "min.insync.replicas": minISR})
}

// stableAt returns the high watermark and the last stable offset of partition 0.
func (w *wayOut) stableAt(t *testing.T, topic string) (end, stable int64) {
	t.Helper()
	offs, err := kadm.NewClient(client(t, w.dst)).ListCommittedOffsets(timeout(t, 10*time.Second), topic)
	if err != nil {
		t.Fatal(err)
	}
	o, _ := offs.Lookup(topic, 0)
	return endOffsets(t, w.dst, topic)[tp{topic, 0}], o.Offset
}

// brokerDown: kmirror, the source and broker 3 are dead.
func (w *wayOut) brokerDown(t *testing.T) {
	out, text := w.unlock(t, 3, "--topics", "orders")
	if len(out) != 1 || !out[0].Unlocked || out[0].Mirror != "m" || out[0].Guessed != "" || out[0].ProducerIDs < 1 {
		t.Fatalf("%+v %s", out, text)
	}
	if n := len(out[0].OpenTransactions); n != 1 {
		t.Errorf("%d open transactions", n)
	}
	if !slices.ContainsFunc(out[0].Waiting, func(l string) bool { return strings.Contains(l, "broker 3 is down") }) {
		t.Errorf("waiting: %q", out[0].Waiting)
	}
	w.trueConfigs(t, "orders", "2000000", "")
	w.on(t, "orders", 1, 2)
	w.writable(t, "orders")
	if end, stable := w.stableAt(t, "orders"); stable >= end {
		t.Errorf("last stable offset %d, end %d: where is the open transaction?", stable, end)
	}
	w.unlock(t, 3, "--topics", "orders") // again: nothing breaks, and it still says what is missing
	w.unlock(t, 0, "--topics", "single")
	w.on(t, "single", 1)
	w.trueConfigs(t, "single", "", "")
	w.writable(t, "single")
}

func (w *wayOut) brokerBack(t *testing.T) {
	out, _ := w.unlock(t, 0, "--topics", "orders")
	if len(out) != 1 || !out[0].Unlocked {
		t.Fatalf("%+v", out)
	}
	w.on(t, "orders", 1, 2, 3)
	w.trueConfigs(t, "orders", "2000000", "")
	w.writable(t, "orders")
	w.unlock(t, 0, "--topics", "orders")
}

// leaderless: the only real replica was killed, so that the controller holds it for unclean.
func (w *wayOut) leaderless(t *testing.T, stock *tools) {
	out, _ := w.unlock(t, 3, "--topics", "alone")
	if len(out) != 1 || out[0].Unlocked || len(out[0].Waiting) != 1 ||
		!strings.Contains(out[0].Waiting[0], "kafka-leader-election.sh --election-type UNCLEAN") {
		t.Fatalf("%+v", out)
	}
	stock.topic = "alone"
	stock.run(t, "1a")
	out, _ = w.unlock(t, 0, "--topics", "alone")
	if len(out) != 1 || !out[0].Unlocked {
		t.Fatalf("%+v", out)
	}
	w.on(t, "alone", 3)
	w.trueConfigs(t, "alone", "", "")
	w.writable(t, "alone")
}

func (w *wayOut) allUp(t *testing.T) {
	out, _ := w.unlock(t, 0, "--topics", "/ta.*/")
	if len(out) != 1 || !out[0].Unlocked || out[0].Topic != "taken" {
		t.Fatalf("%+v", out)
	}
	w.on(t, "taken", 1, 2, 3)
	w.trueConfigs(t, "taken", "", "1")
	w.writable(t, "taken")
	if out, text := w.unlock(t, 0, "--topics", "/[a-z]+/"); len(out) != 0 || !strings.Contains(text, "nothing to do") {
		t.Errorf("%+v %q", out, text)
	}
}

// comeBack: kmirror finds its topics written by others; it says so and touches nothing.
func (w *wayOut) comeBack(t *testing.T) {
	w.ends = endOffsets(t, w.dst, wayOutTopics...)
	startBroker(t, w.src, 1)
	w.s.tb = t
	w.s.start()
	eventually(t, time.Minute, "all FAILED with a hint", func() error {
		parts, err := w.s.describe()
		if err == nil && len(parts) != 8 {
			err = fmt.Errorf("%d partitions", len(parts))
		}
		for _, p := range parts {
			if p.State != "FAILED" || p.Hint == nil || *p.Hint == "" {
				err = fmt.Errorf("%s-%d is %s: %v, hint %v", p.Topic, p.Partition, p.State, deref(p.Error), deref(p.Hint))
			}
		}
		return err
	})
	if now := endOffsets(t, w.dst, wayOutTopics...); fmt.Sprint(now) != fmt.Sprint(w.ends) {
		t.Errorf("ends were %v, are %v", w.ends, now)
	}
	for _, topic := range wayOutTopics {
		w.writable(t, topic)
	}
	w.trueConfigs(t, "orders", "2000000", "")
	for _, topic := range []string{"orders", "stock", "taken"} {
		w.on(t, topic, 1, 2, 3)
	}
}

// alive waits until all brokers say that so many are: a tool, or unlock, may ask any of them, and takes one that it is not told of for dead.
func (w *wayOut) alive(t *testing.T, want int) {
	t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	eventually(t, 30*time.Second, "the brokers that are alive", func() error {
		for _, id := range w.dst.Brokers() {
			resp, err := atBroker(t, w.dst.Node(id), req)
			if err != nil {
				return err
			}
			if n := len(resp.(*kmsg.MetadataResponse).Brokers); n != want {
				return fmt.Errorf("broker %d says %d", id, n)
			}
		}
		return nil
	})
}

// goodbye deletes topics, restarts kmirror uncleanly and forgets its ids: what makes a controller resign whose index of in-sync
// replicas has stale entries (fact 12 of docs/kafka-facts.md). The cluster's logs are judged at the end.
func (w *wayOut) goodbye(t *testing.T, stock *tools) {
	adm := kadm.NewClient(client(t, w.dst))
	rs, err := adm.DeleteTopics(timeout(t, 20*time.Second), "orders", "stock")
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	w.s.tb = t
	w.s.kill()
	w.s.start()
	w.s.kill()
	w.alive(t, 3) // kmirror's ids are fenced
	stock.run(t, "12")
	if err := w.dst.Node(3).Kill(); err != nil { // an unclean registration of a real broker
		t.Fatal(err)
	}
	startBroker(t, w.dst, 3)
	w.writable(t, "taken")
}

// stockTools frees the topic stock as far as that goes while a broker is down.
func (w *wayOut) stockTools(t *testing.T, x *tools) {
	x.topic = "stock"
	for _, step := range []string{"1", "2", "3", "4", "5", "6", "7"} {
		x.run(t, step)
	}
	if text := x.file(t, "true"); !strings.Contains(text, `"name":"stock"`) {
		t.Errorf("true values: %q", text)
	}
	x.unlocked(t)
	x.run(t, "8")
	w.trueConfigs(t, "stock", "", "")
	w.on(t, "stock", 1, 2)
	w.writable(t, "stock")

	x.topic = "lone"
	for _, step := range []string{"1", "4", "5", "6", "7"} {
		x.run(t, step)
	}
	x.unlocked(t)
	x.run(t, "8")
	x.run(t, "9")
	w.trueConfigs(t, "lone", "", "")
	eventually(t, 30*time.Second, "lone on its broker alone", func() error { return replicasAre(t, w.dst, "lone", 1) })
	w.writable(t, "lone")
}

// unlocked waits until step 7a prints nothing.
func (x *tools) unlocked(t *testing.T) {
	t.Helper()
	eventually(t, 30*time.Second, "step 7a prints nothing", func() error {
		if text := x.run(t, "7a"); strings.TrimSpace(text) != "" {
			return fmt.Errorf("it prints %q", text)
		}
		return nil
	})
}

// stockToolsEnd does the rest once the broker is back.
func (w *wayOut) stockToolsEnd(t *testing.T, x *tools) {
	x.topic = "stock"
	x.run(t, "9")
	eventually(t, 30*time.Second, "broker 3 in sync again", func() error { return replicasAre(t, w.dst, "stock", 1, 2, 3) })
	x.run(t, "10")
	if end, stable := w.stableAt(t, "stock"); stable >= end {
		t.Errorf("last stable offset %d, end %d: where is the open transaction?", stable, end)
	}
	eventually(t, 60*time.Second, "find-hanging finds it", func() error {
		if text := x.run(t, "11a"); !strings.Contains(text, "stock") {
			return fmt.Errorf("it prints %q", text)
		}
		return nil
	})
	x.run(t, "11")
	eventually(t, 30*time.Second, "the end of the open transaction", func() error {
		if end, stable := w.stableAt(t, "stock"); stable != end {
			return fmt.Errorf("last stable offset %d, end %d after the abort", stable, end)
		}
		return nil
	})
	w.writable(t, "stock")
}
