package coordinator

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

// oldUnknown is the number that UNKNOWN once had and that the schema still has as a default.
const oldUnknown = 16

var mirrorName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// ValidateName checks a mirror's name by the rules of topic names (KIP-1279).
func ValidateName(name string) error {
	if mirrorName.MatchString(name) && name != "." && name != ".." {
		return nil
	}
	return fmt.Errorf("%q is not a mirror name: 1 to 249 letters, digits, dots, underscores and dashes, "+
		"and neither \".\" nor \"..\"", name)
}

// mirrorJSON is the value of a mirror definition.
type mirrorJSON struct {
	Config          map[string]string `json:"config"`
	SourceClusterID string            `json:"source_cluster_id"`
	Created         time.Time         `json:"created"`
}

// topicJSON is the value of a mirror topic.
type topicJSON struct {
	Name          string            `json:"name"`
	SourceTopicID string            `json:"source_topic_id"`
	Desired       string            `json:"desired"`
	Overwrite     bool              `json:"overwrite,omitempty"`
	Partitions    int32             `json:"partitions"`
	Replicas      int16             `json:"replicas,omitempty"`
	TrueConfigs   map[string]string `json:"true_configs,omitempty"`
	Started       time.Time         `json:"started"`
	MinISR        int16             `json:"min_isr,omitempty"`
	Align         []int32           `json:"align,omitempty"`
	Drain         bool              `json:"drain,omitempty"`
	Regrow        bool              `json:"regrow,omitempty"`
	GroupsDone    bool              `json:"groups_done,omitempty"`
	Ended         bool              `json:"ended,omitempty"`
	Note          string            `json:"note,omitempty"`
}

// stateJSON is kmirror's tagged field of a partition state.
type stateJSON struct {
	Since time.Time `json:"since,omitzero"`
	Hint  string    `json:"hint,omitempty"`
	// What follows has its meaning from PartitionState.
	Stop      int8  `json:"stop,omitempty"`
	StopEnd   int64 `json:"stop_end,omitempty"`
	StopEpoch int32 `json:"stop_epoch,omitempty"`
	Aligned   bool  `json:"aligned,omitempty"`

	LeaderEpoch int32 `json:"leader_epoch,omitempty"`
}

// record is an encoded record of __mirror_state; a nil value is a tombstone.
type record struct {
	key       kip1279.StateKey
	keyBytes  []byte
	value     []byte
	partition int32
	// base, where it is not nil, is the offset of the live record that this one replaces, -1 for none.
	base *int64
}

// newRecord encodes a record for a topic of n partitions; value nil makes a tombstone.
func newRecord(k kip1279.StateKey, v kip1279.StateValue, n int32) record {
	r := record{key: k, keyBytes: kip1279.AppendStateKey(nil, k)}
	if v != nil {
		r.value = kip1279.AppendStateValue(nil, v)
	}
	switch k.Type {
	case kip1279.RecordMirror, kip1279.RecordMirrorTopic, kip1279.RecordMirrorACL:
		r.partition = kip1279.MirrorPartitionOf(k.Mirror, n)
	default:
		r.partition = kip1279.StatePartitionOf(k.Mirror, k.TopicID, k.Partition, n)
	}
	return r
}

// marshal encodes what can't fail to encode: structs of strings, numbers and times. A time beyond year 9999 could.
func marshal(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode for __mirror_state: %w", err)
	}
	return b, nil
}

func mirrorRecord(m Mirror, n int32) (record, error) {
	b, err := marshal(mirrorJSON{Config: m.Config, SourceClusterID: m.SourceClusterID, Created: m.Created.UTC()})
	return newRecord(kip1279.StateKey{Type: kip1279.RecordMirror, Mirror: m.Name}, &kip1279.JSONValue{JSON: b}, n), err
}

func topicKey(t Topic) kip1279.StateKey {
	return kip1279.StateKey{Type: kip1279.RecordMirrorTopic, Mirror: t.Mirror, TopicID: t.TopicID}
}

func topicRecord(t Topic, n int32) (record, error) {
	b, err := marshal(topicJSON{
		Name: t.Name, SourceTopicID: t.SourceTopicID.String(), Desired: t.Desired.String(), Overwrite: t.Overwrite,
		Partitions: t.Partitions, Replicas: t.Replicas, TrueConfigs: t.TrueConfigs, Started: t.Started.UTC(),
		MinISR: t.MinISR, Align: t.Align, Drain: t.Drain, Regrow: t.Regrow, GroupsDone: t.GroupsDone, Ended: t.Ended, Note: t.Note,
	})
	return newRecord(topicKey(t), &kip1279.JSONValue{JSON: b}, n), err
}

// stateValue is the value of a state's record.
func stateValue(s PartitionState) (*kip1279.PartitionStateValue, error) {
	extra, err := marshal(stateJSON{
		Since: s.Since.UTC(), Hint: s.Hint, Stop: int8(s.Stop), StopEnd: s.StopEnd, StopEpoch: s.StopEpoch, Aligned: s.Aligned,
		LeaderEpoch: s.LeaderEpoch,
	})
	if err != nil {
		return nil, err
	}
	v := &kip1279.PartitionStateValue{
		State: int8(s.State), PreviousState: int8(s.Previous), RetryAttempt: s.Retry, Extra: extra,
	}
	if s.Error != "" {
		v.ErrorMessage = &s.Error
	}
	return v, nil
}

// EncodeState encodes a state as its record's value, which says nothing of mirror, id and last mirrored epoch.
func EncodeState(s PartitionState) ([]byte, error) {
	v, err := stateValue(s)
	if err != nil {
		return nil, err
	}
	return kip1279.AppendStateValue(nil, v), nil
}

// DecodeState is the other direction; the rest is the caller's to tell.
func DecodeState(mirror string, id protocol.PartitionID, lastMirrorEpoch int32, value []byte) (PartitionState, error) {
	v, err := kip1279.DecodeStateValue(kip1279.RecordPartitionState, value)
	if err != nil {
		return PartitionState{}, err
	}
	s, err := decodeState(kip1279.StateKey{Mirror: mirror, TopicID: id.Topic, Partition: id.Partition},
		v.(*kip1279.PartitionStateValue))
	s.LastMirrorEpoch = lastMirrorEpoch
	return s, err
}

// FromKIP is a state as a peer says it that knows the fields of WriteMirrorStates alone: the state that is known with another
// state and last mirrored epoch. UNKNOWN leaves the state, -1 the epoch.
func FromKIP(mirror string, id protocol.PartitionID, known ReadOutcome, state int8, lastMirrorEpoch int32) (PartitionState, error) {
	s := known.State
	if !known.Known {
		s = PartitionState{Mirror: mirror, ID: id, State: statemachine.Unknown, Previous: statemachine.Unknown, Base: known.State.Base}
	}
	to := stateFrom(state)
	if _, err := statemachine.ParseState(to.String()); err != nil {
		return PartitionState{}, err
	}
	if to != statemachine.Unknown && to != s.State {
		s.State, s.Previous, s.Since, s.Retry, s.Error, s.Hint = to, s.State, time.Now(), 0, "", ""
	}
	s.LastMirrorEpoch, s.LeaderEpoch = lastMirrorEpoch, 0
	return s, nil
}

// stateRecords returns the record of the state and that of the last mirrored epoch: where it is known, or known to be none.
func stateRecords(s PartitionState, n int32) ([]record, error) {
	v, err := stateValue(s)
	if err != nil {
		return nil, err
	}
	k := kip1279.StateKey{Type: kip1279.RecordPartitionState, Mirror: s.Mirror, TopicID: s.ID.Topic, Partition: s.ID.Partition}
	out := []record{newRecord(k, v, n)}
	if s.Base != 0 {
		out[0].base = new(max(s.Base-1, -1))
	}
	k.Type = kip1279.RecordLastMirrorEpochs
	switch {
	case s.LastMirrorEpoch >= 0:
		out = append(out, newRecord(k, &kip1279.LastMirrorEpochsValue{LastMirrorEpoch: s.LastMirrorEpoch}, n))
	case s.LastMirrorEpoch == ForgetEpoch:
		out = append(out, newRecord(k, nil, n))
	}
	return out, nil
}

func decodeMirror(name string, v *kip1279.JSONValue) (Mirror, error) {
	var j mirrorJSON
	if err := json.Unmarshal(v.JSON, &j); err != nil {
		return Mirror{}, err
	}
	return Mirror{Name: name, Config: j.Config, SourceClusterID: j.SourceClusterID, Created: j.Created}, nil
}

func decodeTopic(k kip1279.StateKey, v *kip1279.JSONValue) (Topic, error) {
	var j topicJSON
	if err := json.Unmarshal(v.JSON, &j); err != nil {
		return Topic{}, err
	}
	if j.Name == "" {
		return Topic{}, errors.New("topic without a name")
	}
	source, err := protocol.ParseUUID(j.SourceTopicID)
	if err != nil {
		return Topic{}, err
	}
	desired, err := statemachine.ParseState(j.Desired)
	if err != nil {
		return Topic{}, err
	}
	return Topic{
		Mirror: k.Mirror, Name: j.Name, TopicID: k.TopicID, SourceTopicID: source, Desired: desired, Overwrite: j.Overwrite,
		Partitions: j.Partitions, Replicas: j.Replicas, TrueConfigs: j.TrueConfigs, Started: j.Started,
		MinISR: j.MinISR, Align: j.Align, Drain: j.Drain, Regrow: j.Regrow, GroupsDone: j.GroupsDone, Ended: j.Ended, Note: j.Note,
	}, nil
}

// decodeState reads a state record; the last mirrored epoch has a record of its own.
func decodeState(k kip1279.StateKey, v *kip1279.PartitionStateValue) (PartitionState, error) {
	var j stateJSON
	if len(v.Extra) > 0 {
		if err := json.Unmarshal(v.Extra, &j); err != nil {
			return PartitionState{}, err
		}
	}
	s := PartitionState{
		Mirror: k.Mirror, ID: protocol.PartitionID{Topic: k.TopicID, Partition: k.Partition},
		State: stateFrom(v.State), Previous: stateFrom(v.PreviousState), Retry: v.RetryAttempt, Since: j.Since, Hint: j.Hint,
		Stop: statemachine.StopStep(j.Stop), StopEnd: j.StopEnd, StopEpoch: j.StopEpoch, Aligned: j.Aligned,
		LeaderEpoch: j.LeaderEpoch,
	}
	if v.ErrorMessage != nil {
		s.Error = *v.ErrorMessage
	}
	return s, nil
}

func stateFrom(b int8) statemachine.State {
	if b == oldUnknown {
		return statemachine.Unknown
	}
	return statemachine.State(b)
}
