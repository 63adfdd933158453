package proxy

import (
	"bufio"
	"cmp"
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

// upstream is a connection to a real broker for one client. Requests are written by the client's reader. Replies are read by run, in
// the order of the requests: it passes those to forwarded requests on to the client, and gives those to requests of our own to who asked.
type upstream struct {
	target
	nc net.Conn
	br *bufio.Reader

	// asked is where the next reply goes that is not the client's.
	asked atomic.Pointer[chan answer]
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
	// inFlight counts the forwarded requests whose reply has not been passed on.
	inFlight atomic.Int32
}

// answer is the frame of a reply to a request of our own.
type answer struct {
	frame []byte
	err   error
}

// dial connects to a broker, with a configuration that secure makes where it has TLS. The connection ends with owner at the latest. Replies
// to what is forwarded over it go to c, which is told if the broker ends it; without one, requests of our own are all that it is for.
func (s *Server) dial(owner context.Context, t target, secure func() *tls.Config, c *conn) (*upstream, error) {
	ctx, cancel := context.WithTimeout(owner, cmp.Or(s.patience, dialTimeout))
	defer cancel()
	addr := net.JoinHostPort(t.host, strconv.Itoa(int(t.port)))
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("broker %d: %w", t.broker, err)
	}
	if t.tls && secure != nil {
		conf := secure()
		if conf.ServerName == "" {
			conf.ServerName = t.host
		}
		encrypted := tls.Client(byRecords(nc), conf)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, fmt.Errorf("broker %d at %s: TLS handshake: %w", t.broker, addr, err)
		}
		nc = encrypted
	}
	u := newUpstream(owner, t, nc)
	u.wg.Go(func() { u.run(s, c) })
	return u, nil
}

// newUpstream takes over an open connection. Nothing is read from it before run.
func newUpstream(owner context.Context, t target, nc net.Conn) *upstream {
	u := &upstream{
		target: t, nc: nc, br: bufio.NewReaderSize(nc, upstreamBuffer),
		dead: make(chan struct{}), quit: make(chan struct{}),
	}
	u.unhook = context.AfterFunc(owner, func() { u.nc.Close() })
	return u
}

// run waits for replies and passes each on to whom it is for, until the connection ends.
func (u *upstream) run(s *Server, c *conn) {
	for {
		_, err := u.br.Peek(4)
		if err != nil {
			u.end(c, u.closed(err))
			return
		}
		switch asked := u.asked.Swap(nil); {
		case asked != nil:
			frame, err := protocol.ReadFrame(u.br, s.cfg.MaxFrame, nil)
			*asked <- answer{frame, err}
		case c == nil || !c.turn(u):
			u.end(c, fmt.Errorf("broker %d sent a reply that nobody waits for", u.broker))
			return
		}
	}
}

// end notes how the connection ended. What is in line for it fails when its turn comes.
func (u *upstream) end(c *conn, err error) {
	u.err = err
	close(u.dead)
	if c == nil {
		return
	}
	c.lost(u)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
}

// ended reports whether end was called.
func (u *upstream) ended() bool {
	select {
	case <-u.dead:
		return true
	default:
		return false
	}
}

// closed says that the broker ended the connection.
func (u *upstream) closed(err error) error {
	return fmt.Errorf("broker %d closed the connection: %w", u.broker, err)
}

// close ends the connection and waits for run. A nil upstream is closed.
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

// relayReply passes the next reply on to the client as it comes, without holding it.
func (u *upstream) relayReply(c *conn, e *entry) error {
	if err := u.relay(c, e); err != nil {
		if c.ctx.Err() != nil { // it tells only that we closed the connection
			return c.ctx.Err()
		}
		return err
	}
	u.replied.Store(e.seq)
	u.inFlight.Add(-1)
	return nil
}

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
	return u.copyTo(c, size+4)
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
	ctx, cancel := context.WithTimeout(ctx, wait+askTimeout)
	defer cancel()
	reply, err := u.pose(req)
	if err != nil {
		return nil, err
	}
	frame, err := u.await(ctx, reply)
	if err != nil {
		return nil, fmt.Errorf("reply of broker %d: %w", u.broker, err)
	}
	return u.understand(req, frame)
}

// ownCorrelation is the correlation id of our own requests. Any will do: there is only one in flight.
const ownCorrelation = 0x6b6d

// pose sends a request of our own, whose reply is the next that comes: nothing that has a reply may be in flight.
func (u *upstream) pose(req kmsg.Request) (chan answer, error) {
	h := protocol.RequestHeader{Key: req.Key(), Version: req.GetVersion(), CorrelationID: ownCorrelation, ClientID: &ownClientID}
	frame := req.AppendTo(protocol.AppendRequestHeader(nil, h))
	reply := make(chan answer, 1)
	u.asked.Store(&reply)
	return reply, u.send(frame, askTimeout)
}

// understand reads the reply to a request of our own.
func (u *upstream) understand(req kmsg.Request, frame []byte) (kmsg.Response, error) {
	got, body, err := protocol.ParseResponseHeader(req.Key(), req.GetVersion(), frame)
	if err != nil {
		return nil, err
	}
	if got != ownCorrelation {
		return nil, fmt.Errorf("broker %d replied with correlation id %d where %d was due", u.broker, got, ownCorrelation)
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("reply of broker %d: %w", u.broker, errors.Join(err, io.ErrUnexpectedEOF))
	}
	return resp, nil
}

// await waits for the reply to a request of our own.
func (u *upstream) await(ctx context.Context, reply chan answer) ([]byte, error) {
	select {
	case a := <-reply:
		return a.frame, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-u.dead:
	}
	select {
	case a := <-reply: // it came just before the end
		return a.frame, a.err
	default:
		return nil, u.err
	}
}

// ownClientID is the client id of requests that we send for a client on its own connection.
var ownClientID = "kmirror"
