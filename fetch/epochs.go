package fetch

import "sort"

// epochStart is one leader epoch of the source and the offset of its first record.
type epochStart struct {
	epoch int32
	start int64
}

// history is the source's leader epochs as a log holds them: both fields rise strictly. The end of an epoch is the start
// of the next one; that of the newest is the log's end, which the caller knows.
type history []epochStart

// record notes a batch of epoch at start; epochs that are not newer say nothing new.
func (h history) record(epoch int32, start int64) history {
	if n := len(h); n > 0 && epoch <= h[n-1].epoch {
		return h
	}
	h = h.truncated(start)
	return append(h, epochStart{epoch, start})
}

// truncated returns the epochs that have records below end.
func (h history) truncated(end int64) history {
	n := len(h)
	for n > 0 && h[n-1].start >= end {
		n--
	}
	return h[:n]
}

// endOffsetFor answers "the largest epoch at or below this one, and where it ends" as LeaderEpochFileCache.endOffsetFor
// does, but for an epoch above all known ones, which gets the newest one and the log's end instead of undefined: clients
// reset their position on undefined, and followers could not truncate. An empty history gives (0, 0).
func (h history) endOffsetFor(epoch int32, end int64) (int32, int64) {
	if len(h) == 0 {
		return 0, 0
	}
	above := sort.Search(len(h), func(i int) bool { return h[i].epoch > epoch })
	switch {
	case above == len(h):
		return h[above-1].epoch, max(end, h[above-1].start)
	case above == 0:
		return epoch, h[0].start
	}
	return h[above-1].epoch, h[above].start
}

// at returns the index of the epoch that a record at offset has, -1 below the first.
func (h history) at(offset int64) int {
	return sort.Search(len(h), func(i int) bool { return h[i].start > offset }) - 1
}

// epochAt returns the epoch that a record at offset has, -1 below the first.
func (h history) epochAt(offset int64) int32 {
	if i := h.at(offset); i >= 0 {
		return h[i].epoch
	}
	return -1
}

// firstAbove returns where the first epoch above the given one starts, or none.
func (h history) firstAbove(epoch int32) (int64, bool) {
	i := sort.Search(len(h), func(i int) bool { return h[i].epoch > epoch })
	if i == len(h) {
		return 0, false
	}
	return h[i].start, true
}

// common returns the largest offset up to which a log with history a ending at aEnd and one with history b ending at
// bEnd agree. The same epoch at the same offset is the same batch, by what Kafka promises. Nothing below start is looked
// at: it is gone from the source.
func common(a history, aEnd int64, b history, bEnd, start int64) int64 {
	t := min(aEnd, bEnd)
	for t > start {
		ia, ib := a.at(t-1), b.at(t-1)
		if ia < 0 || ib < 0 || a[ia].epoch == b[ib].epoch {
			break // below what one of them knows there is nothing that contradicts
		}
		t = max(a[ia].start, b[ib].start)
	}
	return t
}
