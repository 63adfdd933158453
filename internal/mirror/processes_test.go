package mirror

import (
	"slices"
	"testing"
	"time"

	"kmirror/protocol"
)

func TestChoose(t *testing.T) {
	a, b, c := Process{NodeIDs: []int32{9001, 9002}}, Process{NodeIDs: []int32{9003, 9004}}, Process{NodeIDs: []int32{9005, 9006}}
	const n = 3000
	count := map[int32]int{}
	for p := range int32(n) {
		id := protocol.PartitionID{Topic: protocol.UUID{byte(p >> 6), 7}, Partition: p}
		all := choose([]Process{a, b, c}, "m", id)
		again := choose([]Process{c, b, a}, "m", id)
		if all.lead.NodeIDs[0] != again.lead.NodeIDs[0] || all.standby.NodeIDs[0] != again.standby.NodeIDs[0] {
			t.Fatalf("partition %d: the order of processes matters", p)
		}
		if all.lead.NodeIDs[0] == all.standby.NodeIDs[0] {
			t.Fatalf("partition %d stands by for itself", p)
		}
		count[all.lead.NodeIDs[0]]++
		// The leader dies: the standby leads. Another dies: nothing moves.
		rest := slices.DeleteFunc([]Process{a, b, c}, func(o Process) bool { return o.NodeIDs[0] == all.lead.NodeIDs[0] })
		if got := choose(rest, "m", id); got.lead.NodeIDs[0] != all.standby.NodeIDs[0] {
			t.Fatalf("partition %d: %d leads after its leader's death, %d stood by", p, got.lead.NodeIDs[0], all.standby.NodeIDs[0])
		}
		for i := range rest {
			left := append(slices.Clone(rest[:i]), all.lead)
			if got := choose(left, "m", id); got.lead.NodeIDs[0] != all.lead.NodeIDs[0] {
				t.Fatalf("partition %d moved although its leader lives", p)
			}
		}
	}
	for id, got := range count {
		if got < n/4 || got > n*5/12 {
			t.Errorf("process %d leads %d of %d partitions", id, got, n)
		}
	}

	id := protocol.PartitionID{}
	first := choose([]Process{a, b}, "m", id).lead
	blind, other := first, a
	if first.NodeIDs[0] == a.NodeIDs[0] {
		other = b
	}
	blind.Blind = []string{"m"}
	if got := choose([]Process{blind, other}, "m", id); got.lead.NodeIDs[0] != other.NodeIDs[0] || !got.two {
		t.Error("a process that does not reach the source leads")
	}
	if got := choose([]Process{blind, other}, "n", id); got.lead.NodeIDs[0] != first.NodeIDs[0] {
		t.Error("blindness for one mirror moves another's partitions")
	}
	leaving := first
	leaving.Leaving = true
	if got := choose([]Process{leaving, other}, "m", id); got.lead.NodeIDs[0] != other.NodeIDs[0] || got.two {
		t.Error("a process that leaves leads or stands by")
	}
}

func TestBlind(t *testing.T) {
	var s sight
	at := time.Now()
	if s.note(map[string]bool{"m": true}, at) || s.note(map[string]bool{"m": true}, at.Add(blindAfter-1)) {
		t.Error("blind too soon")
	}
	if !s.note(map[string]bool{"m": true, "n": true}, at.Add(blindAfter)) || !slices.Equal(s.blind, []string{"m"}) {
		t.Errorf("blind for %v", s.blind)
	}
	if !s.note(map[string]bool{"n": true}, at.Add(blindAfter+1)) || len(s.blind) > 0 {
		t.Errorf("blind for %v after an answer", s.blind)
	}
	if s.note(map[string]bool{"m": true}, at.Add(2*blindAfter)) {
		t.Error("an old silence counts")
	}
}
