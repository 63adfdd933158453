package mirror

import (
	"context"
	"slices"
	"testing"
	"time"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

var txnID = protocol.UUID{50}

// TestHangingTransaction: one that has not got on between two looks has its coordinator loaded anew, which is done by
// moving leadership away and back, and not again at once.
func TestHangingTransaction(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001, 9002, 1}, Leader: 9001, LeaderEpoch: 20}, lockOn)
	w.topic(transactionTopic, txnID, kraft.Partition{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, Leader: 1, LeaderEpoch: 4}, nil)
	w.edit(func(i *kraft.Image) {
		i.Brokers = map[int32]*kraft.Broker{1: {ID: 1}, 2: {ID: 2, Fenced: true}, 3: {ID: 3}}
	})
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	rounds(t, m, 4)
	watch := newTxnWatch(m)
	other := hanging{id: "other", producer: 2, parts: []protocol.TopicPartition{{Topic: "elsewhere"}}}
	found := []hanging{other, {id: "t", producer: 1, epoch: 3, parts: []protocol.TopicPartition{{Topic: "orders"}}}}
	watch.list = func(context.Context) ([]hanging, error) { return found, nil }
	look := func(want ...[]int32) {
		t.Helper()
		w.lists = nil
		if err := watch.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(w.lists, want, slices.Equal) {
			t.Fatalf("replica lists %v, want %v", w.lists, want)
		}
	}
	look()
	found = []hanging{other, {id: "t", producer: 1, epoch: 4, parts: found[1].parts}}
	look() // the id's next transaction
	look([]int32{3, 1, 2}, []int32{1, 2, 3})
	if p := w.Image().Partition(protocol.PartitionID{Topic: txnID}); p.Leader != 1 || p.LeaderEpoch != 6 {
		t.Errorf("led by %d in epoch %d, want the old leader two epochs later", p.Leader, p.LeaderEpoch)
	}
	look() // gets a rest
	for _, p := range watch.rest {
		p.until = time.Time{}
	}
	w.change("orders", func(p *kraft.Partition) { p.Leader = 1 })
	look() // not ours to acknowledge
}

// TestCoordinatorPartition: expected values are those of "id".hashCode() in Java.
func TestCoordinatorPartition(t *testing.T) {
	for id, hash := range map[string]int64{"": 0, "a": 97, "txn-dead": -1672327705, "polygenelubricants": -1 << 31, "ü-😀-txn": -982093583} {
		want := hash
		if want < 0 {
			want = -want
		}
		if hash == -1<<31 {
			want = 0
		}
		if got := coordinatorPartition(id, 50); int64(got) != want%50 {
			t.Errorf("%q: partition %d, want %d", id, got, want%50)
		}
	}
}
