package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"kmirror/internal/testkafka"
)

// Error codes that brokers answer Produce with.
const (
	codeMessageTooLarge   = 10
	codeNotEnoughReplicas = 19
	codePolicyViolation   = 44
)

var javaWays = []string{"acks=0", "acks=1", "acks=all", "idempotent"}

// TestProduce tries to write to a mirror with every producer: while kmirror leads, while it is dead and nothing else leads
// yet, and while a real broker leads. Not a byte is added, and no transaction is left unfinished.
func TestProduce(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	testkafka.EnsureKcat(t)
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1})
	const topic, other = "ro", "plain"
	createTopic(t, src, topic, 1, nil)
	produce(t, client(t, src), topic, 1, 200, 100)
	createTopic(t, dst, other, 1, nil)
	s := newShim(t, dst, "")
	s.create(src)
	s.mirror(topic)
	s.caughtUp(src, 3, time.Minute, topic)
	w := &writers{t: t, dst: dst, topic: topic, other: other, brokers: strings.Join(dst.Bootstrap("CLIENT"), ","), before: digests(t, dst, topic)}

	t.Run("refused while kmirror is up", func(t *testing.T) { w.refused(t, s) })
	t.Run("transactions while kmirror is up", func(t *testing.T) { w.transactions(t) })

	opened := openTxn(t, dst, "opened-before", topic, other)
	s.kill()
	t.Run("nothing is added before a real broker leads", func(t *testing.T) { w.leaderless(t) })
	leader := w.realLeader()
	t.Run("nothing is added while a real broker leads", func(t *testing.T) { w.locked(t, leader) })
	// Three transactions whose end has to wait for kmirror, and a producer that goes on as soon as it is there.
	goesOn := probeJava(t, w.brokers, topic, other, 6*time.Second, "txn-dead")
	aborted, committed := openTxn(t, dst, "aborted-dead", topic, other), openTxn(t, dst, "committed-dead", topic, other)
	opened(false)
	aborted(false)
	committed(true)
	eventually(t, 30*time.Second, "the Java producer has begun", func() error {
		if txnStates(t, dst)["txn-dead"] != "PrepareAbort" {
			return fmt.Errorf("transactions: %v", txnStates(t, dst))
		}
		return nil
	})
	t.Logf("while kmirror is dead: %v", txnStates(t, dst))
	w.unchanged(t)

	s.start()
	t.Run("no transaction is left", func(t *testing.T) {
		w.ended(t, 40*time.Second, "aborted-dead", "committed-dead", "opened-before")
		java := goesOn()
		w.ended(t, 20*time.Second, "txn-dead")
		w.java(t, "txn-dead", java)
		t.Logf("%d coordinators made to load anew", strings.Count(mustRead(t, s.log), "a transaction of the destination hangs"))
	})
	w.unchanged(t)
	produce(t, client(t, src), topic, 1, 50, 100)
	s.caughtUp(src, 3, time.Minute, topic)
	sameSegments(t, src, dst, topic, 1, 3)
}

// digests are the batches of partition 0 on each broker.
func digests(tb testing.TB, c *testkafka.Cluster, topic string) map[int32]string {
	tb.Helper()
	out := map[int32]string{}
	for _, id := range c.Brokers() {
		sum, next, err := logDigest(c.Node(id), topic, 0, 0)
		if err != nil {
			tb.Fatal(err)
		}
		out[id] = fmt.Sprintf("%s up to %d, %d bytes", sum, next, testkafka.LogBytes(c.Node(id), topic, 0))
	}
	return out
}

// writers are all the producers that try to write to one mirror topic.
type writers struct {
	t            *testing.T
	dst          *testkafka.Cluster
	topic, other string
	brokers      string
	before       map[int32]string
}

func (w *writers) unchanged(t *testing.T) {
	t.Helper()
	if now := digests(t, w.dst, w.topic); !maps.Equal(now, w.before) {
		t.Errorf("something was written:\nbefore %v\n   now %v", w.before, now)
	}
}

// final wants a refusal at once that no client tries again.
func final(t *testing.T, o outcome, words ...string) {
	t.Helper()
	t.Log(o)
	if !strings.HasPrefix(o.what, "final") {
		t.Errorf("%s, want a refusal for good", o)
	}
	if o.took > 30*time.Second { // well before its delivery timeout
		t.Errorf("%s, want it at once", o)
	}
	for _, word := range words {
		if !strings.Contains(o.text, word) {
			t.Errorf("%s, want %q in the text", o, word)
		}
	}
}

// refused: with kmirror up.
func (w *writers) refused(t *testing.T, s *shim) {
	const delivery = 60 * time.Second // what is refused for good does not wait for it
	text := []string{"ReadOnlyTopicException", w.topic, "mirrored by m"}
	wait := probeJava(t, w.brokers, w.topic, w.other, delivery, javaWays...)
	for _, o := range wait() {
		if strings.Contains(o.way, "acks=0") {
			continue // hears nothing by design
		}
		final(t, o, text...)
		if o.what != "final PolicyViolationException" {
			t.Errorf("%s", o)
		}
	}
	for _, setting := range []string{"acks=1", "acks=all", "enable.idempotence=true"} {
		final(t, probeKcat(t, w.brokers, w.topic, delivery, setting), "Policy violation")
	}
	probeKcat(t, w.brokers, w.topic, 5*time.Second, "acks=0")
	for way, opts := range franzWays() {
		o := probeFranz(t, w.dst, w.topic, way, delivery, opts...)
		if way != "acks=0" {
			final(t, o, "POLICY_VIOLATION")
		}
	}
	for _, acks := range []int16{1, -1} {
		code, msg := rawProduce(t, s.client, w.topic, acks)
		if code != codePolicyViolation || !strings.HasPrefix(msg, "ReadOnlyTopicException: topic "+w.topic+" ") {
			t.Errorf("acks=%d: code %d, %q", acks, code, msg)
		}
	}
	rawProduce(t, s.client, w.topic, 0)
	w.unchanged(t)
}

// transactions: with kmirror up, by the protocols of before and since transaction.version 2.
func (w *writers) transactions(t *testing.T) {
	wait := probeJava(t, w.brokers, w.topic, w.other, 20*time.Second, "txn-up")
	for way, opts := range map[string][]kgo.Opt{"new": nil, "old": {kgo.MaxVersions(kversion.V3_0_0())}} {
		cl := client(t, w.dst, append(opts, kgo.TransactionalID("franz-"+way))...)
		ctx := timeout(t, 30*time.Second)
		for _, to := range []string{w.topic, w.other} {
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			first := cl.ProduceSync(ctx, &kgo.Record{Topic: w.other, Key: []byte("franz-" + way), Value: []byte(to)}).FirstErr()
			if to == w.topic {
				if err := cl.ProduceSync(ctx, &kgo.Record{Topic: to, Value: []byte("probe")}).FirstErr(); err == nil ||
					!strings.Contains(err.Error(), "POLICY_VIOLATION") {
					t.Errorf("franz-go %s: %v", way, err)
				}
			}
			if err := cl.EndTransaction(ctx, kgo.TransactionEndTry(to == w.other)); err != nil || first != nil {
				t.Errorf("franz-go %s: produce to %s: %v, end: %v", way, w.other, first, err)
			}
		}
	}
	// A partition that kmirror leads is in the transaction, so that the coordinator sends kmirror a marker.
	openTxn(t, w.dst, "aborted-up", w.topic, w.other)(false)
	openTxn(t, w.dst, "committed-up", w.topic, w.other)(true)
	java := wait()
	// Before that nothing behind an open transaction is stable.
	w.ended(t, 20*time.Second, "franz-old", "franz-new", "txn-up", "aborted-up", "committed-up")
	w.java(t, "txn-up", java)
	for _, way := range []string{"franz-old", "franz-new"} {
		if got := committedIn(t, w.dst, w.other, way); !slices.Equal(got, []string{w.other}) {
			t.Errorf("%s committed %v", way, got)
		}
	}
	w.unchanged(t)
}

// java wants the transaction to have been aborted after the refusal and another one committed.
func (w *writers) java(t *testing.T, way string, os []outcome) {
	t.Helper()
	steps := []string{}
	for _, o := range os {
		t.Log(o)
		steps = append(steps, o.what)
	}
	if len(os) < 3 || !strings.Contains(steps[0], "Exception") || steps[1] != "aborted" || steps[len(steps)-1] != "committed" {
		t.Errorf("steps %q, want a refusal, the abort, and a commit", steps)
	}
	if got := committedIn(t, w.dst, w.other, way); !slices.Equal(got, []string{"committed"}) {
		t.Errorf("%s committed %v to %s", way, got, w.other)
	}
}

// ended wants the named transactions to be over, and no other to be left. A coordinator that loads its state lists nothing.
func (w *writers) ended(t *testing.T, limit time.Duration, ids ...string) {
	t.Helper()
	eventually(t, limit, "transactions ended", func() error {
		states := txnStates(t, w.dst)
		for _, id := range ids {
			if !strings.HasPrefix(states[id], "Complete") {
				return fmt.Errorf("%s is %q", id, states[id])
			}
		}
		for id, state := range states {
			if !strings.HasPrefix(state, "Complete") && id != "txn-dead" {
				return fmt.Errorf("%s is %s", id, state)
			}
		}
		return nil
	})
	t.Log(txnStates(t, w.dst))
}

func (w *writers) leader(tb testing.TB) int32 {
	tb.Helper()
	leader, _, err := placeOf(tb, w.dst.Node(1), w.topic)
	if err != nil {
		tb.Fatal(err)
	}
	return leader
}

// realLeader waits for the controller to elect a real broker.
func (w *writers) realLeader() *testkafka.Node {
	w.t.Helper()
	var id int32
	eventually(w.t, 30*time.Second, "a real leader", func() error {
		if id = w.leader(w.t); id < 1 || id > 3 {
			return fmt.Errorf("leader %d", id)
		}
		return nil
	})
	return w.dst.Node(id)
}

// leaderless: the dead process is still the leader, for the seconds until the controller holds it dead. Producers begin
// then, and go on into the time of the real leader.
func (w *writers) leaderless(t *testing.T) {
	if id := w.leader(t); id < 9000 {
		t.Fatalf("led by %d", id)
	}
	const short = 2 * time.Second
	var mu sync.Mutex
	var wg sync.WaitGroup
	try := func(f func() outcome) {
		wg.Go(func() {
			o := f()
			mu.Lock()
			defer mu.Unlock()
			t.Log(o)
			if o.what == "acked" && !strings.Contains(o.way, "acks=0") {
				t.Errorf("%s", o)
			}
		})
	}
	java := probeJava(t, w.brokers, w.topic, w.other, 14*time.Second, javaWays...)
	for _, setting := range []string{"acks=0", "acks=1", "acks=all", "enable.idempotence=true"} {
		try(func() outcome { return probeKcat(t, w.brokers, w.topic, short, setting) })
	}
	for way, opts := range franzWays() {
		try(func() outcome { return probeFranz(t, w.dst, w.topic, way, short, opts...) })
	}
	wg.Wait()
	if id := w.leader(t); id < 9000 {
		t.Logf("a real broker was elected before all producers were through")
	}
	w.unchanged(t)
	w.stillNothing(t, java())
}

// stillNothing wants no acknowledgement, and an error that may be tried again where all replicas have to acknowledge.
func (w *writers) stillNothing(t *testing.T, os []outcome) {
	t.Helper()
	if len(os) != len(javaWays) {
		t.Errorf("%d outcomes: %v", len(os), os)
	}
	for _, o := range os {
		t.Log(o)
		switch {
		case strings.Contains(o.way, "acks=0"):
		case o.what == "acked":
			t.Errorf("%s", o)
		case !strings.Contains(o.way, "acks=1") && !strings.HasPrefix(o.what, "retriable"):
			t.Errorf("%s, want an error that may be tried again", o)
		}
	}
	w.unchanged(t)
}

// locked: a real broker leads and only the lock protects.
func (w *writers) locked(t *testing.T, leader *testkafka.Node) {
	java := probeJava(t, w.brokers, w.topic, w.other, 5*time.Second, javaWays...)
	for acks, want := range map[int16]int16{1: codeMessageTooLarge, -1: codeNotEnoughReplicas, 0: 0} {
		var code int16
		var text string
		eventually(t, 30*time.Second, "a leader that knows it is", func() error { // another broker may have told of it before
			if code, text = rawProduce(t, leader.Addr("CLIENT"), w.topic, acks); code == codeNotLeader {
				return fmt.Errorf("code %d", code)
			}
			return nil
		})
		if code != want {
			t.Errorf("acks=%d: code %d %q, want %d", acks, code, text, want)
		}
	}
	for _, setting := range []string{"acks=0", "acks=1", "acks=all", "enable.idempotence=true"} {
		o := probeKcat(t, w.brokers, w.topic, 3*time.Second, setting)
		t.Log(o)
		if o.what == "acked" && setting != "acks=0" {
			t.Errorf("%s", o)
		}
	}
	for way, opts := range franzWays() {
		o := probeFranz(t, w.dst, w.topic, way, 3*time.Second, opts...)
		t.Log(o)
		if o.what == "acked" && way != "acks=0" {
			t.Errorf("%s", o)
		}
	}
	w.stillNothing(t, java())
}
