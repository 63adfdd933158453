package kraft

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"testing"

	"kmirror/protocol"
)

// golden applies a captured file's batches up to and including offset last. offset maps a batch's last offset to the
// one Apply is given. The batches are cut by hand: package records stands above this one.
func golden(t testing.TB, file string, last int64, offset func(int64) int64) *Image {
	t.Helper()
	b, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	img := Empty()
	for len(b) > 0 {
		batch, err := cutBatch(b)
		if err != nil {
			t.Fatal(err)
		}
		b = b[batch.size:]
		if batch.control || batch.last > last {
			continue
		}
		if img, err = img.Apply(offset(batch.last), batch.epoch, batch.values); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

func same(offset int64) int64 { return offset }

type testBatch struct {
	last    int64
	size    int
	epoch   int32
	control bool
	values  [][]byte
}

func cutBatch(b []byte) (out testBatch, err error) {
	d := newDecoder(b)
	base, size := d.Int64(), int(d.Int32())
	out.size = 12 + size
	out.epoch = d.Int32()
	d.Span(5)
	out.control = d.Int16()&0x20 != 0
	out.last = base + int64(d.Int32())
	d.Span(30)
	for n := d.Int32(); n > 0 && d.Ok(); n-- {
		rec := newDecoder(d.Span(int(d.Varint())))
		rec.Int8()
		rec.Varlong()
		rec.Varint()
		rec.VarintBytes()
		out.values = append(out.values, rec.VarintBytes())
	}
	if !d.Ok() || out.size > len(b) {
		return out, io.ErrUnexpectedEOF
	}
	return out, nil
}

func TestImageOfARealLog(t *testing.T) {
	img := golden(t, "metadata.log", 576, same)
	if img.Offset != 576 || img.Epoch != 2 || img.InTransaction() {
		t.Errorf("offset %d, epoch %d, in a transaction: %v", img.Offset, img.Epoch, img.InTransaction())
	}
	var names []string
	for name, id := range img.Names {
		names = append(names, name)
		if img.Topics[id].Name != name || img.TopicByName(name) != img.Topics[id] {
			t.Errorf("topic %q is %+v", name, img.Topics[id])
		}
	}
	slices.Sort(names)
	if want := []string{"__transaction_state", "codecs", "compact", "txn"}; !slices.Equal(names, want) {
		t.Errorf("topics %q, want %q", names, want)
	}
	// Leader epoch and partition epoch 2: one change as the node stopped, one as it came back.
	dir, _ := protocol.ParseUUID("hQ0yTcTsR0C4A1u1_X0R0w")
	want := &Partition{Replicas: []int32{1}, ISR: []int32{1}, Adding: []int32{}, Removing: []int32{}, ELR: []int32{},
		LastKnownELR: []int32{}, Leader: 1, LeaderEpoch: 2, PartitionEpoch: 2, Directories: []protocol.UUID{dir}}
	codecs := img.TopicByName("codecs")
	if len(codecs.Partitions) != 3 {
		t.Fatalf("codecs has %d partitions", len(codecs.Partitions))
	}
	for n, p := range codecs.Partitions {
		if !reflect.DeepEqual(p, want) || img.Partition(protocol.PartitionID{Topic: codecs.ID, Partition: int32(n)}) != p {
			t.Errorf("codecs-%d is %+v, want %+v", n, p, want)
		}
	}
	b := img.Brokers[1]
	if len(img.Brokers) != 1 || b.Epoch != 499 || b.Fenced || b.InControlledShutdown ||
		!slices.Equal(b.Endpoints, []Endpoint{{"CLIENT", "127.0.0.1", 47091, 0}}) ||
		!slices.Equal(b.LogDirs, []protocol.UUID{dir}) || len(b.CordonedLogDirs) != 0 {
		t.Errorf("broker is %+v", b)
	}
	if img.Features["metadata.version"] != 33 || len(img.Features) != 6 {
		t.Errorf("features %v", img.Features)
	}
	wantConfigs := map[ConfigResource]map[string]string{
		{ConfigBroker, ""}:   {"min.insync.replicas": "1"},
		{ConfigTopic, "txn"}: {"min.insync.replicas": "1"},
		{ConfigTopic, "compact"}: {"cleanup.policy": "compact", "segment.ms": "2000",
			"min.cleanable.dirty.ratio": "0.001"},
		{ConfigTopic, "__transaction_state"}: {"compression.type": "uncompressed", "cleanup.policy": "compact",
			"min.insync.replicas": "1", "segment.bytes": "104857600", "unclean.leader.election.enable": "false"},
	}
	if !reflect.DeepEqual(img.Configs, wantConfigs) {
		t.Errorf("configs %v\nwant %v", img.Configs, wantConfigs)
	}
	if v, ok := img.TopicConfig("compact", "segment.ms"); !ok || v != "2000" {
		t.Errorf("segment.ms is %q, %v", v, ok)
	}
	if _, ok := img.TopicConfig("txn", "retention.ms"); ok {
		t.Error("a removed config is still there")
	}
}

func TestImageAfterTheNodeHasLeft(t *testing.T) {
	img := golden(t, "metadata.log", 1<<62, same)
	p := img.TopicByName("txn").Partitions[1]
	if p.Leader != -1 || p.LeaderEpoch != 3 || p.PartitionEpoch != 3 || len(p.ISR) != 0 ||
		!slices.Equal(p.ELR, []int32{1}) || !slices.Equal(p.LastKnownELR, []int32{1}) {
		t.Errorf("txn-1 is %+v", p)
	}
	if b := img.Brokers[1]; !b.Fenced || !b.InControlledShutdown {
		t.Errorf("broker is %+v", b)
	}
}

// The snapshot says what the log before it says, but for one fault of the real node: configs that were set and dropped
// with their topic between two of its snapshots stay in it.
func TestSnapshotOfARealNodeEqualsItsLog(t *testing.T) {
	log := golden(t, "metadata.log", 576, same)
	snap := golden(t, "00000000000000000577-0000000002.checkpoint", 1<<62, func(int64) int64 { return 576 })
	gone := ConfigResource{ConfigTopic, "gone"}
	if len(snap.Configs[gone]) != 2 {
		t.Errorf("configs of the deleted topic: %v", snap.Configs[gone])
	}
	snap, err := snap.Apply(576, 2, [][]byte{
		AppendRecord(nil, &ConfigRecord{gone, "max.message.bytes", nil}),
		AppendRecord(nil, &ConfigRecord{gone, "min.insync.replicas", nil})})
	if err != nil {
		t.Fatal(err)
	}
	// Empty lists are written as null.
	for _, i := range []*Image{log, snap} {
		for _, topic := range i.Topics {
			for _, p := range topic.Partitions {
				if len(p.ELR)+len(p.LastKnownELR) == 0 {
					p.ELR, p.LastKnownELR = nil, nil
				}
			}
			topic.early = nil
		}
	}
	for n, v := range map[string][2]any{
		"topics": {log.Topics, snap.Topics}, "names": {log.Names, snap.Names}, "brokers": {log.Brokers, snap.Brokers},
		"configs": {log.Configs, snap.Configs}, "features": {log.Features, snap.Features}, "offset": {log.Offset, snap.Offset},
	} {
		if !reflect.DeepEqual(v[0], v[1]) {
			t.Errorf("%s: log %+v\nsnapshot %+v", n, v[0], v[1])
		}
	}
}

// apply applies records in one batch at the next offset.
func apply(t testing.TB, img *Image, recs ...Record) *Image {
	t.Helper()
	next, err := tryApply(img, recs...)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func tryApply(img *Image, recs ...Record) (*Image, error) {
	var values [][]byte
	for _, r := range recs {
		values = append(values, AppendRecord(nil, r))
	}
	return img.Apply(img.Offset+int64(len(recs)), 1, values)
}

func newPartition(id protocol.UUID, n int32, p Partition) *PartitionRecord {
	return &PartitionRecord{Version: 2, PartitionID: n, TopicID: id, Partition: p}
}

func change(id protocol.UUID, n int32) *PartitionChangeRecord {
	return &PartitionChangeRecord{Version: 2, PartitionID: n, TopicID: id, Leader: NoLeaderChange, LeaderRecoveryState: -1}
}

func TestPartitionChangeRules(t *testing.T) {
	id, dirs := uuid(5), []protocol.UUID{uuid(1), uuid(2)}
	start := Partition{Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Adding: []int32{}, Removing: []int32{}, Leader: 1,
		LeaderEpoch: 7, PartitionEpoch: 9, ELR: []int32{}, LastKnownELR: []int32{}, Directories: dirs}
	for name, c := range map[string]struct {
		rec  func(*PartitionChangeRecord)
		want func(*Partition)
	}{
		"nothing":           {func(*PartitionChangeRecord) {}, func(*Partition) {}},
		"same leader again": {func(r *PartitionChangeRecord) { r.Leader = 1 }, func(p *Partition) { p.LeaderEpoch = 8 }},
		"leaderless": {func(r *PartitionChangeRecord) { r.Leader = -1; r.ISR = []int32{}; r.ELR = []int32{2} },
			func(p *Partition) { p.Leader, p.LeaderEpoch, p.ISR, p.ELR = -1, 8, []int32{}, []int32{2} }},
		"shrink": {func(r *PartitionChangeRecord) { r.ISR = []int32{1} }, func(p *Partition) { p.ISR = []int32{1} }},
		"reassign, directories unknown": {
			func(r *PartitionChangeRecord) { r.Replicas, r.Adding = []int32{3, 1, 2}, []int32{3} },
			func(p *Partition) {
				p.Replicas, p.Adding, p.Directories = []int32{3, 1, 2}, []int32{3}, make([]protocol.UUID, 3)
			}},
		"reassign with directories": {
			func(r *PartitionChangeRecord) {
				r.Replicas, r.Removing, r.Directories = []int32{2}, []int32{1}, []protocol.UUID{uuid(9)}
			},
			func(p *Partition) {
				p.Replicas, p.Removing, p.Directories = []int32{2}, []int32{1}, []protocol.UUID{uuid(9)}
			}},
		"recovering":     {func(r *PartitionChangeRecord) { r.LeaderRecoveryState = 1 }, func(p *Partition) { p.LeaderRecoveryState = 1 }},
		"last known ELR": {func(r *PartitionChangeRecord) { r.LastKnownELR = []int32{2} }, func(p *Partition) { p.LastKnownELR = []int32{2} }},
	} {
		t.Run(name, func(t *testing.T) {
			before := apply(t, Empty(), &TopicRecord{"orders", id}, newPartition(id, 0, start))
			old := *before.TopicByName("orders").Partitions[0]
			r, want := change(id, 0), start
			c.rec(r)
			want.PartitionEpoch = 10
			c.want(&want)
			after := apply(t, before, r)
			if got := *after.TopicByName("orders").Partitions[0]; !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if !reflect.DeepEqual(*before.TopicByName("orders").Partitions[0], old) {
				t.Error("the image before has changed")
			}
		})
	}
}

func TestClearElrBumpsThePartitionEpoch(t *testing.T) {
	var img *Image
	reset := func() {
		img = Empty()
		for n, name := range []string{"a", "b"} {
			id := uuid(byte(n + 1))
			img = apply(t, img, &TopicRecord{name, id}, newPartition(id, 0, Partition{Replicas: []int32{1}, ELR: []int32{1}}),
				newPartition(id, 1, Partition{Replicas: []int32{1}, LastKnownELR: []int32{1}}),
				newPartition(id, 2, Partition{Replicas: []int32{1}}))
		}
	}
	for name, want := range map[string][]int32{"a": {1, 1, 0, 0, 0, 0}, "": {1, 1, 0, 1, 1, 0}} {
		reset()
		after := apply(t, img, &ClearElrRecord{name})
		var got []int32
		for _, topic := range []string{"a", "b"} {
			for _, p := range after.TopicByName(topic).Partitions {
				got = append(got, p.PartitionEpoch)
				if (topic == "a" || name == "") && len(p.ELR)+len(p.LastKnownELR) > 0 {
					t.Errorf("clear %q: %s still has ELR %v, last known %v", name, topic, p.ELR, p.LastKnownELR)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("clear %q: partition epochs %v, want %v", name, got, want)
		}
		if len(img.TopicByName("a").Partitions[0].ELR) != 1 {
			t.Error("the image before has changed")
		}
	}
}

func TestTransactionsAreHeldBackAndDropped(t *testing.T) {
	begin, end, abort := &BeginTransactionRecord{}, &EndTransactionRecord{}, &AbortTransactionRecord{}
	topic := func(n byte) *TopicRecord { return &TopicRecord{fmt.Sprint("t", n), uuid(n)} }
	open := apply(t, Empty(), topic(1), begin, topic(2))
	if len(open.Topics) != 1 || !open.InTransaction() || open.Offset != 2 {
		t.Errorf("open: %d topics, in a transaction: %v, offset %d", len(open.Topics), open.InTransaction(), open.Offset)
	}
	more := apply(t, open, topic(3))
	other := apply(t, open, topic(4))
	if done := apply(t, more, end); len(done.Topics) != 3 || done.Topics[uuid(3)] == nil || done.InTransaction() {
		t.Errorf("ended: topics %v", done.Names)
	}
	// The same image followed by something else must not see what the other branch held back.
	if done := apply(t, other, end, topic(5)); len(done.Topics) != 4 || done.Topics[uuid(4)] == nil {
		t.Errorf("other branch: topics %v", done.Names)
	}
	if done := apply(t, more, abort, topic(6)); len(done.Topics) != 2 || done.Topics[uuid(6)] == nil {
		t.Errorf("aborted: topics %v", done.Names)
	}
	for name, recs := range map[string][]Record{
		"begin within": {begin, begin}, "end without": {end}, "abort without": {abort},
		"fails at the end": {begin, &RemoveTopicRecord{uuid(9)}, end},
	} {
		if _, err := tryApply(Empty(), recs...); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: got %v, want ErrRecord", name, err)
		}
	}
}

func TestBrokerChanges(t *testing.T) {
	rack := "r"
	reg := &RegisterBrokerRecord{Version: 4, BrokerID: 9, Epoch: 5, Fenced: true, Rack: &rack, LogDirs: []protocol.UUID{uuid(1)}}
	img := apply(t, Empty(), reg)
	steps := []struct {
		rec  Record
		want Broker
	}{
		{&UnfenceBrokerRecord{9, 5}, Broker{ID: 9, Epoch: 5, Rack: "r", LogDirs: []protocol.UUID{uuid(1)}}},
		{&FenceBrokerRecord{9, 5}, Broker{ID: 9, Epoch: 5, Rack: "r", LogDirs: []protocol.UUID{uuid(1)}, Fenced: true}},
		{&BrokerRegistrationChangeRecord{Version: 3, BrokerID: 9, Epoch: 5, Fenced: -1, LogDirs: []protocol.UUID{uuid(2)},
			CordonedLogDirs: []protocol.UUID{uuid(2)}},
			Broker{ID: 9, Epoch: 5, Rack: "r", LogDirs: []protocol.UUID{uuid(2)}, CordonedLogDirs: []protocol.UUID{uuid(2)}}},
		{&BrokerRegistrationChangeRecord{Version: 3, BrokerID: 9, Epoch: 5, InControlledShutdown: 1},
			Broker{ID: 9, Epoch: 5, Rack: "r", LogDirs: []protocol.UUID{uuid(2)}, CordonedLogDirs: []protocol.UUID{uuid(2)},
				InControlledShutdown: true}},
		{&BrokerRegistrationChangeRecord{Version: 3, BrokerID: 9, Epoch: 5, CordonedLogDirs: []protocol.UUID{}},
			Broker{ID: 9, Epoch: 5, Rack: "r", LogDirs: []protocol.UUID{uuid(2)}, CordonedLogDirs: []protocol.UUID{},
				InControlledShutdown: true}},
	}
	for n, s := range steps {
		before := *img.Brokers[9]
		next := apply(t, img, s.rec)
		if got := next.Brokers[9]; !reflect.DeepEqual(*got, s.want) {
			t.Errorf("step %d: got %+v, want %+v", n, *got, s.want)
		}
		if !reflect.DeepEqual(*img.Brokers[9], before) {
			t.Errorf("step %d changed the image before", n)
		}
		img = next
	}
	for name, rec := range map[string]Record{
		"older epoch": &FenceBrokerRecord{9, 4}, "not registered": &UnfenceBrokerRecord{8, 5},
		"fenced 2": &BrokerRegistrationChangeRecord{BrokerID: 9, Epoch: 5, Fenced: 2},
	} {
		if _, err := tryApply(img, rec); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: got %v, want ErrRecord", name, err)
		}
	}
	if after := apply(t, img, &UnregisterBrokerRecord{9, 5}); len(after.Brokers) != 0 || len(img.Brokers) != 1 {
		t.Errorf("unregistered: %d brokers, before: %d", len(after.Brokers), len(img.Brokers))
	}
}

// KAFKA-12257: a topic made anew under an old name is another one.
func TestTopicDeletedAndMadeAnew(t *testing.T) {
	one := apply(t, Empty(), &TopicRecord{"orders", uuid(1)}, newPartition(uuid(1), 0, Partition{LeaderEpoch: 30}),
		&ConfigRecord{ConfigResource{ConfigTopic, "orders"}, "a", text("1")})
	two := apply(t, one, &RemoveTopicRecord{uuid(1)}, &TopicRecord{"orders", uuid(2)}, newPartition(uuid(2), 0, Partition{}))
	if two.Partition(protocol.PartitionID{Topic: uuid(1)}) != nil || two.TopicByName("orders").ID != uuid(2) {
		t.Errorf("topics %v", two.Names)
	}
	if _, ok := two.TopicConfig("orders", "a"); ok {
		t.Error("the new topic has the old one's config")
	}
	if one.TopicByName("orders").ID != uuid(1) || len(one.Configs) != 1 {
		t.Error("the image before has changed")
	}
	for name, rec := range map[string]Record{
		"same id": &TopicRecord{"other", uuid(2)}, "same name": &TopicRecord{"orders", uuid(3)},
		"gone already": &RemoveTopicRecord{uuid(1)}, "no partition": change(uuid(2), 1),
		"no topic": newPartition(uuid(9), 0, Partition{}), "negative": newPartition(uuid(2), -1, Partition{}),
		"no such topic's ELR": &ClearElrRecord{"x"},
	} {
		if _, err := tryApply(two, rec); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: got %v, want ErrRecord", name, err)
		}
	}
}

// A snapshot need not have partitions in order, and a hostile number must cost nothing.
func TestPartitionsInAnyOrder(t *testing.T) {
	id := uuid(1)
	p := func(n int32) *PartitionRecord { return newPartition(id, n, Partition{Leader: n}) }
	img := apply(t, Empty(), &TopicRecord{"orders", id}, p(2), p(1<<30))
	if n := len(img.TopicByName("orders").Partitions); n != 0 {
		t.Errorf("%d partitions before the first came", n)
	}
	img = apply(t, apply(t, img, p(0)), p(1))
	for n, part := range img.TopicByName("orders").Partitions {
		if part.Leader != int32(n) {
			t.Errorf("partition %d is %+v", n, part)
		}
	}
	if n := len(img.TopicByName("orders").Partitions); n != 3 {
		t.Errorf("%d partitions, want 3", n)
	}
}

func TestFeatureAndConfigRemoval(t *testing.T) {
	res := ConfigResource{ConfigTopic, "orders"}
	one := apply(t, new(Image), &FeatureLevelRecord{"f", 2}, &ConfigRecord{res, "a", text("1")}, &ConfigRecord{res, "b", text("2")})
	two := apply(t, one, &FeatureLevelRecord{"f", 0}, &ConfigRecord{res, "a", nil})
	three := apply(t, two, &ConfigRecord{res, "b", nil})
	if one.Features["f"] != 2 || len(one.Configs[res]) != 2 {
		t.Error("the first image has changed")
	}
	if len(two.Features) != 0 || !reflect.DeepEqual(two.Configs[res], map[string]string{"b": "2"}) || len(three.Configs) != 0 {
		t.Errorf("features %v, configs %v, %v", two.Features, two.Configs, three.Configs)
	}
}

func TestApplyCopiesATouchedTopicOnce(t *testing.T) {
	const partitions = 500
	id := uuid(1)
	recs, changes := []Record{&TopicRecord{"big", id}}, []Record{}
	for n := range int32(partitions) {
		recs = append(recs, newPartition(id, n, Partition{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}}))
		r := change(id, n)
		r.Leader = 2
		changes = append(changes, r)
	}
	img := apply(t, Empty(), recs...)
	var values [][]byte
	for _, r := range changes {
		values = append(values, AppendRecord(nil, r))
	}
	one := testing.AllocsPerRun(10, func() { _, _ = img.Apply(1, 1, values[:1]) })
	all := testing.AllocsPerRun(10, func() { _, _ = img.Apply(1, 1, values) })
	if perChange := (all - one) / (partitions - 1); perChange > 8 {
		t.Errorf("%.1f allocations a change: the topic is copied more than once", perChange)
	}
	next, err := img.Apply(1, 1, values)
	if err != nil || next.TopicByName("big").Partitions[499].Leader != 2 || img.TopicByName("big").Partitions[499].Leader != 0 {
		t.Errorf("after: %v", err)
	}
}

func FuzzApply(f *testing.F) {
	_, values := written(f)
	for i := range values {
		f.Add(values[i], values[(i+1)%len(values)], values[(i+7)%len(values)])
	}
	base := apply(f, Empty(), &TopicRecord{"orders", uuid(5)}, newPartition(uuid(5), 0, Partition{Replicas: []int32{1}}),
		newPartition(uuid(5), 1, Partition{Replicas: []int32{1, 2, 3}, ELR: []int32{3}}),
		&RegisterBrokerRecord{Version: 4, BrokerID: 9001, Epoch: 77})
	print := func(i *Image) string {
		s := fmt.Sprint(i.Offset, i.Epoch, i.Names, i.Configs, i.Features, i.open, len(i.pending))
		for _, topic := range i.Topics {
			for _, p := range topic.Partitions {
				s += fmt.Sprint(*p)
			}
		}
		for _, b := range i.Brokers {
			s += fmt.Sprint(*b)
		}
		return s
	}
	before := print(base)
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		img := base
		for n, batch := range [][][]byte{{a, b}, {c}, {c, b, a}} {
			next, err := img.Apply(int64(n), 2, batch)
			if err != nil {
				if next != nil || !errors.Is(err, ErrRecord) {
					t.Fatalf("image %v with error %v", next, err)
				}
				continue
			}
			img = next
			for id, topic := range img.Topics {
				if topic.ID != id || img.Names[topic.Name] != id || slices.Contains(topic.Partitions, nil) {
					t.Fatalf("topic %s is %+v", id, topic)
				}
			}
			if len(img.Names) != len(img.Topics) {
				t.Fatalf("%d names of %d topics", len(img.Names), len(img.Topics))
			}
		}
		if after := print(base); after != before {
			t.Fatalf("the image applied to has changed:\n%s\n%s", before, after)
		}
	})
}
