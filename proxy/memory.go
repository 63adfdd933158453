package proxy

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kmirror/protocol"
)

const (
	// smallRequest is what a request may hold without being counted.
	smallRequest = 16 << 10
	// memoryPatience is how long a request may take before it can be called slow.
	memoryPatience = 5 * time.Second
	// slowRequest is the rate, in bytes a second, below which a request is slow when others wait for memory.
	slowRequest = 256 << 10
	// sweepInterval is how often those that wait for memory look for slow ones.
	sweepInterval = time.Second
)

// Memory bounds what requests hold while they are read, decoded and dealt with, over all connections of the servers and gateways that share
// it. Frames up to 16 KiB and decoded ones of up to 512 bytes, records excepted, don't count: at most 64 KiB a connection. Those in frames up
// to 1 MiB have one half, larger ones the other. One request of each half that is in nobody's way may go beyond it, by a frame, or by what it
// can be once decoded: the limit again, or 90 MiB where that is more. When a half is used up, connections wait for their turn, which their
// clients see as a busy broker. Those are cut off meanwhile whose request comes at less than 256 KiB a second for five seconds, or waits that
// long for replies to those before it: else a few clients that stop within a request could stop all.
type Memory struct {
	common, large share
	// fields is the largest request that is decoded, records excepted, in bytes.
	fields atomic.Int64
}

// NewMemory returns a bound of limit bytes.
func NewMemory(limit int64) *Memory {
	m := new(Memory)
	m.fields.Store(mostFields(limit))
	for _, s := range []*share{&m.common, &m.large} {
		*s = share{limit: limit / 2, patience: memoryPatience, holders: make(map[*lease]struct{}), freed: make(chan struct{})}
	}
	return m
}

// SetLimit changes the bound for what is asked for from now on. What is held stays: under a lower bound others wait until enough of it is
// given back.
func (m *Memory) SetLimit(limit int64) {
	m.fields.Store(mostFields(limit))
	for _, s := range []*share{&m.common, &m.large} {
		s.mu.Lock()
		s.limit = limit / 2
		s.wake()
		s.mu.Unlock()
	}
}

// mostFields is Memory.fields under a limit.
func mostFields(limit int64) int64 { return min(max(limit/fieldCost, minFields), maxFields) }

// of is the half for a request.
func (m *Memory) of(size int) *share {
	if _, ok := classOf(size); ok {
		return &m.common
	}
	return &m.large
}

// share is one half of a Memory.
type share struct {
	limit    int64
	patience time.Duration

	mu   sync.Mutex
	used int64
	// holders have something, waiting want more, in their order.
	holders map[*lease]struct{}
	waiting []*lease
	// first may go beyond the limit: the one that has waited for longest, until it is done.
	first *lease
	// freed is closed and replaced whenever something was given back.
	freed chan struct{}
}

// lease is one connection's part of a share, whose lock guards its fields. It is of no share while nothing is held.
type lease struct {
	m    *share
	held int64
	// came counts the bytes of the request that is being read; it was marked at the time since.
	came   atomic.Int64
	marked int64
	since  time.Time
	// cut ends the reading of the request, or what it waits for; it must not block. slow is set before. reading: there is something to end.
	cut           func()
	slow, reading bool
	// left, nil for never, reports whether the client is gone. It was asked at the time looked. Both are who waits's.
	left   func() bool
	looked time.Time
}

// grow makes what is held n bytes, waiting as long as there is no room.
func (l *lease) grow(ctx context.Context, n int64) error {
	m := l.m
	m.mu.Lock()
	defer m.mu.Unlock()
	for !m.fits(l, n) {
		if !slices.Contains(m.waiting, l) {
			m.waiting = append(m.waiting, l)
		}
		if err := m.wait(ctx, l); err != nil {
			m.leave(l)
			return err
		}
		if m.sweep(); l.slow {
			break
		}
	}
	m.leave(l)
	if l.slow {
		return l.tooSlow()
	}
	m.used += n - l.held
	l.held, l.reading = n, true
	l.since, l.marked = time.Now(), l.came.Load()
	m.holders[l] = struct{}{}
	return nil
}

// fits reports whether the lease may hold n bytes now. Who waits goes before who comes.
func (m *share) fits(l *lease, n int64) bool {
	if m.first == nil && (len(m.waiting) == 0 || m.waiting[0] == l) && m.used+n-l.held > m.limit {
		m.first = l
	}
	return m.first == l || m.used+n-l.held <= m.limit
}

// wait returns when something was given back, or it is time to sweep. It gives the lock away meanwhile. A client that has left is not waited
// for: hundreds that did would have their turns one after the other, in the way of those that are there.
func (m *share) wait(ctx context.Context, l *lease) error {
	freed := m.freed
	m.mu.Unlock()
	defer m.mu.Lock()
	timer := time.NewTimer(sweepInterval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-freed:
	case <-timer.C:
	}
	if l.left != nil && time.Since(l.looked) >= sweepInterval {
		if l.looked = time.Now(); l.left() {
			return context.Canceled
		}
	}
	return nil
}

// sweep cuts off what is slow. It is called only by those that wait.
func (m *share) sweep() {
	for l := range m.holders {
		took, came := time.Since(l.since), l.came.Load()
		switch {
		case !l.reading || took < m.patience || slices.Contains(m.waiting, l):
		case float64(came-l.marked) < took.Seconds()*slowRequest:
			l.slow, l.reading = true, false
			l.cut()
		default:
			l.since, l.marked = time.Now(), came
		}
	}
}

// leave takes a lease out of those that wait.
func (m *share) leave(l *lease) {
	m.waiting = slices.DeleteFunc(m.waiting, func(o *lease) bool { return o == l })
}

// tooSlow is why the connection is closed.
func (l *lease) tooSlow() error {
	return closef("memory", "a request came at less than %d KiB a second while the memory for requests was used up (limits.memory)", slowRequest>>10)
}

// shrink gives all but n bytes back.
func (l *lease) shrink(n int64) {
	m := l.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if n >= l.held {
		return
	}
	m.used -= l.held - n
	if l.held = n; m.first == l && m.used <= m.limit {
		m.first = nil
	}
	m.wake()
}

// release gives all of it back.
func (l *lease) release() {
	m := l.m
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.first == l || l.held > 0 {
		if m.first == l {
			m.first = nil
		}
		m.used -= l.held
		l.held, l.slow = 0, false
		delete(m.holders, l)
		m.wake()
	}
}

// wake has those that wait look again.
func (m *share) wake() {
	close(m.freed)
	m.freed = make(chan struct{})
}

// read is told how reading ended: why is nil when the whole request has come. It returns the reason to close the connection for.
func (l *lease) read(why error) error {
	if l.m == nil {
		return why
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.reading = false
	if why != nil && l.slow {
		return l.tooSlow()
	}
	return why
}

// waits is told that the request waits for something that may take long: if others wait for memory meanwhile, cut is called, which must not
// block. back ends that, and returns the reason to close the connection for, nil where it was not cut.
func (l *lease) waits(cut func()) (back func() error) {
	m := l.m
	if m == nil {
		return func() error { return nil }
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	was := l.cut
	l.cut, l.reading = cut, l.held > 0
	l.since, l.marked = time.Now(), l.came.Load()
	return func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		l.cut, l.reading = was, false
		if l.slow {
			return closef("memory", "a request waited for what came before it, or for its time, while the memory for requests was used up (limits.memory)")
		}
		return nil
	}
}

// buffers of requests above smallRequest go round among all connections, so that idle ones have none. They are of three sizes.
var buffers [3]sync.Pool

// bufferSize is the size of the buffers of a class.
func bufferSize(class int) int { return smallRequest << (2 * (class + 1)) }

// classOf is the class of buffers for a request; false when it is too large for all of them.
func classOf(size int) (int, bool) {
	for class := range buffers {
		if size <= bufferSize(class) {
			return class, true
		}
	}
	return 0, false
}

// requestReader counts the bytes of the present request.
type requestReader struct{ c *conn }

func (r requestReader) Read(b []byte) (int, error) {
	n, err := r.c.br.Read(b)
	r.c.lease.came.Add(int64(n))
	return n, err
}

// readRequest reads the next request. Its memory is the connection's until doneWith.
func (c *conn) readRequest() ([]byte, error) {
	frame, err := protocol.ReadFrameInto(requestReader{c}, c.s.cfg.MaxFrame, c.small, c.alloc)
	if err = c.lease.read(err); err != nil {
		c.doneWith()
	}
	return frame, err
}

// alloc is protocol.Alloc within the bounds of the server's memory.
func (c *conn) alloc(n, size int) ([]byte, error) {
	if n <= smallRequest {
		b := make([]byte, n)
		c.small = b[:0]
		return b, nil
	}
	class, pooled := classOf(size)
	if pooled {
		n = bufferSize(class)
	}
	if c.lease.m == nil {
		c.lease.m = c.s.cfg.Memory.of(size)
	}
	if err := c.lease.grow(c.ctx, int64(n)); err != nil {
		return nil, err
	}
	if !pooled {
		return make([]byte, n), nil
	}
	if c.large, _ = buffers[class].Get().(*[]byte); c.large == nil {
		b := make([]byte, n)
		c.large = &b
	}
	return *c.large, nil
}

// doneWith gives the memory of the present request back: nothing of it may be used any more.
func (c *conn) doneWith() {
	c.unpool()
	c.lease.release()
	c.lease.m = nil
}

// unpool gives the buffer of the present request back.
func (c *conn) unpool() {
	if c.large == nil {
		return
	}
	if class, ok := classOf(len(*c.large)); ok {
		buffers[class].Put(c.large)
	}
	c.large = nil
}
