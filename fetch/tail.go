package fetch

import (
	"bytes"
	"errors"
	"fmt"

	"kmirror/internal/replica"
	"kmirror/records"
)

// In RoleTail a log is what was mirrored, up to TruncateTo, and then batches of our own. They carry the leader epoch under
// which they are handed out: what followers have above TruncateTo under another one is an earlier tail, maybe in part, and is cut.

// ErrTail is Status.Err, with Fatal, when a tail can't follow the log that it was assigned for.
var ErrTail = errors.New("the tail does not fit the log")

// ErrTailEpoch is Status.Err, with EpochBlocked, when a tail must not be handed out under the present leader epoch: it isn't
// above the last mirrored one, or another tail was handed out under it.
var ErrTailEpoch = errors.New("the tail needs a newer leader epoch")

// tail is the serving side of RoleTail.
type tail struct {
	// stamped holds the batches with the present leader epoch, nil until somebody needs them or when there are none.
	stamped *chunk
	err     error // why the assigned tail can't be used
	// given is the tail of which something was handed out in this leader epoch, from where on and how far.
	given     *replica.Tail
	from, end int64
	// foreign: a follower has records of this leader epoch that we have not given.
	foreign bool
}

// tailEnd is where the log ends with its tail.
func (p *partition) tailEnd() int64 {
	if p.assign.Tail == nil {
		return p.assign.TruncateTo.EndOffset
	}
	return max(p.assign.Tail.End, p.assign.TruncateTo.EndOffset)
}

func (p *partition) tailed() bool {
	return p.assign.Role == RoleTail && p.rollCall && p.tail.err == nil && p.allAt(p.tailEnd())
}

// enterTail takes an assignment of RoleTail. What followers have above its begin is none of our log until they fetch as it.
func (p *partition) enterTail() {
	t := &p.tail
	if t.given != nil && p.assign.Tail != nil && t.from == p.assign.TruncateTo.EndOffset && sameTail(t.given, p.assign.Tail) {
		p.assign.Tail = t.given
	}
	t.stamped, t.err = nil, checkTail(p.assign)
	p.detach()
	p.dropData()
	p.src.next = -1
	p.cutTo(p.assign.TruncateTo.EndOffset, t.given != nil && t.given == p.assign.Tail)
}

func sameTail(a, b *replica.Tail) bool {
	return a == b || a.End == b.End && bytes.Equal(a.Batches, b.Batches)
}

// checkTail checks that the batches follow the log and each other without a gap.
func checkTail(a Assignment) error {
	to := a.TruncateTo.EndOffset
	if a.Tail == nil || to < 0 {
		return fmt.Errorf("%w: none is assigned, or it begins nowhere", ErrTail)
	}
	next := to
	for b := a.Tail.Batches; len(b) > 0; {
		batch, rest, err := records.Split(b)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrTail, err)
		case batch.BaseOffset() != next:
			return fmt.Errorf("%w: batch at offset %d where %d is due", ErrTail, batch.BaseOffset(), next)
		}
		next, b = batch.NextOffset(), rest
	}
	if next != a.Tail.End {
		return fmt.Errorf("%w: it ends at offset %d, not at %d", ErrTail, next, a.Tail.End)
	}
	return nil
}

// cutTo takes back what lies above the begin of a tail: whoever has something there has yet to show that it is ours, and until then
// the watermark must not point there. Consumers see nothing of it, it is control batches. keep leaves out followers of our tail.
func (p *partition) cutTo(to int64, keep bool) {
	p.hw, p.learnt = min(p.hw, to), min(p.learnt, to)
	for _, f := range p.followers {
		if f.offset > to && !(keep && f.counted && f.lastEpoch == p.leaderEpoch) {
			f.offset, f.counted = to, false
		}
	}
	p.eachReal(func(f *follower) bool {
		p.rollCall = p.rollCall && f != nil && f.counted
		return p.rollCall
	})
}

// tailBlocked says why nothing of the tail may be handed out now.
func (p *partition) tailBlocked() error {
	a, t := &p.assign, &p.tail
	switch {
	case t.err != nil:
		return t.err
	case a.TruncateTo.EndOffset > 0 && p.leaderEpoch <= a.TruncateTo.Epoch:
		return fmt.Errorf("%w: %d is not above the last mirrored one, %d", ErrTailEpoch, p.leaderEpoch, a.TruncateTo.Epoch)
	case t.foreign || t.given != nil && t.given != a.Tail:
		return fmt.Errorf("%w: another tail was handed out under %d", ErrTailEpoch, p.leaderEpoch)
	}
	return nil
}

// serveTail answers a follower in RoleTail.
func (p *partition) serveTail(a *asked, f *follower, c *caller, limit int, one bool, r *answer, bufs [][]byte) [][]byte {
	to, ours := p.assign.TruncateTo, a.lastEpoch == p.leaderEpoch
	given := max(p.tail.end, to.EndOffset)
	if p.tail.err == nil && ours && a.offset > given && !p.tail.foreign {
		// Of this very leader epoch, but not from us: an earlier process gave it.
		p.tail.foreign = true
		p.setBlocked()
		p.l.notify()
	}
	switch {
	case p.tailBlocked() != nil:
		p.hold(f, c, r)
		return bufs
	case a.offset > to.EndOffset && !ours, a.offset > 0 && a.lastEpoch > to.Epoch && !(ours && a.offset >= to.EndOffset):
		f.counted, f.lastFetch = false, c.now
		d := Divergence{Epoch: max(to.Epoch, 0), EndOffset: to.EndOffset}
		if to.EndOffset == 0 {
			d.Epoch = 0
		}
		p.logger().Info("follower is told to truncate to the begin of the tail", "follower", c.replica, "offset", a.offset,
			"last_epoch", a.lastEpoch, "to_epoch", d.Epoch, "to_offset", d.EndOffset)
		r.setDiverging(d, p.hw)
		return bufs
	case a.offset < to.EndOffset:
		// It lacks what was mirrored, which nobody gives it now. Being late it may be left out of the ISR.
		f.counted = false
		late := f.caughtUp
		p.hold(f, c, r)
		f.caughtUp = late
		return bufs
	}
	p.count(c.replica, f, a.offset, a.lastEpoch, c.fresh, c.now)
	if p.watermark(f, c, r) {
		bufs = p.readTail(a, f, limit, one, r, bufs)
	}
	p.noteStop(c.now)
	return bufs
}

// readTail adds the batches of the tail that the follower gets.
func (p *partition) readTail(a *asked, f *follower, limit int, one bool, r *answer, bufs [][]byte) [][]byte {
	t := &p.tail
	if a.offset >= p.tailEnd() {
		return bufs
	}
	if t.stamped == nil {
		if t.stamped, t.err = stamp(p.assign.Tail, p.assign.TruncateTo.EndOffset, p.leaderEpoch); t.err != nil {
			p.l.notify()
			return bufs
		}
	}
	bufs, n, _ := chunks{t.stamped}.read(bufs, a.offset, limit, p.leaderEpoch, p.tailEnd(), one)
	if r.hi, r.size = len(bufs), n; n == 0 {
		return bufs
	}
	f.fed = true
	t.given, t.from = p.assign.Tail, p.assign.TruncateTo.EndOffset
	end := t.stamped.next
	if at := t.stamped.seek(a.offset) + n; at < len(t.stamped.data) {
		end = records.Batch(t.stamped.data[at:]).BaseOffset()
	}
	t.end = max(t.end, end)
	return bufs
}

// stamp makes a copy of a tail with a leader epoch in all its batches; their checksums don't cover it.
func stamp(t *replica.Tail, from int64, epoch int32) (*chunk, error) {
	data := bytes.Clone(t.Batches)
	for b := data; len(b) > 0; {
		batch, rest, err := records.Split(b)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrTail, err)
		}
		batch.SetPartitionLeaderEpoch(epoch)
		b = rest
	}
	return parseChunk(data, from, -1, -1)
}

// tailEpochEnd answers OffsetForLeaderEpoch in RoleTail: what was mirrored ends where the tail begins, which is of our leader
// epoch.
func (p *partition) tailEpochEnd(epoch int32) (int32, int64, bool) {
	to := p.assign.TruncateTo
	h := p.src.hist.truncated(to.EndOffset)
	switch {
	case p.tail.err != nil:
		return -1, -1, false
	case epoch >= p.leaderEpoch:
		return p.leaderEpoch, p.tailEnd(), true
	case to.EndOffset == 0:
		return epoch, 0, true
	case p.src.loaded && len(h) > 0:
		e, end := h.endOffsetFor(epoch, to.EndOffset)
		return e, end, true
	case epoch >= to.Epoch && to.Epoch >= 0:
		return to.Epoch, to.EndOffset, true
	}
	return -1, -1, false
}
