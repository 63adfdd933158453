package metasync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"kmirror/internal/wait"
	"kmirror/protocol"
)

const (
	// gateAge is how old the knowledge of what flows may be when offsets are written.
	gateAge = 100 * time.Millisecond
	// writesAtOnce bounds the groups that are written at a time.
	writesAtOnce = 16
	// writeTries is how often a write is tried while the coordinator moves, each over at most writeLimit after the look at what flows (others
	// take longer to find out that a process is stopped and to fail its topics over), and writePause after the last.
	// The client itself does not try again: it would do so without a look at what flows.
	writeTries = 4
	writeLimit = 3 * time.Second
	writePause = 200 * time.Millisecond
)

// gate keeps offsets from being written of topics that were stopped or paused since they were read: once an operator has given them to
// their own consumers, the source says nothing of where these stand.
type gate struct {
	read func(ctx context.Context) (flow, error)

	mu   sync.Mutex
	at   time.Time
	last flow
}

// open leaves of put what flows now and is of the same topics as in was. The time is that of "now": nobody refuses a commit that comes
// too late, so what was left open is written soon after it or not at all.
func (g *gate) open(ctx context.Context, put commits, was flow) (commits, time.Time, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.at) >= gateAge {
		at := time.Now()
		last, err := g.read(ctx)
		if err != nil {
			return nil, at, err
		}
		g.at, g.last = at, last
	}
	now := g.last
	out := maps.Clone(put)
	maps.DeleteFunc(out, func(tp protocol.TopicPartition, _ commit) bool {
		ids, ok := now[tp]
		return !ok || ids != was[tp]
	})
	return out, g.at, nil
}

var errNotCoordinator = errors.New("another process coordinates the mirror by now")

// flowNow is flow after all that is stored was read: this process may have been stopped (SIGSTOP) for so long that others have taken
// over, and the topics are their consumers'.
func (j *job) flowNow(ctx context.Context) (flow, error) {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	if err := j.s.cfg.Store.Fresh(ctx, j.def.Name); err != nil {
		return nil, err
	}
	if !j.s.cfg.Coordinates(j.def.Name) {
		return nil, errNotCoordinator
	}
	return j.flow(), nil
}

// writeAll stores offsets, group by group.
func (o *offsetSync) writeAll(ctx context.Context, writes map[string]commits, flow flow) {
	found := o.coordinators(ctx, slices.Collect(maps.Keys(writes))...)
	var work errgroup.Group
	work.SetLimit(writesAtOnce)
	for name, put := range writes {
		work.Go(func() error {
			if err := o.writeGroup(ctx, name, put, flow, found[name]); err != nil {
				o.fails.add(fmt.Errorf("write offsets of group %q: %w", name, err))
			}
			return nil
		})
	}
	work.Wait() // its functions return nothing
}

// seat is the node where a group is written.
type seat struct {
	node int32
	err  error
}

func (o *offsetSync) coordinators(ctx context.Context, groups ...string) map[string]seat {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	o.requests.Add(1)
	out := map[string]seat{}
	for name, c := range o.j.dst.FindGroupCoordinators(ctx, groups...) {
		out[name] = seat{c.NodeID, c.Err}
	}
	return out
}

// writeGroup stores offsets of one group. Before each try it is looked again at what flows.
func (o *offsetSync) writeGroup(ctx context.Context, group string, put commits, flow flow, at seat) (err error) {
	for try := range writeTries {
		if try > 0 {
			if !wait.For(ctx, writePause) {
				return err
			}
			at = o.coordinators(ctx, group)[group]
		}
		open, now, failed := o.gate.open(ctx, put, flow)
		if failed != nil {
			err = failed
			continue
		}
		if len(open) < len(put) {
			o.count(func() { o.stopped++ })
		}
		if put = open; len(put) == 0 {
			return nil
		}
		if err = at.err; err != nil {
			continue
		}
		var codes map[protocol.TopicPartition]int16
		if codes, err = o.writeOnce(ctx, now.Add(writeLimit), at.node, group, put, flow); err != nil {
			continue
		}
		if put, err = o.settle(group, put, codes); len(put) == 0 {
			return nil
		}
	}
	return err
}

func (o *offsetSync) writeOnce(
	ctx context.Context, until time.Time, node int32, group string, put commits, flow flow,
) (map[protocol.TopicPartition]int16, error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	o.requests.Add(1)
	return o.flavor.write(o, ctx, o.j.dstClient.Broker(int(node)), group, put, flow)
}

// settle takes in a coordinator's answer and returns what is to be tried again, with the reason. Refusals because the group has members
// by now are skips: in the moment of writing the coordinator knows best.
func (o *offsetSync) settle(group string, put commits, codes map[protocol.TopicPartition]int16) (left commits, why error) {
	left = commits{}
	o.mu.Lock()
	defer o.mu.Unlock()
	other := false
	for tp, c := range put {
		code, ok := codes[tp]
		if !ok {
			o.fails.add(fmt.Errorf("write offsets of group %q, %s: %w", group, tp, errNoAnswer))
			continue
		}
		switch judge(code) {
		case taken:
			o.written++
			o.note(group, tp, c)
		case again:
			left[tp], why = c, kerr.ErrorForCode(code)
		case tooLong:
			// What brokers take differs (offset.metadata.max.bytes), and where the group stands counts for more than what it notes there.
			if c.metadata == "" {
				o.fails.add(fmt.Errorf("write offsets of group %q, %s: %w", group, tp, kerr.ErrorForCode(code)))
				continue
			}
			o.noteTooLong(group, tp, len(c.metadata))
			c.metadata = ""
			left[tp], why = c, kerr.ErrorForCode(code)
		case inUse:
			o.active[group] = true
		case foreign:
			other = true
		default:
			o.fails.add(fmt.Errorf("write offsets of group %q, %s: %w", group, tp, kerr.ErrorForCode(code)))
		}
	}
	if other {
		o.foreign++
	}
	return left, why
}

// noteTooLong notes that the destination takes no metadata of so many bytes. Called with mu held.
func (o *offsetSync) noteTooLong(group string, tp protocol.TopicPartition, bytes int) {
	m := &o.j.w.groups
	if m.tooLong == 0 || bytes < m.tooLong {
		m.tooLong = bytes
	}
	o.j.skipped(o.flavor.kind, "metadata", 1)
	o.j.log.Info("the metadata of a commit is longer than the destination takes (offset.metadata.max.bytes there): the offset goes without it",
		"kind", o.flavor.kind, "group", group, "partition", tp.String(), "bytes", bytes)
}

// note logs one offset that was written.
func (o *offsetSync) note(group string, tp protocol.TopicPartition, c commit) {
	log := o.j.log.With("kind", o.flavor.kind, "group", group, "partition", tp.String(), "offset", c.offset, "epoch", c.epoch)
	if from, ok := o.lowered[groupPartition{group, tp}]; ok {
		log.Info("group stood where the destination's log does not reach any more, and the source has no offset of it: set back",
			"from", from)
		return
	}
	log.Debug("offset synced")
}

// commit is an OffsetCommit without a member, as an admin client sends it: coordinators take it for groups without members only.
func (o *offsetSync) commit(
	ctx context.Context, coordinator *kgo.Broker, group string, put commits, flow flow,
) (map[protocol.TopicPartition]int16, error) {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = group, -1
	names := map[protocol.UUID]string{}
	for topic, partitions := range byTopic(put) {
		rt := kmsg.NewOffsetCommitRequestTopic()
		rt.Topic, rt.TopicID = topic, flow[protocol.TopicPartition{Topic: topic, Partition: partitions[0]}].destination
		names[rt.TopicID] = topic
		for _, p := range partitions {
			c := put[protocol.TopicPartition{Topic: topic, Partition: p}]
			rp := kmsg.NewOffsetCommitRequestTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch = p, c.offset, c.epoch
			if c.metadata != "" {
				rp.Metadata = &c.metadata
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
	}
	r, err := coordinator.Request(ctx, req)
	if err != nil {
		return nil, err
	}
	codes := map[protocol.TopicPartition]int16{}
	for _, t := range r.(*kmsg.OffsetCommitResponse).Topics {
		topic := t.Topic
		if topic == "" { // from version 10 on
			topic = names[t.TopicID]
		}
		for _, p := range t.Partitions {
			codes[protocol.TopicPartition{Topic: topic, Partition: p.Partition}] = p.ErrorCode
		}
	}
	return codes, nil
}

func (o *offsetSync) count(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}
