package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kmirror/internal/peers"
	"kmirror/internal/quiet"
	"kmirror/protocol"
)

// Limits of the admin listener.
const (
	// maxConnections is far above what operators and peers need; more are closed at once.
	maxConnections = 256
	// idleLimit closes connections that ask nothing, as brokers do (connections.max.idle.ms).
	idleLimit = 10 * time.Minute
	// writeLimit bounds the writing of one answer to a client that does not read.
	writeLimit = 30 * time.Second
)

// Config of a Server.
type Config struct {
	// Listen is closed by Run.
	Listen  net.Listener
	Service Service
	// States and Pong are for other processes: what they ask the owner of states, and what they learn from a ping. nil: not served.
	States StateOwner
	Pong   func() peers.Pong
	// Processes are those of the destination that are alive, this one included, and ClusterID is the destination's id, empty while it is
	// not known. A client finds them by Metadata. nil: this one alone, by the address that it listens at, and none.
	Processes func() []Process
	ClusterID func() string
	// Uncordon lifts the cordon of this process's node ids for a while. nil: not served.
	Uncordon func(ctx context.Context) error
	// TLS makes clients show a certificate, and Allow are the principals that are served then; the others are told so. Without TLS
	// everybody is served. SetAllow changes it.
	TLS   *tls.Config
	Allow []string
	Log   *slog.Logger
	// DrainTimeout is how long requests in flight may go on after Run's context ended (0: 10 s).
	DrainTimeout time.Duration
}

// Server is the admin listener. Each connection is served in order, as brokers do.
type Server struct {
	cfg   Config
	quiet *quiet.Log // for what peers cause
	allow atomic.Pointer[[]string]

	mu       sync.Mutex
	conns    map[net.Conn]struct{}
	draining bool
}

// New validates c and starts nothing.
func New(c Config) (*Server, error) {
	if c.Listen == nil || c.Service == nil {
		return nil, errors.New("admin: a listener and a service are needed")
	}
	if c.TLS != nil && c.TLS.ClientAuth != tls.RequireAndVerifyClientCert {
		return nil, errors.New("admin: with TLS, clients must show a certificate")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 10 * time.Second
	}
	s := &Server{cfg: c, quiet: quiet.New(c.Log, quiet.Interval, nil), conns: map[net.Conn]struct{}{}}
	s.SetAllow(c.Allow)
	return s, nil
}

// SetAllow has these principals served from the next request on, of connections too that are open.
func (s *Server) SetAllow(principals []string) {
	principals = slices.Clone(principals)
	s.allow.Store(&principals)
}

// Run serves until ctx ends, then lets requests in flight finish. The error is of the listener.
func (s *Server) Run(ctx context.Context) error {
	// Requests live longer than ctx, by the drain timeout.
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { s.cfg.Listen.Close() })
	defer stop()
	var wg sync.WaitGroup
	err := s.accept(ctx, requests, &wg)
	s.cfg.Listen.Close()
	s.drain()
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	timer := time.NewTimer(s.cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		cancel()
		s.closeAll()
		<-done
	}
	return err
}

func (s *Server) accept(ctx, requests context.Context, wg *sync.WaitGroup) error {
	for {
		conn, err := s.cfg.Listen.Accept()
		if ctx.Err() != nil {
			if conn != nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			var temporary interface{ Temporary() bool }
			if !errors.As(err, &temporary) || !temporary.Temporary() {
				return fmt.Errorf("admin listener: %w", err)
			}
			s.cfg.Log.Warn("admin listener can't accept for the moment", "err", err)
			timer := time.NewTimer(100 * time.Millisecond) // out of file descriptors
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
			continue
		}
		if !s.add(conn) {
			s.quiet.Warn("full", "admin connection closed: too many are open", "peer", conn.RemoteAddr(), "limit", maxConnections)
			conn.Close()
			continue
		}
		wg.Go(func() { s.serve(requests, conn) })
	}
}

func (s *Server) add(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= maxConnections || s.draining {
		return false
	}
	s.conns[conn] = struct{}{}
	return true
}

func (s *Server) remove(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
	conn.Close()
}

// drain makes all reads end; requests that have been read are still answered.
func (s *Server) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for conn := range s.conns {
		conn.SetReadDeadline(time.Now())
	}
}

func (s *Server) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		conn.Close()
	}
}

// awaitFrame sets the idle limit, unless the server is draining and reads are to end at once.
func (s *Server) awaitFrame(conn net.Conn) (draining bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.draining {
		conn.SetReadDeadline(time.Now().Add(idleLimit))
	}
	return s.draining
}

// serve welcomes one connection and answers its requests.
func (s *Server) serve(requests context.Context, conn net.Conn) {
	defer s.remove(conn)
	ctx, cancel := context.WithCancel(requests)
	defer cancel()
	talk, who, err := s.welcome(ctx, conn)
	if err != nil {
		s.handshakeFailed(conn, err)
		return
	}
	frames, quit := make(chan []byte), make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() { s.read(talk, frames, quit, cancel) })
	for frame := range frames {
		out, err := s.answer(ctx, frame, who)
		if err == nil {
			talk.SetWriteDeadline(time.Now().Add(writeLimit))
			_, err = talk.Write(out)
		} else {
			kind := "request"
			if u := (*unanswerable)(nil); errors.As(err, &u) {
				kind = u.kind
			}
			s.quiet.Warn(kind, "admin connection closed", "peer", who.address, "principal", who.principal, "err", err)
		}
		if err != nil {
			break
		}
	}
	close(quit)
	conn.Close()
	reader.Wait()
}

// read reads the requests of one connection. It is ahead of the answers by one frame, so that a client that goes away cancels what it
// asked for.
func (s *Server) read(conn net.Conn, frames chan<- []byte, quit <-chan struct{}, cancel context.CancelFunc) {
	defer close(frames)
	for {
		if s.awaitFrame(conn) {
			return
		}
		frame, err := protocol.ReadFrame(conn, maxRequest, nil)
		if err != nil {
			s.readError(conn, err, cancel)
			return
		}
		select {
		case frames <- frame:
		case <-quit:
			return
		}
	}
}

func (s *Server) readError(conn net.Conn, err error, cancel context.CancelFunc) {
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	if draining {
		return
	}
	cancel()
	var frame *protocol.FrameError
	if errors.As(err, &frame) {
		s.quiet.Warn("frame "+frame.Kind(), "admin connection closed", "peer", conn.RemoteAddr(), "err", err)
		return
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		s.cfg.Log.Debug("admin connection ended", "peer", conn.RemoteAddr(), "err", err)
	}
}
