package fetch

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// follower is what a partition knows of a replica on a real broker.
type follower struct {
	// offset is the log end of the follower as of its last counted fetch, -1 before the first. It outlives a change of
	// leader epoch, counted does not.
	offset  int64
	counted bool
	// brokerEpoch is that of its fetches, -1 when they carry none (before version 15). It never falls.
	brokerEpoch int64
	// lastFetch and lastEnd, our log end at that time, are those of its last fetch; caughtUp the last moment at which it
	// had all that we had (Replica.updateFetchStateOrThrow).
	lastFetch time.Time
	lastEnd   int64
	caughtUp  time.Time
	// lastEpoch is that of its last record, logStart where its log starts, as of the same fetch; fed says that what it was
	// answered held records which it may have by now.
	lastEpoch int32
	logStart  int64
	fed       bool
	// below: in RoleTruncate, its log ends at or below the point of truncation.
	below bool
	// suspect is the load of the history that has to end before this follower may be told to truncate, 0 for none.
	suspect uint64
	box     *mailbox
}

// partition is one that we lead. All fields are guarded by mu. It is closed for good when a real broker becomes leader,
// and carried over when leadership moves between ids of this process.
type partition struct {
	l  *Leader
	id protocol.PartitionID

	mu     sync.Mutex
	closed bool

	// What the image says.
	topic                               string
	leader, leaderEpoch, partitionEpoch int32
	replicas, isr                       []int32
	minISR                              int

	assign    Assignment
	followers map[int32]*follower
	// rollCall: every real member of the maximal ISR has a counted fetch in this leader epoch.
	rollCall bool
	// hw is the high watermark, -1 while unknown: it is known once the roll call was complete with enough members. Where
	// no real member was in the ISR, nobody is sure to have everything, and it is known only at or above hwFloor, the
	// source's own high watermark of that time.
	hw, hwFloor int64
	// epochStart is our log end as the leader epoch began; who is below may lack committed records.
	epochStart int64
	// learnt is the largest counted offset: records up to there exist even if we have not read them.
	learnt    int64
	truncated bool
	handed    int32 // newest epoch handed out, or had by followers
	blocked   bool
	pending   *pendingISR
	stop      stopNote
	tail      tail

	src source
	win window
	// catch holds chunks below the window for followers that lag, the one used last first.
	catch      []*chunk
	catchBytes int
	catchUsed  time.Time
	wanted     []int64
}

func newPartition(l *Leader, id protocol.PartitionID) *partition {
	p := &partition{
		l: l, id: id, followers: map[int32]*follower{},
		leader: -1, leaderEpoch: -1, partitionEpoch: -1,
		hw: -1, hwFloor: -1, epochStart: -1, handed: -1,
	}
	p.src.reset()
	return p
}

// update takes over what a new image says. The partition is led by one of our ids in it.
func (p *partition) update(img *kraft.Image, topic string, ip *kraft.Partition, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.topic, p.replicas, p.isr = topic, ip.Replicas, ip.ISR
	p.minISR = min(minInSync(img, topic), len(ip.Replicas))
	if p.pending != nil && ip.PartitionEpoch > p.pending.partitionEpoch {
		p.pending = nil
	}
	p.partitionEpoch = ip.PartitionEpoch
	for id := range p.followers {
		if !slices.Contains(ip.Replicas, id) {
			delete(p.followers, id)
		}
	}
	if ip.LeaderEpoch != p.leaderEpoch || ip.Leader != p.leader {
		p.newEpoch(ip, now)
	}
	p.advance(now)
	p.wakeAll()
}

// newEpoch begins a leader epoch: what followers fetched under the old one does not count any more.
func (p *partition) newEpoch(ip *kraft.Partition, now time.Time) {
	first := p.leaderEpoch < 0
	p.leader, p.leaderEpoch = ip.Leader, ip.LeaderEpoch
	p.rollCall, p.truncated = false, false
	p.epochStart = -1
	if !first && p.assign.Role != RoleWait {
		p.epochStart = p.end()
	}
	p.tail = tail{err: p.tail.err}
	for _, f := range p.followers {
		f.counted, f.below, f.suspect = false, false, 0
		f.caughtUp = now
	}
	if p.assign.Role == RoleTail {
		p.cutTo(p.assign.TruncateTo.EndOffset, false)
	}
	for _, id := range p.isr {
		if !p.l.guest(id) {
			p.follower(id).caughtUp = now
		}
	}
	p.setBlocked()
	p.l.notify()
}

// configured takes over what an image says outside of the topic: its configuration, and brokers that may join now.
func (p *partition) configured(img *kraft.Image, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := min(minInSync(img, p.topic), len(p.replicas)); n != p.minISR {
		p.minISR = n
		p.advance(now)
	}
	if len(p.isr) < len(p.replicas) {
		p.l.kickISR(p)
	}
}

func minInSync(img *kraft.Image, topic string) int {
	const key = "min.insync.replicas"
	v, ok := img.TopicConfig(topic, key)
	if !ok {
		v, ok = img.Configs[kraft.ConfigResource{Type: kraft.ConfigBroker}][key]
	}
	n := 0
	if ok {
		for _, c := range v {
			if c < '0' || c > '9' || n > 1<<24 {
				break
			}
			n = n*10 + int(c-'0')
		}
	}
	return max(n, 1)
}

// close ends the partition: leadership went to a real broker, or the topic is gone.
func (p *partition) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.detach()
	p.dropData()
	p.wakeAll()
	p.l.notify()
}

// setAssignment makes the partition what a says. What depends on the source is kept only while the source stays the same.
func (p *partition) setAssignment(a Assignment, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.assign
	p.assign = a
	if old == a || p.closed {
		return
	}
	sameSource := old.Mirror == a.Mirror && old.SourceTopicID == a.SourceTopicID
	if !sameSource || a.Role == RoleTruncate || a.Role == RoleWait || a.Role == RoleStray {
		p.detach()
		p.dropData()
		p.src.reset()
	}
	if a.Role == RoleTruncate || old.Role == RoleStray {
		// Followers are going to lose records, or never had any of ours: no watermark holds over that.
		p.hw, p.hwFloor, p.epochStart, p.learnt, p.handed = -1, -1, -1, 0, -1
		p.rollCall = false
	}
	if old.Role != a.Role || old.TruncateTo != a.TruncateTo {
		p.truncated = false
		for _, f := range p.followers {
			f.below, f.suspect, f.caughtUp = false, 0, now
			if old.Role == RoleTruncate || old.Role == RoleStray || old.Role == RoleWait {
				f.counted = false
			}
		}
		p.rollCall = p.rollCall && old.Role != RoleTruncate && old.Role != RoleStray && old.Role != RoleWait
	}
	if !sameSource || !frozen(a.Role) || p.src.loaded && !p.src.needLoad {
		p.src.fatal, p.src.err = nil, nil
	} // else followers would be held again until it is known again that the source does not answer
	p.src.rolledBack = p.src.rolledBack && a.Role != RoleMirror
	p.src.retryAt = time.Time{}
	switch {
	case a.Role == RoleTail:
		p.enterTail()
	case old.Role == RoleTail:
		p.cutTo(old.TruncateTo.EndOffset, false)
		p.tail.stamped, p.tail.err = nil, nil
	}
	if reads(a.Role) {
		p.attach()
	}
	p.setBlocked()
	p.advance(now)
	p.wakeAll()
	p.l.notify()
}

func (p *partition) dropData() {
	p.l.memory.Add(-int64(p.win.clear() + p.dropCatchUp()))
	p.wanted = nil
}

func newFollower(brokerEpoch int64) *follower {
	return &follower{offset: -1, brokerEpoch: brokerEpoch, lastEnd: -1, lastEpoch: -1, logStart: -1}
}

func (p *partition) follower(id int32) *follower {
	f := p.followers[id]
	if f == nil {
		f = newFollower(-1)
		p.followers[id] = f
	}
	return f
}

// end is our log end as leader: what was read from the source or is known to be on followers. A frozen log ends where in-sync
// followers end, one with a tail after that.
func (p *partition) end() int64 {
	switch p.assign.Role {
	case RoleFrozen, RoleDrain:
		return p.frozenEnd()
	case RoleTail:
		return p.tailEnd()
	}
	return max(p.src.next, p.learnt, 0)
}

// servable is the part of end that followers can have under this leader epoch.
func (p *partition) servable() int64 {
	end := p.end()
	if p.assign.Role == RoleTail {
		return end
	}
	if at, ok := p.src.hist.firstAbove(p.leaderEpoch); ok {
		end = min(end, at)
	}
	return end
}

// historyEnd is where the newest epoch of the source ends: all that anybody knows of it.
func (p *partition) historyEnd() int64 { return max(p.src.next, p.src.leo, p.src.end, 0) }

func (p *partition) setBlocked() {
	blocked := false
	switch p.assign.Role {
	case RoleMirror:
		at, ok := p.src.hist.firstAbove(p.leaderEpoch)
		blocked = ok && p.src.next > at
	case RoleTail:
		blocked = errors.Is(p.tailBlocked(), ErrTailEpoch)
	}
	if blocked != p.blocked {
		p.blocked = blocked
		p.l.notify()
	}
}

// wakeAll lets every parked fetch look again at once, wakeSoon after a moment in which more may come together.
func (p *partition) wakeAll() {
	for _, f := range p.followers {
		f.box.wake()
	}
}

func (p *partition) wakeSoon() {
	for _, f := range p.followers {
		f.box.wakeSoon()
	}
}

// inMaximal reports whether a replica is in the committed ISR or in one that was proposed.
func (p *partition) inMaximal(id int32) bool {
	return slices.Contains(p.isr, id) || p.pending != nil && slices.Contains(p.pending.members, id)
}

func (p *partition) maximal() []int32 {
	isr := slices.Clone(p.isr)
	if p.pending != nil {
		for _, id := range p.pending.members {
			if !slices.Contains(isr, id) {
				isr = append(isr, id)
			}
		}
	}
	return isr
}

// ErrUnderMinISR is Status.Err while the watermark stands still for want of in-sync replicas.
var ErrUnderMinISR = errors.New("too few in-sync replicas to advance the high watermark")

func (p *partition) status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{
		Role: p.assign.Role, Leader: p.leader, LeaderEpoch: p.leaderEpoch, RollCall: p.rollCall,
		LogStart: p.logStart(), LogEnd: p.end(), HighWatermark: p.hw,
		SourceStart: p.src.start, SourceEnd: p.src.end, SourceEndAt: p.src.endAt, SourceEpoch: p.src.epoch,
		LastEpoch: p.handed, EpochBlocked: p.blocked, Truncated: p.truncated,
		Converged: p.converged(), Stuck: p.stop.stuck, Tailed: p.tailed(),
		Followers: make(map[int32]FollowerStatus, len(p.followers)),
		ISR:       slices.Clone(p.isr), MaximalISR: p.maximal(),
		LastSourceFetch: p.src.lastFetch, Divergences: p.src.divergences, FetchedBytes: p.src.fetched, RolledBack: p.src.rolledBack,
		Err: p.src.err,
	}
	p.statusOfRole(&s)
	for id, f := range p.followers {
		fs := FollowerStatus{FetchOffset: -1, BrokerEpoch: f.brokerEpoch, LastFetch: f.lastFetch, CaughtUp: f.caughtUp}
		if f.counted || f.below {
			fs.FetchOffset = f.offset
		}
		s.Followers[id] = fs
	}
	switch {
	case p.assign.Role == RoleTail && s.Err != nil:
	case p.src.fatal != nil:
		s.Err, s.Fatal = p.src.fatal, true
	case p.src.diverged != nil:
		s.Err = p.src.diverged
	case s.Err == nil && p.advances() && p.rollCall && !p.enough():
		s.Err = fmt.Errorf("%w: %d of %d, %d real of %d", ErrUnderMinISR, len(p.isr), p.minISR, p.realISR(), p.minReal())
	}
	return s
}

// advances reports whether the role is there to move the watermark.
func (p *partition) advances() bool {
	return p.assign.Role == RoleMirror || p.assign.Role == RoleDrain || p.assign.Role == RoleTail
}

// statusOfRole fills in what each role knows in its own way.
func (p *partition) statusOfRole(s *Status) {
	switch p.assign.Role {
	case RoleMirror:
		if s.LogEnd = max(s.LogEnd, p.src.start); !p.src.loaded {
			s.LogStart = -1
		}
	case RoleDrain, RoleFrozen:
		s.LastEpoch = p.lastEpoch()
	case RoleTail:
		if s.LastEpoch = p.assign.TruncateTo.Epoch; s.Tailed {
			s.LastEpoch = p.leaderEpoch
		}
		s.Err = p.tailBlocked()
		s.Fatal = p.tail.err != nil
	}
}

// epochEnd answers OffsetForLeaderEpoch.
func (p *partition) epochEnd(epoch int32) (int32, int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.assign.Role == RoleTail && !p.closed && epoch >= 0 {
		return p.tailEpochEnd(epoch)
	}
	if p.closed || !p.src.loaded || epoch < 0 {
		return -1, -1, false
	}
	// Consumers may be ahead of what we have read since we became leader: to them the log ends where the source's does.
	e, end := p.src.hist.endOffsetFor(epoch, max(p.end(), p.historyEnd()))
	return e, end, true
}
