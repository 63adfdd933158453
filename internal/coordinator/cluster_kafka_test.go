package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

// wire connects stores of one test process; it is their Peer and their Liveness.
type wire struct {
	mu      sync.Mutex
	changed chan struct{}
	stores  map[string]*Store // by admin address
	ids     int
}

func newWire() *wire { return &wire{changed: make(chan struct{}), stores: map[string]*Store{}} }

func (w *wire) set(admin string, s *Store) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stores[admin] = s
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *wire) next() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids++
	return fmt.Sprintf("p%d", w.ids)
}

func (w *wire) to(m Member) (*Store, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.stores[m.Admin]; s != nil && s.cfg.Self.ProcessID == m.ProcessID {
		return s, nil
	}
	return nil, errors.New("connection refused")
}

func (w *wire) WriteStates(ctx context.Context, to Member, states []PartitionState) ([]Outcome, error) {
	s, err := w.to(to)
	if err != nil {
		return nil, err
	}
	out := s.WriteStates(ctx, states)
	return out, ctx.Err() // who asks by a network hears nothing any more once its time is over
}

func (w *wire) WriteRecords(ctx context.Context, to Member, records []Record) ([]Outcome, error) {
	s, err := w.to(to)
	if err != nil {
		return nil, err
	}
	out := s.WriteRecords(ctx, records)
	return out, ctx.Err()
}

func (w *wire) ReadStates(ctx context.Context, to Member, mirror string, ids []protocol.PartitionID) ([]ReadOutcome, error) {
	s, err := w.to(to)
	if err != nil {
		return nil, err
	}
	out := s.OwnStates(ctx, mirror, ids)
	return out, ctx.Err()
}

func (w *wire) Watch([]Member) {}

func (w *wire) Alive(m Member) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stores[m.Admin]
	return s != nil && s.cfg.Self.ProcessID == m.ProcessID
}

func (w *wire) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// join starts a store that shares the topic.
func (w *wire) join(t *testing.T, opts []kgo.Opt, process, admin string) (*Store, func(vanish bool)) {
	t.Helper()
	s, err := New(Config{
		Opts: opts, Self: Member{ProcessID: process, Admin: admin, NodeIDs: []int32{9001}}, Peer: w, Liveness: w,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)).With("process", process),
	})
	must(t, err)
	w.set(admin, s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	start := time.Now()
	go func() { done <- s.Run(ctx) }()
	end := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run of %s: %v", process, err)
		}
		w.set(admin, nil)
	})
	t.Cleanup(end)
	select {
	case <-s.Loaded():
	case <-time.After(3 * time.Minute):
		t.Fatal("not loaded in three minutes")
	}
	t.Logf("%s loaded after %v", process, time.Since(start))
	return s, func(vanish bool) {
		s.cluster.vanish = vanish
		if vanish {
			w.set(admin, nil)
		}
		end()
	}
}

func eventually(t *testing.T, within time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	within = max(3*within, 30*time.Second) // it only ends the wait, also on a machine with much else to do
	start := time.Now()
	for !ok() {
		if time.Since(start) > within {
			t.Fatalf("not in %v: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(start)
}

// standstill counts how long this process got no time at all, as on a machine that stands still, until it is asked. Spans that are measured
// meanwhile are longer by that.
func standstill() (end func() time.Duration) {
	const step, noticed = 10 * time.Millisecond, 100 * time.Millisecond
	stop, lost := make(chan struct{}), make(chan time.Duration)
	go func() {
		var sum time.Duration
		tick := time.NewTicker(step)
		defer tick.Stop()
		for last := time.Now(); ; {
			var ended bool
			select {
			case <-tick.C:
			case <-stop:
				ended = true
			}
			if gap := time.Since(last); gap > noticed {
				sum += gap
			}
			if last = time.Now(); ended {
				lost <- sum
				return
			}
		}
	}()
	return func() time.Duration { close(stop); return <-lost }
}

// held counts the partitions that a store may write.
func held(s *Store) int { return s.cluster.owned() }

func manyStates(n int, retry int16) []PartitionState {
	out := make([]PartitionState, 0, n)
	for p := range int32(n) {
		st := partitionState(p, statemachine.Mirroring, -1)
		st.Retry = retry
		out = append(out, st)
	}
	return out
}

func TestProcessesShareTheState(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{Name: "share", Brokers: 3, Controllers: 1,
		Properties: map[string]string{"group.initial.rebalance.delay.ms": "3000"}})
	opts := []kgo.Opt{kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...)}
	w := newWire()

	a, endA := w.join(t, opts, "a-1", "a:1")
	start := time.Now()
	must(t, a.PutMirror(limit(t, 30*time.Second), Mirror{Name: "dc1", Created: since}))
	t.Logf("first write of the first process ever after %v", time.Since(start))
	eventually(t, 30*time.Second, "a owns all", func() bool { return held(a) == 50 })
	t.Logf("all partitions owned after %v", time.Since(start))
	measure(t, a, "one process")

	b, endB := w.join(t, opts, "b-1", "b:1")
	took := eventually(t, 30*time.Second, "both own half", func() bool { return held(a) == 25 && held(b) == 25 })
	t.Logf("spread after %v: %v", took, a.Members())
	if m := b.Members(); len(m) != 2 || m[0].ProcessID != "a-1" || m[0].Self || !m[1].Self || !slices.Equal(m[1].NodeIDs, []int32{9001}) {
		t.Errorf("members: %+v", m)
	}
	ownerOf := func(s *Store) string { m, _ := s.MetadataOwner("dc1"); return m.ProcessID }
	eventually(t, 30*time.Second, "they agree on the metadata owner", func() bool { return ownerOf(a) == ownerOf(b) })
	measure(t, b, "two processes, half of it by the other")
	for i, s := range []*Store{a, b} {
		states := manyStates(60, int16(100+i))
		must(t, s.PutState(limit(t, 30*time.Second), states...))
		checkStates(t, s, states, "where they were written")
		other := []*Store{b, a}[i]
		for _, st := range states {
			eventually(t, 30*time.Second, "state shows in the other", func() bool { got, _ := other.State(st.ID); return got == st })
		}
	}
	topic := Topic{Mirror: "dc1", Name: "orders", TopicID: idA, SourceTopicID: idB, Desired: statemachine.Mirroring, Partitions: 60}
	for _, s := range []*Store{a, b} {
		topic.Overwrite = !topic.Overwrite
		must(t, s.Fresh(limit(t, 30*time.Second), "dc1")) // a topic that was not read replaces what this process knows of
		must(t, s.PutTopic(limit(t, 30*time.Second), topic))
		if got, _ := s.TopicByName("orders"); got.Overwrite != topic.Overwrite {
			t.Error("a topic does not show where it was written")
		}
	}
	checkFencing(t, a, b)
	checkReads(t, a, b)
	checkChanged(t, a, b)
	checkMirrorsChanged(t, a, b)
	checkStatesChanged(t, a, b)

	t.Run("one vanishes", func(t *testing.T) {
		changed := b.Changed()
		endA(true)
		states := manyStates(60, 7)
		start, still := time.Now(), standstill()
		must(t, b.PutState(limit(t, 30*time.Second), states...))
		took := time.Since(start) - still()
		t.Logf("all states written %v after the other vanished", took)
		if took > sessionTimeout { // as if nobody had seen it before the group
			t.Errorf("taking over took %v", took)
		}
		eventually(t, 30*time.Second, "b owns all", func() bool { return held(b) == 50 })
		t.Logf("all owned after %v", time.Since(start))
		select {
		case <-changed:
		default:
			t.Error("Changed did not tell")
		}
	})
	t.Run("it returns", func(t *testing.T) {
		again, _ := w.join(t, opts, "a-2", "a:1")
		start := time.Now()
		must(t, again.PutState(limit(t, 30*time.Second), manyStates(60, 8)...))
		t.Logf("written by the one that returned after %v", time.Since(start))
		took := eventually(t, 30*time.Second, "both own half", func() bool { return held(again) == 25 && held(b) == 25 })
		t.Logf("spread again after %v", took)
		must(t, again.PutState(limit(t, 30*time.Second), manyStates(60, 9)...))
	})
	t.Run("one leaves, all restart", func(t *testing.T) {
		endB(false)
		checkNoStaleWrites(t, c)
	})
}

// measure times PutState of 500 states that change, which take 40 ms on a machine at rest. The best of some counts: the brokers have just
// been started. The bar is for a machine that is busy.
func measure(t *testing.T, s *Store, what string) {
	t.Helper()
	var took []time.Duration
	for round := range int16(8) {
		states := manyStates(500, round)
		start := time.Now()
		must(t, s.PutState(limit(t, 30*time.Second), states...))
		took = append(took, time.Since(start).Round(time.Millisecond))
	}
	t.Logf("500 states, %s: %v", what, took)
	if best := slices.Min(took); best > 1500*time.Millisecond {
		t.Errorf("500 states took %v at best", best)
	}
}

// checkFencing: a state of an older leader epoch is refused by whichever process owns it, and -1 never lowers it.
func checkFencing(t *testing.T, a, b *Store) {
	t.Helper()
	st := partitionState(3, statemachine.Paused, -1)
	st.LeaderEpoch = 12
	must(t, a.PutState(limit(t, 30*time.Second), st))
	for _, s := range []*Store{a, b} {
		old := st
		old.LeaderEpoch, old.State = 11, statemachine.Mirroring
		if err := s.PutState(limit(t, 30*time.Second), old, partitionState(4, statemachine.Paused, -1)); !errors.Is(err, ErrFencedLeaderEpoch) {
			t.Errorf("an older leader's state: %v", err)
		}
		if got, _ := s.State(partitionState(4, 0, 0).ID); got.State != statemachine.Paused {
			t.Error("what is not fenced must be stored")
		}
		unsaid := st
		unsaid.LeaderEpoch, unsaid.Hint = 0, "by an operator"+s.cfg.Self.ProcessID
		must(t, s.PutState(limit(t, 30*time.Second), unsaid))
		if got, _ := s.State(st.ID); got.LeaderEpoch != 12 || got.Hint != unsaid.Hint {
			t.Errorf("%+v", got)
		}
	}
}

func checkReads(t *testing.T, a, b *Store) {
	t.Helper()
	ids := []protocol.PartitionID{}
	for _, st := range manyStates(60, 0) {
		ids = append(ids, st.ID)
	}
	for _, s := range []*Store{a, b} {
		for i, r := range s.ReadStates(limit(t, 30*time.Second), "dc1", ids) {
			if r.Err != nil || !r.Known || r.State.ID != ids[i] {
				t.Errorf("%s reads %+v", s.cfg.Self.ProcessID, r)
			}
			r.State.Base = 0
			eventually(t, 30*time.Second, "the same in what was read here", func() bool { l, _ := s.State(ids[i]); return l == r.State })
		}
	}
	var states []PartitionState
	for i, r := range a.ReadStates(limit(t, 30*time.Second), "dc1", ids) {
		r.State.Hint = fmt.Sprint("passed on ", i)
		states = append(states, r.State)
	}
	for i, o := range b.PassStates(limit(t, 30*time.Second), states) {
		if o.Err != nil || o.Offset < 0 {
			t.Errorf("%+v", o)
		}
		eventually(t, 5*time.Second, "what was passed on", func() bool { s, _ := a.State(ids[i]); return s.Hint == states[i].Hint })
	}
	refused := 0
	for _, r := range a.OwnStates(limit(t, 30*time.Second), "dc1", ids) {
		if errors.Is(r.Err, ErrNotCoordinator) {
			refused++
		}
	}
	if refused == 0 || refused == len(ids) {
		t.Errorf("%d of %d were refused", refused, len(ids))
	}
}

// checkChanged: what another process has changed since a topic was read is not undone, whoever owns it; and Fresh shows it.
func checkChanged(t *testing.T, a, b *Store) {
	t.Helper()
	for i, s := range []*Store{a, b, a, b} {
		other := []*Store{b, a, b, a}[i]
		must(t, s.Fresh(limit(t, 30*time.Second), "dc1"))
		before, _ := s.TopicByName("orders")
		must(t, other.Fresh(limit(t, 30*time.Second), "dc1"))
		promoted, _ := other.TopicByName("orders")
		promoted.Desired, promoted.Partitions = statemachine.Stopped, promoted.Partitions+1
		must(t, other.PutTopic(limit(t, 30*time.Second), promoted))
		before.Note = "by one that was stopped meanwhile"
		if err := s.PutTopic(limit(t, 30*time.Second), before); !errors.Is(err, ErrChanged) {
			t.Errorf("%s changes what it had read before %s did: %v", s.cfg.Self.ProcessID, other.cfg.Self.ProcessID, err)
		}
		must(t, s.Fresh(limit(t, 30*time.Second), "dc1"))
		now, _ := s.TopicByName("orders")
		if now.Desired != statemachine.Stopped || now.Partitions != promoted.Partitions || now.Note != "" {
			t.Errorf("%+v", now)
		}
		now.Desired = statemachine.Mirroring
		must(t, s.PutTopic(limit(t, 30*time.Second), now))
	}
}

// checkMirrorsChanged is checkChanged for definitions, and for those that two processes make at once.
func checkMirrorsChanged(t *testing.T, a, b *Store) {
	t.Helper()
	for i, s := range []*Store{a, b, a, b} {
		other := []*Store{b, a, b, a}[i]
		must(t, s.Fresh(limit(t, 30*time.Second), "dc1"))
		before, _ := s.Mirror("dc1")
		must(t, other.Fresh(limit(t, 30*time.Second), "dc1"))
		altered, _ := other.Mirror("dc1")
		altered.Config = map[string]string{"altered": fmt.Sprint(i)}
		must(t, other.PutMirror(limit(t, 30*time.Second), altered))
		before.Config = map[string]string{"by": "one that was stopped meanwhile"}
		for _, m := range []Mirror{before, {Name: "dc1"}} {
			if err := s.PutMirror(limit(t, 30*time.Second), m); !errors.Is(err, ErrChanged) {
				t.Errorf("%s stores %v over what %s has: %v", s.cfg.Self.ProcessID, m.Config, other.cfg.Self.ProcessID, err)
			}
		}
		eventually(t, 5*time.Second, "the altered one shows", func() bool { m, _ := s.Mirror("dc1"); return m.Config["altered"] == fmt.Sprint(i) })
		name := fmt.Sprint("new-", i)
		must(t, other.PutMirror(limit(t, 30*time.Second), Mirror{Name: name, SourceClusterID: "one"}))
		if err := s.PutMirror(limit(t, 30*time.Second), Mirror{Name: name, SourceClusterID: "two"}); !errors.Is(err, ErrChanged) {
			t.Errorf("%s was made twice: %v", name, err)
		}
	}
}

// checkStatesChanged is checkChanged for states. Leader epochs are the same: nothing else tells the two apart.
func checkStatesChanged(t *testing.T, a, b *Store) {
	t.Helper()
	for i, st := range manyStates(8, 0) { // some of them are owned by either
		s, other := []*Store{a, b}[i%2], []*Store{b, a}[i%2]
		var before, newer PartitionState
		eventually(t, 5*time.Second, "both read the same", func() bool {
			before, _ = s.Look("dc1", st.ID)
			newer, _ = other.Look("dc1", st.ID)
			return before == newer
		})
		newer.Hint, before.Hint = fmt.Sprint("newer ", i), "by one that was stopped meanwhile"
		before.LastMirrorEpoch = newer.LastMirrorEpoch + 5
		must(t, other.PutState(limit(t, 30*time.Second), newer))
		if err := s.PutState(limit(t, 30*time.Second), before); !errors.Is(err, ErrChanged) {
			t.Errorf("%s stores what is based on something older than %s has stored: %v", s.cfg.Self.ProcessID, other.cfg.Self.ProcessID, err)
		}
		eventually(t, 5*time.Second, "the newer one shows", func() bool { got, _ := s.Look("dc1", st.ID); return got.Hint == newer.Hint })
		now, _ := s.Look("dc1", st.ID)
		if now.LastMirrorEpoch != newer.LastMirrorEpoch {
			t.Errorf("last mirrored epoch %d of a state that was refused", now.LastMirrorEpoch)
		}
		now.Hint = "after another look"
		must(t, s.PutState(limit(t, 30*time.Second), now))
		if err := s.PutState(limit(t, 30*time.Second), PartitionState{Mirror: "dc1", ID: protocol.PartitionID{Topic: idB, Partition: int32(i)},
			LastMirrorEpoch: -1, Base: -1}); err != nil {
			t.Errorf("a state where there is none: %v", err)
		}
	}
}

// checkNoStaleWrites reads the whole topic: within a partition no record follows a claim that carries an older producer epoch.
func checkNoStaleWrites(t *testing.T, c *testkafka.Cluster) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...), kgo.ConsumeTopics(DefaultTopic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(t, err)
	defer cl.Close()
	type owner struct {
		process string
		id      int64
		epoch   int16
	}
	owners, claims, total := map[int32]owner{}, map[string]int{}, 0
	ctx := limit(t, time.Minute)
	for more := true; ctx.Err() == nil && (more || total == 0); { // until nothing comes for a while
		more = false
		poll, cancel := context.WithTimeout(ctx, 3*time.Second)
		fetches := cl.PollFetches(poll)
		cancel()
		fetches.EachRecord(func(r *kgo.Record) {
			more = true
			total++
			k, _ := kip1279.DecodeStateKey(r.Key)
			if k.Type == kip1279.RecordOwner {
				cl, err := decodeClaim(r.Value)
				if err != nil || cl.epoch != r.ProducerEpoch || cl.producer != r.ProducerID {
					t.Errorf("claim %+v written with %d/%d: %v", cl, r.ProducerID, r.ProducerEpoch, err)
				}
				owners[r.Partition] = owner{cl.owner.ProcessID, r.ProducerID, r.ProducerEpoch}
				claims[cl.owner.ProcessID]++
			}
			if o := owners[r.Partition]; o.id != r.ProducerID || o.epoch != r.ProducerEpoch {
				t.Errorf("partition %d offset %d: written with %d/%d, the owner %s has %d/%d", r.Partition, r.Offset, r.ProducerID,
					r.ProducerEpoch, o.process, o.id, o.epoch)
			}
		})
	}
	t.Logf("%d records, claims: %v", total, claims)
	if total == 0 {
		t.Error("nothing was read")
	}
}
