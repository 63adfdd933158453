package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"kmirror/internal/testkafka"
)

// peersConfig is a configuration whose inter-broker listener, REPL, ends as given; clients is another listener, empty for none.
func peersConfig(clients, repl string) string {
	if clients != "" {
		clients = `  - {name: CLIENT, bind: "127.0.0.1:0", advertised: "localhost:9092", ` + clients + "}\n"
	}
	return `
node_ids: [9001, 9002]
admin: 127.0.0.1:0
destination:
  bootstrap_servers: [b:1]
  controllers: [c:1]
  inter_broker_listener: REPL
listeners:
` + clients + `  - {name: REPL, bind: "127.0.0.1:0", advertised: "localhost:9094", ` + repl + "}\n"
}

func TestBrokersProveWhoTheyAre(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	certificate, key, err := sec.Certificate("kmirror")
	if err != nil {
		t.Fatal(err)
	}
	const plain = "protocol: PLAINTEXT"
	files := fmt.Sprintf("tls: {certificate: %q, key: %q}", certificate, key)
	mutual := fmt.Sprintf("tls: {certificate: %q, key: %q, ca: %q}", certificate, key, sec.CA())
	const allow = `, allow: ["User:CN=broker,O=Acme"]`
	for _, c := range []struct{ name, clients, repl, want string }{
		{"plaintext", plain, plain, ""},
		{"login", plain, "protocol: SASL_PLAINTEXT", ""},
		{"login over TLS", plain, "protocol: SASL_SSL, " + files, ""},
		{"login over TLS with certificates", plain, "protocol: SASL_SSL, " + mutual, ""},
		{"certificates", plain, "protocol: SSL, " + mutual + allow, ""},
		{"one listener for all", "", "protocol: SSL, " + mutual + allow, ""},
		{"nobody asked for certificates", plain, "protocol: SSL, " + files + allow, "listeners.REPL.tls.ca: missing"},
		{"nobody allowed", plain, "protocol: SSL, " + mutual, "listeners.REPL.allow: missing"},
		{"nobody asked at one listener for all", "", "protocol: SSL, " + files, "listeners.REPL.tls.ca: missing"},
		{"no principal", plain, "protocol: SSL, " + mutual + ", allow: [broker]", `"broker" is no principal`},
		{"a space", plain, "protocol: SSL, " + mutual + `, allow: ["User:CN=a, O=b"]`, "space after a comma"},
		{"names by rules", plain, "protocol: SSL, " + mutual + `, allow: ["User:b"], principal_mapping_rules: "RULE:^CN=(.*?),.*$/$1/,DEFAULT"`, ""},
		{"no name by rules", plain, "protocol: SSL, " + mutual + `, allow: [b], principal_mapping_rules: DEFAULT`, "what principal_mapping_rules make"},
		{"no rules", plain, "protocol: SSL, " + mutual + `, allow: ["User:b"], principal_mapping_rules: "RULE:CN=(.*)/$1/"`, "has to begin with ^"},
		{"rules for nobody", plain, "protocol: SASL_PLAINTEXT, principal_mapping_rules: DEFAULT", "of which there are none"},
		{"allowed and logged in", plain, "protocol: SASL_SSL, " + files + allow, "known by their logins"},
		{"allowed in the clear", plain, plain + allow, "nobody proves"},
		{"clients allowed", plain + allow, plain, "is for the inter-broker listener, REPL"},
		{"clients with certificates", "protocol: SSL, " + mutual, plain, "listeners.CLIENT.tls.ca: a client certificate can't be relayed"},
		{"no such authority", plain, "protocol: SSL, " + strings.ReplaceAll(mutual, "ca.pem", "none.pem") + allow, "none.pem"},
		{"literal password", plain, "protocol: SSL, " + strings.TrimSuffix(mutual, "}") + ", password: hunter2}" + allow, "must refer to the secret"},
	} {
		_, err := parseConfig([]byte(peersConfig(c.clients, c.repl)), nil)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	_, err = parseConfig([]byte(peersConfig(plain, "protocol: SSL, "+mutual+allow)+
		`gateway: [{name: REPL, bootstrap: "127.0.0.1:39500", advertised_host: h, node_id_ranges: ["1-9"]}]`), nil)
	if err == nil || !strings.Contains(err.Error(), "nobody can show through a gateway") {
		t.Errorf("a gateway in front of the inter-broker listener: %v", err)
	}
}

// TestPeerListeners: sockets know whom they are for, and what is sent on for a broker carries the certificate of the replication client.
func TestPeerListeners(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	certificate, key, err := sec.Certificate("kmirror")
	if err != nil {
		t.Fatal(err)
	}
	mutual := fmt.Sprintf("tls: {certificate: %q, key: %q, ca: %q}", certificate, key, sec.CA())
	const allow = `, allow: ["User:CN=kmirror"]`
	for _, c := range []struct {
		name, clients, repl         string
		auth                        tls.ClientAuthType
		peers, mutual, among, shows bool
	}{
		{"certificates", "protocol: PLAINTEXT", "protocol: SSL, " + mutual + allow, tls.RequireAndVerifyClientCert, true, true, false, true},
		{"one for all", "", "protocol: SSL, " + mutual + allow, tls.VerifyClientCertIfGiven, true, true, true, true},
		{"login", "protocol: PLAINTEXT", "protocol: SASL_SSL, " + mutual, tls.RequireAndVerifyClientCert, false, true, false, true},
		{"plain", "protocol: PLAINTEXT", "protocol: SASL_PLAINTEXT", tls.NoClientCert, false, false, false, false},
	} {
		cfg, err := parseConfig([]byte(peersConfig(c.clients, c.repl)), nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Destination.ReplicationClient = map[string]string{"security.protocol": "SSL", "ssl.keystore.certificate.chain": "${file:" + certificate + "}",
			"ssl.keystore.key": "${file:" + key + "}"}
		listeners, err := serverTLS(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if conf := listeners["REPL"]; (conf == nil) != (c.auth == tls.NoClientCert) || conf != nil && conf.ClientAuth != c.auth {
			t.Errorf("%s: the listener asks for certificates: %+v", c.name, conf)
		}
		l := cfg.proxyListener(cfg.Listeners[len(cfg.Listeners)-1], nil, 9001, newAllowance(ListenerConfig{}))
		if !l.InterBroker || (l.Peer != nil) != c.peers || l.Mutual != c.mutual || l.Clients != c.among {
			t.Errorf("%s: %+v", c.name, l)
		}
		secure, err := cfg.peerTLS(slog.New(slog.DiscardHandler))
		if err != nil || (secure != nil && len(secure().Certificates) == 1) != c.shows {
			t.Errorf("%s: what brokers send on goes with a configuration of its own (%v), %v", c.name, secure != nil, err)
		}
		if c.clients != "" {
			if l := cfg.proxyListener(cfg.Listeners[0], nil, 9001, newAllowance(ListenerConfig{})); l.InterBroker || l.Peer != nil || l.Mutual {
				t.Errorf("%s: clients' listener %+v", c.name, l)
			}
		}
	}
}

// TestAllowed: a certificate is as good as its principal.
func TestAllowed(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	conf, err := sec.PeerTLS("broker")
	if err != nil {
		t.Fatal(err)
	}
	for principal, want := range map[string]bool{"User:CN=broker": true, "User:CN=other": false, "CN=broker": false} {
		a := newAllowance(ListenerConfig{Allow: []string{"User:CN=x", principal}})
		if who, ok := a.check(conf.Certificates[0].Leaf); who != "User:CN=broker" || ok != want {
			t.Errorf("%s is allowed: %s, %v", principal, who, ok)
		}
	}
	a := newAllowance(ListenerConfig{Allow: []string{"User:BROKER"}, PrincipalMappingRules: "RULE:^CN=(.*)$/$1/U"})
	is := func(name string, allowed bool) {
		t.Helper()
		if who, ok := a.check(conf.Certificates[0].Leaf); who != name || ok != allowed {
			t.Errorf("it is %s, allowed: %v; want %s, %v", who, ok, name, allowed)
		}
	}
	is("User:BROKER", true)
	if a.set(ListenerConfig{Allow: []string{"User:BROKER"}, PrincipalMappingRules: "RULE:^CN=(.*)$/$1/U"}) {
		t.Error("the same counts as a change")
	}
	if !a.set(ListenerConfig{Allow: []string{"User:CN=broker"}, PrincipalMappingRules: "RULE:^OU=(.*)$/$1/U"}) {
		t.Error("other rules are no change")
	}
	is("User:CN=broker", false) // which is no name that the rules give
}
