package coordinator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol/kip1279"
	"kmirror/records"
)

// dead is a Liveness by process id.
type dead map[string]bool

func (dead) Watch([]Member)           {}
func (d dead) Alive(m Member) bool    { return !d[m.ProcessID] }
func (dead) Changed() <-chan struct{} { return nil }

func named(id string) Member { return Member{ProcessID: id, Admin: id + ":1", Self: id == "a"} }

// member is process a of a topic with n partitions, loaded.
func member(n int32, live Liveness) *cluster {
	s := &Store{cfg: Config{Topic: "t", Self: named("a"), Liveness: live, Peer: nobody{}, Standing: always{}}, log: slog.New(slog.DiscardHandler),
		table: silent(), partitions: n, closed: make(chan struct{})}
	c := newCluster(s, nil, context.Background())
	c.load()
	return c
}

func viewOf(generation int32, owners map[int32]string, ids ...string) *view {
	v := &view{generation: generation, owner: map[int32]int{}}
	for _, id := range ids {
		v.members = append(v.members, named(id))
	}
	for p, id := range owners {
		v.owner[p] = slices.Index(ids, id)
	}
	return v
}

// stranger is a process that is not registered.
type stranger struct{ always }

func (stranger) Registered() bool { return false }

func TestWhoIsNotRegisteredOwnsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		claim claim
		view  *view
		dead  dead
		want  string
	}{
		"a new topic": {}, "claimed by the dead": {claim: claim{owner: named("b")}, dead: dead{"b": true}},
		"claimed by one who answers": {claim: claim{owner: named("b")}, want: "b"},
		"claimed by itself before":   {claim: claim{owner: named("a")}},
		"the group says so still":    {claim: claim{owner: named("b")}, view: viewOf(2, map[int32]string{0: "a"}, "a", "b"), want: "b"},
	} {
		k := member(1, c.dead)
		k.stands, k.claims[0], k.view = stranger{}, c.claim, c.view
		if m, ok := k.target(0); ok != (c.want != "") || ok && m.ProcessID != c.want {
			t.Errorf("%s: %+v %v, want %q", name, m, ok, c.want)
		}
		if _, _, may := k.mayClaim(0); may {
			t.Errorf("%s: it may claim", name)
		}
	}
}

func TestWhoIsToOwn(t *testing.T) {
	for _, c := range []struct {
		name  string
		claim claim
		view  *view
		lost  bool
		dead  dead
		want  string // empty: not known
	}{
		{name: "alone in a new topic", want: "a"},
		{name: "before the group, claimed by one who answers", claim: claim{owner: named("b")}, want: "b"},
		{name: "before the group, claimed by the dead", claim: claim{owner: named("b")}, dead: dead{"b": true}, want: "a"},
		{name: "the group says so", claim: claim{owner: named("b")}, view: viewOf(2, map[int32]string{0: "a"}, "a", "b"), want: "a"},
		{name: "the group says another", claim: claim{owner: named("a")}, view: viewOf(2, map[int32]string{0: "b"}, "a", "b"), want: "b"},
		{name: "claimed under a newer agreement", claim: claim{owner: named("b"), generation: 3},
			view: viewOf(2, map[int32]string{0: "a"}, "a", "b"), want: "b"},
		{name: "claimed by one that joined since", claim: claim{owner: named("c")}, view: viewOf(2, map[int32]string{0: "a"}, "a", "b"), want: "c"},
		{name: "claimed by one that joined and died", claim: claim{owner: named("c"), generation: 3}, dead: dead{"c": true},
			view: viewOf(2, map[int32]string{0: "a"}, "a", "b"), want: "a"},
		{name: "the owner is dead, one for it", claim: claim{owner: named("b")}, dead: dead{"b": true},
			view: viewOf(2, map[int32]string{0: "b"}, "a", "b", "c"), want: "a"},
		{name: "the owner is dead, another took over", claim: claim{owner: named("c")}, dead: dead{"b": true},
			view: viewOf(2, map[int32]string{0: "b"}, "a", "b", "c"), want: "c"},
		{name: "let go by the group", claim: claim{owner: named("a")}, lost: true, want: ""},
		{name: "let go by the group, claimed by another", claim: claim{owner: named("b")}, lost: true, want: "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := member(4, c.dead)
			k.claims[0] = c.claim
			k.view, k.lost = c.view, c.lost
			if m, ok := k.target(0); m.ProcessID != c.want && ok || ok != (c.want != "") {
				t.Errorf("%+v %v, want %q", m, ok, c.want)
			}
		})
	}
	k := member(4, dead{})
	k.loaded = false
	if m, ok := k.target(0); ok {
		t.Errorf("%+v before the topic is loaded", m)
	}
}

// A process that was stopped for a while may not claim on the strength of what it was told before.
func TestClaimsNeedFreshWord(t *testing.T) {
	k := member(2, dead{})
	k.agreed(viewOf(1, map[int32]string{0: "a", 1: "b"}, "a", "b"))
	if _, _, ok := k.mayClaim(0); !ok {
		t.Error("it belongs to the group")
	}
	if _, _, ok := k.mayClaim(1); ok {
		t.Error("it is another's")
	}
	k.beat = time.Now().Add(-time.Minute)
	if _, _, ok := k.mayClaim(0); ok {
		t.Error("the group has said nothing for a minute")
	}
	k.belongs()
	if _, _, ok := k.mayClaim(0); !ok {
		t.Error("it belongs again")
	}
	k.shards[0].hold()
	k.agreed(nil)
	if held, _ := k.shards[0].holds(); held || k.owned() != 0 {
		t.Error("let go by the group, it still owns")
	}
	if _, _, ok := k.mayClaim(0); ok {
		t.Error("let go by the group, it may claim")
	}
	for range deafAfter {
		k.beat = time.Now().Add(-time.Minute)
		k.missed()
	}
	if _, _, ok := k.mayClaim(0); !ok {
		t.Error("without a group that answers nobody else claims")
	}
}

func TestAnothersClaimEndsOwnership(t *testing.T) {
	k := member(2, dead{})
	k.shards[1].hold()
	r, err := claimRecord(1, named("b"), 3, producer{id: 7, epoch: 2})
	must(t, err)
	k.took(&kgo.Record{Key: r.keyBytes, Value: r.value, Partition: 1, Offset: 5})
	if held, _ := k.shards[1].holds(); held {
		t.Error("still the owner")
	}
	if got := k.claims[1]; got.owner.ProcessID != "b" || got.owner.Self || got.generation != 3 || got.producer != 7 || got.epoch != 2 ||
		got.offset != 5 {
		t.Errorf("%+v", got)
	}
	if got := k.others(); len(got) != 1 || got[0].Admin != "b:1" {
		t.Errorf("to be watched: %+v", got)
	}
}

// One who claims although it does not seem to answer is not taken for dead again at once.
func TestTheDeadWhoClaimAreSpared(t *testing.T) {
	k := member(1, dead{"b": true})
	for _, id := range []string{"a", "b"} {
		r, err := claimRecord(0, named(id), -1, producer{})
		must(t, err)
		k.took(&kgo.Record{Key: r.keyBytes, Value: r.value})
	}
	if m, ok := k.target(0); !ok || m.ProcessID != "b" {
		t.Errorf("%+v %v", m, ok)
	}
}

func TestSpreadKeepsWhatItCan(t *testing.T) {
	for n := 1; n <= 5; n++ {
		k := member(50, dead{})
		for p := range k.claims {
			k.claims[p].owner = named([]string{"a", "b", "x"}[p%3]) // x is gone
		}
		var members []memberJSON
		for i := range n {
			members = append(members, memberJSON{ProcessID: string(rune('a' + n - 1 - i)), Partitions: []int32{1, 2, 3}})
		}
		k.spread(members)
		seen := map[int32]string{}
		kept := 0
		for _, m := range members {
			if len(m.Partitions) < 50/n || len(m.Partitions) > 50/n+1 {
				t.Errorf("%d members: %s has %d", n, m.ProcessID, len(m.Partitions))
			}
			for _, p := range m.Partitions {
				if other, ok := seen[p]; ok {
					t.Errorf("partition %d is %s's and %s's", p, other, m.ProcessID)
				}
				seen[p] = m.ProcessID
				if k.claims[p].owner.ProcessID == m.ProcessID {
					kept++
				}
			}
		}
		if want := []int{0, 17, 34, 33, 26, 20}[n]; len(seen) != 50 || kept < want-1 {
			t.Errorf("%d members: %d partitions, %d of them with their owner, want %d", n, len(seen), kept, want)
		}
	}
	member(3, dead{}).spread(nil)
}

// What the group's leader hands out is what every member reads.
func TestAssignmentReachesAll(t *testing.T) {
	k := member(7, dead{})
	var joined []kmsg.JoinGroupResponseMember
	for _, id := range []string{"b", "a", "b"} { // b joined twice
		data, err := json.Marshal(memberJSON{ProcessID: id, Admin: id + ":1", NodeIDs: []int32{9}})
		must(t, err)
		meta := kmsg.NewConsumerMemberMetadata()
		meta.UserData = data
		m := kmsg.NewJoinGroupResponseMember()
		m.MemberID, m.ProtocolMetadata = fmt.Sprintf("%s-%d", id, len(joined)), meta.AppendTo(nil)
		joined = append(joined, m)
	}
	odd := kmsg.NewJoinGroupResponseMember()
	odd.MemberID, odd.ProtocolMetadata = "odd", []byte{1}
	given := k.assign(append(joined, odd))
	if len(given) != 2 || given[0].MemberID != "a-1" || given[1].MemberID != "b-2" {
		t.Fatalf("%+v", given)
	}
	v, err := k.parse(given[0].MemberAssignment)
	must(t, err)
	if len(v.members) != 2 || !v.members[0].Self || v.members[1].Admin != "b:1" || len(v.owner) != 7 {
		t.Errorf("%+v", v)
	}
	stranger := member(7, dead{})
	stranger.self = named("c")
	if _, err := stranger.parse(given[0].MemberAssignment); err == nil {
		t.Error("an assignment that leaves the process out")
	}
}

func TestBatchesAreWhatBrokersRead(t *testing.T) {
	list := []record{{keyBytes: []byte("k"), value: []byte("v")}, {keyBytes: []byte("gone")},
		{keyBytes: []byte{}, value: bytes.Repeat([]byte{7}, 300)}}
	raw := appendBatch([]byte("before"), producer{id: 11, epoch: 3, seq: 42}, since, list)
	b, rest, err := records.Split(raw[6:])
	if err != nil || len(rest) > 0 {
		t.Fatal(err, rest)
	}
	if b.CheckCRC() != nil || b.ProducerID() != 11 || b.ProducerEpoch() != 3 || b.BaseSequence() != 42 || b.NumRecords() != 3 ||
		b.LastOffset() != 2 || b.IsTransactional() || b.IsControl() {
		t.Errorf("%x", raw)
	}
	i := 0
	for r, err := range records.Records(b, 1<<20) {
		must(t, err)
		if !bytes.Equal(r.Key, list[i].keyBytes) || !bytes.Equal(r.Value, list[i].value) || (r.Value == nil) != (list[i].value == nil) {
			t.Errorf("record %d: %+v", i, r)
		}
		i++
	}
	if i != 3 {
		t.Errorf("%d records", i)
	}
}

func TestSplit(t *testing.T) {
	big := record{value: make([]byte, batchLimit/2)}
	huge := record{value: make([]byte, 2*batchLimit)}
	var sizes []int
	for _, part := range split([]record{big, big, huge, big, {}, {}}) {
		sizes = append(sizes, len(part))
	}
	if !slices.Equal(sizes, []int{1, 1, 1, 3}) || split(nil) != nil {
		t.Errorf("%v", sizes)
	}
}

func TestRecordsOfOthersAreChecked(t *testing.T) {
	k := member(50, dead{})
	m, err := mirrorRecord(Mirror{Name: "dc1"}, 50)
	must(t, err)
	got, err := k.recordChanges([]Record{{Key: m.keyBytes, Value: m.value}, {Key: m.keyBytes}})
	if err != nil || len(got) != 2 || got[0].record.partition != m.partition || got[1].record.value != nil {
		t.Errorf("%+v, %v", got, err)
	}
	owner, err := claimRecord(0, named("b"), 1, producer{})
	must(t, err)
	for _, r := range []Record{{}, {Key: m.keyBytes, Value: []byte{9}}, {Key: owner.keyBytes, Value: owner.value}, {Key: owner.keyBytes}} {
		if _, err := k.recordChanges([]Record{r}); err == nil {
			t.Errorf("%x was accepted", r.Key)
		}
	}
}

// FuzzClaim: whatever an owner record holds, it is read or left alone.
func FuzzClaim(f *testing.F) {
	r, _ := claimRecord(0, named("b"), 3, producer{id: 7, epoch: 2})
	f.Add(r.keyBytes, r.value)
	f.Add(r.keyBytes, []byte(nil))
	f.Add([]byte{0, 66}, []byte{0, 0})
	k := member(1, dead{})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		k.took(&kgo.Record{Key: key, Value: value})
		k.table.apply(key, value, 1)
		if len(k.table.entries) > 0 && key[1] == byte(kip1279.RecordOwner) {
			t.Error("the table took an owner record")
		}
		clear(k.table.entries)
	})
}

// FuzzAssignment: whatever the group's leader hands out is read or refused.
func FuzzAssignment(f *testing.F) {
	var a kmsg.ConsumerMemberAssignment
	a.UserData = []byte(`[{"process_id":"a","partitions":[0,1,-5]},{"process_id":"b"}]`)
	f.Add(a.AppendTo(nil))
	f.Add([]byte{0, 0})
	k := member(2, dead{})
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := k.parse(b)
		if err != nil {
			return
		}
		k.agreed(v)
		for p := range k.n {
			if m, ok := k.target(p); ok && m.ProcessID == "" {
				t.Error("a partition of nobody")
			}
		}
	})
}
