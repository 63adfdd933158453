package unlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/internal/coordinator"
	"kmirror/statemachine"
)

// TopicPlan is a topic that carries the lock, or a piece of it, and what unlock does with it.
type TopicPlan struct {
	Topic      string `json:"topic"`
	Partitions int    `json:"partitions"`
	// Mirror is the mirror that __mirror_state names, "" when it is not known there.
	Mirror string `json:"mirror"`
	// Restores are the values that the two configs of the lock get, as far as they are to be written; "" removes one.
	Restores map[string]string `json:"restores"`
	// Guessed tells why the true values are not known, "" when they are.
	Guessed string `json:"guessed,omitempty"`
	// Replicas are the replica lists as they were found, by partition.
	Replicas [][]int32 `json:"replicas"`
	// Requests are the requests that are sent, one line each, in order.
	Requests []string `json:"requests"`
	// OpenTransactions are those of the source that nobody will end; they can be told only while the lock is on. ProducerIDs is how
	// many ids of the source's producers the partitions know, -1 when they did not all tell.
	OpenTransactions []OpenTransaction `json:"open_transactions"`
	ProducerIDs      int               `json:"producer_ids"`
}

// OpenTransaction is a mirrored transaction without an end.
type OpenTransaction struct {
	Partition   int32 `json:"partition"`
	ProducerID  int64 `json:"producer_id"`
	StartOffset int64 `json:"start_offset"`
	// Abort is the command of Kafka that aborts it.
	Abort string `json:"abort"`
}

// task looks at a topic and returns what has to be done, nil when there is nothing.
func (u *Unlocker) task(name string, t *topic, known map[string]coordinator.Topic, unreadable string) *task {
	memory, mirrored := known[t.id.String()]
	k := &task{plan: &TopicPlan{Topic: name, Partitions: len(t.parts), Mirror: memory.Mirror, Restores: map[string]string{},
		OpenTransactions: []OpenTransaction{}, Requests: []string{}}, wanted: int(memory.Replicas)}
	listed, most, short := false, 0, false
	for _, p := range t.parts {
		k.plan.Replicas = append(k.plan.Replicas, p.replicas)
		real := u.cluster.real(p.replicas)
		k.before, k.borrowed = append(k.before, real), append(k.borrowed, -1)
		listed = listed || u.cluster.hasGuest(p.replicas)
		most, short = max(most, len(real)), short || len(real) < k.wanted
	}
	k.size = t.size == "0"
	// An earlier run may have ended before this half: the value alone tells, where a mirror is known or nothing is.
	n, err := strconv.Atoi(t.minISR)
	k.minISR = err == nil && n > most && (k.size || listed || mirrored || unreadable != "") &&
		t.minISR != memory.TrueConfigs[minISRConfig]
	if !k.size && !k.minISR && !listed && (!short || memory.Desired == statemachine.Stopped) {
		return nil
	}
	if !mirrored && len(t.parts) > 0 && !k.size && !k.minISR {
		// No mirror: Kafka placed it on kmirror's ids as if they were brokers, and it is to have as many replicas as it was made with.
		k.wanted = len(t.parts[0].target())
	}
	k.trueSize, k.trueMinISR = memory.TrueConfigs[sizeConfig], memory.TrueConfigs[minISRConfig]
	if k.size {
		k.plan.Restores[sizeConfig] = k.trueSize
	}
	if k.minISR {
		k.plan.Restores[minISRConfig] = k.trueMinISR
	}
	if !mirrored && len(k.plan.Restores) > 0 {
		k.plan.Guessed = unreadable
		if unreadable == "" {
			k.plan.Guessed = coordinator.DefaultTopic + " does not know the topic"
		}
	}
	u.noteSpare(k)
	u.requests(k, t)
	return k
}

// noteSpare tells of replicas that an interrupted run may have left: a topic with one replica gets a second for a moment, so that the
// controller forgets the eligible leader replicas. It may also be somebody's wish, and does no harm.
func (u *Unlocker) noteSpare(k *task) {
	if k.size || !k.minISR || k.wanted != 1 {
		return
	}
	for n, real := range k.before {
		if len(real) == 2 {
			u.cfg.Note("%s-%d is on brokers %v and had one replica: an unlock that was interrupted may have added broker %d; "+
				"if nobody else has, take it off with kafka-reassign-partitions.sh", k.plan.Topic, n, real, real[1])
		}
	}
}

// requests writes down what will be sent, by what is seen now.
func (u *Unlocker) requests(k *task, t *topic) {
	add := func(format string, args ...any) {
		k.plan.Requests = append(k.plan.Requests, fmt.Sprintf(format, args...))
	}
	config := func(key, value string) {
		if value == "" {
			add("IncrementalAlterConfigs %s: remove %s", k.plan.Topic, key)
		} else {
			add("IncrementalAlterConfigs %s: %s=%s", k.plan.Topic, key, value)
		}
	}
	if k.size {
		config(sizeConfig, k.trueSize)
	}
	for n, p := range t.parts {
		if mv, _ := u.cluster.next(p, k.minISR); p.moving() && mv == cancel {
			add("AlterPartitionReassignments %s-%d: cancel", k.plan.Topic, n)
		}
		rest := p
		rest.adding, rest.removing = nil, nil
		switch mv, list := u.cluster.next(rest, k.minISR); mv {
		case reassign:
			add("AlterPartitionReassignments %s-%d: %v -> %v", k.plan.Topic, n, p.replicas, list)
		case stuck:
			add("wait: %s", u.cluster.why(k.plan.Topic, int32(n), p))
		}
	}
	if k.minISR {
		if slices.ContainsFunc(t.parts, func(p partition) bool { return len(p.elr) > 0 }) {
			add("AlterPartitionReassignments %s: another order, which clears the eligible leader replicas", k.plan.Topic)
		}
		config(minISRConfig, k.trueMinISR)
	}
	for n, p := range t.parts {
		cut := partition{replicas: p.target()}
		if u.cluster.hasGuest(p.replicas) {
			cut.replicas = u.cluster.inSync(p)
		}
		if list := u.cluster.regrown(cut, k.before[n], k.wanted, -1); !slices.Equal(list, cut.replicas) {
			add("AlterPartitionReassignments %s-%d: %v -> %v", k.plan.Topic, n, cut.replicas, list)
		}
	}
}

// producers asks the leaders which producers their partitions know. What was open before the lock is off is the source's: nobody
// else could write. Leaders that don't answer leave ProducerIDs at -1.
func (u *Unlocker) producers(ctx context.Context) {
	set := kadm.TopicsSet{}
	by, locked := map[string]*TopicPlan{}, map[string]bool{}
	for _, k := range u.work {
		by[k.plan.Topic], locked[k.plan.Topic] = k.plan, k.size
		for n := range k.plan.Partitions {
			set.Add(k.plan.Topic, int32(n))
		}
	}
	if len(set) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	answers, _ := u.adm.DescribeProducers(ctx, set) // leaders that don't answer are missing, and counted below
	told, ids := map[string]int{}, map[string]map[int64]bool{}
	for _, a := range answers.SortedPartitions() {
		plan := by[a.Topic]
		if plan == nil || a.Err != nil {
			continue
		}
		told[a.Topic]++
		if ids[a.Topic] == nil {
			ids[a.Topic] = map[int64]bool{}
		}
		for _, p := range a.ActiveProducers.Sorted() {
			ids[a.Topic][p.ProducerID] = true
			if p.CurrentTxnStartOffset >= 0 && locked[a.Topic] {
				plan.OpenTransactions = append(plan.OpenTransactions, OpenTransaction{Partition: a.Partition, ProducerID: p.ProducerID,
					StartOffset: p.CurrentTxnStartOffset, Abort: fmt.Sprintf("kafka-transactions.sh --bootstrap-server %s abort --topic %s "+
						"--partition %d --start-offset %d", u.cfg.Bootstrap, a.Topic, a.Partition, p.CurrentTxnStartOffset)})
			}
		}
	}
	for name, plan := range by {
		plan.ProducerIDs = len(ids[name])
		if told[name] < plan.Partitions {
			plan.ProducerIDs = -1
		}
		slices.SortFunc(plan.OpenTransactions, func(a, b OpenTransaction) int { return int(a.Partition - b.Partition) })
	}
}
