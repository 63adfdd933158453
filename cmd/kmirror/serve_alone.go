package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"kmirror/internal/metapoll"
	"kmirror/internal/preflight"
	"kmirror/internal/trace/tap"
	"kmirror/proxy"
)

// noMirrors is what a gateway alone knows of mirrors.
type noMirrors struct{}

// MirrorOf implements proxy.Mirrors.
func (noMirrors) MirrorOf(string) (string, bool) { return "", false }

// newAlone makes a process that is a gateway and nothing else. It opens all sockets and connects to nothing.
func newAlone(cfg *Config, log *slog.Logger, stderr io.Writer) (_ *process, err error) {
	p := &process{cfg: cfg, log: log, stderr: stderr, tap: tap.New(log), metrics: newMetrics(version, cfg.Metrics.PerPartition)}
	if p.legs, err = cfg.legs(log); err != nil {
		return nil, err
	}
	upstream, err := cfg.upstreamTLS(log)
	if err != nil {
		return nil, err
	}
	poll := cfg.poll(p.legs)
	poll.Log, poll.OnCluster = log, func(id string) { p.metrics.setCluster(version, id) }
	if p.polled, err = metapoll.New(poll); err != nil {
		return nil, usageError(err.Error(), "correct the configuration")
	}
	defer func() {
		if err != nil {
			p.polled.Close()
			p.sockets.close()
		}
	}()
	if p.sockets, err = openSockets(cfg, log); err != nil {
		return nil, err
	}
	for _, note := range p.sockets.notes {
		log.Warn(note)
	}
	p.requests = proxy.NewMemory(cfg.Limits.share())
	p.gateway, err = proxy.NewGateway(proxy.GatewayConfig{
		Fronts: p.sockets.fronts, Images: p.polled, Mirrors: noMirrors{}, Guest: func(int32) bool { return false }, UpstreamTLS: upstream,
		Memory: p.requests, MaxConnections: cfg.Limits.Connections, DrainTimeout: 5 * time.Second,
		Log: log, Observer: p.metrics, Watch: p.watch(true),
	})
	if err != nil {
		return nil, err
	}
	if err := p.certificatesSide(); err != nil {
		return nil, err
	}
	p.httpSide(p.polled.Ready)
	return p, nil
}

// runAlone works until ctx ends. Brokers are asked for as long as connections drain.
func (p *process) runAlone(ctx context.Context) error {
	defer p.sockets.close()
	defer p.polled.Close()
	if err := p.traceFrom(p.cfg); err != nil {
		return err
	}
	defer p.endTrace()
	p.log.Info("starting", "version", version, "gateway", p.cfg.Gateway[0].Bootstrap, "http", p.cfg.HTTP,
		"note", "no controllers are configured: this is a gateway alone, which knows of no mirrors and no read-only topics")
	outer, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	back, outer := errgroup.WithContext(outer)
	back.Go(func() error { return named("brokers", p.polled.Run(outer)) })
	if p.http != nil {
		back.Go(func() error { return named("http", p.http.Run(outer)) })
	}
	front, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(outer, cancel)() // what fails behind ends what is in front too
	both, front := errgroup.WithContext(front)
	both.Go(func() error { tellReady(front, p.polled.Ready, p.log); return nil })
	both.Go(func() error { p.reloads.run(front); return nil })
	both.Go(func() error { tellExpiry(front, p.certificates, p.log); return nil })
	both.Go(func() error { p.garbage.run(front); return nil })
	both.Go(func() error { p.certificatesAsked(front); return nil })
	both.Go(func() error { return named("gateway", p.gateway.Run(front)) })
	err := both.Wait()
	stop()
	if e := back.Wait(); e != nil {
		err = e
	}
	return p.stopped(err)
}

// certificatesAsked says when brokers want certificates from clients, which can't be relayed, once brokers are known.
func (p *process) certificatesAsked(ctx context.Context) {
	if !strings.HasSuffix(p.cfg.Destination.protocol(), "SSL") {
		return
	}
	changed := p.polled.Changed()
	if p.polled.Ready() != nil {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
	var ids []int32
	for id := range p.polled.Image().Brokers {
		ids = append(ids, id)
	}
	err := preflight.CheckSettings(ctx, p.legs.bootstrap, ids, p.cfg.looked(), "")
	var certificates *preflight.SettingsError
	switch {
	case errors.As(err, &certificates):
		p.log.Error("clients can't work through this gateway", "err", err)
	case err != nil && ctx.Err() == nil:
		p.log.Info("it is not known whether brokers ask clients for certificates, which could not be relayed", "err", err)
	}
}
