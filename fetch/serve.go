package fetch

import (
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// caller is the follower of one Fetch.
type caller struct {
	replica, node int32
	brokerEpoch   int64
	// stale: the metadata log knows a newer incarnation of this broker.
	stale bool
	byID  bool
	box   *mailbox
	// fresh: the request just came; later looks of the same parked request are not.
	fresh bool
	now   time.Time
}

// answer is what one partition of a Fetch is told.
type answer struct {
	a    *asked
	code int16
	// held: nothing can be said yet. Incremental answers leave the partition out, others say UNKNOWN_LEADER_EPOCH, which
	// makes followers ask again after a while.
	held bool
	// diverging: div is set. Its watermark is never above where the logs part (KAFKA-14704).
	diverging   bool
	div         Divergence
	hw, start   int64
	mirrorEpoch int32
	// records are bufs[lo:hi] of the call, size their bytes.
	lo, hi, size int
}

// setError makes the answer an error as brokers send one.
func (r *answer) setError(code int16) { r.code, r.hw, r.start = code, -1, -1 }

func (r *answer) setDiverging(d Divergence, hw int64) {
	r.diverging, r.div = true, d
	r.hw = max(min(hw, d.EndOffset), 0)
	r.start = 0
}

// find returns the partition that a follower means, or the error that a broker would give.
func (l *Leader) find(a *asked, c *caller, img *kraft.Image) (p *partition, code int16, held bool) {
	var t *kraft.Topic
	unread := img.Offset < 0 // nothing of the metadata log has been seen
	if c.byID {
		if t = img.Topics[a.topic]; t == nil {
			return nil, kerr.UnknownTopicID.Code, unread
		}
	} else if t = img.TopicByName(a.name); t == nil {
		return nil, kerr.UnknownTopicOrPartition.Code, unread
	}
	if a.index < 0 || int(a.index) >= len(t.Partitions) {
		return nil, kerr.UnknownTopicOrPartition.Code, false
	}
	a.topic = t.ID
	if p = l.part(protocol.PartitionID{Topic: t.ID, Partition: a.index}); p != nil {
		return p, 0, false
	}
	// A follower that knows of a newer leader epoch than our image is right to be here: the image will follow.
	ahead := a.leaderEpoch > t.Partitions[a.index].LeaderEpoch
	return nil, kerr.NotLeaderForPartition.Code, ahead
}

// answer serves one partition of a Fetch: at most limit bytes, but with one the first batch whatever its size.
func (l *Leader) answer(a *asked, c *caller, limit int, one bool, r *answer, bufs [][]byte) [][]byte {
	*r = answer{a: a, hw: -1, start: -1, lo: len(bufs), hi: len(bufs), mirrorEpoch: -1}
	for range 2 {
		if a.p == nil {
			p, code, held := l.find(a, c, l.image())
			if p == nil {
				r.setError(code)
				if held {
					r.setError(kerr.UnknownLeaderEpoch.Code)
					r.held = true
				}
				return bufs
			}
			a.p = p
		}
		a.p.mu.Lock()
		if a.p.closed {
			a.p.mu.Unlock()
			a.p = nil
			continue
		}
		bufs = a.p.serve(a, c, limit, one, r, bufs)
		a.p.mu.Unlock()
		return bufs
	}
	r.setError(kerr.NotLeaderForPartition.Code)
	return bufs
}

// serve is answer for a partition that we lead, locked.
func (p *partition) serve(a *asked, c *caller, limit int, one bool, r *answer, bufs [][]byte) [][]byte {
	if code, held := p.fence(a, c); code != 0 {
		r.setError(code)
		r.held = held
		return bufs
	}
	if p.l.guest(c.replica) {
		// Another process of kmirror that stays in the ISR or gets into it: it keeps no log, and wants none of ours.
		if r.hw, r.start = max(p.hw, 0), 0; c.stale {
			r.setError(kerr.StaleBrokerEpoch.Code)
		}
		return bufs
	}
	f := p.follower(c.replica)
	if c.brokerEpoch >= 0 && c.brokerEpoch < f.brokerEpoch || c.stale {
		r.setError(kerr.StaleBrokerEpoch.Code)
		return bufs
	}
	if c.brokerEpoch > f.brokerEpoch { // what an earlier incarnation had says nothing about this one
		caughtUp := f.caughtUp
		*f = *newFollower(c.brokerEpoch)
		f.caughtUp = caughtUp
	}
	f.box, f.logStart = c.box, a.logStart
	if a.offset < 0 {
		r.setError(kerr.OffsetOutOfRange.Code)
		return bufs
	}
	if a.mirrorEpoch {
		r.mirrorEpoch = max(p.handed, p.src.prevEpoch)
	}
	switch p.assign.Role {
	case RoleTruncate:
		p.serveTruncate(a, f, c, r)
	case RoleStray:
		p.count(c.replica, f, a.offset, a.lastEpoch, c.fresh, c.now)
		p.watermark(f, c, r)
	case RoleFrozen:
		if p.admit(a, f, c, r) {
			p.watermark(f, c, r)
			p.noteStop(c.now)
		}
	case RoleDrain:
		if p.admit(a, f, c, r) {
			if p.watermark(f, c, r) {
				bufs = p.read(a, f, limit, one, r, bufs)
			}
			p.noteStop(c.now)
		}
	case RoleTail:
		bufs = p.serveTail(a, f, c, limit, one, r, bufs)
	case RoleMirror:
		if p.admit(a, f, c, r) && p.watermark(f, c, r) {
			bufs = p.read(a, f, limit, one, r, bufs)
		}
	default:
		p.hold(f, c, r)
	}
	return bufs
}

// fence checks leader and leader epoch. Whoever is ahead of our image is held, since the image is about to follow; who is
// behind at another leader is only told so, as FENCED_LEADER_EPOCH stops a follower until it learns of the new epoch.
func (p *partition) fence(a *asked, c *caller) (code int16, held bool) {
	switch {
	case a.leaderEpoch > p.leaderEpoch:
		return kerr.UnknownLeaderEpoch.Code, true
	case p.leader != c.node:
		return kerr.NotLeaderForPartition.Code, false
	case a.leaderEpoch >= 0 && a.leaderEpoch < p.leaderEpoch:
		return kerr.FencedLeaderEpoch.Code, false
	case !slices.Contains(p.replicas, c.replica):
		return kerr.UnknownLeaderEpoch.Code, false
	}
	return 0, false
}

// hold keeps a follower waiting. It can't help being behind meanwhile.
func (p *partition) hold(f *follower, c *caller, r *answer) {
	r.setError(kerr.UnknownLeaderEpoch.Code)
	r.held = true
	f.lastFetch, f.caughtUp = c.now, c.now
}

func (p *partition) serveTruncate(a *asked, f *follower, c *caller, r *answer) {
	to := p.assign.TruncateTo
	if a.offset > to.EndOffset || a.offset > 0 && a.lastEpoch > to.Epoch {
		f.below = false
		f.lastFetch, f.caughtUp = c.now, c.now
		r.setDiverging(to, 0)
		return
	}
	f.offset, f.below = a.offset, true
	p.noteTruncated()
	p.hold(f, c, r)
}

// admit decides whether the follower's log is a part of ours, and counts the fetch if so.
func (p *partition) admit(a *asked, f *follower, c *caller, r *answer) bool {
	s, still := &p.src, frozen(p.assign.Role)
	if (!s.loaded || s.needLoad) && !(still && p.lost()) {
		p.hold(f, c, r)
		return false
	}
	if s.loaded && a.lastEpoch >= 0 && !(still && s.rolledBack) { // of what was set back followers have the only copy
		e, end := s.hist.endOffsetFor(a.lastEpoch, p.historyEnd())
		if (e != a.lastEpoch || end < a.offset) && !(s.needLoad && p.beyond(a)) {
			p.parted(a, f, c, r, Divergence{Epoch: e, EndOffset: end})
			return false
		}
	}
	if s.loaded && a.offset < s.start && !still { // a frozen log keeps what its followers have
		f.counted = false
		r.setError(kerr.OffsetOutOfRange.Code)
		return false
	}
	if s.loaded && p.assign.Role == RoleMirror && a.lastEpoch < 0 && a.offset > p.historyEnd() {
		f.counted = false
		r.setError(kerr.OffsetOutOfRange.Code)
		return false
	}
	p.count(c.replica, f, a.offset, a.lastEpoch, c.fresh, c.now)
	return true
}

// beyond reports whether a follower's log may well be a part of the source's, of which more was known when it got it: it is
// longer than what we know, and ends with no older epoch.
func (p *partition) beyond(a *asked) bool {
	h := p.src.hist
	return a.offset >= p.historyEnd() && (len(h) == 0 || a.lastEpoch >= h[len(h)-1].epoch)
}

// parted answers a follower whose log is not a part of ours. What we know of the source may be older than what it has,
// so the source is asked once more before anything is cut; where it can't be asked what we know has to do.
func (p *partition) parted(a *asked, f *follower, c *caller, r *answer, d Divergence) {
	f.counted = false
	asks := !(frozen(p.assign.Role) && p.src.needLoad && p.lost())
	if asks && (f.suspect == 0 || p.src.loads < f.suspect) {
		if f.suspect == 0 && p.src.mir != nil && p.src.fatal == nil {
			f.suspect = p.src.loads + 1
			p.reload()
		}
		p.hold(f, c, r)
		return
	}
	f.lastFetch = c.now
	f.suspect = 0
	if s := &p.src; s.epoch >= 0 && d.Epoch >= s.epoch && d.EndOffset < a.offset {
		if a.lastEpoch <= d.Epoch {
			p.setBack(a.offset, d.EndOffset)
			p.hold(f, c, r)
			return
		}
		// It led for a moment: first its own epochs have to go, then it tells under which it has more than the source.
		d.EndOffset = a.offset
	}
	p.logger().Info("follower is told to truncate", "follower", c.replica, "offset", a.offset, "last_epoch", a.lastEpoch,
		"to_epoch", d.Epoch, "to_offset", d.EndOffset)
	r.setDiverging(d, p.hw)
}

// watermark fills in high watermark and log start, or holds the follower while no watermark can be given: brokers take
// whatever they are told, lower ones too. A log start above it, or above the follower's end, would stop the follower.
func (p *partition) watermark(f *follower, c *caller, r *answer) bool {
	hw := p.hw
	if hw < 0 {
		if !p.rollCall || p.assign.Role != RoleStray && p.inMaximal(c.replica) {
			p.hold(f, c, r)
			return false
		}
		// Not in the ISR, and nobody can say where the watermark is: below what followers have, at any rate.
		hw = f.offset
		for _, other := range p.followers {
			if other.counted {
				hw = min(hw, other.offset)
			}
		}
	}
	r.hw = hw
	if r.start = 0; p.assign.Role == RoleMirror { // else followers keep what they have
		r.start = min(max(p.src.start, 0), hw, f.offset)
	}
	return true
}

// read adds the records that the follower gets.
func (p *partition) read(a *asked, f *follower, limit int, one bool, r *answer, bufs [][]byte) [][]byte {
	s, upTo, drain := &p.src, int64(math.MaxInt64), p.assign.Role == RoleDrain
	switch {
	case drain:
		if upTo = p.end(); a.offset >= upTo || !s.loaded {
			return bufs
		}
	case s.next < 0:
		p.begin(a.offset)
	}
	if !drain && a.offset >= s.next {
		if s.starved && s.fet != nil {
			s.fet.kick()
		}
		return bufs
	}
	cs := p.win.chunks
	if a.offset < p.win.from(s.next) || drain && cs.find(a.offset) < 0 {
		if cs = p.catchUpRead(a.offset); cs == nil {
			return bufs
		}
	}
	bufs, n, last := cs.read(bufs, a.offset, limit, p.leaderEpoch, upTo, one)
	r.hi, r.size = len(bufs), n
	if f.fed = n > 0; f.fed {
		p.handed = max(p.handed, last)
	}
	return bufs
}

// begin chooses where reading starts: at the lowest end of an in-sync replica, else at the follower that asks.
func (p *partition) begin(offset int64) {
	lowest := int64(-1)
	for _, id := range p.isr {
		if f := p.followers[id]; f != nil && f.counted && (lowest < 0 || f.offset < lowest) {
			lowest = f.offset
		}
	}
	if lowest < 0 {
		lowest = offset
	}
	p.startAt(lowest)
}
