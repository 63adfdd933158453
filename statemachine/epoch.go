package statemachine

// The epoch rule of KIP-1279: the destination's leader epoch (DLE) stays above the source's (SLE), because brokers and
// clients refuse batches from the future, and clients that committed a source epoch would refresh metadata for ever.
const (
	// EpochHeadroom: a bump is due when fewer than this many epochs are left.
	EpochHeadroom int32 = 3
	// EpochIncrement is how far above the source's epoch a bump goes.
	EpochIncrement int32 = 10
)

// EpochSafe reports whether batches of the source's present epoch may be handed out: DLE > SLE. An unknown SLE (-1) is safe.
func EpochSafe(sle, dle int32) bool { return dle > sle }

// BumpTarget returns the leader epoch that the destination should be brought to, and whether a bump is due. The first leg of
// a large gap goes to SLE+EpochHeadroom only, so that a partition starts early; the rest follows in the background.
func BumpTarget(sle, dle int32) (target int32, due bool) {
	if sle < 0 || sle <= dle-EpochHeadroom {
		return dle, false
	}
	if !EpochSafe(sle, dle) {
		return sle + EpochHeadroom, true
	}
	return sle + EpochIncrement, true
}
