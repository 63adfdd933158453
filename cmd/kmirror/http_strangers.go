package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"kmirror/internal/quiet"
)

// logStrangers makes the server say, rate limited, what came on connections that were closed without a request. Call it
// before Run.
func (s *httpServer) logStrangers(log *slog.Logger) {
	lines := quiet.New(log, quiet.Interval, nil)
	s.listen = headListener{s.listen}
	type key struct{}
	s.server.ConnContext = func(ctx context.Context, nc net.Conn) context.Context { return context.WithValue(ctx, key{}, nc) }
	inner := s.server.Handler
	s.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(key{}).(*headConn); ok {
			c.known()
		}
		inner.ServeHTTP(w, r)
	})
	s.server.ConnState = func(nc net.Conn, state http.ConnState) {
		c, ok := nc.(*headConn)
		if !ok || state != http.StateClosed {
			return
		}
		if kind, cause := c.cause(); kind != "" {
			lines.Warn(kind, "http connection closed", "remote", nc.RemoteAddr(), "cause", cause)
		}
	}
}

// headListener remembers how connections begin.
type headListener struct{ net.Listener }

func (l headListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &headConn{Conn: nc}, nil
}

// headConn is a connection that remembers its first bytes until a request has come.
type headConn struct {
	net.Conn

	mu      sync.Mutex
	head    []byte
	request bool
}

func (c *headConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.request && len(c.head) < 2 {
		c.head = append(c.head, b[:min(n, 2-len(c.head))]...)
	}
	return n, err
}

func (c *headConn) known() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.request = true
}

// cause is empty for connections that brought a request, or nothing.
func (c *headConn) cause() (kind, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.request || len(c.head) == 0:
		return "", ""
	case len(c.head) == 2 && c.head[0] == 0x16 && c.head[1] == 0x03:
		return "tls", "a TLS handshake came where an HTTP request was due: this port speaks HTTP without TLS"
	}
	return "other", "what came is not HTTP: the peer takes this port for another one"
}
