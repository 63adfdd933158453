package admin

import (
	"context"
	"log/slog"
	"net"
	"time"
)

// Config of a Server.
type Config struct {
	// Listen is closed by Run.
	Listen  net.Listener
	Service Service
	Log     *slog.Logger
	// DrainTimeout is how long requests in flight may go on after Run's context ended (10 s).
	DrainTimeout time.Duration
}

// Server is the admin listener.
type Server struct{}

// New validates c and starts nothing.
func New(c Config) (*Server, error) { return nil, nil }

// Run serves until ctx ends, then lets requests in flight finish.
func (s *Server) Run(ctx context.Context) error { return nil }
