package metasync

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"

	"kmirror/protocol"
)

// commit is what a group has committed for a partition. Of a share group only the (start) offset counts; its epoch is -1.
type commit struct {
	offset   int64
	epoch    int32
	metadata string
}

// commits are those of one group. What is -1 (none) is not among them.
type commits map[protocol.TopicPartition]commit

// edge is an offset with the epoch that belongs to it, -1 where that is not known.
type edge struct {
	offset int64
	epoch  int32
}

// bounds are what consumers of the destination can read of a partition: log start and high watermark.
type bounds struct{ start, end edge }

// clamp brings a commit to where there is something to read; then the epoch is that of the destination's log (KAFKA-12635: a number
// copied as it stands shows a negative lag, and a consumer that comes with it is out of range).
func (b bounds) clamp(c commit) commit {
	if c.offset > b.end.offset {
		c.offset, c.epoch = b.end.offset, b.end.epoch
	}
	if c.offset < b.start.offset {
		c.offset, c.epoch = b.start.offset, b.start.epoch
	}
	return c
}

// upTo drops an epoch above the destination's leader epoch: a consumer that names one is told to wait for a leader that does not come
// (UNKNOWN_LEADER_EPOCH).
func (c commit) upTo(leaderEpoch int32) commit {
	if c.epoch > leaderEpoch {
		c.epoch = -1
	}
	return c
}

// wanted returns what a group of the source is to have committed at the destination. Partitions without known bounds are left out.
func wanted(source commits, known map[protocol.TopicPartition]bounds, leaderEpoch func(protocol.TopicPartition) int32) commits {
	out := commits{}
	for tp, c := range source {
		if b, ok := known[tp]; ok {
			out[tp] = b.clamp(c).upTo(leaderEpoch(tp))
		}
	}
	return out
}

// without drops metadata of so many bytes or more, which the destination has refused; 0 for none.
func (c commits) without(bytes int) commits {
	for tp, one := range c {
		if bytes > 0 && len(one.metadata) >= bytes {
			one.metadata = ""
			c[tp] = one
		}
	}
	return c
}

// differing returns those of want that have does not hold as they are.
func differing(want, have commits) commits {
	out := commits{}
	for tp, c := range want {
		if is, ok := have[tp]; !ok || is != c {
			out[tp] = c
		}
	}
	return out
}

// unbacked returns the destination's commits for which the source has none: the source says nothing of where they belong.
func unbacked(have, source commits) commits {
	out := commits{}
	for tp, c := range have {
		if _, ok := source[tp]; !ok {
			out[tp] = c
		}
	}
	return out
}

// fallBack returns where a commit without a source's belongs when the destination's log does not reach it any more, or was truncated
// below it since (KIP-320: the epoch it was made in ends before it). ended is where that epoch ends, nil when that is not known. ok is
// false when the commit stays as it is: it is only ever lowered.
func fallBack(c commit, b bounds, ended *edge, leaderEpoch int32) (lower commit, ok bool) {
	lower = c
	if ended != nil && ended.offset >= 0 && ended.offset < lower.offset {
		lower.offset, lower.epoch = ended.offset, ended.epoch
	}
	lower = b.clamp(lower).upTo(leaderEpoch)
	return lower, lower.offset < c.offset
}

// verdict is what the destination's coordinator says of a write.
type verdict int

const (
	taken   verdict = iota
	again           // the coordinator is another one or not ready
	inUse           // the group has members by now
	foreign         // a group of another type has this id
	tooLong         // the metadata of the commit
	refused
)

// judge reads an error code of OffsetCommit or AlterShareGroupOffsets.
func judge(code int16) verdict {
	switch err := kerr.ErrorForCode(code); err {
	case nil:
		return taken
	case kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress:
		return again
	case kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.NonEmptyGroup, kerr.StaleMemberEpoch, kerr.FencedMemberEpoch,
		kerr.FencedInstanceID, kerr.RebalanceInProgress:
		return inUse
	case kerr.GroupIDNotFound, kerr.InconsistentGroupProtocol:
		return foreign
	case kerr.OffsetMetadataTooLarge:
		return tooLong
	}
	return refused
}

// listed is a group as a cluster lists it. Clusters before Kafka 3.8 don't say the type, and have no share groups.
type listed struct{ groupType, state string }

// share reports whether it is a share group.
func (l listed) share() bool { return strings.EqualFold(l.groupType, "share") }

// idle reports whether a group has no members, so that its offsets may be written. A state that is not told is left to the coordinator.
func (l listed) idle() bool {
	return slices.ContainsFunc([]string{"", "Empty", "Dead"}, func(s string) bool { return strings.EqualFold(s, l.state) })
}
