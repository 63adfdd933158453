package mirror

import (
	"errors"
	"testing"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// failing is a partition that is mirrored and has just met an error that no retry helps against.
func failing(t *testing.T) (*world, *Manager) {
	t.Helper()
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001, 9002, 1}, Leader: 9001, LeaderEpoch: 20}, lockOn)
	w.statuses[orders0] = replica.Status{SourceEpoch: 5}
	w.states[orders0] = coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Mirroring, Previous: statemachine.Preparing,
		LastMirrorEpoch: 7}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	rounds(t, m, 2)
	w.statuses[orders0] = replica.Status{SourceEpoch: 5, Err: errors.New("broken"), Fatal: true}
	w.mirrors = []coordinator.Mirror{{Name: "m", SourceClusterID: "source", Config: map[string]string{"bootstrap.servers": "127.0.0.1:1"}}}
	return w, m
}

// elsewhere stores a state as another process does.
func (w *world) elsewhere(t *testing.T, state statemachine.State, hint string) {
	t.Helper()
	s := coordinator.PartitionState{Mirror: "m", ID: orders0, State: state, Previous: statemachine.Unknown, Since: time.Now(), Hint: hint,
		LastMirrorEpoch: -1}
	if err := (store{w}).PutState(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// TestStoredMeanwhile: what another process stores of a partition between a look at it and the storing of what came of that is not lost: it
// is looked at first.
func TestStoredMeanwhile(t *testing.T) {
	w, m := failing(t)
	w.first = func() { w.elsewhere(t, statemachine.Mirroring, "by another") }
	rounds(t, m, 1)
	if s := w.states[orders0]; s.State != statemachine.Mirroring || s.Hint != "by another" {
		t.Errorf("%+v", s)
	}
	rounds(t, m, 2)
	if s := w.states[orders0]; s.State != statemachine.Failed {
		t.Errorf("%+v", s)
	}
}

// TestSentOnBeforeItIsStored: a FAILED partition whose failure could not be stored yet goes on as well when an operator says so.
func TestSentOnBeforeItIsStored(t *testing.T) {
	w, m := failing(t)
	w.putErr = errors.New("no brokers")
	rounds(t, m, 1)
	w.putErr = nil
	w.statuses[orders0] = replica.Status{SourceEpoch: 5}
	w.elsewhere(t, statemachine.Mirroring, "by another")
	rounds(t, m, 2)
	if s := w.states[orders0]; s.State != statemachine.Mirroring {
		t.Errorf("%+v", s)
	}
}

// TestStartUnderWay: nothing is stored over the PREPARING of a start whose topic is still to come, unless it never does.
func TestStartUnderWay(t *testing.T) {
	w, m := failing(t)
	next := mirrorTopic("orders", ordersID)
	next.Started, next.Align = time.Now(), []int32{9}
	if err := (store{w}).PutState(t.Context(), m.preparing(next)...); err != nil {
		t.Fatal(err)
	}
	rounds(t, m, 3)
	if s := w.states[orders0]; s.State != statemachine.Preparing || s.LastMirrorEpoch != 9 {
		t.Errorf("stored over a start: %+v", s)
	}
	m.parts[orders0].awaits = time.Now().Add(-taskLimit)
	rounds(t, m, 1)
	if s := w.states[orders0]; s.State != statemachine.Failed {
		t.Errorf("held up by a start that was cut short: %+v", s)
	}
}

// TestStartsLaterThanAll: the PREPARING of a start is newer than what it replaces, whatever the clocks say.
func TestStartsLaterThanAll(t *testing.T) {
	w, m := failing(t)
	s := w.states[orders0]
	s.Since = time.Now().Add(time.Hour)
	w.states[orders0] = s
	if got := m.preparing(mirrorTopic("orders", ordersID))[0]; !got.Since.After(s.Since) {
		t.Errorf("since %v, after one of %v", got.Since, s.Since)
	}
}

// TestAskedMeanwhile: an operator whose word meets another process's is told so, and may try again.
func TestAskedMeanwhile(t *testing.T) {
	w, m := failing(t)
	rounds(t, m, 1)
	w.first = func() { w.elsewhere(t, statemachine.Failed, "by another") }
	req := admin.TopicsRequest{Mirror: "m", Topics: []string{"orders"}}
	if got, err := m.RecoverTopics(t.Context(), req); err != nil || outcomes(got) != "orders 145/4" {
		t.Errorf("%s, %v", outcomes(got), err)
	}
	if s := w.states[orders0]; s.Hint != "by another" {
		t.Errorf("%+v", s)
	}
	if got, err := m.RecoverTopics(t.Context(), req); err != nil || outcomes(got) != "orders ok" {
		t.Errorf("%s, %v", outcomes(got), err)
	}
}

// TestMirrorsMeanwhile: of two processes that create or alter a mirror at once the second is told, or tries again where its changes are single.
func TestMirrorsMeanwhile(t *testing.T) {
	w, m := failing(t)
	another := func() {
		w.mirrors[0].Config = map[string]string{"bootstrap.servers": "127.0.0.1:1", "mirror.topics.include": "a"}
	}
	w.first = another
	change := admin.ConfigChange{Name: "mirror.topics.exclude", Op: admin.ConfigSet, Value: "b"}
	if _, err := m.AlterMirror(t.Context(), admin.AlterRequest{Mirror: "m", Changes: []admin.ConfigChange{change}}); err != nil {
		t.Error(err)
	}
	if got := w.mirrors[0].Config; got["mirror.topics.include"] != "a" || got["mirror.topics.exclude"] != "b" {
		t.Errorf("%v", got)
	}
	w.first = another
	whole := map[string]string{"bootstrap.servers": "127.0.0.1:1"}
	if _, err := m.AlterMirror(t.Context(), admin.AlterRequest{Mirror: "m", Config: whole}); outcome(err) != "145/4" {
		t.Errorf("all properties at once: %v", err)
	}
}
