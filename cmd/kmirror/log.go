package main

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
)

// logSettings are what may be changed of a logger while it is in use.
type logSettings struct {
	level slog.LevelVar
	text  atomic.Bool
}

// set takes over a checked configuration.
func (s *logSettings) set(c LogConfig) error {
	s.text.Store(c.Format == "text")
	return s.level.UnmarshalText([]byte(c.Level))
}

// newLogger makes the process's logger.
func newLogger(w io.Writer, s *logSettings) *slog.Logger {
	opts := &slog.HandlerOptions{Level: &s.level}
	w = &lines{w: w}
	return slog.New(twoFormats{s: s, text: slog.NewTextHandler(w, opts), json: slog.NewJSONHandler(w, opts)})
}

// lines lets one line through at a time: each of two handlers knows of its own only.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(line)
}

// twoFormats is a handler that writes in the format of then; what is added to it is added to both.
type twoFormats struct {
	s          *logSettings
	text, json slog.Handler
}

func (h twoFormats) now() slog.Handler {
	if h.s.text.Load() {
		return h.text
	}
	return h.json
}

// Enabled implements slog.Handler.
func (h twoFormats) Enabled(ctx context.Context, level slog.Level) bool {
	return h.now().Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h twoFormats) Handle(ctx context.Context, r slog.Record) error { return h.now().Handle(ctx, r) }

// WithAttrs implements slog.Handler.
func (h twoFormats) WithAttrs(attrs []slog.Attr) slog.Handler {
	return twoFormats{h.s, h.text.WithAttrs(attrs), h.json.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h twoFormats) WithGroup(name string) slog.Handler {
	return twoFormats{h.s, h.text.WithGroup(name), h.json.WithGroup(name)}
}
