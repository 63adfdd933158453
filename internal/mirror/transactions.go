package mirror

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
	"unicode/utf16"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// transactionTopic holds the state of the destination's transaction coordinators, a partition each.
const transactionTopic = "__transaction_state"

const (
	// txnLook is how often transactions that can't end are looked for. Markers take milliseconds when all is well.
	txnLook = 5 * time.Second
	// txnRest is for how long a coordinator that was made to load anew is left alone; it doubles, up to txnRestMax.
	txnRest    = 10 * time.Second
	txnRestMax = 10 * time.Minute
)

// hanging is a transaction whose end is decided and whose markers have not all been taken.
type hanging struct {
	id       string
	producer int64
	epoch    int16
	started  int64
	parts    []protocol.TopicPartition
}

// txnWatch frees transactions of the destination that hang over partitions that we lead.
//
// We come back by entering the ISR of a locked partition that a real broker leads, and being elected. In between, the ISR
// has reached min.insync.replicas while the topic still takes no byte: a marker that a coordinator sends at that moment, as
// it does without pause for transactions that ended while we were away, is refused for its size. Coordinators hold that for
// fatal and never send it again until they load their state anew, which they do when their partition of
// __transaction_state changes its leader. We acknowledge the marker then.
type txnWatch struct {
	m *Manager
	// list returns the transactions in PrepareCommit and PrepareAbort.
	list func(ctx context.Context) ([]hanging, error)
	// seen holds what the last look found, by transactional id.
	seen map[string]hanging
	rest map[protocol.PartitionID]*txnPause
}

type txnPause struct {
	until time.Time
	next  time.Duration
}

func newTxnWatch(m *Manager) *txnWatch {
	return &txnWatch{m: m, list: m.hangingTransactions, seen: map[string]hanging{}, rest: map[protocol.PartitionID]*txnPause{}}
}

func (w *txnWatch) run(ctx context.Context) {
	t := time.NewTimer(txnLook)
	defer t.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		text := ""
		if err := w.look(ctx); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != "" && text != last {
			w.m.log.Warn("looking for transactions that hang", "err", text)
		}
		last = text
		t.Reset(txnLook/2 + rand.N(txnLook))
	}
}

// look frees the transactions that have not got on since the last look.
func (w *txnWatch) look(ctx context.Context) error {
	img := w.m.cfg.Destination.Image()
	if !w.m.leadsMirrors(img) {
		clear(w.seen)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, taskLimit)
	defer cancel()
	found, err := w.list(ctx)
	if err != nil {
		return err
	}
	before := w.seen
	w.seen = map[string]hanging{}
	var errs []error
	for _, h := range found {
		if !slices.ContainsFunc(h.parts, func(tp protocol.TopicPartition) bool { return w.m.leadsMirror(img, tp) }) {
			continue
		}
		w.seen[h.id] = h
		if b, ok := before[h.id]; ok && b.producer == h.producer && b.epoch == h.epoch && b.started == h.started {
			errs = append(errs, w.free(ctx, h))
		}
	}
	return errors.Join(errs...)
}

// free has the coordinator of a transaction load its state anew.
func (w *txnWatch) free(ctx context.Context, h hanging) error {
	img := w.m.cfg.Destination.Image()
	topic := img.TopicByName(transactionTopic)
	if topic == nil || len(topic.Partitions) == 0 {
		return nil
	}
	id := protocol.PartitionID{Topic: topic.ID, Partition: coordinatorPartition(h.id, len(topic.Partitions))}
	p := w.rest[id]
	if p == nil {
		p = &txnPause{next: txnRest}
		w.rest[id] = p
	}
	if time.Now().Before(p.until) {
		return nil
	}
	p.until, p.next = time.Now().Add(p.next), min(2*p.next, txnRestMax)
	w.m.log.Warn("a transaction of the destination hangs: its marker for a mirror partition was refused before kmirror led it; "+
		"leadership of its coordinator's partition is moved away and back, which has the marker sent again",
		"transactional_id", h.id, "producer_id", h.producer, "partition", fmt.Sprintf("%s-%d", transactionTopic, id.Partition))
	return w.m.moveAwayAndBack(ctx, id)
}

// moveAwayAndBack gives leadership of a partition of real brokers to another in-sync replica, and then to the preferred one.
func (m *Manager) moveAwayAndBack(ctx context.Context, id protocol.PartitionID) error {
	img := m.cfg.Destination.Image()
	ip, tp := img.Partition(id), nameOf(img, id)
	if ip == nil || ip.Leader < 0 || len(ip.Adding)+len(ip.Removing) > 0 {
		return nil // it moves as it is, or will
	}
	order := slices.Clone(ip.Replicas)
	other := slices.IndexFunc(order, func(b int32) bool {
		reg := img.Brokers[b]
		return b != ip.Leader && slices.Contains(ip.ISR, b) && reg != nil && !reg.Fenced && !reg.InControlledShutdown
	})
	if other < 0 {
		return fmt.Errorf("%v has no other in-sync replica to lead it: restart broker %d to free its transactions", tp, ip.Leader)
	}
	away := append([]int32{order[other]}, slices.Delete(slices.Clone(order), other, other+1)...)
	for _, list := range [][]int32{away, order} {
		if err := joinErrors("reorder", m.cfg.Destination.Reassign(ctx, map[protocol.TopicPartition][]int32{tp: list})); err != nil {
			return err
		}
		if err := joinErrors("elect", m.cfg.Destination.ElectPreferred(ctx, []protocol.TopicPartition{tp})); err != nil {
			return err
		}
		if slices.Contains(ip.ISR, list[0]) {
			if err := m.await(ctx, []protocol.PartitionID{id}, "leadership", func(_ protocol.PartitionID, p *kraft.Partition) bool {
				return p.Leader == list[0]
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// leadsMirror reports whether a partition is a mirror's and led by us.
func (m *Manager) leadsMirror(img *kraft.Image, tp protocol.TopicPartition) bool {
	t := img.TopicByName(tp.Topic)
	if t == nil || tp.Partition < 0 || int(tp.Partition) >= len(t.Partitions) {
		return false
	}
	_, ours := m.MirrorOf(tp.Topic)
	return ours && m.cfg.Destination.Owns(t.Partitions[tp.Partition].Leader)
}

func (m *Manager) leadsMirrors(img *kraft.Image) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.parts {
		if ip := img.Partition(id); ip != nil && m.cfg.Destination.Owns(ip.Leader) {
			return true
		}
	}
	return false
}

// hangingTransactions asks all brokers. What some of them answer counts although others don't.
func (m *Manager) hangingTransactions(ctx context.Context) ([]hanging, error) {
	adm, err := m.sources.destination()
	if err != nil {
		return nil, err
	}
	listed, err := adm.ListTransactions(ctx, nil, []string{"PrepareCommit", "PrepareAbort"})
	var some *kadm.ShardErrors
	if err != nil && !errors.As(err, &some) {
		return nil, fmt.Errorf("list transactions: %w", err)
	}
	if len(listed) == 0 {
		return nil, nil
	}
	described, err := adm.DescribeTransactions(ctx, listed.TransactionalIDs()...)
	if err != nil && !errors.As(err, &some) {
		return nil, fmt.Errorf("describe transactions: %w", err)
	}
	var out []hanging
	for _, d := range described {
		if d.Err != nil || d.State != "PrepareCommit" && d.State != "PrepareAbort" {
			continue
		}
		h := hanging{id: d.TxnID, producer: d.ProducerID, epoch: d.ProducerEpoch, started: d.StartTimestamp}
		d.Topics.Each(func(topic string, partition int32) {
			h.parts = append(h.parts, protocol.TopicPartition{Topic: topic, Partition: partition})
		})
		out = append(out, h)
	}
	return out, nil
}

// coordinatorPartition is the partition of __transaction_state that a transactional id belongs to: the hash of a Java
// string, as Kafka's Utils.abs takes it, modulo their number.
func coordinatorPartition(id string, partitions int) int32 {
	var h int32
	for _, c := range utf16.Encode([]rune(id)) {
		h = 31*h + int32(c)
	}
	switch {
	case h == -1<<31:
		h = 0
	case h < 0:
		h = -h
	}
	return h % int32(partitions)
}
