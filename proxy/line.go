package proxy

import (
	"net"
	"slices"
	"sync"
	"time"
)

// line is what the client of a connection is owed, in the order of its requests. Nobody has to be woken for a reply but the one who
// reads it: with small requests those wake-ups would be most of the work.
type line struct {
	mu sync.Mutex
	// moved is told when entries go, and when the connection ends. The reader alone waits for it.
	moved sync.Cond
	owed  []entry
	// busy: somebody delivers the first of owed.
	busy bool
	// ownBytes is the size of our own replies in line.
	ownBytes int64
}

// entry is one reply that is owed: the next one of an upstream connection, or one of our own. A client that does not read has a hundred.
type entry struct {
	// up: the next reply of this upstream connection, which must carry corr, is passed on.
	up    *upstream
	corr  int32
	key   int16
	seq   uint64
	start time.Time
	// edit passes the reply of up on, changed; nil: as it is.
	edit replyEdit
	// own is a whole reply of our own, nil for one of up.
	own *ownReply
}

// ownReply is a reply of our own, size bytes in all.
type ownReply struct {
	bufs net.Buffers
	size int64
}

// held is how many bytes the entry holds.
func (e *entry) held() int64 {
	if e.own == nil {
		return 0
	}
	return e.own.size
}

// replyEdit passes the next reply of an upstream connection on to the client, changed where it has to be. The reply has size bytes, size
// prefix included, and all of them are taken from the connection. The one who reads from that calls it.
type replyEdit func(c *conn, u *upstream, size int64) error

// enqueue puts an entry in line, waiting while too many are there, and delivers it if it is one of our own whose turn has come.
func (c *conn) enqueue(e entry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waitWhile(func() bool { return len(c.owed) >= maxInFlight })
	if err := c.ctx.Err(); err != nil {
		return err
	}
	c.owed = append(c.owed, e)
	c.ownBytes += e.held()
	c.advance()
	return nil
}

// withdraw takes the last entry out of line: its request could not be sent.
func (c *conn) withdraw(u *upstream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.owed); n > 0 && c.owed[n-1].up == u && !(n == 1 && c.busy) {
		c.owed = c.owed[:n-1]
		u.inFlight.Add(-1)
		c.moved.Broadcast()
	}
}

// turn delivers the reply of u that has begun to come, and what follows it in line. False: none is due, or u is of no use any more. What
// is before a reply in line has been delivered when it comes: by the reader, which then sent the request, or here.
func (c *conn) turn(u *upstream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.owed) == 0 || c.busy || c.owed[0].up != u {
		return false
	}
	c.deliver()
	c.advance()
	return c.ctx.Err() == nil
}

// advance delivers what is first in line, as long as no broker is to be waited for. The caller has mu, which is let go meanwhile.
func (c *conn) advance() {
	for len(c.owed) > 0 && !c.busy && (c.owed[0].up == nil || c.owed[0].up.ended() || c.ctx.Err() != nil) {
		c.deliver()
	}
	c.moved.Broadcast()
}

// deliver delivers the first in line. After an error the connection is cut and the rest dropped. The caller has mu, which is let go
// meanwhile.
func (c *conn) deliver() {
	e := c.owed[0]
	c.busy = true
	c.mu.Unlock()
	err := c.ctx.Err()
	if err == nil {
		if err = c.pass(&e); err != nil {
			c.report(err)
			c.cancel()
		}
	}
	c.mu.Lock()
	c.busy = false
	c.ownBytes -= e.held()
	c.owed = slices.Delete(c.owed, 0, 1)
}

// pass writes one reply to the client.
func (c *conn) pass(e *entry) error {
	if e.up == nil {
		return c.replyFrame(e.own.bufs...)
	}
	if e.up.ended() {
		return closeUpstream(e.up.err)
	}
	if err := e.up.relayReply(c, e); err != nil {
		return err
	}
	c.s.cfg.Observer.Forwarded(apiName(e.key), time.Since(e.start))
	return nil
}

// quiesce waits until everything before has been delivered; the reader then has the upstream connections to itself.
func (c *conn) quiesce() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waitWhile(func() bool { return len(c.owed) > 0 })
	return c.ctx.Err()
}

// waitWhile returns when something is not so any more. The client is not listened to meanwhile, so it is looked after now and then: one that
// left must not keep its place for as long as a broker lets it wait. What takes longer than IdleTimeout cuts the connection, and so do others
// that need the memory of the present request. The caller has mu, which is let go meanwhile.
func (c *conn) waitWhile(so func() bool) {
	if !so() || c.ctx.Err() != nil {
		return
	}
	defer time.AfterFunc(c.s.cfg.IdleTimeout, c.cancel).Stop()
	back := c.lease.waits(c.cancel)
	defer func() { c.report(back()) }()
	looked := time.Now()
	look := time.AfterFunc(lookInterval, c.wake)
	defer look.Stop()
	for so() && c.ctx.Err() == nil {
		if c.moved.Wait(); time.Since(looked) < lookInterval {
			continue
		}
		if hasLeft(c.nc) {
			c.cancel()
		}
		looked = time.Now()
		look.Reset(lookInterval)
	}
}

// idle reports whether the client is owed nothing.
func (c *conn) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.owed) == 0
}

// held is the size of our own replies in line.
func (c *conn) held() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ownBytes
}

// wake has all who wait for the line look again.
func (c *conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moved.Broadcast()
}
