// Package replica holds what the data path and those who direct it tell each other of a partition: the role it is given,
// and how it stands.
package replica

import (
	"time"

	"kmirror/protocol"
)

// Role says how a partition that one of our node ids leads is served. What is led and under which epoch comes from the
// metadata image; what it *is* comes from assignments, and a led partition without one is RoleWait.
type Role uint8

// Roles.
const (
	// RoleWait: not known yet what this partition is. Followers are parked, then told UNKNOWN_LEADER_EPOCH; no answer with
	// a high watermark is ever given, since followers take whatever they are told, lower ones too.
	RoleWait Role = iota
	// RoleStray: not a mirror. Served as a log without records that ends where its followers end, so that it can be moved
	// to real brokers without any loss.
	RoleStray
	// RoleTruncate: PREPARING. Every follower beyond TruncateTo is answered with that divergence, all others are held.
	RoleTruncate
	// RoleMirror: MIRRORING.
	RoleMirror
	// RoleFrozen: nothing is handed out beyond what followers have (FAILED, PAUSED): empty answers, ISR and watermark kept.
	RoleFrozen
	// RoleDrain: PAUSING, and the first step of STOPPING. The log ends where the longest in-sync replica ends when the role begins;
	// the others are brought there from what the window still holds, or from the source. Nothing else is read or handed out.
	RoleDrain
	// RoleTail: STOPPING. The log is that of the source up to TruncateTo.EndOffset, then comes Tail, in the present leader
	// epoch. Followers that have something else above TruncateTo are told to truncate to it. The source is not needed.
	RoleTail
)

// Tail is what ends a mirrored log: control batches that we make up. Their base offsets follow the log's end; their leader
// epochs are stamped when they are served. It must not be changed once it is assigned.
type Tail struct {
	Batches []byte
	// End is the offset after the last one.
	End int64
}

// Divergence is DivergingEpoch of a Fetch answer: the follower truncates to EndOffset, or to the end of Epoch in its own
// log where that is less. {0, 0} truncates everything; an Epoch of -1 would be ignored by brokers.
type Divergence struct {
	Epoch     int32
	EndOffset int64
}

// Assignment tells the Leader what a partition is. A new assignment replaces the old one.
type Assignment struct {
	ID    protocol.PartitionID
	Topic string // name at the destination and at the source: they are equal
	Role  Role
	// Mirror and SourceTopicID are set for mirror partitions. Batches of another source topic id are never appended.
	Mirror        string
	SourceTopicID protocol.UUID
	// TruncateTo is where the common log ends: the last mirrored epoch (RoleTruncate, RoleTail). An EndOffset of math.MaxInt64
	// leaves it to followers where that epoch ends in their logs.
	TruncateTo Divergence
	Tail       *Tail
	// MinRealISR: the high watermark stands still, and nobody is shrunk out, when fewer real members would be in sync.
	MinRealISR int
}

// FollowerStatus is what the Leader knows of a replica from its fetches under the current leader epoch.
type FollowerStatus struct {
	// FetchOffset is the log end of the follower as of its last counted fetch, -1 before the first.
	FetchOffset int64
	BrokerEpoch int64
	LastFetch   time.Time
	// CaughtUp is the last moment at which it had all that we had.
	CaughtUp time.Time
}

// Status is a snapshot of one led partition. Unknown offsets and epochs are -1.
type Status struct {
	Role        Role
	Leader      int32 // our node id that leads it
	LeaderEpoch int32
	// RollCall: every ISR member has fetched in this leader epoch or left the ISR; before that nothing is served.
	RollCall bool
	// LogStart, LogEnd and HighWatermark are those of our log as leader. HighWatermark never goes back, but to where a source
	// diverged, and to the begin of a tail that has to be written anew.
	LogStart, LogEnd, HighWatermark int64
	// SourceStart, SourceEnd (high watermark) and SourceEpoch (leader epoch, from metadata) are the source's.
	SourceStart, SourceEnd int64
	SourceEpoch            int32
	// SourceEndAt is when the source last told SourceEnd, whether or not anything was fetched by then.
	SourceEndAt time.Time
	// LastEpoch is the newest epoch of a batch that was handed out or that followers had at the roll call.
	LastEpoch int32
	// EpochBlocked: batches are held back because their epoch is above LeaderEpoch; a bump is needed.
	EpochBlocked bool
	// Truncated: RoleTruncate and every in-sync real replica is at or below TruncateTo.
	Truncated bool
	// Converged: RoleDrain or RoleFrozen, the roll call is complete, and every in-sync real replica ends at LogEnd, which is the
	// high watermark too.
	Converged bool
	// Stuck: RoleDrain, and for some seconds an in-sync replica has lacked what neither the window nor the source gives.
	Stuck bool
	// Tailed: RoleTail, and every in-sync real replica has all of Tail, written in the present leader epoch.
	Tailed    bool
	Followers map[int32]FollowerStatus
	// ISR is the committed ISR, MaximalISR counts a proposal in flight.
	ISR, MaximalISR []int32
	LastSourceFetch time.Time
	// Divergences counts divergences that the source reported while mirroring.
	Divergences  int64
	FetchedBytes int64
	// RolledBack: the source has less of its newest epoch than replicas have, so LastEpoch does not mean the same on both sides.
	RolledBack bool
	// Err is why the partition does not move, nil when it does. Fatal: a retry can't help, an operator must decide.
	Err   error
	Fatal bool
}
