package relay

import (
	"fmt"
	"sync"
	"time"

	"kmirror/internal/quiet"
	"kmirror/internal/trace"
)

const (
	// queueLength bounds the messages that wait, of which those without a body cost no Budget.
	queueLength = 8192
	// tellEvery is how often the output is told how much was left out.
	tellEvery = time.Second
)

// queue holds messages until they are written. Putting never waits.
type queue struct {
	reporter *trace.Reporter
	budget   *trace.Budget
	quiet    *quiet.Log
	messages chan *trace.Message

	mu      sync.Mutex
	closed  bool
	dropped int64
	err     error
}

func newQueue(r *trace.Reporter, b *trace.Budget, q *quiet.Log) *queue {
	return &queue{reporter: r, budget: b, quiet: q, messages: make(chan *trace.Message, queueLength)}
}

// put counts a message and queues it, or drops it when there is no room.
func (q *queue) put(m *trace.Message) {
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
func (q *queue) drop(m *trace.Message) {
	q.dropped++
	q.budget.Give(m.Charge)
	q.reporter.Stats.Dropped(m)
}

// close ends run once what waits is written.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	close(q.messages)
}

// run writes messages until close, and returns the first error of the output; what follows one is dropped, while traffic
// goes on.
func (q *queue) run() error {
	var told time.Time
	for m := range q.messages {
		if q.failed() {
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
	if !q.failed() {
		q.fail(q.tell(time.Now()))
	}
	return q.err
}

// tell writes how many messages were dropped since the last time.
func (q *queue) tell(now time.Time) error {
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

func (q *queue) failed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err != nil
}

func (q *queue) fail(err error) {
	if err == nil {
		return
	}
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	q.quiet.Warn("output", "the trace can't be written; traffic goes on", "err", err)
}
