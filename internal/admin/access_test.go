package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"kmirror/internal/clientconf"
	"kmirror/internal/coordinator"
	"kmirror/internal/lockbuf"
	"kmirror/internal/peers"
	"kmirror/internal/testkafka"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// guarded is a server that serves User:CN=sre only.
type guarded struct {
	sec     *testkafka.Security
	server  *Server
	address string
	lines   *lockbuf.Buffer
	stop    func()
}

func serveGuarded(t *testing.T, f *fake) *guarded {
	t.Helper()
	sec := testkafka.NewSecurity(t)
	g := &guarded{sec: sec}
	conf, err := clientconf.ServerTLS(g.files(t, "km1"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	g.server, g.address, g.lines, g.stop = startServer(t, Config{Service: f, TLS: conf, Allow: []string{"User:CN=sre"},
		Pong: func() peers.Pong { return peers.Pong{ProcessID: "p"} }})
	return g
}

// files are a new certificate of the server's authority.
func (g *guarded) files(t *testing.T, name string) clientconf.ServerFiles {
	t.Helper()
	certificate, key, err := g.sec.Certificate(name)
	if err != nil {
		t.Fatal(err)
	}
	return clientconf.ServerFiles{Certificate: certificate, Key: key, CA: g.sec.CA()}
}

// tls is the client's side of somebody with such a certificate.
func (g *guarded) tls(t *testing.T, name string) *tls.Config {
	t.Helper()
	conf, err := clientconf.PeerTLS(g.files(t, name), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return conf()
}

// dial is a client with a TLS configuration, nil for none.
func (g *guarded) dial(t *testing.T, conf *tls.Config) *Client {
	t.Helper()
	cfg := ClientConfig{Addresses: []string{g.address}, DialTimeout: 30 * time.Second}
	if conf != nil {
		cfg.TLS = conf.Clone
	}
	c, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestOnlyThoseInAllowAreServed(t *testing.T) {
	f := &fake{mirrors: []MirrorInfo{{Mirror: "m"}}}
	g := serveGuarded(t, f)
	ctx := t.Context()
	good := g.dial(t, g.tls(t, "sre"))
	config := map[string]string{"bootstrap.servers": "a:1"}
	if err := good.CreateMirror(ctx, "m", config); err != nil {
		t.Errorf("one in allow: %v", err)
	}
	if !strings.Contains(g.lines.String(), "verb=create principal=\"User:CN=sre\"") {
		t.Errorf("no audit line names the principal:\n%s", g.lines)
	}
	other := g.dial(t, g.tls(t, "dev"))
	list := []string{"t"}
	for name, call := range map[string]func() error{
		"create": func() error { return other.CreateMirror(ctx, "n", config) },
		"start":  func() error { _, err := other.StartTopics(ctx, StartRequest{Mirror: "m", Topics: list}); return err },
		"stop":   func() error { _, err := other.StopTopics(ctx, StopRequest{Mirror: "m", Topics: list}); return err },
		"pause":  func() error { _, err := other.PauseTopics(ctx, TopicsRequest{Mirror: "m", Topics: list}); return err },
		"resume": func() error { _, err := other.ResumeTopics(ctx, TopicsRequest{Mirror: "m", Topics: list}); return err },
		"recover": func() error {
			_, err := other.RecoverTopics(ctx, TopicsRequest{Mirror: "m", Topics: list})
			return err
		},
		"delete":   func() error { return other.DeleteMirror(ctx, DeleteRequest{Mirror: "m"}) },
		"list":     func() error { _, err := other.ListMirrors(ctx, false); return err },
		"describe": func() error { _, err := other.Describe(ctx, DescribeRequest{}); return err },
		"lookup":   func() error { _, err := other.LastMirrorEpochs(ctx, "c", []protocol.PartitionID{{}}); return err },
		"bump": func() error {
			_, err := other.BumpLeaderEpochs(ctx, map[protocol.PartitionID]int32{{}: 1})
			return err
		},
		"verify": func() error { _, err := other.Call(ctx, "verify", []byte("{}")); return err },
		"retire": func() error { _, err := other.Retire(ctx, RetireRequest{NodeIDs: []int32{1}}); return err },
	} {
		var e *Error
		want := kip1279.ClusterMirrorAuthorizationError
		if slices.Contains([]string{"bump", "verify", "retire"}, name) { // not about a mirror
			want = kip1279.ClusterAuthorizationFailed
		}
		if err := call(); !errors.As(err, &e) || e.Code != want || e.Exit != ExitUnreachable ||
			!strings.Contains(e.Hint, `add "User:CN=dev" to admin.allow`) {
			t.Errorf("%s of one who is not in allow: %+v", name, err)
		}
	}
	if len(f.created) != 1 || len(f.started) != 0 || len(f.life) != 0 || len(f.asked) != 0 {
		t.Errorf("something was done: %+v", f)
	}
	if n := strings.Count(g.lines.String(), "admin request refused"); n != 1 {
		t.Errorf("%d lines of refusals:\n%s", n, g.lines)
	}
}

func TestWhoIsNotKnownIsTold(t *testing.T) {
	g := serveGuarded(t, &fake{})
	other := testkafka.NewSecurity(t)
	certificate, key, err := other.Certificate("sre")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*tls.Config)) *tls.Config {
		c := g.tls(t, "sre")
		change(c)
		return c
	}
	// A server's list of authorities keeps Go from sending another's certificate, so it is forced here.
	forced := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	for name, c := range map[string]struct {
		tls  *tls.Config
		want string
	}{
		"plain":          {nil, "it may want TLS"},
		"no certificate": {with(func(c *tls.Config) { c.GetClientCertificate = nil }), "refuses our certificate"},
		"no certificate, TLS 1.2": {with(func(c *tls.Config) { c.GetClientCertificate, c.MaxVersion = nil, tls.VersionTLS12 }),
			"refuses our certificate"},
		"another authority's": {with(func(c *tls.Config) { c.GetClientCertificate = forced }), "refuses our certificate"},
		"does not trust us":   {&tls.Config{GetClientCertificate: forced, MinVersion: tls.VersionTLS12}, "is not trusted"},
	} {
		_, err := g.dial(t, c.tls).ListMirrors(t.Context(), false)
		var e *Error
		if !errors.As(err, &e) || e.Exit != ExitUnreachable || !strings.Contains(e.Message, c.want) || !strings.Contains(e.Hint, "--command-config") {
			t.Errorf("%s: %+v", name, err)
		}
	}
	for _, want := range []string{"have it use security.protocol=SSL", "admin.tls.ca signed"} {
		if n := strings.Count(g.lines.String(), want); n != 1 {
			t.Errorf("%d lines with %q:\n%s", n, want, g.lines)
		}
	}
	address, _, _ := serve(t, &fake{})
	c, err := NewClient(ClientConfig{Addresses: []string{address}, TLS: g.tls(t, "sre").Clone})
	if err != nil {
		t.Fatal(err)
	}
	var e *Error
	if _, err := c.ListMirrors(t.Context(), false); !errors.As(err, &e) || !strings.Contains(e.Message, "does not speak TLS") {
		t.Errorf("TLS to a listener without: %v", err)
	}
}

func TestPingOfAProcessThatIsNotAllowed(t *testing.T) {
	g := serveGuarded(t, &fake{})
	good := NewPeers(ClientConfig{TLS: g.tls(t, "sre").Clone, DialTimeout: 30 * time.Second})
	defer good.Close()
	if pong, err := good.Ping(t.Context(), g.address); err != nil || pong.ProcessID != "p" {
		t.Errorf("got %+v, %v", pong, err)
	}
	other := NewPeers(ClientConfig{TLS: g.tls(t, "km2").Clone, DialTimeout: 30 * time.Second})
	defer other.Close()
	for range 2 {
		if _, err := other.Ping(t.Context(), g.address); !errors.Is(err, peers.ErrRefused) || !strings.Contains(err.Error(), `add "User:CN=km2" to`) {
			t.Errorf("got %v", err)
		}
	}
	g.stop()
	if _, err := other.Ping(t.Context(), g.address); err == nil || errors.Is(err, peers.ErrRefused) {
		t.Errorf("of one that is gone: %v", err)
	}
}

func TestShutdownDoesNotWaitForHandshakes(t *testing.T) {
	g := serveGuarded(t, &fake{})
	conn, err := net.Dial("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// Once this one is served, the one before it was accepted.
	if _, err := g.dial(t, g.tls(t, "sre")).ListMirrors(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { g.stop(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(8 * time.Second): // a handshake has ten
		t.Error("it waits")
	}
}

func TestNewRefusesTLSWithoutClientCertificates(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := New(Config{Listen: l, Service: &fake{}, TLS: &tls.Config{}}); err == nil {
		t.Error("no error")
	}
}

// TestAllowChanges: from the next request on, on connections too that are open.
func TestAllowChanges(t *testing.T) {
	g := serveGuarded(t, &fake{})
	sre, dev := g.dial(t, g.tls(t, "sre")), g.dial(t, g.tls(t, "dev"))
	served := func(c *Client) bool {
		_, err := c.ListMirrors(t.Context(), false)
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Exit != ExitUnreachable) {
			t.Fatal(err)
		}
		return err == nil
	}
	if !served(sre) || served(dev) {
		t.Fatal("allow is not what it was made with")
	}
	list := []string{"User:CN=dev"}
	g.server.SetAllow(list)
	list[0] = "User:CN=sre"
	if served(sre) || !served(dev) {
		t.Error("allow has not changed")
	}
}

func (f *fake) SyncStatus(context.Context, []string) ([]SyncInfo, error) { return nil, nil }

// TestQuestionsAreAudited: with who asked, once for a verb and connection, and not again where another process passes on what it was asked.
func TestQuestionsAreAudited(t *testing.T) {
	f := &fake{}
	g := serveGuarded(t, f)
	c := g.dial(t, g.tls(t, "sre"))
	ctx := t.Context()
	ask := func(c *Client) {
		for range 3 {
			c.ListMirrors(ctx, true)
			c.Describe(ctx, DescribeRequest{Mirrors: []string{"m"}, Topics: []string{"orders"}})
			c.SyncStatus(ctx, []string{"m"})
			c.Call(ctx, VerbVerify, []byte("{}"))
			c.Call(ctx, VerbPing, []byte("{}"))
		}
	}
	ask(c)
	for verb, extra := range map[string]string{"list": "", "describe": "mirrors=[m] topics=[orders]", "verify": ""} {
		n := 0
		for line := range strings.Lines(g.lines.String()) {
			if strings.Contains(line, "audit=true verb="+verb+" ") && strings.Contains(line, `principal="User:CN=sre"`) && strings.Contains(line, extra) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s: %d lines\n%s", verb, n, g.lines)
		}
	}
	before := strings.Count(g.lines.String(), "audit=true")
	ask(g.dial(t, g.tls(t, "sre")))
	if more := strings.Count(g.lines.String(), "audit=true") - before; more != 3 {
		t.Errorf("another connection has %d lines", more)
	}
	peer, err := NewClient(ClientConfig{Addresses: []string{g.address}, TLS: g.tls(t, "sre").Clone, ClientID: PeerClientID})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.Close)
	before = strings.Count(g.lines.String(), "audit=true")
	ask(peer)
	if more := strings.Count(g.lines.String(), "audit=true") - before; more != 0 {
		t.Errorf("what a process passes on has %d lines", more)
	}
}

// TestVerbsThatAreMadeUp: a client that asks for any number of them costs a line each for the first only.
func TestVerbsThatAreMadeUp(t *testing.T) {
	address, lines, _ := serve(t, &fake{})
	c := dial(t, address)
	for i := range 2 * maxSeen {
		c.Call(t.Context(), fmt.Sprint("v", i), []byte("{}"))
	}
	if n := strings.Count(lines.String(), "audit=true"); n != maxSeen {
		t.Errorf("%d lines", n)
	}
}

// TestWhatProcessesAskIsAudited: changes that are meant for processes leave a line for each that somebody else asks for, and one for each
// connection of a process.
func TestWhatProcessesAskIsAudited(t *testing.T) {
	address, lines, _ := serveWith(t, Config{Service: &fake{mirrors: []MirrorInfo{{Mirror: "m"}}},
		States: &owner{states: map[protocol.PartitionID]coordinator.PartitionState{}}, Uncordon: func(context.Context) error { return nil }})
	operator := dial(t, address)
	process, err := NewClient(ClientConfig{Addresses: []string{address}, ClientID: PeerClientID})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Close)
	for _, verb := range []string{VerbWriteRecords, VerbUncordon} {
		for range 3 {
			for _, c := range []*Client{operator, process} {
				if _, err := c.Call(t.Context(), verb, []byte("{}")); err != nil {
					t.Fatal(err)
				}
			}
		}
		of, forwarded := 0, 0
		for line := range strings.Lines(lines.String()) {
			if strings.Contains(line, "audit=true verb="+verb+" ") {
				if of++; strings.Contains(line, "forwarded=true") {
					forwarded++
				}
			}
		}
		if of != 4 || forwarded != 1 {
			t.Errorf("%s: %d lines, %d of the process, want 4 and 1\n%s", verb, of, forwarded, lines)
		}
	}
}
