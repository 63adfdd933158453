package mirror

import (
	"testing"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// TestAgeOfTheSource: a source that fell silent before anything was fetched has told its end all the same, and that gets old.
func TestAgeOfTheSource(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1, 2, 3}, ISR: []int32{9001, 9002, 1, 2, 3}, Leader: 9001,
		LeaderEpoch: 5}, lockOn)
	w.states[orders0] = coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Mirroring, Previous: statemachine.Preparing,
		LastMirrorEpoch: -1, Aligned: true}
	w.statuses[orders0] = replica.Status{SourceEpoch: 1, SourceEnd: 7, SourceEndAt: time.Now().Add(-20 * time.Second), HighWatermark: 7}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	rounds(t, m, 1)
	parts, err := m.Describe(t.Context(), admin.DescribeRequest{})
	if err != nil || len(parts) != 1 {
		t.Fatal(parts, err)
	}
	if age, lag := parts[0].SourceAgeSeconds, parts[0].Lag; age == nil || *age < 20 || lag == nil || *lag != 0 {
		t.Errorf("%+v", parts[0])
	}
}
