package mirror

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/records"
	"kmirror/statemachine"
)

// stoppingWorld is a mirror in full flow that is asked to stop: its log ends at 100 in epoch 4.
func stoppingWorld(t *testing.T) (*world, coordinator.Topic) {
	t.Helper()
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1, 2, 3}, ISR: []int32{9001, 9002, 1, 2, 3}, Leader: 9001,
		LeaderEpoch: 12}, lockOn)
	w.statuses[orders0] = replica.Status{SourceEpoch: 4, LastEpoch: 4, LogEnd: 100, HighWatermark: 100, Converged: true, Tailed: true,
		Followers: map[int32]replica.FollowerStatus{1: {FetchOffset: 100}, 2: {FetchOffset: 100}, 3: {FetchOffset: 100}}}
	w.states[orders0] = coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Mirroring, Previous: statemachine.Preparing,
		LastMirrorEpoch: -1, Aligned: true}
	topic := mirrorTopic("orders", ordersID)
	topic.Desired, topic.Regrow = statemachine.Stopped, true
	return w, topic
}

// stopManager is a manager whose brokers know the producer ids 7 and 8 and end alike.
func stopManager(t *testing.T, w *world, topic coordinator.Topic) *Manager {
	t.Helper()
	m := newManager(t, w, topic)
	m.cfg.ProducerIDs = func(_ context.Context, ids []protocol.PartitionID) (map[protocol.PartitionID][]int64, error) {
		out := map[protocol.PartitionID][]int64{}
		for _, id := range ids {
			out[id] = []int64{8, 7, 8}
		}
		return out, nil
	}
	m.cfg.LastEpochs = func(_ context.Context, ids []protocol.PartitionID) (map[protocol.PartitionID]int32, error) {
		out := map[protocol.PartitionID]int32{}
		for _, id := range ids {
			out[id] = 4
		}
		return out, nil
	}
	m.cfg.LogEnds = func(_ context.Context, ids []protocol.PartitionID) (map[protocol.PartitionID]map[int32]int64, error) {
		out := map[protocol.PartitionID]map[int32]int64{}
		for _, id := range ids {
			out[id] = map[int32]int64{1: 100, 2: 100, 3: 100}
		}
		return out, nil
	}
	return m
}

func TestStop(t *testing.T) {
	w, topic := stoppingWorld(t)
	m := stopManager(t, w, topic)
	var tail *replica.Tail
	for range 20 {
		rounds(t, m, 1)
		if a := w.roles[orders0]; a.Role == replica.RoleTail {
			tail = a.Tail
			if want := (replica.Divergence{Epoch: 4, EndOffset: 100}); a.TruncateTo != want {
				t.Fatalf("the tail begins at %v", a.TruncateTo)
			}
			if s := w.states[orders0]; s.Stop < statemachine.StopMarked || s.LastMirrorEpoch != 4 || s.StopEnd != 100 {
				t.Fatalf("the tail is served although %+v is all that is stored", s)
			}
		}
	}
	if s := w.states[orders0]; s.State != statemachine.Stopped || s.LastMirrorEpoch != 4 {
		t.Fatalf("state %s, last mirrored epoch %d", s.State, s.LastMirrorEpoch)
	}
	if got := controls(t, tail); got != "100 abort 7 -1, 101 abort 8 -1, 102 reset -1 -1" || tail.End != 103 {
		t.Errorf("tail %s, end %d", got, tail.End)
	}
	if want := []string{"configs", "reassign"}; !slices.Equal(w.asked, want) {
		t.Errorf("asked %v, want %v: unlock, then hand over", w.asked, want)
	}
	if last := w.lists[len(w.lists)-1]; !slices.Equal(last, []int32{1, 2, 3}) {
		t.Errorf("handed over to %v", last)
	}
	if _, ok := w.roles[orders0]; ok {
		t.Error("the partition still has a role")
	}
	if _, ours := m.MirrorOf("orders"); ours {
		t.Error("still read-only")
	}
	if now, _ := (store{w}).TopicByName("orders"); now.Regrow {
		t.Error("the topic is still to grow back")
	}
}

// controls lists the control batches of a tail: offset, type, producer id and epoch.
func controls(t *testing.T, tail *replica.Tail) string {
	t.Helper()
	var out []string
	for rest := tail.Batches; len(rest) > 0; {
		b, next, err := records.Split(rest)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.CheckCRC(); err != nil {
			t.Fatal(err)
		}
		typ, err := records.ControlType(b)
		if err != nil {
			t.Fatal(err)
		}
		name := map[int16]string{records.ControlAbort: "abort", records.ControlMirrorPidReset: "reset"}[typ]
		out = append(out, fmt.Sprintf("%d %s %d %d", b.BaseOffset(), name, b.ProducerID(), b.ProducerEpoch()))
		rest = next
	}
	return strings.Join(out, ", ")
}

// TestStopResumed kills the process after each round of a stop; a real broker leads in between, under the lock or without it.
func TestStopResumed(t *testing.T) {
	for cut := range 12 {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			w, topic := stoppingWorld(t)
			m := stopManager(t, w, topic)
			w.sourceErr = fmt.Errorf("dead")
			rounds(t, m, cut)
			w.change("orders", func(p *kraft.Partition) {
				if p.Leader >= 9000 {
					p.Leader, p.LeaderEpoch = 2, p.LeaderEpoch+1
					p.ISR = []int32{1, 2, 3}
				}
			})
			now, _ := (store{w}).TopicByName("orders")
			clear(w.roles)
			m = stopManager(t, w, now)
			rounds(t, m, 20)
			s := w.states[orders0]
			if s.State != statemachine.Stopped || s.LastMirrorEpoch != 4 || s.StopEnd != 100 {
				t.Fatalf("state %+v; asked %v", s, w.asked)
			}
			ip := w.Image().Partition(orders0)
			if slices.ContainsFunc(ip.Replicas, w.Guest) || w.Guest(ip.Leader) {
				t.Errorf("left with leader %d, replicas %v", ip.Leader, ip.Replicas)
			}
			if _, locked := w.Image().TopicConfig("orders", sizeConfig); locked {
				t.Error("still locked")
			}
		})
	}
}

// TestStopLastEpoch: a replica that led for a moment says the epoch of that, of which there is no record.
func TestStopLastEpoch(t *testing.T) {
	w, topic := stoppingWorld(t)
	w.change("orders", func(p *kraft.Partition) { p.Leader, p.LeaderEpoch, p.ISR = 2, 13, []int32{1, 2, 3} })
	st := w.statuses[orders0]
	st.LastEpoch = 13
	w.statuses[orders0] = st
	m := stopManager(t, w, topic)
	rounds(t, m, 20)
	if s := w.states[orders0]; s.State != statemachine.Stopped || s.LastMirrorEpoch != 4 || s.StopEpoch != 4 {
		t.Errorf("%+v", s)
	}
}

func TestStopUnaligned(t *testing.T) {
	for _, c := range []struct {
		name  string
		align []int32
		want  int32
	}{{"nothing in common", nil, -1}, {"less in common", []int32{2}, 2}, {"aligned above", []int32{9}, 4}} {
		t.Run(c.name, func(t *testing.T) {
			w, topic := stoppingWorld(t)
			topic.Align = c.align
			w.states[orders0] = coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Preparing, LastMirrorEpoch: 7}
			m := stopManager(t, w, topic)
			rounds(t, m, 20)
			if s := w.states[orders0]; s.State != statemachine.Stopped || s.LastMirrorEpoch != c.want {
				t.Errorf("state %s, last mirrored epoch %d, want %d", s.State, s.LastMirrorEpoch, c.want)
			}
		})
	}
}

// TestStopStuck: the longest replica leads for a while when the others lack what nobody else has.
func TestStopStuck(t *testing.T) {
	w, topic := stoppingWorld(t)
	st := w.statuses[orders0]
	st.Converged, st.Stuck = false, true
	st.Followers = map[int32]replica.FollowerStatus{1: {FetchOffset: 90}, 2: {FetchOffset: 95}, 3: {FetchOffset: 100}}
	w.statuses[orders0] = st
	m := stopManager(t, w, topic)
	same := m.cfg.LogEnds
	m.cfg.LogEnds = func(_ context.Context, ids []protocol.PartitionID) (map[protocol.PartitionID]map[int32]int64, error) {
		return map[protocol.PartitionID]map[int32]int64{orders0: {1: 90, 2: 95, 3: 100}}, nil
	}
	rounds(t, m, 5)
	if ip := w.Image().Partition(orders0); ip.Leader != 3 {
		t.Fatalf("leader %d, asked %v", ip.Leader, w.asked)
	}
	if v, _ := w.Image().TopicConfig("orders", sizeConfig); v != "0" {
		t.Fatal("unlocked before its end is stored")
	}
	m.cfg.LogEnds = same
	st.Converged, st.Stuck = true, false
	w.statuses[orders0] = st
	rounds(t, m, 20)
	if s := w.states[orders0]; s.State != statemachine.Stopped || s.StopEnd != 100 {
		t.Errorf("state %+v", s)
	}
}

// TestStopWithEligibleReplicas: min.insync.replicas is written only after the controller has cleared the eligible leader replicas.
func TestStopWithEligibleReplicas(t *testing.T) {
	w, topic := stoppingWorld(t)
	w.change("orders", func(p *kraft.Partition) { p.ISR, p.ELR = []int32{9001, 1}, []int32{2} })
	w.states[orders0] = coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Stopping, Stop: statemachine.StopTailed,
		Previous: statemachine.Mirroring, LastMirrorEpoch: 4, StopEnd: 100, StopEpoch: 4, Aligned: true}
	w.clearELR = true
	m := stopManager(t, w, topic)
	rounds(t, m, 10)
	if want := []string{"configs", "reassign", "configs"}; !slices.Equal(w.asked[:min(3, len(w.asked))], want) {
		t.Errorf("asked %v, want %v first", w.asked, want)
	}
	if s := w.states[orders0].State; s != statemachine.Stopped {
		t.Errorf("state %s", s)
	}
}

func TestDrainWaitsForARestingSource(t *testing.T) {
	w, topic := stoppingWorld(t)
	topic.Drain = true
	m := stopManager(t, w, topic)
	rounds(t, m, 3)
	if s := w.states[orders0].State; s != statemachine.Mirroring {
		t.Errorf("state %s: the source has not been heard of", s)
	}
}
