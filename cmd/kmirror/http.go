package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// httpServer serves /healthz, /readyz and /metrics.
type httpServer struct {
	listen net.Listener
	server *http.Server
}

// newHTTPServer starts nothing. alive and ready return why not, or nil; they are asked at each request.
func newHTTPServer(listen net.Listener, registry *prometheus.Registry, alive, ready func() error) *httpServer {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", probe(alive))
	mux.HandleFunc("GET /readyz", probe(ready))
	opts := promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, opts))
	return &httpServer{listen: listen, server: &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 20 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 16,
	}}
}

func probe(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if err := check(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// Run serves until ctx ends and closes the listener.
func (s *httpServer) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.server.Serve(s.listen) }()
	select {
	case err := <-done:
		return fmt.Errorf("http listener: %w", err)
	case <-ctx.Done():
	}
	// The answers under way get a moment that outlives ctx.
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if s.server.Shutdown(drain) != nil {
		s.server.Close()
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("http listener: %w", err)
	}
	return nil
}
