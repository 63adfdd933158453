package unlock

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// partition is one partition as the destination shows it.
type partition struct {
	leader int32 // -1: none
	// replicas holds those that a reassignment adds and removes, too.
	replicas, isr, elr []int32
	adding, removing   []int32
}

// cluster is what is known of the destination's brokers.
type cluster struct {
	id string
	// live are all unfenced brokers, guests included.
	live map[int32]bool
	// addrs are where clients reach them.
	addrs map[int32]string
	// guests are kmirror's ids, of any process, dead or alive.
	guests map[int32]bool
	// load counts the replicas of each broker, over all topics.
	load map[int32]int
}

func (c *cluster) real(ids []int32) []int32 {
	return slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return c.guests[id] })
}

func (c *cluster) hasGuest(ids []int32) bool {
	return slices.ContainsFunc(ids, func(id int32) bool { return c.guests[id] })
}

// inSync are the real brokers of a list that are alive and in sync, in the list's order.
func (c *cluster) inSync(p partition) []int32 {
	return slices.DeleteFunc(c.real(p.replicas), func(id int32) bool { return !slices.Contains(p.isr, id) || !c.live[id] })
}

// target is the list that a reassignment under way leads to, else the list as it is.
func (p partition) target() []int32 {
	return slices.DeleteFunc(slices.Clone(p.replicas), func(id int32) bool { return slices.Contains(p.removing, id) })
}

func (p partition) moving() bool { return len(p.adding)+len(p.removing) > 0 }

// move is what has to be done with a partition next.
type move uint8

const (
	// free: no guest is listed, and no eligible leader replica is in the way.
	free move = iota
	// await: a reassignment that is right is under way.
	await
	// cancel a reassignment that can't complete, or that leads elsewhere.
	cancel
	// reassign to the list that comes with it.
	reassign
	// stuck: there is no live real broker that could lead without loss.
	stuck
)

// next decides how a partition gets to live real brokers that are in sync. elrMatters: its eligible leader replicas must be
// empty, since min.insync.replicas is to be written. The reassignment that takes kmirror's ids out leaves them there, because
// the controller judges it by the min ISR of the longer list; the next change of the partition, whatever it is, clears them.
func (c *cluster) next(p partition, elrMatters bool) (move, []int32) {
	elr := elrMatters && len(p.elr) > 0
	if !elr && !c.hasGuest(p.replicas) {
		return free, nil
	}
	want := c.inSync(p)
	if len(want) == 0 || p.leader < 0 {
		return stuck, nil
	}
	switch same := sameSet(p.target(), want); {
	case p.moving() && same:
		return await, nil
	case p.moving():
		return cancel, nil
	case same && len(want) > 1:
		return reassign, append(slices.Clone(want[1:]), want[0])
	case same:
		// With one replica there is no other order. The attempt to add another does as well; it is cancelled.
		spare := c.spares(want)
		if len(spare) == 0 {
			return stuck, nil
		}
		return reassign, append(want, spare[0])
	}
	return reassign, want
}

// alone reports whether a partition has one replica, a real broker that is alive and leads it. Its clients can write with acks=all whatever
// min.insync.replicas is: brokers that have eligible leader replicas (Kafka 4.0) hold it against no more than there are replicas.
func (c *cluster) alone(p partition) bool {
	return p.leader >= 0 && len(p.replicas) == 1 && len(c.inSync(p)) == 1
}

// spares are the live real brokers that are not in a list, those with the fewest replicas first.
func (c *cluster) spares(list []int32) (out []int32) {
	for id := range c.live {
		if !c.guests[id] && !slices.Contains(list, id) {
			out = append(out, id)
		}
	}
	slices.SortFunc(out, func(a, b int32) int { return cmp.Or(cmp.Compare(c.load[a], c.load[b]), cmp.Compare(a, b)) })
	return out
}

// why says what a partition that is stuck waits for.
func (c *cluster) why(topic string, n int32, p partition) string {
	var owners []int32
	for _, id := range slices.Concat(p.isr, p.elr) {
		if !c.guests[id] && !slices.Contains(owners, id) {
			owners = append(owners, id)
		}
	}
	if len(c.real(p.replicas)) == 0 {
		return fmt.Sprintf("partition %d is on kmirror's ids alone, so it holds nothing: start kmirror serve, which moves it, or delete the "+
			"topic and make it anew", n)
	}
	if c.alone(p) {
		return fmt.Sprintf("partition %d can be written, with acks=all too, since it has one replica. The lock's min.insync.replicas stays until a "+
			"second real broker is alive, by which the controller can be made to forget the eligible leader replicas %v: run the same command again "+
			"then, before the partition gets more replicas", n, p.elr)
	}
	if p.leader >= 0 {
		return fmt.Sprintf("partition %d has eligible leader replicas %v, and no second real broker is alive to make the controller "+
			"clear them: start another broker and run the same command again", n, p.elr)
	}
	if len(owners) > 0 {
		return fmt.Sprintf("partition %d has no leader: start broker %s, which has all its records, and run the same command again",
			n, join(owners, " or "))
	}
	return fmt.Sprintf("partition %d has no leader, and no real broker that is known to have all its records. To give up what the "+
		"others lack: kafka-leader-election.sh --election-type UNCLEAN --topic %s --partition %d; then run the same command again",
		n, topic, n)
}

// regrown returns the list with the brokers added that are to hold the partition again and are alive: those of before, in their
// places, and where these are fewer than wanted, dead ones included, others, those with the fewest replicas first. Of those that
// have it now borrowed, which was added for the time being, is left out; -1 for none.
func (c *cluster) regrown(p partition, before []int32, wanted int, borrowed int32) []int32 {
	now := slices.DeleteFunc(p.target(), func(id int32) bool { return id == borrowed && !slices.Contains(before, id) })
	var out []int32
	for _, id := range before {
		if slices.Contains(now, id) || c.live[id] && !c.guests[id] {
			out = append(out, id)
		}
	}
	for _, id := range now {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	due := slices.Concat(out, c.real(before)) // with repetitions
	slices.Sort(due)
	spare := c.spares(out)
	return append(out, spare[:min(len(spare), max(0, wanted-len(slices.Compact(due))))]...)
}

func sameSet(a, b []int32) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(id int32) bool { return !slices.Contains(b, id) })
}

func join(ids []int32, sep string) string {
	text := make([]string, len(ids))
	for i, id := range ids {
		text[i] = fmt.Sprint(id)
	}
	return strings.Join(text, sep)
}
