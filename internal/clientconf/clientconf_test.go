package clientconf

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secret must not show in any error or warning.
const secret = "hunter2-S3cr3t"

func TestParseProperties(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       map[string]string
	}{
		{"plain", "a=1\nb: 2\nc 3\nd\ne=\n", map[string]string{"a": "1", "b": "2", "c": "3", "d": "", "e": ""}},
		{"comments", "# x=1\n! y=2\n  # z=3\n\na=b # c", map[string]string{"a": "b # c"}},
		{"spaces", "  a  =  b  \n\tc\t:\td", map[string]string{"a": "b  ", "c": "d"}},
		{"continuation", "a=b,\\\n   c,\\\r\n d\ne=f\\\\\ng=h", map[string]string{"a": "b,c,d", "e": `f\`, "g": "h"}},
		{"continuation at the end", "a=b\\", map[string]string{"a": "b"}},
		{"escapes", `a\=b\:c\ d=\t\n\u0041\uD83D\uDE00\q`, map[string]string{"a=b:c d": "\t\nA😀q"}},
		{"last one wins", "a=1\na=2", map[string]string{"a": "2"}},
		{"value with separators", `j=M required user="a=b:c";`, map[string]string{"j": `M required user="a=b:c";`}},
		{"carriage returns", "a=1\rb=2", map[string]string{"a": "1", "b": "2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := ParseProperties(strings.NewReader(c.text)); err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	_, err := ParseProperties(strings.NewReader("ok=1\npassword=" + secret + `\u12`))
	if err == nil || !strings.Contains(err.Error(), "line 2") || strings.Contains(err.Error(), secret) {
		t.Errorf("bad escape: %v", err)
	}
	if _, err := ParseProperties(strings.NewReader(strings.Repeat("x", maxFile+1))); err == nil {
		t.Error("a file without end is read")
	}
}

func FuzzParseProperties(f *testing.F) {
	for _, s := range []string{"a=b", "a\\\n=b", `\u0041:\uD83D\uDE00`, "!x\n#y\r\nz", `a\`, "=", ":=", " \\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseProperties(strings.NewReader(s))
		if err != nil && got != nil {
			t.Error("a result next to an error")
		}
	})
}

func FuzzParseJAAS(f *testing.F) {
	f.Add(`org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password='b\'c';`)
	f.Add(`m f a=b`)
	f.Fuzz(func(t *testing.T, s string) {
		j, err := parseJAAS(s)
		if err == nil && (j.module == "" && !strings.ContainsAny(s, `"'`)) {
			t.Error("accepted without a module")
		}
	})
}

func TestParseJAAS(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       map[string]string
		err        string
	}{
		{"usual", `x.PlainLoginModule required username="al" password="p w";`, map[string]string{"username": "al", "password": "p w"}, ""},
		{"no semicolon", `M required a=b`, map[string]string{"a": "b"}, ""},
		{"lines and spaces", "M\n required\n a = b\n c=\"d\" ;\n", map[string]string{"a": "b", "c": "d"}, ""},
		{"escaped quote", `M required p="a\"b\\c=;d";`, map[string]string{"p": `a"b\c=;d`}, ""},
		{"single quotes", `M required p='a"b';`, map[string]string{"p": `a"b`}, ""},
		{"reference", `M required p="${file:/a b:c}";`, map[string]string{"p": "${file:/a b:c}"}, ""},
		{"no options", `M required;`, map[string]string{}, ""},
		{"empty", ``, nil, "login module"},
		{"no flag", `M`, nil, "control flag"},
		{"open quote", `M required p="` + secret, nil, "not closed"},
		{"no value", `M required p=;`, nil, "value"},
		{"no equals", `M required ` + secret + ` x`, nil, "= is missing"},
		{"two modules", `M required a=b; N required c="` + secret + `";`, nil, "more than one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, err := parseJAAS(c.text)
			if c.err == "" && (err != nil || !reflect.DeepEqual(j.options, c.want)) {
				t.Errorf("got %v, %v", j, err)
			}
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), secret)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestResolve(t *testing.T) {
	whole := write(t, "secret", secret+"\n")
	props := write(t, "props", "user=al\npassword="+secret+"\n")
	t.Setenv("KMIRROR_TEST_SECRET", "${env:HOME}")
	for in, want := range map[string]string{
		"plain": "plain", "${file:" + whole + "}": secret, "a ${file:" + props + ":user} b": "a al b",
		"${env:KMIRROR_TEST_SECRET}": "${env:HOME}", // what is found is not looked into
		"$env:X {file:y}":            "$env:X {file:y}",
	} {
		if got, err := Resolve(in); err != nil || got != want {
			t.Errorf("%s: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"${file:/none/at/all}", "${file:" + props + ":nokey}", "${env:KMIRROR_TEST_NOT_SET}", "${file:/none:x}"} {
		got, err := Resolve(in + " " + "${file:" + whole + "}")
		if err == nil || got != "" || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %q, %v", in, got, err)
		}
	}
}

func TestCheckSecrets(t *testing.T) {
	for _, c := range []struct {
		name  string
		props map[string]string
		bad   []string
	}{
		{"none", map[string]string{"bootstrap.servers": "a:1"}, nil},
		{"references", map[string]string{
			"sasl.jaas.config": `M required username="al" password="${env:P}";`, "ssl.keystore.key": "${file:/k}", "ssl.key.password": "",
		}, nil},
		{"whole reference", map[string]string{"sasl.jaas.config": "${file:/jaas}"}, nil},
		{"password", map[string]string{"sasl.jaas.config": `M required username="al" password="` + secret + `";`}, []string{"sasl.jaas.config"}},
		{"of the source's kmirror", map[string]string{RemoteAdminPrefix + "ssl.key.password": secret}, []string{RemoteAdminPrefix + "ssl.key.password"}},
		{"half a reference", map[string]string{"sasl.jaas.config": `M required password="` + secret + `${env:P}";`}, []string{"sasl.jaas.config"}},
		{"option that is not known", map[string]string{"sasl.jaas.config": `M required token=` + secret}, []string{"sasl.jaas.config"}},
		{"not parsable", map[string]string{"sasl.jaas.config": `M required "` + secret}, []string{"sasl.jaas.config"}},
		{"several", map[string]string{"ssl.key.password": secret, "ssl.keystore.key": secret}, []string{"ssl.key.password", "ssl.keystore.key"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := CheckSecrets(c.props)
			if (err == nil) != (c.bad == nil) {
				t.Fatalf("got %v", err)
			}
			for _, key := range c.bad {
				if !strings.Contains(err.Error(), key) || strings.Contains(err.Error(), secret) {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

func TestOptionsRefuse(t *testing.T) {
	jaas := `M required username="al" password="` + secret + `";`
	for name, c := range map[string]struct {
		props map[string]string
		part  string
	}{
		"bootstrap":    {map[string]string{"bootstrap.servers": "host"}, "host:port"},
		"no bootstrap": {map[string]string{"bootstrap.servers": " , "}, "no host:port"},
		"port":         {map[string]string{"bootstrap.servers": "a:70000"}, "host:port"},
		"protocol":     {map[string]string{"security.protocol": secret}, "security.protocol"},
		"no mechanism": {map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": jaas}, "sasl.mechanism is missing"},
		"mechanism": {map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "sasl.jaas.config": jaas},
			"only PLAIN"},
		"no jaas": {map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config is missing"},
		"no password": {map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
			"sasl.jaas.config": `M required username="x";`}, "no password"},
		"oauth": {map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
			"sasl.jaas.config": jaas}, "token"},
		"broken reference": {map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
			"sasl.jaas.config": "${env:KMIRROR_TEST_NOT_SET}"}, "KMIRROR_TEST_NOT_SET"},
		"timeout":  {map[string]string{"request.timeout.ms": "soon"}, "request.timeout.ms"},
		"JKS":      {map[string]string{"security.protocol": "SSL", "ssl.truststore.location": "/x.jks"}, "/x.jks"},
		"no PEM":   {map[string]string{"security.protocol": "SSL", "ssl.truststore.certificates": secret}, "no PEM"},
		"no store": {map[string]string{"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "/none"}, "/none"},
		"old TLS":  {map[string]string{"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.2"},
		"key":      {map[string]string{"security.protocol": "SSL", "ssl.keystore.key": secret}, "ssl.keystore"},
		"encrypted key": {map[string]string{"security.protocol": "SSL",
			"ssl.keystore.key": "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"}, "encrypted"},
		"algorithm": {map[string]string{"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "x"}, "https or empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Options(c.props, nil)
			if err == nil || !strings.Contains(err.Error(), c.part) || strings.Contains(err.Error(), secret) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestOptionsAccept(t *testing.T) {
	t.Setenv("KMIRROR_TEST_SECRET", `a"b\c`)
	jaas := `M required username="al" password="${env:KMIRROR_TEST_SECRET}" token="${env:KMIRROR_TEST_SECRET}";`
	for _, mech := range []string{"PLAIN", "SCRAM-SHA-256", "scram-sha-512", "OAUTHBEARER"} {
		opts, warnings, err := Options(map[string]string{
			"bootstrap.servers": "a:1, [::1]:2", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mech, "sasl.jaas.config": jaas,
			"client.id": "me", "request.timeout.ms": "1", "connections.max.idle.ms": "999999999", "metadata.max.age.ms": "1",
			"socket.connection.setup.timeout.ms": "10000", "mirror.fetch.max.bytes": "1", "group.id": "g", "ssl.key.password": "",
		}, nil)
		if err != nil || len(warnings) != 2 || !strings.Contains(warnings[0], "group.id") || !strings.Contains(warnings[1], "ssl.key.password") {
			t.Fatalf("%s: %v, %v", mech, warnings, err)
		}
		if err := kgo.ValidateOpts(opts...); err != nil {
			t.Errorf("%s: %v", mech, err)
		}
	}
	if user, pass, err := credentials(jaas, "username", "password"); err != nil || user != "al" || pass != `a"b\c` {
		t.Errorf("%q %q %v", user, pass, err)
	}
}

// A secret is read when it is used, so that a rotated one needs no restart.
func TestSecretsAreResolvedAtUse(t *testing.T) {
	path := write(t, "jaas", `M required username="al" password="old";`)
	for _, want := range []string{"old", "new"} {
		if err := os.WriteFile(path, []byte(`M required username="al" password="`+want+`";`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, pass, err := credentials("${file:"+path+"}", "username", "password"); err != nil || pass != want {
			t.Errorf("%q, %v; want %s", pass, err, want)
		}
	}
}

// certificate makes a self-signed certificate for a host name and returns it as PEM with its key.
func certificate(t *testing.T, host string) (cert, key string) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &priv.PublicKey, priv)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

// clientSide is the configuration of one connection by client properties.
func clientSide(t *testing.T, props map[string]string) *tls.Config {
	t.Helper()
	conf, err := ClientTLS(props, nil)
	if err != nil {
		t.Fatal(err)
	}
	return conf()
}

func TestTLSHandshake(t *testing.T) {
	cert, key := certificate(t, "broker.test")
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(cert))
	server := &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	stranger, _ := certificate(t, "broker.test")
	base := map[string]string{"security.protocol": "SSL", "ssl.truststore.certificates": cert, "ssl.truststore.type": "PEM",
		"ssl.keystore.type": "PEM", "ssl.keystore.location": write(t, "keystore.pem", key+cert)}
	with := func(kv ...string) map[string]string {
		out := map[string]string{}
		for k, v := range base {
			out[k] = v
		}
		for i := 0; i < len(kv); i += 2 {
			out[kv[i]] = kv[i+1]
		}
		return out
	}
	for _, c := range []struct {
		name, host string
		props      map[string]string
		ok         bool
	}{
		{"right host", "broker.test", base, true},
		{"wrong host", "other.test", base, false},
		{"wrong host, not looked at", "other.test", with("ssl.endpoint.identification.algorithm", ""), true},
		{"stranger, host not looked at", "broker.test", with("ssl.endpoint.identification.algorithm", "", "ssl.truststore.certificates",
			stranger), false},
		{"stranger", "broker.test", with("ssl.truststore.certificates", stranger), false},
		{"TLS 1.3 only", "broker.test", with("ssl.enabled.protocols", "TLSv1.3"), true},
		{"TLS 1.2 only", "broker.test", with("ssl.enabled.protocols", "TLSv1.2"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := clientSide(t, c.props)
			conf.ServerName = c.host
			// A pipe without buffers would hang where both sides want to send an alert.
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				if conn, err := l.Accept(); err == nil {
					defer conn.Close()
					_ = tls.Server(conn, server).Handshake() // the client's view is the one that counts
				}
			}()
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			err = tls.Client(conn, conf).Handshake()
			conn.Close()
			<-done
			if (err == nil) != c.ok {
				t.Errorf("got %v", err)
			}
		})
	}
	if conf, err := ClientTLS(map[string]string{}, nil); conf != nil || err != nil {
		t.Errorf("no TLS: %v %v", conf != nil, err)
	}
}

// TestShownHasNoSecrets: references stay as they are, and what should be one and is not does not show.
func TestShownHasNoSecrets(t *testing.T) {
	props := map[string]string{
		"bootstrap.servers": "a:1", "mirror.topics.include": "orders.*", "ssl.key.password": "${env:HOME}",
		"sasl.jaas.config": `M required username="al" password="${env:HOME}";`, "sasl.oauthbearer.client.credentials.client.id": "km",
		"sasl.oauthbearer.token.endpoint.url": "https://idp/token", "ssl.truststore.password": "",
	}
	if got := Shown(props); !maps.Equal(got, props) {
		t.Errorf("got %v", got)
	}
	for key, value := range map[string]string{
		"ssl.key.password": "x", RemoteAdminPrefix + "ssl.keystore.password": "x", "ssl.keystore.key": "x", "some.Password": "x",
		"sasl.jaas.config": `M required password="x";`, "sasl.oauthbearer.assertion.private.key.passphrase": "x",
	} {
		if got := Shown(map[string]string{key: value}); got[key] != "****" {
			t.Errorf("%s is shown: %v", key, got)
		}
	}
}
