package main

import (
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"kmirror/internal/trace"
	"kmirror/internal/trace/tap"
)

// TraceConfig has serve trace what passes on its listeners. Keys that kmirror trace has a flag for mean the same.
type TraceConfig struct {
	// File is where the trace goes, - for stderr; empty: nothing is traced.
	File string `yaml:"file"`
	// Listeners are names out of those of the configuration; none stands for all but the inter-broker one. Gateway: the ports of gateways
	// are traced too.
	Listeners    []string      `yaml:"listeners"`
	Gateway      bool          `yaml:"gateway"`
	Format       string        `yaml:"format"`
	APIs         []string      `yaml:"api"`
	ClientID     string        `yaml:"client_id"`
	Principal    string        `yaml:"principal"`
	Topic        string        `yaml:"topic"`
	Errors       bool          `yaml:"errors"`
	MinDuration  time.Duration `yaml:"min_duration"`
	Payload      bool          `yaml:"payload"`
	PayloadLimit byteSize      `yaml:"payload_limit"`
	MaxFrame     byteSize      `yaml:"max_frame"`
	Memory       byteSize      `yaml:"memory"`
	// MaxSize is at what size in bytes File is renamed to File.1 and begun anew.
	MaxSize byteSize `yaml:"max_size"`
}

func defaultTrace() TraceConfig {
	return TraceConfig{Gateway: true, Format: string(trace.Line), PayloadLimit: 1 << 20, MaxFrame: trace.DefaultFrame, Memory: 64 << 20,
		MaxSize: 100 << 20}
}

// flags are those of kmirror trace that do the same.
func (t *TraceConfig) flags() traceFlags {
	return traceFlags{format: t.Format, payload: t.Payload, payloadLimit: t.PayloadLimit, apis: strings.Join(t.APIs, ","), clientID: t.ClientID,
		principal: t.Principal, topic: t.Topic, errors: t.Errors, minDuration: t.MinDuration, connections: 1, maxFrame: t.MaxFrame, memory: t.Memory,
		key: func(flag string) string { return "trace." + strings.ReplaceAll(flag, "-", "_") }}
}

func (c *Config) checkTrace(k *checker) {
	t := c.Trace
	if t.File == "" {
		if !reflect.DeepEqual(t, defaultTrace()) {
			k.add("trace.file", "missing, so nothing would be traced; give a path, or - for stderr")
		}
		return
	}
	for _, name := range t.Listeners {
		if !slices.ContainsFunc(c.Listeners, func(l ListenerConfig) bool { return l.Name == name }) {
			k.add("trace.listeners", "%q is not among listeners; give their names, or leave it out", name)
		}
	}
	if t.MaxSize < 1<<20 {
		k.add("trace.max_size", "must be at least 1MiB; the file before is kept, so twice as much is taken")
	}
	flags := t.flags()
	if _, err := flags.reporter(io.Discard); err != nil {
		e := operatorError(err)
		k.problems = append(k.problems, e.Message+"; "+e.Hint)
	}
}

// traced reports whether connections to a server are to be traced.
func (c *Config) traced(s tap.Server) bool {
	switch {
	case s.Gateway:
		return c.Trace.Gateway
	case len(c.Trace.Listeners) > 0:
		return slices.Contains(c.Trace.Listeners, s.Listener)
	}
	return c.forClients(s.Listener)
}

// traceSettings opens what the trace is written to; nil where nothing is to be traced.
func (c *Config) traceSettings(stderr io.Writer) (*tap.Settings, error) {
	if c.Trace.File == "" {
		return nil, nil
	}
	s := &tap.Settings{Wants: c.traced, MaxFrame: int(c.Trace.MaxFrame), Memory: int64(c.Trace.Memory)}
	out := stderr
	if c.Trace.File != "-" {
		f, err := tap.OpenFile(c.Trace.File, int64(c.Trace.MaxSize))
		if err != nil {
			return nil, usageError("trace.file: "+err.Error(), "give a path that kmirror may write to, or - for stderr")
		}
		out, s.Close = f, f.Close
	}
	var err error
	flags := c.Trace.flags()
	s.Reporter, err = flags.reporter(out)
	return s, err
}
