package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kmirror/internal/lockbuf"
)

func TestStrangersAtTheHTTPPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newHTTPServer(l, prometheus.NewRegistry(), func() error { return nil }, func() error { return nil })
	var out lockbuf.Buffer
	s.logStrangers(slog.New(slog.NewTextHandler(&out, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	if code, _ := get(t, "http://"+l.Addr().String()+"/healthz"); code != 200 {
		t.Errorf("healthz: %d", code)
	}
	var strangers sync.WaitGroup // all at once: a kind is logged once in ten seconds
	for range 3 {
		for _, first := range []string{"\x16\x03\x01\r\n\r\n", "\x00\x00\x00\x10\r\n\r\n", ""} {
			nc, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			strangers.Go(func() {
				io.WriteString(nc, first)
				nc.(*net.TCPConn).CloseWrite()
				io.Copy(io.Discard, nc)
				nc.Close()
			})
		}
	}
	strangers.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// The server does not wait for connections that have failed.
	for begin := time.Now(); strings.Count(out.String(), "connection closed") < 2 && time.Since(begin) < 30*time.Second; {
		time.Sleep(time.Millisecond)
	}
	text := out.String()
	if n := strings.Count(text, "connection closed"); n != 2 || strings.Count(text, "TLS handshake") != 1 || strings.Count(text, "not HTTP") != 1 {
		t.Errorf("log:\n%s", text)
	}
}
