package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

// run starts a store, one of those that share the topic by w, and returns it with a function that ends it.
func run(t *testing.T, c *testkafka.Cluster, w *wire) (*Store, func()) {
	t.Helper()
	id := w.next()
	self := Member{ProcessID: id, Admin: id + ":1"}
	s, err := New(Config{
		Opts: []kgo.Opt{kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...)}, Partitions: 8,
		Exclude: func(id int32) bool { return id == 3 }, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Self: self,
		Peer: w, Liveness: w,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.set(self.Admin, s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop := func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		w.set(self.Admin, nil)
	}
	select {
	case <-s.Loaded():
	case err := <-done:
		t.Fatalf("Run ended: %v", err)
	case <-time.After(3 * time.Minute):
		t.Fatal("not loaded in three minutes")
	}
	return s, stop
}

// limit is for what is to succeed where d is half a minute or more: then it only ends a wait, also on a machine with much else to do.
func limit(t *testing.T, d time.Duration) context.Context {
	if d >= 30*time.Second {
		d *= 3
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func partitionState(p int32, s statemachine.State, lme int32) PartitionState {
	return PartitionState{Mirror: "dc1", ID: protocol.PartitionID{Topic: idA, Partition: p}, State: s,
		Previous: statemachine.Unknown, Since: since, LastMirrorEpoch: lme}
}

func TestStoreOnKafka(t *testing.T) {
	w := newWire()
	c := testkafka.Start(t, testkafka.Options{Name: "coord", Brokers: 3, Controllers: 1})
	adm, err := kadm.NewOptClient(kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...))
	must(t, err)
	defer adm.Close()

	opts := []kgo.Opt{kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...)}
	if _, err := ReadSnapshot(limit(t, 30*time.Second), opts, ""); !errors.Is(err, ErrNoState) {
		t.Errorf("snapshot where there is no state: %v", err)
	}
	s, stop := run(t, c, w)
	checkPlacement(t, adm)
	must(t, s.PutMirror(limit(t, 30*time.Second), Mirror{Name: "dc1", Config: map[string]string{"k": "v"}, Created: since}))
	topic := Topic{Mirror: "dc1", Name: "orders", TopicID: idA, SourceTopicID: idB, Desired: statemachine.Mirroring, Partitions: 12}
	must(t, s.PutTopic(limit(t, 30*time.Second), topic))
	var states []PartitionState
	for p := range int32(12) {
		states = append(states, partitionState(p, statemachine.Mirroring, p))
	}
	must(t, s.PutState(limit(t, 30*time.Second), states...))
	checkStates(t, s, states, "right after the acknowledgement")
	checkRecordsLieWhereTheKIPLooks(t, c, states)

	eventually(t, 30*time.Second, "all partitions are claimed, which is written too", func() bool { return held(s) == 8 })
	before := endOffsets(t, adm)
	must(t, s.PutState(limit(t, 30*time.Second), states...))
	if after := endOffsets(t, adm); !slices.Equal(before, after) {
		t.Errorf("unchanged states were written: %v, then %v", before, after)
	}

	snap, err := ReadSnapshot(limit(t, 30*time.Second), opts, "")
	must(t, err)
	if ms, ts := snap.Mirrors(), snap.Topics(); !reflect.DeepEqual(ms, s.Mirrors()) || !reflect.DeepEqual(ts, s.Topics()) {
		t.Errorf("snapshot: %+v %+v", ms, ts)
	}
	checkStates(t, snap, states, "in a snapshot")

	t.Run("another process follows", func(t *testing.T) {
		other, stopOther := run(t, c, w)
		defer stopOther()
		checkStates(t, other, states, "in another process")
		changed := other.Changed()
		states[3].State = statemachine.Failed
		must(t, s.PutState(limit(t, 30*time.Second), states[3]))
		waitFor(t, other, changed, func() bool { st, _ := other.State(states[3].ID); return st == states[3] })
	})

	t.Run("ACLs", func(t *testing.T) { checkACLs(t, c, s, w) })

	t.Run("brokers go away and come back", func(t *testing.T) {
		states[1].State = statemachine.EpochFencing
		must(t, c.Node(1).Stop())
		must(t, s.PutState(limit(t, 30*time.Second), states[1]))
		must(t, c.Node(2).Stop()) // both real replicas of every partition are gone
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		lost := states[2]
		lost.State = statemachine.Failed
		if err := s.PutState(ctx, lost); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a write without brokers: %v", err)
		}
		if st, _ := s.State(lost.ID); st.State == statemachine.Failed {
			t.Error("a write that nobody acknowledged shows")
		}
		must(t, c.Node(1).Spawn())
		must(t, c.Node(2).Start())
		states[2].State = statemachine.Mirroring
		states[2].Hint = "again"
		must(t, s.PutState(limit(t, 60*time.Second), states[2]))
		checkStates(t, s, states, "after the brokers came back")
	})

	must(t, s.DeleteMirror(limit(t, 60*time.Second), "dc1"))
	must(t, s.DeleteTopic(limit(t, 60*time.Second), topic))
	must(t, s.PutMirror(limit(t, 30*time.Second), Mirror{Name: "dc2", Created: since}))
	stop()
	if err := s.PutMirror(limit(t, time.Second), Mirror{Name: "dc3"}); !errors.Is(err, ErrClosed) {
		t.Errorf("a write after the end: %v", err)
	}

	again, stopAgain := run(t, c, w)
	defer stopAgain()
	if got := again.Mirrors(); len(got) != 1 || got[0].Name != "dc2" {
		t.Errorf("mirrors after a restart: %+v", got)
	}
	if got := again.ACLs("dc1"); len(got) != 0 {
		t.Errorf("%d ACLs of a deleted mirror after a restart", len(got))
	}
	if got := again.Topics(); len(got) != 0 {
		t.Errorf("topics after a restart: %+v", got)
	}
	for _, st := range states {
		if got, ok := again.State(st.ID); ok {
			t.Errorf("a deleted state came back: %+v", got)
		}
	}
}

func checkPlacement(t *testing.T, adm *kadm.Client) {
	t.Helper()
	var topics kadm.TopicDetails
	eventually(t, 30*time.Second, "eight partitions", func() bool { // a broker that is asked may hear of the topic last
		var err error
		topics, err = adm.ListTopics(context.Background(), DefaultTopic)
		return err == nil && len(topics[DefaultTopic].Partitions) == 8
	})
	for _, p := range topics[DefaultTopic].Partitions {
		if len(p.Replicas) != 2 || slices.Contains(p.Replicas, 3) {
			t.Errorf("partition %d is on %v: want the two that are not excluded", p.Partition, p.Replicas)
		}
	}
	configs, err := adm.DescribeTopicConfigs(context.Background(), DefaultTopic)
	must(t, err)
	got := map[string]string{}
	for _, kv := range configs[0].Configs {
		got[kv.Key] = kv.MaybeValue()
	}
	for key, want := range map[string]string{"cleanup.policy": "compact", "compression.type": "producer", "retention.ms": "-1"} {
		if got[key] != want {
			t.Errorf("%s=%s, want %s", key, got[key], want)
		}
	}
}

func checkStates(t *testing.T, s interface {
	State(id protocol.PartitionID) (PartitionState, bool)
}, want []PartitionState, when string) {
	t.Helper()
	for _, w := range want {
		if got, ok := s.State(w.ID); !ok || got != w {
			t.Errorf("%s: %+v, want %+v", when, got, w)
		}
	}
}

// checkRecordsLieWhereTheKIPLooks reads the topic with a plain client.
func checkRecordsLieWhereTheKIPLooks(t *testing.T, c *testkafka.Cluster, states []PartitionState) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...), kgo.ConsumeTopics(DefaultTopic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(t, err)
	defer cl.Close()
	found := map[string]int32{}
	ctx := limit(t, 30*time.Second)
	for len(found) < 2*len(states)+2 && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) { found[string(r.Key)] = r.Partition })
	}
	for _, st := range states {
		for _, typ := range []int16{kip1279.RecordLastMirrorEpochs, kip1279.RecordPartitionState} {
			key := kip1279.AppendStateKey(nil, kip1279.StateKey{Type: typ, Mirror: st.Mirror, TopicID: st.ID.Topic, Partition: st.ID.Partition})
			want := kip1279.StatePartitionOf(st.Mirror, st.ID.Topic, st.ID.Partition, 8)
			if got, ok := found[string(key)]; !ok || got != want {
				t.Errorf("record type %d of partition %d is in %d (%v), want %d", typ, st.ID.Partition, got, ok, want)
			}
		}
	}
}

func endOffsets(t *testing.T, adm *kadm.Client) []string {
	t.Helper()
	ends, err := adm.ListEndOffsets(context.Background(), DefaultTopic)
	must(t, err)
	var out []string
	ends.Each(func(o kadm.ListedOffset) { out = append(out, fmt.Sprintf("%d:%d", o.Partition, o.Offset)) })
	slices.Sort(out)
	return out
}

func waitFor(t *testing.T, s *Store, changed <-chan struct{}, ok func() bool) {
	t.Helper()
	deadline := time.After(90 * time.Second)
	for !ok() {
		select {
		case <-changed:
			changed = s.Changed()
		case <-deadline:
			t.Fatal("the change did not show in 90 s")
		}
	}
}

// A compacted topic has holes, and its last record may follow far behind the one before: loading must come to its end.
func TestStoreLoadsWhatTheCleanerLeft(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{Name: "compact", Properties: map[string]string{
		"log.cleaner.backoff.ms": "200", "log.cleaner.min.cleanable.ratio": "0.01", "log.retention.check.interval.ms": "300",
		"log.cleaner.delete.retention.ms": "1",
	}})
	adm, err := kadm.NewOptClient(kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...))
	must(t, err)
	defer adm.Close()
	w := newWire()
	s, stop := run(t, c, w)
	size := "1000"
	_, err = adm.AlterTopicConfigs(context.Background(), []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "segment.bytes", Value: new("1048576")},
		{Op: kadm.SetConfig, Name: "segment.ms", Value: &size},
		{Op: kadm.SetConfig, Name: "min.cleanable.dirty.ratio", Value: new("0.01")},
	}, DefaultTopic)
	must(t, err)
	want := partitionState(0, statemachine.Mirroring, 1)
	deadline := time.Now().Add(3 * time.Minute)
	for round := int16(0); ; round++ {
		want.Retry = round
		must(t, s.PutState(limit(t, 30*time.Second), want))
		if round > 0 && round%20 == 0 && cleaned(t, c) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the cleaner did not come by in three minutes")
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	again, stopAgain := run(t, c, w)
	defer stopAgain()
	checkStates(t, again, []PartitionState{want}, "after the cleaner")
}

// cleaned reports whether fewer records than were written can be read.
func cleaned(t *testing.T, c *testkafka.Cluster) bool {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...), kgo.ConsumeTopics(DefaultTopic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(t, err)
	defer cl.Close()
	gap := false
	last := map[int32]int64{}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	for ctx.Err() == nil && !gap {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if prev, ok := last[r.Partition]; r.Offset > 0 && (!ok || r.Offset > prev+1) {
				gap = true
			}
			last[r.Partition] = r.Offset
		})
	}
	return gap
}
