package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/clientconf"
	"kmirror/internal/preflight"
	"kmirror/protocol/kraft"
	"kmirror/proxy"
)

// interBroker reports whether brokers replicate over a listener.
func (c *Config) interBroker(l ListenerConfig) bool {
	return l.Name == c.Destination.InterBrokerListener || c.shared()
}

// shared reports whether brokers and clients have but this listener.
func (c *Config) shared() bool { return len(c.Listeners) == 1 }

// forClients reports whether clients use the listener of a name: all but the one that brokers have for themselves, where there are others.
func (c *Config) forClients(name string) bool {
	return name != c.Destination.InterBrokerListener || c.shared()
}

// verifies reports whether peers of a listener are asked for certificates.
func (c *Config) verifies(l ListenerConfig) bool {
	return c.interBroker(l) && l.TLS != nil && l.TLS.CA != ""
}

// knowsPeers reports whether brokers are known by their certificates on a listener that is theirs alone.
func (c *Config) knowsPeers(l ListenerConfig) bool {
	return !c.forClients(l.Name) && l.Protocol == "SSL"
}

// checkPeers checks a listener's certificate, and how brokers prove on theirs that they are brokers.
func (c *Config) checkPeers(k *checker, key string, l ListenerConfig) {
	inter := c.interBroker(l)
	switch {
	case !inter && len(l.Allow) > 0:
		k.add(key+".allow", "is for the inter-broker listener, %s; the brokers' authorizer judges each client by its own login: remove it",
			c.Destination.InterBrokerListener)
	case len(l.Allow) > 0 && strings.HasPrefix(l.Protocol, "SASL_"):
		k.add(key+".allow", "brokers are known by their logins here, and judged by the destination's authorizer (CLUSTER_ACTION); remove it")
	case len(l.Allow) == 0 && l.PrincipalMappingRules != "":
		k.add(key+".principal_mapping_rules", "is for the names in allow, of which there are none; remove it")
	case len(l.Allow) > 0 && l.Protocol == "PLAINTEXT":
		k.add(key+".allow", "nobody proves who he is with protocol PLAINTEXT; remove it")
	}
	k.principals(key+".allow", l.Allow, l.PrincipalMappingRules != "")
	if _, err := parsePrincipalRules(l.PrincipalMappingRules); err != nil {
		k.add(key+".principal_mapping_rules", "%v", err)
	}
	if l.TLS == nil || l.TLS.Certificate == "" || !strings.HasSuffix(l.Protocol, "SSL") {
		return
	}
	if !inter {
		k.certificate(key, l.TLS)
		return
	}
	if l.Protocol == "SSL" && l.TLS.CA == "" {
		k.add(key+".tls.ca", "missing; brokers prove by certificates here that they are brokers: give a file with the authorities of those")
	}
	if l.Protocol == "SSL" && len(l.Allow) == 0 {
		k.add(key+".allow", "missing, so nobody could replicate; name the principals of the destination's brokers, such as \"User:CN=broker,O=Acme\" "+
			"(openssl x509 -noout -subject -nameopt RFC2253, of a broker's certificate)")
	}
	k.readable(key, l.TLS.mutual())
}

// proxyListener is one open socket of a listener. allow is used where peers are known by certificates.
func (c *Config) proxyListener(l ListenerConfig, sock net.Listener, node int32, allow *allowance) proxy.Listener {
	out := proxy.Listener{Name: l.Name, Listen: sock, NodeID: node, InterBroker: c.interBroker(l)}
	if c.verifies(l) {
		out.Mutual, out.Clients = true, c.shared()
		if l.Protocol == "SSL" {
			out.Peer = allow.check
		}
	}
	return out
}

// allowance judges certificates by their principals, by what the configuration of then says of a listener.
type allowance struct{ now atomic.Pointer[allowed] }

// allowed are who may replicate, and what names they have. text is what rules were read of.
type allowed struct {
	principals []string
	rules      principalRules
	text       string
}

func newAllowance(l ListenerConfig) *allowance {
	a := new(allowance)
	a.set(l)
	return a
}

// set takes over a checked configuration, and reports whether it is another one.
func (a *allowance) set(l ListenerConfig) bool {
	was := a.now.Load()
	if was != nil && slices.Equal(was.principals, l.Allow) && was.text == l.PrincipalMappingRules {
		return false
	}
	rules, err := parsePrincipalRules(l.PrincipalMappingRules)
	if err != nil { // which the check of configurations refuses
		return false
	}
	a.now.Store(&allowed{l.Allow, rules, l.PrincipalMappingRules})
	return true
}

// check is a proxy.PeerCheck. Whom the rules give no name is known by the subject, and not allowed.
func (a *allowance) check(cert *x509.Certificate) (string, bool) {
	principal, ok := admin.Principal(cert)
	if !ok {
		return principal, false
	}
	now := a.now.Load()
	name, ok := now.rules.name(strings.TrimPrefix(principal, "User:"))
	if !ok {
		return principal, false
	}
	principal = "User:" + name
	return principal, slices.Contains(now.principals, principal)
}

// peerTLS is how what brokers of the destination send on goes to other brokers where they are known by certificates: as the replication
// client does, with its certificate. nil where no listener asks for certificates, or that client has no TLS.
func (c *Config) peerTLS(log *slog.Logger) (func() *tls.Config, error) {
	if !slices.ContainsFunc(c.Listeners, c.verifies) {
		return nil, nil
	}
	secure, err := clientconf.ClientTLS(c.Destination.orClient(c.Destination.ReplicationClient), log.With("leg", "brokers' forwarded connections"))
	if err != nil {
		return nil, usageError("destination.replication_client: "+err.Error(), "correct the configuration")
	}
	return secure, nil
}

// looked are the listeners as preflight looks at them.
func (c *Config) looked() (all []preflight.Listener) {
	if c.alone() {
		return []preflight.Listener{{Name: c.Gateway[0].Name, Protocol: c.Destination.protocol()}}
	}
	for _, l := range c.Listeners {
		all = append(all, preflight.Listener{Name: l.Name, Protocol: l.Protocol, Own: !c.forClients(l.Name), Asks: c.verifies(l)})
	}
	return all
}

// Brokers are asked for so long, before anything is registered, what they are configured for. It is short where they could only tell which
// listener is theirs: kmirror comes back beside brokers that have died, too.
const (
	settingsLimit    = 4 * time.Second
	certificateLimit = 20 * time.Second
)

// checkListeners refuses a destination that the configured listeners don't fit, also by what brokers say of the one they replicate over, and
// of certificates that they want to see. Where brokers don't say, kmirror goes on: who can't be relayed finds out by himself.
func (p *process) checkListeners(ctx context.Context, img *kraft.Image, l legs) error {
	if err := missingListeners(p.cfg, img); err != nil {
		return err
	}
	var alive, fenced []int32
	for id, b := range img.Brokers {
		switch {
		case p.broker.Guest(id):
		case b.Fenced:
			fenced = append(fenced, id)
		default:
			alive = append(alive, id)
		}
	}
	err := checkSettings(ctx, p.cfg, l, append(alive, fenced...))
	if err != nil && !isUsage(err) {
		p.log.Warn(err.Error())
		err = nil
	}
	return err
}

// checkSettings asks brokers for what they are configured for. An error that is not about usage is why that is not known.
func checkSettings(ctx context.Context, cfg *Config, l legs, brokers []int32) error {
	limit := settingsLimit
	if slices.ContainsFunc(cfg.Listeners, func(l ListenerConfig) bool { return l.TLS != nil }) {
		limit = certificateLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := preflight.CheckSettings(ctx, l.bootstrap, brokers, cfg.looked(), cfg.Destination.InterBrokerListener)
	var settings *preflight.SettingsError
	switch {
	case errors.As(err, &settings):
		return usageError(err.Error(), "see Listeners and TLS in docs/operations.md; nothing was registered")
	case err != nil:
		return fmt.Errorf("brokers don't say which listener is theirs, and whether they ask clients for certificates, which could not be relayed "+
			"(compare inter_broker_listener and listeners with their configuration): %w", err)
	}
	return nil
}

// isUsage reports whether only another configuration can help.
func isUsage(err error) bool {
	var e *admin.Error
	return errors.As(err, &e) && e.Exit == admin.ExitUsage
}
