package mirror

import (
	"errors"
	"slices"
	"testing"
	"time"

	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// shared makes the manager of a topic's partition one of two processes. The other has 9003 and 9004 among its ids, and is to lead the
// partition, or not.
func shared(t *testing.T, w *world, m *Manager, otherLeads bool) (other *Process) {
	t.Helper()
	w.edit(func(i *kraft.Image) {
		i.Brokers = map[int32]*kraft.Broker{1: {}, 2: {}, 3: {}, 9001: {}, 9002: {}, 9003: {}, 9004: {}}
	})
	// The choice goes by the first of a process's ids.
	us := Process{NodeIDs: m.cfg.NodeIDs, Self: true}
	for _, ids := range [][]int32{{9003, 9004}, {9004, 9003}, {9005, 9003, 9004}, {9006, 9003, 9004}, {9007, 9003, 9004}} {
		other = &Process{NodeIDs: ids}
		if choose([]Process{us, *other}, "m", orders0).lead.Self != otherLeads {
			m.cfg.Processes = func() []Process { return []Process{us, *other} }
			return other
		}
	}
	t.Fatal("no ids give the choice that is wanted")
	return nil
}

// TestYields: while another process takes a partition over its list is left alone, and that is nobody's meddling.
func TestYields(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1, 2, 3}, ISR: []int32{9001, 9002, 1, 2, 3}, Leader: 9001,
		LeaderEpoch: 5}, lockOn)
	w.statuses[orders0] = replica.Status{SourceEpoch: 1}
	w.states[orders0] = coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Mirroring, Previous: statemachine.Preparing,
		LastMirrorEpoch: -1, Aligned: true}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	foreign := 0
	m.cfg.OnForeign = func() { foreign++ }
	other := shared(t, w, m, true)
	rounds(t, m, 2)
	w.change("orders", func(p *kraft.Partition) {
		p.Replicas, p.ISR = []int32{9003, 9004, 9001, 1, 2, 3}, []int32{9001, 1, 2, 3, 9003, 9004}
	})
	rounds(t, m, 3)
	if len(w.lists) > 0 || foreign > 0 {
		t.Errorf("lists set %v, %d foreign changes", w.lists, foreign)
	}
	other.Starting = true // not known to be ready, as when its answer is on its way; the list says who comes
	rounds(t, m, 3)
	if len(w.lists) > 0 || foreign > 0 {
		t.Errorf("lists set %v, %d foreign changes", w.lists, foreign)
	}
	other.Starting, other.Dead = false, true
	rounds(t, m, 2)
	if n := len(w.lists); n == 0 || !slices.Equal(w.lists[n-1], []int32{9001, 9002, 1, 2, 3}) {
		t.Errorf("the other died on its way, lists set: %v", w.lists)
	}
}

// TestLeadsWithoutStandby: whose standby does not open its ids leads without one.
func TestLeadsWithoutStandby(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9005, 9006, 9001, 1, 2, 3}, ISR: []int32{9005, 9006, 9001, 1, 2, 3}, Leader: 9005,
		LeaderEpoch: 5}, lockOn)
	w.states[orders0] = coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Mirroring, Previous: statemachine.Preparing,
		LastMirrorEpoch: -1, Aligned: true}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	standby := shared(t, w, m, false)
	m.cfg.Processes = func() []Process {
		return []Process{{NodeIDs: m.cfg.NodeIDs, Self: true}, *standby, {NodeIDs: []int32{9005, 9006}, Dead: true}}
	}
	w.deaf = map[int32]bool{standby.NodeIDs[0]: true}
	rounds(t, m, 3)
	if p := w.Image().Partition(orders0); p.Leader != 9001 || !slices.Equal(w.lists[0], []int32{9001, 9002, 1, 2, 3}) {
		t.Errorf("led by %d, lists set: %v", p.Leader, w.lists)
	}
	w.deaf = nil
	rounds(t, m, 3)
	if p := w.Image().Partition(orders0); !slices.Equal(p.Replicas, []int32{9001, 9002, standby.NodeIDs[0], 1, 2, 3}) {
		t.Errorf("the standby is back, replicas %v", p.Replicas)
	}
}

// TestApart: who lives and can't be asked is left what it leads, and is named in no list.
func TestApart(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 9003, 1, 2, 3}, ISR: []int32{9001, 9002, 1, 2, 3}, Leader: 9001,
		LeaderEpoch: 5}, lockOn)
	w.states[orders0] = coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Mirroring, Previous: statemachine.Preparing,
		LastMirrorEpoch: -1, Aligned: true}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	other := shared(t, w, m, false)
	other.Apart = true
	rounds(t, m, 3)
	if p := w.Image().Partition(orders0); p.Leader != 9001 || !slices.Equal(p.Replicas, []int32{9001, 9002, 1, 2, 3}) {
		t.Errorf("led by %d, replicas %v", p.Leader, p.Replicas)
	}
	other = shared(t, w, m, true)
	other.Apart = true
	w.change("orders", func(p *kraft.Partition) {
		p.Replicas, p.ISR, p.Leader, p.LeaderEpoch = []int32{9003, 9004, 1, 2, 3}, []int32{9003, 9004, 1, 2, 3}, 9003, 6
	})
	rounds(t, m, 3)
	if p := w.Image().Partition(orders0); p.Leader != 9003 {
		t.Errorf("taken from it, replicas %v", p.Replicas)
	}
}

// TestStrangers: what a process has that lives and is not known yet is not taken from it, whether it leads already or is about to.
func TestStrangers(t *testing.T) {
	for name, p := range map[string]kraft.Partition{
		"leads":       {Replicas: []int32{9005, 9006, 1, 2, 3}, ISR: []int32{9005, 9006, 1, 2, 3}, Leader: 9005, LeaderEpoch: 5},
		"is about to": {Replicas: []int32{9005, 9006, 1, 2, 3}, ISR: []int32{1, 2, 3}, Leader: 1, LeaderEpoch: 5},
	} {
		w := newWorld()
		w.topic("orders", ordersID, p, lockOn)
		w.states[orders0] = coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Mirroring, Previous: statemachine.Preparing,
			LastMirrorEpoch: -1, Aligned: true}
		m := newManager(t, w, mirrorTopic("orders", ordersID))
		other := shared(t, w, m, false)
		w.edit(func(i *kraft.Image) { i.Brokers[9005], i.Brokers[9006] = &kraft.Broker{}, &kraft.Broker{} })
		us := Process{NodeIDs: m.cfg.NodeIDs, Self: true}
		procs := []Process{us, *other}
		m.cfg.Processes = func() []Process { return slices.Clone(procs) }
		rounds(t, m, 2)
		m.known.since = time.Now().Add(-time.Hour)
		rounds(t, m, 3)
		if len(w.lists) > 0 {
			t.Errorf("%s: lists set: %v", name, w.lists)
		}
		procs = []Process{us, *other, {NodeIDs: []int32{9005, 9006}, Dead: true}}
		rounds(t, m, 3)
		if now := w.Image().Partition(orders0); now.Leader != 9001 {
			t.Errorf("%s: it is dead, and %d leads", name, now.Leader)
		}
	}
}

// TestYieldsNotForEver: who is to lead and does not come keeps nobody from looking after the partition.
func TestYieldsNotForEver(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1, 2, 3}, ISR: []int32{9001, 9002, 1, 2, 3}, Leader: 9001,
		LeaderEpoch: 5}, lockOn)
	w.states[orders0] = coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Mirroring, Previous: statemachine.Preparing,
		LastMirrorEpoch: -1, Aligned: true}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	shared(t, w, m, true)
	rounds(t, m, 2)
	if len(w.lists) > 0 {
		t.Fatalf("lists set %v", w.lists)
	}
	m.parts[orders0].yielding = time.Now().Add(-yieldFor)
	rounds(t, m, 2)
	if len(w.lists) == 0 {
		t.Error("no standby was added")
	}
}

// TestSettledOnlyWhenReady: what this process may take from others is counted from when it is ready itself, which they have to learn.
func TestSettledOnlyWhenReady(t *testing.T) {
	w := newWorld()
	m := newManager(t, w)
	procs, at := m.alone(), time.Now()
	m.settled(procs, at)
	w.notReady = true
	if m.settled(procs, at.Add(settleFor)) {
		t.Error("settled while not ready")
	}
	w.notReady = false
	if m.settled(procs, at.Add(settleFor+1)) || !m.settled(procs, at.Add(2*settleFor)) {
		t.Error("not counted from when it was ready")
	}
}

// stoppingElsewhere is a world in which orders is to stop while another process's node ids lead it.
func stoppingElsewhere(t *testing.T) (*world, *Manager) {
	t.Helper()
	w, topic := stoppingWorld(t)
	w.change("orders", func(p *kraft.Partition) {
		p.Replicas, p.ISR, p.Leader = []int32{9003, 9004, 9001, 1, 2, 3}, []int32{9003, 9004, 9001, 1, 2, 3}, 9003
	})
	s := w.states[orders0]
	s.State, s.Previous = statemachine.Stopping, statemachine.Mirroring
	w.states[orders0] = s
	return w, stopManager(t, w, topic)
}

// TestStopTakesFromADeadProcess: a stop does not wait until the controller has found out that the leader is dead.
func TestStopTakesFromADeadProcess(t *testing.T) {
	w, m := stoppingElsewhere(t)
	other := shared(t, w, m, false)
	rounds(t, m, 2)
	if len(w.lists) > 0 {
		t.Fatalf("taken from a process that lives: %v", w.lists)
	}
	other.Dead = true
	w.sourceErr = errors.New("connection refused")
	m.reconcile(t.Context())
	m.tasks.Wait()
	if ip := w.Image().Partition(orders0); !w.Owns(ip.Leader) {
		t.Errorf("led by %d, lists set %v", ip.Leader, w.lists)
	}
}

// TestNeighbours: no process leads both of two neighbours while another one can, whatever the topic.
func TestNeighbours(t *testing.T) {
	procs := []Process{{NodeIDs: []int32{9001, 9002}}, {NodeIDs: []int32{9003, 9004}}, {NodeIDs: []int32{9005, 9006}}}
	for p := int32(0); p < 3000; p += 2 {
		topic := protocol.UUID{7, byte(p >> 1)}
		for n := 2; n <= len(procs); n++ {
			one := choose(procs[:n], "m", protocol.PartitionID{Topic: topic, Partition: p}).lead.NodeIDs[0]
			next := choose(procs[:n], "m", protocol.PartitionID{Topic: topic, Partition: p + 1}).lead.NodeIDs[0]
			if one == next {
				t.Fatalf("of %d processes one leads partitions %d and %d: %d", n, p, p+1, one)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	a, b, c := Process{NodeIDs: []int32{9001, 9002}}, Process{NodeIDs: []int32{9003, 9004}}, Process{NodeIDs: []int32{9005, 9006}}
	const n = 3000
	count := map[int32]int{}
	for p := range int32(n) {
		id := protocol.PartitionID{Topic: protocol.UUID{byte(p >> 6), 7}, Partition: p}
		all := choose([]Process{a, b, c}, "m", id)
		again := choose([]Process{c, b, a}, "m", id)
		if all.lead.NodeIDs[0] != again.lead.NodeIDs[0] || all.standby.NodeIDs[0] != again.standby.NodeIDs[0] {
			t.Fatalf("partition %d: the order of processes matters", p)
		}
		if all.lead.NodeIDs[0] == all.standby.NodeIDs[0] {
			t.Fatalf("partition %d stands by for itself", p)
		}
		count[all.lead.NodeIDs[0]]++
		// The leader dies: the standby leads. Another dies: nothing moves.
		rest := slices.DeleteFunc([]Process{a, b, c}, func(o Process) bool { return o.NodeIDs[0] == all.lead.NodeIDs[0] })
		if got := choose(rest, "m", id); got.lead.NodeIDs[0] != all.standby.NodeIDs[0] {
			t.Fatalf("partition %d: %d leads after its leader's death, %d stood by", p, got.lead.NodeIDs[0], all.standby.NodeIDs[0])
		}
		for i := range rest {
			left := append(slices.Clone(rest[:i]), all.lead)
			if got := choose(left, "m", id); got.lead.NodeIDs[0] != all.lead.NodeIDs[0] {
				t.Fatalf("partition %d moved although its leader lives", p)
			}
		}
	}
	for id, got := range count {
		if got < n/4 || got > n*5/12 {
			t.Errorf("process %d leads %d of %d partitions", id, got, n)
		}
	}

	id := protocol.PartitionID{}
	first := choose([]Process{a, b}, "m", id).lead
	blind, other := first, a
	if first.NodeIDs[0] == a.NodeIDs[0] {
		other = b
	}
	blind.Blind = []string{"m"}
	if got := choose([]Process{blind, other}, "m", id); got.lead.NodeIDs[0] != other.NodeIDs[0] || !got.two {
		t.Error("a process that does not reach the source leads")
	}
	if got := choose([]Process{blind, other}, "n", id); got.lead.NodeIDs[0] != first.NodeIDs[0] {
		t.Error("blindness for one mirror moves another's partitions")
	}
	leaving := first
	leaving.Leaving = true
	if got := choose([]Process{leaving, other}, "m", id); got.lead.NodeIDs[0] != other.NodeIDs[0] || got.two {
		t.Error("a process that leaves leads or stands by")
	}
}

func TestBlind(t *testing.T) {
	var s sight
	at := time.Now()
	if s.note(map[string]time.Duration{"m": blindAfter}, at) || s.note(map[string]time.Duration{"m": blindAfter}, at.Add(blindAfter-1)) {
		t.Error("blind too soon")
	}
	if !s.note(map[string]time.Duration{"m": blindAfter, "n": blindAfter}, at.Add(blindAfter)) || !slices.Equal(s.blind, []string{"m"}) {
		t.Errorf("blind for %v", s.blind)
	}
	if !s.note(map[string]time.Duration{"n": blindAfter}, at.Add(blindAfter+1)) || len(s.blind) > 0 {
		t.Errorf("blind for %v after an answer", s.blind)
	}
	if s.note(map[string]time.Duration{"m": blindAfter}, at.Add(2*blindAfter)) {
		t.Error("an old silence counts")
	}
	s = sight{}
	partly := map[string]time.Duration{"m": partlyAfter}
	if s.note(partly, at) || s.note(partly, at.Add(blindAfter)) || !s.note(partly, at.Add(partlyAfter)) {
		t.Errorf("some brokers of a source are silent: blind for %v", s.blind)
	}
}
