package mirror

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// TestFencedByTheController: whose heartbeats did not come through loses leadership and the ISR with it, hears of both only when all is well
// again, and holds nobody for a foreign hand.
func TestFencedByTheController(t *testing.T) {
	w, m, foreign := mirroring(t)
	for range foreignLimit {
		w.change("orders", func(p *kraft.Partition) { p.Leader, p.ISR, p.LeaderEpoch = 1, []int32{1, 2, 3}, p.LeaderEpoch+1 })
		rounds(t, m, 3)
	}
	w.change("orders", func(p *kraft.Partition) { p.Leader, p.ISR, p.LeaderEpoch = -1, []int32{9001}, p.LeaderEpoch+1 }) // none is in sync but us
	rounds(t, m, 3)
	p := w.Image().Partition(orders0)
	if p.Leader != 9001 || !slices.Contains(p.Replicas, 9002) || *foreign != 0 {
		t.Errorf("leader %d of %v, %d foreign changes", p.Leader, p.Replicas, *foreign)
	}
}

// TestOwnHands: while a task of ours takes its place in a list anew, which cancels what it had begun before, the ids that are gone for a moment
// were taken by nobody.
func TestOwnHands(t *testing.T) {
	w, m, foreign := mirroring(t)
	before := *w.Image().Partition(orders0)
	_, release := m.claim(leadTask, []protocol.PartitionID{orders0})
	w.change("orders", func(p *kraft.Partition) { p.Replicas, p.ISR, p.Leader = []int32{1, 2, 3}, []int32{1, 2, 3}, 1 })
	rounds(t, m, 2)
	w.change("orders", func(p *kraft.Partition) { *p = before })
	rounds(t, m, 2)
	release()
	rounds(t, m, 2)
	if *foreign != 0 {
		t.Errorf("%d foreign changes", *foreign)
	}
	w.change("orders", func(p *kraft.Partition) { p.Replicas, p.ISR = []int32{9001, 1, 2, 3}, []int32{9001, 1, 2, 3} })
	rounds(t, m, 3)
	if *foreign != 1 {
		t.Errorf("%d foreign changes after one", *foreign)
	}
}

// TestTakeoverEnds: a takeover is over when we lead, and when another process has set its list over ours; not before ours shows.
func TestTakeoverEnds(t *testing.T) {
	_, m, _ := mirroring(t)
	real, ours, theirs := []int32{1, 2, 3}, []int32{9001, 9002, 1, 2, 3}, []int32{9003, 9004, 1, 2, 3}
	unfinished := []int32{9001, 9002, 9005, 1, 2, 3} // what ours has replaced
	over := m.takeoverEnds(map[protocol.PartitionID][]int32{orders0: unfinished})
	for i, step := range []struct {
		list, removing []int32
		leader         int32
		want           bool
	}{
		{unfinished, nil, 1, false}, {real, nil, 1, false}, {theirs, nil, 1, false}, {ours, nil, 1, false}, {theirs, nil, 1, true},
		{ours, nil, 1, false}, {[]int32{9001, 9003, 1, 2, 3}, []int32{9001}, 1, true}, {ours, nil, 9001, true},
	} {
		p := &kraft.Partition{Replicas: step.list, Removing: step.removing, Leader: step.leader}
		if got := over(orders0, p); got != step.want {
			t.Errorf("step %d: %v of %+v", i, got, p)
		}
	}
}

// rival is a destination at which another process sets its list over ours while we join an ISR.
type rival struct{ *world }

func (r rival) JoinISR(ctx context.Context, _ int32, parts []protocol.PartitionID) map[protocol.PartitionID]error {
	synctest.Wait() // our list has been seen
	r.change("orders", func(p *kraft.Partition) { p.Replicas = []int32{9003, 9004, 1, 2, 3} })
	<-ctx.Done()
	return map[protocol.PartitionID]error{parts[0]: ctx.Err()}
}

// TestALostTakeoverIsNoFailure: who has lost a partition to another process in the middle of a takeover ends it at once, without an error.
func TestALostTakeoverIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, Leader: 1, LeaderEpoch: 5}, lockOn)
		m := newManager(t, w, mirrorTopic("orders", ordersID))
		m.cfg.Destination = rival{w}
		began := time.Now()
		if err := m.lead(t.Context(), []protocol.PartitionID{orders0}); err != nil || time.Since(began) > 0 {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}
