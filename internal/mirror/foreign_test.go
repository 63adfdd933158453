package mirror

import (
	"slices"
	"testing"

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
	p := w.Image().Partition(orders0)
	if p.Leader != 9001 || !slices.Contains(p.Replicas, 9002) || *foreign != 0 {
		t.Errorf("leader %d of %v, %d foreign changes", p.Leader, p.Replicas, *foreign)
	}
}
