package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/quiet"
)

// ErrDrainTimeout is returned by Run when replies were still in flight at the end of DrainTimeout and their connections
// had to be cut.
var ErrDrainTimeout = errors.New("proxy: drain timeout reached with replies in flight")

// Server serves the listeners of our node ids.
type Server struct {
	cfg      Config
	log      *slog.Logger
	quiet    *quiet.Log
	versions *versionCache
	// turn spreads connections over the real brokers.
	turn atomic.Uint32
	// replicaFetch has the Leader serve a replica and returns the whole answer.
	replicaFetch func(ctx context.Context, req *kmsg.FetchRequest, nodeID, corr int32) (net.Buffers, error)
	rightsLife   time.Duration
	// patience replaces dialTimeout in tests, where it is not 0.
	patience time.Duration

	maxConnections atomic.Int64

	mu    sync.Mutex
	conns map[*conn]struct{}
	// strangers are the principals that were refused.
	strangers map[string]struct{}
	draining  bool
	serving   sync.WaitGroup
}

// New validates the configuration. The listeners are the caller's until Run.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: cfg.Log, rightsLife: rightsLife, conns: make(map[*conn]struct{}),
		strangers: make(map[string]struct{})}
	s.quiet = quiet.New(cfg.Log, quiet.Interval, nil)
	s.SetMaxConnections(cfg.MaxConnections)
	s.versions = newVersionCache(s)
	s.replicaFetch = func(ctx context.Context, req *kmsg.FetchRequest, nodeID, corr int32) (net.Buffers, error) {
		reply, err := cfg.Leader.Fetch(ctx, req, nodeID)
		if err != nil {
			return nil, err
		}
		return reply.Buffers(corr), nil
	}
	return s, nil
}

// Run serves until ctx ends, then closes the listeners, reads no further request, delivers the replies in flight and
// returns nil, or ErrDrainTimeout when connections had to be cut. An error of a listener ends it too. It must be called
// once only.
func (s *Server) Run(ctx context.Context) error {
	// Connections outlive ctx while they drain.
	force, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	var acceptors sync.WaitGroup
	failed := make(chan error, len(s.cfg.Listeners))
	for _, l := range s.cfg.Listeners {
		acceptors.Go(func() {
			if err := s.accept(accepting, force, l); err != nil {
				failed <- fmt.Errorf("listener %s of node %d: %w", l.Name, l.NodeID, err)
				stop()
			}
		})
	}
	<-accepting.Done()
	for _, l := range s.cfg.Listeners {
		l.Listen.Close()
	}
	acceptors.Wait()
	err := s.drain(cut)
	select {
	case cause := <-failed:
		return cause
	default:
		return err
	}
}

// SetMaxConnections changes the limit for connections that come; those that are there stay.
func (s *Server) SetMaxConnections(n int) { s.maxConnections.Store(int64(n)) }

// drain asks every connection to end and waits for that, for DrainTimeout at most.
func (s *Server) drain(cut context.CancelFunc) error {
	s.mu.Lock()
	s.draining = true
	for c := range s.conns {
		c.stop()
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serving.Wait()
	}()
	timer := time.NewTimer(s.cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
	}
	s.mu.Lock()
	left := len(s.conns)
	s.mu.Unlock()
	cut()
	<-done
	return fmt.Errorf("%w: %d connections cut", ErrDrainTimeout, left)
}

// accept runs one listener until ctx ends.
func (s *Server) accept(ctx, force context.Context, l Listener) error {
	const first, most = 5 * time.Millisecond, time.Second
	wait := first
	for {
		nc, err := l.Listen.Accept()
		if err == nil {
			wait = first
			s.admit(force, l, nc)
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		// Out of file descriptors, or a peer that was gone before we got to it: neither is a reason to stop listening.
		s.quiet.Warn("accept", "can't accept a connection", append(l.logged(), "err", err)...)
		timer := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		wait = min(2*wait, most)
	}
}

// admit starts a connection unless there are too many.
func (s *Server) admit(force context.Context, l Listener, nc net.Conn) {
	c := newConn(s, l, nc)
	s.mu.Lock()
	limit := s.maxConnections.Load()
	full := int64(len(s.conns)) >= limit
	refuse := full || s.draining
	if !refuse {
		s.conns[c] = struct{}{}
		s.serving.Add(1)
	}
	s.mu.Unlock()
	if full {
		s.quiet.Warn("full", "connection limit reached, new connections are closed",
			"limit", limit, "listener", l.Name, "remote", remoteOf(nc))
	}
	if refuse {
		nc.Close()
		return
	}
	go func() {
		defer s.serving.Done()
		s.cfg.Observer.ConnectionOpened(l.Name)
		c.serve(force)
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		s.cfg.Observer.ConnectionClosed(l.Name)
	}()
}

func remoteOf(nc net.Conn) string {
	if a := nc.RemoteAddr(); a != nil {
		return a.String()
	}
	return ""
}
