package metasync

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/protocol"
	"kmirror/statemachine"
)

// stored is a memory with a topic of two partitions that flow, and a worker of its mirror.
func stored(t *testing.T) (*memory, *worker) {
	t.Helper()
	topic := coordinator.Topic{Mirror: "m", Name: "orders", TopicID: protocol.UUID{1}, SourceTopicID: protocol.UUID{2}, Partitions: 2,
		Desired: statemachine.Mirroring}
	mem := &memory{mirrors: map[string]coordinator.Mirror{"m": {Name: "m"}}, topics: map[string]coordinator.Topic{"orders": topic},
		states: map[protocol.PartitionID]coordinator.PartitionState{}}
	mem.all(statemachine.Mirroring, 0)
	s, err := New(Config{Store: mem, Destination: noDestination{}, Mirrors: &oneSource{}, Coordinates: func(string) bool { return true },
		Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	return mem, &worker{s: s, name: "m", gone: map[protocol.UUID]absence{}}
}

// all sets the states of the topic's partitions.
func (m *memory) all(state statemachine.State, step statemachine.StopStep) {
	for p := range int32(2) {
		id := protocol.PartitionID{Topic: protocol.UUID{1}, Partition: p}
		m.states[id] = coordinator.PartitionState{Mirror: "m", ID: id, State: state, Stop: step}
	}
}

// become changes the topic.
func (m *memory) become(f func(*coordinator.Topic)) {
	t := m.topics["orders"]
	f(&t)
	m.topics["orders"] = t
}

// oneSource counts who asks for the cluster id at a time, and keeps them waiting whatever their context says.
type oneSource struct {
	Mirrors
	asking, most, asked atomic.Int32
	hold                chan struct{}
}

func (o *oneSource) SourceCluster(context.Context, string) (string, error) {
	o.asked.Add(1)
	if n := o.asking.Add(1); n > o.most.Load() {
		o.most.Store(n)
	}
	defer o.asking.Add(-1)
	<-o.hold
	return "", errors.New("no answer")
}

// TestGateLooksAfresh: a process that was stopped in the middle of a round has old knowledge of what flows, and nobody refuses its
// commits: it finds out first.
func TestGateLooksAfresh(t *testing.T) {
	mem, w := stored(t)
	j := &job{s: w.s, w: w, def: coordinator.Mirror{Name: "m"}, log: w.s.log}
	was := j.flow()
	put := commits{{Topic: "orders", Partition: 1}: {7, 0, ""}}
	g := &gate{read: j.flowNow}
	began := time.Now()
	if open, at, err := g.open(t.Context(), put, was); err != nil || len(open) != 1 || at.Before(began) {
		t.Fatalf("%v, %v, %v: the topic flows", open, at, err)
	}
	g.at = g.at.Add(-gateAge)
	mem.fresh = func() error { return errBroken }
	if open, _, err := g.open(t.Context(), put, was); !errors.Is(err, errBroken) || len(open) > 0 {
		t.Errorf("%v, %v: nobody knows what flows", open, err)
	}
	mem.fresh = func() error { // what others have done meanwhile
		mem.become(func(t *coordinator.Topic) { t.Desired = statemachine.Stopped })
		return nil
	}
	if open, _, err := g.open(t.Context(), put, was); err != nil || len(open) > 0 {
		t.Errorf("%v, %v: the topic was stopped", open, err)
	}
	w.s.cfg.Coordinates = func(string) bool { return false }
	g.at = time.Time{}
	if _, _, err := g.open(t.Context(), put, was); !errors.Is(err, errNotCoordinator) {
		t.Errorf("another process has taken over: %v", err)
	}
}

// TestPromotedTopicsFlowUntilTheyStop, however long a promote waits for its source to rest; their last sync comes with the end of the log,
// and never after the topic is its writers'.
func TestPromotedTopicsFlowUntilTheyStop(t *testing.T) {
	mem, w := stored(t)
	j := &job{s: w.s, w: w, def: coordinator.Mirror{Name: "m"}, log: w.s.log}
	is := func(what string, wanted, flowing, final int) {
		t.Helper()
		if a, b, c := len(j.wanted()), len(j.flowing()["orders"]), len(w.final()); a != wanted || b != flowing || c != final {
			t.Errorf("%s: %d wanted, %d partitions flow, %d to be synced a last time, want %d, %d, %d", what, a, b, c, wanted, flowing, final)
		}
	}
	is("mirroring", 1, 2, 0)
	mem.become(func(t *coordinator.Topic) { t.Desired, t.Drain = statemachine.Stopped, true })
	is("draining", 1, 2, 0)
	if f, err := filters.Parse(nil); err != nil || !w.active(f) {
		t.Errorf("no more rounds for a promote that may wait for partitions: %v", err)
	}
	mem.all(statemachine.Stopping, statemachine.StopMarked)
	is("marked", 1, 0, 0)
	mem.all(statemachine.Stopping, statemachine.StopTailed)
	is("tailed", 1, 0, 1)
	mem.become(func(t *coordinator.Topic) { t.GroupsDone = true })
	is("synced", 0, 0, 0)
	mem.become(func(t *coordinator.Topic) { t.GroupsDone = false })
	mem.all(statemachine.Stopped, 0)
	is("promoted by a version without a last sync, not all replicas back", 0, 0, 0)
	mem.become(func(t *coordinator.Topic) { t.Drain = false })
	mem.all(statemachine.Mirroring, 0)
	is("failed over", 0, 0, 0)
}

// TestMissed: rounds that follow each other at once are not two.
func TestMissed(t *testing.T) {
	_, w := stored(t)
	id, now := protocol.UUID{1}, time.Now()
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{0, false}, {time.Second, false}, {goneFor, true}} {
		if got := w.missed(id, now.Add(c.after)); got != c.want {
			t.Errorf("missing for %v: deleted %v", c.after, got)
		}
	}
	delete(w.gone, id)
	if w.missed(id, now.Add(time.Hour)) {
		t.Error("missing once counts as deleted")
	}
}

// TestOneWorkerAMirror: a mirror that comes back to this process before its last round here has ended waits for it; its status is that of
// the new one.
func TestOneWorkerAMirror(t *testing.T) {
	_, w := stored(t)
	source := &oneSource{hold: make(chan struct{})}
	var mine atomic.Bool
	mine.Store(true)
	w.s.cfg.Mirrors, w.s.cfg.Coordinates = source, func(string) bool { return mine.Load() }
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { check(t, w.s.Run(ctx)) })
	defer run.Wait()
	defer cancel()
	eventually(t, "the first round", func() bool { return source.asked.Load() == 1 })
	mine.Store(false)
	time.Sleep(ownersAfter * 3 / 2)
	mine.Store(true)
	time.Sleep(ownersAfter * 3 / 2)
	close(source.hold)
	eventually(t, "another round", func() bool { return source.asked.Load() > 1 })
	if n := source.most.Load(); n != 1 {
		t.Errorf("%d rounds of the same mirror at a time", n)
	}
	eventually(t, "its status", func() bool { return w.s.Status("m")[Cluster].Err != "" })
}

// TestRoundEndsForAPromote: a round that waits for a source that hangs does not hold up a promote whose log is at its end.
func TestRoundEndsForAPromote(t *testing.T) {
	mem, w := stored(t)
	mem.changed = make(chan struct{})
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		w.untilFinal(ctx, cancel)
		close(ended)
	}()
	select {
	case <-ended:
		t.Fatal("ended without a promote")
	case <-time.After(3 * gateAge):
	}
	mem.mu.Lock()
	mem.become(func(t *coordinator.Topic) { t.Desired, t.Drain = statemachine.Stopped, true })
	mem.all(statemachine.Stopping, statemachine.StopTailed)
	mem.mu.Unlock()
	close(mem.changed)
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Second):
		t.Error("the round goes on")
	}
	<-ended
}
