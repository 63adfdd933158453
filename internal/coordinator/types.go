package coordinator

import (
	"time"

	"kmirror/protocol"
	"kmirror/statemachine"
)

// Mirror is a mirror definition: which source is mirrored and how it is reached.
type Mirror struct {
	Name string
	// Config holds the properties of the mirror file. Secrets are references (${file:...}, ${env:...}), never values.
	Config map[string]string
	// SourceClusterID is the source's cluster id as seen at creation; a source that answers with another is refused.
	SourceClusterID string
	Created         time.Time

	// base is one above the offset of the record that this was read from, 0 for none: PutMirror replaces that record only.
	base int64
}

// Topic is a destination topic that a mirror owns. TopicID is the destination's, SourceTopicID the source's: no stock API
// takes a topic id, so they differ, and the pair is the identity check that INCONSISTENT_TOPIC_ID is about.
type Topic struct {
	Mirror, Name           string
	TopicID, SourceTopicID protocol.UUID
	// Desired is what the operator asked for last: Mirroring, Paused or Stopped.
	Desired statemachine.State
	// Overwrite: the operator allowed data of the destination to be truncated away.
	Overwrite  bool
	Partitions int32
	// Replicas is how many real replicas each partition is to have, 0 when nobody said.
	Replicas int16
	// MinISR is the topic's effective min.insync.replicas without the lock: its own, or its brokers' default.
	MinISR int16
	// TrueConfigs are the topic's own values of the two configs that the lock overwrites, put back by unlock. An absent key
	// means that the topic had none and the config is to be removed.
	TrueConfigs map[string]string
	Started     time.Time
	// Align is the last mirrored epoch of each partition that the source gave when the topic was started (KIP-1279, log
	// convergence): what lies above it at the destination is truncated. Empty: -1 for all, a first mirror.
	Align []int32
	// Drain: Desired is Stopped, and the stop begins only once the destination has all that the source has (promote).
	Drain bool
	// Regrow: handed over with fewer replicas than Replicas; the others are added again under the real leader.
	Regrow bool
	// GroupsDone: the offsets of the source's groups were synced for the last time, after the drain of a promote. Its topics are not
	// unlocked before.
	GroupsDone bool
	// Ended: kmirror stopped the topic by itself, since the source has it no more or the mirror leaves it out. No operator wanted
	// mirroring to end.
	Ended bool
	// Note says why kmirror stopped the topic by itself, or what a stop could not do; empty after an operator's start.
	Note string

	// base is one above the offset of the record that this was read from, 0 for none: PutTopic replaces that record only.
	base int64
}

// Draining reports whether a topic is promoted and its lock is still sure to be on: until its partitions stop it is mirrored as before.
// state is Store.State: what a version without GroupsDone has promoted is STOPPED, and may have Drain until all replicas are back.
func (t Topic) Draining(state func(protocol.PartitionID) (PartitionState, bool)) bool {
	if t.Desired != statemachine.Stopped || !t.Drain || t.GroupsDone {
		return false
	}
	for p := range t.Partitions {
		if s, ok := state(protocol.PartitionID{Topic: t.TopicID, Partition: p}); ok && s.State == statemachine.Stopped {
			return false
		}
	}
	return true
}

// ForgetEpoch as a LastMirrorEpoch removes the one that is stored: the log has nothing in common with the source any more.
const ForgetEpoch int32 = -2

// PartitionState is the state of one mirror partition. ID.Topic is the destination's topic id. The zero value of Previous
// is Preparing, so writers set it (Unknown when there is none).
type PartitionState struct {
	Mirror          string
	ID              protocol.PartitionID
	State, Previous statemachine.State
	// Since is when State was entered.
	Since time.Time
	// Retry counts attempts since the last good fetch; -1 means that no retry can help.
	Retry       int16
	Error, Hint string
	// LastMirrorEpoch (LME) is the newest epoch that was in the log when mirroring stopped, -1 while unknown. PutState leaves what is
	// stored on -1, and removes it on ForgetEpoch.
	LastMirrorEpoch int32
	// Stop is how far STOPPING has come. StopEnd is where the log ended before the tail, StopEpoch its newest epoch; they say
	// nothing before StopMarked. LastMirrorEpoch may be lower: what was never aligned does not count as mirrored.
	Stop      statemachine.StopStep
	StopEnd   int64
	StopEpoch int32
	// LeaderEpoch is the partition's leader epoch that the writer leads in, 0 where it does not say. A state is refused once one with
	// a higher epoch was stored (ErrFencedLeaderEpoch); what is stored never falls.
	LeaderEpoch int32
	// Aligned: the machine's, whether the log was brought to what it has in common with the source since it was started.
	Aligned bool
	// Base says which record of the partition's state this one replaces: PutState refuses it where another stands there (ErrChanged). Look
	// sets it, to one above the record's offset, or -1 where there is none; 0 replaces any. State leaves it 0.
	Base int64
}

// Over returns s as what replaces a state that Look has returned.
func (s PartitionState) Over(read PartitionState) PartitionState {
	s.Base = read.Base
	return s
}

// ACL is a binding that a mirror created at the destination, in Kafka's names (resource type, pattern type, operation, permission).
// All fields together are its identity. They are UTF-8.
type ACL struct {
	ResourceType, ResourceName, PatternType, Principal, Host, Operation, Permission string
}
