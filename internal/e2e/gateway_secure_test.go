package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"kmirror/internal/testkafka"
)

// TestGatewaySecure: with TLS, SASL and an authorizer clients are behind the gateway who they are in front of it, and log in again when
// the broker wants them to.
func TestGatewaySecure(t *testing.T) {
	onlyInLong(t)
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	testkafka.EnsureKcat(t)
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	createTopic(t, src, "ro", 1, nil)
	produce(t, client(t, src), "ro", 1, 100, 100)
	dst := secureCluster(t, testkafka.Options{Name: "dst", Properties: mechanisms()}, kmirrorUser, "Rights at the destination")
	createTopic(t, dst, "rw", 1, nil)
	yaml, first := gatewayYAML(t, "localhost")
	gateway := fmt.Sprintf("localhost:%d", first)
	s := newShim(t, dst, yaml)
	s.create(src, brisk)
	s.mirror("ro")
	s.caughtUp(src, 1, time.Minute, "ro")
	addUsers(t, dst, "reader", "writer", "stranger")
	grant(t, dst, "reader", acl{"TOPIC", "*", "READ"}, acl{"GROUP", "*", "READ"})
	grant(t, dst, "writer", acl{"TOPIC", "*", "WRITE"})

	t.Run("rights", func(t *testing.T) { gatewayRights(t, dst, gateway) })
	t.Run("log in again", func(t *testing.T) { gatewaySessions(t, dst, gateway) })
	t.Run("every mechanism", func(t *testing.T) { gatewayMechanisms(t, dst, gateway) })
	t.Run("kcat and console consumer", func(t *testing.T) { gatewayTools(t, dst, gateway) })
	if err := s.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

// gatewayRights: the broker judges what clients may do, a mirror topic is refused on top of that.
func gatewayRights(t *testing.T, dst *testkafka.Cluster, gateway string) {
	for user, want := range map[string]error{"writer": kerr.PolicyViolation, "stranger": kerr.TopicAuthorizationFailed,
		"reader": kerr.TopicAuthorizationFailed} {
		err := as(t, dst, user, gateway, kgo.DisableIdempotentWrite()).ProduceSync(timeout(t, 20*time.Second),
			&kgo.Record{Topic: "ro", Value: []byte("no")}).FirstErr()
		if !errors.Is(err, want) {
			t.Errorf("%s produces to the mirror: %v, want %v", user, err, want)
		}
	}
	if err := as(t, dst, "nobody", gateway).Ping(timeout(t, 10*time.Second)); !errors.Is(err, kerr.SaslAuthenticationFailed) {
		t.Errorf("a user who is not there: %v", err)
	}
}

// gatewaySessions: clients go on when their sessions end and they log in again.
func gatewaySessions(t *testing.T, dst *testkafka.Cluster, gateway string) {
	writer := as(t, dst, "writer", gateway, kgo.DisableIdempotentWrite())
	reader := as(t, dst, "reader", gateway, kgo.ConsumerGroup("again"), kgo.ConsumeTopics("rw", "ro"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, n := timeout(t, time.Minute), 0
	for range 40 { // eight seconds
		if err := writer.ProduceSync(ctx, &kgo.Record{Topic: "rw", Value: []byte("v")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	for n < 140 && ctx.Err() == nil {
		reader.PollFetches(ctx).EachRecord(func(*kgo.Record) { n++ })
	}
	if n != 140 {
		t.Errorf("%d records, want 140", n)
	}
}

// gatewayMechanisms: every mechanism of SASL but Kerberos passes.
func gatewayMechanisms(t *testing.T, dst *testkafka.Cluster, gateway string) {
	for name, mechanism := range map[string]sasl.Mechanism{
		"PLAIN": plain.Auth{User: "reader", Pass: "reader-plain"}.AsMechanism(),
		"OAUTHBEARER": oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			return oauth.Auth{Token: testkafka.Bearer("reader", 3*time.Second)}, nil
		}),
	} {
		cl := logIn(t, dst, gateway, mechanism, kgo.DisableIdempotentWrite(), kgo.ConsumeTopics("ro"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		ctx, n := timeout(t, 30*time.Second), 0
		for n < 100 && ctx.Err() == nil {
			cl.PollFetches(ctx).EachRecord(func(*kgo.Record) { n++ })
		}
		for range 30 { // six seconds: two tokens, or longer than a session
			if err := cl.Ping(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			time.Sleep(200 * time.Millisecond)
		}
		err := cl.ProduceSync(ctx, &kgo.Record{Topic: "rw", Value: []byte("no")}).FirstErr()
		if n != 100 || !errors.Is(err, kerr.TopicAuthorizationFailed) {
			t.Errorf("%s: %d records read, want 100; writes: %v", name, n, err)
		}
	}
	for name, token := range map[string]string{"expired": testkafka.Bearer("reader", -time.Minute), "not a token": "x.y."} {
		login := oauth.Auth{Token: token}.AsMechanism()
		if err := logIn(t, dst, gateway, login).Ping(timeout(t, 10*time.Second)); err == nil {
			t.Errorf("%s lets a client in", name)
		}
	}
}

// gatewayTools: other clients log in as at the brokers.
func gatewayTools(t *testing.T, dst *testkafka.Cluster, gateway string) {
	props := dst.Security().Properties("reader")
	file, err := dst.Security().WriteProperties("reader.properties", props)
	if err != nil {
		t.Fatal(err)
	}
	kcat := func(addr string) (n int, err error) {
		out, err := testkafka.Kcat(timeout(t, 30*time.Second), "-C", "-e", "-q", "-m", "10", "-b", addr, "-t", "ro", "-o", "beginning",
			"-X", "security.protocol=SASL_SSL", "-X", "ssl.ca.location="+dst.Security().CA(), "-X", "sasl.mechanism=SCRAM-SHA-512", "-X", "sasl.username=reader",
			"-X", "sasl.password="+dst.Security().Password("reader")).Output()
		return strings.Count(string(out), "\n"), err
	}
	// librdkafka 2.0 fails with SCRAM at brokers of version 4, which look at the nonce: behind the gateway just as in front of it.
	direct, failed := kcat(dst.Bootstrap(testkafka.ClientListener)[0])
	if n, err := kcat(gateway); n != direct || (err == nil) != (failed == nil) || err == nil && n != 100 {
		t.Errorf("kcat: %d records and %v, without the gateway %d and %v", n, err, direct, failed)
	}
	for _, protocol := range []string{"classic", "consumer"} {
		cmd := testkafka.Tool(timeout(t, time.Minute), "", "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", gateway,
			"--topic", "ro", "--from-beginning", "--max-messages", "100", "--command-config", file, "--command-property", "group.protocol="+protocol)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Processed a total of 100 messages") {
			t.Errorf("%s: %v\n%.2000s", protocol, err, out)
		}
	}
}

// mechanisms are the properties of brokers that let clients in by PLAIN and OAUTHBEARER too, with tokens that nobody signed, and want
// them to log in again every four seconds.
func mechanisms() map[string]string {
	const l = "listener.name.client."
	return map[string]string{
		"connections.max.reauth.ms":        "4000",
		l + "sasl.enabled.mechanisms":      "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
		l + "plain.sasl.jaas.config":       `org.apache.kafka.common.security.plain.PlainLoginModule required user_reader="reader-plain";`,
		l + "oauthbearer.sasl.jaas.config": `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="admin";`,
	}
}

// logIn is a client of the gateway that authenticates by a mechanism other than the cluster's usual one.
func logIn(t *testing.T, c *testkafka.Cluster, gateway string, mechanism sasl.Mechanism, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	pool := x509.NewCertPool()
	if text, err := os.ReadFile(c.Security().CA()); err != nil || !pool.AppendCertsFromPEM(text) {
		t.Fatalf("authority: %v", err)
	}
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(gateway), kgo.DialTLSConfig(&tls.Config{RootCAs: pool}), kgo.SASL(mechanism))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}
