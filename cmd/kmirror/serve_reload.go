package main

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"kmirror/internal/clientconf"
)

// reloadEvery is how often the configuration file is looked at.
const reloadEvery = 3 * time.Second

// reloader follows the configuration file: it reads it again when it has changed, or at a signal, and has what may change without a
// restart applied. A file that can't be used is told once, and what is in force stays; it is read again until it can be: what is wrong may
// be a file that it names, such as a certificate that is just being renewed, and nothing of the configuration itself changes then.
type reloader struct {
	path    string
	environ func() []string
	log     *slog.Logger
	// current is in force. apply brings the next one into force as far as that goes without a restart; again: a signal came.
	current *Config
	// running is what the process was started with, which keys that are not reloaded have until a restart; load sets it.
	running *Config
	apply   func(before, next *Config, again bool)
	signals chan os.Signal

	seen   fs.FileInfo // nil where there was none
	failed string      // why the file could not be used when it was last read, empty if it could
}

// newReloader is to be made before the file is read for the first time: it looks at it now. The other fields are the caller's to fill.
func newReloader(path string, environ func() []string) *reloader {
	r := &reloader{path: path, environ: environ, signals: make(chan os.Signal, 1)}
	r.changed()
	return r
}

// run follows the file until ctx ends.
func (r *reloader) run(ctx context.Context) {
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.look()
		case <-r.signals:
			r.changed()
			r.load(true)
		}
	}
}

// look reads the file if it has changed, or could not be used.
func (r *reloader) look() {
	if r.changed() {
		r.failed = ""
		r.load(false)
	} else if r.failed != "" {
		r.load(false)
	}
}

// changed reports whether the file is another one than it was at the last look.
func (r *reloader) changed() bool {
	was := r.seen
	now, err := os.Stat(r.path)
	if err != nil {
		return false // between two files, or for good: reading it at a signal says so
	}
	r.seen = now
	return clientconf.FileChanged(was, now)
}

// load reads the file and applies it.
func (r *reloader) load(again bool) {
	next, err := loadConfig(r.path, r.environ())
	if err != nil {
		if again || err.Error() != r.failed {
			r.log.Warn("the configuration can't be used; the one before it stays in force", "err", err)
		}
		r.failed = err.Error()
		return
	}
	r.failed = ""
	if r.running == nil {
		r.running = r.current
	}
	if keys := needRestart(r.running, next); len(keys) > 0 {
		r.log.Warn("the configuration has changes that wait for a restart", "keys", strings.Join(keys, ", "))
	}
	if again || !reflect.DeepEqual(r.current, next) {
		r.log.Info("the configuration was read again", "audit", true, "verb", "reload", "signal", again)
		r.apply(r.current, next, again)
		r.current = next
	}
}

// needRestart names the keys that differ and are not reloaded.
func needRestart(before, after *Config) (keys []string) {
	fixed := func(c Config) reflect.Value {
		c.Admin.Allow, c.Limits, c.Log, c.Trace = nil, LimitsConfig{}, LogConfig{}, TraceConfig{}
		c.Listeners = slices.Clone(c.Listeners)
		for i := range c.Listeners {
			c.Listeners[i].Allow, c.Listeners[i].PrincipalMappingRules = nil, ""
		}
		return reflect.ValueOf(c)
	}
	a, b := fixed(*before), fixed(*after)
	for i := range a.NumField() {
		if !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			keys = append(keys, a.Type().Field(i).Tag.Get("yaml"))
		}
	}
	return keys
}

// reload brings into force what of a configuration may change while the process runs. A listener that has no use for allow any more, without
// TLS or with logins, waits for a restart, and who is allowed with it: nobody else could come in until then.
func (p *process) reload(before, next *Config, again bool) {
	if p.admin != nil && len(next.Admin.Allow) > 0 && !slices.Equal(before.Admin.Allow, next.Admin.Allow) {
		p.log.Info("admin.allow has changed", "audit", true, "verb", "allow", "allow", next.Admin.Allow)
		p.admin.SetAllow(next.Admin.Allow)
	}
	p.reloadPeers(next)
	if before.Limits != next.Limits {
		p.setLimits(next.Limits)
	}
	if before.Log != next.Log {
		if err := p.logging.set(next.Log); err == nil {
			p.log.Info("log has changed", "level", next.Log.Level, "format", next.Log.Format)
		}
	}
	if !reflect.DeepEqual(before.Trace, next.Trace) || again && (p.untraced || p.tap.Failed()) {
		err := p.traceFrom(next)
		if p.untraced = err != nil; p.untraced {
			p.log.Warn("the trace stays what it was", "err", err)
		}
	}
}

// reloadPeers brings the brokers into force that may replicate, on listeners that are there and know them by certificates.
func (p *process) reloadPeers(next *Config) {
	changed := false
	for _, l := range next.Listeners {
		if allow := p.sockets.allow[l.Name]; allow != nil && len(l.Allow) > 0 && allow.set(l) {
			changed = true
			p.log.Info("allow of a listener has changed", "audit", true, "verb", "allow", "listener", l.Name, "allow", l.Allow,
				"principal_mapping_rules", l.PrincipalMappingRules)
		}
	}
	if changed {
		p.log.Info("connections of peers whom that concerns were cut", "connections", p.proxy.Rejudge())
	}
}

// setLimits brings other limits into force.
func (p *process) setLimits(l LimitsConfig) {
	p.requests.SetLimit(l.share())
	if p.leader != nil { // a gateway alone has neither
		p.leader.SetLimits(int64(l.SourceBytesPerSecond), l.share())
		p.proxy.SetMaxConnections(l.Connections)
	}
	if p.gateway != nil {
		p.gateway.SetMaxConnections(l.Connections)
	}
	p.garbage.setLimit(l.Memory)
	p.log.Info("limits have changed", "source_bytes_per_second", int64(l.SourceBytesPerSecond), "connections", l.Connections,
		"memory", int64(l.Memory))
}
