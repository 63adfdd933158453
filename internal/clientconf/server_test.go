package clientconf

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
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
	f := ServerFiles{Certificate: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key")}
	serverFiles(t, f, "first")
	var lines bytes.Buffer
	r, err := f.follow(recheck, slog.New(slog.NewTextHandler(&lines, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	r.now, r.quiet = func() time.Time { return now }, quiet.New(r.log, time.Minute, nil)
	serves := func(want string) {
		t.Helper()
		if leaf, err := x509.ParseCertificate(r.get().certificate.Certificate[0]); err != nil || leaf.Subject.CommonName != want {
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
	if _, err := ServerTLS(ServerFiles{Certificate: "/none/at/all"}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("files that are not there")
	}
}

// shakeHands connects a client and a server and returns what the server says.
func shakeHands(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	defer func() { <-done }()
	go func() {
		defer close(done)
		conn, err := tls.Dial("tcp", l.Addr().String(), client)
		if err == nil {
			conn.Read(make([]byte, 1)) // the server's last word
			conn.Close()
		}
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return tls.Server(conn, server).HandshakeContext(t.Context())
}

func TestMutualTLSFollowsItsAuthorities(t *testing.T) {
	dir := t.TempDir()
	one := ServerFiles{Certificate: filepath.Join(dir, "1.crt"), Key: filepath.Join(dir, "1.key"), CA: filepath.Join(dir, "ca")}
	two := ServerFiles{Certificate: filepath.Join(dir, "2.crt"), Key: filepath.Join(dir, "2.key"), CA: one.CA}
	serverFiles(t, one, "one")
	serverFiles(t, two, "two")
	trust := func(files ...string) {
		var all []byte
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, text...)
		}
		if err := os.WriteFile(one.CA, all, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	both := func() (server, client *tls.Config) {
		server, err := ServerTLS(one, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		peer, err := PeerTLS(two, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		client = peer()
		client.ServerName = "one"
		return server, client
	}
	trust(one.Certificate, two.Certificate)
	server, client := both()
	if err := shakeHands(t, server, client); err != nil {
		t.Errorf("two that trust each other: %v", err)
	}
	other := client.Clone()
	other.ServerName = "three"
	if err := shakeHands(t, server, other); err == nil {
		t.Error("a server by another name")
	}
	other = client.Clone()
	other.GetClientCertificate = nil
	if err := shakeHands(t, server, other); err == nil {
		t.Error("a client without a certificate")
	}
	trust(two.Certificate)
	if _, client = both(); shakeHands(t, server, client) == nil {
		t.Error("a server that the client trusts no more")
	}
	trust(one.Certificate)
	if server, _ = both(); shakeHands(t, server, client) == nil {
		t.Error("a client that the server trusts no more")
	}
	trust(one.Certificate, two.Certificate)
	r, err := one.follow(recheck, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := r.get().authorities
	trust(two.Certificate)
	if !r.get().authorities.Equal(before) {
		t.Error("looked at again at once")
	}
	r.now = func() time.Time { return time.Now().Add(recheck) }
	if after := r.get().authorities; after.Equal(before) {
		t.Error("changed authorities are not seen")
	}
	if _, err := PeerTLS(ServerFiles{Certificate: one.Certificate, Key: one.Key}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("no authorities")
	}
	one.CA = one.Key
	if _, err := ServerTLS(one, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "no PEM certificate") {
		t.Errorf("a key for authorities: %v", err)
	}
}

// TestServerTLSFromStores: a server whose certificate and authorities are in stores that keytool made asks for certificates and knows them.
func TestServerTLSFromStores(t *testing.T) {
	client := clientSide(t, stores(t, "ssl.truststore.location", "trust.p12", trustPass, env, "ssl.keystore.location", "key.p12", storePass, env))
	client.ServerName = "127.0.0.1"
	at := func(name string) string { return filepath.Join("testdata", "stores", name) }
	const key = "${env:KMIRROR_TEST_KEY}"
	for name, c := range map[string]struct {
		f    ServerFiles
		part string
	}{
		"PKCS12":        {ServerFiles{Certificate: at("key.p12"), CA: at("trust.p12"), Password: env}, ""},
		"JKS":           {ServerFiles{Certificate: at("key.jks"), CA: at("trust.jks"), Password: env, KeyPassword: key}, ""},
		"mixed":         {ServerFiles{Certificate: at("key.jks"), CA: at("ca.pem"), Password: env, KeyPassword: key}, ""},
		"other ca":      {ServerFiles{Certificate: at("key.p12"), CA: at("trust.jks"), Password: env, CAPassword: env}, ""},
		"no password":   {ServerFiles{Certificate: at("key.p12")}, "password opens"},
		"wrong":         {ServerFiles{Certificate: at("key.jks"), Password: env}, "is key_password right"},
		"wrong for ca":  {ServerFiles{Certificate: at("key.p12"), CA: at("trust.p12"), Password: env, CAPassword: key}, "ca_password opens"},
		"literal":       {ServerFiles{Certificate: at("key.p12"), Password: "store-secret"}, "must refer to the secret"},
		"key apart":     {ServerFiles{Certificate: at("key.p12"), Key: at("key.p12"), Password: env}, "leave key out"},
		"no such value": {ServerFiles{Certificate: at("key.p12"), Password: "${env:KMIRROR_NOT_THERE}"}, "KMIRROR_NOT_THERE"},
	} {
		t.Run(name, func(t *testing.T) {
			server, err := ServerTLS(c.f, slog.New(slog.DiscardHandler))
			if c.part != "" {
				if err == nil || !strings.Contains(err.Error(), c.part) || strings.Contains(err.Error(), "-secret") {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if cert, err := server.GetCertificate(nil); err != nil || cert.Leaf == nil {
				t.Errorf("the certificate can't be looked at: %v", err)
			}
			if err := shakeHands(t, server, client); err != nil {
				t.Errorf("a client with a certificate: %v", err)
			}
			if err := shakeHands(t, server, &tls.Config{InsecureSkipVerify: true}); err == nil {
				t.Error("a client without a certificate is let in")
			}
		})
	}
}

// TestServerTLSFollowsAStore: a store is read again when it is exchanged, with the password of then.
func TestServerTLSFollowsAStore(t *testing.T) {
	dir := t.TempDir()
	f := ServerFiles{Certificate: filepath.Join(dir, "store"), Password: "${file:" + filepath.Join(dir, "password") + "}",
		KeyPassword: "${env:KMIRROR_TEST_KEY}"}
	t.Setenv("KMIRROR_TEST_KEY", "store-secret") // of PKCS12 it is the store's
	put := func(store, password string) {
		t.Helper()
		var err error
		if store != "" {
			var raw []byte
			if raw, err = os.ReadFile(filepath.Join("testdata", "stores", store)); err == nil {
				err = os.WriteFile(f.Certificate, raw, 0o600)
			}
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "password"), []byte(password), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put("key.p12", "store-secret")
	r, err := f.follow(recheck, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	r.now = func() time.Time { return now }
	first := r.get().certificate
	t.Setenv("KMIRROR_TEST_KEY", "key-secret")
	put("key.jks", "not yet")
	now = now.Add(recheck)
	if r.get().certificate != first {
		t.Error("a store that can't be opened replaced one that could")
	}
	put("", "store-secret") // which is no part of the store, but of what is made of it
	now = now.Add(recheck)
	if r.get().certificate == first {
		t.Error("the new store is not read")
	}
}
