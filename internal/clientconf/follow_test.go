package clientconf

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// issuer signs certificates.
type issuer struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newIssuer(t *testing.T, name string) *issuer {
	t.Helper()
	text, key := certificate(t, name)
	pair, err := tls.X509KeyPair([]byte(text), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{t: t, cert: pair.Leaf, key: pair.PrivateKey.(*ecdsa.PrivateKey), pem: text}
}

// issue makes a certificate and its key in one PEM text; change may alter what is signed.
func (i *issuer) issue(name string, change func(*x509.Certificate)) string {
	i.t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name, "localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if change != nil {
		change(tmpl)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, i.cert, &priv.PublicKey, i.key)
	if err != nil {
		i.t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		i.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})) +
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func pairOf(t *testing.T, text string) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair([]byte(text), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// connect makes a connection of secure to host at a server, and returns what the client says of it and whom the server saw.
func connect(t *testing.T, server *tls.Config, secure func() *tls.Config, host string) (shown string, err error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	seen := make(chan string, 1)
	go func() {
		defer close(seen)
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		s := tls.Server(nc, server)
		if s.Handshake() == nil {
			for _, c := range s.ConnectionState().PeerCertificates {
				seen <- c.Subject.CommonName
				return
			}
		}
	}()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conf := secure()
	conf.ServerName = host
	err = tls.Client(nc, conf).Handshake()
	nc.Close()
	return <-seen, err
}

// TestServersAreHeldAgainstTheirNames: who is connected to must prove to be the one, by name or address, with a certificate of an authority
// that is trusted, of now, for servers. With no algorithm to identify endpoints only the name is not looked at, as in Java.
func TestServersAreHeldAgainstTheirNames(t *testing.T) {
	ours, stranger := newIssuer(t, "ours"), newIssuer(t, "stranger")
	trust, own := write(t, "ca.pem", ours.pem), write(t, "own.pem", ours.issue("me", nil))
	props := map[string]string{"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": trust,
		"ssl.keystore.type": "PEM", "ssl.keystore.location": own}
	blind := maps.Clone(props)
	blind["ssl.endpoint.identification.algorithm"] = ""
	sides := map[string]func() *tls.Config{}
	for name, p := range map[string]map[string]string{"client": props, "no algorithm": blind} {
		var err error
		if sides[name], err = ClientTLS(p, nil); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if sides["peer"], err = PeerTLS(ServerFiles{Certificate: own, CA: trust}, nil); err != nil {
		t.Fatal(err)
	}
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	for _, c := range []struct {
		name, host string
		server     string
		wrong      string // part of the error
		blind      bool   // whether it is served where names are not looked at
	}{
		{"right name", "broker", ours.issue("broker", nil), "", true},
		{"right address", "127.0.0.1", ours.issue("broker", nil), "", true},
		{"wrong name", "other", ours.issue("broker", nil), "valid for broker, localhost, not other", true},
		{"wrong address", "127.0.0.2", ours.issue("broker", nil), "valid for 127.0.0.1, not 127.0.0.2", true},
		{"name for an address", "127.0.0.1", ours.issue("broker", func(c *x509.Certificate) { c.IPAddresses = nil }), "doesn't contain any IP SANs", true},
		{"common name only", "broker", ours.issue("broker", func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, nil }), "legacy Common Name", true},
		{"expired", "broker", ours.issue("broker", expired), "expired", false},
		{"not yet", "broker", ours.issue("broker", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), "not yet valid", false},
		{"a stranger's", "broker", stranger.issue("broker", nil), "unknown authority", false},
		{"for clients only", "broker", ours.issue("broker", func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] }), "incompatible key usage", false},
	} {
		for side, secure := range sides {
			server := &tls.Config{Certificates: []tls.Certificate{pairOf(t, c.server)}, ClientAuth: tls.RequestClientCert}
			shown, err := connect(t, server, secure, c.host)
			good := c.wrong == "" || c.blind && side == "no algorithm"
			if good != (err == nil) || !good && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s, %s: %v", c.name, side, err)
			}
			if good && shown != "me" {
				t.Errorf("%s, %s: it showed %q", c.name, side, shown)
			}
		}
	}
}

// TestConnectionsFollowTheirStores: a connection is made by what the stores hold then, in whatever way they were exchanged; while they are
// broken, by what they held before, and the log says so.
func TestConnectionsFollowTheirStores(t *testing.T) {
	first, second := newIssuer(t, "first"), newIssuer(t, "second")
	dir := t.TempDir()
	trust, own := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "own.pem")
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(trust, first.pem)
	one := first.issue("one", nil)
	put(own, one)
	var lines bytes.Buffer
	secure, err := ClientTLS(map[string]string{"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": trust,
		"ssl.keystore.type": "PEM", "ssl.keystore.location": own}, slog.New(slog.NewTextHandler(&lines, nil)))
	if err != nil {
		t.Fatal(err)
	}
	old, renewed := pairOf(t, first.issue("broker", nil)), pairOf(t, second.issue("broker", nil))
	check := func(when, wantShown string, cert tls.Certificate, ok bool) {
		t.Helper()
		pool := x509.NewCertPool()
		pool.AddCert(first.cert)
		pool.AddCert(second.cert)
		shown, err := connect(t, &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool},
			secure, "broker")
		if (err == nil) != ok || ok && shown != wantShown {
			t.Errorf("%s: showed %q, %v", when, shown, err)
		}
	}
	check("at first", "one", old, true)
	check("a stranger", "", renewed, false)
	put(trust, first.pem+second.pem)
	check("with both authorities", "one", renewed, true)
	two := second.issue("two", nil)
	put(own, two[:len(two)/2])
	check("half written", "one", old, true)
	put(own, two)
	check("renewed", "two", old, true)
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	check("gone", "two", old, true)
	put(own+".new", first.issue("three", nil))
	if err := os.Rename(own+".new", own); err != nil {
		t.Fatal(err)
	}
	check("moved there", "three", old, true)
	put(trust, second.pem)
	check("no more trusted", "", old, false)
	check("the new authority alone", "three", renewed, true)
	text := lines.String()
	if !strings.Contains(text, "can't be used as they are now; new connections use what was read before: correct the files") ||
		!strings.Contains(text, "were read again") || strings.Contains(text, "PRIVATE") {
		t.Errorf("the log says\n%s", text)
	}
}

// TestStoresFollowWhatTheyReferTo: files behind references are part of a store.
func TestStoresFollowWhatTheyReferTo(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, second := newIssuer(t, "first"), newIssuer(t, "second")
	one := first.issue("one", nil)
	props := map[string]string{"security.protocol": "SSL", "ssl.truststore.certificates": "${file:" + file("ca", first.pem) + "}",
		"ssl.keystore.certificate.chain": "${file:" + file("chain", one) + "}", "ssl.keystore.key": "${file:" + file("key", one) + "}"}
	secure, err := ClientTLS(props, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := secure()
	file("ca", second.pem)
	two := second.issue("two", nil)
	file("chain", two)
	if c := secure(); !c.RootCAs.Equal(before.RootCAs) || c.Certificates[0].Leaf.Subject.CommonName != "one" {
		t.Error("a certificate without its key was taken")
	}
	file("key", two)
	if c := secure(); c.RootCAs.Equal(before.RootCAs) || c.Certificates[0].Leaf.Subject.CommonName != "two" {
		t.Errorf("shows %v", c.Certificates[0].Leaf.Subject)
	}
	if got := filesIn("a${file:/x}b${file:/y:z}${env:HOME}"); strings.Join(got, " ") != "/x /y:z /y" {
		t.Errorf("got %v", got)
	}
}

// TestAFileOfTheSameLookIsReadAgain: neither time nor size tell of a change within a step of the file system's clock.
func TestAFileOfTheSameLookIsReadAgain(t *testing.T) {
	name := write(t, "x", "a")
	at := time.Now()
	reads := 0
	f, err := follow(&followed[string]{names: []string{name}, now: func() time.Time { return at }, make: func() (string, error) {
		reads++
		text, err := os.ReadFile(name)
		return string(text), err
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(name)
	if err == nil {
		err = os.WriteFile(name, []byte("b"), 0o600)
	}
	if err == nil {
		err = os.Chtimes(name, info.ModTime(), info.ModTime())
	}
	if err != nil {
		t.Fatal(err)
	}
	at = at.Add(retry)
	if got := f.get(); got != "b" {
		t.Errorf("got %q", got)
	}
	at = at.Add(2 * youth)
	f.get()
	was := reads
	for range 3 {
		at = at.Add(retry)
		f.get()
	}
	if reads != was {
		t.Errorf("an old file was read %d times more", reads-was)
	}
}
