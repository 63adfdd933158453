package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kmirror/internal/coordinator"
	"kmirror/internal/lockbuf"
)

// certified writes a file with a key and a certificate of its own that ends then.
func certified(t *testing.T, path string, end time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.AddDate(-1, 0, 0), NotAfter: end, DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})...)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// keystore are client properties that show a certificate.
func keystore(path string) map[string]string {
	return map[string]string{"security.protocol": "SSL", "ssl.keystore.type": "PEM", "ssl.keystore.location": path}
}

// The metric tells of every certificate that is shown, and follows the files as connections do.
func TestCertificateMetric(t *testing.T) {
	dir, now := t.TempDir(), time.Now().Truncate(time.Second)
	in := func(days int) time.Time { return now.AddDate(0, 0, days) }
	file := map[string]string{}
	for i, name := range []string{"listener", "first", "second", "admin", "client", "replication", "mirror"} {
		file[name] = filepath.Join(dir, name+".pem")
		certified(t, file[name], in(10*(i+1)))
	}
	c := &Config{Listeners: []ListenerConfig{{Name: "A", TLS: &TLSFiles{Certificate: file["listener"]}}, {Name: "PLAIN"}},
		Gateway: []GatewayConfig{{Name: "A", TLS: &TLSFiles{Certificate: file["second"]}}, {Name: "A", TLS: &TLSFiles{Certificate: file["first"]}},
			{Name: "A", TLS: &TLSFiles{Certificate: file["second"]}}, {Name: "B"}},
		Admin: AdminConfig{TLS: &TLSFiles{Certificate: file["admin"], CA: "none"}},
		Destination: DestinationConfig{Client: keystore(file["client"]), ReplicationClient: keystore(file["replication"]),
			ControllerClient: map[string]string{"security.protocol": "PLAINTEXT", "ssl.keystore.location": "none"}}}
	own, err := c.certificates()
	if err != nil {
		t.Fatal(err)
	}
	mirrors := []coordinator.Mirror{{Name: "m", Config: keystore(file["mirror"])}, {Name: "broken", Config: keystore("none")},
		{Name: "plain", Config: map[string]string{"bootstrap.servers": "a:1"}}}
	kept := &mirrorCertificates{mirrors: func() []coordinator.Mirror { return mirrors }}
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCertificateCollector(func() []shownCertificate { return append(own[:len(own):len(own)], kept.list()...) }))
	wants := func(days map[string]int) {
		t.Helper()
		got := scrape(t, registry)
		for where, n := range days {
			if name := "kmirror_certificate_expiry_timestamp_seconds{where=" + where + "}"; got[name] != float64(in(n).Unix()) {
				t.Errorf("%s: %v, want %d", name, got[name], in(n).Unix())
			}
		}
		if len(got) != len(days) {
			t.Errorf("got %v", got)
		}
	}
	days := map[string]int{"listener A": 10, "gateway A": 20, "admin": 40, "destination.client": 50, "destination.replication_client": 60,
		"mirror m": 70}
	wants(days)
	certified(t, file["mirror"], in(700))
	certified(t, file["client"], in(500))
	days["mirror m"], days["destination.client"] = 700, 500
	wants(days)
	mirrors[0].Config = keystore(file["admin"])
	days["mirror m"] = 40
	wants(days)
	mirrors = nil
	delete(days, "mirror m")
	wants(days)

	broken := &Config{Destination: DestinationConfig{Client: keystore("none")}}
	if _, err := broken.certificates(); err == nil || !strings.Contains(err.Error(), "destination.client") {
		t.Error(err)
	}
}

// A process that runs says once a day which certificates end soon, or have ended.
func TestExpiryIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		at := func(end time.Time) func() (time.Time, bool) { return func() (time.Time, bool) { return end, true } }
		all := []shownCertificate{{"a", at(start.AddDate(0, 0, 16).Add(time.Hour))}, {"b", func() (time.Time, bool) { return time.Time{}, false }}}
		var log lockbuf.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			tellExpiry(ctx, func() []shownCertificate { return all }, slog.New(slog.NewTextHandler(&log, nil)))
		}()
		for day := range 18 {
			time.Sleep(24*time.Hour + time.Second)
			synctest.Wait()
			wants, until := "", all[0].where+": the certificate is valid until"
			switch {
			case day >= 16:
				wants = "the certificate has expired, it was valid until"
			case day >= 2:
				wants = until
			}
			if got := log.Take(); strings.Count(got, "\n") != min(1, len(wants)) || !strings.Contains(got, wants) {
				t.Error(fmt.Sprintf("day %d:", day), got)
			}
		}
		cancel()
		<-done
	})
}

// What is presented as a client has a note at the start too.
func TestPresentedCertificatesHaveNotes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "own.pem")
	certified(t, path, time.Now().Add(time.Hour))
	c, err := parseConfig([]byte(aloneConfig), nil)
	if err != nil {
		t.Fatal(err)
	}
	c.HTTP, c.Gateway[0].Bootstrap = "", "127.0.0.1:0"
	c.Destination.ControllerClient = keystore(path)
	s, err := openSockets(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if len(s.notes) != 1 || !strings.HasPrefix(s.notes[0], "destination.controller_client: the certificate is valid until") {
		t.Errorf("%q", s.notes)
	}
	looked, err := c.lookedCertificates(keystore(path))
	if err != nil || len(looked) != 2 || looked[1].Where != "mirror-config" || time.Until(looked[1].End) > time.Hour {
		t.Errorf("%+v, %v", looked, err)
	}
}
