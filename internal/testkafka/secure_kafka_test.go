package testkafka

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestSecureCluster logs in as admin, as a user without rights and as nobody, by our client and by a tool of Kafka's.
func TestSecureCluster(t *testing.T) {
	for name, o := range map[string]Options{
		"combined and brokers": {Brokers: 3, Combined: 1}, "controller apart": {Brokers: 2, Controllers: 1, Version: Previous},
	} {
		t.Run(name, func(t *testing.T) { secureCluster(t, o) })
	}
}

func secureCluster(t *testing.T, o Options) {
	sec := NewSecurity(t)
	o.Name = "secure"
	c := Start(t, sec.Secure(o))
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	if c.Security() != sec {
		t.Error("a cluster without its Security")
	}
	must(t, sec.AddUser(ctx, c, "mary", "kmirror"))
	adm := func(opts ...kgo.Opt) *kadm.Client {
		cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(c.Bootstrap(ClientListener)...))...)
		must(t, err)
		t.Cleanup(cl.Close)
		return kadm.NewClient(cl)
	}
	created, err := adm(c.Opts()...).CreateTopics(ctx, 1, -1, nil, "orders")
	if err == nil {
		err = created.Error()
	}
	must(t, err)
	created, err = adm(sec.Opts("mary")...).CreateTopics(ctx, 1, -1, nil, "hers")
	if err == nil {
		err = created.Error()
	}
	if !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("a user without rights creates a topic: %v", err)
	}
	if _, err := adm(append(sec.Opts("nobody"), kgo.RetryTimeout(askLimit))...).BrokerMetadata(ctx); err == nil {
		t.Error("a user who is not there logs in")
	}
	if _, err := adm(kgo.RetryTimeout(askLimit)).BrokerMetadata(ctx); err == nil {
		t.Error("a client without TLS is served")
	}
	for _, addr := range append(c.Bootstrap(ReplListener), c.Controllers()...) {
		var last error
		if err := poll(ctx, func() (bool, error) {
			_, last = ask(ctx, addr, kmsg.NewPtrApiVersionsRequest(), sec.PlainOpts(GuestUser)...)
			return last == nil, nil
		}); err != nil {
			t.Errorf("%s: %v", addr, errors.Join(err, last))
		}
	}
	file, err := sec.WriteProperties("tool.properties", sec.Properties(AdminUser))
	must(t, err)
	out, err := Tool(ctx, o.Version, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", c.Bootstrap(ClientListener)[0],
		"--command-config", file, "--list").Output()
	if err != nil || strings.TrimSpace(string(out)) != "orders" {
		t.Errorf("kafka-topics: %q, %v", out, err)
	}
	must(t, c.Node(2).Kill())
	must(t, c.Node(2).Start())
}

func TestCertificateIsRenewed(t *testing.T) {
	sec := NewSecurity(t)
	var texts []string
	for range 2 {
		certificate, key, err := sec.Certificate("x")
		must(t, err)
		for _, f := range []string{certificate, key} {
			text, err := os.ReadFile(f)
			must(t, err)
			texts = append(texts, string(text))
		}
	}
	if texts[0] == texts[2] || texts[1] == texts[3] {
		t.Error("the same certificate again")
	}
}
