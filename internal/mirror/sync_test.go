package mirror

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/internal/metasync"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// mirrored is a world with a mirror topic that we lead, locked, with three brokers.
func mirrored(t *testing.T) (*world, *Manager) {
	t.Helper()
	w := newWorld()
	list := []int32{9001, 9002, 1, 2, 3}
	w.topic("orders", ordersID, kraft.Partition{Replicas: list, ISR: list, Leader: 9001}, map[string]string{sizeConfig: "0", minISRConfig: "4"})
	w.edit(func(i *kraft.Image) {
		i.Brokers = map[int32]*kraft.Broker{}
		for _, id := range list {
			i.Brokers[id] = &kraft.Broker{ID: id}
		}
	})
	w.mirrors = []coordinator.Mirror{{Name: "m", SourceClusterID: "source", Config: map[string]string{"bootstrap.servers": "127.0.0.1:1"}}}
	return w, newManager(t, w, mirrorTopic("orders", ordersID))
}

// TestGrowCutShort: partitions that were created when the process ended are taken over by the next attempt, and their states are stored
// before the topic says that it has them.
func TestGrowCutShort(t *testing.T) {
	w, m := mirrored(t)
	topic := w.topics[0]
	w.putErr = errors.New("no owner")
	if err := m.Grow(t.Context(), topic, 3); !errors.Is(err, w.putErr) {
		t.Fatalf("grown without a store: %v", err)
	}
	if p := w.topics[0].Partitions; p != 1 {
		t.Fatalf("stored as having %d partitions", p)
	}
	w.putErr = nil
	if err := m.Grow(t.Context(), topic, 3); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(strings.Join(w.asked, " "), "create partitions"); n != 1 {
		t.Errorf("created %d times", n)
	}
	want := []string{"put state PREPARING of m", "put state PREPARING of m", "put topic orders of m"}
	if !slices.Equal(w.stored, want) || w.topics[0].Partitions != 3 {
		t.Errorf("stored %v, %d partitions", w.stored, w.topics[0].Partitions)
	}
	it := w.Image().Topics[ordersID]
	for n, p := range it.Partitions[1:] {
		if len(p.Replicas) != 5 || !w.Owns(p.Replicas[0]) || !w.Owns(p.Replicas[1]) {
			t.Errorf("new partition %d is on %v", n+1, p.Replicas)
		}
	}
	if it.Partitions[1].Replicas[2] == it.Partitions[2].Replicas[2] {
		t.Errorf("both begin with the same broker: %v", it.Partitions[1].Replicas)
	}
	if err := m.Grow(t.Context(), w.topics[0], 2); err == nil || !strings.Contains(err.Error(), "somebody added some") {
		t.Errorf("the destination has more: %v", err)
	}
}

// TestGrowByOthers: what another process did while this one was stopped is not undone.
func TestGrowByOthers(t *testing.T) {
	w, m := mirrored(t)
	was := w.topics[0]
	w.fresh = func() { w.topics[0].Partitions = 3 }
	if err := m.Grow(t.Context(), was, 3); err != nil || len(w.stored) > 0 {
		t.Errorf("stored %v, err %v", w.stored, err)
	}
}

// TestGrowWaitsForBrokers: without enough live brokers nothing is created; fewer replicas than the topic has would stay.
func TestGrowWaitsForBrokers(t *testing.T) {
	w, m := mirrored(t)
	w.edit(func(i *kraft.Image) { i.Brokers = map[int32]*kraft.Broker{1: {ID: 1}} })
	if err := m.Grow(t.Context(), w.topics[0], 2); err == nil || len(w.asked) > 0 {
		t.Errorf("asked %v, err %v", w.asked, err)
	}
}

// TestSyncConfigsAndLock: the two locked configs are remembered, and all others set; the lock is as it was.
func TestSyncConfigsAndLock(t *testing.T) {
	w, m := mirrored(t)
	w.topics[0].TrueConfigs = map[string]string{minISRConfig: "2"}
	err := m.SyncConfigs(t.Context(), []metasync.ConfigChange{{Topic: w.topics[0], Remove: []string{"segment.ms"},
		Set: map[string]string{sizeConfig: "777", minISRConfig: "3", "retention.ms": "5"}}})
	if err != nil {
		t.Fatal(err)
	}
	now := w.Image().Configs[kraft.ConfigResource{Type: kraft.ConfigTopic, Name: "orders"}]
	if want := map[string]string{sizeConfig: "0", minISRConfig: "4", "retention.ms": "5"}; !maps.Equal(now, want) {
		t.Errorf("configs %v", now)
	}
	got := w.topics[0]
	if want := map[string]string{sizeConfig: "777", minISRConfig: "3"}; !maps.Equal(got.TrueConfigs, want) || got.MinISR != 3 {
		t.Errorf("remembered %v, min ISR %d", got.TrueConfigs, got.MinISR)
	}
	if err := m.SyncConfigs(t.Context(), []metasync.ConfigChange{{Topic: got, Remove: []string{sizeConfig}}}); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{minISRConfig: "3"}; !maps.Equal(w.topics[0].TrueConfigs, want) {
		t.Errorf("remembered %v", w.topics[0].TrueConfigs)
	}
	w.topics[0].Desired = statemachine.Stopped
	if err := m.SyncConfigs(t.Context(), []metasync.ConfigChange{{Topic: got, Set: map[string]string{sizeConfig: "1"}}}); err != nil ||
		w.topics[0].TrueConfigs[sizeConfig] != "" {
		t.Errorf("a topic that stops was given %v, %v", w.topics[0].TrueConfigs, err)
	}
}

// TestPromoteWaitsForGroups: the lock stays until the groups were synced once more, and goes then, also where that was not possible.
func TestPromoteWaitsForGroups(t *testing.T) {
	_, m := mirrored(t)
	m.cfg.SyncsGroups = true
	topic := mirrorTopic("orders", ordersID)
	topic.Desired, topic.Drain = statemachine.Stopped, true
	p := &part{topic: topic, id: protocol.PartitionID{Topic: ordersID}, machine: statemachine.New()}
	unlocks := func() bool {
		r := &round{unlock: map[protocol.UUID]coordinator.Topic{}}
		m.gatherStop(r, p, statemachine.Unlock{})
		return len(r.unlock) > 0
	}
	if unlocks() {
		t.Error("unlocked before the groups were synced")
	}
	p.topic.GroupsDone = true
	if !unlocks() {
		t.Error("not unlocked although the groups were synced")
	}
	p.topic.GroupsDone, p.topic.Drain = false, false
	if !unlocks() {
		t.Error("a failover waits for groups")
	}
}

// TestGroupsSynced is about the topics that were promoted then, not about what became of them since.
func TestGroupsSynced(t *testing.T) {
	w, m := mirrored(t)
	w.topics[0].Desired, w.topics[0].Drain = statemachine.Stopped, true
	was := w.topics[0]
	if err := m.GroupsSynced(t.Context(), []coordinator.Topic{was}, "the source is away"); err != nil || !w.topics[0].GroupsDone ||
		!strings.Contains(w.topics[0].Note, "the source is away") {
		t.Errorf("%+v, %v", w.topics[0], err)
	}
	again := was
	again.Started = again.Started.Add(1)
	w.topics[0] = again
	if err := m.GroupsSynced(t.Context(), []coordinator.Topic{was}, ""); err != nil || w.topics[0].GroupsDone {
		t.Errorf("another start was taken for the promoted one: %v", err)
	}
}

// TestEndTopics stops what is not stopped yet, and says why.
func TestEndTopics(t *testing.T) {
	w, m := mirrored(t)
	if err := m.EndTopics(t.Context(), "other", map[string]string{"orders": "x"}); err != nil || w.topics[0].Desired != statemachine.Mirroring {
		t.Errorf("stopped by another mirror: %v", err)
	}
	if err := m.EndTopics(t.Context(), "m", map[string]string{"orders": "gone", "unknown": "gone"}); err != nil ||
		w.topics[0].Desired != statemachine.Stopped || w.topics[0].Drain || w.topics[0].Note != "gone" {
		t.Errorf("%+v, %v", w.topics[0], err)
	}
}

// TestTieredFails: tiered storage that is turned on while a topic is mirrored fails it for good; one that stops goes on.
func TestTieredFails(t *testing.T) {
	w, m := mirrored(t)
	id := protocol.PartitionID{Topic: ordersID}
	w.states[id] = coordinator.PartitionState{Mirror: "m", ID: id, State: statemachine.Mirroring, Previous: statemachine.Preparing}
	w.edit(func(i *kraft.Image) {
		i.Configs[kraft.ConfigResource{Type: kraft.ConfigTopic, Name: "orders"}] = map[string]string{sizeConfig: "0", minISRConfig: "4",
			filters.TieredConfig: "true"}
	})
	rounds(t, m, 2)
	if st := w.states[id]; st.State != statemachine.Failed || st.Retry != -1 || st.Hint == "" {
		t.Errorf("%+v", st)
	}
}

// TestAlter: filters change without a source, connections only when the source is the same; what is wrong is refused as by create.
func TestAlter(t *testing.T) {
	_, m := mirrored(t)
	m.cfg.DialRemote = func(coordinator.Mirror) (RemoteAdmin, error) { return nil, nil }
	with := func(more ...string) admin.AlterRequest {
		config := map[string]string{"bootstrap.servers": "127.0.0.1:1"}
		for i := 0; i < len(more); i += 2 {
			config[more[i]] = more[i+1]
		}
		return admin.AlterRequest{Mirror: "m", Config: config}
	}
	got, err := m.AlterMirror(t.Context(), with(filters.GroupsInclude, "app-.*"))
	if err != nil || got.Reconnects || !slices.Equal(got.Changed, []string{filters.GroupsInclude}) {
		t.Errorf("a filter: %+v, %v", got, err)
	}
	stops := with(filters.TopicsExclude, "or.*")
	stops.DryRun = true
	if got, err := m.AlterMirror(t.Context(), stops); err != nil || !slices.Equal(got.Stops, []string{"orders"}) {
		t.Errorf("topics that are left out: %+v, %v", got, err)
	}
	if got, err := m.AlterMirror(t.Context(), with(filters.GroupsInclude, "app-.*")); err != nil || len(got.Changed) != 0 {
		t.Errorf("nothing: %+v, %v", got, err)
	}
	for name, req := range map[string]admin.AlterRequest{
		"pattern":        with(filters.TopicsInclude, "("),
		"no servers":     with("bootstrap.servers", ""),
		"unknown mirror": {Mirror: "x", Config: with().Config},
	} {
		var e *admin.Error
		if _, err := m.AlterMirror(t.Context(), req); !errors.As(err, &e) || e.Exit != admin.ExitUsage || e.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAlterOfSingleProperties: what is not named stays, also what another command changes in between.
func TestAlterOfSingleProperties(t *testing.T) {
	w, m := mirrored(t)
	looks := 0
	m.cfg.DialRemote = func(coordinator.Mirror) (RemoteAdmin, error) {
		if looks++; looks == 1 { // another command, between reading and writing
			w.mirrors[0].Config = map[string]string{"bootstrap.servers": "127.0.0.1:1", filters.GroupsExclude: "x"}
		}
		return nil, nil
	}
	set := func(changes ...admin.ConfigChange) error {
		_, err := m.AlterMirror(t.Context(), admin.AlterRequest{Mirror: "m", Changes: changes})
		return err
	}
	if err := set(admin.ConfigChange{Name: filters.GroupsInclude, Value: "a"}); err != nil || looks != 2 {
		t.Fatalf("%v after %d looks", err, looks)
	}
	if err := set(admin.ConfigChange{Name: filters.GroupsInclude, Op: admin.ConfigAppend, Value: "b"},
		admin.ConfigChange{Name: "absent", Op: admin.ConfigDelete}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"bootstrap.servers": "127.0.0.1:1", filters.GroupsExclude: "x", filters.GroupsInclude: "a,b"}
	if got := w.mirrors[0].Config; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	want[sourceClusterConfig] = "source"
	if got, err := m.MirrorConfig(t.Context(), "m"); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for name, tt := range map[string]struct {
		change admin.ConfigChange
		code   int16
	}{
		"another source":  {admin.ConfigChange{Name: sourceClusterConfig, Value: "other"}, kip1279.InvalidConfig},
		"no servers":      {admin.ConfigChange{Name: "bootstrap.servers", Op: admin.ConfigDelete}, kip1279.InvalidRequest},
		"a secret":        {admin.ConfigChange{Name: "ssl.key.password", Value: "literal"}, kip1279.InvalidConfig},
		"a broken filter": {admin.ConfigChange{Name: filters.TopicsInclude, Value: "("}, kip1279.InvalidConfig},
	} {
		var e *admin.Error
		if err := set(tt.change); !errors.As(err, &e) || e.Code != tt.code {
			t.Errorf("%s: %v, want code %d", name, err, tt.code)
		}
	}
	m.cfg.DialRemote = func(coordinator.Mirror) (RemoteAdmin, error) { // a race that is lost every time
		w.mirrors[0].Config = map[string]string{"bootstrap.servers": "127.0.0.1:1",
			filters.GroupsExclude: w.mirrors[0].Config[filters.GroupsExclude] + "x"}
		return nil, nil
	}
	var e *admin.Error
	if err := set(admin.ConfigChange{Name: filters.GroupsInclude, Value: "c"}); !errors.As(err, &e) || e.Code != kip1279.InvalidClusterMirrorStates {
		t.Errorf("others without end: %v", err)
	}
}

// TestPromoteKeepsWhatGrew: a topic that grows while promote asks its source is stopped with all of its partitions.
func TestPromoteKeepsWhatGrew(t *testing.T) {
	w, m := mirrored(t)
	id := protocol.PartitionID{Topic: ordersID}
	w.states[id] = coordinator.PartitionState{Mirror: "m", ID: id, State: statemachine.Mirroring, Previous: statemachine.Preparing}
	m.cfg.PingSource = func(context.Context, string) error { return m.Grow(t.Context(), w.topics[0], 3) }
	got, err := m.StopTopics(t.Context(), admin.StopRequest{Mirror: "m", Topics: []string{"orders"}, Drain: true, MaxLoss: -1, Force: true})
	if err != nil || len(got) != 1 || got[0].Err != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	if now := w.topics[0]; now.Partitions != 3 || now.Desired != statemachine.Stopped || !now.Drain {
		t.Errorf("%+v", now)
	}
}

// TestPromoteWaitsForNewPartitions: what producers have written to partitions that the source was given is part of all that it has.
func TestPromoteWaitsForNewPartitions(t *testing.T) {
	w, m := mirrored(t)
	w.topics[0].Desired, w.topics[0].Drain = statemachine.Stopped, true
	id := protocol.PartitionID{Topic: ordersID}
	p := &part{topic: w.topics[0], id: id, machine: statemachine.New()}
	now := time.Now()
	r := &round{now: now, statuses: map[protocol.PartitionID]replica.Status{id: {Role: replica.RoleMirror, HighWatermark: 7}}}
	for partitions, want := range []bool{1: true, 2: false} {
		m.rests[ordersID] = rest{ends: map[int32]int64{}, quiet: restFor, asked: now}
		for n := range int32(partitions) {
			m.rests[ordersID].ends[n] = 7
		}
		if got := m.drained(r, p); got != want {
			t.Errorf("drained with %d partitions at the source: %v", partitions, got)
		}
	}
	m.cfg.SourceEnds = func(context.Context, string, []coordinator.Topic) (map[protocol.UUID]map[int32]int64, error) {
		return map[protocol.UUID]map[int32]int64{ordersID: {0: 7, 1: 7}}, nil
	}
	if err := m.askEnds(t.Context(), w.topics); err == nil || !strings.Contains(err.Error(), "waits for the new ones") {
		t.Errorf("nothing is said of it: %v", err)
	}
	if err := m.Grow(t.Context(), w.topics[0], 2); err != nil || w.topics[0].Partitions != 2 || !w.topics[0].Drain {
		t.Errorf("%+v, %v", w.topics[0], err)
	}
}

// TestPromoteLooksAtTheRest: a source that was not asked, or did not answer, for a while has not rested meanwhile: writers that stood still
// with it go on.
func TestPromoteLooksAtTheRest(t *testing.T) {
	w, m := mirrored(t)
	w.topics[0].Desired, w.topics[0].Drain = statemachine.Stopped, true
	end := int64(7)
	m.cfg.SourceEnds = func(context.Context, string, []coordinator.Topic) (map[protocol.UUID]map[int32]int64, error) {
		return map[protocol.UUID]map[int32]int64{ordersID: {0: end}}, nil
	}
	id := protocol.PartitionID{Topic: ordersID}
	p := &part{topic: w.topics[0], id: id, machine: statemachine.New()}
	drained := func(passed time.Duration) bool { // after another question, so long after the one before
		t.Helper()
		at := m.rests[ordersID]
		at.asked = time.Now().Add(-passed)
		m.rests[ordersID] = at
		if err := m.askEnds(t.Context(), w.topics); err != nil {
			t.Fatal(err)
		}
		r := &round{now: time.Now(), statuses: map[protocol.PartitionID]replica.Status{id: {Role: replica.RoleMirror, HighWatermark: end}}}
		return m.drained(r, p)
	}
	if drained(0) || drained(time.Minute) || drained(time.Minute) {
		t.Error("a minute in which nobody asked counts as rest")
	}
	if end++; drained(tick) {
		t.Error("rests with something new")
	}
	for asked := tick; asked < restFor; asked += tick {
		if drained(tick) {
			t.Errorf("rests after %s", asked)
		}
	}
	if !drained(tick) {
		t.Errorf("does not rest after %s", restFor)
	}
}

// TestStoppedTopicsAreLeftAlone: what a round had read before a topic was stopped is not brought to it afterwards.
func TestStoppedTopicsAreLeftAlone(t *testing.T) {
	w, m := mirrored(t)
	was := w.topics[0]
	w.topics[0].Desired = statemachine.Stopped
	change := []metasync.ConfigChange{{Topic: was, Set: map[string]string{"retention.ms": "5"}, Remove: []string{sizeConfig}}}
	if err := errors.Join(m.Grow(t.Context(), was, 3), m.SyncConfigs(t.Context(), change)); err != nil || len(w.asked) > 0 || len(w.stored) > 0 {
		t.Errorf("asked %v, stored %v, err %v", w.asked, w.stored, err)
	}
	w.topics[0].Desired = statemachine.Mirroring
	w.fresh = func() { w.topics[0].Desired = statemachine.Stopped } // by others, while this process was stopped
	if err := m.SyncConfigs(t.Context(), change); err != nil || len(w.asked) > 0 {
		t.Errorf("asked %v, err %v", w.asked, err)
	}
	w.topics[0].Drain = true
	if err := m.SyncConfigs(t.Context(), change); err != nil || len(w.asked) != 1 {
		t.Errorf("a promote that drains: asked %v, err %v", w.asked, err)
	}
}

// TestNewPartitionsAreLoss: a failover that may lose nothing does not lose what is in partitions that are not mirrored yet.
func TestNewPartitionsAreLoss(t *testing.T) {
	w, m := mirrored(t)
	id := protocol.PartitionID{Topic: ordersID}
	w.states[id] = coordinator.PartitionState{Mirror: "m", ID: id, State: statemachine.Mirroring, Previous: statemachine.Preparing}
	w.statuses[id] = replica.Status{Followers: map[int32]replica.FollowerStatus{1: {FetchOffset: 7}, 2: {FetchOffset: 7}, 3: {FetchOffset: 7}}}
	rounds(t, m, 3)
	ends := map[int32]int64{0: 7}
	m.cfg.SourceEnds = func(context.Context, string, []coordinator.Topic) (map[protocol.UUID]map[int32]int64, error) {
		return map[protocol.UUID]map[int32]int64{ordersID: ends}, nil
	}
	stop := func() *admin.Error {
		t.Helper()
		got, err := m.StopTopics(t.Context(), admin.StopRequest{Mirror: "m", Topics: []string{"orders"}})
		if err != nil || len(got) != 1 {
			t.Fatalf("%+v, %v", got, err)
		}
		return got[0].Err
	}
	ends[1], ends[2] = 5, 4
	if err := stop(); err == nil || !strings.Contains(err.Message, "would lose 9 records") || w.topics[0].Desired != statemachine.Mirroring {
		t.Errorf("stopped with partitions that are not mirrored: %+v", err)
	}
	ends[1], ends[2] = 0, 0
	if err := stop(); err != nil || w.topics[0].Desired != statemachine.Stopped {
		t.Errorf("%+v", err)
	}
}

// TestStartOfADeletedMirror: a topic that nobody could give back is not taken.
func TestStartOfADeletedMirror(t *testing.T) {
	w, m := mirrored(t)
	topic := w.topics[0]
	w.topics, w.mirrors = nil, nil
	s := &startRun{m: m}
	if err := s.put(t.Context(), topic, nil); err == nil || len(w.stored) > 0 {
		t.Errorf("stored %v, %v", w.stored, err)
	}
}

// TestStoppedByOthers: a process that was stopped while others failed its partitions over takes up what they have stored; what it knew
// itself must not be stored over it.
func TestStoppedByOthers(t *testing.T) {
	w, topic := stoppingWorld(t)
	topic.Desired = statemachine.Mirroring
	m := stopManager(t, w, topic)
	rounds(t, m, 3)
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, Leader: 1, LeaderEpoch: 20}, nil)
	w.topics[0].Desired = statemachine.Stopped
	done := coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Stopped, Previous: statemachine.Stopping,
		LastMirrorEpoch: 4, LeaderEpoch: 18, Stop: statemachine.StopTailed, StopEnd: 100, StopEpoch: 4, Aligned: true, Since: time.Now()}
	w.states[orders0], w.stored = done, nil
	rounds(t, m, 5)
	if got := w.states[orders0]; got != done || slices.ContainsFunc(w.stored, func(s string) bool { return strings.HasPrefix(s, "put state") }) {
		t.Errorf("stored %v: %+v", w.stored, got)
	}
}
