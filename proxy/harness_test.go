package proxy

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"kmirror/fetch"
	"kmirror/internal/fakepeer"
	"kmirror/internal/lockbuf"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// soon is how long what is to come about at once may take: the machine may be busy with other tests.
const soon = 30 * time.Second

// Ids and topics of the test cluster: brokers 1, 2 and 3 are real, 9001 is ours.
const node = 9001

var (
	mirrorID = protocol.UUID{1}
	plainID  = protocol.UUID{2}
	strayID  = protocol.UUID{3}
)

// testBroker is a scripted real broker. Requests that handle does not answer (nil) get no reply.
type testBroker struct {
	t      *testing.T
	id     int32
	ln     net.Listener
	handle func(h protocol.RequestHeader, body []byte) kmsg.Response

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	seen  []protocol.RequestHeader
	raw   [][]byte
	dials int
	wg    sync.WaitGroup
}

func startBroker(t *testing.T, id int32) *testBroker {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &testBroker{t: t, id: id, ln: ln, conns: make(map[net.Conn]struct{})}
	b.wg.Go(b.serve)
	t.Cleanup(b.end)
	return b
}

// stop ends the broker while the test goes on: who connects is refused.
func (b *testBroker) stop() {
	fakepeer.Refuse(b.t, b.ln)
	b.end()
}

func (b *testBroker) end() {
	b.ln.Close()
	b.hangup()
	b.wg.Wait()
}

// hangup ends all connections, as a restart does.
func (b *testBroker) hangup() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		c.Close()
	}
}

func (b *testBroker) serve() {
	for {
		nc, err := b.ln.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		b.conns[nc] = struct{}{}
		b.dials++
		b.mu.Unlock()
		b.wg.Go(func() { b.talk(nc) })
	}
}

func (b *testBroker) talk(nc net.Conn) {
	defer func() {
		nc.Close()
		b.mu.Lock()
		delete(b.conns, nc)
		b.mu.Unlock()
	}()
	in := bufio.NewReader(nc)
	for {
		frame, err := protocol.ReadFrame(in, 1<<20, nil)
		if err != nil {
			return
		}
		h, body, err := protocol.ParseRequestHeader(frame)
		if err != nil {
			b.t.Errorf("broker %d got a bad header: %v", b.id, err)
			return
		}
		b.mu.Lock()
		b.seen = append(b.seen, h)
		b.raw = append(b.raw, frame)
		handle := b.handle
		b.mu.Unlock()
		var resp kmsg.Response
		if handle != nil {
			resp = handle(h, body)
		} else {
			resp = echo(h)
		}
		if resp == nil {
			continue
		}
		if raw, ok := resp.(rawReply); ok {
			if _, err := nc.Write(raw.bytes); err != nil || raw.hangup {
				return
			}
			continue
		}
		resp.SetVersion(h.Version)
		if _, err := nc.Write(protocol.AppendResponse(nil, h.CorrelationID, resp)); err != nil {
			return
		}
	}
}

// rawReply is a reply that is not made of a message.
type rawReply struct {
	kmsg.Response
	bytes  []byte
	hangup bool
}

// echo answers every known request with an empty response.
func echo(h protocol.RequestHeader) kmsg.Response {
	if req := kmsg.RequestForKey(h.Key); req != nil {
		return req.ResponseKind()
	}
	size := binary.BigEndian.AppendUint32(nil, 4)
	return rawReply{bytes: binary.BigEndian.AppendUint32(size, uint32(h.CorrelationID))}
}

// on sets the script.
func (b *testBroker) on(f func(h protocol.RequestHeader, body []byte) kmsg.Response) {
	b.mu.Lock()
	b.handle = f
	b.mu.Unlock()
}

func (b *testBroker) requests() []protocol.RequestHeader {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]protocol.RequestHeader(nil), b.seen...)
}

// last returns the newest request as it came, nil before the first.
func (b *testBroker) last() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.raw) == 0 {
		return nil
	}
	return b.raw[len(b.raw)-1]
}

func (b *testBroker) connections() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dials
}

func (b *testBroker) endpoint() kraft.Endpoint {
	a := b.ln.Addr().(*net.TCPAddr)
	return kraft.Endpoint{Name: "CLIENT", Host: "127.0.0.1", Port: uint16(a.Port)}
}

// world is a server in front of three brokers.
type world struct {
	t       *testing.T
	brokers map[int32]*testBroker
	data    *fakeData
	image   *fixedImage
	log     *lockbuf.Buffer
	server  *Server
	addr    string
	cancel  context.CancelFunc
	done    chan error
}

func newWorld(t *testing.T, change ...func(*world, *Config)) *world {
	t.Helper()
	w := &world{t: t, brokers: make(map[int32]*testBroker), log: &lockbuf.Buffer{}, done: make(chan error, 1)}
	img := kraft.Empty()
	img.Topics = map[protocol.UUID]*kraft.Topic{}
	img.Names = map[string]protocol.UUID{}
	img.Brokers = map[int32]*kraft.Broker{}
	img.Configs = map[kraft.ConfigResource]map[string]string{}
	for id := int32(1); id <= 3; id++ {
		b := startBroker(t, id)
		w.brokers[id] = b
		img.Brokers[id] = &kraft.Broker{ID: id, Epoch: int64(id), Rack: "r" + string('0'+rune(id)),
			Endpoints: []kraft.Endpoint{b.endpoint()}}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = ln.Addr().String()
	img.Brokers[node] = &kraft.Broker{ID: node, Epoch: node,
		Endpoints: []kraft.Endpoint{{Name: "CLIENT", Host: "shim", Port: 9092}}}
	addTopic(img, "m", mirrorID, node)
	addTopic(img, "plain", plainID, 1)
	addTopic(img, "stray", strayID, node)
	w.image = &fixedImage{img: img}
	w.data = &fakeData{status: map[protocol.PartitionID]fetch.Status{}, epochs: map[int32][2]int64{}}
	w.data.status[protocol.PartitionID{Topic: mirrorID}] = fetch.Status{
		Role: fetch.RoleMirror, Leader: node, LeaderEpoch: 5, RollCall: true,
		LogStart: 10, LogEnd: 100, HighWatermark: 90, LastEpoch: 4,
		Followers: map[int32]fetch.FollowerStatus{1: {FetchOffset: 100}, 2: {FetchOffset: 95}, 3: {FetchOffset: 90}},
	}
	cfg := Config{
		Listeners: []Listener{{Name: "CLIENT", Listen: ln, NodeID: node, InterBroker: true}},
		Images:    w.image, ClusterID: func() string { return "cluster" }, Leader: w.data,
		Mirrors:      fakeMirrors{"m": "east"},
		Owns:         func(id int32) bool { return id >= 9000 },
		Log:          slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		DrainTimeout: 5 * time.Second,
	}
	for _, f := range change {
		f(w, &cfg)
	}
	w.server, err = New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.server.patience = soon
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() { w.done <- w.server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-w.done:
		case <-time.After(soon):
			t.Error("Run did not end")
		}
	})
	return w
}

func addTopic(img *kraft.Image, name string, id protocol.UUID, leader int32) {
	isr := []int32{1, 2, 3}
	if leader == node {
		isr = []int32{node, 1, 2, 3}
	}
	img.Names[name] = id
	img.Topics[id] = &kraft.Topic{ID: id, Name: name,
		Partitions: []*kraft.Partition{{Replicas: isr, ISR: isr, Leader: leader, LeaderEpoch: 5}}}
}

// upstreamRequests returns what the brokers got besides the server's own questions for versions.
func (w *world) upstreamRequests() []protocol.RequestHeader {
	var all []protocol.RequestHeader
	for id := int32(1); id <= 3; id++ {
		for _, h := range w.brokers[id].requests() {
			if h.Key != keyApiVersions {
				all = append(all, h)
			}
		}
	}
	return all
}

// client speaks the protocol to the server.
type client struct {
	t  *testing.T
	nc net.Conn
	id string
}

func (w *world) dial() *client {
	w.t.Helper()
	nc, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { nc.Close() })
	return &client{t: w.t, nc: nc, id: "test"}
}

func (c *client) frame(corr int32, req kmsg.Request) []byte {
	h := protocol.RequestHeader{Key: req.Key(), Version: req.GetVersion(), CorrelationID: corr, ClientID: &c.id}
	b := req.AppendTo(protocol.AppendRequestHeader(make([]byte, 4), h))
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func (c *client) send(corr int32, req kmsg.Request) {
	c.t.Helper()
	c.write(c.frame(corr, req))
}

func (c *client) write(b []byte) {
	c.t.Helper()
	c.nc.SetWriteDeadline(time.Now().Add(soon))
	if _, err := c.nc.Write(b); err != nil {
		c.t.Fatalf("write: %v", err)
	}
}

// receive reads one reply and decodes it as that to req.
func (c *client) receive(req kmsg.Request) (int32, kmsg.Response) {
	c.t.Helper()
	c.nc.SetReadDeadline(time.Now().Add(soon))
	frame, err := protocol.ReadFrame(c.nc, 1<<24, nil)
	if err != nil {
		c.t.Fatalf("no reply to %s: %v", kmsg.NameForKey(req.Key()), err)
	}
	corr, body, err := protocol.ParseResponseHeader(req.Key(), req.GetVersion(), frame)
	if err != nil {
		c.t.Fatal(err)
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(body); err != nil {
		c.t.Fatalf("reply to %s v%d: %v", kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
	return corr, resp
}

// ask sends a request and returns the reply to it.
func (c *client) ask(req kmsg.Request) kmsg.Response {
	c.t.Helper()
	c.send(77, req)
	corr, resp := c.receive(req)
	if corr != 77 {
		c.t.Fatalf("correlation id %d, want 77", corr)
	}
	return resp
}

// closed checks that the server ends the connection without a further byte.
func (c *client) closed() {
	c.t.Helper()
	c.nc.SetReadDeadline(time.Now().Add(soon))
	n, err := c.nc.Read(make([]byte, 1))
	if n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("read %d bytes, %v; want the connection closed", n, err)
	}
	c.nc.Close()
}

// eventually polls a condition that other goroutines bring about.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(soon)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("never came about: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func mustAddr(t *testing.T, address string) netip.AddrPort {
	t.Helper()
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
