package fetch

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

// source is a partition's side towards the source cluster, guarded by the partition's mutex.
type source struct {
	mir *mirror
	fet *fetcher
	// broker leads the partition at the source under epoch, both -1 while unknown. Epochs never fall (franz-go #1331).
	broker, epoch int32
	// gen changes whenever a reply in flight must not be used any more.
	gen uint64
	// hist is the source's whole history once loaded; loads counts how often it was, needLoad that it must be again and
	// that nothing is fetched before.
	hist     history
	loaded   bool
	needLoad bool
	loads    uint64
	// start and end are the source's log start and high watermark, leo its log end as of the last load; -1 unknown.
	start, end, leo int64
	// endAt is when the source last told its end.
	endAt time.Time
	// next is the offset to read next, -1 before the first read; prevEpoch the epoch of the batch before it. An answer
	// without batches changes neither (KAFKA-15510).
	next      int64
	prevEpoch int32
	// starved: next was not asked for although it soon may be, because the window is full or reading is about to begin.
	starved bool
	// attached is when the mirror began to read the partition.
	attached time.Time

	lastFetch   time.Time
	fetched     int64
	divergences int64
	diverged    error
	divergedAt  int64
	// rolledBack: its leader has less under the newest epoch than it once gave.
	rolledBack bool
	fatal, err error
	// missing counts metadata answers in a row that lack the topic, since missingSince.
	missing      int
	missingSince time.Time
	fails        int
	retryAt      time.Time
}

func (s *source) reset() {
	*s = source{
		gen: s.gen + 1, broker: -1, epoch: -1, start: -1, end: -1, leo: -1, next: -1, prevEpoch: -1,
		divergences: s.divergences, fetched: s.fetched,
	}
}

// Errors of the source that only an operator can mend; Status.Fatal is set with them.
var (
	ErrSourceRecreated   = errors.New("source topic was deleted and made anew")
	ErrSourceGone        = errors.New("source topic does not exist")
	ErrSourceUnsupported = errors.New("source holds records that can't be mirrored")
)

// ErrWrongCluster: the addresses of the source lead to another cluster. Nothing is read from it, and nothing is lost: it goes on once they
// lead back.
var ErrWrongCluster = errors.New("the source is another cluster")

// rolledBackError says that the source lost records without an election that would tell: it was restored from a copy of its disks, or
// they lost what they had. Under the same leader epoch it may have other records by now, which nobody could tell from those that were
// mirrored once they are as many.
type rolledBackError struct {
	epoch int32
	// had is where the log that was mirrored ends, has up to where the source can have the same.
	had, has int64
}

func (e *rolledBackError) Error() string {
	return fmt.Sprintf("source once had records up to offset %d that it no longer has, or others from %d on, under the same leader epoch %d: "+
		"it was set back", e.had, e.has, e.epoch)
}

// Hint says what to do.
func (e *rolledBackError) Hint() string {
	return "compare with kmirror verify; failover keeps what was mirrored, start --overwrite discards it and copies what the source has now"
}

func (p *partition) logger() *slog.Logger {
	return p.l.log.With("mirror", p.assign.Mirror, "topic", p.topic, "partition", p.id.Partition)
}

// reads reports whether a partition in a role looks at its source. In RoleTruncate only its metadata and epochs are read: the
// source's leader epoch decides whether the destination's must be raised before anything is handed out.
func reads(r Role) bool {
	return r == RoleMirror || r == RoleFrozen || r == RoleDrain || r == RoleTruncate
}

// attach makes the mirror read this partition, if the mirror is known.
func (p *partition) attach() {
	if p.closed || p.src.mir != nil || !reads(p.assign.Role) {
		if p.src.fet != nil {
			p.src.fet.kick()
		}
		return
	}
	m := p.l.mirror(p.assign.Mirror)
	if m == nil {
		p.src.err = fmt.Errorf("mirror %q is not known", p.assign.Mirror)
		return
	}
	p.src.mir, p.src.err, p.src.attached = m, nil, time.Now()
	p.src.needLoad = true
	m.add(p)
}

// detach stops reading. What was read stays.
func (p *partition) detach() {
	if p.src.mir == nil {
		return
	}
	if p.src.fet != nil {
		p.src.fet.remove(p)
	}
	p.src.mir.remove(p)
	p.src.mir, p.src.fet = nil, nil
	p.src.broker, p.src.epoch = -1, -1
	p.src.gen++
}

// fail notes why the partition does not move and when to try again: backoff doubles to a cap with jitter, and a good
// fetch ends it.
func (p *partition) fail(err error, now time.Time) {
	if p.src.err == nil || p.src.err.Error() != err.Error() {
		p.logger().Warn("source partition does not move", "error", err)
		p.l.notify()
	}
	p.src.err = err
	p.src.fails++
	p.src.retryAt = now.Add(backoff(p.src.fails))
}

// failForGood is fail for what no retry can help.
func (p *partition) failForGood(err error) {
	if p.src.fatal == nil {
		p.logger().Error("source partition failed", "error", err)
	}
	p.src.fatal = err
	p.src.gen++
	p.l.notify()
}

// recovered ends a failure.
func (p *partition) recovered() {
	if p.src.err != nil {
		p.logger().Info("source partition moves again")
		p.src.err = nil
		p.l.notify()
	}
	p.src.fails, p.src.retryAt = 0, time.Time{}
}

// startingFor is how long long polls are kept short for the sake of a partition that is about to be read.
const startingFor = 30 * time.Second

const (
	backoffMin = 50 * time.Millisecond
	backoffMax = 5 * time.Second
)

// backoff returns the jittered wait before the n-th retry.
func backoff(n int) time.Duration {
	d := backoffMin << min(max(n-1, 0), 10)
	d = min(d, backoffMax)
	return d/2 + rand.N(d/2+1)
}

// learnLeader takes a source leader and epoch from metadata or from an answer. Without a leader (-1), or when older than
// what is known, it says nothing; it reports whether the partition has to be placed anew.
func (p *partition) learnLeader(broker, epoch int32) bool {
	s := &p.src
	if broker < 0 || epoch < s.epoch || broker == s.broker && epoch == s.epoch {
		return false
	}
	if epoch > s.epoch {
		s.gen++ // replies to requests under the old epoch come too late (KAFKA-18723)
		s.retryAt = time.Time{}
		p.l.notify()
	}
	s.broker, s.epoch = broker, epoch
	return true
}

// reload asks for the history again; until it is there nothing is fetched.
func (p *partition) reload() {
	if p.src.mir == nil {
		return
	}
	if !p.src.needLoad {
		p.src.needLoad = true
		p.src.gen++
	}
	p.src.mir.kickLoad()
}

// loadedHistory takes a fresh history of the source: start, high watermark and log end belong to it. What was read from
// the source and is not in it any more is dropped, loudly.
func (p *partition) loadedHistory(h history, start, end, leo int64, now time.Time) {
	s := &p.src
	old, had := s.hist, s.loaded
	oldEnd := max(s.next, p.learnt, 0) // a frozen log ends below what is kept for its next life
	if has := max(leo, end); had && s.next >= 0 && has < oldEnd && old.epochAt(oldEnd-1) >= s.epoch {
		s.needLoad = false
		s.loads++
		p.setBack(oldEnd, has)
		return // with the history that fits what was mirrored: nothing of it is cut
	}
	s.hist, s.start, s.end, s.leo, s.endAt = h, start, end, max(leo, end), now
	s.loaded, s.needLoad = true, false
	s.loads++
	p.recovered()
	if had && s.next >= 0 {
		if t := common(old, oldEnd, h, s.leo, start); t < oldEnd {
			p.diverge(t)
		}
	}
	if s.next >= 0 && s.next < start {
		p.startAt(start)
	}
	p.setBlocked()
	p.advance(now)
	p.wakeAll()
	if s.fet != nil {
		s.fet.kick()
	}
}

// setBack fails a partition whose source has less of its present epoch than followers have, or something else.
func (p *partition) setBack(had, has int64) {
	p.src.rolledBack = true
	p.failForGood(&rolledBackError{epoch: p.src.epoch, had: had, has: has})
	p.wakeAll()
}

// diverge truncates our log: the source lost records that it had shown as committed. Followers are told with their next
// fetch. The high watermark has to follow, else it would point to records that nobody has (KAFKA-9491).
func (p *partition) diverge(to int64) {
	s := &p.src
	s.divergences++
	s.diverged = fmt.Errorf("source truncated its log to offset %d, leader epoch %d; we had read up to %d", to, s.epoch, s.next)
	s.divergedAt = to
	p.logger().Warn("source diverged", "truncated_to", to, "was_at", s.next, "high_watermark", p.hw)
	p.l.cfg.Observer.Diverged(p.assign.Mirror, p.topic, p.id.Partition)
	p.l.memory.Add(-int64(p.win.truncate(to) + p.dropCatchUp()))
	p.wanted = nil
	s.gen++
	s.next = min(s.next, to)
	s.prevEpoch = s.hist.epochAt(s.next - 1)
	p.learnt = min(p.learnt, to)
	if p.hw > to {
		p.l.cfg.Observer.WatermarkRegressed(p.assign.Mirror, p.topic, p.id.Partition)
	}
	p.hw, p.hwFloor = min(p.hw, to), min(p.hwFloor, to)
	p.epochStart = min(p.epochStart, to)
	for _, f := range p.followers {
		if f.offset > to {
			f.offset, f.counted = to, false
		}
	}
	p.l.notify()
}

// startAt begins reading at an offset, with an empty window.
func (p *partition) startAt(offset int64) {
	s := &p.src
	p.l.memory.Add(-int64(p.win.clear()))
	s.next = max(offset, s.start, 0)
	s.prevEpoch = s.hist.epochAt(s.next - 1)
	s.gen++
	if s.fet != nil {
		s.fet.kick()
	}
}

// wants reports whether the partition is to be fetched now, from where, and when to look again if not.
func (p *partition) wants(now time.Time) (ok bool, again time.Time) {
	s := &p.src
	s.starved = false
	if p.closed || p.assign.Role != RoleMirror || s.fatal != nil || s.broker < 0 {
		return false, time.Time{}
	}
	if !s.loaded || s.needLoad || s.next < 0 {
		s.starved = now.Sub(s.attached) < startingFor
		return false, time.Time{}
	}
	if now.Before(s.retryAt) {
		return false, s.retryAt
	}
	if !p.room(now) {
		s.starved = true
		return false, time.Time{}
	}
	return true, time.Time{}
}

// room makes room for one more chunk where the bounds allow: a full window gives up what no active follower needs.
func (p *partition) room(now time.Time) bool {
	if p.fits() {
		return true
	}
	if lowest, ok := p.lowest(now); ok {
		p.evictBelow(lowest)
	}
	return p.fits()
}

func (p *partition) fits() bool {
	if len(p.win.chunks) == 0 {
		return true
	}
	return p.win.bytes < p.l.cfg.WindowBytes && p.l.memory.Load() < p.l.memoryLimit.Load()
}

// lowest returns the smallest offset within the window that an active follower reads at.
func (p *partition) lowest(now time.Time) (int64, bool) {
	from, lowest, ok := p.win.from(p.src.next), int64(0), false
	for _, f := range p.followers {
		if f.offset < from || now.Sub(f.lastFetch) > p.l.cfg.activeFor && !f.box.isParked() {
			continue
		}
		if !ok || f.offset < lowest {
			lowest, ok = f.offset, true
		}
	}
	return lowest, ok
}

// evictPassed drops what every ISR member and every active follower has passed.
func (p *partition) evictPassed() {
	if len(p.win.chunks) == 0 {
		return
	}
	from, lowest := p.win.from(p.src.next), int64(-1)
	for id, f := range p.followers {
		if f.offset < from || lowest >= 0 && f.offset >= lowest {
			continue
		}
		if p.inMaximal(id) || f.box.isParked() || time.Since(f.lastFetch) <= p.l.cfg.activeFor {
			lowest = f.offset
		}
	}
	p.evictBelow(lowest)
	if p.src.starved && p.fits() && p.src.fet != nil {
		p.src.fet.kick()
	}
}

func (p *partition) evictBelow(offset int64) {
	freed := 0
	for len(p.win.chunks) > 0 && p.win.chunks[0].next <= offset {
		freed += p.win.evict()
	}
	p.l.memory.Add(-int64(freed))
}
