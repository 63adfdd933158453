package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// TestUnlockWithOneBroker gives a topic back at a destination of one broker, where nothing makes the controller forget the eligible leader
// replicas, that broker's restart neither: the topic can be written all the same, and unlock says both, without waiting for anything.
func TestUnlockWithOneBroker(t *testing.T) {
	w := &wayOut{src: testkafka.Start(t, testkafka.Options{Name: "src"}),
		dst: testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 1, Controllers: 1})}
	elrOn(t, w.dst)
	createTopic(t, w.src, "orders", 2, nil)
	produce(t, client(t, w.src), "orders", 2, 50, 100)
	w.s = newShim(t, w.dst, "")
	w.s.create(w.src)
	w.s.mirror("orders")
	w.s.caughtUp(w.src, 1, time.Minute, "orders")
	w.s.kill()
	left := func() {
		t.Helper()
		out, text := w.unlock(t, 3, "--topics", "orders")
		if len(out) != 1 || !out[0].Unlocked || !out[0].MinISRLeft || len(out[0].Waiting) != 2 ||
			!slices.ContainsFunc(out[0].Waiting, func(l string) bool {
				return strings.Contains(l, "partition 0 can be written, with acks=all too") && strings.Contains(l, "second real broker")
			}) {
			t.Fatalf("%+v %s", out, text)
		}
	}
	left()
	w.writable(t, "orders")
	left()
	stopBroker(t, w.dst, 1)
	startBroker(t, w.dst, 1)
	eventually(t, time.Minute, "the broker is back", func() error { return replicasAre(t, w.dst, "orders", 1) })
	left()
	w.writable(t, "orders")
}
