package unlock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"kmirror/protocol"
)

const (
	// again is after how long a request whose effect does not show is sent again.
	again = 3 * time.Second
	// stuckLimit is for how long partitions without a possible leader are waited for when nothing else is left to do: the
	// controller needs seconds to see that a broker is dead, or back.
	stuckLimit = 15 * time.Second
)

// Result is what became of one topic.
type Result struct {
	*TopicPlan
	// Unlocked: clients can write to all partitions as before kmirror came.
	Unlocked bool `json:"unlocked"`
	// MinISRLeft: it is, and the lock's min.insync.replicas is there still, which means nothing while each partition has one replica.
	MinISRLeft bool `json:"min_isr_left"`
	// Waiting says what is not there yet, and what to do; the same command goes on.
	Waiting []string `json:"waiting"`
	// GivenUp says what an orderly failover would have kept.
	GivenUp []string `json:"given_up"`
	Error   string   `json:"error,omitempty"`
}

// Do carries out what Look found. An error ends it where it is; what was done stays done.
func (u *Unlocker) Do(ctx context.Context) ([]Result, error) {
	if err := u.restore(ctx, sizeConfig); err != nil {
		return nil, err
	}
	if err := u.release(ctx); err != nil {
		return nil, err
	}
	if err := u.restore(ctx, minISRConfig); err != nil {
		return nil, err
	}
	if err := u.regrow(ctx); err != nil {
		return nil, err
	}
	return u.results(ctx)
}

// restore writes one of the two configs of all topics that need it and are ready for it.
func (u *Unlocker) restore(ctx context.Context, key string) error {
	values, by := map[string]string{}, map[string]*task{}
	for _, k := range u.work {
		switch {
		case k.err != nil:
		case key == sizeConfig && k.size:
			values[k.plan.Topic] = k.trueSize
		case key == minISRConfig && k.minISR && len(k.waiting) == 0:
			values[k.plan.Topic] = k.trueMinISR
		}
		by[k.plan.Topic] = k
	}
	if len(values) > 0 {
		u.cfg.Note("%s of %d topics gets its true value", key, len(values))
	}
	failed, err := u.configure(ctx, key, values)
	for name, err := range failed {
		by[name].err = fmt.Errorf("%s: %w", key, err)
	}
	return err
}

// sent is the last request for a partition.
type sent struct {
	list []int32
	at   time.Time
}

// release brings all partitions to live, in-sync real brokers, free of reassignments and of what keeps min.insync.replicas from
// being written. What can't be had in time is noted as waiting.
func (u *Unlocker) release(ctx context.Context) error {
	last := map[protocol.TopicPartition]sent{}
	begin := time.Now()
	moved := false
	for wait := newPause(); ; {
		seen, err := u.look(ctx)
		if err != nil {
			return err
		}
		cancels, moves, waiting, hope := u.outstanding(seen, last)
		spent := time.Since(begin)
		if len(waiting) == 0 || spent > stepLimit || hope < sending && (spent > stuckLimit || hope == nothing) {
			for k, w := range waiting {
				k.waiting = w
			}
			return nil
		}
		if !moved && len(moves) > 0 {
			u.cfg.Note("%d partitions move to their in-sync real brokers", len(moves))
			moved = true
		}
		for _, l := range []lists{cancels, moves} {
			if err := u.send(ctx, l, last); err != nil {
				return err
			}
		}
		if err := wait.next(ctx); err != nil {
			return err
		}
	}
}

// look reads brokers and the topics of the work; a topic that is gone needs nothing more.
func (u *Unlocker) look(ctx context.Context) (map[string]*topic, error) {
	if err := u.brokers(ctx); err != nil {
		return nil, err
	}
	var names []string
	for _, k := range u.work {
		if k.err == nil {
			names = append(names, k.plan.Topic)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	return u.topics(ctx, names)
}

// hope is what more waiting can bring.
type hope uint8

const (
	// nothing: partitions wait for an operator, and can be written.
	nothing hope = iota
	// brokers may be seen to be dead, or back.
	brokers
	// sending: something is to be sent, or on its way.
	sending
)

// outstanding says what release has to send, what each topic still waits for, and what that may bring. last is what was sent before.
func (u *Unlocker) outstanding(
	seen map[string]*topic, last map[protocol.TopicPartition]sent,
) (cancels, moves lists, waiting map[*task][]string, most hope) {
	cancels, moves, waiting = lists{}, lists{}, map[*task][]string{}
	for _, k := range u.work {
		t := seen[k.plan.Topic]
		if k.err != nil || t == nil {
			continue
		}
		for n, p := range t.parts {
			tp := protocol.TopicPartition{Topic: k.plan.Topic, Partition: int32(n)}
			mv, list := u.cluster.next(p, k.minISR)
			if mv == reassign && !slices.Contains(k.before[n], list[len(list)-1]) {
				k.borrowed[n] = list[len(list)-1]
			}
			if mv == free && p.moving() && k.borrowed[n] >= 0 && slices.Contains(last[tp].list, k.borrowed[n]) {
				mv = cancel // it has done its service
			}
			switch mv {
			case free:
				continue
			case stuck:
				waiting[k] = append(waiting[k], u.cluster.why(k.plan.Topic, int32(n), p))
				if !u.cluster.alone(p) {
					most = max(most, brokers)
				}
				continue
			case cancel:
				cancels[tp] = nil
			case reassign:
				moves[tp] = list
			}
			most = sending
			waiting[k] = append(waiting[k], fmt.Sprintf("partition %d: replicas %v, in sync %v, eligible leaders %v: the move to real "+
				"brokers has not ended; run the same command again", n, p.replicas, p.isr, p.elr))
		}
	}
	return cancels, moves, waiting, most
}

// send sends the lists that were not sent a moment ago. A partition that is refused fails its topic.
func (u *Unlocker) send(ctx context.Context, l lists, last map[protocol.TopicPartition]sent) error {
	l = maps.Clone(l)
	maps.DeleteFunc(l, func(tp protocol.TopicPartition, list []int32) bool {
		s, ok := last[tp]
		return ok && slices.Equal(s.list, list) && time.Since(s.at) < again
	})
	failed, err := u.assign(ctx, l)
	if err != nil {
		return err
	}
	for tp, list := range l {
		last[tp] = sent{list, time.Now()}
		if failed[tp] == nil {
			continue
		}
		for _, k := range u.work {
			if k.plan.Topic == tp.Topic {
				k.err = fmt.Errorf("reassignment of partition %d to %v: %w", tp.Partition, list, failed[tp])
			}
		}
	}
	return nil
}

// regrow brings real brokers back that were not in sync, and waits for as long as they may need to catch up. Who is dead, or is
// not done, is noted as waiting.
func (u *Unlocker) regrow(ctx context.Context) error {
	last := map[protocol.TopicPartition]sent{}
	begin := time.Now()
	for wait := newPause(); ; {
		seen, err := u.look(ctx)
		if err != nil {
			return err
		}
		grow, copying := lists{}, map[*task][]string{}
		for _, k := range u.work {
			t := seen[k.plan.Topic]
			if k.err != nil || t == nil || len(k.waiting) > 0 {
				continue
			}
			for n, p := range t.parts {
				want := u.cluster.regrown(p, k.before[n], k.wanted, k.borrowed[n])
				if slices.Equal(want, p.replicas) && !p.moving() {
					continue
				}
				if !p.moving() {
					grow[protocol.TopicPartition{Topic: k.plan.Topic, Partition: int32(n)}] = want
				}
				copying[k] = append(copying[k], fmt.Sprintf("partition %d: brokers %v are still copying, which Kafka goes on with by itself",
					n, p.adding))
			}
		}
		if len(copying) == 0 || time.Since(begin) > stepLimit {
			u.short(seen, copying)
			return nil
		}
		if len(last) == 0 && len(grow) > 0 {
			u.cfg.Note("%d partitions get their real brokers back, in the order of before", len(grow))
		}
		if err := u.send(ctx, grow, last); err != nil {
			return err
		}
		if err := wait.next(ctx); err != nil {
			return err
		}
	}
}

// short notes which partitions have fewer real replicas than they should.
func (u *Unlocker) short(seen map[string]*topic, copying map[*task][]string) {
	for _, k := range u.work {
		t := seen[k.plan.Topic]
		if k.err != nil || t == nil || len(k.waiting) > 0 {
			continue
		}
		k.waiting = copying[k]
		for n, p := range t.parts {
			if p.moving() {
				continue
			}
			missing := slices.DeleteFunc(slices.Clone(k.before[n]), func(id int32) bool { return slices.Contains(p.replicas, id) })
			switch {
			case len(missing) > 0:
				k.waiting = append(k.waiting, fmt.Sprintf("partition %d is on %v: broker %s is down; once it is back run the same command "+
					"again, or add it with kafka-reassign-partitions.sh", n, p.replicas, join(missing, " and ")))
			case len(p.replicas) < k.wanted:
				k.waiting = append(k.waiting, fmt.Sprintf("partition %d is on %v and should have %d replicas: no other broker is alive; once "+
					"one is back run the same command again", n, p.replicas, k.wanted))
			}
		}
	}
}
