// Package queue stands between connections that are traced and an output: what waits there is bounded, and what there is no room for is
// left out and counted, so that a slow output never holds traffic up.
package queue

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"kmirror/internal/quiet"
	"kmirror/internal/trace"
)

const (
	// Length bounds the messages that wait, of which those without a body cost no Budget.
	Length = 8192
	// tellEvery is how often the output is told how much was left out.
	tellEvery = time.Second
	// stuckAfter is how long an output may take nothing at all of what is left, endLimit how long all of it may take.
	stuckAfter = 5 * time.Second
	endLimit   = 30 * time.Second
)

// ErrStuck is returned by End when the output did not take what was left in time. The goroutine that writes goes on.
var ErrStuck = errors.New("trace: the output does not take what is left")

// Queue holds messages until they are written.
type Queue struct {
	reporter *trace.Reporter
	budget   *trace.Budget
	quiet    *quiet.Log
	messages chan *trace.Message
	// taken counts the messages that Run has taken up to write or drop: a number that stands shows End that the output is stuck.
	taken atomic.Int64

	mu      sync.Mutex
	closed  bool
	dropped int64
	err     error
}

// New makes a Queue in front of a Reporter with Stats. Charges of messages are given back to b; q is told of an output that fails.
func New(r *trace.Reporter, b *trace.Budget, q *quiet.Log) *Queue {
	return &Queue{reporter: r, budget: b, quiet: q, messages: make(chan *trace.Message, Length)}
}

// Put counts a message and queues it, or drops it when there is no room or the Queue is closed. It never waits.
func (q *Queue) Put(m *trace.Message) {
	q.reporter.Stats.Message(m)
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		select {
		case q.messages <- m:
			return
		default:
		}
	}
	q.drop(m)
}

// drop gives up a message. The caller holds mu.
func (q *Queue) drop(m *trace.Message) {
	q.dropped++
	q.budget.Give(m.Charge)
	q.reporter.Stats.Dropped(m)
}

// Close ends Run once what waits is written. It may be called once.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	close(q.messages)
}

// End is Close, and waits for the end of Run, which is to come by way of written. An output that is slow has its time; one that takes
// nothing any more, or too little, is left to itself.
func (q *Queue) End(written <-chan error) error {
	q.Close()
	limit := time.NewTimer(endLimit)
	defer limit.Stop()
	look := time.NewTicker(stuckAfter)
	defer look.Stop()
	for taken := q.taken.Load(); ; {
		select {
		case err := <-written:
			return err
		case <-limit.C:
			return ErrStuck
		case <-look.C:
			now := q.taken.Load()
			if now == taken {
				return ErrStuck
			}
			taken = now
		}
	}
}

// Run writes messages until Close, and returns the first error of the output; what follows one is dropped, while traffic
// goes on.
func (q *Queue) Run() error {
	var told time.Time
	for m := range q.messages {
		q.taken.Add(1)
		if q.Failed() {
			q.mu.Lock()
			q.drop(m)
			q.mu.Unlock()
			continue
		}
		err := q.reporter.Report(m)
		q.budget.Give(m.Charge)
		if now := time.Now(); err == nil && now.Sub(told) >= tellEvery {
			told = now
			err = q.tell(now)
		}
		q.fail(err)
	}
	if !q.Failed() {
		q.fail(q.tell(time.Now()))
	}
	return q.err
}

// tell writes how many messages were dropped since the last time.
func (q *Queue) tell(now time.Time) error {
	q.mu.Lock()
	n := q.dropped
	q.dropped = 0
	q.mu.Unlock()
	if n == 0 {
		return nil
	}
	return q.reporter.Report(&trace.Message{Kind: trace.Note, At: now,
		Reason: fmt.Sprintf("%d messages are missing here: the output is slower than the traffic", n)})
}

// Failed reports whether the output has failed: nothing is written any more.
func (q *Queue) Failed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err != nil
}

func (q *Queue) fail(err error) {
	if err == nil {
		return
	}
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	q.quiet.Warn("output", "the trace can't be written; traffic goes on", "err", err)
}
