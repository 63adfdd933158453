package mirror

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"go.uber.org/goleak"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ordersID = protocol.UUID{1}
	orders0  = protocol.PartitionID{Topic: ordersID}
	lockOn   = map[string]string{sizeConfig: "0", minISRConfig: "4"}
)

// TestNewTopicServes: a topic that was created with the lock and led by us from the start goes to MIRRORING, with the epoch
// raised above the source's first.
func TestNewTopicServes(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1, 2, 3}, ISR: []int32{9001, 9002, 1, 2, 3}, Leader: 9001}, lockOn)
	w.statuses[orders0] = replica.Status{SourceEpoch: 5}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	rounds(t, m, 6)
	if s := w.states[orders0].State; s != statemachine.Mirroring {
		t.Errorf("stored state %s", s)
	}
	if r := w.roles[orders0].Role; r != replica.RoleMirror {
		t.Errorf("role %d", r)
	}
	if e := w.Image().Partition(orders0).LeaderEpoch; e < 8 {
		t.Errorf("leader epoch %d, want at least 8: the source is at 5", e)
	}
	if slices.Contains(w.asked, "configs") {
		t.Error("the lock was written again")
	}
	if got := w.roles[orders0].MinRealISR; got != 2 {
		t.Errorf("least number of real in-sync replicas is %d, want the topic's own 2", got)
	}
}

// TestTakeoverOrder: an existing topic is led before it is locked, replicas out of sync are dropped before it mirrors and
// come back afterwards.
func TestTakeoverOrder(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2}, Leader: 1, LeaderEpoch: 9}, nil)
	w.edit(func(i *kraft.Image) { i.Brokers = map[int32]*kraft.Broker{3: {ID: 3}} })
	w.statuses[orders0] = replica.Status{SourceEpoch: 2}
	w.holding = map[int32]bool{3: true}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	rounds(t, m, 1)
	if want := []string{"reassign", "join", "elect"}; !slices.Equal(w.asked, want) {
		t.Fatalf("asked %v, want %v", w.asked, want)
	}
	rounds(t, m, 1)
	if w.asked[len(w.asked)-1] != "configs" {
		t.Fatalf("asked %v: the lock is to come next", w.asked)
	}
	if v, _ := w.Image().TopicConfig("orders", minISRConfig); v != "4" {
		t.Errorf("lock value %s", v)
	}
	rounds(t, m, 4)
	dropped := slices.IndexFunc(w.lists, func(l []int32) bool { return slices.Equal(l, []int32{9001, 9002, 1, 2}) })
	if dropped < 0 {
		t.Fatalf("replica lists %v: 3 was out of sync and is not dropped", w.lists)
	}
	if s := w.states[orders0].State; s != statemachine.Mirroring {
		t.Fatalf("state %s", s)
	}
	rounds(t, m, 2)
	if p := w.Image().Partition(orders0); slices.Contains(p.Replicas, 3) {
		t.Fatalf("replicas %v: 3 still holds its old log", p.Replicas)
	}
	w.holding = nil
	rounds(t, m, 2)
	if p := w.Image().Partition(orders0); !slices.Contains(p.Replicas, 3) {
		t.Errorf("replicas %v: 3 is alive and was not added back", p.Replicas)
	}
}

// TestNoLockWithELR: min.insync.replicas is not written while a partition has eligible leader replicas (fact 12 of docs/kafka-facts.md).
func TestNoLockWithELR(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001}, ELR: []int32{1}, Leader: 9001}, nil)
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	rounds(t, m, 3)
	if slices.Contains(w.asked, "configs") {
		t.Error("locked with a non-empty ELR")
	}
	w.change("orders", func(p *kraft.Partition) { p.ELR = nil })
	rounds(t, m, 1)
	if !slices.Contains(w.asked, "configs") {
		t.Error("not locked once the ELR was empty")
	}
}

// TestStrays: unknown topics on our ids are strays; ours, ones being created, and locked ones never are.
func TestStrays(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Leader: 9001}, nil)
	w.topic("locked", protocol.UUID{2}, kraft.Partition{Leader: 9001}, lockOn)
	w.topic("new", protocol.UUID{3}, kraft.Partition{Leader: 9001}, nil)
	w.topic("stray", protocol.UUID{4}, kraft.Partition{Leader: 9002}, nil)
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	m.creating["new"] = true
	for name, want := range map[string]bool{"orders": false, "locked": false, "new": false, "stray": true} {
		if got := m.isStray(w.Image().TopicByName(name)); got != want {
			t.Errorf("%s: stray is %v", name, got)
		}
	}
	rounds(t, m, 1)
	if w.roles[protocol.PartitionID{Topic: protocol.UUID{4}}].Role != replica.RoleStray {
		t.Error("a stray partition was not given to the data path")
	}
	if _, ok := w.roles[protocol.PartitionID{Topic: protocol.UUID{2}}]; ok {
		t.Error("a locked topic was given a role")
	}
}

// TestReloadMirroring: a process that finds MIRRORING stored does not align again, which would copy everything anew.
func TestReloadMirroring(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1, 2}, ISR: []int32{1, 2}, Leader: 1, LeaderEpoch: 20},
		map[string]string{sizeConfig: "0", minISRConfig: "4"})
	w.statuses[orders0] = replica.Status{SourceEpoch: 5}
	w.states[orders0] = coordinator.PartitionState{ID: orders0, State: statemachine.Mirroring, Previous: statemachine.Preparing}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	for range 4 {
		rounds(t, m, 1)
		if w.roles[orders0].Role == replica.RoleTruncate {
			t.Fatal("aligned again")
		}
	}
	if r := w.roles[orders0].Role; r != replica.RoleMirror {
		t.Errorf("role %d", r)
	}
}

// TestStoreAheadOfImage: a topic that is stored before the image shows it is not taken for deleted; one that was seen and
// is gone is.
func TestStoreAheadOfImage(t *testing.T) {
	w := newWorld()
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	rounds(t, m, 2)
	if s := w.states[orders0].State; s != statemachine.Preparing {
		t.Fatalf("state %s while the image lags behind", s)
	}
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001, 9002, 1}, Leader: 9001}, lockOn)
	rounds(t, m, 1)
	w.edit(func(i *kraft.Image) { delete(i.Topics, ordersID); delete(i.Names, "orders") })
	rounds(t, m, 1)
	if s := w.states[orders0]; s.State != statemachine.Failed || s.Retry != -1 {
		t.Errorf("state %s, retry %d of a deleted topic", s.State, s.Retry)
	}
}

// mirroring is a world with a locked topic of which we lead the partition, at rest. Changes by foreign hands are counted.
func mirroring(t *testing.T) (w *world, m *Manager, foreign *int) {
	w, foreign = newWorld(), new(int)
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1, 2, 3}, ISR: []int32{9001, 9002, 1, 2, 3}, Leader: 9001,
		LeaderEpoch: 20}, lockOn)
	w.statuses[orders0] = replica.Status{SourceEpoch: 5}
	m = newManager(t, w, mirrorTopic("orders", ordersID))
	m.cfg.OnForeign = func() { *foreign++ }
	rounds(t, m, 4)
	return w, m, foreign
}

// TestForeignHands: a standby id that others removed comes back, and so does leadership that they took; both are counted.
func TestForeignHands(t *testing.T) {
	w, m, foreign := mirroring(t)
	w.change("orders", func(p *kraft.Partition) { p.Replicas, p.ISR = []int32{9001, 1, 2, 3}, []int32{9001, 1, 2, 3} })
	rounds(t, m, 3)
	if p := w.Image().Partition(orders0); !slices.Contains(p.Replicas, 9002) {
		t.Errorf("replicas %v: 9002 was not put back", p.Replicas)
	}
	w.change("orders", func(p *kraft.Partition) { p.Leader, p.LeaderEpoch = 1, p.LeaderEpoch+1 })
	rounds(t, m, 3)
	if p := w.Image().Partition(orders0); p.Leader != 9001 {
		t.Errorf("leader %d: leadership was not taken back", p.Leader)
	}
	if *foreign != 2 {
		t.Errorf("%d foreign changes counted, want 2", *foreign)
	}
}

// TestFencedByItself: who has fenced itself asks for nothing that it can't have, says why, and holds nobody for a foreign hand.
func TestFencedByItself(t *testing.T) {
	w, m, foreign := mirroring(t)
	w.fenced = true
	w.change("orders", func(p *kraft.Partition) { p.Leader, p.ISR, p.LeaderEpoch = 1, []int32{1, 2, 3}, p.LeaderEpoch+1 })
	lists := len(w.lists)
	delete(w.statuses, orders0)
	rounds(t, m, 3)
	parts, err := m.Describe(t.Context(), admin.DescribeRequest{})
	if err != nil || len(parts) != 1 || parts[0].Error == nil || !strings.Contains(*parts[0].Error, "has fenced itself") {
		t.Errorf("described as %+v, %v", parts, err)
	}
	if p := w.Image().Partition(orders0); p.Leader != 1 || len(w.lists) != lists || *foreign != 0 {
		t.Errorf("leader %d, %d lists set, %d foreign changes", p.Leader, len(w.lists)-lists, *foreign)
	}
	w.fenced = false
	rounds(t, m, 3)
	if p := w.Image().Partition(orders0); p.Leader != 9001 || *foreign != 0 {
		t.Errorf("leader %d afterwards, %d foreign changes", p.Leader, *foreign)
	}
}

// TestNoSourceNoLead: a process that comes back while the source is dead leaves leadership with the real broker, which serves
// consumers better than we could.
func TestNoSourceNoLead(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1, 2}, ISR: []int32{1, 2}, Leader: 1, LeaderEpoch: 20}, lockOn)
	w.statuses[orders0] = replica.Status{SourceEpoch: 5}
	w.states[orders0] = coordinator.PartitionState{ID: orders0, State: statemachine.Mirroring, Previous: statemachine.Preparing}
	w.sourceErr = errors.New("connection refused")
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	rounds(t, m, 3)
	if p := w.Image().Partition(orders0); p.Leader != 1 || len(w.asked) > 0 {
		t.Fatalf("leader %d, asked %v without a source", p.Leader, w.asked)
	}
	w.sourceErr = nil
	rounds(t, m, 2)
	if p := w.Image().Partition(orders0); p.Leader != 9001 {
		t.Errorf("leader %d although the source is back", p.Leader)
	}
}

// TestUnstoredStateHoldsNobodyUp: a role that went with a round whose states could not be stored is given in the next one,
// also to partitions whose own state was fine.
func TestUnstoredStateHoldsNobodyUp(t *testing.T) {
	w := newWorld()
	parts := kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001, 9002, 1}, Leader: 9001, LeaderEpoch: 20}
	w.topic("orders", ordersID, parts, lockOn)
	w.topic("new", protocol.UUID{2}, parts, lockOn)
	w.states[orders0] = coordinator.PartitionState{ID: orders0, State: statemachine.Mirroring, Previous: statemachine.Preparing}
	w.statuses[orders0] = replica.Status{SourceEpoch: 5}
	m := newManager(t, w, mirrorTopic("orders", ordersID), mirrorTopic("new", protocol.UUID{2}))
	w.putErr = errors.New("no brokers")
	rounds(t, m, 1)
	w.putErr = nil
	rounds(t, m, 1)
	if r := w.roles[orders0].Role; r != replica.RoleMirror {
		t.Errorf("role %d of a partition that mirrored before", r)
	}
}

// TestOneBadPartition: a partition that can't be led keeps no other from being led.
func TestOneBadPartition(t *testing.T) {
	w := newWorld()
	parts := kraft.Partition{Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: 1, LeaderEpoch: 9}
	w.topic("bad", protocol.UUID{2}, parts, nil)
	w.topic("orders", ordersID, parts, nil)
	w.joinErr = map[string]error{"bad": errors.New("leader does not answer")}
	m := newManager(t, w, mirrorTopic("bad", protocol.UUID{2}), mirrorTopic("orders", ordersID))
	rounds(t, m, 1)
	if p := w.Image().Partition(orders0); p.Leader != 9001 {
		t.Errorf("leader %d", p.Leader)
	}
	if m.lastErr[leadTask] == "" {
		t.Error("nothing is said about the other")
	}
}

// TestOtherSource: where the source's topic was made anew and is mirrored by --overwrite, everything is aligned again: equal
// epoch numbers of the two would hide that the data differs (fact 45 of docs/kafka-facts.md).
func TestOtherSource(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001, 9002, 1}, Leader: 9001, LeaderEpoch: 20}, lockOn)
	w.statuses[orders0] = replica.Status{SourceEpoch: 5}
	w.states[orders0] = coordinator.PartitionState{ID: orders0, State: statemachine.Failed, Previous: statemachine.Mirroring, Retry: -1,
		Error: "made anew"}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	rounds(t, m, 2)
	if s := w.states[orders0]; s.State != statemachine.Failed {
		t.Fatalf("state %s", s.State)
	}
	next := mirrorTopic("orders", ordersID)
	next.SourceTopicID, next.Started = protocol.UUID{8}, time.Now()
	_ = store{w}.PutState(t.Context(), m.preparing(next)...)
	_ = store{w}.PutTopic(t.Context(), next)
	rounds(t, m, 1)
	if a := w.roles[orders0]; a.Role != replica.RoleTruncate || a.SourceTopicID != next.SourceTopicID {
		t.Errorf("role %d for source %s", a.Role, a.SourceTopicID)
	}
	rounds(t, m, 2)
	if a := w.roles[orders0]; a.Role != replica.RoleMirror {
		t.Errorf("role %d at the end", a.Role)
	}
}

// TestRecreatedByOthers: a destination topic that others deleted and made anew under its name is said to be gone.
func TestRecreatedByOthers(t *testing.T) {
	w := newWorld()
	parts := kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001, 9002, 1}, Leader: 9001}
	w.topic("orders", ordersID, parts, lockOn)
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	rounds(t, m, 1)
	w.edit(func(i *kraft.Image) { delete(i.Topics, ordersID) })
	w.topic("orders", protocol.UUID{9}, kraft.Partition{Replicas: []int32{1}, ISR: []int32{1}, Leader: 1}, nil)
	rounds(t, m, 1)
	if s := w.states[orders0]; s.State != statemachine.Failed || s.Error == "" {
		t.Errorf("state %s: %q", s.State, s.Error)
	}
	s := &startRun{m: m, filters: everything(), req: admin.StartRequest{Mirror: "m"}}
	if done, err := s.again(mirrorTopic("orders", ordersID), protocol.UUID{7}); done || err != nil {
		t.Errorf("start says that it is mirrored: done %v, err %v", done, err)
	}
}

// TestTrueConfigs: a lock that is on already is never remembered as the topic's own configuration.
func TestTrueConfigs(t *testing.T) {
	w := newWorld()
	w.topic("own", ordersID, kraft.Partition{}, map[string]string{sizeConfig: "5000", minISRConfig: "3"})
	w.topic("locked", protocol.UUID{2}, kraft.Partition{}, lockOn)
	m := newManager(t, w)
	s := &startRun{m: m, filters: everything(), config: map[string]map[string]string{"locked": {sizeConfig: "7000", minISRConfig: "1"}}}
	fresh := func(name string) coordinator.Topic {
		return coordinator.Topic{Name: name, TopicID: w.Image().Names[name], MinISR: 2, Replicas: 3, TrueConfigs: map[string]string{}}
	}
	own, cut, again := fresh("own"), fresh("locked"), fresh("locked")
	s.trueConfigs(&own, w.Image(), nil)
	s.trueConfigs(&cut, w.Image(), nil)
	known := fresh("locked")
	known.MinISR, known.TrueConfigs = 1, map[string]string{sizeConfig: "9"}
	s.trueConfigs(&again, w.Image(), &known)
	if own.MinISR != 3 || own.TrueConfigs[sizeConfig] != "5000" || own.TrueConfigs[minISRConfig] != "3" {
		t.Errorf("of an unlocked topic: %+v", own)
	}
	if _, ok := cut.TrueConfigs[minISRConfig]; ok || cut.MinISR != 2 || cut.TrueConfigs[sizeConfig] != "7000" {
		t.Errorf("of one locked by a start cut short: %+v", cut)
	}
	if again.MinISR != 1 || again.TrueConfigs[sizeConfig] != "9" {
		t.Errorf("of a known one: %+v", again)
	}
	cut = fresh("locked")
	s.filters, _ = filters.Parse(map[string]string{filters.TopicPropertiesExclude: "segment.ms"})
	if s.trueConfigs(&cut, w.Image(), nil); cut.MinISR != 1 || cut.TrueConfigs[minISRConfig] != "1" {
		t.Errorf("min.insync.replicas follows the source: %+v", cut)
	}
}

// TestStuckIsSaidAndDoesNotSpin: what can't be done now shows in descriptions, and is tried again at the pace of the ticks.
func TestStuckIsSaidAndDoesNotSpin(t *testing.T) {
	for _, tt := range []struct {
		name    string
		part    kraft.Partition
		configs map[string]string
	}{
		{"lock", kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001, 9002}, ELR: []int32{1}, Leader: 9001}, nil},
		{"epoch", kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001, 1}, Leader: 9001, LeaderEpoch: 3}, lockOn},
		{"nobody in sync", kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001, 9002}, Leader: 9001, LeaderEpoch: 9}, lockOn},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			w.topic("orders", ordersID, tt.part, tt.configs)
			w.statuses[orders0] = replica.Status{SourceEpoch: 5}
			m := newManager(t, w, mirrorTopic("orders", ordersID))
			rounds(t, m, 3) // up to where it is stuck
			w.looks = 0
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			m.loop(ctx)
			m.tasks.Wait()
			if w.looks > 10 {
				t.Errorf("looked %d times in 0.3 s", w.looks)
			}
			got, err := m.Describe(t.Context(), admin.DescribeRequest{})
			if err != nil || len(got) != 1 || got[0].Error == nil {
				t.Errorf("described as %+v, %v", got, err)
			}
		})
	}
}

// TestTieredStorage: a mirror is never tiered at the destination: not by the source's configs, not by being taken over.
func TestTieredStorage(t *testing.T) {
	f, err := filters.Parse(map[string]string{filters.TopicPropertiesExclude: ""})
	if err != nil {
		t.Fatal(err)
	}
	got := f.Configs(map[string]string{filters.TieredConfig: "true", "local.retention.ms": "1", "retention.ms": "5"})
	if len(got) != 1 || got["retention.ms"] != "5" {
		t.Errorf("synced %v", got)
	}
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{1}, ISR: []int32{1}, Leader: 1}, map[string]string{filters.TieredConfig: "true"})
	s := &startRun{m: newManager(t, w), filters: everything(), req: admin.StartRequest{Mirror: "m", Overwrite: true}}
	_, err = s.fresh(t.Context(), "orders", kadm.TopicDetail{Topic: "orders", Partitions: kadm.PartitionDetails{0: {}}}, nil)
	if e := (*admin.Error)(nil); !errors.As(err, &e) || e.Exit != admin.ExitRefused {
		t.Errorf("taken over: %v", err)
	}
}

// TestUnlockedWhileDead: somebody lifted the lock while no kmirror ran, and a real broker took what clients wrote. It is not
// touched; start says so again, and only --overwrite goes on.
func TestUnlockedWhileDead(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1, 2}, ISR: []int32{1, 2}, Leader: 1, LeaderEpoch: 20}, nil)
	w.statuses[orders0] = replica.Status{SourceEpoch: 5}
	w.states[orders0] = coordinator.PartitionState{ID: orders0, State: statemachine.Mirroring, Previous: statemachine.Preparing}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	for _, again := range []bool{false, true} {
		if again {
			sendOn(t, m, statemachine.Start{})
		}
		rounds(t, m, 3)
		if s := w.states[orders0]; s.State != statemachine.Failed || s.Retry != -1 || len(w.asked) > 0 {
			t.Fatalf("state %s, retry %d, asked %v", s.State, s.Retry, w.asked)
		}
	}
	sendOn(t, m, statemachine.Start{Overwrite: true})
	rounds(t, m, 8)
	if s := w.states[orders0].State; s != statemachine.Mirroring {
		t.Errorf("state %s after --overwrite", s)
	}
}

// TestContested: a partition that others take away again and again is given up, with the lock left on.
func TestContested(t *testing.T) {
	w := newWorld()
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1, 2, 3}, ISR: []int32{9001, 9002, 1, 2, 3}, Leader: 9001,
		LeaderEpoch: 20}, lockOn)
	w.statuses[orders0] = replica.Status{SourceEpoch: 5}
	m := newManager(t, w, mirrorTopic("orders", ordersID))
	rounds(t, m, 4)
	for i := range foreignLimit {
		if s := w.states[orders0].State; s != statemachine.Mirroring {
			t.Fatalf("state %s after %d changes", s, i)
		}
		w.change("orders", func(p *kraft.Partition) { p.Leader, p.LeaderEpoch = 1, p.LeaderEpoch+1 })
		rounds(t, m, 3)
	}
	if s := w.states[orders0]; s.State != statemachine.Failed || s.Retry != -1 || s.Hint == "" {
		t.Errorf("state %s, retry %d, hint %q", s.State, s.Retry, s.Hint)
	}
	if v, _ := w.Image().TopicConfig("orders", sizeConfig); v != "0" {
		t.Error("the lock was taken off")
	}
}

// TestPace: small gaps go at full speed, large ones don't.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newWorld())
		begin := time.Now()
		at, to := map[protocol.PartitionID]int32{orders0: 0}, map[protocol.PartitionID]int32{orders0: 10}
		if err := m.pace(t.Context(), at, to); err != nil || time.Since(begin) > 0 {
			t.Errorf("a gap of 10 waits %s, %v", time.Since(begin), err)
		}
		to[orders0] = 300
		if err := m.pace(t.Context(), at, to); err != nil || time.Since(begin) != time.Second/stepsPerSecond {
			t.Errorf("a gap of 300 waits %s, %v", time.Since(begin), err)
		}
	})
}

// sendOn is an operator's word to the only partition of orders.
func sendOn(t *testing.T, m *Manager, word statemachine.Event) {
	t.Helper()
	topic, _ := m.cfg.Store.TopicByName("orders")
	if err := m.sendOn(t.Context(), topic, []int32{0}, word, -1); err != nil {
		t.Fatal(err)
	}
}
