package proxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// recorder is a Watch that keeps all it is shown.
type recorder struct {
	listener string
	node     int32

	mu             sync.Mutex
	received, sent bytes.Buffer
	closed         int
}

func (r *recorder) Received(b []byte) { r.write(&r.received, b) }
func (r *recorder) Sent(b []byte)     { r.write(&r.sent, b) }

func (r *recorder) write(to *bytes.Buffer, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	to.Write(b)
}

func (r *recorder) Closed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed++
}

func (r *recorder) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed > 0
}

// recorders make one for each connection.
type recorders struct {
	mu  sync.Mutex
	all []*recorder
}

func (r *recorders) watch(listener string, node int32, _ string) Watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := &recorder{listener: listener, node: node}
	r.all = append(r.all, rec)
	return rec
}

func (r *recorders) last() *recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[len(r.all)-1]
}

// exchange sends requests, reads a reply to each, leaves, and returns all bytes of both.
func (c *client) exchange(reqs ...kmsg.Request) (sent, received []byte) {
	c.t.Helper()
	for i, req := range reqs {
		b := c.frame(int32(i), req)
		c.write(b)
		sent = append(sent, b...)
		c.nc.SetReadDeadline(time.Now().Add(soon))
		frame, err := protocol.ReadFrame(c.nc, 1<<24, nil)
		if err != nil {
			c.t.Fatal(err)
		}
		received = append(binary.BigEndian.AppendUint32(received, uint32(len(frame))), frame...)
	}
	c.nc.Close()
	return sent, received
}

// shown checks that the last connection was shown whole.
func (r *recorders) shown(t *testing.T, node int32, sent, received []byte) {
	t.Helper()
	rec := r.last()
	eventually(t, "the end of the connection is told", rec.ended)
	if rec.listener != "CLIENT" || rec.node != node || rec.closed != 1 {
		t.Errorf("listener %q, node %d, closed %d times", rec.listener, rec.node, rec.closed)
	}
	if !bytes.Equal(rec.received.Bytes(), sent) || !bytes.Equal(rec.sent.Bytes(), received) {
		t.Errorf("shown %d of %d bytes sent, %d of %d received", rec.received.Len(), len(sent), rec.sent.Len(), len(received))
	}
}

// TestWatchIsShownWhatTheClientSees: forwarded and own replies, and at a gateway edited ones, in the same bytes.
func TestWatchIsShownWhatTheClientSees(t *testing.T) {
	var seen recorders
	metadata, apis := metadataRequest(), kmsg.NewPtrApiVersionsRequest()
	large := kmsg.NewPtrProduceRequest()
	*large = *produceRequest(9, -1, "plain")
	large.Topics[0].Partitions[0].Records = make([]byte, 100_000)
	// A reply that goes from socket to socket where nobody watches.
	groups := func(w *world) kmsg.Request {
		for _, b := range w.brokers {
			b.on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
				if h.Key != kmsg.NewPtrListGroupsRequest().Key() {
					return echo(h)
				}
				resp := kmsg.NewPtrListGroupsResponse()
				resp.Groups = make([]kmsg.ListGroupsResponseGroup, 20_000)
				return resp
			})
		}
		return kmsg.NewPtrListGroupsRequest()
	}
	t.Run("listener", func(t *testing.T) {
		w := newWorld(t, func(_ *world, c *Config) { c.Watch = seen.watch })
		sent, received := w.dial().exchange(apis, metadata, large, produceRequest(9, -1, "m"), groups(w), metadata)
		seen.shown(t, node, sent, received)
	})
	t.Run("gateway", func(t *testing.T) {
		g := newGate(t, func(c *GatewayConfig) { c.Watch = seen.watch })
		sent, received := g.to(1).exchange(apis, metadata, large, groups(g.world), metadata)
		seen.shown(t, 1, sent, received)
	})
}

// loop is a connection on which the same reply comes again and again, and which takes everything.
type loop struct {
	net.Conn
	reply []byte
	at    int
}

func (l *loop) Read(b []byte) (int, error) {
	n := copy(b, l.reply[l.at:])
	l.at = (l.at + n) % len(l.reply)
	return n, nil
}
func (l *loop) Write(b []byte) (int, error)      { return len(b), nil }
func (l *loop) Close() error                     { return nil }
func (l *loop) SetReadDeadline(time.Time) error  { return nil }
func (l *loop) SetWriteDeadline(time.Time) error { return nil }
func (l *loop) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// relaying returns a function that passes one reply of 64 KiB on, and then reads one request of 1 KiB.
func relaying(tb testing.TB, watch WatchFunc) (c *conn, step func()) {
	tb.Helper()
	cfg := Config{Watch: watch}
	cfg.setDefaults()
	request := sizedFrame(make([]byte, 1<<10))
	c = newConn(&Server{cfg: cfg}, Listener{Name: "CLIENT", NodeID: node}, &loop{reply: request})
	ctx, cancel := context.WithCancel(context.Background())
	c.ctx, c.cancel = ctx, cancel
	u := newUpstream(ctx, target{broker: 1}, &loop{reply: sizedFrame(make([]byte, 64<<10))})
	tb.Cleanup(func() { cancel(); u.close() })
	c.watch()
	e := entry{up: u}
	return c, func() {
		if err := u.relayReply(c, &e); err != nil {
			tb.Fatal(err)
		}
		if err := c.awaitRequest(); err != nil {
			tb.Fatal(err)
		}
		if _, err := c.readRequest(); err != nil {
			tb.Fatal(err)
		}
		c.doneWith()
	}
}

// TestNoWatchCostsNothing: without one a connection allocates for a reply and a request what it did before there was any, which is for
// the size and the correlation id of a frame. One that is not to be watched is like that too.
func TestNoWatchCostsNothing(t *testing.T) {
	const before = 2
	for name, watch := range map[string]WatchFunc{
		"off": nil, "another listener": func(string, int32, string) Watch { return nil },
	} {
		c, step := relaying(t, watch)
		if n := testing.AllocsPerRun(200, step); n > before {
			t.Errorf("%s: %v allocations, %d before", name, n, before)
		}
		if c.w != nil {
			t.Errorf("%s: the connection is watched", name)
		}
	}
}

// nothing is a Watch that looks away.
type nothing struct{}

func (nothing) Received([]byte) {}
func (nothing) Sent([]byte)     {}
func (nothing) Closed()         {}

func BenchmarkRelay(b *testing.B) {
	for name, watch := range map[string]WatchFunc{
		"off": nil, "watched": func(string, int32, string) Watch { return nothing{} },
	} {
		b.Run(name, func(b *testing.B) {
			_, step := relaying(b, watch)
			b.SetBytes(65 << 10)
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}
