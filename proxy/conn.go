package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

const (
	// maxInFlight bounds the requests of one connection whose turn to be answered has not come.
	maxInFlight = 100
	// maxOwnReplyBytes bounds what our own replies may hold while the client does not read them: beyond it the next request
	// waits until all before it are delivered.
	maxOwnReplyBytes = 1 << 20
	// lingerTime is how long a connection that we end is read on after our last reply: closing with unread bytes makes the
	// kernel reset it, and the peer could lose replies that it has not read yet.
	lingerTime = time.Second
	// lookInterval is how often a client that is not listened to is looked after: whether it is still there.
	lookInterval = time.Second
	// handshakeTimeout bounds a client's TLS handshake.
	handshakeTimeout = 10 * time.Second
)

var (
	errDraining = errors.New("server ends")
	errIdle     = errors.New("connection idle for too long")
)

// closeError is why we end a connection: everything before the request in question is answered first.
type closeError struct {
	// kind groups log lines for their rate limit.
	kind string
	err  error
}

func (e *closeError) Error() string { return e.err.Error() }
func (e *closeError) Unwrap() error { return e.err }

// conn is one client connection. The reader goroutine (serve) reads requests, forwards them or answers them itself, and
// puts one entry for each in line, in their order. Those that a broker answers are delivered by who reads from it, the others
// by the reader, or by who delivered the entry before. Fields without a comment are the reader's alone.
type conn struct {
	s  *Server
	l  Listener
	nc net.Conn
	br *bufio.Reader
	// w is shown what passes, nil for nobody. It is set before the first request is read.
	w Watch

	// ctx ends when the connection breaks or is cut.
	ctx    context.Context
	cancel context.CancelFunc
	line
	// stopped is closed, and ending set, when no further request may be read.
	stopped chan struct{}
	ending  atomic.Bool

	// small is kept for requests up to smallRequest, large is the pooled buffer of the present one, lease what is counted of it.
	small []byte
	large *[]byte
	lease lease
	// up is the connection that forwarded requests go over, nil before the first; others are those to further replicas.
	up     *upstream
	others map[int32]*upstream
	// sasl: the client has begun to authenticate; loggedIn: the broker upstream has confirmed that it succeeded; proved: and has told what
	// the client may do.
	sasl, loggedIn, proved bool
	// sessionEnds is when the session of the last login ends, in milliseconds since 1970, 0 for never. Who reads the broker's replies sets it.
	sessionEnds atomic.Int64
	// peer: the certificate is that of a broker of the destination; refused: one was to be shown, and it is not.
	peer, refused bool
	// verdict is of the certificate, nil as long as none was judged; for Rejudge.
	verdict atomic.Pointer[verdict]
	// cluster is what the principal may do with the cluster, known once proved. guarded: a broker's word on it counts. learnt is when that was
	// given, question what the broker is asked now, told what it has answered so far; rights is what is known of topics, and denied are those
	// of the present request that the principal may not touch.
	cluster  int32
	told     int32
	guarded  bool
	learnt   time.Time
	question *question
	rights   map[string]right
	denied   map[string]bool
}

func newConn(s *Server, l Listener, nc net.Conn) *conn {
	c := &conn{s: s, l: l, nc: nc, br: bufio.NewReader(nc), stopped: make(chan struct{}), others: make(map[int32]*upstream)}
	c.moved.L = &c.mu
	c.lease.left = func() bool { return hasLeft(nc) }
	c.lease.cut = func() { _ = nc.SetReadDeadline(time.Unix(1, 0)) }
	return c
}

// serve runs the connection until it ends; ctx cuts it.
func (c *conn) serve(ctx context.Context) {
	c.begin(ctx)
	defer c.cancel()
	unhook := context.AfterFunc(c.ctx, func() {
		c.nc.Close()
		c.wake()
	})
	defer unhook()
	err := c.handshake()
	if err == nil {
		err = c.identify()
	}
	if err == nil {
		c.watch()
		err = c.read()
	}
	var closing *closeError
	ours := errors.Is(err, errDraining) || errors.Is(err, errIdle) || errors.As(err, &closing)
	c.report(err) // before the client sees the end, so that who looks then finds the reason
	if !ours {
		// The peer is gone, so nobody waits for the replies in flight. With bytes that aren't Kafka there are none.
		c.cancel()
	} else {
		c.leave()
	}
	_ = c.quiesce() // fails where the connection is cut, and nobody waits any more
	c.cancel()
	c.nc.Close()
	c.up.close()
	for _, u := range c.others {
		u.close()
	}
	c.unwatch()
}

// begin makes the connection one that others can cut.
func (c *conn) begin(ctx context.Context) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.ctx, c.cancel = context.WithCancel(ctx)
}

// handshake does that of TLS, where the listener has it, apart from the reading of requests: a client that only connects must not keep
// its place for as long as an idle one does.
func (c *conn) handshake() error {
	secure, ok := c.nc.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, handshakeTimeout)
	defer cancel()
	shake := secure.HandshakeContext
	if f := c.l.front; f != nil && f.Names != nil {
		shake = func(ctx context.Context) error { return c.named(ctx, secure) }
	}
	var closing *closeError
	switch err := shake(ctx); {
	case err == nil:
		return nil
	case errors.As(err, &closing):
		return err
	case c.stopping():
		return errDraining
	default:
		return &handshakeError{err}
	}
}

// handshakeError is why a client's TLS handshake failed.
type handshakeError struct{ err error }

func (e *handshakeError) Error() string { return "TLS handshake: " + e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// stop makes the reader end after the request it is at. Replies of requests that were read are delivered.
func (c *conn) stop() {
	if c.ending.CompareAndSwap(false, true) {
		close(c.stopped)
		// Wakes a reader that waits for the next request.
		_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	}
}

func (c *conn) stopping() bool { return c.ending.Load() }

// leave waits for the replies in flight, ends our side and reads on until the peer ends its own. A peer that leaves first, or replies
// that don't come within IdleTimeout, end it too: brokers answer some requests after hours.
func (c *conn) leave() {
	var end atomic.Int64
	end.Store(time.Now().Add(c.s.cfg.IdleTimeout).UnixNano())
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer c.cancel()
		for time.Now().UnixNano() < end.Load() {
			// In steps, since end moves, and stop moves the deadline.
			_ = c.nc.SetReadDeadline(time.Now().Add(lingerTime))
			var timeout net.Error
			if _, err := io.Copy(io.Discard, c.nc); !errors.As(err, &timeout) || !timeout.Timeout() {
				return
			}
		}
	})
	half, ok := c.nc.(interface{ CloseWrite() error })
	if c.quiesce() != nil || !ok || half.CloseWrite() != nil {
		c.cancel()
	}
	end.Store(time.Now().Add(lingerTime).UnixNano())
}

// read reads and handles requests until one of them, the peer or stop ends the connection. The error is never nil.
func (c *conn) read() error {
	for {
		if err := c.awaitRequest(); err != nil {
			return err
		}
		start := time.Now()
		if done, err := c.stream(start); err != nil {
			return err
		} else if done {
			continue
		}
		frame, err := c.readRequest()
		if err != nil {
			if c.stopping() {
				return errDraining
			}
			return err
		}
		err = c.handle(frame, start)
		c.doneWith()
		if err != nil {
			return err
		}
	}
}

// awaitRequest returns when the first byte of a request is there; the rest of it has to come within IdleTimeout.
func (c *conn) awaitRequest() error {
	for {
		if err := c.nc.SetReadDeadline(time.Now().Add(c.s.cfg.IdleTimeout)); err != nil {
			return err
		}
		// stop marks first and moves the deadline then: either it is seen here, or Peek is woken.
		if c.stopping() {
			return errDraining
		}
		_, err := c.br.Peek(1)
		var timeout net.Error
		switch {
		case err == nil && c.stopping():
			return errDraining
		case err == nil:
			err := c.nc.SetReadDeadline(time.Now().Add(c.s.cfg.IdleTimeout))
			if c.stopping() { // and the deadline that was to wake us may just have been moved
				return errDraining
			}
			return err
		case !errors.As(err, &timeout) || !timeout.Timeout():
			return err
		case c.stopping():
			return errDraining
		case c.idle():
			return errIdle
		}
	}
}

// reply queues our own reply to a request. The response's version is set to that of the request.
func (c *conn) reply(h protocol.RequestHeader, resp kmsg.Response) error {
	resp.SetVersion(h.Version)
	b := protocol.AppendResponse(nil, h.CorrelationID, resp)
	if len(b) > maxOwnReplyBytes && c.lease.m != nil {
		return c.replyLarge(b)
	}
	return c.replyBuffers(net.Buffers{b})
}

// replyLarge queues our own reply to a request that counted as memory, and goes on counting until the client has taken it: a few bytes can
// ask for much.
func (c *conn) replyLarge(b []byte) error {
	c.unpool()
	c.lease.shrink(int64(len(b)))
	back := c.lease.waits(c.cancel)
	err := c.enqueue(entry{own: &ownReply{net.Buffers{b}, int64(len(b))}})
	if err == nil {
		err = c.quiesce()
	}
	c.report(back())
	c.doneWith()
	return err
}

// replyBuffers queues our own reply. The request has been dealt with: nothing of it may be used any more.
func (c *conn) replyBuffers(bufs net.Buffers) error {
	c.doneWith()
	own := &ownReply{bufs: bufs}
	for _, b := range bufs {
		own.size += int64(len(b))
	}
	return c.enqueue(entry{own: own})
}

// report logs why a connection ended where that is worth a line: never for peers that just left.
func (c *conn) report(err error) {
	if err == nil || errors.Is(err, errDraining) || errors.Is(err, context.Canceled) {
		return
	}
	args := append(c.l.logged(), "remote", remoteOf(c.nc))
	var frame *protocol.FrameError
	var record tls.RecordHeaderError
	var shake *handshakeError
	var closing *closeError
	switch {
	case errors.As(err, &closing):
		c.s.quiet.Warn(closing.kind, "connection closed", append(args, "cause", err)...)
	case errors.As(err, &frame):
		c.s.quiet.Warn("frame "+frame.Kind(), "connection closed", append(args, "cause", err)...)
	case errors.As(err, &record):
		c.s.quiet.Warn("no tls", "connection closed",
			append(args, "cause", "what came is not TLS: a plaintext client on a TLS listener", "err", err)...)
	case errors.As(err, &shake) && !errors.Is(err, io.EOF): // who only looks whether the port is open leaves at once
		if args = append(args, "cause", err); c.l.Peer != nil || c.l.Mutual {
			args = append(args, "hint", "here brokers have to show a certificate that an authority in tls.ca of the listener has signed")
		}
		c.s.quiet.Warn("handshake", "connection closed", args...)
	default:
		c.s.log.Debug("connection ended", append(args, "cause", err)...)
	}
}

func closef(kind, format string, args ...any) error {
	return &closeError{kind: kind, err: fmt.Errorf(format, args...)}
}
