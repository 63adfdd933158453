package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// loadMixed fills three partitions with every codec, transactions of each end, headers and nulls. It returns how many
// records a consumer sees of each isolation level.
func loadMixed(tb testing.TB, src *testkafka.Cluster, topic string) (all, committed int) {
	tb.Helper()
	createTopic(tb, src, topic, 3, nil)
	for _, codec := range codecs {
		produce(tb, client(tb, src, kgo.ProducerBatchCompression(codec)), topic, 2, 40, 100)
		all += 80
	}
	odd := []*kgo.Record{
		{Topic: topic, Partition: 0, Value: []byte("null key")},
		{Topic: topic, Partition: 0, Key: []byte("null value")},
		{Topic: topic, Partition: 1, Key: []byte("headers"), Value: []byte("v"),
			Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a", Value: nil}, {Key: "b", Value: []byte("x y")}}},
		{Topic: topic, Partition: 2, Key: []byte{}, Value: []byte("empty key")},
	}
	if err := client(tb, src).ProduceSync(timeout(tb, time.Minute), odd...).FirstErr(); err != nil {
		tb.Fatal(err)
	}
	all += len(odd)
	committed = all
	transact(tb, src, "mixed-0", topic, 0, 15, "caac")
	transact(tb, src, "mixed-1", topic, 1, 15, "ca")
	all, committed = all+90, committed+45
	produce(tb, client(tb, src), topic, 2, 10, 10)
	all, committed = all+20, committed+20
	transact(tb, src, "mixed-2", topic, 1, 15, "o")
	produce(tb, client(tb, src), topic, 2, 5, 10)
	// What comes after an open transaction is not stable yet.
	return all + 25, committed + 5
}

// TestClients reads a mirror with every client and wants exactly the source's records.
func TestClients(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	testkafka.EnsureKcat(t)
	src := testkafka.Start(t, testkafka.Options{Name: "src", Properties: map[string]string{"broker.rack": "r1"}})
	// A broker that is stopped for longer than the shim's own limit must not be fenced by the controller before it.
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1,
		Properties:     map[string]string{"broker.session.timeout.ms": "90000"},
		NodeProperties: map[int32]map[string]string{1: {"broker.rack": "r1"}, 2: {"broker.rack": "r2"}, 3: {"broker.rack": "r3"}}})
	const topic = "mixed"
	all, committed := loadMixed(t, src, topic)
	createTopic(t, src, "hw", 1, nil)
	produce(t, client(t, src), "hw", 1, 100, 100)
	s := newShim(t, dst, "")
	s.create(src)
	s.mirror(topic, "hw")
	s.caughtUp(src, 3, time.Minute, topic, "hw")

	for isolation, n := range map[string]int{"read_uncommitted": all, "read_committed": committed} {
		level := kgo.ReadUncommitted()
		if isolation == "read_committed" {
			level = kgo.ReadCommitted()
		}
		direct := kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart(), 1: kgo.NewOffset().AtStart(),
			2: kgo.NewOffset().AtStart()}})
		want := readFranz(t, src, n, kgo.FetchIsolationLevel(level), direct)
		if len(want) != n {
			t.Fatalf("the source shows %d records, %d were produced", len(want), n)
		}
		t.Run(isolation, func(t *testing.T) {
			brokers := strings.Join(dst.Bootstrap("CLIENT"), ",")
			t.Run("franz-go", func(t *testing.T) { sameRecords(t, want, readFranz(t, dst, n, kgo.FetchIsolationLevel(level), direct)) })
			t.Run("franz-go in a group", func(t *testing.T) {
				sameRecords(t, want, readFranz(t, dst, n, kgo.FetchIsolationLevel(level), kgo.ConsumeTopics(topic),
					kgo.ConsumerGroup("franz-"+isolation), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())))
			})
			t.Run("franz-go by way of the shim", func(t *testing.T) {
				sameRecords(t, want, readFranz(t, dst, n, kgo.FetchIsolationLevel(level), direct, kgo.SeedBrokers(s.client)))
			})
			t.Run("kcat", func(t *testing.T) { sameRecords(t, want, readKcat(t, brokers, topic, isolation)) })
			t.Run("kcat by way of the shim", func(t *testing.T) { sameRecords(t, want, readKcat(t, s.client, topic, isolation)) })
			t.Run("console, classic", func(t *testing.T) { sameRecords(t, want, readConsole(t, brokers, topic, isolation, "classic", n)) })
			t.Run("console, consumer protocol", func(t *testing.T) {
				sameRecords(t, want, readConsole(t, s.client, topic, isolation, "consumer", n))
			})
		})
	}
	t.Run("no record that an in-sync replica lacks", func(t *testing.T) { laggard(t, src, dst, s, "hw") })
}

// laggard stops one follower while consumers poll at another, twice: once it comes back, once it is shrunk out.
func laggard(t *testing.T, src, dst *testkafka.Cluster, s *shim, topic string) {
	const stopped, tooEarly = 2, 20 * time.Second // 30 s after it was last at the end is the time
	slow := dst.Node(stopped)
	w := watch(t, topic, kgo.SeedBrokers(dst.Node(1).Addr("CLIENT"), dst.Node(3).Addr("CLIENT")), kgo.Rack("r1"))
	reaches := func(n int64) {
		t.Helper()
		eventually(t, 30*time.Second, fmt.Sprintf("the consumer at %d", n), func() error {
			if at := w.at(t); at < n {
				return fmt.Errorf("at %d", at)
			}
			return nil
		})
	}
	reaches(100)
	held := func(limit time.Duration, end int64) (shrunk bool) {
		t.Helper()
		return heldBack(t, dst, w, slow, topic, limit, end)
	}
	pause := func(produced int64) {
		t.Helper()
		if err := slow.Pause(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { slow.Resume() })
		produce(t, client(t, src), topic, 1, 100, 100)
		for _, id := range []int32{1, 3} {
			eventually(t, 30*time.Second, fmt.Sprintf("broker %d has the new records", id), func() error {
				v, err := viewOf(t, dst.Node(id), topic, 0)
				if err == nil && v.end != produced {
					err = fmt.Errorf("ends at %d", v.end)
				}
				return err
			})
		}
	}
	begin := time.Now()
	pause(200)
	if held(4*time.Second, 100) && time.Since(begin) < tooEarly {
		t.Errorf("shrunk out within %s", time.Since(begin))
	}
	if err := slow.Resume(); err != nil {
		t.Fatal(err)
	}
	reaches(200)
	s.caughtUp(src, 3, time.Minute, topic) // back in sync, where all of that took so long that it was not

	begin = time.Now()
	pause(300)
	if !held(60*time.Second, 200) {
		t.Error("a stopped follower is in the ISR after a minute")
	}
	t.Logf("shrunk out %s after it was stopped", time.Since(begin).Round(time.Second))
	if time.Since(begin) < tooEarly {
		t.Error("shrunk out too early")
	}
	reaches(300)
	if err := slow.Resume(); err != nil {
		t.Fatal(err)
	}
	s.caughtUp(src, 3, time.Minute, topic)
	sameSegments(t, src, dst, topic, 1, 3)
}

// heldBack wants nobody to see more than the stopped replica has, for as long as it is in sync, which it reports.
func heldBack(t *testing.T, dst *testkafka.Cluster, w *watcher, slow *testkafka.Node, topic string, limit time.Duration, end int64) (shrunk bool) {
	t.Helper()
	out := func() bool {
		_, isr, err := placeOf(t, dst.Node(1), topic)
		if err != nil {
			t.Fatal(err)
		}
		return !slices.Contains(isr, slow.ID)
	}
	return polled(limit, func() bool {
		marks := map[string]int64{"the consumer": w.at(t)}
		for _, id := range []int32{1, 3} {
			hw, err := watermarkAt(t, dst.Node(id), topic, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			marks[fmt.Sprintf("broker %d", id)] = hw
		}
		_, has, err := logDigest(slow, topic, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if has != end {
			t.Fatalf("the stopped broker's log ends at %d, want %d", has, end)
		}
		for who, at := range marks {
			// A broker may learn of the new ISR a moment after we have acted on it.
			if at > has && !polled(patience(5*time.Second), out) {
				t.Fatalf("%s is at %d while broker %d, in sync, has %d records", who, at, slow.ID, has)
			}
		}
		return out()
	})
}
