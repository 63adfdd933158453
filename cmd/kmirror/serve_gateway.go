package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"kmirror/internal/clientconf"
	"kmirror/proxy"
)

// openGateways opens the bootstrap ports. Those of node ids follow as brokers are seen.
func (s *sockets) openGateways(cfg *Config, log *slog.Logger) error {
	for _, g := range cfg.Gateway {
		host, port := splitPort(g.Bootstrap)
		ranges, err := g.ranges()
		if err != nil {
			return usageError(err.Error(), "correct gateway.node_id_ranges")
		}
		f := proxy.Front{Name: g.Name, Host: host, Port: uint16(port), AdvertisedHost: g.AdvertisedHost, Ranges: ranges}
		at := slices.IndexFunc(cfg.Listeners, func(l ListenerConfig) bool { return l.Name == g.Name })
		if files := g.files(cfg.Listeners[at]); files != nil {
			if f.TLS, err = clientconf.ServerTLS(files.files(), log.With("gateway", g.Name)); err != nil {
				return usageError(fmt.Sprintf("gateway %s: %v", g.Name, err), "give PEM files that kmirror can read")
			}
			s.notes = append(s.notes, certificateNote("gateway "+g.Name, g.AdvertisedHost, f.TLS, time.Now())...)
		}
		if f.Listen, err = listen(g.Bootstrap); err != nil {
			return err
		}
		s.fronts = append(s.fronts, f)
	}
	return nil
}

// gateways makes what fronts the destination's brokers, if that is configured.
func (p *process) gateways(readOnly int16, upstream *tls.Config) (err error) {
	if len(p.sockets.fronts) == 0 {
		return nil
	}
	p.gateway, err = proxy.NewGateway(proxy.GatewayConfig{
		Fronts: p.sockets.fronts, Images: p.broker, Mirrors: p.manager, Guest: p.broker.Guest, UpstreamTLS: upstream,
		MaxConnections: p.cfg.Limits.Connections, ReadOnlyError: readOnly, DrainTimeout: 5 * time.Second, Log: p.log, Observer: p.metrics,
	})
	return err
}
