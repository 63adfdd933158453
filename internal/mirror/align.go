package mirror

import (
	"math"

	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
)

// alignEpoch is the last mirrored epoch (LME) to which a partition's replicas were aligned when its topic was started, -1 for
// none: a first mirror, or a start from scratch.
//
// What is stored as LME while a partition is PREPARING is this epoch too, or nothing for -1: start sees to that. A stop from
// PREPARING, also one by way of FAILED, must not store more: what replicas hold above it is the destination's own, and a source
// that mirrors back later would keep its own records there, under the same offsets. Storing nothing leaves it as it is.
func alignEpoch(t coordinator.Topic, partition int32) int32 {
	if int(partition) >= len(t.Align) {
		return -1
	}
	return max(t.Align[partition], -1)
}

// alignTo is the divergence that followers beyond it are told while PREPARING: the end of the LME in their own logs, the
// beginning where there is none.
func alignTo(t coordinator.Topic, partition int32) replica.Divergence {
	epoch := alignEpoch(t, partition)
	if epoch < 0 {
		return replica.Divergence{}
	}
	return replica.Divergence{Epoch: epoch, EndOffset: math.MaxInt64}
}
