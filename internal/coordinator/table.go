package coordinator

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

// table is what the records of __mirror_state amount to. Records come twice, from the acknowledgement of a write and from
// the topic, in either order; their offsets decide, since a key stays in one partition.
type table struct {
	log *slog.Logger

	mu      sync.RWMutex
	changed chan struct{}
	entries map[string]entry // by encoded key; deleted ones stay, to tell old records from new ones
	mirrors map[string]Mirror
	topics  map[topicID]Topic
	acls    map[aclID]ACL
	newest  map[string]Topic                // of each name, the one started last; asked for with every produce
	states  map[stateID]PartitionState      // without the last mirrored epoch
	epochs  map[stateID]int32               // last mirrored epochs
	owner   map[protocol.PartitionID]string // the mirror whose record of that partition came last
}

type topicID struct {
	mirror string
	id     protocol.UUID
}

type stateID struct {
	mirror string
	id     protocol.PartitionID
}

type aclID struct {
	mirror string
	id     protocol.UUID // of a record's key
}

type entry struct {
	offset int64
	value  []byte // nil: deleted
}

func newTable(log *slog.Logger) *table {
	return &table{
		log: log, changed: make(chan struct{}), entries: map[string]entry{}, mirrors: map[string]Mirror{},
		topics: map[topicID]Topic{}, acls: map[aclID]ACL{}, newest: map[string]Topic{}, states: map[stateID]PartitionState{},
		epochs: map[stateID]int32{}, owner: map[protocol.PartitionID]string{},
	}
}

// apply takes in one record. Records that are not understood are kept out with a line in the log, and left in the topic.
func (t *table) apply(key, value []byte, offset int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, seen := t.entries[string(key)]
	if !seen {
		e.offset = -1
	}
	if e.offset >= offset {
		return
	}
	k, err := kip1279.DecodeStateKey(key)
	if err == nil && k.Type == kip1279.RecordOwner {
		return // each partition has one, under the same key; see cluster
	}
	if err == nil {
		err = t.put(k, value, offset)
	}
	if errors.Is(err, kip1279.ErrUnknownRecord) {
		t.log.Debug("record of a newer version left alone", "offset", offset, "err", err)
		return
	}
	if err != nil {
		t.log.Warn("record of __mirror_state is not readable and left alone", "offset", offset, "err", err)
		return
	}
	e.offset, e.value = offset, bytes.Clone(value)
	t.entries[string(key)] = e
	t.signal()
}

// signal tells of a change. Called with mu held.
func (t *table) signal() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// touch tells of a change that is not in the records.
func (t *table) touch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.signal()
}

// same reports whether a record would write what is there already, and the offset at which that lies, -1 for nothing at all.
func (t *table) same(r record) (int64, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	e, ok := t.entries[string(r.keyBytes)]
	if !ok {
		return -1, r.value == nil
	}
	return e.offset, bytes.Equal(e.value, r.value) && (e.value == nil) == (r.value == nil)
}

// live returns the offset of the record that stands under a key, -1 for none.
func (t *table) live(key []byte) int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e, ok := t.entries[string(key)]; ok && e.value != nil {
		return e.offset
	}
	return -1
}

func (t *table) put(k kip1279.StateKey, value []byte, offset int64) error {
	if value == nil {
		t.remove(k)
		return nil
	}
	v, err := kip1279.DecodeStateValue(k.Type, value)
	if err != nil {
		return err
	}
	switch v := v.(type) {
	case *kip1279.LastMirrorEpochsValue:
		t.epochs[stateOf(k)], t.owner[stateOf(k).id] = v.LastMirrorEpoch, k.Mirror
	case *kip1279.PartitionStateValue:
		state, err := decodeState(k, v)
		if err != nil {
			return fmt.Errorf("partition %d of %s in mirror %s: %w", k.Partition, k.TopicID, k.Mirror, err)
		}
		state.Base = offset + 1
		t.states[stateOf(k)], t.owner[stateOf(k).id] = state, k.Mirror
	case *kip1279.JSONValue:
		switch k.Type {
		case kip1279.RecordMirror:
			m, err := decodeMirror(k.Mirror, v)
			if err != nil {
				return fmt.Errorf("mirror %s: %w", k.Mirror, err)
			}
			m.base = offset + 1
			t.mirrors[k.Mirror] = m
			return nil
		case kip1279.RecordMirrorACL:
			acl, err := decodeACL(k, v)
			if err != nil {
				return fmt.Errorf("ACL of mirror %s: %w", k.Mirror, err)
			}
			t.acls[aclID{k.Mirror, k.TopicID}] = acl
			return nil
		}
		topic, err := decodeTopic(k, v)
		if err != nil {
			return fmt.Errorf("topic %s of mirror %s: %w", k.TopicID, k.Mirror, err)
		}
		topic.base = offset + 1
		id := topicID{k.Mirror, k.TopicID}
		before := t.topics[id].Name
		t.topics[id] = topic
		t.index(before)
		t.index(topic.Name)
	}
	return nil
}

func (t *table) remove(k kip1279.StateKey) {
	switch k.Type {
	case kip1279.RecordMirror:
		delete(t.mirrors, k.Mirror)
		return
	case kip1279.RecordMirrorTopic:
		id := topicID{k.Mirror, k.TopicID}
		name := t.topics[id].Name
		delete(t.topics, id)
		t.index(name)
		return
	case kip1279.RecordMirrorACL:
		delete(t.acls, aclID{k.Mirror, k.TopicID})
		return
	case kip1279.RecordLastMirrorEpochs:
		delete(t.epochs, stateOf(k))
	case kip1279.RecordPartitionState:
		delete(t.states, stateOf(k))
	}
	_, state := t.states[stateOf(k)]
	_, epoch := t.epochs[stateOf(k)]
	if !state && !epoch && t.owner[stateOf(k).id] == k.Mirror {
		delete(t.owner, stateOf(k).id)
	}
}

func stateOf(k kip1279.StateKey) stateID {
	return stateID{k.Mirror, protocol.PartitionID{Topic: k.TopicID, Partition: k.Partition}}
}

// state returns the state of a partition. A last mirrored epoch may be known without any: then the state is Unknown.
func (t *table) state(id protocol.PartitionID) (PartitionState, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.stateLocked(id)
}

// look is state with the Base for a state of a mirror.
func (t *table) look(mirror string, id protocol.PartitionID) (PartitionState, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s, ok := t.stateLocked(id)
	s.Base = -1
	if own, ok := t.states[stateID{mirror, id}]; ok {
		s.Base = own.Base
	}
	return s, ok
}

func (t *table) stateLocked(id protocol.PartitionID) (PartitionState, bool) {
	mirror, ok := t.owner[id]
	if !ok {
		return PartitionState{}, false
	}
	s, ok := t.states[stateID{mirror, id}]
	if !ok {
		s = PartitionState{Mirror: mirror, ID: id, State: statemachine.Unknown, Previous: statemachine.Unknown}
	}
	s.Base, s.LastMirrorEpoch = 0, -1
	if epoch, ok := t.epochs[stateID{mirror, id}]; ok {
		s.LastMirrorEpoch = epoch
	}
	return s, true
}

func (t *table) mirrorList() []Mirror {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.SortedFunc(maps.Values(t.mirrors), func(a, b Mirror) int { return strings.Compare(a.Name, b.Name) })
}

func (t *table) mirror(name string) (Mirror, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	m, ok := t.mirrors[name]
	return m, ok
}

func (t *table) topicList() []Topic {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.SortedFunc(maps.Values(t.topics), compareTopics)
}

func compareTopics(a, b Topic) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Mirror, b.Mirror), a.Started.Compare(b.Started),
		bytes.Compare(a.TopicID[:], b.TopicID[:]))
}

// topicByName returns the topic of that name that was started last: one that was deleted and made anew has several ids.
func (t *table) topicByName(name string) (Topic, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	topic, ok := t.newest[name]
	return topic, ok
}

// index finds the newest topic of a name anew. Called with mu held.
func (t *table) index(name string) {
	var newest Topic
	found := false
	for _, topic := range t.topics {
		if topic.Name != name {
			continue
		}
		later := topic.Started.Compare(newest.Started)
		if !found || later > 0 || later == 0 && compareTopics(topic, newest) < 0 {
			newest, found = topic, true
		}
	}
	if delete(t.newest, name); found {
		t.newest[name] = newest
	}
}

func (t *table) wait() <-chan struct{} {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.changed
}
