package mirror

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// TestStoreBeforeServe: a state that could not be stored is not acted upon.
func TestStoreBeforeServe(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001, 9002, 1}, Leader: 9001, LeaderEpoch: 20}, lockOn)
	w.statuses[orders0] = replica.Status{SourceEpoch: 5}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	w.putErr = errors.New("no brokers")
	rounds(t, m, 5)
	if r := w.roles[orders0].Role; r != replica.RoleWait {
		t.Fatalf("role %d although nothing could be stored", r)
	}
	w.putErr = nil
	rounds(t, m, 4)
	if r := w.roles[orders0].Role; r != replica.RoleMirror {
		t.Errorf("role %d", r)
	}
}

// TestUnstoredHoldsItsTopicOnly: a state that nobody stores holds up its topic, and no other one, nor all of them for the length of an attempt in
// each round.
func TestUnstoredHoldsItsTopicOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := protocol.PartitionID{Topic: protocol.UUID{2}}
		w := newWorld()
		for name, id := range map[string]protocol.PartitionID{"orders": orders0, "other": other} {
			w.topic(name, id.Topic, kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001, 9002, 1}, Leader: 9001, LeaderEpoch: 20}, lockOn)
			w.statuses[id] = replica.Status{SourceEpoch: 5}
		}
		m := newManager(t, w, mirrorTopic("orders", orders0.Topic), mirrorTopic("other", other.Topic))
		w.unwritable = map[protocol.PartitionID]bool{other: true}
		began := time.Now()
		rounds(t, m, 6)
		if w.roles[orders0].Role != replica.RoleMirror || w.roles[other].Role != replica.RoleWait {
			t.Fatalf("role %d, and %d of what could not be stored", w.roles[orders0].Role, w.roles[other].Role)
		}
		if took := time.Since(began); took > taskLimit+5*unstoredLimit {
			t.Errorf("six rounds took %s", took)
		}
		parts, err := m.Describe(t.Context(), admin.DescribeRequest{Topics: []string{"other"}})
		if err != nil || len(parts) != 1 || parts[0].Error == nil || !strings.Contains(*parts[0].Error, "can't be stored") {
			t.Errorf("described as %+v, %v", parts, err)
		}
		w.unwritable = nil
		rounds(t, m, 4)
		if r := w.roles[other].Role; r != replica.RoleMirror {
			t.Errorf("role %d", r)
		}
	})
}
