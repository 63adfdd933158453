package fetch

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"kmirror/protocol/kraft"
)

// pendingISR is a proposal whose outcome the image has not shown. members is the union of all that may have been
// accepted under partitionEpoch: after an error without an answer both the old and the new one count.
type pendingISR struct {
	members        []int32
	partitionEpoch int32
	inFlight       bool
	// unknown: an earlier proposal under this partition epoch ended without an answer.
	unknown bool
	retryAt time.Time
}

func (p *partition) realISR() int {
	n := 0
	for _, id := range p.isr {
		if !p.l.guest(id) {
			n++
		}
	}
	return n
}

// minReal is how many real members an ISR must have for the watermark to move: never none, since nobody but real brokers
// keeps a record.
func (p *partition) minReal() int { return max(p.assign.MinRealISR, 1) }

// enough is Kafka's rule for moving the watermark, which leader election from the ELR relies on (KAFKA-15583), and ours
// on real members.
func (p *partition) enough() bool {
	return (p.assign.Role == RoleStray || len(p.isr) >= p.minISR) && p.realISR() >= p.minReal()
}

// count takes a fetch as progress: it is answered with data or with nothing new. Diverging and out of range fetches must
// not come here (KAFKA-13141).
func (p *partition) count(id int32, f *follower, offset int64, lastEpoch int32, fresh bool, now time.Time) {
	f.fed = false
	if f.counted && f.offset == offset && !fresh {
		return
	}
	moved := !f.counted || f.offset != offset
	f.offset, f.lastEpoch, f.counted, f.suspect = offset, lastEpoch, true, 0
	if offset > p.learnt {
		p.learnt = offset
	}
	if !frozen(p.assign.Role) { // else it may be the epoch under which the follower led, without a record
		p.handed = max(p.handed, lastEpoch)
	}
	end := p.servable()
	if p.assign.Role == RoleFrozen {
		end = offset // nobody can get more
	}
	switch {
	case offset >= end:
		f.caughtUp = now
	case f.lastEnd >= 0 && offset >= f.lastEnd && f.lastFetch.After(f.caughtUp):
		f.caughtUp = f.lastFetch
	}
	f.lastEnd, f.lastFetch = end, now
	if moved {
		p.advance(now)
		p.evictPassed()
	}
	if !p.inMaximal(id) && p.rollCall {
		p.l.kickISR(p)
	}
}

// advance completes the roll call, moves the high watermark, and looks at what came of it.
func (p *partition) advance(now time.Time) {
	switch {
	case p.closed || p.assign.Role == RoleWait:
	case p.assign.Role == RoleTruncate:
		p.noteTruncated()
	default:
		p.moveWatermark()
	}
	p.noteStop(now)
}

// moveWatermark completes the roll call and moves the high watermark to the minimum over the maximal ISR.
func (p *partition) moveWatermark() {
	role := p.assign.Role
	lowest, real, known := p.end(), 0, true
	visit := func(id int32) {
		if p.l.guest(id) {
			return
		}
		real++
		if f := p.followers[id]; f != nil && f.counted {
			lowest = min(lowest, f.offset)
		} else {
			known = false
		}
	}
	for _, id := range p.isr {
		visit(id)
	}
	if p.pending != nil {
		for _, id := range p.pending.members {
			if !slices.Contains(p.isr, id) {
				visit(id)
			}
		}
	}
	if !known || !p.src.loaded && (role == RoleMirror || role == RoleDrain && !p.lost()) {
		return
	}
	if !p.rollCall {
		p.completeRollCall(real)
	}
	if !p.enough() || p.hw < 0 && lowest < p.hwFloor {
		return
	}
	if lowest > p.hw {
		p.hw = lowest
		if p.src.diverged != nil && p.hw > p.src.divergedAt {
			p.src.diverged = nil
		}
		p.wakeSoon()
	}
}

func (p *partition) completeRollCall(real int) {
	p.rollCall = true
	if p.epochStart < 0 {
		p.epochStart = p.end()
	}
	if real == 0 && p.hw < 0 && (p.assign.Role == RoleMirror || p.assign.Role == RoleDrain && p.src.loaded) {
		p.hwFloor = p.src.end
		p.epochStart = max(p.epochStart, p.hwFloor)
	}
	for _, id := range p.replicas {
		if !p.inMaximal(id) {
			p.l.kickISR(p)
			break
		}
	}
	p.wakeAll()
	p.l.notify()
}

// noteTruncated finds out whether every in-sync real replica is at or below the point of truncation.
func (p *partition) noteTruncated() {
	if p.assign.Role != RoleTruncate || p.truncated {
		return
	}
	for _, id := range p.maximal() {
		if f := p.followers[id]; !p.l.guest(id) && (f == nil || !f.below) {
			return
		}
	}
	p.truncated = true
	p.l.notify()
}

// propose computes the ISR that should be, if it is not the one that is. Followers join before any leave. After a proposal
// without an answer the ISR is proposed even as it is: the answer tells what became of the other.
func (p *partition) propose(img *kraft.Image, now time.Time) (kraft.ISRProposal, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.assign.Role == RoleWait || p.pending != nil && (p.pending.inFlight || now.Before(p.pending.retryAt)) {
		return kraft.ISRProposal{}, false
	}
	target := p.expanded(img, now)
	if slices.Equal(target, p.isr) {
		target = p.shrunk(now)
	}
	if slices.Equal(target, p.isr) && (p.pending == nil || !p.pending.unknown) {
		return kraft.ISRProposal{}, false
	}
	prop := kraft.ISRProposal{ID: p.id, Leader: p.leader, LeaderEpoch: p.leaderEpoch, PartitionEpoch: p.partitionEpoch}
	for _, id := range target {
		prop.ISR = append(prop.ISR, kraft.ISRMember{ID: id, Epoch: p.memberEpoch(img, id)})
	}
	next := &pendingISR{members: target, partitionEpoch: p.partitionEpoch, inFlight: true}
	if p.pending != nil && p.pending.unknown {
		next.unknown = true
		for _, id := range p.pending.members {
			if !slices.Contains(next.members, id) {
				next.members = append(slices.Clone(next.members), id)
			}
		}
	}
	p.pending = next
	return prop, true
}

// memberEpoch is the broker epoch that came with the member's fetches in this leader epoch, so that a broker that was
// rebooted since is refused (KAFKA-15221). Guests have no log to lose: their registration is as good.
func (p *partition) memberEpoch(img *kraft.Image, id int32) int64 {
	if p.l.guest(id) {
		if b := img.Brokers[id]; b != nil {
			return b.Epoch
		}
		return -1
	}
	if f := p.followers[id]; f != nil && f.counted {
		return f.brokerEpoch
	}
	return -1
}

// expanded takes in who may join. Guests may, as they hold no log that could be behind; those of another process that are dead
// are left out, since the controller takes no proposal that names one.
func (p *partition) expanded(img *kraft.Image, now time.Time) []int32 {
	target := slices.DeleteFunc(slices.Clone(p.isr), func(id int32) bool {
		b := img.Brokers[id]
		return p.l.guest(id) && !p.l.owns(id) && (b == nil || b.Fenced)
	})
	for _, id := range p.replicas {
		b := img.Brokers[id]
		if slices.Contains(p.isr, id) || b == nil || b.Fenced || b.InControlledShutdown {
			continue
		}
		if p.l.guest(id) || p.inSync(p.followers[id], b, now) {
			target = append(target, id)
		}
	}
	return target
}

// inSync is Partition.isFollowerInSync: at the high watermark, above the start of the leader epoch, and not long ago at
// our end. Until the roll call is complete the watermark is not known and nobody joins.
func (p *partition) inSync(f *follower, b *kraft.Broker, now time.Time) bool {
	if f == nil || !f.counted || !p.rollCall || p.assign.Role == RoleTruncate {
		return false
	}
	if f.brokerEpoch >= 0 && f.brokerEpoch != b.Epoch {
		return false
	}
	return f.offset >= max(p.hw, p.epochStart) && f.offset >= p.hwFloor &&
		!f.caughtUp.IsZero() && now.Sub(f.caughtUp) <= p.l.cfg.ReplicaLag
}

// shrunk leaves out real members that have not caught up for too long, the furthest behind first, but never the last
// ones that must be there.
func (p *partition) shrunk(now time.Time) []int32 {
	var late []int32
	for _, id := range p.isr {
		if f := p.followers[id]; !p.l.guest(id) && (f == nil || !p.atEnd(f) && now.Sub(f.caughtUp) > p.l.cfg.ReplicaLag) {
			late = append(late, id)
		}
	}
	spare := p.realISR() - p.minReal()
	if len(late) == 0 || spare <= 0 {
		return p.isr
	}
	offset := func(id int32) int64 {
		if f := p.followers[id]; f != nil && f.counted {
			return f.offset
		}
		return -1
	}
	slices.SortFunc(late, func(a, b int32) int { return cmp.Compare(offset(a), offset(b)) })
	late = late[:min(spare, len(late))]
	return slices.DeleteFunc(slices.Clone(p.isr), func(id int32) bool { return slices.Contains(late, id) })
}

func (p *partition) atEnd(f *follower) bool {
	switch p.assign.Role {
	case RoleTruncate:
		return f.below
	case RoleFrozen:
		return f.counted
	}
	return f.counted && f.offset >= p.servable()
}

// outcome takes the controller's answer to a proposal. Whatever it says, the image has the last word: the maximal ISR
// counts until it shows a newer partition epoch, or the proposal is known not to have been applied.
func (p *partition) outcome(prop kraft.ISRProposal, out kraft.ISROutcome, err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.pending
	if q == nil || q.partitionEpoch != prop.PartitionEpoch {
		return
	}
	q.inFlight = false
	wait := p.l.cfg.isrRetry
	switch {
	case err != nil:
		q.unknown = true
	case out.ErrorCode == 0 && out.PartitionEpoch == prop.PartitionEpoch:
		// The proposal was the ISR as it is, and nothing that went before it was applied.
		q.members, q.unknown = nil, false
	case out.ErrorCode == 0 || out.ErrorCode == kerr.NewLeaderElected.Code:
		q.unknown, wait = true, 10*wait // the image is on its way
	case out.ErrorCode == kerr.InvalidUpdateVersion.Code || out.ErrorCode == kerr.FencedLeaderEpoch.Code:
		// Something newer exists, maybe what an earlier try of the same proposal did: the image will tell (KAFKA-14154).
		q.unknown = true
	case !q.unknown:
		q.members = nil // refused, so it does not count
	}
	if err != nil || out.ErrorCode != 0 {
		level := slog.LevelWarn
		switch out.ErrorCode {
		case kerr.NewLeaderElected.Code, kerr.InvalidUpdateVersion.Code, kerr.FencedLeaderEpoch.Code:
			level = slog.LevelDebug // overtaken by another change, such as another process's taking the lead
		}
		p.l.log.Log(context.Background(), level, "ISR proposal not taken", "topic", p.topic, "partition", p.id.Partition,
			"leader_epoch", prop.LeaderEpoch, "partition_epoch", prop.PartitionEpoch, "code", out.ErrorCode, "error", err)
	}
	q.retryAt = now.Add(wait/2 + rand.N(wait))
	p.advance(now)
}

// kickISR asks for a look at the ISR of a partition.
func (l *Leader) kickISR(p *partition) {
	l.isrMu.Lock()
	l.isrDirty[p] = struct{}{}
	l.isrMu.Unlock()
	select {
	case l.isrKick <- struct{}{}:
	default:
	}
}

// runISR proposes ISRs, many partitions in a request and one request at a time.
func (l *Leader) runISR(ctx context.Context) {
	every := min(l.cfg.ReplicaLag/4+time.Millisecond, l.cfg.isrRetry, l.cfg.stuckAfter/2+time.Millisecond)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var due []*partition
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			due = l.all()
			now := time.Now()
			for _, p := range due {
				p.tick(now)
			}
		case <-l.isrKick:
		}
		l.isrMu.Lock()
		for p := range l.isrDirty {
			due = append(due, p)
		}
		clear(l.isrDirty)
		l.isrMu.Unlock()
		l.alterISR(ctx, due)
	}
}

func (l *Leader) alterISR(ctx context.Context, due []*partition) {
	img, now := l.image(), time.Now()
	var props []kraft.ISRProposal
	var parts []*partition
	for _, p := range due {
		if prop, ok := p.propose(img, now); ok {
			props, parts = append(props, prop), append(parts, p)
		}
	}
	if len(props) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	outs, err := l.cfg.Controller.AlterISR(ctx, props)
	if err == nil && len(outs) != len(props) {
		err = errOutcomes
	}
	now = time.Now()
	for i, p := range parts {
		var out kraft.ISROutcome
		if err == nil {
			out = outs[i]
		}
		p.outcome(props[i], out, err, now)
	}
}
