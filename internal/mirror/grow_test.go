package mirror

import (
	"context"
	"slices"
	"testing"

	"kmirror/internal/coordinator"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// growing is a topic that was handed over to one broker and is to have three again.
func growing(t *testing.T, p kraft.Partition) (*world, *Manager) {
	t.Helper()
	w := newWorld()
	w.topic("orders", ordersID, p, nil)
	w.edit(func(i *kraft.Image) {
		i.Brokers = map[int32]*kraft.Broker{1: {ID: 1}, 2: {ID: 2}, 3: {ID: 3}}
	})
	topic := mirrorTopic("orders", ordersID)
	topic.Desired, topic.Regrow, topic.Replicas = statemachine.Stopped, true, 3
	w.states[orders0] = coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Stopped, LastMirrorEpoch: 4}
	return w, newManager(t, w, topic)
}

// TestGrowBackStale: a replica that was added shows in the image only after brokers were asked. What is asked for then must not take it
// off again.
func TestGrowBackStale(t *testing.T) {
	w, m := growing(t, kraft.Partition{Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	m.cfg.HoldsLog = func(context.Context, int32, protocol.TopicPartition) (bool, error) { return true, nil }
	rounds(t, m, 1)
	m.cfg.HoldsLog = func(_ context.Context, b int32, _ protocol.TopicPartition) (bool, error) {
		w.change("orders", func(p *kraft.Partition) { p.Replicas, p.ISR = []int32{1, 2}, []int32{1, 2} })
		return b == 2, nil
	}
	w.lists = nil
	if err := m.growBack(t.Context(), []protocol.PartitionID{orders0}); err != nil {
		t.Fatal(err)
	}
	for _, list := range w.lists {
		if !slices.Contains(list, 2) {
			t.Errorf("a replica that was just added is taken off again: %v", list)
		}
	}
}

// TestGrowBackRemoving: a replica that is on its way out is missing all the same.
func TestGrowBackRemoving(t *testing.T) {
	w, m := growing(t, kraft.Partition{Replicas: []int32{1, 3, 2}, ISR: []int32{1, 2}, Adding: []int32{3}, Removing: []int32{2}, Leader: 1})
	rounds(t, m, 3)
	if now, _ := (store{w}).TopicByName("orders"); !now.Regrow {
		t.Error("the topic counts as whole, and is not to grow back any more")
	}
	w.change("orders", func(p *kraft.Partition) {
		p.Replicas, p.ISR, p.Adding, p.Removing = []int32{1, 3}, []int32{1, 3}, nil, nil
	})
	rounds(t, m, 6)
	if got := w.Image().Partition(orders0).Replicas; !slices.Equal(got, []int32{1, 3, 2}) {
		t.Errorf("replicas %v", got)
	}
	if now, _ := (store{w}).TopicByName("orders"); now.Regrow {
		t.Error("the topic is whole, and is still to grow back")
	}
}
