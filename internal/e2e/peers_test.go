package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// peersBed is a destination whose brokers and controllers know each other, and kmirror, by certificates.
type peersBed struct {
	sec      *testkafka.Security
	src, dst *testkafka.Cluster
	s        *shim
}

// TestPeers mirrors into a cluster where ssl.client.auth=required holds between brokers and to controllers.
func TestPeers(t *testing.T) {
	onlyInLong(t)
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	sec := testkafka.NewSecurity(t)
	b := &peersBed{sec: sec, src: testkafka.Start(t, testkafka.Options{Name: "src"}),
		dst: testkafka.Start(t, sec.Mutual(testkafka.Options{Name: "dst", Brokers: 2, Combined: 1}))}
	addUsers(t, b.dst, kmirrorUser)
	for _, principal := range []string{kmirrorUser, "CN=" + kmirrorUser} {
		grant(t, b.dst, principal, documented(t, "Rights at the destination")...)
	}
	createTopic(t, b.src, "orders", 2, nil)
	produce(t, client(t, b.src), "orders", 2, 500, 200)
	b.s = newShim(t, b.dst, "")
	b.s.create(b.src, brisk)
	b.s.mirror("orders")
	b.s.caughtUp(b.src, 2, time.Minute, "orders")
	sameSegments(t, b.src, b.dst, "orders", 2, 2)
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"a stranger", b.stranger}, {"nobody", b.nobody}, {"a broker", b.broker}, {"preflight", b.preflight},
		{"reloaded", b.reloaded}, {"killed and restarted", b.restarted}, {"taken over", b.takenOver}, {"failed over", b.failedOver},
	} {
		t.Run(step.name, func(t *testing.T) {
			b.s.tb = t
			step.run(t)
		})
		if b.s.tb = t; t.Failed() {
			return
		}
	}
}

// shows are the options of one who shows the certificate of a name.
func (b *peersBed) shows(t *testing.T, name string) kgo.Opt {
	t.Helper()
	conf, err := b.sec.PeerTLS(name)
	if err != nil {
		t.Fatal(err)
	}
	return kgo.DialTLSConfig(conf)
}

// ask sends a request to kmirror's inter-broker listener under the certificate of a name.
func (b *peersBed) ask(t *testing.T, addr, name string, req kmsg.Request) (kmsg.Response, error) {
	t.Helper()
	cl, err := kgo.NewClient(b.shows(t, name), kgo.SeedBrokers(addr), kgo.RequestRetries(0))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	return cl.SeedBrokers()[0].Request(timeout(t, 10*time.Second), req)
}

// stranger: a certificate of the same authority is not enough.
func (b *peersBed) stranger(t *testing.T) {
	if err := replicaFetch(t, b.s.repl, b.shows(t, "stranger")); !errors.Is(err, kerr.ClusterAuthorizationFailed) {
		t.Errorf("fetch as a replica: %v", err)
	}
	epochs := kmsg.NewPtrOffsetForLeaderEpochRequest()
	et := kmsg.NewOffsetForLeaderEpochRequestTopic()
	et.Topic, et.Partitions = "orders", append(et.Partitions, kmsg.NewOffsetForLeaderEpochRequestTopicPartition())
	epochs.ReplicaID, epochs.Topics = 1, append(epochs.Topics, et)
	resp, err := b.ask(t, b.s.repl, "stranger", epochs)
	if err != nil || resp.(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0].ErrorCode != kerr.ClusterAuthorizationFailed.Code {
		t.Errorf("epochs: %+v, %v", resp, err)
	}
	resp, err = b.ask(t, b.s.repl, "stranger", kmsg.NewPtrDescribeClusterRequest())
	if err != nil {
		t.Fatal(err)
	}
	if d := resp.(*kmsg.DescribeClusterResponse); d.ErrorCode != kerr.ClusterAuthorizationFailed.Code || len(d.Brokers) > 0 {
		t.Errorf("what would be sent on: %+v", d)
	}
	if n := strings.Count(mustRead(t, b.s.log), `principal="User:CN=stranger"`); n != 1 {
		t.Errorf("%d lines of the log name the stranger, want 1", n)
	}
	metrics, err := http.Get("http://" + b.s.http + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer metrics.Body.Close()
	text, err := io.ReadAll(metrics.Body)
	if err != nil || !strings.Contains(string(text), `kmirror_refused_peers_total{listener="REPL"} 3`) {
		t.Errorf("refused peers are not counted: %v", err)
	}
}

// nobody: without a certificate, or with one of another authority, there is no connection.
func (b *peersBed) nobody(t *testing.T) {
	none, err := b.sec.PeerTLS("")
	if err != nil {
		t.Fatal(err)
	}
	other := testkafka.NewSecurity(t)
	foreign, err := other.PeerTLS("brokers")
	if err != nil {
		t.Fatal(err)
	}
	foreign.RootCAs = none.RootCAs
	for name, conf := range map[string]*tls.Config{"no certificate": none, "a broker of another authority": foreign} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			conf := conf.Clone()
			conf.MinVersion, conf.MaxVersion = version, version
			nc, err := tls.Dial("tcp", b.s.repl, conf)
			if err == nil { // with TLS 1.3 the client is ready before the server has looked
				_, err = nc.Read(make([]byte, 1))
				nc.Close()
			}
			var alert tls.AlertError
			if !errors.As(err, &alert) && !strings.Contains(fmt.Sprint(err), "tls: ") {
				t.Errorf("%s, version %x: %v", name, version, err)
			}
		}
	}
	eventually(t, 30*time.Second, "a line in the log", func() error {
		if !strings.Contains(mustRead(t, b.s.log), "have to show a certificate") {
			return errors.New("no such line")
		}
		return nil
	})
}

// broker: one of the destination is served, and what it sends on goes to the others as kmirror's.
func (b *peersBed) broker(t *testing.T) {
	if err := replicaFetch(t, b.s.repl, b.shows(t, "brokers")); err != nil {
		t.Errorf("fetch as a replica: %v", err)
	}
	resp, err := b.ask(t, b.s.repl, "brokers", kmsg.NewPtrDescribeClusterRequest())
	if err != nil || len(resp.(*kmsg.DescribeClusterResponse).Brokers) < 2 {
		t.Errorf("what is sent on: %+v, %v", resp, err)
	}
}

func (b *peersBed) preflight(t *testing.T) {
	out, errs, code := b.s.local("preflight", "--config", b.s.config)
	if code != 0 || !strings.Contains(out, "brokers know each other by certificates, and so does kmirror") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

// reloaded: who may replicate, limits and the log's format change while kmirror runs.
func (b *peersBed) reloaded(t *testing.T) {
	const before, logged = `allow: ["User:CN=brokers"]`, "log: {format: text, level: info}"
	is := func(want error) {
		t.Helper()
		eventually(t, time.Minute, fmt.Sprintf("a broker's fetch is answered with %v", want), func() error {
			if err := replicaFetch(t, b.s.repl, b.shows(t, "brokers")); !errors.Is(err, want) {
				return fmt.Errorf("it is %v", err)
			}
			return nil
		})
	}
	b.s.rewrite(before, `allow: ["User:CN=nobody"]`)
	is(kerr.ClusterAuthorizationFailed)
	if !strings.Contains(mustRead(t, b.s.log), "connections of peers whom that concerns were cut") {
		t.Error("no connection was cut")
	}
	b.s.rewrite(`allow: ["User:CN=nobody"]`, `allow: ["User:BROKERS"], principal_mapping_rules: "RULE:^CN=(.*)$/$1/U"`)
	is(nil)
	dial := func(served bool) {
		t.Helper()
		eventually(t, time.Minute, fmt.Sprintf("clients are served: %v", served), func() error {
			nc, err := tls.Dial("tcp", b.s.client, &tls.Config{InsecureSkipVerify: true}) // only looked at
			if err == nil {
				nc.Close()
			}
			if (err == nil) != served {
				return fmt.Errorf("it says %v", err)
			}
			return nil
		})
	}
	b.s.rewrite(logged, "log: {format: json, level: info}\nlimits: {connections: 1}")
	dial(false)
	b.s.rewrite("limits: {connections: 1}", "limits: {connections: 1000, memory: 512MiB, source_bytes_per_second: 1GiB}")
	dial(true)
	text := mustRead(t, b.s.log)
	if !strings.Contains(text, `"msg":"limits have changed"`) || strings.Contains(text, "wait for a restart") {
		t.Error("the log does not tell of limits in JSON, or that something waits for a restart")
	}
	b.s.rewrite("log: {format: json, level: info}", logged)
	produce(t, client(t, b.src), "orders", 2, 100, 200)
	b.s.caughtUp(b.src, 2, 2*time.Minute, "orders")
	sameSegments(t, b.src, b.dst, "orders", 2, 2)
}

// restarted: kmirror dies, real brokers lead, and it comes back: it fetches from them as a follower, under its certificate.
func (b *peersBed) restarted(t *testing.T) {
	b.s.kill()
	b.s.start()
	produce(t, client(t, b.src), "orders", 2, 100, 200)
	b.s.caughtUp(b.src, 2, time.Minute, "orders")
	sameSegments(t, b.src, b.dst, "orders", 2, 2)
}

// takenOver: a second process goes on when the first one dies.
func (b *peersBed) takenOver(t *testing.T) {
	second := makeShim(t, b.dst, 9003, "")
	second.start()
	eventually(t, 30*time.Second, "the two know each other", func() error {
		if !strings.Contains(mustRead(t, second.log), b.s.admin) {
			return errors.New("not yet")
		}
		return nil
	})
	b.s.kill()
	produce(t, client(t, b.src), "orders", 2, 100, 200)
	second.caughtUp(b.src, 2, time.Minute, "orders")
	sameSegments(t, b.src, b.dst, "orders", 2, 2)
	b.s.start()
	if err := second.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

func (b *peersBed) failedOver(t *testing.T) {
	b.s.verb("failover", "orders")
	leads(t, b.dst, "orders", 2, 30*time.Second)
	writable(t, b.dst, "orders", "mine")
}

// TestClientsWithCertificates: a destination where clients of another listener than the brokers' must show certificates is refused with
// the reason, by preflight and at the start, before anything is registered.
func TestClientsWithCertificates(t *testing.T) {
	onlyInLong(t)
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	sec := testkafka.NewSecurity(t)
	const l = "listener.name.external.ssl."
	dst := testkafka.Start(t, sec.Secure(testkafka.Options{Name: "dst", Listeners: []string{"CLIENT", "EXTERNAL", "REPL"},
		Properties: map[string]string{l + "client.auth": "required", l + "truststore.type": "PEM", l + "truststore.location": sec.CA()}}))
	addUsers(t, dst, kmirrorUser)
	grant(t, dst, kmirrorUser, documented(t, "Rights at the destination")...)
	s := makeShim(t, dst, 9001, "")
	certificate, key, err := sec.Certificate("external")
	if err != nil {
		t.Fatal(err)
	}
	port := portPair(t)
	s.rewrite("listeners:\n", fmt.Sprintf("listeners:\n  - {name: EXTERNAL, bind: \"127.0.0.1:%d\", advertised: \"127.0.0.1:%d\", protocol: SASL_SSL, "+
		"tls: {certificate: %q, key: %q}}\n", port, port, certificate, key))
	const reason = "listener EXTERNAL: brokers ask clients for a certificate, which kmirror can't show in their place"
	out, errs, code := s.local("preflight", "--config", s.config)
	if code != 4 || !strings.Contains(out, "brokers ask clients for a certificate") {
		t.Errorf("preflight: exit %d\n%s%s", code, out, errs)
	}
	_, errs, code = s.local("serve", "--config", s.config)
	if code != 2 || !strings.Contains(errs, reason) {
		t.Errorf("serve: exit %d\n%s", code, errs)
	}
	for id := range imageOf(t, dst).Brokers {
		if id >= 9000 {
			t.Errorf("node id %d is registered", id)
		}
	}
}

// TestPeersAmongClients: a destination has one listener for all, with TLS, where nobody has to show a certificate. Its broker shows one to
// kmirror nevertheless and is known by it; clients without one are served, but not as replicas.
func TestPeersAmongClients(t *testing.T) {
	onlyInLong(t)
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	sec := testkafka.NewSecurity(t)
	store, err := sec.Store("broker")
	if err != nil {
		t.Fatal(err)
	}
	const l = "listener.name.client.ssl."
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Listeners: []string{"CLIENT"},
		Properties: map[string]string{"listener.security.protocol.map": "CLIENT:SSL,CONTROLLER:PLAINTEXT", l + "keystore.type": "PEM",
			l + "keystore.location": store, l + "truststore.type": "PEM", l + "truststore.location": sec.CA()}})
	createTopic(t, src, "orders", 1, nil)
	produce(t, client(t, src), "orders", 1, 500, 200)
	certificate, key, err := sec.Certificate("kmirror")
	if err != nil {
		t.Fatal(err)
	}
	s := makeShim(t, dst, 9001, "")
	config := mustRead(t, s.config)
	s.rewrite(config[strings.Index(config, "  - {name: REPL"):strings.Index(config, "log:")], "")
	s.rewrite("protocol: PLAINTEXT", fmt.Sprintf("protocol: SSL, tls: {certificate: %q, key: %q, ca: %q}, allow: [\"User:CN=broker\"]",
		certificate, key, sec.CA()))
	s.rewrite("inter_broker_listener: REPL", fmt.Sprintf("inter_broker_listener: CLIENT\n  controller_client: {security.protocol: PLAINTEXT}\n"+
		"  client: {security.protocol: SSL, ssl.truststore.type: PEM, ssl.truststore.location: %q}", sec.CA()))
	s.start()
	s.create(src, brisk)
	s.mirror("orders")
	s.caughtUp(src, 1, time.Minute, "orders")
	sameSegments(t, src, dst, "orders", 1, 1)
	none, err := sec.PeerTLS("")
	if err != nil {
		t.Fatal(err)
	}
	if err := replicaFetch(t, s.client, kgo.DialTLSConfig(none)); !errors.Is(err, kerr.ClusterAuthorizationFailed) {
		t.Errorf("a client fetches as a replica: %v", err)
	}
	cl, err := kgo.NewClient(kgo.DialTLSConfig(none), kgo.SeedBrokers(s.client), kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	n, ctx := 0, timeout(t, 30*time.Second)
	for n < 500 && ctx.Err() == nil {
		n += cl.PollFetches(ctx).NumRecords()
	}
	if n != 500 {
		t.Errorf("a client read %d records of 500", n)
	}
}
