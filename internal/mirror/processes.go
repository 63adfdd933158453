package mirror

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"slices"
	"time"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// Process is a kmirror process of the destination.
type Process struct {
	// NodeIDs are its node ids; the first of them names it in the choice of leaders, so that it gets back what it had when it returns.
	NodeIDs []int32
	Self    bool
	// Blind are mirrors whose source the process does not reach.
	Blind []string
	// Leaving processes are given nothing any more.
	Leaving bool
	// Starting processes answer, and are given nothing yet. Dead ones don't answer: what they led is taken over without waiting for
	// the controller to find out.
	Starting, Dead bool
	// Apart processes live, and can't be asked for anything from here: they lead what is theirs, and never stand by for this process, since
	// they don't open their ids for its lists.
	Apart bool
}

// able reports whether a process may be given partitions.
func (p Process) able() bool { return !p.Leaving && !p.Starting }

// settleFor is for how long what is known of processes must not have changed before a partition is taken from one that lives: the others
// have come to know the same by then, and take nothing back.
const settleFor = 3 * time.Second

// yieldFor is how long another process has to take over what it is to lead.
const yieldFor = taskLimit + settleFor

// alone is what there is without others.
func (m *Manager) alone() []Process { return []Process{{NodeIDs: m.cfg.NodeIDs, Self: true}} }

// choice says which process is to lead a partition, and which stands by: one id of the latter is in the replica list and the ISR, so
// that it can lead at once.
type choice struct {
	lead, standby Process
	// two: there is a standby.
	two bool
}

// choose spreads partitions over processes by rendezvous hashing: each process comes to the same answer by itself, and a process that
// comes or goes moves only what is its own. Processes that don't reach the mirror's source come last.
func choose(procs []Process, mirror string, id protocol.PartitionID) choice {
	var c choice
	ranked := slices.Clone(procs)
	blind := func(p Process) int {
		switch {
		case !p.able():
			return 2
		case slices.Contains(p.Blind, mirror):
			return 1
		}
		return 0
	}
	slices.SortFunc(ranked, func(a, b Process) int {
		return cmp.Or(cmp.Compare(blind(a), blind(b)), cmp.Compare(weight(b, id), weight(a, id)), cmp.Compare(a.NodeIDs[0], b.NodeIDs[0]))
	})
	c.lead = ranked[0]
	if len(ranked) > 1 && blind(ranked[1]) < 2 {
		c.standby, c.two = ranked[1], true
	}
	return c
}

// weight is how much a process wants a partition. Whoever wants a partition with an even number most wants the next one least, so that
// of two neighbours a process leads one at most: by chance alone, one in 128 topics with eight partitions would be led by one of two
// processes whole.
func weight(p Process, id protocol.PartitionID) uint64 {
	h := fnv.New64a()
	var b [8]byte
	binary.BigEndian.PutUint32(b[:], uint32(p.NodeIDs[0]))
	binary.BigEndian.PutUint32(b[4:], uint32(id.Partition&^1))
	h.Write(b[:])
	h.Write(id.Topic[:])
	x := h.Sum64()
	// FNV alone leaves numbers that differ little close to each other.
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	if id.Partition&1 == 1 {
		x = ^x
	}
	return x
}

// lookChoice decides whether a partition is this process's to look after: it leads, or is chosen to lead and no live process does.
// A partition that another live process leads and that is ours by choice is taken, unless it is in the middle of a stop. Called
// with m.mu held.
func (m *Manager) lookChoice(r *round, mirror string, id protocol.PartitionID, ip *kraft.Partition) bool {
	c := choose(r.procs, mirror, id)
	switch {
	case ip == nil:
		return c.lead.Self
	case m.cfg.Destination.Owns(ip.Leader):
		return true
	case !c.lead.Self, m.strangers(r, ip):
		return false
	case !m.guest(ip.Leader) || !r.lives(ip.Leader):
		return true
	}
	if s, ok := m.cfg.Store.State(id); ok && movable(s.State) && r.settled {
		r.lead = append(r.lead, id)
	}
	return false
}

// strangers reports whether a process that lives, and of which this one has not heard, leads a partition or is about to: one of the two has just
// begun, or does not come into the group. What it has is nobody's to take before the two know of each other and come to the same choice.
func (m *Manager) strangers(r *round, ip *kraft.Partition) bool {
	leads := ip.Leader
	if !m.guest(leads) {
		if !m.taken(ip) {
			return false
		}
		leads = ip.Replicas[0]
	}
	return r.lives(leads) && !slices.ContainsFunc(r.procs, func(p Process) bool { return slices.Contains(p.NodeIDs, leads) })
}

// taken reports whether the replica list of a partition begins with an id of another process: that one is taking it over.
func (m *Manager) taken(ip *kraft.Partition) bool {
	return len(ip.Replicas) > 0 && m.guest(ip.Replicas[0]) && !m.cfg.Destination.Owns(ip.Replicas[0])
}

// yields reports whether another process is about to take a partition that we lead: two that set its replica list at the same time would
// only cancel what the other has begun. One that does not come is not waited for for ever.
func (m *Manager) yields(r *round, p *part, ip *kraft.Partition) bool {
	lead := choose(r.procs, p.topic.Mirror, p.id).lead
	coming := !lead.Self && lead.able()
	if !coming && !(m.taken(ip) && r.lives(ip.Replicas[0])) {
		p.yielding = time.Time{}
		return false
	}
	if p.yielding.IsZero() {
		p.yielding = r.now
	}
	return r.now.Sub(p.yielding) < yieldFor
}

// lives reports whether a node id of another process may be alive: the controller holds it for so, and nobody knows better. Of a
// process that was not heard of yet nothing is taken.
func (r *round) lives(node int32) bool {
	b := r.img.Brokers[node]
	return b != nil && !b.Fenced && !slices.Contains(r.dead, node)
}

// settled reports whether what is known of processes has been the same for a while, and this one is well. Called by the loop only.
func (m *Manager) settled(procs []Process, now time.Time) bool {
	same := slices.EqualFunc(procs, m.known.procs, func(a, b Process) bool {
		return slices.Equal(a.NodeIDs, b.NodeIDs) && slices.Equal(a.Blind, b.Blind) && a.Leaving == b.Leaving && a.Starting == b.Starting &&
			a.Apart == b.Apart
	})
	if !same || m.cfg.Destination.Ready() != nil { // the others have to learn that this one is ready, too
		m.known.procs, m.known.since = procs, now
	}
	return now.Sub(m.known.since) >= settleFor
}

// movable reports whether a partition in a state may go from one live process to another. Those that prepare or stop are finished
// where they are.
func movable(s statemachine.State) bool {
	switch s {
	case statemachine.Mirroring, statemachine.EpochFencing, statemachine.Paused, statemachine.Failed:
		return true
	}
	return false
}

// processes returns the processes that answer, this one among them, and the node ids of those that don't.
func (m *Manager) processes() (procs []Process, dead []int32) {
	if m.cfg.Processes != nil {
		procs = m.cfg.Processes()
	}
	for _, p := range procs {
		if p.Dead {
			dead = append(dead, p.NodeIDs...)
		}
	}
	procs = slices.DeleteFunc(procs, func(p Process) bool { return p.Dead })
	// Another process may have taken its node ids over.
	dead = slices.DeleteFunc(dead, func(id int32) bool {
		return slices.ContainsFunc(procs, func(p Process) bool { return slices.Contains(p.NodeIDs, id) })
	})
	if !slices.ContainsFunc(procs, func(p Process) bool { return p.Self }) {
		procs = append(procs, m.alone()...)
	}
	for i := range procs {
		if procs[i].Self {
			procs[i].Leaving, procs[i].Blind = m.leaving.Load(), m.Blind()
		}
	}
	slices.SortFunc(procs, func(a, b Process) int { return cmp.Compare(a.NodeIDs[0], b.NodeIDs[0]) })
	return procs, dead
}

// standing is what every look leaves for those who need to know outside of it.
type standing struct {
	procs   []Process
	mirrors map[protocol.UUID]string // by destination topic
}

// mirrorOfTopic returns the mirror of a destination topic.
func (m *Manager) mirrorOfTopic(id protocol.UUID) (string, bool) {
	s := m.standing.Load()
	if s == nil {
		return "", false
	}
	mirror, ok := s.mirrors[id]
	return mirror, ok
}

// standby returns the id of the process that stands by for a partition that we lead.
func (m *Manager) standby(id protocol.PartitionID) (int32, bool) {
	s := m.standing.Load()
	if s == nil || len(s.procs) < 2 {
		return 0, false
	}
	c := choose(s.procs, s.mirrors[id.Topic], id)
	switch {
	case !c.lead.Self && c.lead.able() && !c.lead.Apart:
		return c.lead.NodeIDs[0], true // it is about to take over
	case c.two && !c.standby.Self && !c.standby.Apart:
		return c.standby.NodeIDs[0], true
	}
	return 0, false
}

// standBy takes all partitions from the data path, which would read their source for nobody, and returns those that it had; they go on being
// described as they were. Called with m.mu held.
func (m *Manager) standBy() (ids []protocol.PartitionID) {
	for id, p := range m.parts {
		if p.assigned {
			p.assigned = false
			ids = append(ids, id)
		}
	}
	return ids
}
