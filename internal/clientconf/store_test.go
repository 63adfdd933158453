package clientconf

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// stores returns properties that name files of testdata/stores.
func stores(t *testing.T, more ...string) map[string]string {
	t.Helper()
	t.Setenv("KMIRROR_TEST_STORE", "store-secret")
	t.Setenv("KMIRROR_TEST_KEY", "key-secret")
	props := map[string]string{"security.protocol": "SSL"}
	for i := 0; i < len(more); i += 2 {
		v := more[i+1]
		if strings.HasSuffix(more[i], ".location") {
			v = filepath.Join("testdata", "stores", v)
		}
		props[more[i]] = v
	}
	return props
}

const (
	trustPass = "ssl.truststore.password"
	storePass = "ssl.keystore.password"
	env       = "${env:KMIRROR_TEST_STORE}"
)

// TestJavaStores: stores that keytool made are read in both formats, whatever of the two the type says, and serve a handshake in which
// both sides prove who they are.
func TestJavaStores(t *testing.T) {
	server := clientSide(t, stores(t, "ssl.keystore.location", "key.p12", storePass, env))
	ca, err := os.ReadFile(filepath.Join("testdata", "stores", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	server.ClientCAs.AppendCertsFromPEM(ca)
	for name, props := range map[string]map[string]string{
		"JKS": stores(t, "ssl.truststore.type", "JKS", "ssl.truststore.location", "trust.jks", trustPass, env,
			"ssl.keystore.type", "JKS", "ssl.keystore.location", "key.jks", storePass, env, "ssl.key.password", "${env:KMIRROR_TEST_KEY}"),
		"PKCS12": stores(t, "ssl.truststore.type", "PKCS12", "ssl.truststore.location", "trust.p12", trustPass, env,
			"ssl.keystore.type", "pkcs12", "ssl.keystore.location", "key.p12", storePass, env),
		"no type": stores(t, "ssl.truststore.location", "trust.p12", trustPass, env, "ssl.keystore.location", "key.jks", storePass, env,
			"ssl.key.password", "${env:KMIRROR_TEST_KEY}"),
		"PEM next to JKS": stores(t, "ssl.truststore.type", "PEM", "ssl.truststore.location", "ca.pem",
			"ssl.keystore.location", "key.jks", storePass, env, "ssl.key.password", "${env:KMIRROR_TEST_KEY}"),
	} {
		t.Run(name, func(t *testing.T) {
			client := clientSide(t, props)
			client.ServerName = "127.0.0.1"
			a, b := net.Pipe()
			defer a.Close()
			defer b.Close()
			done := make(chan error, 1)
			s := tls.Server(b, server)
			go func() { done <- s.Handshake() }()
			c := tls.Client(a, client)
			if err := c.Handshake(); err != nil {
				t.Fatalf("client: %v", err)
			}
			if err := <-done; err != nil {
				t.Fatalf("server: %v", err)
			}
			if n := len(s.ConnectionState().PeerCertificates); n != 2 {
				t.Errorf("the client showed %d certificates, want its own and the authority's", n)
			}
		})
	}
}

// TestJavaStoresRefused: what can't be opened is refused with the property to correct, and without any secret.
func TestJavaStoresRefused(t *testing.T) {
	t.Setenv("KMIRROR_TEST_WRONG", "wrong-secret")
	const wrong = "${env:KMIRROR_TEST_WRONG}"
	cut := filepath.Join(t.TempDir(), "cut.jks")
	whole, err := os.ReadFile(filepath.Join("testdata", "stores", "key.jks"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	half := stores(t, storePass, env)
	half["ssl.keystore.location"] = cut
	for name, c := range map[string]struct {
		props map[string]string
		part  string
	}{
		"type":             {stores(t, "ssl.truststore.type", "BKS", "ssl.truststore.location", "trust.jks"), "PEM, PKCS12 or JKS"},
		"JKS password":     {stores(t, "ssl.truststore.location", "trust.jks", trustPass, wrong), "ssl.truststore.password"},
		"PKCS12 password":  {stores(t, "ssl.truststore.location", "trust.p12", trustPass, wrong), "ssl.truststore.password"},
		"key password":     {stores(t, "ssl.keystore.location", "key.jks", storePass, env, "ssl.key.password", wrong), "ssl.key.password"},
		"keys to trust":    {stores(t, "ssl.truststore.location", "key.jks", trustPass, env), "no trusted certificate"},
		"no key":           {stores(t, "ssl.keystore.location", "trust.jks", storePass, env), "no private key"},
		"PEM taken for it": {stores(t, "ssl.truststore.location", "ca.pem"), "ssl.truststore"},
		"cut off":          {half, "cut off"},
		"broken reference": {stores(t, "ssl.truststore.location", "trust.jks", trustPass, "${env:KMIRROR_NOT_SET}"), "KMIRROR_NOT_SET"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ClientTLS(c.props, nil)
			if err == nil || !strings.Contains(err.Error(), c.part) || strings.Contains(err.Error(), "-secret") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// FuzzJKS opens JKS files of any bytes: no panic, and nothing is allocated that a file only claims to hold. PKCS12 is the library's: how
// often it derives a key is up to the file, which makes random ones take for ever.
func FuzzJKS(f *testing.F) {
	for _, name := range []string{"trust.jks", "key.jks"} {
		raw, err := os.ReadFile(filepath.Join("testdata", "stores", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte("\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := &javaStore{what: "ssl.truststore", raw: bytes.Clone(raw), password: "store-secret", keys: "key-secret"}
		if ks, err := s.jks(); ks == nil && err == nil {
			return
		}
		certs, err := s.trusted()
		if err == nil && len(certs) == 0 {
			t.Error("an empty store was opened")
		}
		if c, err := s.certificate(); err == nil && (len(c.Certificate) == 0 || c.PrivateKey == nil) {
			t.Errorf("%d certificates, key %v", len(c.Certificate), c.PrivateKey)
		}
	})
}
