package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

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
		names, err := g.names()
		if err != nil {
			return usageError(err.Error(), "correct gateway.sni")
		}
		f := proxy.Front{Name: g.Name, Host: host, Port: uint16(port), AdvertisedHost: g.AdvertisedHost, Ranges: ranges, Names: names}
		l, _, _ := cfg.fronted(g.Name)
		if files := g.files(l); files != nil {
			if f.TLS, err = clientconf.ServerTLS(files.files(), log.With("gateway", g.Name)); err != nil {
				return usageError(fmt.Sprintf("gateway %s: %v", g.Name, err), "give "+wantedFiles)
			}
			s.notes = append(s.notes, certificateNote("gateway "+g.Name, g.AdvertisedHost, f.TLS, time.Now())...)
			s.notes = append(s.notes, nameNotes(g, names, cfg.anyID(), f.TLS)...)
		}
		if f.Listen, err = listen("gateway "+g.Name, g.Bootstrap); err != nil {
			return err
		}
		s.fronts = append(s.fronts, f)
	}
	return nil
}

// nameNotes says when clients are going to refuse the certificate for the names that brokers have behind a gateway, one of ours standing
// for all; for others that is said when they are seen.
func nameNotes(g GatewayConfig, names *proxy.Names, id int32, conf *tls.Config) []string {
	if names == nil {
		return nil
	}
	cert, err := conf.GetCertificate(nil)
	if err != nil || cert.Leaf == nil {
		return nil
	}
	if err := cert.Leaf.VerifyHostname(names.Of(id)); err != nil {
		return []string{fmt.Sprintf("gateway %s: clients connect to %s for broker %d, and the certificate is not for that name: %v; "+
			"have one signed for %s and %s", g.Name, names.Of(id), id, err, names.Wildcard(), g.AdvertisedHost)}
	}
	return nil
}

// anyID is a node id to stand for all.
func (c *Config) anyID() int32 {
	if len(c.NodeIDs) > 0 {
		return c.NodeIDs[0]
	}
	return 1
}

func brokerIDs(list kadm.BrokerDetails) (ids []int32) {
	for _, b := range list {
		ids = append(ids, b.NodeID)
	}
	return ids
}

// outsideNotes says which of the destination's brokers a gateway does not front.
func (c *Config) outsideNotes(brokers []int32) (notes []string) {
	for _, g := range c.Gateway {
		for _, id := range brokers {
			if !g.fronts(id) {
				notes = append(notes, fmt.Sprintf("gateway %s: clients are not told of broker %d, which is outside node_id_ranges; append %q", g.Name, id,
					strconv.Itoa(int(id))))
			}
		}
	}
	return notes
}

// gateways makes what fronts the destination's brokers, if that is configured.
func (p *process) gateways(readOnly int16, upstream func() *tls.Config) (err error) {
	if len(p.sockets.fronts) == 0 {
		return nil
	}
	p.gateway, err = proxy.NewGateway(proxy.GatewayConfig{
		Fronts: p.sockets.fronts, Images: p.broker, Mirrors: p.manager, Guest: p.broker.Guest, UpstreamTLS: upstream,
		Memory: p.requests, MaxConnections: p.cfg.Limits.Connections, ReadOnlyError: readOnly, DrainTimeout: 5 * time.Second,
		Log: p.log, Observer: p.metrics, Watch: p.watch(true),
	})
	return err
}
