package admin

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"reflect"
	"syscall"
	"testing"
	"time"

	"kmirror/internal/coordinator"
	"kmirror/internal/fakepeer"
	"kmirror/internal/peers"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

// owner is a StateOwner that keeps what it is told.
type owner struct {
	states   map[protocol.PartitionID]coordinator.PartitionState
	records  []coordinator.Record
	errs     []error // of what comes next, in order; then none
	received [][]coordinator.PartitionState
	passed   int
}

func (o *owner) next() error {
	if len(o.errs) == 0 {
		return nil
	}
	err := o.errs[0]
	o.errs = o.errs[1:]
	return err
}

func (o *owner) WriteStates(_ context.Context, states []coordinator.PartitionState) []coordinator.Outcome {
	o.received = append(o.received, states)
	var out []coordinator.Outcome
	for i, st := range states {
		out = append(out, coordinator.Outcome{Offset: int64(100 + i), Err: o.next()})
		o.states[st.ID] = st
	}
	return out
}

// PassStates and ReadStates find the owner, which is this one, and note that they were asked to.
func (o *owner) PassStates(ctx context.Context, states []coordinator.PartitionState) []coordinator.Outcome {
	o.passed++
	return o.WriteStates(ctx, states)
}

func (o *owner) ReadStates(ctx context.Context, mirror string, ids []protocol.PartitionID) []coordinator.ReadOutcome {
	o.passed++
	return o.OwnStates(ctx, mirror, ids)
}

func (o *owner) WriteRecords(_ context.Context, records []coordinator.Record) []coordinator.Outcome {
	var out []coordinator.Outcome
	for i := range records {
		out = append(out, coordinator.Outcome{Offset: int64(i), Err: o.next()})
	}
	o.records = append(o.records, records...)
	return out
}

func (o *owner) OwnStates(_ context.Context, _ string, ids []protocol.PartitionID) []coordinator.ReadOutcome {
	var out []coordinator.ReadOutcome
	for _, id := range ids {
		st, ok := o.states[id]
		out = append(out, coordinator.ReadOutcome{State: st, Known: ok, Err: o.next()})
	}
	return out
}

func (o *owner) Topics() []coordinator.Topic {
	return []coordinator.Topic{{Mirror: "m", Name: "orders", TopicID: protocol.UUID{1}}}
}

// serveOwner starts a server that answers other processes.
func serveOwner(t *testing.T, o *owner) (coordinator.Member, *Peers) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Listen: l, Service: &fake{mirrors: []MirrorInfo{{Mirror: "m"}}}, States: o, Log: slog.New(slog.DiscardHandler),
		DrainTimeout: 300 * time.Millisecond,
		Pong: func() peers.Pong {
			return peers.Pong{ProcessID: "p-1", NodeIDs: []int32{9001}, Unreachable: []string{"m"}}
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	p := NewPeers(ClientConfig{DialTimeout: 30 * time.Second})
	t.Cleanup(func() {
		p.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return coordinator.Member{ProcessID: "p-1", Admin: l.Addr().String()}, p
}

func fullState(mirror string, topic byte, p int32) coordinator.PartitionState {
	return coordinator.PartitionState{
		Mirror: mirror, ID: protocol.PartitionID{Topic: protocol.UUID{topic}, Partition: p}, State: statemachine.Stopping,
		Previous: statemachine.Mirroring, Since: time.Date(2026, 11, 29, 1, 2, 3, 4, time.UTC), Retry: -1, Error: "e", Hint: "h",
		LastMirrorEpoch: 7, Stop: statemachine.StopMarked, StopEnd: 1 << 40, StopEpoch: 6, Aligned: true, LeaderEpoch: 12, Base: int64(p) - 1,
	}
}

func TestStatesBetweenProcesses(t *testing.T) {
	o := &owner{states: map[protocol.PartitionID]coordinator.PartitionState{}}
	to, p := serveOwner(t, o)
	states := []coordinator.PartitionState{fullState("m", 1, 0), fullState("n", 2, 5), fullState("m", 1, 3), fullState("m", 3, 3),
		fullState("m", 1, 1)}
	got, err := p.WriteStates(t.Context(), to, states)
	if err != nil {
		t.Fatal(err)
	}
	for i, st := range states {
		if o.states[st.ID] != st {
			t.Errorf("arrived as %+v, want %+v", o.states[st.ID], st)
		}
		if got[i].Err != nil || got[i].Offset < 100 {
			t.Errorf("outcome %d: %+v", i, got[i])
		}
	}
	if o.passed > 0 {
		t.Error("a process has its own states passed on")
	}
	var ids []protocol.PartitionID
	for _, i := range []int{0, 2, 3} {
		ids = append(ids, states[i].ID)
	}
	ids = append(ids, protocol.PartitionID{Topic: protocol.UUID{9}})
	read, err := p.ReadStates(t.Context(), to, "m", ids)
	if err != nil || len(read) != 4 {
		t.Fatalf("%+v, %v", read, err)
	}
	for i, k := range []int{0, 2, 3} {
		if !read[i].Known || read[i].Err != nil || read[i].State != states[k] {
			t.Errorf("read %+v, want %+v", read[i], states[k])
		}
	}
	if read[3].Known || read[3].Err != nil {
		t.Errorf("a state that is not there: %+v", read[3])
	}

	o.errs = []error{coordinator.ErrNotCoordinator, coordinator.ErrLoading, coordinator.ErrFencedLeaderEpoch, errors.New("other")}
	got, err = p.WriteStates(t.Context(), to, []coordinator.PartitionState{states[0], states[2], states[3], states[4]})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{coordinator.ErrNotCoordinator, coordinator.ErrLoading, coordinator.ErrFencedLeaderEpoch} {
		if !errors.Is(got[i].Err, want) {
			t.Errorf("outcome %d: %v, want %v", i, got[i].Err, want)
		}
	}
	if got[3].Err == nil || got[3].Err.Error() != "other" {
		t.Errorf("outcome: %v", got[3].Err)
	}
	o.errs = []error{coordinator.ErrClosed}
	if got, err = p.WriteStates(t.Context(), to, states[:1]); err != nil || !errors.Is(got[0].Err, coordinator.ErrNotCoordinator) {
		t.Errorf("of an owner that is leaving: %+v, %v, which is not tried at another", got, err)
	}
}

func TestRecordsBetweenProcesses(t *testing.T) {
	o := &owner{errs: []error{nil, coordinator.ErrNotCoordinator}}
	to, p := serveOwner(t, o)
	records := []coordinator.Record{{Key: []byte{0, 64, 1}, Value: []byte("v")}, {Key: []byte{0, 65}}}
	got, err := p.WriteRecords(t.Context(), to, records)
	if err != nil || len(got) != 2 || got[0].Err != nil || !errors.Is(got[1].Err, coordinator.ErrNotCoordinator) {
		t.Fatalf("%+v, %v", got, err)
	}
	if !reflect.DeepEqual(o.records, records) || o.records[1].Value != nil {
		t.Errorf("arrived as %+v", o.records)
	}
}

// A peer that knows only the KIP names topics, and says state and epoch.
func TestStatesOfAPeerThatKnowsOnlyTheKIP(t *testing.T) {
	o := &owner{states: map[protocol.PartitionID]coordinator.PartitionState{}}
	to, _ := serveOwner(t, o)
	c, err := NewClient(ClientConfig{Addresses: []string{to.Admin}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	known := fullState("m", 1, 4)
	o.states[known.ID] = known
	write := &kip1279.WriteMirrorStatesResponse{}
	if err := c.call(t.Context(), &kip1279.WriteMirrorStatesRequest{MirrorName: "m", Topics: []kip1279.WriteStateTopic{
		{Name: "orders", Partitions: []kip1279.WriteStatePartition{
			{PartitionIndex: 4, LastMirrorEpoch: 9, State: int8(statemachine.Unknown)},
			{PartitionIndex: 5, LastMirrorEpoch: -1, State: int8(statemachine.Paused)}, {PartitionIndex: 6, State: 99},
		}},
		{Name: "unheard", Partitions: []kip1279.WriteStatePartition{{}}},
	}}, write); err != nil {
		t.Fatal(err)
	}
	var codes []int16
	for _, topic := range write.Topics {
		for _, p := range topic.Partitions {
			codes = append(codes, p.ErrorCode)
		}
	}
	if !reflect.DeepEqual(codes, []int16{0, 0, kip1279.InvalidRequest, 3}) {
		t.Errorf("codes %v", codes)
	}
	want := known
	want.LastMirrorEpoch, want.LeaderEpoch = 9, 0
	if got := o.states[known.ID]; got != want {
		t.Errorf("epoch only: %+v", got)
	}
	five := o.states[protocol.PartitionID{Topic: protocol.UUID{1}, Partition: 5}]
	if five.State != statemachine.Paused || five.Previous != statemachine.Unknown || five.LastMirrorEpoch != -1 {
		t.Errorf("%+v", five)
	}
	read := &kip1279.ReadMirrorStatesResponse{}
	if err := c.call(t.Context(), &kip1279.ReadMirrorStatesRequest{MirrorName: "m", Topics: []kip1279.ReadStateTopic{
		{Name: "orders", Partitions: []kip1279.ReadStatePartition{{PartitionIndex: 4}, {PartitionIndex: 7}}},
	}}, read); err != nil {
		t.Fatal(err)
	}
	if o.passed != 5 { // three states are read before they are written
		t.Errorf("owners were asked %d times for who knows of none", o.passed)
	}
	parts := read.Topics[0].Partitions
	if parts[0].State != int8(statemachine.Stopping) || parts[0].LastMirrorEpoch != 9 || parts[0].RetryAttempt != -1 ||
		parts[1].State != -1 || parts[1].LastMirrorEpoch != -1 {
		t.Errorf("%+v", parts)
	}
}

func TestPing(t *testing.T) {
	to, p := serveOwner(t, &owner{})
	for range 2 { // on a new connection, then on the same
		pong, err := p.Ping(t.Context(), to.Admin)
		if err != nil || pong.ProcessID != "p-1" || pong.NodeIDs[0] != 9001 || pong.Unreachable[0] != "m" {
			t.Fatalf("%+v, %v", pong, err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	fakepeer.Refuse(t, l)
	if _, err := p.Ping(t.Context(), address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody there: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if _, err := p.Ping(ctx, silent.Addr().String()); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("somebody who says nothing: %v", err)
	}
}
