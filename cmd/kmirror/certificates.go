package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kmirror/internal/clientconf"
	"kmirror/internal/coordinator"
	"kmirror/internal/preflight"
	"kmirror/internal/wait"
)

// expiryInterval is how often a process that runs looks for certificates that end soon.
const expiryInterval = 24 * time.Hour

// shownCertificate is one that kmirror shows to others: where, and the end of what a new connection is shown.
type shownCertificate struct {
	where string
	end   func() (time.Time, bool)
}

// certificates are all that the configuration names. They follow their files as connections do.
func (c *Config) certificates() ([]shownCertificate, error) {
	served, err := c.serverCertificates()
	if err != nil {
		return nil, err
	}
	legs, err := c.clientCertificates()
	return append(served, legs...), err
}

// serverCertificates are those of the process's own listeners.
func (c *Config) serverCertificates() (all []shownCertificate, err error) {
	add := func(where string, files *TLSFiles) {
		if files == nil || err != nil {
			return
		}
		var conf *tls.Config
		if conf, err = clientconf.ServerTLS(files.files(), nil); err != nil {
			err = fmt.Errorf("%s: %w", where, err)
			return
		}
		all = append(all, shownCertificate{where, func() (time.Time, bool) {
			cert, err := conf.GetCertificate(nil)
			if err != nil {
				return time.Time{}, false
			}
			return endOf(*cert)
		}})
	}
	for _, l := range c.Listeners {
		add("listener "+l.Name, l.TLS)
	}
	for _, g := range c.Gateway {
		add("gateway "+g.Name, g.TLS) // nil where it has the listener's
	}
	add("admin", c.Admin.TLS)
	return all, err
}

// clientCertificates are those that connections to the destination show.
func (c *Config) clientCertificates() (all []shownCertificate, err error) {
	for _, leg := range []struct {
		key   string
		props map[string]string
	}{{"client", c.Destination.Client}, {"controller_client", c.Destination.ControllerClient}, {"replication_client", c.Destination.ReplicationClient}} {
		own, err := presented("destination."+leg.key, leg.props)
		if err != nil {
			return nil, err
		}
		all = append(all, own...)
	}
	return all, nil
}

// presented is the one that connections by client properties show, if they have one.
func presented(where string, props map[string]string) ([]shownCertificate, error) {
	secure, err := clientconf.ClientTLS(props, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	if secure == nil || len(secure().Certificates) == 0 {
		return nil, nil
	}
	return []shownCertificate{{where, func() (time.Time, bool) {
		certs := secure().Certificates
		if len(certs) == 0 {
			return time.Time{}, false
		}
		return endOf(certs[0])
	}}}, nil
}

// endOf is the end of a certificate itself, not of the chain above it.
func endOf(cert tls.Certificate) (time.Time, bool) {
	if cert.Leaf != nil {
		return cert.Leaf.NotAfter, true
	}
	if len(cert.Certificate) == 0 {
		return time.Time{}, false
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return time.Time{}, false
	}
	return leaf.NotAfter, true
}

// expiryNote says that a certificate has expired or will soon, empty where neither is so.
func expiryNote(what string, end, now time.Time) string {
	switch until := end.UTC().Format(time.RFC3339); {
	case !end.After(now):
		return fmt.Sprintf("%s: the certificate has expired, it was valid until %s", what, until)
	case end.Before(now.Add(preflight.ExpiresSoon)):
		return fmt.Sprintf("%s: the certificate is valid until %s", what, until)
	}
	return ""
}

// expiryNotes are those of certificates.
func expiryNotes(all []shownCertificate, now time.Time) (notes []string) {
	for _, s := range all {
		if end, ok := s.end(); ok {
			if note := expiryNote(s.where, end, now); note != "" {
				notes = append(notes, note)
			}
		}
	}
	return notes
}

// tellExpiry says once a day which certificates want to be replaced; the start has said it of those that the configuration names.
func tellExpiry(ctx context.Context, all func() []shownCertificate, log *slog.Logger) {
	for wait.For(ctx, expiryInterval) {
		for _, note := range expiryNotes(all(), time.Now()) {
			log.Warn(note)
		}
	}
}

// lookedCertificates are those that preflight judges, with that of a mirror's properties where there are some.
func (c *Config) lookedCertificates(mirror map[string]string) (list []preflight.Certificate, err error) {
	all, err := c.certificates()
	if err == nil && mirror != nil {
		var own []shownCertificate
		own, err = presented("mirror-config", mirror)
		all = append(all, own...)
	}
	for _, s := range all {
		if end, ok := s.end(); ok {
			list = append(list, preflight.Certificate{Where: s.where, End: end})
		}
	}
	return list, err
}

// mirrorCertificates are those that mirrors show to their sources. What is made of a mirror's properties is kept while they are the same.
type mirrorCertificates struct {
	mirrors func() []coordinator.Mirror

	mu   sync.Mutex
	kept map[string]mirrorCertificate
}

type mirrorCertificate struct {
	props map[string]string
	made  []shownCertificate
}

// list returns those of now. What can't be read is left out: describe says what is wrong with such a mirror.
func (m *mirrorCertificates) list() (all []shownCertificate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := map[string]mirrorCertificate{}
	for _, d := range m.mirrors() {
		c, ok := m.kept[d.Name]
		if !ok || !maps.Equal(c.props, d.Config) {
			own, err := presented("mirror "+d.Name, d.Config)
			if err != nil {
				continue // and tried again when somebody asks again
			}
			c = mirrorCertificate{maps.Clone(d.Config), own}
		}
		next[d.Name] = c
		all = append(all, c.made...)
	}
	m.kept = next
	return all
}

// certificateCollector reads the ends of certificates when it is scraped.
type certificateCollector struct {
	list func() []shownCertificate
	desc *prometheus.Desc
}

func newCertificateCollector(list func() []shownCertificate) *certificateCollector {
	return &certificateCollector{list, prometheus.NewDesc("kmirror_certificate_expiry_timestamp_seconds",
		"Unix time of the end of a certificate that kmirror shows.", []string{"where"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *certificateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector. Of several at one place, such as gateways of one name, it is the first to end.
func (c *certificateCollector) Collect(ch chan<- prometheus.Metric) {
	ends := map[string]time.Time{}
	for _, s := range c.list() {
		if end, ok := s.end(); ok && (ends[s.where].IsZero() || end.Before(ends[s.where])) {
			ends[s.where] = end
		}
	}
	for _, where := range slices.Sorted(maps.Keys(ends)) {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(ends[where].Unix()), where)
	}
}

// certificatesSide finds the certificates of the process and has the metrics tell of them.
func (p *process) certificatesSide() error {
	own, err := p.cfg.certificates()
	if err != nil {
		return usageError(err.Error(), "correct the configuration")
	}
	p.certificates = func() []shownCertificate { return own }
	if p.store != nil {
		mirrors := &mirrorCertificates{mirrors: p.store.Mirrors}
		p.certificates = func() []shownCertificate { return slices.Concat(own, mirrors.list()) }
	}
	p.metrics.registry.MustRegister(newCertificateCollector(p.certificates))
	return nil
}
