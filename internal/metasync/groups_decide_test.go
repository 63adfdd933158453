package metasync

import (
	"maps"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"

	"kmirror/protocol"
)

func part(topic string, p int32) protocol.TopicPartition {
	return protocol.TopicPartition{Topic: topic, Partition: p}
}

// log100 begins at 100 (epoch 3) and ends at 500 (epoch 7).
var log100 = bounds{start: edge{100, 3}, end: edge{500, 7}}

func TestClamp(t *testing.T) {
	for _, c := range []struct {
		name     string
		in       commit
		b        bounds
		dle      int32
		expected commit
	}{
		{"as at the source", commit{300, 5, "m"}, log100, 9, commit{300, 5, "m"}},
		{"at the end", commit{500, 7, ""}, log100, 9, commit{500, 7, ""}},
		{"at the start", commit{100, 2, ""}, log100, 9, commit{100, 2, ""}},
		{"without an epoch", commit{300, -1, ""}, log100, 9, commit{300, -1, ""}},
		{"above the end", commit{501, 8, "m"}, log100, 9, commit{500, 7, "m"}},
		{"below the start", commit{0, 1, "m"}, log100, 9, commit{100, 3, "m"}},
		{"empty by retention, KAFKA-12635", commit{500, 4, ""}, bounds{start: edge{0, -1}, end: edge{300, 4}}, 9, commit{300, 4, ""}},
		{"empty log", commit{7, 4, ""}, bounds{start: edge{0, -1}, end: edge{0, -1}}, 9, commit{0, -1, ""}},
		{"start passed the end between the two questions", commit{50, 1, ""}, bounds{start: edge{80, 4}, end: edge{70, 3}}, 9, commit{80, 4, ""}},
		{"epoch above the leader's", commit{300, 10, "m"}, log100, 9, commit{300, -1, "m"}},
		{"epoch of the leader", commit{300, 9, "m"}, log100, 9, commit{300, 9, "m"}},
		{"clamped to an epoch above the leader's", commit{900, 3, ""}, log100, 6, commit{500, -1, ""}},
		{"leader epoch not known", commit{300, 0, "m"}, log100, -1, commit{300, -1, "m"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tp := part("orders", 0)
			got := wanted(commits{tp: c.in}, map[protocol.TopicPartition]bounds{tp: c.b}, func(protocol.TopicPartition) int32 { return c.dle })
			if got[tp] != c.expected {
				t.Errorf("got %+v, want %+v", got[tp], c.expected)
			}
		})
	}
	got := wanted(commits{part("orders", 1): {1, 1, ""}}, nil, func(protocol.TopicPartition) int32 { return 9 })
	if len(got) != 0 {
		t.Errorf("written without known bounds: %v", got)
	}
}

func TestDiffering(t *testing.T) {
	tp, other := part("orders", 0), part("orders", 1)
	for _, c := range []struct {
		name                 string
		want, have, expected commits
	}{
		{"same", commits{tp: {5, 1, "m"}}, commits{tp: {5, 1, "m"}}, commits{}},
		{"not there", commits{tp: {5, 1, ""}}, nil, commits{tp: {5, 1, ""}}},
		{"backwards", commits{tp: {0, -1, ""}}, commits{tp: {5, -1, ""}}, commits{tp: {0, -1, ""}}},
		{"forwards", commits{tp: {9, 1, ""}}, commits{tp: {5, 1, ""}}, commits{tp: {9, 1, ""}}},
		{"other epoch", commits{tp: {5, 2, ""}}, commits{tp: {5, 1, ""}}, commits{tp: {5, 2, ""}}},
		{"other metadata", commits{tp: {5, 1, "a"}}, commits{tp: {5, 1, ""}}, commits{tp: {5, 1, "a"}}},
		{"only what differs", commits{tp: {5, 1, ""}, other: {6, 1, ""}}, commits{tp: {5, 1, ""}}, commits{other: {6, 1, ""}}},
		{"nothing at the source", nil, commits{tp: {5, 1, ""}}, commits{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := differing(c.want, c.have); !maps.Equal(got, c.expected) {
				t.Errorf("got %v, want %v", got, c.expected)
			}
		})
	}
	if got := unbacked(commits{tp: {5, 1, ""}, other: {6, 1, ""}}, commits{tp: {1, 1, ""}}); !maps.Equal(got, commits{other: {6, 1, ""}}) {
		t.Errorf("unbacked: %v", got)
	}
}

func TestFallBack(t *testing.T) {
	for _, c := range []struct {
		name     string
		in       commit
		ended    *edge
		dle      int32
		expected commit
		ok       bool
	}{
		{"epoch goes on", commit{300, 5, "m"}, &edge{400, 5}, 9, commit{}, false},
		{"at the end of its epoch", commit{400, 5, "m"}, &edge{400, 5}, 9, commit{}, false},
		{"truncated below it", commit{400, 5, "m"}, &edge{350, 5}, 9, commit{350, 5, "m"}, true},
		{"truncated, its epoch is gone", commit{400, 5, "m"}, &edge{350, 4}, 9, commit{350, 4, "m"}, true},
		{"beyond the end without an epoch", commit{700, -1, "m"}, nil, 9, commit{500, 7, "m"}, true},
		{"beyond the end, epoch ends below", commit{700, 5, ""}, &edge{350, 5}, 9, commit{350, 5, ""}, true},
		{"beyond the end, epoch not known", commit{700, 8, ""}, &edge{-1, -1}, 9, commit{500, 7, ""}, true},
		{"no epoch, within the log", commit{400, -1, ""}, nil, 9, commit{}, false},
		{"epoch not known, within the log", commit{400, 8, ""}, &edge{-1, -1}, 9, commit{}, false},
		{"epoch ends below the start", commit{400, 2, ""}, &edge{50, 2}, 9, commit{100, 3, ""}, true},
		{"below the start: never raised", commit{40, 2, ""}, &edge{50, 2}, 9, commit{}, false},
		{"truncated, epoch above the leader's", commit{400, 12, ""}, &edge{350, 11}, 9, commit{350, -1, ""}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := fallBack(c.in, log100, c.ended, c.dle)
			if ok != c.ok || ok && got != c.expected {
				t.Errorf("got %+v %v, want %+v %v", got, ok, c.expected, c.ok)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		err      *kerr.Error
		expected verdict
	}{
		{kerr.UnknownMemberID, inUse}, {kerr.IllegalGeneration, inUse}, {kerr.NonEmptyGroup, inUse}, {kerr.StaleMemberEpoch, inUse},
		{kerr.FencedMemberEpoch, inUse}, {kerr.FencedInstanceID, inUse}, {kerr.RebalanceInProgress, inUse},
		{kerr.NotCoordinator, again}, {kerr.CoordinatorNotAvailable, again}, {kerr.CoordinatorLoadInProgress, again},
		{kerr.GroupIDNotFound, foreign}, {kerr.GroupAuthorizationFailed, refused}, {kerr.TopicAuthorizationFailed, refused},
		{kerr.UnknownTopicID, refused}, {kerr.OffsetMetadataTooLarge, tooLong},
	} {
		if got := judge(c.err.Code); got != c.expected {
			t.Errorf("%v: %d, want %d", c.err, got, c.expected)
		}
	}
	if judge(0) != taken {
		t.Error("no error is not taken")
	}
}

func TestListed(t *testing.T) {
	for _, c := range []struct {
		l           listed
		share, idle bool
	}{
		{listed{"", ""}, false, true}, {listed{"Classic", "Empty"}, false, true}, {listed{"Consumer", "Stable"}, false, false},
		{listed{"Share", "Empty"}, true, true}, {listed{"Share", "Stable"}, true, false}, {listed{"classic", "Dead"}, false, true},
		{listed{"Classic", "PreparingRebalance"}, false, false}, {listed{"Streams", "Assigning"}, false, false},
	} {
		if c.l.share() != c.share || c.l.idle() != c.idle {
			t.Errorf("%+v: share %v, idle %v", c.l, c.l.share(), c.l.idle())
		}
	}
}
