package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kmirror/internal/trace"
	"kmirror/internal/trace/queue"
	"kmirror/internal/trace/tracetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a relay in front of a server.
type world struct {
	t       *testing.T
	address string
	out     *tracetest.Output
	stop    func() error
}

// start runs a relay in front of a server that handles each connection by serve.
func start(t *testing.T, out *tracetest.Output, serve func(net.Conn), change func(*Config)) *world {
	t.Helper()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	server, front := listen(), listen()
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	cfg := Config{Listen: front, Server: server.Addr().String(), Log: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", server.Addr().String())
		},
		Reporter: &trace.Reporter{Decoder: trace.NewDecoder(trace.DecoderConfig{}), Format: trace.Line, Stats: trace.NewStats(),
			Out: out}}
	if change != nil {
		change(&cfg)
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	w := &world{t: t, address: front.Addr().String(), out: out}
	w.stop = sync.OnceValue(func() error {
		cancel()
		err := <-done
		server.Close()
		conns.Wait()
		return err
	})
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *world) dial() net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		w.t.Fatal(err)
	}
	return c
}

// request is ApiVersions v0 without a client id.
func request(corr uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 10, 0, 18, 0, 0}, corr)
	return append(b, 0xff, 0xff)
}

func response(corr uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 10}, corr)
	return append(b, 0, 0, 0, 0, 0, 0)
}

// answerAll is a broker that knows one answer.
func answerAll(c net.Conn) {
	b := make([]byte, 14)
	for {
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		if _, err := c.Write(response(binary.BigEndian.Uint32(b[8:]))); err != nil {
			return
		}
	}
}

func echo(c net.Conn) { io.Copy(c, c) }

func ask(t *testing.T, c net.Conn, corr uint32) {
	t.Helper()
	if _, err := c.Write(request(corr)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 14)
	if _, err := io.ReadFull(c, b); err != nil || !bytes.Equal(b, response(corr)) {
		t.Fatalf("%x, %v", b, err)
	}
}

// TestBytesPassUntouched: whatever they are, in both directions, and so does the end of each.
func TestBytesPassUntouched(t *testing.T) {
	random := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{1}).Read(random)
	kafka := bytes.Repeat(request(7), 3000)
	large := append(binary.BigEndian.AppendUint32(nil, 1<<19), random[:1<<19]...)
	for name, sent := range map[string][]byte{
		"random": random, "requests": kafka, "TLS": append([]byte{0x16, 3, 1}, random[:1000]...),
		"a frame above the limit, then requests": append(large, kafka...),
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, &tracetest.Output{}, echo, func(c *Config) { c.MaxFrame = 1 << 18 })
			c := w.dial()
			var sending sync.WaitGroup
			sending.Go(func() {
				c.Write(sent)
				c.(*net.TCPConn).CloseWrite()
			})
			got, err := io.ReadAll(c)
			sending.Wait()
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d of %d bytes came back: %v", len(got), len(sent), err)
			}
			if err := w.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSlowOutput: traffic goes on while nothing is written, memory is bounded, and the gap is told.
func TestSlowOutput(t *testing.T) {
	out := &tracetest.Output{Blocked: make(chan struct{})}
	w := start(t, out, answerAll, func(c *Config) { c.Memory = 1 << 20 })
	c := w.dial()
	const n = queue.Length // twice as many messages as there is room for
	var sending sync.WaitGroup
	sending.Go(func() { c.Write(bytes.Repeat(request(5), n)) })
	got := make([]byte, n*len(response(5)))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, bytes.Repeat(response(5), n)) {
		t.Errorf("not all is answered while the output is blocked: %v", err)
	}
	sending.Wait()
	close(out.Blocked)
	c.Close()
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if lines := strings.Count(text, "ApiVersions"); lines < queue.Length/2 || lines > queue.Length+10 {
		t.Errorf("%d lines", lines)
	}
	if !strings.Contains(text, "messages are missing here: the output is slower than the traffic") {
		t.Error("the gap is not told")
	}
}

// TestOutputFails: traffic goes on, and Run says it at the end.
func TestOutputFails(t *testing.T) {
	broken := errors.New("disk full")
	w := start(t, &tracetest.Output{Err: broken}, answerAll, nil)
	c := w.dial()
	for i := range uint32(100) {
		ask(t, c, i)
	}
	if err := w.stop(); !errors.Is(err, broken) {
		t.Errorf("Run returned %v", err)
	}
}

// TestDrain: what is in flight when Run is to end is answered, and no further request read (kroxylicious #4493).
func TestDrain(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	w := start(t, &tracetest.Output{}, func(c net.Conn) {
		b := make([]byte, 14)
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		close(asked)
		<-release
		c.Write(response(binary.BigEndian.Uint32(b[8:])))
		io.Copy(io.Discard, c)
	}, func(c *Config) { c.Drain = 10 * time.Second })
	c := w.dial()
	if _, err := c.Write(request(5)); err != nil {
		t.Fatal(err)
	}
	<-asked
	ended := make(chan error, 1)
	go func() { ended <- w.stop() }()
	for { // until the listener is closed
		probe, err := net.Dial("tcp", w.address)
		if err != nil {
			break
		}
		probe.Close()
	}
	close(release)
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, response(5)) {
		t.Errorf("%x, %v", got, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestDrainHasAnEnd: a request that is not answered is cut off.
func TestDrainHasAnEnd(t *testing.T) {
	w := start(t, &tracetest.Output{}, func(c net.Conn) { io.Copy(io.Discard, c) }, func(c *Config) { c.Drain = 50 * time.Millisecond })
	c := w.dial()
	if _, err := c.Write(request(5)); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(w.out.String(), "ApiVersions") {
		time.Sleep(time.Millisecond)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if text := w.out.String(); !strings.Contains(text, "close (1 without a response)") {
		t.Error(text)
	}
}

func TestConnectionLimit(t *testing.T) {
	w := start(t, &tracetest.Output{}, answerAll, func(c *Config) { c.MaxConnections = 2 })
	first, second := w.dial(), w.dial()
	ask(t, first, 1)
	ask(t, second, 1)
	if n, err := w.dial().Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("a third connection got %d bytes, %v", n, err)
	}
	ask(t, first, 2)
}

func TestServerThatIsNotThere(t *testing.T) {
	out := &tracetest.Output{}
	w := start(t, out, answerAll, func(c *Config) {
		c.Dial = func(context.Context) (net.Conn, error) { return nil, errors.New("connection refused") }
	})
	if n, err := w.dial().Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if text := out.String(); !strings.Contains(text, "note: can't reach ") || !strings.Contains(text, "connection refused") {
		t.Error(text)
	}
}

// TestManyConnections at a time keep their answers apart.
func TestManyConnections(t *testing.T) {
	out := &tracetest.Output{}
	w := start(t, out, answerAll, nil)
	var all sync.WaitGroup
	for i := range uint32(30) {
		c := w.dial()
		all.Go(func() {
			for j := range uint32(30) {
				ask(t, c, i*1000+j)
			}
			c.Close()
		})
	}
	all.Wait()
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	for i := range 30 {
		if want := fmt.Sprintf("< ApiVersions v0 corr=%d ", i*1000+29); !strings.Contains(out.String(), want) {
			t.Errorf("no %s", want)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("an empty configuration is taken")
	}
}
