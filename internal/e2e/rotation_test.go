package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"software.sslmate.com/src/go-pkcs12"

	"kmirror/internal/testkafka"
)

// rotationBed is a source that knows its clients by certificates, and a destination whose brokers ask each other for certificates and for a
// login. kmirror has its own in stores that keytool made: JKS at the source, PKCS12 at the destination.
type rotationBed struct {
	src, dst *testkafka.Cluster
	s        *shim
	dir      string
}

const storePassword = "store-secret"

// TestRotation: authorities and certificates of both clusters, and kmirror's own, are replaced while kmirror runs.
func TestRotation(t *testing.T) {
	onlyInLong(t)
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	b := &rotationBed{dir: t.TempDir()}
	b.source(t)
	b.destination(t)
	createTopic(t, b.src, "orders", 2, nil)
	produce(t, client(t, b.src), "orders", 2, 500, 200)
	b.s.define("m", b.mirrorLines()...)
	b.s.mirror("orders")
	b.s.caughtUp(b.src, 1, 2*time.Minute, "orders")
	sameSegments(t, b.src, b.dst, "orders", 2, 1)
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{{"peers", b.peers}, {"killed and restarted", b.restarted}, {"rotated", b.rotated}, {"broken", b.broken}} {
		t.Run(step.name, func(t *testing.T) {
			b.s.tb = t
			step.run(t)
		})
		if b.s.tb = t; t.Failed() {
			return
		}
	}
}

// wantsCertificates are the properties of a broker's listener where those who connect must show a certificate.
func wantsCertificates(sec *testkafka.Security, listener string) map[string]string {
	l := "listener.name." + strings.ToLower(listener) + ".ssl."
	store := filepath.Join(filepath.Dir(sec.CA()), "brokers.pem")
	return map[string]string{l + "client.auth": "required", l + "truststore.type": "PEM", l + "truststore.location": sec.CA(),
		l + "keystore.type": "PEM", l + "keystore.location": store}
}

func (b *rotationBed) source(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	props := wantsCertificates(sec, "EXTERNAL")
	props["listener.security.protocol.map"] = "CONTROLLER:SASL_PLAINTEXT,CLIENT:SASL_SSL,EXTERNAL:SSL,REPL:SASL_PLAINTEXT"
	b.src = testkafka.Start(t, sec.Secure(testkafka.Options{Name: "src", Listeners: []string{"CLIENT", "EXTERNAL", "REPL"}, Properties: props}))
	grant(t, b.src, "CN="+mirrorUser+"-own", documented(t, "Rights at the source")...)
	b.stores(t, sec, "JKS", mirrorUser)
}

func (b *rotationBed) destination(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	props := wantsCertificates(sec, "REPL")
	props["listener.security.protocol.map"] = "CONTROLLER:SASL_PLAINTEXT,CLIENT:SASL_SSL,REPL:SASL_SSL"
	b.dst = testkafka.Start(t, sec.Secure(testkafka.Options{Name: "dst", Properties: props}))
	addUsers(t, b.dst, kmirrorUser)
	grant(t, b.dst, kmirrorUser, documented(t, "Rights at the destination")...)
	b.stores(t, sec, "PKCS12", kmirrorUser)
	certificate, key, err := sec.Certificate("kmirror-9001")
	if err != nil {
		t.Fatal(err)
	}
	b.s = makeShim(t, b.dst, 9001, "")
	b.s.rewrite("protocol: SASL_PLAINTEXT}", fmt.Sprintf("protocol: SASL_SSL, tls: {certificate: %q, key: %q, ca: %q}}", certificate, key, sec.CA()))
	client, err := sec.References(kmirrorUser)
	if err != nil {
		t.Fatal(err)
	}
	login, err := sec.PlainReferences(kmirrorUser)
	if err != nil {
		t.Fatal(err)
	}
	login["security.protocol"] = "SASL_SSL"
	for key, value := range b.storeProperties("PKCS12") {
		if login[key] = value; strings.HasPrefix(key, "ssl.truststore.") {
			client[key] = value
		}
	}
	var lines []string
	for _, line := range strings.Split(mustRead(t, b.s.config), "\n") {
		for leg, props := range map[string]map[string]string{"client": client, "replication_client": login} {
			if strings.HasPrefix(line, "  "+leg+": ") {
				text, err := json.Marshal(props)
				if err != nil {
					t.Fatal(err)
				}
				line = "  " + leg + ": " + string(text)
			}
		}
		lines = append(lines, line)
	}
	if err := os.WriteFile(b.s.config, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	b.s.start()
}

// mirrorLines are the properties of the mirror.
func (b *rotationBed) mirrorLines() []string {
	lines := []string{brisk, "bootstrap.servers=" + strings.Join(b.src.Bootstrap("EXTERNAL"), ","), "security.protocol=SSL"}
	for key, value := range b.storeProperties("JKS") {
		lines = append(lines, key+"="+value)
	}
	return lines
}

func (b *rotationBed) storeProperties(kind string) map[string]string {
	password := "${file:" + filepath.Join(b.dir, "password") + "}"
	return map[string]string{"ssl.truststore.type": kind, "ssl.truststore.location": filepath.Join(b.dir, "trust."+kind),
		"ssl.truststore.password": password, "ssl.keystore.type": kind, "ssl.keystore.location": filepath.Join(b.dir, "key."+kind),
		"ssl.keystore.password": password}
}

// stores has keytool make a truststore of the authority of a Security, and a keystore with a new certificate of it.
func (b *rotationBed) stores(t *testing.T, sec *testkafka.Security, kind, name string) {
	t.Helper()
	certificate, key, err := sec.Certificate(name + "-own")
	if err == nil {
		err = os.WriteFile(filepath.Join(b.dir, "password"), []byte(storePassword), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := pkcs12.Modern.Encode(pair.PrivateKey, pair.Leaf, []*x509.Certificate{}, storePassword)
	from := filepath.Join(t.TempDir(), "from.p12")
	if err == nil {
		err = os.WriteFile(from, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.keytool(t, "key."+kind, "-importkeystore", "-srckeystore", from, "-srcstoretype", "PKCS12", "-srcstorepass", storePassword,
		"-destkeystore", "INTO", "-deststoretype", kind, "-deststorepass", storePassword)
	b.keytool(t, "trust."+kind, "-importcert", "-noprompt", "-alias", "ca", "-file", sec.CA(), "-keystore", "INTO", "-storetype", kind,
		"-storepass", storePassword)
}

// keytool makes a store and puts it into its place in one step.
func (b *rotationBed) keytool(t *testing.T, store string, args ...string) {
	t.Helper()
	into := filepath.Join(t.TempDir(), store)
	args[slices.Index(args, "INTO")] = into
	if out, err := exec.CommandContext(timeout(t, time.Minute), "keytool", args...).CombinedOutput(); err != nil {
		t.Fatalf("keytool %s: %v %s", args[0], err, out)
	}
	if err := os.Rename(into, filepath.Join(b.dir, store)); err != nil {
		t.Fatal(err)
	}
}

// peers: a listener of brokers with SASL_SSL and a ca wants both, a certificate and the login of somebody who may act as a broker.
func (b *rotationBed) peers(t *testing.T) {
	sec := b.dst.Security()
	shows := func(name string) kgo.Opt {
		conf, err := sec.PeerTLS(name)
		if err != nil {
			t.Fatal(err)
		}
		return kgo.DialTLSConfig(conf)
	}
	if err := replicaFetch(t, b.s.repl, append(sec.PlainOpts(testkafka.AdminUser), shows("somebody"))...); err != nil {
		t.Errorf("with a certificate and a broker's login: %v", err)
	}
	err := replicaFetch(t, b.s.repl, append(sec.PlainOpts(testkafka.FollowerUser), shows("brokers-2"))...)
	if !errors.Is(err, kerr.ClusterAuthorizationFailed) {
		t.Errorf("with a certificate and the login of somebody without rights: %v", err)
	}
	if err = replicaFetch(t, b.s.repl, append(sec.PlainOpts(testkafka.AdminUser), shows(""))...); err == nil || errors.Is(err, kerr.ClusterAuthorizationFailed) {
		t.Errorf("without a certificate: %v", err)
	}
	if err = replicaFetch(t, b.s.repl, shows("somebody")); err == nil {
		t.Error("without a login somebody is served")
	}
}

// restarted: kmirror is away, and comes back as a follower of the real broker, by its PKCS12 store.
func (b *rotationBed) restarted(t *testing.T) {
	b.s.kill()
	b.s.start()
	produce(t, client(t, b.src), "orders", 2, 100, 200)
	b.s.caughtUp(b.src, 1, 2*time.Minute, "orders")
	sameSegments(t, b.src, b.dst, "orders", 2, 1)
}

// rotated: both clusters come back with other authorities, which trust nobody of before, and are trusted by nobody. kmirror finds its way
// back as soon as its files say so.
func (b *rotationBed) rotated(t *testing.T) {
	process, before := b.s.cmd.Process.Pid, b.ends(t)
	for _, c := range []*testkafka.Cluster{b.src, b.dst} {
		stopBroker(t, c, 1)
		if err := c.Security().Rotate(); err != nil {
			t.Fatal(err)
		}
		startBroker(t, c, 1)
	}
	eventually(t, 2*time.Minute, "the new authorities are strangers", func() error {
		if !strings.Contains(mustRead(t, b.s.log), "unknown authority") {
			return errors.New("no such line in the log")
		}
		return nil
	})
	b.stores(t, b.src.Security(), "JKS", mirrorUser)
	b.stores(t, b.dst.Security(), "PKCS12", kmirrorUser)
	if _, _, err := b.dst.Security().Certificate("kmirror-9001"); err != nil { // of its listeners
		t.Fatal(err)
	}
	b.s.ready(2 * time.Minute)
	produce(t, client(t, b.src), "orders", 2, 100, 200)
	b.s.caughtUp(b.src, 1, 2*time.Minute, "orders")
	sameSegments(t, b.src, b.dst, "orders", 2, 1)
	if b.s.cmd.Process.Pid != process {
		t.Error("it is another process")
	}
	eventually(t, 30*time.Second, "the metric of the new certificates", func() error {
		after := b.ends(t)
		for _, where := range []string{"listener CLIENT", "listener REPL", "destination.replication_client", "mirror m"} {
			if before[where] == 0 || after[where] <= before[where] {
				return fmt.Errorf("the certificate of %s ended at %.0f, and now at %.0f", where, before[where], after[where])
			}
		}
		if len(before) != 4 || len(after) != 4 {
			return fmt.Errorf("certificates are told of: %v, then %v", before, after)
		}
		return nil
	})
}

// ends are what kmirror's metrics say of the ends of certificates.
func (b *rotationBed) ends(t *testing.T) map[string]float64 {
	t.Helper()
	resp, err := http.Get("http://" + b.s.http + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	ends := map[string]float64{}
	sample := regexp.MustCompile(`(?m)^kmirror_certificate_expiry_timestamp_seconds\{where="(.*)"\} (.*)$`)
	for _, m := range sample.FindAllStringSubmatch(string(page), -1) {
		if ends[m[1]], err = strconv.ParseFloat(m[2], 64); err != nil {
			t.Fatal(err)
		}
	}
	return ends
}

// broken: while a store is half written, connections are made by what was in it; the log says what to do.
func (b *rotationBed) broken(t *testing.T) {
	name := filepath.Join(b.dir, "key.JKS")
	whole := mustRead(t, name)
	if err := os.WriteFile(name, []byte(whole[:len(whole)/2]), 0o600); err != nil {
		t.Fatal(err)
	}
	stopBroker(t, b.src, 1)
	startBroker(t, b.src, 1)
	produce(t, client(t, b.src), "orders", 2, 100, 200)
	b.s.caughtUp(b.src, 1, 2*time.Minute, "orders")
	if !strings.Contains(mustRead(t, b.s.log), "new connections use what was read before: correct the files") {
		t.Error("the log does not say that the store is broken")
	}
	if err := os.WriteFile(name, []byte(whole), 0o600); err != nil {
		t.Fatal(err)
	}
}
