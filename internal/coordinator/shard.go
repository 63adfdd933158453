package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol/kip1279"
)

const (
	// claimAge is how old the last record of an owner may be when it writes; then it claims anew. Brokers forget producer ids
	// after a day (producer.id.expiration.ms), and a claim that they have forgotten fences nobody.
	claimAge = 12 * time.Hour
	// claimLimit bounds one attempt to claim a partition.
	claimLimit = 15 * time.Second
	// transactionTimeout says nothing, since no transaction is ever begun; it must not be above the brokers' limit.
	transactionTimeout = 60 * time.Second
)

// errClaimLost is usual when two processes believe that a partition is theirs to claim, for a moment.
var errClaimLost = errors.New("another process claimed the partition at the same time")

// shard is a partition of __mirror_state as its owner sees it.
type shard struct {
	partition int32
	// lock is held (a value is in it) by who claims or writes; what is below changes only then, but for held.
	lock     chan struct{}
	producer producer
	last     time.Time // of the last record of ours

	mu   sync.Mutex
	held bool
	// ready is closed while held is true.
	ready chan struct{}
	// busy: a task claims it; next is when that may be tried again, wait the pause after that.
	busy bool
	next time.Time
	back time.Duration
}

func newShard(p int32) *shard {
	return &shard{partition: p, lock: make(chan struct{}, 1), ready: make(chan struct{})}
}

func (s *shard) acquire(ctx context.Context) error {
	select {
	case s.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *shard) release() { <-s.lock }

// hold makes the shard ready for writes.
func (s *shard) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held {
		s.held = true
		close(s.ready)
	}
}

// drop ends the ownership; a write that is under way is refused by the broker, or was in time.
func (s *shard) drop(why string, log *slog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		s.held, s.ready = false, make(chan struct{})
		log.Debug("no longer the owner", "partition", s.partition, "why", why)
	}
}

func (s *shard) holds() (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held, s.ready
}

// begin reports whether a task is to claim the shard now.
func (s *shard) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held || s.busy || time.Now().Before(s.next) {
		return false
	}
	s.busy = true
	return true
}

// end is told how the claim went.
func (s *shard) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy, s.next = false, time.Time{}
	if err == nil {
		s.back = 0
		return
	}
	s.back = min(max(2*s.back, 100*time.Millisecond), 5*time.Second)
	s.next = time.Now().Add(jitter(s.back))
}

// claim makes this process the owner of a partition, see cluster. It is done when all that was there before has been read.
func (c *cluster) claim(ctx context.Context, s *shard) error {
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	if held, _ := s.holds(); held {
		return nil
	}
	p, err := c.newProducer(ctx, s.partition)
	if err != nil {
		return err
	}
	// Only now, so that what was heard while the epoch was raised counts.
	generation, before, ok := c.mayClaim(s.partition)
	if !ok {
		return ErrNotCoordinator
	}
	if before.known() && before.producer != p.id {
		// The coordinator gives another producer id once the old one's epochs are used up or it was idle for a week. Nobody writes
		// with the old one after this.
		old := producer{id: before.producer, epoch: math.MaxInt16}
		if err := c.closeProducer(ctx, s.partition, old, before); err != nil {
			return err
		}
	}
	r, err := claimRecord(s.partition, c.self, generation, p)
	if err != nil {
		return err
	}
	offset, err := c.sender.send(ctx, s.partition, appendBatch(nil, p, time.Now(), []record{r}))
	if errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.ProducerFenced) {
		return fmt.Errorf("%w: %w", errClaimLost, err)
	}
	if err != nil {
		return err
	}
	if err := c.reached(ctx, s.partition, offset); err != nil {
		return err
	}
	c.mu.Lock()
	now := c.claims[s.partition]
	c.mu.Unlock()
	if !now.owner.Self || now.epoch != p.epoch || now.producer != p.id {
		return errClaimLost
	}
	p.seq++
	s.producer, s.last = p, time.Now()
	s.hold()
	c.mu.Lock()
	now, stays := c.claims[s.partition], !c.lost
	c.mu.Unlock()
	if !now.owner.Self || !stays {
		s.drop("another process claimed it", c.log) // between the look at the claims and hold
		return errClaimLost
	}
	return nil
}

func claimRecord(partition int32, self Member, generation int32, p producer) (record, error) {
	b, err := marshal(claimJSON{ProcessID: self.ProcessID, Admin: self.Admin, NodeIDs: self.NodeIDs, Generation: generation,
		Producer: p.id, Epoch: p.epoch, Since: time.Now().UTC()})
	r := newRecord(kip1279.StateKey{Type: kip1279.RecordOwner}, &kip1279.JSONValue{JSON: b}, 1)
	r.partition = partition
	return r, err
}

// closeProducer takes the right to write from everyone who has an epoch of the producer id.
func (c *cluster) closeProducer(ctx context.Context, partition int32, old producer, before claim) error {
	r, err := claimRecord(partition, before.owner, before.generation, old)
	if err != nil {
		return err
	}
	_, err = c.sender.send(ctx, partition, appendBatch(nil, old, time.Now(), []record{r}))
	if errors.Is(err, kerr.DuplicateSequenceNumber) || errors.Is(err, kerr.OutOfOrderSequenceNumber) {
		return nil // somebody did
	}
	return err
}

// newProducer raises the producer epoch of a partition's transactional id.
func (c *cluster) newProducer(ctx context.Context, partition int32) (producer, error) {
	id := fmt.Sprintf("kmirror-%s-%d", c.topic, partition)
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &id, int32(transactionTimeout.Milliseconds())
	resp, err := req.RequestWith(ctx, c.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		if errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
			err = fmt.Errorf("%w: grant DESCRIBE and WRITE on transactional ids with the prefix kmirror- to kmirror's principal", err)
		}
		return producer{}, fmt.Errorf("producer epoch of %s: %w", id, err)
	}
	return producer{id: resp.ProducerID, epoch: resp.ProducerEpoch}, nil
}

// write appends records to a partition that is held. Called with the shard's lock.
func (c *cluster) write(ctx context.Context, s *shard, records []record) ([]int64, error) {
	if time.Since(s.last) > claimAge {
		s.drop("it has not written for long", c.log)
		return nil, ErrLoading
	}
	var offsets []int64
	for _, part := range split(records) {
		if held, _ := s.holds(); !held {
			return offsets, ErrNotCoordinator
		}
		first, err := c.sender.send(ctx, s.partition, appendBatch(nil, s.producer, time.Now(), part))
		if err != nil {
			return offsets, c.writeFailed(ctx, s, err)
		}
		s.producer.seq, s.last = s.producer.seq+int32(len(part)), time.Now()
		for i, r := range part {
			c.table.apply(r.keyBytes, r.value, first+int64(i))
			offsets = append(offsets, first+int64(i))
		}
	}
	return offsets, nil
}

// writeFailed gives up a partition whose log may now hold another sequence, or another owner's claim.
func (c *cluster) writeFailed(ctx context.Context, s *shard, err error) error {
	switch {
	case errors.Is(err, kerr.InvalidProducerEpoch), errors.Is(err, kerr.ProducerFenced):
		s.drop("fenced by another's claim", c.log)
		return fmt.Errorf("%w: %w", ErrNotCoordinator, err)
	case errors.Is(err, kerr.OutOfOrderSequenceNumber), errors.Is(err, kerr.UnknownProducerID),
		errors.Is(err, kerr.DuplicateSequenceNumber):
		s.drop("the log does not hold what was written last", c.log)
		return fmt.Errorf("%w: %w", ErrLoading, err)
	case errors.Is(err, kgo.ErrClientClosed):
		return ErrClosed
	case ctx.Err() != nil:
		s.drop("a write was given up and may yet arrive", c.log)
	}
	return denied(err, c.topic)
}
