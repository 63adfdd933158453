package fetch

import (
	"math"
	"slices"
	"time"
)

// Followers that lag behind the window are served by reads of their own, over a connection of its own so that they don't
// hold up the newest records. What one of them needed is kept for a while for others that lag as far.

// catchUpKeep is how long chunks below the window are kept after their last use.
const catchUpKeep = 10 * time.Second

// catchUpRead returns chunks that begin at or below offset, or asks for them.
func (p *partition) catchUpRead(offset int64) chunks {
	for i, c := range p.catch {
		if c.from <= offset && offset < c.next {
			if i > 0 { // the last one used stays longest
				p.catch = append(slices.Delete(p.catch, i, i+1), nil)
				copy(p.catch[1:], p.catch)
				p.catch[0] = c
			}
			p.catchUsed = time.Now()
			if c.next < p.catchUpEnd() {
				p.wantCatchUp(c.next)
			}
			return chunks{c}
		}
	}
	p.wantCatchUp(offset)
	return nil
}

// catchUpEnd is where reads below the window end.
func (p *partition) catchUpEnd() int64 {
	if p.assign.Role != RoleDrain {
		return p.win.from(p.src.next)
	}
	return min(p.win.from(math.MaxInt64), p.end())
}

// wantCatchUp asks for a read at offset, unless it is there.
func (p *partition) wantCatchUp(offset int64) {
	if p.src.mir == nil || p.src.broker < 0 {
		return
	}
	for _, c := range p.catch {
		if c.from <= offset && offset < c.next {
			return
		}
	}
	if !slices.Contains(p.wanted, offset) {
		p.wanted = append(p.wanted, offset)
		if len(p.wanted) > 8 { // whoever still needs the oldest asks again
			p.wanted = p.wanted[1:]
		}
	}
	if f := p.src.mir.fetcher(fetcherKey{catchUp, p.src.broker}); f != nil {
		f.add(p)
	}
}

// wantsCatchUp is wants for reads below the window. A partition can stand in a request once: what was asked for first
// goes first.
func (p *partition) wantsCatchUp(broker int32, now time.Time) (ok bool, again time.Time) {
	s := &p.src
	if p.closed || len(p.wanted) == 0 || !s.loaded || s.needLoad || s.fatal != nil || s.broker != broker {
		return false, time.Time{}
	}
	if now.Before(s.retryAt) {
		return false, s.retryAt
	}
	return true, time.Time{}
}

// pushCatchUp keeps a chunk that was read below the window. Old ones go, also those that just were served: replies hold
// what they need.
func (p *partition) pushCatchUp(c *chunk) {
	p.wanted = slices.DeleteFunc(p.wanted, func(o int64) bool { return c.from <= o && o < c.next })
	p.catch = slices.Insert(p.catch, 0, c)
	p.catchBytes += len(c.data)
	added := c.hold()
	for len(p.catch) > 1 && p.catchBytes > p.l.cfg.WindowBytes/2 {
		last := p.catch[len(p.catch)-1]
		p.catch[len(p.catch)-1] = nil
		p.catch = p.catch[:len(p.catch)-1]
		p.catchBytes -= len(last.data)
		added -= last.release()
	}
	p.l.memory.Add(int64(added))
	p.catchUsed = time.Now()
	p.wakeAll()
}

// tick looks at what only time changes.
func (p *partition) tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetCatchUp(now)
	p.noteStop(now)
}

// forgetCatchUp drops chunks below the window that nobody has needed for a while. Followers that have caught up come back
// to them never, and they count against what all windows may hold.
func (p *partition) forgetCatchUp(now time.Time) {
	if len(p.catch) == 0 || now.Sub(p.catchUsed) < catchUpKeep {
		return
	}
	p.l.memory.Add(-int64(p.dropCatchUp()))
}

// dropCatchUp drops all chunks below the window and returns the bytes freed.
func (p *partition) dropCatchUp() (freed int) {
	for _, c := range p.catch {
		freed += c.release()
	}
	p.catch, p.catchBytes = nil, 0
	return freed
}
