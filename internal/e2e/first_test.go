package e2e

import (
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// TestThinnestPath mirrors one topic and compares segment files on all three brokers.
func TestThinnestPath(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := testkafka.Start(t, testkafka.Options{Name: "src", Brokers: 1})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1, BaseID: 1})
	createTopic(t, src, "orders", 2, nil)
	produce(t, client(t, src), "orders", 2, 500, 200)
	s := newShim(t, dst, "")
	s.create(src)
	s.mirror("orders")
	s.caughtUp(src, 3, 60*time.Second, "orders")
	produce(t, client(t, src), "orders", 2, 500, 200)
	s.caughtUp(src, 3, 30*time.Second, "orders")
	sameSegments(t, src, dst, "orders", 2, 3)
	t.Log(s.must("describe"))
	t.Log(s.must("verify", "--mirror", "m"))
	t.Run("a client of KIP-1279 alone", func(t *testing.T) { usesTheKIP(t, s, src) })
}
