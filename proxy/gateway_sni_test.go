package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// nameGate is a gateway that tells a world's brokers apart by server name. Its certificate is for *.kafka.example.com.
type nameGate struct {
	*world
	addr string
	pool *x509.CertPool
}

const bootstrapName = "all.kafka.example.com"

func wildcard(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"*.kafka.example.com"}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pool
}

func newNameGate(t *testing.T) *nameGate {
	t.Helper()
	g := &nameGate{world: newWorld(t)}
	cert, pool := wildcard(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.addr, g.pool = ln.Addr().String(), pool
	ours := net.TCPAddrFromAddrPort(mustAddr(t, g.world.addr))
	g.image.edit(func(img *kraft.Image) {
		img.Brokers[node].Endpoints = []kraft.Endpoint{{Name: "CLIENT", Host: "127.0.0.1", Port: uint16(ours.Port)}}
	})
	gw, err := NewGateway(GatewayConfig{
		Fronts: []Front{{Name: "CLIENT", Listen: ln, Host: "127.0.0.1", Port: uint16(ln.Addr().(*net.TCPAddr).Port), AdvertisedHost: bootstrapName,
			Names: testNames(t), TLS: &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }}}},
		Images: g.image, Mirrors: fakeMirrors{"m": "east"}, Guest: func(id int32) bool { return id >= 9000 }, DrainTimeout: 20 * time.Second,
		Log: slog.New(slog.NewTextHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- gw.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for _, b := range g.brokers {
		b.on(clusterMetadata(g.world))
	}
	return g
}

// to connects with a server name; "" asks for none.
func (g *nameGate) to(name string, change ...func(*tls.Config)) (*client, error) {
	g.t.Helper()
	conf := &tls.Config{ServerName: name, RootCAs: g.pool, InsecureSkipVerify: name == ""}
	for _, f := range change {
		f(conf)
	}
	nc, err := tls.DialWithDialer(&net.Dialer{Timeout: soon}, "tcp", g.addr, conf)
	if err != nil {
		return nil, err
	}
	g.t.Cleanup(func() { nc.Close() })
	return &client{t: g.t, nc: nc, id: "test"}, nil
}

func (g *nameGate) must(name string, change ...func(*tls.Config)) *client {
	g.t.Helper()
	c, err := g.to(name, change...)
	if err != nil {
		g.t.Fatalf("%q: %v", name, err)
	}
	return c
}

func TestServerNamesLeadToTheirBrokers(t *testing.T) {
	t.Parallel()
	g := newNameGate(t)
	for _, at := range []struct {
		name string
		id   int32
	}{{"b1.kafka.example.com", 1}, {"B2.Kafka.Example.COM", 2}, {"b3.kafka.example.com", 3}} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			before := len(g.brokers[at.id].requests())
			m := g.must(at.name, func(c *tls.Config) { c.MinVersion, c.MaxVersion = version, version }).ask(metadataRequest()).(*kmsg.MetadataResponse)
			var told []string
			for _, b := range m.Brokers {
				told = append(told, fmt.Sprintf("%d=%s:%d", b.NodeID, b.Host, b.Port))
			}
			slices.Sort(told)
			want := []string{"1=b1.kafka.example.com:9443", "2=b2.kafka.example.com:9443", "3=b3.kafka.example.com:9443",
				"9001=b9001.kafka.example.com:9443"}
			if !slices.Equal(told, want) {
				t.Errorf("brokers %v, want %v", told, want)
			}
			if n := len(g.brokers[at.id].requests()) - before; n != 1 {
				t.Errorf("%s: broker %d got %d requests", at.name, at.id, n)
			}
		}
	}
	if r := g.must("b9001.kafka.example.com").ask(kmsg.NewPtrListGroupsRequest()).(*kmsg.ListGroupsResponse); r.ErrorCode != 0 {
		t.Errorf("ListGroups of our node: %d", r.ErrorCode)
	}
	before := len(g.upstreamRequests())
	for range 6 {
		g.must(bootstrapName).ask(metadataRequest())
	}
	if n := len(g.upstreamRequests()) - before; n != 6 {
		t.Errorf("%d of 6 bootstrap requests came to real brokers", n)
	}
}

func TestOtherServerNamesAreRefused(t *testing.T) {
	t.Parallel()
	g := newNameGate(t)
	for _, name := range []string{"", "other.kafka.example.com", "b01.kafka.example.com", "b7.kafka.example.com", "kafka.example.com",
		"b1.kafka.example.org"} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			_, err := g.to(name, func(c *tls.Config) { c.MinVersion, c.MaxVersion, c.InsecureSkipVerify = version, version, true })
			if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
				t.Errorf("%q with TLS %x: %v", name, version, err)
			}
		}
	}
	if n := g.log.Lines("served are all.kafka.example.com and, for brokers that are registered with listener CLIENT, b{id}.kafka.example.com"); n != 1 {
		t.Errorf("%d lines name what is served, want one", n)
	}
	for _, b := range g.brokers {
		if b.connections() > 0 {
			t.Errorf("broker %d was dialled", b.id)
		}
	}
}

// anySession offers the session of one name to another.
type anySession struct{ tls.ClientSessionCache }

func (s anySession) Get(string) (*tls.ClientSessionState, bool)  { return s.ClientSessionCache.Get("") }
func (s anySession) Put(_ string, state *tls.ClientSessionState) { s.ClientSessionCache.Put("", state) }

// TestSessionsDontCarryNames: a session that was resumed stands for the name that is asked for now.
func TestSessionsDontCarryNames(t *testing.T) {
	t.Parallel()
	g := newNameGate(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cache := anySession{tls.NewLRUClientSessionCache(1)}
		with := func(c *tls.Config) {
			c.MinVersion, c.MaxVersion, c.ClientSessionCache, c.InsecureSkipVerify = version, version, cache, true
		}
		g.must("b1.kafka.example.com", with).ask(metadataRequest())
		before := len(g.brokers[2].requests())
		c := g.must("b2.kafka.example.com", with)
		c.ask(metadataRequest())
		t.Logf("TLS %x: resumed %v", version, c.nc.(*tls.Conn).ConnectionState().DidResume)
		if len(g.brokers[2].requests()) != before+1 {
			t.Error("the session's broker was asked")
		}
		if _, err := g.to("other.kafka.example.com", with); err == nil {
			t.Error("a name that is not served was let in with a session")
		}
	}
}

// TestNamedBrokersMoveComeAndGo: a name stands for the broker wherever it is, and for nobody once it is unregistered.
func TestNamedBrokersMoveComeAndGo(t *testing.T) {
	t.Parallel()
	g := newNameGate(t)
	moved := startBroker(t, 1)
	g.image.edit(func(img *kraft.Image) {
		img.Brokers[1].Epoch++
		img.Brokers[1].Endpoints = []kraft.Endpoint{moved.endpoint()}
	})
	g.must("b1.kafka.example.com").ask(metadataRequest())
	if len(moved.requests()) != 1 {
		t.Error("the new address was not reached")
	}
	late := startBroker(t, 7)
	g.image.edit(func(img *kraft.Image) {
		img.Brokers[7] = &kraft.Broker{ID: 7, Epoch: 7, Endpoints: []kraft.Endpoint{late.endpoint()}}
	})
	pending, proceed := gateOf(t)
	late.on(func(h protocol.RequestHeader, _ []byte) kmsg.Response { <-pending; return echo(h) })
	c, req := g.must("b7.kafka.example.com"), metadataRequest()
	c.send(9, req)
	eventually(t, "the request is there", func() bool { return len(late.requests()) == 1 })
	eventually(t, "the broker is known", func() bool { return g.log.Lines("gateway serves a broker") == 5 })
	g.image.edit(func(img *kraft.Image) { delete(img.Brokers, 7) })
	eventually(t, "refused", func() bool { _, err := g.to("b7.kafka.example.com"); return err != nil })
	eventually(t, "closed", func() bool { return g.log.Lines("gateway closed for a broker") == 1 })
	proceed()
	if corr, _ := c.receive(req); corr != 9 {
		t.Errorf("correlation id %d", corr)
	}
	c.closed()
	if n := g.log.Lines("certificate is not for the name"); n != 0 {
		t.Errorf("%d warnings of the certificate", n)
	}
}

// TestNamesNeedACertificate: what clients would refuse is said for each broker.
func TestNamesNeedACertificate(t *testing.T) {
	g := newNameGate(t)
	cert, _ := wildcard(t)
	f := testFront()
	f.open, f.g.s.log = map[int32]*port{}, slog.New(slog.NewTextHandler(g.log, nil))
	f.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }}
	f.Names, _ = ParseNames("b{id}.elsewhere.example.com", 1)
	f.greet(1)
	if n := g.log.Lines("have one signed for *.elsewhere.example.com and gateway.example"); n != 1 {
		t.Errorf("%d lines say what is wrong with the certificate", n)
	}
	f.TLS = nil
	if _, err := NewGateway(GatewayConfig{Fronts: []Front{{Name: "A", Listen: noListener{}, Port: 1, AdvertisedHost: "h",
		Names: f.Names}}, Images: g.image,
		Mirrors: fakeMirrors{}, Guest: func(int32) bool { return false }}); err == nil {
		t.Error("names without TLS are taken")
	}
}

type noListener struct{ net.Listener }
