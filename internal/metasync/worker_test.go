package metasync

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// awaySource is a source that does not answer; it counts how often it was asked.
type awaySource struct {
	Mirrors
	asked  atomic.Int32
	synced []string // why not, of each GroupsSynced
	store  *memory
}

var errAway = errors.New("connection refused")

func (a *awaySource) SourceCluster(context.Context, string) (string, error) {
	a.asked.Add(1)
	return "", errAway
}

func (a *awaySource) GroupsSynced(_ context.Context, topics []coordinator.Topic, whyNot string) error {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	a.synced = append(a.synced, whyNot)
	for _, t := range topics {
		t.GroupsDone = true
		a.store.topics[t.Name] = t
	}
	return nil
}

func (a *awaySource) said() []string {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	return slices.Clone(a.synced)
}

type noDestination struct{}

func (noDestination) Image() *kraft.Image      { return &kraft.Image{} }
func (noDestination) Changed() <-chan struct{} { return nil }
func (noDestination) ClusterID() string        { return "destination" }

// run runs a Syncer for a while in a bubble of time.
func run(t *testing.T, store *memory, a *awaySource, d time.Duration) *Syncer {
	t.Helper()
	a.store = store
	s, err := New(Config{Store: store, Destination: noDestination{}, Mirrors: a, Coordinates: func(string) bool { return true },
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	time.Sleep(d)
	synctest.Wait()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func topicOf(name string, desired statemachine.State) coordinator.Topic {
	return coordinator.Topic{Mirror: "m", Name: name, TopicID: protocol.UUID{1}, Desired: desired, Partitions: 1}
}

// TestRestsWithoutTopics: a source is not asked before there is something to sync, nor after an operator has stopped everything.
func TestRestsWithoutTopics(t *testing.T) {
	ended := topicOf("a", statemachine.Stopped)
	ended.Ended = true
	for name, c := range map[string]struct {
		config map[string]string
		topics []coordinator.Topic
		asks   bool
	}{
		"no topics":        {asks: false},
		"to be discovered": {config: map[string]string{filters.TopicsInclude: "a.*"}, asks: true},
		"one mirrors":      {topics: []coordinator.Topic{topicOf("a", statemachine.Mirroring)}, asks: true},
		"one is paused":    {topics: []coordinator.Topic{topicOf("a", statemachine.Paused)}, asks: true},
		"all were failed over": {config: map[string]string{filters.TopicsInclude: "a.*"},
			topics: []coordinator.Topic{topicOf("a", statemachine.Stopped)}, asks: false},
		"the source ended them": {config: map[string]string{filters.TopicsInclude: "a.*"}, topics: []coordinator.Topic{ended}, asks: true},
		"and nothing is found":  {topics: []coordinator.Topic{ended}, asks: false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &memory{mirrors: map[string]coordinator.Mirror{"m": {Name: "m", Config: c.config}}, topics: map[string]coordinator.Topic{}}
				for _, topic := range c.topics {
					store.topics[topic.Name] = topic
				}
				a := &awaySource{}
				s := run(t, store, a, 5*time.Minute)
				// Five minutes hold ten rounds.
				if n := a.asked.Load(); c.asks && (n < 9 || n > 11) || !c.asks && n > 0 {
					t.Errorf("asked %d times", n)
				}
				if why := s.Status("m")[Cluster].Err; (why != "") != c.asks {
					t.Errorf("said to be %q", why)
				}
			})
		})
	}
}

// TestPromoteGoesOnWithoutSource: the last sync of groups is tried for a while, and not for ever.
func TestPromoteGoesOnWithoutSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := topicOf("a", statemachine.Stopped)
		topic.Drain = true
		id := protocol.PartitionID{Topic: topic.TopicID}
		store := &memory{mirrors: map[string]coordinator.Mirror{"m": {Name: "m"}}, topics: map[string]coordinator.Topic{"a": topic},
			states: map[protocol.PartitionID]coordinator.PartitionState{id: {Mirror: "m", ID: id, State: statemachine.Stopping,
				Stop: statemachine.StopTailed}}}
		a := &awaySource{}
		run(t, store, a, finalLimit-2*time.Second)
		if said := a.said(); len(said) != 0 {
			t.Errorf("given up early: %q", said)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if said := a.said(); len(said) != 1 || said[0] == "" {
			t.Errorf("gone on %d times, because of %q", len(said), said)
		}
	})
}
