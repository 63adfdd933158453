package proxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// fillSlices gives every list of structures, numbers or names in a request one element.
func fillSlices(v reflect.Value) {
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() != reflect.Slice || !f.CanSet() {
			continue
		}
		e := reflect.New(f.Type().Elem()).Elem()
		switch e.Kind() {
		case reflect.Struct:
			fillSlices(e)
		case reflect.Int32:
			e.SetInt(7)
		case reflect.String:
			e.SetString("name")
		default:
			continue
		}
		f.Set(reflect.Append(f, e))
	}
}

// wordless are requests whose answer has no place for the error, or names things otherwise than the request does. Their connection is
// closed. The second value is the last version of which that is true.
var wordless = map[string]int16{
	"CreateAcls": 3, "DeleteAcls": 3, "AlterReplicaLogDirs": 2, "DescribeLogDirs": 2, "AlterUserScramCredentials": 0, "DescribeTransactions": 0,
	"ShareGroupDescribe": 1,
}

// TestRefusalSaysSo: the answer to a refused request is one of its version and has the error.
func TestRefusalSaysSo(t *testing.T) {
	t.Parallel()
	for _, api := range protocol.APIs() {
		if api.Role == protocol.Hidden || api.Key == keyFetch || api.Key == keyApiVersions {
			continue
		}
		for version := api.Min; version <= api.Max; version++ {
			req := kmsg.RequestForKey(api.Key)
			req.SetVersion(version)
			fillSlices(reflect.ValueOf(req).Elem())
			resp, told := refusalOf(req, codeClusterAuthorization)
			if resp.GetVersion() != version {
				t.Errorf("%s v%d: answered in version %d", api.Name, version, resp.GetVersion())
			}
			last, silent := wordless[api.Name]
			if api.Name == "FindCoordinator" {
				silent, last = version >= 4, 6 // its list has another name there
			}
			if want := !silent || version > last; told != want {
				t.Errorf("%s v%d tells the error: %v, want %v", api.Name, version, told, want)
			}
		}
	}
}

// testAuthority signs certificates.
type testAuthority struct{ cert tls.Certificate }

func authorityOf(t *testing.T) testAuthority {
	return testAuthority{testAuthority{}.issue(t, "authority")}
}

// issue makes a certificate, an authority's own for the first.
func (a testAuthority) issue(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour),
		Subject: pkix.Name{CommonName: name}}
	parent, signer := a.cert.Leaf, a.cert.PrivateKey
	if parent == nil {
		parent, signer, tmpl.IsCA, tmpl.BasicConstraintsValid = tmpl, key, true, true
	} else {
		tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// secureBroker replaces the world's brokers by one with TLS, which tells how many certificates each connection shows it.
func (w *world) secureBroker(cert tls.Certificate, shown chan<- int) *testBroker {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	b := &testBroker{t: w.t, id: 1, ln: plain, conns: make(map[net.Conn]struct{})}
	e := b.endpoint()
	e.SecurityProtocol = 1
	b.ln = tls.NewListener(plain, &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert,
		VerifyConnection: func(s tls.ConnectionState) error {
			shown <- len(s.PeerCertificates)
			return nil
		}})
	b.wg.Go(b.serve)
	w.t.Cleanup(b.end)
	w.image.img.Brokers[1].Endpoints[0] = e
	delete(w.image.img.Brokers, 2)
	delete(w.image.img.Brokers, 3)
	return b
}

// always has all connections made with one configuration.
func always(conf *tls.Config) func() *tls.Config { return conf.Clone }

// mutual makes the world's listener one of brokers, who are known by certificates. Those with an "a" in front are brokers.
func mutual(t *testing.T, cert tls.Certificate, auth tls.ClientAuthType, clients bool) func(*world, *Config) {
	return func(w *world, cfg *Config) {
		pool := x509.NewCertPool()
		pool.AddCert(cert.Leaf)
		l := &cfg.Listeners[0]
		l.Listen = tls.NewListener(l.Listen, &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: auth, ClientCAs: pool})
		l.Clients = clients
		l.Peer = func(c *x509.Certificate) (string, bool) {
			return "User:CN=" + c.Subject.CommonName, strings.HasPrefix(c.Subject.CommonName, "a")
		}
		cfg.UpstreamTLS = always(&tls.Config{InsecureSkipVerify: true})
		cfg.PeerTLS = always(&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}})
	}
}

// dialTLS connects with a certificate, or with none, and does the handshake.
func (w *world) dialTLS(certs ...tls.Certificate) *client {
	w.t.Helper()
	c := w.dial()
	secure := tls.Client(c.nc, &tls.Config{InsecureSkipVerify: true, Certificates: certs})
	if err := secure.Handshake(); err != nil {
		w.t.Fatal(err)
	}
	c.nc = secure
	return c
}

type peerCounter struct {
	NopObserver
	refused atomic.Int32
}

func (o *peerCounter) PeerRefused(string) { o.refused.Add(1) }

func TestPeersAreKnownByCertificates(t *testing.T) {
	t.Parallel()
	ca := authorityOf(t)
	broker, stranger := ca.issue(t, "a broker"), ca.issue(t, "stranger")
	var counter peerCounter
	w := newWorld(t, mutual(t, ca.cert, tls.RequireAndVerifyClientCert, false), func(_ *world, cfg *Config) { cfg.Observer = &counter })
	w.server.replicaFetch = emptyFetch
	for name, c := range map[string]struct {
		cert tls.Certificate
		want int16
	}{"a broker": {broker, 0}, "a stranger": {stranger, codeClusterAuthorization}} {
		p := w.dialTLS(c.cert)
		if got := p.ask(replicaFetchRequest()).(*kmsg.FetchResponse).ErrorCode; got != c.want {
			t.Errorf("%s fetches as a replica: %d, want %d", name, got, c.want)
		}
	}
	before := len(w.upstreamRequests())
	for range 3 {
		p := w.dialTLS(stranger)
		old := replicaFetchRequest().(*kmsg.FetchRequest)
		old.Version, old.Topics = 6, fetchRequest(6, "m", 20).Topics
		if got := firstFetched(p.ask(old).(*kmsg.FetchResponse)).ErrorCode; got != codeTopicAuthorization {
			t.Errorf("Fetch v6: %d", got)
		}
		for name, req := range judged(t) {
			if _, ok := req.req.(*kmsg.FetchRequest); ok {
				continue // of consumers too: the whole of it
			}
			resp := p.ask(req.req)
			if !tells(reflect.ValueOf(resp).Elem(), codeClusterAuthorization) {
				t.Errorf("%s: %+v", name, resp)
			}
		}
		if got := p.ask(fetchRequest(13, "", 20)).(*kmsg.FetchResponse).ErrorCode; got != codeClusterAuthorization {
			t.Errorf("Fetch of a consumer: %d", got)
		}
		if got := p.ask(fetchRequest(protocol.MirrorFetchVersion, "m", 20)).(*kmsg.FetchResponse).ErrorCode; got != codeClusterAuthorization {
			t.Errorf("Fetch of KIP-1279: %d", got)
		}
		meta := kmsg.NewPtrMetadataRequest()
		meta.Version = 13
		if got := p.ask(meta).(*kmsg.MetadataResponse); got.ErrorCode != codeClusterAuthorization || len(got.Brokers) > 0 {
			t.Errorf("Metadata: %+v", got)
		}
		p.send(1, kmsg.NewPtrDescribeTransactionsRequest())
		p.closed()
	}
	if n := len(w.upstreamRequests()); n != before {
		t.Errorf("%d requests of a stranger came to brokers", n-before)
	}
	if n := w.log.Lines(`principal="User:CN=stranger"`) + w.log.Lines(`principal=User:CN=stranger`); n != 1 {
		t.Errorf("%d lines name the stranger, want 1", n)
	}
	if n := counter.refused.Load(); n != 4 {
		t.Errorf("%d refused peers were counted, want 4", n)
	}
}

// TestRejudge: when other brokers are allowed than before, the connections of those whom that concerns end, and only those.
func TestRejudge(t *testing.T) {
	t.Parallel()
	ca := authorityOf(t)
	var allow atomic.Pointer[string]
	is := func(name string) { allow.Store(&name) }
	is("one")
	w := newWorld(t, mutual(t, ca.cert, tls.RequireAndVerifyClientCert, false), func(_ *world, cfg *Config) {
		cfg.Listeners[0].Peer = func(c *x509.Certificate) (string, bool) {
			name := c.Subject.CommonName
			return "User:CN=" + name, name == "both" || name == *allow.Load()
		}
	})
	w.server.replicaFetch = emptyFetch
	fetched := func(p *client, want int16) *client {
		t.Helper()
		if got := p.ask(replicaFetchRequest()).(*kmsg.FetchResponse).ErrorCode; got != want {
			t.Errorf("a fetch as a replica is answered with %d, want %d", got, want)
		}
		return p
	}
	certs := map[string]tls.Certificate{}
	for _, name := range []string{"one", "two", "both", "none"} {
		certs[name] = ca.issue(t, name)
	}
	one, two := fetched(w.dialTLS(certs["one"]), 0), fetched(w.dialTLS(certs["two"]), codeClusterAuthorization)
	both, none := fetched(w.dialTLS(certs["both"]), 0), fetched(w.dialTLS(certs["none"]), codeClusterAuthorization)
	is("two")
	if n := w.server.Rejudge(); n != 2 {
		t.Errorf("%d connections were cut, want 2", n)
	}
	one.closed()
	two.closed()
	fetched(both, 0)
	fetched(none, codeClusterAuthorization)
	fetched(w.dialTLS(certs["one"]), codeClusterAuthorization)
	fetched(w.dialTLS(certs["two"]), 0)
	if n := w.server.Rejudge(); n != 0 {
		t.Errorf("%d connections were cut for nothing", n)
	}
}

func TestNobodyWithoutACertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mutual(t, authorityOf(t).cert, tls.RequireAndVerifyClientCert, false))
	w.dialTLS().closed()
	eventually(t, "a line", func() bool { return w.log.Lines("didn't provide a certificate") == 1 })
	if w.log.Lines("have to show a certificate") != 1 {
		t.Error("the line does not say what is wanted")
	}
}

// TestBrokersGoOnAsKmirror: what a broker sends on goes to the others under our certificate; nobody else's does.
func TestBrokersGoOnAsKmirror(t *testing.T) {
	t.Parallel()
	ca := authorityOf(t)
	for _, c := range []struct {
		name    string
		auth    tls.ClientAuthType
		clients bool
		certs   []tls.Certificate
		shown   int
		fetch   int16
	}{
		{"a broker", tls.RequireAndVerifyClientCert, false, []tls.Certificate{ca.issue(t, "a broker")}, 1, 0},
		{"a broker among clients", tls.VerifyClientCertIfGiven, true, []tls.Certificate{ca.issue(t, "a broker")}, 1, 0},
		{"a client", tls.VerifyClientCertIfGiven, true, nil, 0, codeClusterAuthorization},
		{"a client with a certificate", tls.VerifyClientCertIfGiven, true, []tls.Certificate{ca.issue(t, "client")}, 0, codeClusterAuthorization},
	} {
		t.Run(c.name, func(t *testing.T) {
			shown := make(chan int, 10)
			w := newWorld(t, mutual(t, ca.cert, c.auth, c.clients), func(w *world, _ *Config) {
				w.secureBroker(ca.issue(t, "broker 1"), shown).on(grants(t, mayAll, nil))
			})
			w.server.replicaFetch = emptyFetch
			p := w.dialTLS(c.certs...)
			p.ask(kmsg.NewPtrFindCoordinatorRequest())
			if n := <-shown; n != c.shown {
				t.Errorf("%d certificates were shown to a broker, want %d", n, c.shown)
			}
			if got := p.ask(replicaFetchRequest()).(*kmsg.FetchResponse).ErrorCode; got != c.fetch {
				t.Errorf("fetch as a replica: %d, want %d", got, c.fetch)
			}
		})
	}
}
