package fetch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/wait"
	"kmirror/protocol"
)

// loading is a partition whose history is being read from its source leader.
type loading struct {
	target
	start, end, leo int64
	// hist is collected from the newest epoch downwards; ask is the epoch to ask for next.
	hist history
	ask  int32
	done bool
	err  error
}

// runLoad reads the epoch histories that are wanted: of each source broker at most one load at a time, so that a broker
// that hangs holds up its own partitions only. All have ended when it returns.
func (m *mirror) runLoad(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	type result struct {
		broker int32
		ok     bool
	}
	ended := make(chan result)
	busy, fails := map[int32]bool{}, map[int32]int{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.loadKick:
		case r := <-ended: // what was wanted of it meanwhile is seen now
			delete(busy, r.broker)
			if r.ok {
				delete(fails, r.broker)
			} else {
				fails[r.broker]++
			}
		}
		for broker, ls := range m.wantedLoads(busy) {
			busy[broker] = true
			n := fails[broker] + 1
			wg.Go(func() {
				m.loadFrom(ctx, broker, ls)
				ok := m.finishLoads(ctx, broker, ls)
				if !ok {
					m.kickRefresh()
					wait.For(ctx, backoff(n))
				}
				select {
				case ended <- result{broker, ok}:
				case <-ctx.Done():
				}
			})
		}
	}
}

// wantedLoads returns the partitions whose history is to be read from brokers that are not busy.
func (m *mirror) wantedLoads(busy map[int32]bool) map[int32][]*loading {
	byBroker := map[int32][]*loading{}
	for _, p := range m.partitions() {
		p.mu.Lock()
		if s := &p.src; !p.closed && s.needLoad && s.fatal == nil && s.broker >= 0 && !busy[s.broker] {
			byBroker[s.broker] = append(byBroker[s.broker], &loading{target: p.target(0, -1), leo: -1})
		}
		p.mu.Unlock()
	}
	return byBroker
}

// finishLoads hands the histories over; false when some are still wanted.
func (m *mirror) finishLoads(ctx context.Context, broker int32, ls []*loading) bool {
	ok, now := true, time.Now()
	for _, l := range ls {
		l.p.mu.Lock()
		switch s := &l.p.src; {
		case ctx.Err() != nil || l.p.closed:
		case s.gen == l.gen && !s.needLoad:
			// Another broker that leads in the same epoch was faster. Records may have come since.
		case s.gen != l.gen || s.epoch != l.epoch || s.broker != broker:
			ok = false // a source leader came in between: its history is the one that counts
		case l.err != nil:
			ok = false
			l.p.fail(fmt.Errorf("read epoch history of source: %w", l.err), now)
		default:
			l.p.loadedHistory(l.hist, l.start, l.end, l.leo, now)
		}
		l.p.mu.Unlock()
	}
	return ok
}

// loadFrom reads log start, high watermark and all epochs of partitions led by one source broker. The epochs are asked for
// downwards, one each round, for all partitions in one request.
func (m *mirror) loadFrom(ctx context.Context, broker int32, ls []*loading) {
	err := m.loadOffsets(ctx, broker, ls)
	for err == nil {
		if open := slices.DeleteFunc(slices.Clone(ls), func(l *loading) bool { return l.done || l.err != nil }); len(open) > 0 {
			err = m.loadEpochs(ctx, broker, open)
			continue
		}
		break
	}
	for _, l := range ls {
		if err != nil && l.err == nil {
			l.err = err
		}
		slices.Reverse(l.hist)
	}
}

func (m *mirror) broker(ctx context.Context, broker int32, req kmsg.Request) (kmsg.Response, error) {
	c, err := m.client(0)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	return c.Broker(int(broker)).Request(ctx, req)
}

// byTopic groups partitions by topic name in the order given.
func byTopic(ls []*loading) (names []string, groups map[string][]*loading) {
	groups = map[string][]*loading{}
	for _, l := range ls {
		if groups[l.name] == nil {
			names = append(names, l.name)
		}
		groups[l.name] = append(groups[l.name], l)
	}
	return names, groups
}

func (m *mirror) loadOffsets(ctx context.Context, broker int32, ls []*loading) error {
	names, groups := byTopic(ls)
	for _, ts := range []int64{-2, -1} {
		req := kmsg.NewPtrListOffsetsRequest()
		for _, name := range names {
			t := kmsg.NewListOffsetsRequestTopic()
			t.Topic = name
			for _, l := range groups[name] {
				p := kmsg.NewListOffsetsRequestTopicPartition()
				p.Partition, p.Timestamp, p.CurrentLeaderEpoch = l.p.id.Partition, ts, l.epoch
				t.Partitions = append(t.Partitions, p)
			}
			req.Topics = append(req.Topics, t)
		}
		kresp, err := m.broker(ctx, broker, req)
		if err != nil {
			return err
		}
		takeOffsets(ls, ts, kresp.(*kmsg.ListOffsetsResponse))
	}
	for _, l := range ls {
		l.ask = l.epoch
	}
	return nil
}

// takeOffsets notes log starts (ts -2) or, after them, high watermarks (ts -1). What can't be true of a log is an error of
// its partition, which reads again: a source that was truncated between two requests answers so too.
func takeOffsets(ls []*loading, ts int64, resp *kmsg.ListOffsetsResponse) {
	answers := map[protocol.TopicPartition]kmsg.ListOffsetsResponseTopicPartition{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			answers[protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}] = p
		}
	}
	for _, l := range ls {
		a, ok := answers[l.key()]
		switch {
		case !ok:
			l.err = errNoAnswer
		case a.ErrorCode != 0:
			l.err = kerr.ErrorForCode(a.ErrorCode)
		case a.Offset < 0, ts == -1 && a.Offset < l.start:
			l.err = fmt.Errorf("source says that the log begins at offset %d and is committed up to %d", l.start, a.Offset)
		case ts == -2:
			l.start = a.Offset
		default:
			l.end = a.Offset
		}
	}
}

func (l *loading) key() protocol.TopicPartition {
	return protocol.TopicPartition{Topic: l.name, Partition: l.p.id.Partition}
}

func (m *mirror) loadEpochs(ctx context.Context, broker int32, ls []*loading) error {
	names, groups := byTopic(ls)
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.ReplicaID = -1
	for _, name := range names {
		t := kmsg.NewOffsetForLeaderEpochRequestTopic()
		t.Topic = name
		for _, l := range groups[name] {
			p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = l.p.id.Partition, l.epoch, l.ask
			t.Partitions = append(t.Partitions, p)
		}
		req.Topics = append(req.Topics, t)
	}
	kresp, err := m.broker(ctx, broker, req)
	if err != nil {
		return err
	}
	takeEpochs(ls, kresp.(*kmsg.OffsetForLeaderEpochResponse))
	return nil
}

// takeEpochs notes one epoch of each partition.
func takeEpochs(ls []*loading, resp *kmsg.OffsetForLeaderEpochResponse) {
	answers := map[protocol.TopicPartition]kmsg.OffsetForLeaderEpochResponseTopicPartition{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			answers[protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}] = p
		}
	}
	for _, l := range ls {
		a, ok := answers[l.key()]
		switch {
		case !ok:
			l.err = errNoAnswer
		case a.ErrorCode != 0:
			l.err = kerr.ErrorForCode(a.ErrorCode)
		default:
			l.epochAnswer(a.LeaderEpoch, a.EndOffset)
		}
	}
}

// epochAnswer takes "epoch, the largest at or below the one asked for, ends at end". The first answer gives the newest
// epoch and the log end; each later end is the start of the epoch noted before. A leader whose log lacks the asked epoch
// answers with the asked epoch itself, so an epoch is real only if the next end is lower. The newest is kept even when it
// has no records: in a log that retention emptied it is all that tells a complete follower from a foreign one.
func (l *loading) epochAnswer(epoch int32, end int64) {
	n := len(l.hist)
	switch {
	case epoch < 0 || end < 0:
		// Undefined: the newest epoch of the log is below the one asked for (it has no records under its leader's epoch).
		if n > 0 || l.ask <= 0 {
			l.done = true
		} else {
			l.ask--
		}
		return
	case epoch > l.ask || n > 0 && end > l.leo || n == 0 && end < l.start:
		// Else it might go on for ever, or with an epoch that begins outside of the log.
		l.err = fmt.Errorf("source says that epoch %d, asked for at %d, ends at offset %d of %d", epoch, l.ask, end, l.leo)
		return
	case n == 0:
		l.leo = end
	case n > 1 && end >= l.hist[n-2].start:
		l.hist = l.hist[:n-1] // the one noted before does not exist
	default:
		l.hist[n-1].start = end
	}
	if n > 0 && end <= l.start {
		l.done = true
		return
	}
	l.hist = append(l.hist, epochStart{epoch, l.start})
	if l.done = epoch == 0; !l.done {
		l.ask = epoch - 1
	}
}
