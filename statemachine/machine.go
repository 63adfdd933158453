package statemachine

import "fmt"

// Machine is one mirror partition. Its fields change in Step only.
type Machine struct {
	// State is the KIP's state; Previous the one before it, to which a retry returns.
	State, Previous State
	// Retry counts failures since the partition last mirrored well. Reason and Hint say why it is FAILED and what to do.
	Retry        int
	Reason, Hint string
	// Final: no automatic retry, an operator must act.
	Final bool
	// Stop is how far STOPPING has come. It is stored with the state, so that what is done is not done again.
	Stop StopStep
	// Aligned: since it was started, the log has been brought to what it has in common with the source. Before, what lies above that
	// is the destination's own, and a stop must not claim that it came from the source.
	Aligned bool
	// bumping is the leader epoch that a bump under way aims at, 0 when none is. A target once set is followed to its end.
	bumping int32
}

// StopStep is how far a stop has come; each is reached once the one before is stored.
type StopStep int8

// Steps of STOPPING.
const (
	// StopFreeze: nothing new is handed out, the in-sync real replicas are brought to one end.
	StopFreeze StopStep = iota
	// StopMarked: that end and the last mirrored epoch are stored. What is above is ours: the tail.
	StopMarked
	// StopTailed: every in-sync real replica has the tail. Nothing but the way out is left: unlock, hand over.
	StopTailed
)

// String names the step as descriptions do.
func (s StopStep) String() string {
	switch s {
	case StopFreeze:
		return "freeze"
	case StopMarked:
		return "mark"
	case StopTailed:
		return "hand over"
	}
	return fmt.Sprintf("StopStep(%d)", int8(s))
}

// Event is something that happened or was asked for.
type Event interface{ fmt.Stringer }

type (
	// Load is the stored state, the first event of a partition that this process takes over. A partition with nothing
	// stored has State Unknown.
	Load struct {
		State, Previous State
		Retry           int
		Reason, Hint    string
		Final           bool
		Stop            StopStep
		Aligned         bool
	}
	// Start is the operator's wish to mirror. A FAILED partition goes on where it was; with Overwrite it begins anew, which
	// discards what the destination has beyond the source's log.
	Start struct{ Overwrite bool }
	// Recover is the operator's word that what made a partition FAILED is mended: it goes on where it was, its attempts
	// counted from 0.
	Recover struct{}
	// Marked says that end and last mirrored epoch of a frozen log are known and stored with the next Store.
	Marked struct{}
	// Observe is how things stand; it may come as often as one likes.
	Observe struct{ Facts Facts }
	// Fail is an error. Final ones are not retried.
	Fail struct {
		Reason, Hint string
		Final        bool
	}
	// RetryDue says that the back-off of a FAILED partition is over.
	RetryDue struct{}
)

// Facts is what a process knows of a partition at one moment. Facts about the data path are true only while Leading.
type Facts struct {
	// Desired is what the operator wants: Mirroring, Paused or Stopped.
	Desired State
	// Leading: one of our node ids is the leader in the metadata image.
	Leading bool
	// Locked: both configs of the lock are on, as the image shows it. Open: not even the size half is on, so that a real leader
	// takes what clients write.
	Locked, Open bool
	// Aligned: every in-sync replica ends at or below the last mirror epoch's end, and no replica out of sync is listed.
	Aligned bool
	// DLE and SLE are the leader epochs of the destination and of the source; SLE is -1 while unknown.
	DLE, SLE int32
	// Blocked: a batch waits because its epoch is above DLE, or a tail because something else was handed out under DLE.
	Blocked bool
	// Converged: the log is frozen and every in-sync real replica has all of it, or the same holds of replicas that a real broker
	// leads under the lock. No real replica out of sync is listed.
	Converged bool
	// Stuck: the log is frozen, and some in-sync replica lacks what neither we nor the source can give it any more.
	Stuck bool
	// Tailed: every in-sync real replica has the tail, written under the present leader epoch.
	Tailed bool
	// TopicTailed: all partitions of the topic are at StopTailed, or STOPPED. The lock is the topic's, so it goes for all at once.
	TopicTailed bool
	// Free: neither half of the lock is on. HandedOver: no replica list of the partition names an id of kmirror.
	Free, HandedOver bool
	// LME is the stored last mirrored epoch, -1 for none.
	LME int32
	// Flowing: the source has answered since the partition began to mirror.
	Flowing bool
}

func (e Load) String() string { return "load " + e.State.String() }
func (e Start) String() string {
	if e.Overwrite {
		return "start with overwrite"
	}
	return "start"
}

func (e Recover) String() string  { return "recover" }
func (e Marked) String() string   { return "marked" }
func (e Observe) String() string  { return "observe" }
func (e Fail) String() string     { return "fail: " + e.Reason }
func (e RetryDue) String() string { return "retry due" }

// Effect is something to do. Effects are level triggered: what is still needed is returned again with the next Observe, so
// an effect that got lost or half done is repeated; each must be idempotent.
type Effect interface{ fmt.Stringer }

type (
	// Store the machine's state in __mirror_state before any effect that follows it.
	Store struct{}
	// Lead: make one of our node ids the leader.
	Lead struct{}
	// Lock the topic: its two configs (facts 10 and 11 of docs/kafka-facts.md). Asked for only while leading: lead, then lock.
	Lock struct{}
	// Align: answer followers with the divergence that the last mirror epoch implies and drop replicas out of sync.
	Align struct{}
	// Bump the leader epoch to at least Min, by as many changes as it takes.
	Bump struct{ Min int32 }
	// Serve the source's log to followers.
	Serve struct{}
	// Freeze: hand out nothing new, keep ISR and high watermark.
	Freeze struct{}
	// Drain: hand out nothing beyond the end of the longest in-sync replica, but bring the others there.
	Drain struct{}
	// Settle: see whether the replicas of a real leader end alike, and drop those out of sync.
	Settle struct{}
	// Retake is Lead without asking whether the source is there: nothing of it is needed any more.
	Retake struct{}
	// Release: let the longest in-sync real replica lead under the lock, so that the others copy from it.
	Release struct{}
	// Mark: learn end, last mirrored epoch and producer ids of a log that no longer moves, then feed Marked.
	Mark struct{}
	// Tail: serve the markers and the reset that end the mirrored log.
	Tail struct{}
	// Hold what followers have, until the topic's other partitions are as far.
	Hold struct{}
	// Unlock the topic; once that is seen, HandOver to its in-sync real replicas.
	Unlock   struct{}
	HandOver struct{}
	// RetryAfter the back-off of the given attempt (counted from 1), then feed RetryDue.
	RetryAfter struct{ Attempt int }
)

func (Store) String() string        { return "store" }
func (Lead) String() string         { return "lead" }
func (Lock) String() string         { return "lock" }
func (Align) String() string        { return "align" }
func (e Bump) String() string       { return fmt.Sprintf("bump to %d", e.Min) }
func (Serve) String() string        { return "serve" }
func (Freeze) String() string       { return "freeze" }
func (Drain) String() string        { return "drain" }
func (Settle) String() string       { return "settle" }
func (Retake) String() string       { return "retake" }
func (Release) String() string      { return "release" }
func (Mark) String() string         { return "mark" }
func (Tail) String() string         { return "tail" }
func (Hold) String() string         { return "hold" }
func (Unlock) String() string       { return "unlock" }
func (HandOver) String() string     { return "hand over" }
func (e RetryAfter) String() string { return fmt.Sprintf("retry after back-off %d", e.Attempt) }
