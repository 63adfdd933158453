package clientconf

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kmirror/internal/quiet"
)

// serverFiles writes a certificate for a host and its key.
func serverFiles(t *testing.T, f ServerFiles, host string) {
	t.Helper()
	cert, key := certificate(t, host)
	for name, text := range map[string]string{f.Certificate: cert, f.Key: key} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServerTLSFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	f := ServerFiles{filepath.Join(dir, "crt"), filepath.Join(dir, "key")}
	serverFiles(t, f, "first")
	var lines bytes.Buffer
	now := time.Now()
	r := &renewing{files: f, now: func() time.Time { return now },
		quiet: quiet.New(slog.New(slog.NewTextHandler(&lines, nil)), time.Minute, func() time.Time { return now })}
	if err := r.read(); err != nil {
		t.Fatal(err)
	}
	serves := func(want string) {
		t.Helper()
		cert, err := r.certificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if leaf, err := x509.ParseCertificate(cert.Certificate[0]); err != nil || leaf.Subject.CommonName != want {
			t.Errorf("serves %v, %v; want %s", leaf.Subject, err, want)
		}
	}
	serves("first")
	serverFiles(t, f, "second")
	serves("first") // looked at a moment ago
	now = now.Add(recheck)
	serves("second")
	_, stranger := certificate(t, "third")
	if err := os.WriteFile(f.Key, []byte(stranger), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		now = now.Add(recheck)
		serves("second")
	}
	if n := strings.Count(lines.String(), "can't be used"); n != 1 {
		t.Errorf("%d lines about a key that does not fit:\n%s", n, lines.String())
	}
	os.Remove(f.Certificate)
	now = now.Add(recheck)
	serves("second")
	serverFiles(t, f, "fourth") // after a failure it is read as soon as it is good
	now = now.Add(recheck)
	serves("fourth")
}

func TestServerTLSRefuses(t *testing.T) {
	cert, key := certificate(t, "a")
	_, other := certificate(t, "a")
	sealed := "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
	for name, c := range map[string]struct{ cert, key, part string }{
		"good": {cert, key, ""}, "both in one": {cert + key, "", ""}, "another's key": {cert, other, "private key"},
		"no key": {cert, "", "private key"}, "encrypted": {cert, sealed, "openssl pkey"}, "no certificate": {"x", key, "failed to find"},
	} {
		t.Run(name, func(t *testing.T) {
			f := ServerFiles{Certificate: write(t, "crt", c.cert)}
			if c.key != "" {
				f.Key = write(t, "key", c.key)
			}
			conf, err := ServerTLS(f, slog.New(slog.DiscardHandler))
			switch {
			case c.part == "" && (err != nil || conf.MinVersion != tls.VersionTLS12 || conf.ClientAuth != tls.NoClientCert):
				t.Errorf("got %+v, %v", conf, err)
			case c.part != "" && (err == nil || !strings.Contains(err.Error(), c.part) || strings.Contains(err.Error(), "AAAA")):
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := ServerTLS(ServerFiles{"/none/at/all", ""}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("files that are not there")
	}
}
