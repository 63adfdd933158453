package mirror

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// fakeLogs are the logs of one cluster: extents by topic, and where epochs end.
type fakeLogs struct {
	extents map[string][]extent
	epochs  map[int32]int64 // the same for every partition
	err     error
}

func (f fakeLogs) list(topic string, of func(extent) int64) (kadm.ListedOffsets, error) {
	out := kadm.ListedOffsets{topic: {}}
	for p, e := range f.extents[topic] {
		out[topic][int32(p)] = kadm.ListedOffset{Topic: topic, Partition: int32(p), Offset: of(e)}
	}
	return out, f.err
}

func (f fakeLogs) ListStartOffsets(_ context.Context, topics ...string) (kadm.ListedOffsets, error) {
	return f.list(topics[0], func(e extent) int64 { return e.start })
}

func (f fakeLogs) ListEndOffsets(_ context.Context, topics ...string) (kadm.ListedOffsets, error) {
	return f.list(topics[0], func(e extent) int64 { return e.end })
}

func (f fakeLogs) OffsetForLeaderEpoch(_ context.Context, r kadm.OffsetForLeaderEpochRequest) (kadm.OffsetsForLeaderEpochs, error) {
	out := kadm.OffsetsForLeaderEpochs{}
	for topic, parts := range r {
		out[topic] = map[int32]kadm.OffsetForLeaderEpoch{}
		for p, epoch := range parts {
			end, ok := f.epochs[epoch]
			if !ok {
				end = -1
			}
			out[topic][p] = kadm.OffsetForLeaderEpoch{Topic: topic, Partition: p, LeaderEpoch: epoch, EndOffset: end}
		}
	}
	return out, f.err
}

// fakeRemote is the __mirror_state of a source, its kmirror, or both.
type fakeRemote struct {
	mirrors []coordinator.Mirror
	topics  []coordinator.Topic
	states  map[protocol.PartitionID]coordinator.PartitionState
	asked   []string
	closed  bool
	err     error
}

func (f *fakeRemote) Mirrors() []coordinator.Mirror { return f.mirrors }
func (f *fakeRemote) Topics() []coordinator.Topic   { return f.topics }
func (f *fakeRemote) State(id protocol.PartitionID) (coordinator.PartitionState, bool) {
	st, ok := f.states[id]
	return st, ok
}

func (f *fakeRemote) ListMirrors(context.Context, bool) (out []admin.MirrorInfo, err error) {
	f.asked = append(f.asked, "list")
	for _, d := range f.mirrors {
		out = append(out, admin.MirrorInfo{Mirror: d.Name, SourceClusterID: d.SourceClusterID})
	}
	return out, f.err
}

func (f *fakeRemote) Describe(_ context.Context, req admin.DescribeRequest) (out []admin.PartitionInfo, err error) {
	f.asked = append(f.asked, "describe "+strings.Join(req.Mirrors, ","))
	for _, t := range f.topics {
		for p := range t.Partitions {
			if st, ok := f.states[protocol.PartitionID{Topic: t.TopicID, Partition: p}]; ok && slices.Contains(req.Mirrors, t.Mirror) {
				out = append(out, admin.PartitionInfo{Mirror: t.Mirror, Topic: t.Name, Partition: p, State: st.State.String()})
			}
		}
	}
	return out, f.err
}

func (f *fakeRemote) LastMirrorEpochs(_ context.Context, cluster string, parts []protocol.PartitionID) (map[protocol.PartitionID]int32, error) {
	f.asked = append(f.asked, "epochs for "+cluster)
	out := map[protocol.PartitionID]int32{}
	for _, id := range parts {
		for _, t := range f.topics {
			if st := f.states[protocol.PartitionID{Topic: t.TopicID, Partition: id.Partition}]; t.SourceTopicID == id.Topic &&
				st.State == statemachine.Stopped {
				out[id] = st.LastMirrorEpoch
			}
		}
	}
	return out, f.err
}

func (f *fakeRemote) Close() { f.closed = true }

// put makes the remote remember a topic of mirror back, which mirrored it from cluster destination.
func (f *fakeRemote) put(name string, desired statemachine.State, state statemachine.State, epochs ...int32) {
	t := coordinator.Topic{Mirror: "back", Name: name, TopicID: idOf("source " + name), SourceTopicID: idOf(name), Desired: desired,
		Partitions: int32(len(epochs))}
	f.topics = append(f.topics, t)
	for p, e := range epochs {
		id := protocol.PartitionID{Topic: t.TopicID, Partition: int32(p)}
		f.states[id] = coordinator.PartitionState{Mirror: "back", ID: id, State: state, LastMirrorEpoch: e}
	}
}

// failback is a start of topics at a destination that has them with 100 records each, from a source that has 150.
type failback struct {
	*startRun
	w      *world
	m      *Manager
	remote *fakeRemote
	reads  int
	// readErr is why the source's state can't be read, dial whether its kmirror can be asked instead.
	readErr error
	dial    bool
}

func newFailback(t *testing.T, req admin.StartRequest, lines ...string) *failback {
	t.Helper()
	f := &failback{remote: &fakeRemote{mirrors: []coordinator.Mirror{{Name: "back", SourceClusterID: "destination"}},
		states: map[protocol.PartitionID]coordinator.PartitionState{}}}
	f.w, f.m = fleet(t, lines...)
	f.m.cfg.ReadRemote = func(context.Context, coordinator.Mirror) (RemoteState, error) { f.reads++; return f.remote, f.readErr }
	f.m.cfg.DialRemote = func(coordinator.Mirror) (RemoteAdmin, error) {
		if !f.dial {
			return nil, nil
		}
		return f.remote, nil
	}
	req.Mirror = "m"
	f.startRun = &startRun{m: f.m, filters: everything(), req: req, mirror: coordinator.Mirror{Name: "m", SourceClusterID: "source"},
		source: kadm.TopicDetails{}, rf: 1, minISR: 1}
	f.here = fakeLogs{extents: map[string][]extent{}, epochs: map[int32]int64{4: 60, 5: 80}}
	f.there = fakeLogs{extents: map[string][]extent{}, epochs: map[int32]int64{4: 70, 5: 75}}
	f.has("orders", extent{10, 100}, extent{0, 100})
	return f
}

// has puts a topic into both clusters.
func (f *failback) has(name string, logs ...extent) {
	f.names = append(f.names, name)
	f.here.(fakeLogs).extents[name] = logs
	d := kadm.TopicDetail{Topic: name, ID: kadm.TopicID(idOf("source " + name)), Partitions: kadm.PartitionDetails{}}
	it := &kraft.Topic{ID: idOf(name), Name: name}
	for p := range logs {
		f.there.(fakeLogs).extents[name] = append(f.there.(fakeLogs).extents[name], extent{20, 150})
		d.Partitions[int32(p)] = kadm.PartitionDetail{Topic: name, Partition: int32(p)}
		it.Partitions = append(it.Partitions, &kraft.Partition{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, Leader: 1})
	}
	f.source[name] = d
	f.w.edit(func(i *kraft.Image) { i.Topics[it.ID], i.Names[name] = it, it.ID })
}

// begin starts orders and returns the outcome and what is stored of it then.
func (f *failback) begin(t *testing.T) (string, coordinator.Topic) {
	t.Helper()
	_, err := f.topic(t.Context(), "orders")
	topic, _ := store{f.w}.TopicByName("orders")
	return outcome(err), topic
}

var ordersParts = []protocol.PartitionID{{Topic: idOf("orders")}, {Topic: idOf("orders"), Partition: 1}}
