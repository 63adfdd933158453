package coordinator

import (
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

var (
	idA   = protocol.UUID{15: 1}
	idB   = protocol.UUID{15: 2}
	since = time.Date(2026, 11, 29, 21, 45, 0, 123456789, time.UTC)
)

func silent() *table { return newTable(slog.New(slog.DiscardHandler)) }

// log is a topic in memory: records get rising offsets per partition.
type log map[int32]int64

func (l log) write(t *testing.T, tab *table, records []record, err error) []int64 {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var offsets []int64
	for _, r := range records {
		tab.apply(r.keyBytes, r.value, l[r.partition])
		offsets = append(offsets, l[r.partition])
		l[r.partition]++
	}
	return offsets
}

func one(r record, err error) ([]record, error) { return []record{r}, err }

func TestWhatIsWrittenIsRead(t *testing.T) {
	tab, l := silent(), log{}
	m := Mirror{Name: "dc1", Config: map[string]string{"bootstrap.servers": "a:1", "sasl.jaas.config": "${file:x}"},
		SourceClusterID: "cid", Created: since}
	topic := Topic{Mirror: "dc1", Name: "orders", TopicID: idA, SourceTopicID: idB, Desired: statemachine.Mirroring,
		Overwrite: true, Partitions: 6, Replicas: 3, TrueConfigs: map[string]string{"min.insync.replicas": "2"}, Started: since,
		MinISR: 2, Align: []int32{-1, 3, 7, -1, 0, 2}, Drain: true, Regrow: true}
	state := PartitionState{Mirror: "dc1", ID: protocol.PartitionID{Topic: idA, Partition: 5}, State: statemachine.Failed,
		Previous: statemachine.Mirroring, Since: since, Retry: 3, Error: "gone", Hint: "look", LastMirrorEpoch: 7,
		Stop: statemachine.StopTailed, StopEnd: 1 << 40}
	r, err := one(mirrorRecord(m, 50))
	l.write(t, tab, r, err)
	r, err = one(topicRecord(topic, 50))
	l.write(t, tab, r, err)
	r, err = stateRecords(state, 50)
	l.write(t, tab, r, err)
	m.base = 1 // it lies at offset 0
	if got, ok := tab.mirror("dc1"); !ok || !reflect.DeepEqual(got, m) {
		t.Errorf("mirror\n%+v, want\n%+v", got, m)
	}
	topic.base = 2 // it lies at offset 1
	if got, ok := tab.topicByName("orders"); !ok || !reflect.DeepEqual(got, topic) {
		t.Errorf("topic\n%+v, want\n%+v", got, topic)
	}
	if got, ok := tab.state(state.ID); !ok || got != state {
		t.Errorf("state\n%+v, want\n%+v", got, state)
	}
	if l[kip1279.MirrorPartitionOf("dc1", 50)] != 2 {
		t.Errorf("definition and topic must lie with the mirror's metadata coordinator: %v", l)
	}
}

func TestOffsetsDecideNotTheOrderOfArrival(t *testing.T) {
	tab := silent()
	id := protocol.PartitionID{Topic: idA}
	put := func(s statemachine.State, offset int64) {
		r, err := stateRecords(PartitionState{Mirror: "m", ID: id, State: s, LastMirrorEpoch: -1}, 50)
		if err != nil {
			t.Fatal(err)
		}
		tab.apply(r[0].keyBytes, r[0].value, offset)
	}
	put(statemachine.Mirroring, 11) // acknowledged
	put(statemachine.Preparing, 10) // read back later
	put(statemachine.Mirroring, 11) // itself
	if s, _ := tab.state(id); s.State != statemachine.Mirroring {
		t.Errorf("an older record won: %s", s.State)
	}
	tomb := newRecord(kip1279.StateKey{Type: kip1279.RecordPartitionState, Mirror: "m", TopicID: idA}, nil, 50)
	tab.apply(tomb.keyBytes, nil, 12)
	put(statemachine.Mirroring, 11)
	if s, ok := tab.state(id); ok {
		t.Errorf("a deleted state came back: %+v", s)
	}
	put(statemachine.Stopped, 13)
	if s, _ := tab.state(id); s.State != statemachine.Stopped {
		t.Errorf("state after deletion is %s", s.State)
	}
}

func TestEpochAndStateAreSeparate(t *testing.T) {
	tab, l := silent(), log{}
	s := PartitionState{Mirror: "m", ID: protocol.PartitionID{Topic: idA}, State: statemachine.Stopped, LastMirrorEpoch: 9}
	r, err := stateRecords(s, 50)
	l.write(t, tab, r, err)
	s.LastMirrorEpoch, s.State = -1, statemachine.Preparing
	r, err = stateRecords(s, 50)
	l.write(t, tab, r, err)
	if got, _ := tab.state(s.ID); got.LastMirrorEpoch != 9 || got.State != statemachine.Preparing {
		t.Errorf("-1 must leave the epoch as it is: %+v", got)
	}
	s.LastMirrorEpoch = ForgetEpoch
	r, err = stateRecords(s, 50)
	l.write(t, tab, r, err)
	if got, _ := tab.state(s.ID); got.LastMirrorEpoch != -1 || got.State != statemachine.Preparing {
		t.Errorf("the epoch was to be forgotten: %+v", got)
	}
	s.LastMirrorEpoch = 9
	r, err = stateRecords(s, 50)
	l.write(t, tab, r, err)
	k := kip1279.StateKey{Type: kip1279.RecordPartitionState, Mirror: "m", TopicID: idA}
	l.write(t, tab, []record{newRecord(k, nil, 50)}, nil)
	if got, ok := tab.state(s.ID); !ok || got.LastMirrorEpoch != 9 || got.State != statemachine.Unknown {
		t.Errorf("epoch without a state: %+v, %v", got, ok)
	}
	k.Type = kip1279.RecordLastMirrorEpochs
	l.write(t, tab, []record{newRecord(k, nil, 50)}, nil)
	if got, ok := tab.state(s.ID); ok {
		t.Errorf("nothing is stored any more, yet %+v", got)
	}
}

func TestUnchangedRecordsAreTold(t *testing.T) {
	tab, l := silent(), log{}
	m, err := mirrorRecord(Mirror{Name: "m"}, 50)
	if err != nil {
		t.Fatal(err)
	}
	other, _ := mirrorRecord(Mirror{Name: "m", SourceClusterID: "x"}, 50)
	gone := newRecord(kip1279.StateKey{Type: kip1279.RecordMirror, Mirror: "m"}, nil, 50)
	check := func(what string, r record, offset int64, same bool) {
		t.Helper()
		if o, ok := tab.same(r); o != offset || ok != same {
			t.Errorf("%s: %d, %v", what, o, ok)
		}
	}
	check("a tombstone for what never was", gone, -1, true)
	check("a new record", m, -1, false)
	l.write(t, tab, []record{m}, nil)
	check("it again", m, 0, true)
	check("another", other, 0, false)
	check("a tombstone", gone, 0, false)
	l.write(t, tab, []record{gone}, nil)
	check("a second tombstone", gone, 1, true)
}

func TestRecordsThatAreNotUnderstoodAreLeftAlone(t *testing.T) {
	var lines strings.Builder
	tab := newTable(slog.New(slog.NewTextHandler(&lines, nil)))
	good, _ := mirrorRecord(Mirror{Name: "m"}, 50)
	tab.apply(good.keyBytes, good.value, 1)
	tab.apply([]byte{0, 3, 0, 1, 'm'}, []byte{0, 0, 0}, 2) // type 3
	tab.apply(good.keyBytes, []byte{0, 9, 1, 2, 3}, 3)     // version 9
	tab.apply([]byte{0, 64}, nil, 4)                       // cut
	tab.apply(good.keyBytes, []byte{0, 0, 3, '[', ']', 0}, 5)
	topic, _ := topicRecord(Topic{Mirror: "m", TopicID: idA, Desired: statemachine.Mirroring}, 50)
	tab.apply(topic.keyBytes, topic.value, 6) // no name
	if _, ok := tab.mirror("m"); !ok || len(tab.topicList()) != 0 {
		t.Error("what was understood before must stay, what was not must not show")
	}
	if n := strings.Count(lines.String(), "level=WARN"); n != 3 {
		t.Errorf("%d warnings, want 3:\n%s", n, lines.String())
	}
}

func TestOldNumberOfUnknown(t *testing.T) {
	tab := silent()
	k := kip1279.StateKey{Type: kip1279.RecordPartitionState, Mirror: "m", TopicID: idA}
	r := newRecord(k, &kip1279.PartitionStateValue{State: int8(statemachine.Mirroring), PreviousState: 16}, 50)
	tab.apply(r.keyBytes, r.value, 0)
	if s, _ := tab.state(protocol.PartitionID{Topic: idA}); s.Previous != statemachine.Unknown {
		t.Errorf("previous state is %s", s.Previous)
	}
}

func TestNewestTopicOfAName(t *testing.T) {
	tab, l := silent(), log{}
	for i, id := range []protocol.UUID{idB, idA} {
		r, err := one(topicRecord(Topic{Mirror: "m", Name: "t", TopicID: id, Desired: statemachine.Mirroring,
			Started: since.Add(time.Duration(-i) * time.Hour)}, 50))
		l.write(t, tab, r, err)
	}
	if got, ok := tab.topicByName("t"); !ok || got.TopicID != idB {
		t.Errorf("got %s", got.TopicID)
	}
	if _, ok := tab.topicByName("u"); ok {
		t.Error("found what is not there")
	}
}

func TestChangedIsClosedOnce(t *testing.T) {
	tab, l := silent(), log{}
	before := tab.wait()
	r, err := one(mirrorRecord(Mirror{Name: "m"}, 50))
	l.write(t, tab, r, err)
	select {
	case <-before:
	default:
		t.Error("a change was not told")
	}
	select {
	case <-tab.wait():
		t.Error("the next change was told before it came")
	default:
	}
}

func TestValidateName(t *testing.T) {
	for name, want := range map[string]bool{
		"dc1": true, "a.b_c-D9": true, "...": true, strings.Repeat("x", 249): true,
		"": false, ".": false, "..": false, "a b": false, "ä": false, "a/b": false, "a:b": false, strings.Repeat("x", 250): false,
	} {
		if err := ValidateName(name); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestAssignSpreadsReplicas(t *testing.T) {
	counts, leads := map[int32]int{}, map[int32]int{}
	for p, replicas := range assign([]int32{1, 2, 5, 7}, 48, 3) {
		leads[replicas[0]]++
		for _, b := range replicas {
			counts[b]++
		}
		slices.Sort(replicas)
		if len(slices.Compact(replicas)) != 3 {
			t.Fatalf("partition %d: %v", p, replicas)
		}
	}
	for _, b := range []int32{1, 2, 5, 7} {
		if counts[b] != 36 || leads[b] != 12 {
			t.Errorf("broker %d holds %d and leads %d", b, counts[b], leads[b])
		}
	}
}

func TestNewRefusesNonsense(t *testing.T) {
	for name, c := range map[string]Config{
		"partitions": {Partitions: -1}, "too many partitions": {Partitions: 1 << 20}, "factor": {ReplicationFactor: -2}, "no id": {},
	} {
		if name != "no id" {
			c.Self = named("a")
		}
		if _, err := New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestTopicNamesFollowRemovals: when the newest topic of a name is removed, the one before it counts again.
func TestTopicNamesFollowRemovals(t *testing.T) {
	tab, l := silent(), log{}
	older := Topic{Mirror: "m", Name: "t", TopicID: idA, Desired: statemachine.Mirroring, Started: since}
	newer := older
	newer.TopicID, newer.Started = idB, since.Add(time.Hour)
	for _, topic := range []Topic{newer, older} {
		r, err := one(topicRecord(topic, 50))
		l.write(t, tab, r, err)
	}
	for _, want := range []protocol.UUID{idB, idA} {
		got, ok := tab.topicByName("t")
		if !ok || got.TopicID != want {
			t.Fatalf("got %s, want %s", got.TopicID, want)
		}
		l.write(t, tab, []record{newRecord(topicKey(got), nil, 50)}, nil)
	}
	if _, ok := tab.topicByName("t"); ok {
		t.Error("found although all were removed")
	}
}

// FuzzApply: whatever is in __mirror_state, records that are not understood are left alone.
func FuzzApply(f *testing.F) {
	mirror, _ := mirrorRecord(Mirror{Name: "m", Config: map[string]string{"bootstrap.servers": "a:1"}}, 50)
	topic, _ := topicRecord(Topic{Mirror: "m", Name: "t", TopicID: idA, Desired: statemachine.Mirroring, Started: since}, 50)
	states, _ := stateRecords(PartitionState{Mirror: "m", ID: protocol.PartitionID{Topic: idA}, State: statemachine.Mirroring}, 50)
	acl, _ := aclRecord("m", readOrders, 50)
	for _, r := range append(states, mirror, topic, acl) {
		f.Add(r.keyBytes, r.value)
		f.Add(r.keyBytes, []byte(nil))
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		tab := silent()
		tab.apply(key, value, 1)
		tab.apply(key, nil, 2)
		if len(tab.topicList()) > 0 || len(tab.mirrorList()) > 0 || len(tab.newest) > 0 || len(tab.acls) > 0 {
			t.Error("a removed record is still there")
		}
	})
}
