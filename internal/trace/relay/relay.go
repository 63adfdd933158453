// Package relay is a proxy in front of one address that shows what passes: bytes go through as they are, and a copy is
// decoded. Decoding never holds traffic up: when the output is slow, messages are left out of the trace and counted.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"kmirror/internal/quiet"
	"kmirror/internal/trace"
	"kmirror/internal/trace/queue"
	"kmirror/internal/wait"
)

// Config of a Relay.
type Config struct {
	// Listen accepts the clients. It is the Relay's once Run is called.
	Listen net.Listener
	// Dial connects to the server, within a time of its own.
	Dial func(ctx context.Context) (net.Conn, error)
	// Server is the server's address as it is shown.
	Server string
	// Reporter gets the messages, from one goroutine.
	Reporter *trace.Reporter
	Log      *slog.Logger
	// MaxConnections is the limit for clients; those beyond it are closed. 0 stands for 1,000.
	MaxConnections int
	// MaxFrame is the size in bytes up to which frames are decoded, 0 for trace.DefaultFrame; larger ones pass undecoded.
	MaxFrame int
	// Memory bounds in bytes what waits to be decoded and written, 0 for 64 MiB.
	Memory int64
	// Drain is how long requests in flight have to be answered when Run is to end, 0 for 2 s.
	Drain time.Duration
}

// Relay passes connections on. Run may be called once.
type Relay struct {
	cfg    Config
	quiet  *quiet.Log
	budget *trace.Budget
	queue  *queue.Queue

	mu       sync.Mutex
	conns    map[*link]struct{}
	draining bool
	last     int64
	serving  sync.WaitGroup
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Relay, error) {
	if cfg.Listen == nil || cfg.Dial == nil || cfg.Reporter == nil || cfg.Reporter.Stats == nil || cfg.Log == nil {
		return nil, errors.New("relay: Listen, Dial, Reporter with Stats, and Log are needed")
	}
	if cfg.MaxConnections < 0 || cfg.MaxFrame < 0 || cfg.Memory < 0 || cfg.Drain < 0 {
		return nil, errors.New("relay: a limit is negative")
	}
	set := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	set(&cfg.MaxConnections, 1000)
	set(&cfg.MaxFrame, trace.DefaultFrame)
	if cfg.Memory == 0 {
		cfg.Memory = 64 << 20
	}
	if cfg.Drain == 0 {
		cfg.Drain = 2 * time.Second
	}
	r := &Relay{cfg: cfg, conns: make(map[*link]struct{}), budget: trace.NewBudget(cfg.Memory)}
	r.quiet = quiet.New(cfg.Log, quiet.Interval, nil)
	r.queue = queue.New(cfg.Reporter, r.budget, r.quiet)
	return r, nil
}

// Run passes connections on until ctx ends. Then no further one is accepted and no further request read; requests in flight
// have Drain to be answered. It returns once all is written, with the first error of the output if there was one, or queue.ErrStuck.
func (r *Relay) Run(ctx context.Context) error {
	// Connections outlive ctx while they drain.
	force, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	stop := context.AfterFunc(ctx, func() { r.cfg.Listen.Close() })
	defer stop()
	written := make(chan error, 1)
	go func() { written <- r.queue.Run() }()
	err := r.accept(ctx, force)
	r.cfg.Listen.Close()
	r.drain(cut)
	return errors.Join(err, r.queue.End(written))
}

// accept serves the listener until ctx ends or it fails.
func (r *Relay) accept(ctx, force context.Context) error {
	const pause = 100 * time.Millisecond
	for {
		client, err := r.cfg.Listen.Accept()
		switch {
		case err == nil:
			r.admit(force, client)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("listen: %w", err)
		default:
			// Out of file descriptors, or a peer that was gone before we got to it.
			r.quiet.Warn("accept", "can't accept a connection", "err", err)
			wait.For(ctx, pause)
		}
	}
}

// admit starts a connection unless there are too many.
func (r *Relay) admit(force context.Context, client net.Conn) {
	r.mu.Lock()
	if r.draining || len(r.conns) >= r.cfg.MaxConnections {
		full := !r.draining
		r.mu.Unlock()
		if full {
			r.quiet.Warn("full", "connection limit reached, new connections are closed", "limit", r.cfg.MaxConnections)
		}
		client.Close()
		return
	}
	r.last++
	l := &link{relay: r, client: client, id: r.last, stopped: make(chan struct{})}
	r.conns[l] = struct{}{}
	r.serving.Add(1)
	r.mu.Unlock()
	go func() {
		defer r.serving.Done()
		l.serve(force)
		r.mu.Lock()
		delete(r.conns, l)
		r.mu.Unlock()
	}()
}

// drain has every connection end and waits for that.
func (r *Relay) drain(cut context.CancelFunc) {
	r.mu.Lock()
	r.draining = true
	for l := range r.conns {
		l.stop()
	}
	r.mu.Unlock()
	timer := time.AfterFunc(r.cfg.Drain, cut)
	defer timer.Stop()
	r.serving.Wait()
}
