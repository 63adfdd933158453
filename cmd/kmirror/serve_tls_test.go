package main

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"kmirror/internal/testkafka"
	"kmirror/protocol/kraft"
)

// secureConfig is a configuration with one TLS listener that is advertised under a host name.
func secureConfig(t *testing.T, sec *testkafka.Security, host string) *Config {
	t.Helper()
	certificate, key, err := sec.Certificate("kmirror")
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig(fmt.Appendf(nil, `
node_ids: [9001, 9002]
admin: 127.0.0.1:0
destination:
  bootstrap_servers: [b:1]
  controllers: [c:1]
  inter_broker_listener: A
  client: {security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, sasl.jaas.config: "M required username=a password=\"${env:HOME}\";",
    ssl.truststore.type: PEM, ssl.truststore.location: %q, ssl.keystore.type: PEM, ssl.keystore.location: none.pem}
listeners: [{name: A, bind: "127.0.0.1:0", advertised: "%s:9092", protocol: SASL_SSL, tls: {certificate: %q, key: %q}}]
`, sec.CA(), host, certificate, key), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCertificateNotes(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	for _, c := range []struct {
		host string
		days int // from now
		want []string
	}{
		{"localhost", 0, nil}, {"localhost", 80, []string{"valid until"}},
		{"elsewhere", 0, []string{"not for that name"}}, {"elsewhere", 100, []string{"not for that name", "valid until"}},
	} {
		cfg := secureConfig(t, sec, c.host)
		secure, err := serverTLS(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		notes := certificateNotes(cfg, secure, time.Now().AddDate(0, 0, c.days))
		if len(notes) != len(c.want) {
			t.Errorf("%s: %q", c.host, notes)
			continue
		}
		for i, part := range c.want {
			if !strings.Contains(notes[i], part) || !strings.Contains(notes[i], "listener A") {
				t.Errorf("%s: %q", c.host, notes[i])
			}
		}
	}
}

// Forwarded connections trust what destination.client trusts, also where that has no TLS itself, and show nobody our certificate.
func TestUpstreamTLS(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	quiet := slog.New(slog.DiscardHandler)
	secure, err := secureConfig(t, sec, "localhost").upstreamTLS(quiet)
	if err != nil {
		t.Fatal(err)
	}
	if conf := secure(); conf.RootCAs == nil || len(conf.Certificates) != 0 || conf.GetClientCertificate != nil {
		t.Errorf("got %+v", conf)
	}
	if secure, err := (&Config{}).upstreamTLS(quiet); err != nil || secure().RootCAs != nil {
		t.Errorf("without properties: %v, or authorities of its own", err)
	}
}

func TestListenersSpeakAsTheBrokersDo(t *testing.T) {
	cfg := &Config{NodeIDs: []int32{9001},
		Listeners: []ListenerConfig{{Name: "A", Protocol: "SASL_PLAINTEXT"}, {Name: "B", Protocol: "PLAINTEXT"}}}
	for name, c := range map[string]struct {
		a, b []int16 // protocols that brokers have
		want string
	}{
		"equal": {[]int16{2, 2}, []int16{0, 0}, ""}, "no brokers": {nil, nil, ""}, "on the move": {[]int16{2, 3}, []int16{0, 3}, ""},
		"other": {[]int16{3, 3}, []int16{0, 0}, "listeners.A.protocol is SASL_PLAINTEXT, the destination's brokers have SASL_SSL there"},
		"both":  {[]int16{3, 3}, []int16{1, 1}, "listeners.B.protocol is PLAINTEXT, the destination's brokers have SSL there"},
	} {
		img := kraft.Empty()
		img.Brokers = map[int32]*kraft.Broker{}
		add := func(id int32, a, b int16) {
			ends := []kraft.Endpoint{{Name: "A", SecurityProtocol: a}, {Name: "B", SecurityProtocol: b}}
			img.Brokers[id] = &kraft.Broker{ID: id, Endpoints: ends}
		}
		add(9001, 1, 1) // ours, registered before
		for i := range c.a {
			add(int32(i+1), c.a[i], c.b[i])
		}
		err := missingListeners(cfg, img)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAdminNotes(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	other := testkafka.NewSecurity(t)
	certificate, key, err := sec.Certificate("km1")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		advertised, ca string
		days           int // from now
		want           []string
	}{
		{"localhost:1", sec.CA(), 0, nil}, {"localhost:1", sec.CA(), 80, []string{"valid until"}},
		{"elsewhere:1", sec.CA(), 0, []string{"not for that name"}},
		{"localhost:1", other.CA(), 0, []string{"as a server's", "as a client's"}},
	} {
		cfg := &Config{Admin: AdminConfig{Bind: "0.0.0.0:1", Advertised: c.advertised, TLS: &TLSFiles{Certificate: certificate, Key: key, CA: c.ca}}}
		server, client, err := adminTLS(cfg, slog.New(slog.DiscardHandler))
		if err != nil || client == nil {
			t.Fatal(err)
		}
		notes := adminNotes(cfg, server, time.Now().AddDate(0, 0, c.days))
		if len(notes) != len(c.want) {
			t.Errorf("%+v: %q", c, notes)
			continue
		}
		for i, part := range c.want {
			if !strings.Contains(notes[i], part) {
				t.Errorf("%+v: %q", c, notes[i])
			}
		}
	}
	if server, client, err := adminTLS(&Config{}, slog.New(slog.DiscardHandler)); server != nil || client != nil || err != nil {
		t.Errorf("without TLS: %v", err)
	}
}
