package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// coalesce is how long a moved watermark waits for others before it is answered on its own.
	coalesce = 2 * time.Millisecond
	// heldWait is how long a request that is not incremental waits for partitions about which nothing can be said yet. An
	// error would make the follower wait longer.
	heldWait = 3 * time.Second
)

// ErrNotReplica: the request is not a follower's fetch of a version that followers use.
var ErrNotReplica = errors.New("not a fetch of a follower")

// ErrStopped: the Leader is not running.
var ErrStopped = errors.New("leader is not running")

// call is the working memory of one Fetch.
type call struct {
	l       *Leader
	caller  caller
	view    view
	req     *kmsg.FetchRequest
	answers []answer
	bufs    [][]byte

	size         int
	failed, held bool
	moved        bool // a watermark or log start differs from what was told
}

var calls = sync.Pool{New: func() any { return new(call) }}

// Fetch answers a follower's fetch that came in on the listener of our node id. It blocks for as long as the request
// allows when there is nothing to say. Errors are those of the request as a whole, after which the connection is of no
// use: ErrNotReplica, ErrStopped, ctx's.
func (l *Leader) Fetch(ctx context.Context, req *kmsg.FetchRequest, nodeID int32) (*Reply, error) {
	replica, brokerEpoch := replicaOf(req)
	if req.Version < minFetchVersion || req.Version > maxFetchVersion || replica < 0 {
		return nil, fmt.Errorf("%w: version %d, replica %d", ErrNotReplica, req.Version, replica)
	}
	v, code := l.sessions.begin(req, replica, nodeID)
	if code != 0 {
		return encode(req.Version, code, 0, nil, nil), nil
	}
	c := calls.Get().(*call)
	defer c.release()
	c.l, c.req, c.view = l, req, v
	c.caller = caller{
		replica: replica, node: nodeID, brokerEpoch: brokerEpoch, byID: req.Version >= 13, box: v.box, fresh: true,
	}
	if v.sess != nil {
		defer l.sessions.end(v.sess)
	}
	if err := c.poll(ctx); err != nil {
		return nil, err
	}
	return c.reply(), nil
}

func (c *call) release() {
	clear(c.answers[:cap(c.answers)])
	clear(c.bufs[:cap(c.bufs)])
	*c = call{answers: c.answers[:0], bufs: c.bufs[:0]}
	calls.Put(c)
}

// poll evaluates the request until it is to be answered.
func (c *call) poll(ctx context.Context) error {
	box := c.view.box
	box.parked.Store(true)
	defer box.parked.Store(false)
	box.drain()
	applied := c.l.imageApplied()
	c.evaluate()
	if c.ready(false) || c.req.MaxWaitMillis <= 0 || c.req.MinBytes <= 0 {
		return nil
	}
	c.caller.fresh = false
	began := time.Now()
	wait := time.Duration(c.req.MaxWaitMillis) * time.Millisecond
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	soon := time.NewTimer(time.Hour)
	defer soon.Stop()
	armed, over := false, false
	for {
		if c.moved && !armed {
			soon.Reset(coalesce)
			armed = true
		}
		flush := false
		if !c.held {
			applied = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.l.done:
			return ErrStopped
		case <-deadline.C:
			over, flush = true, true
		case <-soon.C:
			armed, flush = false, true
		case <-box.soon:
			if !armed {
				soon.Reset(coalesce)
				armed = true
			}
			continue
		case <-box.urgent:
		case <-applied:
		}
		applied = c.l.imageApplied()
		c.evaluate()
		if c.ready(flush) {
			return nil
		}
		if over {
			left := heldWait - time.Since(began)
			if !c.held || c.view.incremental || left <= 0 {
				return nil
			}
			deadline.Reset(left)
		}
	}
}

// ready reports whether there is enough to answer; flush lets a moved watermark be enough.
func (c *call) ready(flush bool) bool {
	return c.failed || c.size > 0 && c.size >= int(c.req.MinBytes) || flush && c.moved
}

// evaluate works out all answers as of now.
func (c *call) evaluate() {
	l := c.l
	c.caller.now = time.Now()
	b := l.image().Brokers[c.caller.replica]
	c.caller.stale = b != nil && c.caller.brokerEpoch >= 0 && c.caller.brokerEpoch < b.Epoch
	c.answers, c.bufs = c.answers[:0], c.bufs[:0]
	c.size, c.failed, c.held, c.moved = 0, false, false, false
	left := max(int(c.req.MaxBytes), 0)
	for _, a := range c.view.parts {
		c.answers = append(c.answers, answer{})
		r := &c.answers[len(c.answers)-1]
		c.bufs = l.answer(a, &c.caller, min(left, max(int(a.maxBytes), 0)), c.size == 0, r, c.bufs)
		left = max(left-r.size, 0)
		c.size += r.size
		moved := !r.held && r.code == 0 && (r.hw != a.toldHW || r.start != a.toldStart)
		if !c.view.incremental && c.caller.fresh && !r.held {
			a.toldHW, a.toldStart, moved = r.hw, r.start, false // from here on a change is news
		}
		c.moved = c.moved || moved
		c.held = c.held || r.held
		c.failed = c.failed || r.diverging || r.code != 0 && !r.held
		if c.view.incremental && (r.held || r.code == 0 && !r.diverging && r.size == 0 && !moved) {
			c.answers = c.answers[:len(c.answers)-1]
			a.served = false
		}
	}
}

// reply encodes the answers and notes in the session what was told.
func (c *call) reply() *Reply {
	for i := range c.answers {
		r := &c.answers[i]
		a := r.a
		a.served = r.size > 0
		a.toldHW, a.toldStart = r.hw, r.start
		if r.code != 0 || r.diverging {
			a.toldHW, a.toldStart = -1, -1
		}
	}
	var id int32
	if sess := c.view.sess; sess != nil {
		id = sess.id
		sess.rotate()
	}
	return encode(c.req.Version, 0, id, c.answers, c.bufs)
}
