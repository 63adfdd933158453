package fetch

import (
	"slices"
	"time"

	"kmirror/records"
)

// A log that is frozen (RoleDrain, RoleFrozen) ends where the longest in-sync replica ends. Nobody is given anything beyond that,
// and nothing new is read; RoleDrain brings the other in-sync replicas there, from the window or by reads below it.

// frozen reports whether nothing new is handed out.
func frozen(r Role) bool { return r == RoleDrain || r == RoleFrozen }

// eachReal visits the real members of the maximal ISR, nil for one that has not fetched yet, until visit returns false.
func (p *partition) eachReal(visit func(f *follower) bool) {
	for _, id := range p.isr {
		if !p.l.guest(id) && !visit(p.followers[id]) {
			return
		}
	}
	if p.pending == nil {
		return
	}
	for _, id := range p.pending.members {
		if !p.l.guest(id) && !slices.Contains(p.isr, id) && !visit(p.followers[id]) {
			return
		}
	}
}

// frozenEnd is the end of a frozen log. It is looked at anew each time: an answer that was on its way as the role began makes
// a replica longer, and when the longest one leaves the ISR before the others have its records those were never committed. What
// replicas had before a change of leader epoch counts, so that the log ends no further than followers do. Without a real member
// it ends where one has to be in order to get in.
func (p *partition) frozenEnd() int64 {
	end := max(p.hw, p.hwFloor, 0)
	p.eachReal(func(f *follower) bool {
		if f != nil {
			end = max(end, f.offset)
		}
		return true
	})
	return end
}

// allAt reports whether there is a real member in the maximal ISR, and all of them end at end by what they asked for in this
// leader epoch. An answer with records that may still reach one says that it does not.
func (p *partition) allAt(end int64) bool {
	n, all := 0, true
	p.eachReal(func(f *follower) bool {
		n++
		all = f != nil && f.counted && !f.fed && f.offset == end
		return all
	})
	return all && n > 0
}

// converged reports whether the log is whole on every member. One that is only proposed does not do: the controller may refuse
// it, and then nobody has the log whom it would let lead.
func (p *partition) converged() bool {
	end := p.end()
	return frozen(p.assign.Role) && p.rollCall && p.realISR() > 0 && p.hw == end && p.allAt(end)
}

// lost reports that the source can't be asked for anything.
func (p *partition) lost() bool { return p.src.mir == nil || p.src.fatal != nil || p.src.err != nil }

// lacking returns the lowest end of a real member that is below the end of the log and finds nothing in memory.
func (p *partition) lacking() (lowest int64, lacks bool) {
	end := p.end()
	p.eachReal(func(f *follower) bool {
		if f != nil && f.counted && f.offset < end && !p.holds(f.offset, end) && (!lacks || f.offset < lowest) {
			lowest, lacks = f.offset, true
		}
		return true
	})
	return lowest, lacks
}

// holds reports whether a batch above offset and below end is in memory.
func (p *partition) holds(offset, end int64) bool {
	if i := p.win.chunks.find(offset); i >= 0 {
		return p.win.chunks[i].gives(offset, end)
	}
	for _, c := range p.catch {
		if c.from <= offset && offset < c.next {
			return c.gives(offset, end)
		}
	}
	return false
}

// gives reports whether a read at offset that must not pass end gets a batch.
func (c *chunk) gives(offset, end int64) bool {
	pos := c.seek(offset)
	return pos < len(c.data) && records.Batch(c.data[pos:]).NextOffset() <= end
}

// patience is by how much longer a source that reports no error may give nothing before a replica is held to be stuck.
const patience = 5

// noteStop finds out whether what a pause or stop waits for has come, or can't come, and tells of it.
func (p *partition) noteStop(now time.Time) {
	role := p.assign.Role
	if !frozen(role) && role != RoleTail && !p.stop.any() {
		return
	}
	was := p.stop
	p.stop.converged, p.stop.tailed = p.converged(), p.tailed()
	lowest, lacks := int64(0), false
	if role == RoleDrain {
		lowest, lacks = p.lacking()
	}
	switch {
	case !lacks:
		p.stop.since, p.stop.stuck = time.Time{}, false
	case p.stop.since.IsZero() || lowest != p.stop.lowest:
		p.stop.since, p.stop.lowest, p.stop.stuck = now, lowest, false
	case now.Sub(p.stop.since) >= p.l.cfg.stuckAfter && p.lost(), now.Sub(p.stop.since) >= patience*p.l.cfg.stuckAfter:
		p.stop.stuck = true
	}
	if was.converged != p.stop.converged || was.tailed != p.stop.tailed || was.stuck != p.stop.stuck {
		if p.stop.stuck {
			p.logger().Warn("a replica lacks what the source does not give", "at", lowest, "log_end", p.end(), "error", p.src.err)
		}
		p.l.notify()
	}
}

// stopNote is how a pause or stop stands, as was told last.
type stopNote struct {
	converged, tailed, stuck bool
	// since is how long the member that ends at lowest, the least of those that lack something, has lacked it.
	since  time.Time
	lowest int64
}

func (n *stopNote) any() bool { return n.converged || n.tailed || n.stuck || !n.since.IsZero() }

// lastEpoch is the epoch of the record before the end of a frozen log, by the source's history where it goes so far, else by what
// followers say. A replica that led for a moment has the epoch of that although it has no record of it; of replicas that end
// alike the others know better, so the least counts.
func (p *partition) lastEpoch() int32 {
	end := p.end()
	if p.src.loaded && end <= p.historyEnd() {
		if e := p.src.hist.epochAt(end - 1); e >= 0 {
			return e
		}
	}
	least := int32(-1)
	p.eachReal(func(f *follower) bool {
		if f != nil && f.counted && f.offset == end && f.lastEpoch >= 0 && (least < 0 || f.lastEpoch < least) {
			least = f.lastEpoch
		}
		return true
	})
	return least
}

// logStart is where our log starts: where the source's does, while that says anything of what followers hold, else where all of
// the in-sync ones have records.
func (p *partition) logStart() int64 {
	s, role := p.src.start, p.assign.Role
	if !frozen(role) && role != RoleTail || s >= 0 && s <= p.end() {
		return max(s, 0)
	}
	start := int64(0)
	p.eachReal(func(f *follower) bool {
		if f != nil {
			start = max(start, f.logStart)
		}
		return true
	})
	return min(start, p.end())
}
