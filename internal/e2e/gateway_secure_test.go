package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

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
	dst := secureCluster(t, testkafka.Options{Name: "dst", Properties: map[string]string{"connections.max.reauth.ms": "4000"}}, kmirrorUser, "Rights at the destination")
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

	t.Run("rights", func(t *testing.T) {
		for user, want := range map[string]error{"writer": kerr.PolicyViolation, "stranger": kerr.TopicAuthorizationFailed, "reader": kerr.TopicAuthorizationFailed} {
			err := as(t, dst, user, gateway, kgo.DisableIdempotentWrite()).ProduceSync(timeout(t, 20*time.Second), &kgo.Record{Topic: "ro", Value: []byte("no")}).FirstErr()
			if !errors.Is(err, want) {
				t.Errorf("%s produces to the mirror: %v, want %v", user, err, want)
			}
		}
		if err := as(t, dst, "nobody", gateway).Ping(timeout(t, 10*time.Second)); !errors.Is(err, kerr.SaslAuthenticationFailed) {
			t.Errorf("a user who is not there: %v", err)
		}
	})
	t.Run("log in again", func(t *testing.T) {
		writer := as(t, dst, "writer", gateway, kgo.DisableIdempotentWrite())
		reader := as(t, dst, "reader", gateway, kgo.ConsumerGroup("again"), kgo.ConsumeTopics("rw", "ro"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
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
	})
	t.Run("kcat and console consumer", func(t *testing.T) {
		props := dst.Security().Properties("reader")
		file, err := dst.Security().WriteProperties("reader.properties", props)
		if err != nil {
			t.Fatal(err)
		}
		kcat := func(addr string) (n int, err error) {
			out, err := testkafka.Kcat(timeout(t, 30*time.Second), "-C", "-e", "-q", "-b", addr, "-t", "ro", "-o", "beginning", "-X", "security.protocol=SASL_SSL",
				"-X", "ssl.ca.location="+dst.Security().CA(), "-X", "sasl.mechanism=SCRAM-SHA-512", "-X", "sasl.username=reader",
				"-X", "sasl.password="+dst.Security().Password("reader")).Output()
			return strings.Count(string(out), "\n"), err
		}
		// librdkafka 2.0 fails with SCRAM at brokers of version 4, which look at the nonce: behind the gateway just as in front of it.
		direct, failed := kcat(dst.Bootstrap(testkafka.ClientListener)[0])
		if n, err := kcat(gateway); n != direct || (err == nil) != (failed == nil) || err == nil && n != 100 {
			t.Errorf("kcat: %d records and %v, without the gateway %d and %v", n, err, direct, failed)
		}
		for _, protocol := range []string{"classic", "consumer"} {
			cmd := testkafka.Tool(timeout(t, time.Minute), "", "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", gateway, "--topic", "ro",
				"--from-beginning", "--max-messages", "100", "--command-config", file, "--command-property", "group.protocol="+protocol)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "Processed a total of 100 messages") {
				t.Errorf("%s: %v\n%.2000s", protocol, err, out)
			}
		}
	})
	if err := s.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}
