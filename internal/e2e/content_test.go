package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// TestContent mirrors every kind of content and compares bytes on all three brokers, then with RF 1 on a single one.
func TestContent(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := testkafka.Start(t, testkafka.Options{Name: "src",
		Properties: map[string]string{"log.cleaner.backoff.ms": "500", "message.max.bytes": "10000000"}})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1,
		Properties: map[string]string{"log.cleaner.backoff.ms": "500"}})
	topics := loadCodecs(t, src)
	createTopic(t, src, "txn", 1, nil)
	transact(t, src, "tx-a", "txn", 0, 20, "ccacac")
	transact(t, src, "tx-b", "txn", 0, 20, "ao")
	topics = append(topics, "txn")
	topics = append(topics, loadOddities(t, src)...)
	loadTrimmed(t, src, "trimmed", 321)
	loadCompacted(t, src, "compacted")
	holdCleaner(t, src, "compacted")
	loadCompacted(t, src, "compacting")
	createTopic(t, src, "wide", 12, nil)
	produce(t, client(t, src), "wide", 12, 100, 100)
	createTopic(t, src, "flowing", 3, nil)
	stop := flow(t, src, "flowing", 3, 500)

	s := newShim(t, dst, "")
	s.create(src)
	all := append(slices.Clone(topics), "trimmed", "compacted", "compacting", "wide", "flowing")
	s.mirror(all...)
	s.caughtUp(src, 3, 2*time.Minute, all...)
	n := stop()
	s.caughtUp(src, 3, time.Minute, "flowing")

	for _, topic := range topics {
		parts := int32(1)
		if topic == "odd" {
			parts = 3
		}
		t.Run(topic, func(t *testing.T) { sameSegments(t, src, dst, topic, parts, 3) })
	}
	t.Run("12 partitions", func(t *testing.T) { sameSegments(t, src, dst, "wide", 12, 3) })
	t.Run(fmt.Sprintf("flowing, %d records", n), func(t *testing.T) { sameSegments(t, src, dst, "flowing", 3, 3) })
	t.Run("trimmed", func(t *testing.T) { sameLogs(t, src, dst, "trimmed", 0, 321, 3) })
	t.Run("compacted", func(t *testing.T) { sameLogs(t, src, dst, "compacted", 0, 0, 3) })
	t.Run("trimmed later", func(t *testing.T) {
		// redpanda #30785: the start follows the source exactly, also after the leader moved.
		deleteBefore(t, src, "trimmed", 0, 777)
		eventually(t, 30*time.Second, "log start 777 on all brokers", func() error { return startsAt(t, dst, "trimmed", 777) })
		sameLogs(t, src, dst, "trimmed", 0, 777, 3)
	})
	t.Run("cleaners at work", func(t *testing.T) {
		// The cleaners of both sides go on by themselves: what verify compares must agree all the time.
		for range 4 {
			produce(t, client(t, src), "compacting", 1, 1000, 900)
			s.caughtUp(src, 3, time.Minute, "compacting")
			t.Log(s.must("verify", "--mirror", "m", "--topics", "compacting"))
		}
	})
	t.Run("verify", func(t *testing.T) { t.Log(s.must("verify", "--mirror", "m")) })

	t.Run("RF 1", func(t *testing.T) {
		single := testkafka.Start(t, testkafka.Options{Name: "single", Properties: map[string]string{"default.replication.factor": "1"}})
		s1 := newShim(t, single, "")
		s1.create(src)
		s1.mirror("txn", "wide", "odd")
		s1.caughtUp(src, 1, time.Minute, "txn", "wide", "odd")
		sameSegments(t, src, single, "txn", 1, 1)
		sameSegments(t, src, single, "wide", 12, 1)
		sameSegments(t, src, single, "odd", 3, 1)
	})
}
