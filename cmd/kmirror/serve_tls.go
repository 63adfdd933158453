package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/clientconf"
	"kmirror/protocol/kraft"
)

// serverTLS reads the certificates of the listeners that have one, by listener name; node ids share them.
func serverTLS(cfg *Config, log *slog.Logger) (map[string]*tls.Config, error) {
	secure := map[string]*tls.Config{}
	for _, l := range cfg.Listeners {
		if l.TLS == nil {
			continue
		}
		files := l.TLS.files()
		if cfg.verifies(l) {
			files = l.TLS.mutual()
		}
		conf, err := clientconf.ServerTLS(files, log.With("listener", l.Name))
		if err != nil {
			return nil, usageError(fmt.Sprintf("listeners.%s.tls: %v", l.Name, err), "give "+wantedFiles)
		}
		if cfg.verifies(l) && cfg.shared() {
			conf.ClientAuth = tls.VerifyClientCertIfGiven
		}
		secure[l.Name] = conf
	}
	return secure, nil
}

// adminTLS reads the admin listener's certificate, for its own side and for what it asks other processes by; nil without TLS.
func adminTLS(cfg *Config, log *slog.Logger) (server *tls.Config, client func() *tls.Config, err error) {
	if cfg.Admin.TLS == nil {
		return nil, nil, nil
	}
	log = log.With("listener", "admin")
	if server, err = clientconf.ServerTLS(cfg.Admin.TLS.mutual(), log); err == nil {
		client, err = clientconf.PeerTLS(cfg.Admin.TLS.mutual(), log)
	}
	if err != nil {
		return nil, nil, usageError(fmt.Sprintf("admin.tls: %v", err), "give "+wantedFiles)
	}
	return server, client, nil
}

// adminNotes says what operators and other processes are going to refuse of the admin listener's certificate.
func adminNotes(cfg *Config, server *tls.Config, now time.Time) (notes []string) {
	if server == nil {
		return nil
	}
	cert, err := server.GetCertificate(nil)
	if err != nil || cert.Leaf == nil {
		return nil
	}
	host, _ := splitPort(cfg.Admin.address())
	notes = leafNotes("admin listener", cert.Leaf, host, now)
	chain := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			chain.AddCert(c)
		}
	}
	for _, as := range []struct {
		what  string
		usage x509.ExtKeyUsage
	}{{"server", x509.ExtKeyUsageServerAuth}, {"client", x509.ExtKeyUsageClientAuth}} {
		_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: server.ClientCAs, Intermediates: chain, CurrentTime: now,
			KeyUsages: []x509.ExtKeyUsage{as.usage}})
		if err != nil {
			notes = append(notes, fmt.Sprintf("admin listener: other processes with the same ca will refuse the certificate as a %s's: %v", as.what, err))
		}
	}
	return notes
}

// adminPrincipal is what other processes know this one by, empty without TLS.
func (s *sockets) adminPrincipal() string {
	if s.adminTLS == nil {
		return ""
	}
	cert, err := s.adminTLS.GetCertificate(nil)
	if err != nil || cert.Leaf == nil {
		return ""
	}
	principal, _ := admin.Principal(cert.Leaf)
	return principal
}

// leafNotes says what is wrong with a server's certificate for a host.
func leafNotes(what string, leaf *x509.Certificate, host string, now time.Time) (notes []string) {
	if err := leaf.VerifyHostname(host); err != nil {
		notes = append(notes, fmt.Sprintf("%s: clients connect to %s, and its certificate is not for that name: %v", what, host, err))
	}
	if note := expiryNote(what, leaf.NotAfter, now); note != "" {
		notes = append(notes, note)
	}
	return notes
}

// upstreamTLS is how connections that are forwarded trust brokers: as destination.client does, whatever its own protocol. Its
// certificate is left out, since every client would have kmirror's principal by it.
func (c *Config) upstreamTLS(log *slog.Logger) (func() *tls.Config, error) {
	props := map[string]string{}
	for key, value := range c.Destination.Client {
		if strings.HasPrefix(key, "ssl.") && !strings.HasPrefix(key, "ssl.keystore.") && key != "ssl.key.password" {
			props[key] = value
		}
	}
	props["security.protocol"] = "SSL"
	secure, err := clientconf.ClientTLS(props, log.With("leg", "forwarded connections"))
	if err != nil {
		return nil, usageError("destination.client: "+err.Error(), "correct the configuration")
	}
	return secure, nil
}

// certificateNotes says which certificates clients are going to refuse, unless they were told not to look.
func certificateNotes(cfg *Config, secure map[string]*tls.Config, now time.Time) (notes []string) {
	for _, l := range cfg.Listeners {
		conf := secure[l.Name]
		if conf == nil {
			continue
		}
		_, host, _ := l.endpoint(0)
		notes = append(notes, certificateNote("listener "+l.Name, host, conf, now)...)
	}
	return notes
}

// certificateNote looks at one certificate.
func certificateNote(what, host string, conf *tls.Config, now time.Time) []string {
	cert, err := conf.GetCertificate(nil)
	if err != nil || cert.Leaf == nil {
		return nil
	}
	return leafNotes(what, cert.Leaf, host, now)
}

// wrongProtocols refuses listeners that speak otherwise than those of the same name at the destination's brokers. Passwords would cross
// the network in the clear where brokers have TLS and we do not.
func wrongProtocols(cfg *Config, img *kraft.Image) error {
	var wrong []string
	for _, l := range cfg.Listeners {
		var theirs []string
		for id, b := range img.Brokers {
			if slices.Contains(cfg.NodeIDs, id) {
				continue
			}
			for _, e := range b.Endpoints {
				name := protocolName(e.SecurityProtocol)
				if e.Name == l.Name && !slices.Contains(theirs, name) {
					theirs = append(theirs, name)
				}
			}
		}
		// While brokers are moved from one protocol to another both are right.
		if len(theirs) > 0 && !slices.Contains(theirs, l.Protocol) {
			wrong = append(wrong, fmt.Sprintf("listeners.%s.protocol is %s, the destination's brokers have %s there", l.Name, l.Protocol,
				strings.Join(theirs, " and ")))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return usageError(strings.Join(wrong, "; "), "give the protocol that the brokers have; nothing was registered")
}

// protocolName is the name of a security protocol that brokers register by its number.
func protocolName(id int16) string {
	for name, n := range securityProtocols {
		if n == id {
			return name
		}
	}
	return fmt.Sprintf("protocol %d", id)
}
