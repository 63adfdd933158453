package mirror

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/broker"
	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// world is a destination, a data path and a store in memory: what is asked of them takes effect at once, and is recorded.
type world struct {
	mu       sync.Mutex
	img      *kraft.Image
	changed  chan struct{}
	asked    []string
	stored   []string  // what was written to the store, in order
	lists    [][]int32 // of reassignments
	roles    map[protocol.PartitionID]replica.Assignment
	statuses map[protocol.PartitionID]replica.Status
	mirrors  []coordinator.Mirror
	topics   []coordinator.Topic
	states   map[protocol.PartitionID]coordinator.PartitionState
	bases    map[stateKey]int64 // see coordinator.PartitionState.Base
	offset   int64
	first    func()         // called once, right before something is stored: another process is faster
	holding  map[int32]bool // brokers that still have an old log
	putErr   error
	// unwritable are partitions whose state nobody stores for now.
	unwritable map[protocol.PartitionID]bool
	fresh      func() // what others have stored shows
	// joinErr is why nobody may join the ISR of a topic's partitions, by topic.
	joinErr   map[string]error
	clearELR  bool           // reassignments clear eligible leader replicas
	deaf      map[int32]bool // ids of other processes that don't open them
	sourceErr error
	notReady  bool
	fenced    bool // by itself
	stray     func(*kraft.Topic) bool
	looks     int // rounds of the manager
}

func newWorld() *world {
	return &world{
		img: &kraft.Image{Offset: 1, Topics: map[protocol.UUID]*kraft.Topic{}, Names: map[string]protocol.UUID{},
			Configs: map[kraft.ConfigResource]map[string]string{}},
		changed: make(chan struct{}), roles: map[protocol.PartitionID]replica.Assignment{}, statuses: map[protocol.PartitionID]replica.Status{},
		states: map[protocol.PartitionID]coordinator.PartitionState{}, bases: map[stateKey]int64{},
	}
}

// edit publishes a changed image.
func (w *world) edit(f func(*kraft.Image)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := *w.img
	next.Topics, next.Configs, next.Names = maps.Clone(w.img.Topics), maps.Clone(w.img.Configs), maps.Clone(w.img.Names)
	f(&next)
	w.img = &next
	close(w.changed)
	w.changed = make(chan struct{})
}

// topic puts a topic of one partition into the image.
func (w *world) topic(name string, id protocol.UUID, p kraft.Partition, configs map[string]string) {
	w.edit(func(i *kraft.Image) {
		i.Topics[id] = &kraft.Topic{ID: id, Name: name, Partitions: []*kraft.Partition{&p}}
		i.Names[name] = id
		i.Configs[kraft.ConfigResource{Type: kraft.ConfigTopic, Name: name}] = configs
	})
}

// change edits the partition of a topic.
func (w *world) change(name string, f func(*kraft.Partition)) {
	w.edit(func(i *kraft.Image) {
		t := *i.Topics[i.Names[name]]
		p := *t.Partitions[0]
		f(&p)
		t.Partitions = []*kraft.Partition{&p}
		i.Topics[t.ID] = &t
	})
}

func (w *world) did(what string) {
	w.mu.Lock()
	w.asked = append(w.asked, what)
	w.mu.Unlock()
}

func (w *world) wrote(what string) {
	w.mu.Lock()
	w.stored = append(w.stored, what)
	w.mu.Unlock()
}

func (w *world) Image() *kraft.Image                       { w.mu.Lock(); defer w.mu.Unlock(); return w.img }
func (w *world) Changed() <-chan struct{}                  { w.mu.Lock(); defer w.mu.Unlock(); return w.changed }
func (w *world) ClusterID() string                         { return "destination" }
func (w *world) Owns(id int32) bool                        { return id == 9001 || id == 9002 }
func (w *world) Guest(id int32) bool                       { return id >= 9000 }
func (w *world) SetStrayCheck(f func(t *kraft.Topic) bool) { w.stray = f }

func (w *world) Ready() error {
	if w.fenced {
		return broker.ErrSelfFenced
	}
	if w.notReady {
		return errors.New("not ready")
	}
	return nil
}

func (w *world) CreateTopic(context.Context, broker.NewTopic) (protocol.UUID, error) {
	return protocol.UUID{}, nil
}

func (w *world) CreatePartitions(_ context.Context, topic string, _ int32, assignment [][]int32) error {
	w.did("create partitions")
	w.edit(func(i *kraft.Image) {
		t := *i.Topics[i.Names[topic]]
		for _, list := range assignment {
			t.Partitions = append(slices.Clone(t.Partitions), &kraft.Partition{Replicas: list, ISR: list, Leader: list[0]})
		}
		i.Topics[t.ID] = &t
	})
	return nil
}

func (w *world) Reassign(_ context.Context, lists map[protocol.TopicPartition][]int32) map[protocol.TopicPartition]error {
	failed := map[protocol.TopicPartition]error{}
	for tp, l := range lists {
		if slices.ContainsFunc(l, func(id int32) bool { return w.deaf[id] }) {
			failed[tp] = broker.ErrPeer
		}
	}
	if len(failed) > 0 {
		return failed
	}
	for tp, l := range lists {
		w.did("reassign")
		w.lists = append(w.lists, l)
		w.change(tp.Topic, func(p *kraft.Partition) {
			p.Replicas = l
			if w.clearELR {
				p.ELR = nil
			}
			if !slices.Contains(l, p.Leader) && slices.Contains(p.ISR, l[0]) {
				p.Leader, p.LeaderEpoch = l[0], p.LeaderEpoch+1
			}
			p.ISR = slices.DeleteFunc(slices.Clone(p.ISR), func(id int32) bool { return !slices.Contains(l, id) })
		})
	}
	return nil
}

func (w *world) ElectPreferred(_ context.Context, parts []protocol.TopicPartition) map[protocol.TopicPartition]error {
	for _, tp := range parts {
		w.did("elect")
		w.change(tp.Topic, func(p *kraft.Partition) {
			if slices.Contains(p.ISR, p.Replicas[0]) && p.Leader != p.Replicas[0] {
				p.Leader, p.LeaderEpoch = p.Replicas[0], p.LeaderEpoch+1
			}
		})
	}
	return nil
}

func (w *world) JoinISR(_ context.Context, node int32, parts []protocol.PartitionID) map[protocol.PartitionID]error {
	errs := map[protocol.PartitionID]error{}
	for _, id := range parts {
		w.did("join")
		if errs[id] = w.joinErr[w.Image().Topics[id.Topic].Name]; errs[id] != nil {
			continue
		}
		w.change(w.Image().Topics[id.Topic].Name, func(p *kraft.Partition) { p.ISR = append(slices.Clone(p.ISR), node) })
	}
	return errs
}

func (w *world) SetTopicConfigs(_ context.Context, topic string, set map[string]string, remove []string) error {
	w.did("configs")
	w.edit(func(i *kraft.Image) {
		r := kraft.ConfigResource{Type: kraft.ConfigTopic, Name: topic}
		now := maps.Clone(i.Configs[r])
		if now == nil {
			now = map[string]string{}
		}
		maps.Copy(now, set)
		for _, k := range remove {
			delete(now, k)
		}
		i.Configs[r] = now
	})
	return nil
}

// data is the Data side of a world.
type data struct{ *world }

func (d data) CheckMirror(map[string]string) error                  { return nil }
func (d data) AddMirror(string, []kgo.Opt, map[string]string) error { return nil }
func (d data) RemoveMirror(string)                                  {}

func (d data) Assign(as ...replica.Assignment) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range as {
		d.roles[a.ID] = a
	}
}

func (d data) Unassign(ids ...protocol.PartitionID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		delete(d.roles, id)
	}
}

// Statuses makes up what a data path would see: everything goes well under the assigned role.
func (d data) Statuses() map[protocol.PartitionID]replica.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.looks++
	out := map[protocol.PartitionID]replica.Status{}
	for id, a := range d.roles {
		ip := d.img.Partition(id)
		if ip == nil || !d.Owns(ip.Leader) {
			continue
		}
		st := d.statuses[id]
		st.Role, st.LeaderEpoch, st.RollCall = a.Role, ip.LeaderEpoch, true
		st.Truncated = a.Role == replica.RoleTruncate
		out[id] = st
	}
	return out
}

type stateKey struct {
	mirror string
	id     protocol.PartitionID
}

// store is the Store side of a world.
type store struct{ *world }

func (s store) Loaded() <-chan struct{}  { c := make(chan struct{}); close(c); return c }
func (s store) Changed() <-chan struct{} { return make(chan struct{}) }
func (s store) Mirrors() []coordinator.Mirror {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mirrors)
}
func (s store) Mirror(name string) (coordinator.Mirror, bool) {
	for _, d := range s.Mirrors() {
		if d.Name == name {
			return d, true
		}
	}
	return coordinator.Mirror{}, false
}
func (s store) PutMirror(_ context.Context, def coordinator.Mirror) error {
	if first := s.first; first != nil {
		s.world.first = nil
		first()
		return coordinator.ErrChanged
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mirrors = slices.DeleteFunc(s.mirrors, func(d coordinator.Mirror) bool { return d.Name == def.Name })
	s.mirrors = append(s.mirrors, def)
	return nil
}
func (s store) DeleteMirror(_ context.Context, name string) error {
	s.wrote("delete mirror " + name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mirrors = slices.DeleteFunc(s.mirrors, func(d coordinator.Mirror) bool { return d.Name == name })
	return nil
}
func (s store) Topics() []coordinator.Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.topics)
}
func (s store) TopicByName(name string) (coordinator.Topic, bool) {
	var newest coordinator.Topic
	found := false
	for _, t := range s.Topics() {
		if t.Name == name && (!found || t.Started.After(newest.Started)) {
			newest, found = t, true
		}
	}
	return newest, found
}
func (s store) PutTopic(_ context.Context, topics ...coordinator.Topic) error {
	if s.putErr != nil {
		return s.putErr
	}
	for _, t := range topics {
		s.wrote("put topic " + t.Name + " of " + t.Mirror)
		s.remove(t)
		s.mu.Lock()
		s.topics = append(s.topics, t)
		s.mu.Unlock()
	}
	return nil
}
func (s store) remove(t coordinator.Topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topics = slices.DeleteFunc(s.topics, func(o coordinator.Topic) bool { return o.TopicID == t.TopicID && o.Mirror == t.Mirror })
}
func (s store) Fresh(context.Context, string) error {
	if s.fresh != nil {
		s.fresh()
	}
	return nil
}
func (s store) DeleteTopic(_ context.Context, t coordinator.Topic) error {
	s.wrote("delete topic " + t.Name + " of " + t.Mirror)
	s.remove(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.bases, func(k stateKey, _ int64) bool { return k.mirror == t.Mirror && k.id.Topic == t.TopicID })
	maps.DeleteFunc(s.states, func(id protocol.PartitionID, st coordinator.PartitionState) bool {
		return id.Topic == t.TopicID && st.Mirror == t.Mirror
	})
	return nil
}
func (s store) State(id protocol.PartitionID) (coordinator.PartitionState, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.states[id]
	return st, ok
}
func (s store) Look(mirror string, id protocol.PartitionID) (coordinator.PartitionState, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.states[id]
	if st.Base = s.bases[stateKey{mirror, id}]; st.Base == 0 {
		st.Base = -1
	}
	return st, ok
}
func (s store) PutStates(ctx context.Context, states []coordinator.PartitionState) []error {
	out := make([]error, len(states))
	for i, st := range states {
		if s.unwritable[st.ID] {
			<-ctx.Done() // as long as an owner that does not answer is waited for
			out[i] = coordinator.ErrUnreachable
		} else {
			out[i] = s.PutState(ctx, st)
		}
	}
	return out
}
func (s store) PutState(_ context.Context, states ...coordinator.PartitionState) error {
	if first := s.first; first != nil {
		s.world.first = nil
		first()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.putErr != nil {
		return s.putErr
	}
	for _, st := range states {
		if now := cmp.Or(s.bases[stateKey{st.Mirror, st.ID}], -1); st.Base != 0 && st.Base != now {
			return coordinator.ErrChanged
		}
	}
	for _, st := range states {
		s.offset++
		s.bases[stateKey{st.Mirror, st.ID}], st.Base = s.offset, 0
		s.stored = append(s.stored, "put state "+st.State.String()+" of "+st.Mirror)
		switch old, ok := s.states[st.ID]; {
		case st.LastMirrorEpoch == coordinator.ForgetEpoch:
			st.LastMirrorEpoch = -1
		case st.LastMirrorEpoch == -1 && ok && old.Mirror == st.Mirror:
			st.LastMirrorEpoch = old.LastMirrorEpoch
		}
		s.states[st.ID] = st
	}
	return nil
}

// newManager makes a manager of a world, with a topic that a mirror owns.
func newManager(t *testing.T, w *world, topics ...coordinator.Topic) *Manager {
	t.Helper()
	w.topics = topics
	m, err := New(Config{Destination: w, Data: data{w}, Store: store{w}, NodeIDs: []int32{9001, 9002},
		HoldsLog:   func(_ context.Context, b int32, _ protocol.TopicPartition) (bool, error) { return w.holding[b], nil },
		PingSource: func(context.Context, string) error { return w.sourceErr }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// rounds lets the manager look n times, each time waiting for the tasks that it started.
func rounds(t *testing.T, m *Manager, n int) {
	t.Helper()
	for range n {
		m.reconcile(t.Context())
		m.tasks.Wait()
	}
}

func mirrorTopic(name string, id protocol.UUID) coordinator.Topic {
	return coordinator.Topic{Mirror: "m", Name: name, TopicID: id, SourceTopicID: protocol.UUID{7}, Desired: statemachine.Mirroring,
		Partitions: 1, Replicas: 3, MinISR: 2, TrueConfigs: map[string]string{}}
}

// everything are the filters of a mirror that sets none.
func everything() *filters.Filters {
	f, err := filters.Parse(nil)
	if err != nil {
		panic(err)
	}
	return f
}
