package metasync

import (
	"cmp"
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

	"kmirror/protocol"
)

const (
	// groupsPerRequest bounds one answer: a group of 10 000 partitions is about 600 KiB.
	groupsPerRequest = 100
	// readsAtOnce bounds what is asked of one cluster at a time.
	readsAtOnce = 4
	// askLimit bounds one kind of question: what one broker or partition does not answer does not hold up the others.
	askLimit = 8 * time.Second
)

// ask sends a request that the client splits by broker, and hands the answers to take one by one. What fails goes to failed with the
// part of the request that it was.
func (o *offsetSync) ask(
	ctx context.Context, cl *kgo.Client, req kmsg.Request, take func(kmsg.Response),
	failed func(part kmsg.Request, broker int32, err error),
) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	for _, s := range cl.RequestSharded(ctx, req) {
		o.requests.Add(1)
		if s.Err != nil {
			failed(s.Req, s.Meta.NodeID, s.Err)
			continue
		}
		take(s.Resp)
	}
}

// list returns the groups of a cluster. complete is false when a broker did not answer.
func (o *offsetSync) list(ctx context.Context, cl *kgo.Client, where string) (groups map[string]listed, complete bool) {
	groups, complete = map[string]listed{}, true
	bad := func(_ kmsg.Request, broker int32, err error) {
		complete = false
		o.fails.add(fmt.Errorf("list groups of the %s, broker %d: %w", where, broker, err))
	}
	o.ask(ctx, cl, kmsg.NewPtrListGroupsRequest(), func(r kmsg.Response) {
		resp := r.(*kmsg.ListGroupsResponse)
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			bad(nil, -1, err)
			return
		}
		for _, g := range resp.Groups {
			l := listed{g.GroupType, g.GroupState}
			// While a group moves two brokers may list it.
			if was, ok := groups[g.Group]; !ok || was.idle() {
				groups[g.Group] = l
			}
		}
	}, bad)
	return groups, complete
}

// answers collects what groups have committed, and of which groups that is known.
type answers struct {
	mu     sync.Mutex
	groups map[string]commits
	failed map[string]error
}

func (a *answers) put(group string, c commits) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.groups[group] = c
}

func (a *answers) fail(group string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed[group] = err
}

// errNoAnswer: a broker left out what it was asked about.
var errNoAnswer = errors.New("no answer")

// read asks what groups have committed for the partitions of flow. Groups whose answer is not known are missing in what it returns;
// they are errors of their own.
func (o *offsetSync) read(ctx context.Context, side side, groups []string, flow flow) map[string]commits {
	a := &answers{groups: map[string]commits{}, failed: map[string]error{}}
	var work errgroup.Group
	work.SetLimit(readsAtOnce)
	for part := range slices.Chunk(groups, groupsPerRequest) {
		work.Go(func() error {
			o.flavor.read(o, ctx, side, part, flow, a)
			return nil
		})
	}
	work.Wait() // its functions return nothing
	for _, g := range groups {
		err, bad := a.failed[g]
		if !bad && a.groups[g] == nil {
			err, bad = errNoAnswer, true
		}
		if bad {
			o.fails.add(fmt.Errorf("offsets of group %q at the %s: %w", g, side.name, err))
			delete(a.groups, g)
		}
	}
	return a.groups
}

// fetchCommits reads the offsets of consumer groups (OffsetFetch of all topics). The client splits the request where a broker is too
// old for many groups in one (before Kafka 3.0).
func (o *offsetSync) fetchCommits(ctx context.Context, side side, groups []string, flow flow, a *answers) {
	req := kmsg.NewPtrOffsetFetchRequest()
	for _, g := range groups {
		rg := kmsg.NewOffsetFetchRequestGroup()
		rg.Group = g
		req.Groups = append(req.Groups, rg)
	}
	o.ask(ctx, side.client, req, func(r kmsg.Response) {
		for _, g := range r.(*kmsg.OffsetFetchResponse).Groups {
			err := kerr.ErrorForCode(g.ErrorCode)
			if err != nil && err != kerr.GroupIDNotFound {
				a.fail(g.Group, err)
				continue
			}
			c := commits{}
			for _, t := range g.Topics {
				for _, p := range t.Partitions {
					tp := protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}
					if p.Offset < 0 || !flow.has(tp, side, t.TopicID) {
						continue
					}
					if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
						a.fail(g.Group, fmt.Errorf("%s: %w", tp, err))
						continue
					}
					text := ""
					if p.Metadata != nil {
						text = *p.Metadata
					}
					c[tp] = commit{p.Offset, p.LeaderEpoch, text}
				}
			}
			a.put(g.Group, c)
		}
	}, func(part kmsg.Request, _ int32, err error) {
		req := part.(*kmsg.OffsetFetchRequest)
		if len(req.Groups) == 0 {
			a.fail(req.Group, err)
		}
		for _, g := range req.Groups {
			a.fail(g.Group, err)
		}
	})
}

// bounds asks the destination where partitions begin and end for consumers. Those that it does not tell are left out.
func (o *offsetSync) bounds(ctx context.Context, of map[protocol.TopicPartition]bool) map[protocol.TopicPartition]bounds {
	if len(of) == 0 {
		return nil
	}
	const latest, earliest = -1, -2
	ends, starts := o.offsets(ctx, of, latest), o.offsets(ctx, of, earliest)
	out := make(map[protocol.TopicPartition]bounds, len(of))
	for tp, end := range ends {
		if start, ok := starts[tp]; ok {
			out[tp] = bounds{start, end}
		}
	}
	return out
}

func (o *offsetSync) offsets(ctx context.Context, of map[protocol.TopicPartition]bool, timestamp int64) map[protocol.TopicPartition]edge {
	req := kmsg.NewPtrListOffsetsRequest()
	for topic, partitions := range byTopic(of) {
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = topic
		for _, p := range partitions {
			rp := kmsg.NewListOffsetsRequestTopicPartition()
			rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = p, timestamp, -1
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
	}
	out := map[protocol.TopicPartition]edge{}
	o.ask(ctx, o.j.dstClient, req, func(r kmsg.Response) {
		for _, t := range r.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				tp := protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					o.fails.add(fmt.Errorf("offsets of %s at the destination: %w", tp, err))
				} else if p.Offset >= 0 {
					out[tp] = edge{p.Offset, p.LeaderEpoch}
				}
			}
		}
	}, func(_ kmsg.Request, broker int32, err error) {
		o.fails.add(fmt.Errorf("offsets of the destination, broker %d: %w", broker, err))
	})
	return out
}

// epochOf is an epoch of a partition.
type epochOf struct {
	tp    protocol.TopicPartition
	epoch int32
}

// epochEnds asks the destination where epochs end. One request asks for one epoch of each partition, so there are as many requests a
// broker as there are different epochs of one partition.
func (o *offsetSync) epochEnds(ctx context.Context, of map[epochOf]bool) map[epochOf]edge {
	var turns []map[protocol.TopicPartition]int32
	next := map[protocol.TopicPartition]int{}
	for e := range of {
		n := next[e.tp]
		if next[e.tp]++; n == len(turns) {
			turns = append(turns, map[protocol.TopicPartition]int32{})
		}
		turns[n][e.tp] = e.epoch
	}
	out := map[epochOf]edge{}
	for _, turn := range turns {
		o.epochEndsOnce(ctx, turn, out)
	}
	return out
}

func (o *offsetSync) epochEndsOnce(ctx context.Context, of map[protocol.TopicPartition]int32, out map[epochOf]edge) {
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.ReplicaID = -1
	for topic, partitions := range byTopic(of) {
		rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
		rt.Topic = topic
		for _, p := range partitions {
			rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			rp.Partition, rp.CurrentLeaderEpoch = p, -1
			rp.LeaderEpoch = of[protocol.TopicPartition{Topic: topic, Partition: p}]
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
	}
	o.ask(ctx, o.j.dstClient, req, func(r kmsg.Response) {
		for _, t := range r.(*kmsg.OffsetForLeaderEpochResponse).Topics {
			for _, p := range t.Partitions {
				tp := protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					o.fails.add(fmt.Errorf("epochs of %s at the destination: %w", tp, err))
					continue
				}
				out[epochOf{tp, of[tp]}] = edge{p.EndOffset, p.LeaderEpoch}
			}
		}
	}, func(_ kmsg.Request, broker int32, err error) {
		o.fails.add(fmt.Errorf("epochs of the destination, broker %d: %w", broker, err))
	})
}

// byTopic groups partitions by topic, both in order.
func byTopic[V any](of map[protocol.TopicPartition]V) map[string][]int32 {
	out := map[string][]int32{}
	for _, tp := range slices.SortedFunc(maps.Keys(of), comparePartitions) {
		out[tp.Topic] = append(out[tp.Topic], tp.Partition)
	}
	return out
}

func comparePartitions(a, b protocol.TopicPartition) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}
