package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

const (
	dialTimeout = 5 * time.Second
	// askTimeout is what a request of our own may take beyond the time that it asks the broker to wait.
	askTimeout     = 10 * time.Second
	upstreamBuffer = 16 << 10
)

// target is a real broker's endpoint.
type target struct {
	broker    int32
	epoch     int64
	host      string
	port      uint16
	tls, sasl bool
}

// targetOf returns the broker's endpoint of a listener name; false when it is not there, fenced, on its way out or ours.
func (s *Server) targetOf(b *kraft.Broker, listener string) (target, bool) {
	if b == nil || b.Fenced || b.InControlledShutdown || s.cfg.Owns(b.ID) {
		return target{}, false
	}
	return endpointOf(b, listener)
}

// endpointOf returns the broker's endpoint of a listener name; false when it has none.
func endpointOf(b *kraft.Broker, listener string) (target, bool) {
	if b == nil {
		return target{}, false
	}
	for _, e := range b.Endpoints {
		if e.Name == listener {
			return target{broker: b.ID, epoch: b.Epoch, host: e.Host, port: e.Port,
				tls:  e.TLS(),
				sasl: e.SASL()}, true
		}
	}
	return target{}, false
}

// targets returns the real brokers that requests of a listener may be forwarded to, preferred first, the others in an
// order that spreads connections.
func (s *Server) targets(listener string, preferred int32) []target {
	img := s.cfg.Images.Image()
	var list []target
	for _, id := range sortedBrokers(img) {
		if t, ok := s.targetOf(img.Brokers[id], listener); ok {
			list = append(list, t)
		}
	}
	if len(list) == 0 {
		return nil
	}
	first := int(s.turn.Add(1)) % len(list)
	for i, t := range list {
		if t.broker == preferred {
			first = i
		}
	}
	return append(append([]target(nil), list[first:]...), list[:first]...)
}

// upstream is a connection to a real broker for one client. Requests are written by the client's reader; replies come in
// the order of the requests and are taken by the one whose turn it is: the writer, or the reader after quiesce. watch owns
// the read side while no reply is due, so that a connection that the broker closed is noticed before it is used again.
type upstream struct {
	target
	nc net.Conn
	br *bufio.Reader

	// readable is offered by watch when bytes of a reply are there; who takes it owns br until it sends on resume.
	readable, resume chan struct{}
	// kept: the writer has br still, since its next reply is due. It is the writer's, and the reader's after quiesce.
	kept bool
	// dead is closed when the broker ended the connection; err then says how.
	dead chan struct{}
	err  error
	// quit is closed by close, unhook undoes what ends the connection with the client's.
	quit   chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
	unhook func() bool

	// sent numbers the forwarded requests (reader's), replied is the last one whose reply came, noReply the last one that
	// has none. A broker that fails a Produce with acks=0 closes the connection, the only sign it can give.
	sent             uint64
	replied, noReply atomic.Uint64
	// inFlight counts the requests that were sent whose reply has not been passed on.
	inFlight atomic.Int32
}

// dial connects to a broker. The connection ends with owner at the latest; lost is called once if the broker ends it.
func (s *Server) dial(owner context.Context, t target, lost func(*upstream)) (*upstream, error) {
	ctx, cancel := context.WithTimeout(owner, dialTimeout)
	defer cancel()
	addr := net.JoinHostPort(t.host, strconv.Itoa(int(t.port)))
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("broker %d: %w", t.broker, err)
	}
	if t.tls && s.cfg.UpstreamTLS != nil {
		conf := s.cfg.UpstreamTLS.Clone()
		if conf.ServerName == "" {
			conf.ServerName = t.host
		}
		secure := tls.Client(nc, conf)
		if err := secure.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, fmt.Errorf("broker %d at %s: TLS handshake: %w", t.broker, addr, err)
		}
		nc = secure
	}
	return newUpstream(owner, t, nc, lost), nil
}

// newUpstream takes over an open connection.
func newUpstream(owner context.Context, t target, nc net.Conn, lost func(*upstream)) *upstream {
	u := &upstream{
		target: t, nc: nc, br: bufio.NewReaderSize(nc, upstreamBuffer),
		readable: make(chan struct{}), resume: make(chan struct{}),
		dead: make(chan struct{}), quit: make(chan struct{}),
	}
	u.unhook = context.AfterFunc(owner, func() { u.nc.Close() })
	u.wg.Go(func() { u.watch(lost) })
	return u
}

// watch waits for the first bytes of each reply and hands the read side over.
func (u *upstream) watch(lost func(*upstream)) {
	for {
		if _, err := u.br.Peek(4); err != nil {
			u.err = u.closed(err)
			close(u.dead)
			if lost != nil {
				lost(u)
			}
			return
		}
		select {
		case u.readable <- struct{}{}:
		case <-u.quit:
			return
		}
		select {
		case <-u.resume:
		case <-u.quit:
			return
		}
	}
}

// close ends the connection and waits for watch. A nil upstream is closed.
func (u *upstream) close() {
	if u == nil {
		return
	}
	u.once.Do(func() {
		u.unhook()
		close(u.quit)
		u.nc.Close()
	})
	u.wg.Wait()
}

// gone returns why the connection can't be used any further, nil when it can.
func (u *upstream) gone() error {
	select {
	case <-u.dead:
		return u.err
	case <-u.quit:
		return fmt.Errorf("connection to broker %d: %w", u.broker, net.ErrClosed)
	default:
		return nil
	}
}

// refusedSilently reports whether a request without reply may be what made the broker end the connection.
func (u *upstream) refusedSilently() bool { return u.noReply.Load() > u.replied.Load() }

// send writes one frame. limit bounds how long the broker may keep us waiting.
func (u *upstream) send(frame []byte, limit time.Duration) error {
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], uint32(len(frame)))
	if err := u.nc.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	bufs := net.Buffers{size[:], frame}
	_, err := bufs.WriteTo(u.nc)
	return err
}

// await waits for the next reply; on nil the caller owns br until release.
func (u *upstream) await(ctx context.Context) error {
	if u.kept {
		return nil // it is waited for by reading
	}
	select {
	case <-u.readable:
		return nil
	case <-u.dead:
		return u.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (u *upstream) release() {
	u.kept = false
	select {
	case u.resume <- struct{}{}:
	case <-u.quit:
	}
}

// relayReply passes the next reply on to the client as it comes, without holding it.
func (u *upstream) relayReply(c *conn, e *entry) error {
	if err := u.await(c.ctx); err != nil {
		return closeUpstream(err)
	}
	err := u.relay(c, e)
	if err == nil {
		u.replied.Store(e.seq)
		if u.inFlight.Add(-1) > 0 {
			u.kept = true
			return nil
		}
	}
	u.release()
	if c.ctx.Err() != nil { // the error tells only that we closed the connection
		return c.ctx.Err()
	}
	return err
}

// relay is relayReply for who owns br.
func (u *upstream) relay(c *conn, e *entry) error {
	head, err := u.br.Peek(4)
	if err != nil {
		return closeUpstream(u.closed(err))
	}
	size := int64(int32(binary.BigEndian.Uint32(head)))
	if size < 4 || size > int64(c.s.cfg.MaxFrame) {
		frame := &protocol.FrameError{Size: size, Max: int64(c.s.cfg.MaxFrame), Head: append([]byte(nil), head...)}
		return closef("upstream frame", "reply of broker %d: %w", u.broker, frame)
	}
	if head, err = u.br.Peek(8); err != nil {
		return closeUpstream(err)
	}
	if corr := int32(binary.BigEndian.Uint32(head[4:])); corr != e.corr {
		return closef("upstream order", "broker %d replied with correlation id %d where %d was due", u.broker, corr, e.corr)
	}
	if e.edit != nil {
		return e.edit(c, u, size+4)
	}
	return u.copyTo(c.nc, size+4, c.s.cfg.IdleTimeout)
}

// closed says that the broker ended the connection.
func (u *upstream) closed(err error) error {
	return fmt.Errorf("broker %d closed the connection: %w", u.broker, err)
}

func closeUpstream(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return closef("upstream lost", "requests were in flight when the upstream connection ended: %w", err)
}

// ask sends a request of our own and reads its reply. The caller has the connection to itself. The connection can't be
// used any further after an error.
func (u *upstream) ask(ctx context.Context, s *Server, req kmsg.Request, wait time.Duration) (kmsg.Response, error) {
	const corr = 0x6b6d // any: it is the only one in flight
	ctx, cancel := context.WithTimeout(ctx, wait+askTimeout)
	defer cancel()
	h := protocol.RequestHeader{Key: req.Key(), Version: req.GetVersion(), CorrelationID: corr, ClientID: &ownClientID}
	frame := req.AppendTo(protocol.AppendRequestHeader(nil, h))
	if err := u.send(frame, askTimeout); err != nil {
		return nil, err
	}
	if err := u.await(ctx); err != nil {
		return nil, err
	}
	defer u.release()
	// Bytes have come; a broker that stops in the middle is cut off by the context.
	unhook := context.AfterFunc(ctx, func() { u.nc.Close() })
	defer unhook()
	body, err := protocol.ReadFrame(u.br, s.cfg.MaxFrame, nil)
	if err != nil {
		return nil, fmt.Errorf("reply of broker %d: %w", u.broker, err)
	}
	got, body, err := protocol.ParseResponseHeader(req.Key(), req.GetVersion(), body)
	if err != nil {
		return nil, err
	}
	if got != corr {
		return nil, fmt.Errorf("broker %d replied with correlation id %d where %d was due", u.broker, got, corr)
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("reply of broker %d: %w", u.broker, errors.Join(err, io.ErrUnexpectedEOF))
	}
	return resp, nil
}

// ownClientID is the client id of requests that we send for a client on its own connection.
var ownClientID = "kmirror"
