package relay

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"kmirror/internal/quiet"
	"kmirror/internal/trace"
	"kmirror/internal/trace/queue"
)

// FuzzPass passes any bytes in chunks of any size, in both directions. What comes out must be what went in, nothing may be kept
// beyond the budget, and all of that comes back.
func FuzzPass(f *testing.F) {
	f.Add(bytes.Repeat(request(1), 3), bytes.Repeat(response(1), 3), uint8(5))
	f.Add([]byte("\x16\x03\x01\x02"), []byte("HTTP/1.1"), uint8(1))
	f.Add([]byte{0, 0, 0x20, 0, 0, 0}, bytes.Repeat([]byte{0, 0, 0, 4, 0, 0, 0, 1}, 300), uint8(200))
	f.Fuzz(func(t *testing.T, client, server []byte, step uint8) {
		const memory = 1 << 12
		budget := trace.NewBudget(memory)
		r := &trace.Reporter{Decoder: trace.NewDecoder(trace.DecoderConfig{}), Format: trace.JSON, Stats: trace.NewStats(),
			Out: io.Discard}
		q := queue.New(r, budget, quiet.New(slog.New(slog.DiscardHandler), quiet.Interval, nil))
		stream := trace.NewStream(trace.Conn{ID: 1}, time.Now(), 1<<20, budget, q.Put)
		l := &link{stopped: make(chan struct{})}
		for dir, sent := range [][]byte{client, server} {
			kept := bytes.Clone(sent)
			var out bytes.Buffer
			for b := sent; len(b) > 0; {
				n := min(len(b), max(1, int(step)))
				if err := l.pass(&out, b[:n], stream, trace.Direction(dir)); err != nil {
					t.Fatal(err)
				}
				b = b[n:]
				if budget.Left() < 0 {
					t.Fatal("the budget is overdrawn")
				}
			}
			if !bytes.Equal(out.Bytes(), kept) {
				t.Fatalf("%x came out of %x", out.Bytes(), kept)
			}
		}
		stream.Close(time.Now())
		q.Close()
		if err := q.Run(); err != nil {
			t.Fatal(err)
		}
		if budget.Left() != memory {
			t.Fatalf("%d bytes of the budget did not come back", memory-budget.Left())
		}
	})
}

// pipeListener hands out the ends of pipes, which hold no bytes.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// TestDrainWaitsForSlowReaders: a response that was read from the server, and no longer counts as in flight, is written before
// the connection ends.
func TestDrainWaitsForSlowReaders(t *testing.T) {
	client, front := net.Pipe()
	back, server := net.Pipe()
	listener := &pipeListener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	listener.conns <- front
	r, err := New(Config{Listen: listener, Server: "pipe", Log: slog.New(slog.DiscardHandler), Drain: 10 * time.Second,
		Dial:     func(context.Context) (net.Conn, error) { return back, nil },
		Reporter: &trace.Reporter{Decoder: trace.NewDecoder(trace.DecoderConfig{}), Stats: trace.NewStats(), Out: io.Discard}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	if _, err := client.Write(request(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, len(request(1)))); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Write(response(1)); err != nil { // returns once the relay has read it
		t.Fatal(err)
	}
	cancel()
	time.Sleep(3 * drainStep)
	got, err := io.ReadAll(client)
	if !bytes.Equal(got, response(1)) {
		t.Errorf("%x, %v", got, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	client.Close()
	server.Close()
}
