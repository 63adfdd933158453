package metasync

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/protocol"
)

// groups brings the offsets of consumer groups (classic, KIP-848 and streams) to where they are at the source.
func (j *job) groups(ctx context.Context) error {
	return j.syncOffsets(ctx, j.consumers())
}

func (j *job) consumers() flavor {
	return flavor{kind: Groups, share: false, read: (*offsetSync).fetchCommits, write: (*offsetSync).commit,
		leaderEpoch: func(tp protocol.TopicPartition) int32 { return j.epoch(tp.Topic, tp.Partition) }}
}

// flavor is what differs between groups and share groups.
type flavor struct {
	kind  string
	share bool
	// read asks for the offsets of some groups.
	read func(o *offsetSync, ctx context.Context, side side, groups []string, flow flow, a *answers)
	// write asks a group's coordinator once to store offsets, and returns the error codes of the partitions.
	write func(o *offsetSync, ctx context.Context, coordinator *kgo.Broker, group string, put commits, flow flow) (
		map[protocol.TopicPartition]int16, error)
	// leaderEpoch is the highest epoch that an offset may come with.
	leaderEpoch func(protocol.TopicPartition) int32
}

// side is one of the two clusters.
type side struct {
	name   string
	client *kgo.Client
	id     func(topicIDs) protocol.UUID
}

// topicIDs are those of one topic at both clusters.
type topicIDs struct{ source, destination protocol.UUID }

// flow are the partitions whose offsets mean the same at both clusters.
type flow map[protocol.TopicPartition]topicIDs

// has reports whether a partition flows, and is of the topic with this id there. Brokers before Kafka 4.1 don't say the id.
func (f flow) has(tp protocol.TopicPartition, s side, id protocol.UUID) bool {
	ids, ok := f[tp]
	return ok && (id.IsZero() || s.id(ids).IsZero() || s.id(ids) == id)
}

func (j *job) flow() flow {
	out := flow{}
	known := j.known()
	for topic, partitions := range j.flowing() {
		for _, p := range partitions {
			out[protocol.TopicPartition{Topic: topic, Partition: p}] = topicIDs{known[topic].SourceTopicID, known[topic].TopicID}
		}
	}
	return out
}

// groupMemory is what a worker's rounds keep of groups.
type groupMemory struct {
	// active are the groups, by kind, that the last round skipped because they have members at the destination.
	active map[string]map[string]bool
	// tooLong is the least length of metadata that the destination has refused, 0 where it took all; kept until another process takes over.
	tooLong int
	// beforeWrite is called between reading and writing, for tests.
	beforeWrite func(kind string)
}

type groupPartition struct {
	group string
	tp    protocol.TopicPartition
}

// offsetSync is one round over the groups of one kind.
type offsetSync struct {
	j                   *job
	flavor              flavor
	source, destination side
	gate                *gate
	requests            atomic.Int64
	fails               failures
	// lowered are the commits without a source's that are set back, with where they stood.
	lowered map[groupPartition]int64

	mu sync.Mutex
	// unsupported: one of the clusters has no groups of this kind.
	unsupported bool
	// active are groups of the source that are left alone since they have members at the destination.
	active map[string]bool
	// written counts offsets, foreign groups whose id is of another type at the destination, stopped writes of which a part or all was
	// held back since its topic was stopped or paused meanwhile.
	written, stopped, foreign int
}

func (j *job) syncOffsets(ctx context.Context, f flavor) error {
	o := &offsetSync{j: j, flavor: f, gate: &gate{read: j.flowNow}, active: map[string]bool{}, lowered: map[groupPartition]int64{},
		source:      side{"source", j.srcClient, func(t topicIDs) protocol.UUID { return t.source }},
		destination: side{"destination", j.dstClient, func(t topicIDs) protocol.UUID { return t.destination }},
	}
	flow := j.flow()
	if len(flow) == 0 {
		return nil
	}
	src, complete := o.readSource(ctx, flow)
	dst, idle := o.readDestination(ctx, src, flow)
	if o.unsupported {
		j.skipped(f.kind, "unsupported", 1)
		return o.fails.err()
	}
	if !complete { // what the source has of the others is not known
		maps.DeleteFunc(idle, func(group string, _ bool) bool { return src[group] == nil })
	}
	writes := o.decide(ctx, src, dst, idle)
	if hook := j.w.groups.beforeWrite; hook != nil {
		hook(f.kind)
	}
	if len(writes) > 0 {
		if err := j.stillSource(ctx); err != nil {
			return err
		}
		o.writeAll(ctx, writes, flow)
	}
	o.report(len(src), len(dst))
	return o.fails.err()
}

// readSource returns what the groups of the source that pass the filter have committed. complete is false when it is not known of all.
func (o *offsetSync) readSource(ctx context.Context, flow flow) (src map[string]commits, complete bool) {
	list, complete := o.list(ctx, o.source.client, o.source.name)
	var names []string
	for name, g := range list {
		if g.share() == o.flavor.share && o.j.f.Group(name) {
			names = append(names, name)
		}
	}
	src = o.read(ctx, o.source, names, flow)
	return src, complete && len(src) == len(names)
}

// readDestination returns what groups have committed at the destination, and which of them may be written: those of src and those that
// are there, unless they have members.
func (o *offsetSync) readDestination(
	ctx context.Context, src map[string]commits, flow flow,
) (dst map[string]commits, idle map[string]bool) {
	list, _ := o.list(ctx, o.destination.client, o.destination.name)
	idle = map[string]bool{}
	for name, c := range src {
		if len(c) == 0 {
			continue
		}
		g, there := list[name]
		switch {
		case there && g.share() != o.flavor.share:
			o.foreign++
		case there && !g.idle():
			o.active[name] = true
		default:
			idle[name] = true
		}
	}
	for name, g := range list {
		if g.share() == o.flavor.share && g.idle() && o.j.f.Group(name) {
			idle[name] = true
		}
	}
	return o.read(ctx, o.destination, slices.Sorted(maps.Keys(idle)), flow), idle
}

// decide returns what is to be written, by group. The bounds of the destination are asked for here, after the source's offsets were
// read: what had been mirrored by then is not clamped.
func (o *offsetSync) decide(ctx context.Context, src, dst map[string]commits, idle map[string]bool) map[string]commits {
	alone := map[string]commits{} // commits at the destination that the source says nothing of
	of, epochs := map[protocol.TopicPartition]bool{}, map[epochOf]bool{}
	for group, have := range dst {
		for tp := range src[group] {
			of[tp] = true
		}
		if idle[group] {
			alone[group] = unbacked(have, src[group])
		}
		for tp, c := range alone[group] {
			of[tp] = true
			if c.epoch >= 0 {
				epochs[epochOf{tp, c.epoch}] = true
			}
		}
	}
	known, ends := o.bounds(ctx, of), o.epochEnds(ctx, epochs)
	writes := map[string]commits{}
	for group, have := range dst {
		write := differing(wanted(src[group], known, o.flavor.leaderEpoch).without(o.j.w.groups.tooLong), have)
		for tp, c := range alone[group] {
			b, ok := known[tp]
			if !ok {
				continue
			}
			var ended *edge
			if e, ok := ends[epochOf{tp, c.epoch}]; ok {
				ended = &e
			}
			if lower, ok := fallBack(c, b, ended, o.flavor.leaderEpoch(tp)); ok {
				write[tp], o.lowered[groupPartition{group, tp}] = lower, c.offset
			}
		}
		if len(write) > 0 {
			writes[group] = write
		}
	}
	return writes
}

// report counts and logs how the round went.
func (o *offsetSync) report(source, destination int) {
	j, kind := o.j, o.flavor.kind
	j.changed(kind, o.written)
	j.skipped(kind, "active", len(o.active))
	j.skipped(kind, "stopped", o.stopped)
	j.skipped(kind, "type", o.foreign)
	m := &j.w.groups
	if m.active == nil {
		m.active = map[string]map[string]bool{}
	}
	was := m.active[kind]
	for _, g := range slices.Sorted(maps.Keys(o.active)) {
		if !was[g] {
			j.log.Info("group has members at the destination: its offsets are not synced until they leave", "kind", kind, "group", g)
		}
	}
	if j.last == nil {
		m.active[kind] = o.active
	}
	log := j.log.Debug
	if o.written > 0 {
		log = j.log.Info
	}
	log("offsets synced", "kind", kind, "groups", source, "at_destination", destination, "written", o.written,
		"active", len(o.active), "requests", o.requests.Load())
}
