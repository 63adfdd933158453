package main

import (
	"log/slog"
	"strings"
	"testing"

	"kmirror/internal/testkafka"
)

const aloneConfig = `
cluster_id: 5L6g3nShT-eMCtK--X86sw
http: 127.0.0.1:9191
destination:
  bootstrap_servers: [b1:9092, b2:9092]
  client: {security.protocol: PLAINTEXT}
gateway:
  - {name: CLIENT, bootstrap: 127.0.0.1:39500, advertised_host: 127.0.0.1, node_id_ranges: ["1-9"]}
`

// A gateway without controllers needs nothing but its own keys and the way to the brokers.
func TestAloneConfig(t *testing.T) {
	c, err := parseConfig([]byte(aloneConfig), nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.legs(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if poll := c.poll(l); !c.alone() || poll.Listener != "CLIENT" || poll.SecurityProtocol != 0 || poll.ClusterID != c.ClusterID ||
		len(poll.Bootstrap) != 2 {
		t.Errorf("alone %v, %+v", c.alone(), poll)
	}
	full, err := parseConfig([]byte(goodConfig+goodGateway), nil)
	if err != nil || full.alone() {
		t.Errorf("with controllers: alone %v, %v", full.alone(), err)
	}
}

// What a gateway alone can't have is named, with what it would take.
func TestAloneConfigProblems(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	cert, key, err := sec.Certificate("localhost")
	if err != nil {
		t.Fatal(err)
	}
	shows := "tls: {certificate: " + cert + ", key: " + key + "}, "
	const needs = ": has no meaning for a gateway alone; give destination.controllers"
	for _, c := range []struct{ name, old, new, want string }{
		{"node ids", "http:", "node_ids: [9001, 9002]\nhttp:", "node_ids" + needs},
		{"rack", "http:", "rack: a\nhttp:", "rack" + needs},
		{"admin listener", "http:", "admin: 127.0.0.1:9190\nhttp:", "admin" + needs},
		{"listeners", "http:", "listeners: [{name: CLIENT, bind: a:1, advertised: a:1, protocol: PLAINTEXT}]\nhttp:", "listeners" + needs},
		{"controller client", "  client:", "  controller_client: {client.id: x}\n  client:", "destination.controller_client" + needs},
		{"replication client", "  client:", "  replication_client: {client.id: x}\n  client:", "destination.replication_client" + needs},
		{"inter-broker listener", "  client:", "  inter_broker_listener: REPL\n  client:", "destination.inter_broker_listener" + needs},
		{"min_real_insync", "http:", "min_real_insync: 2\nhttp:", "min_real_insync" + needs},
		{"read_only_error", "http:", "read_only_error: read_only_topic\nhttp:", "read_only_error" + needs},
		{"fence_after", "http:", "fence_after: 20s\nhttp:", "fence_after" + needs},
		{"limit of sources", "http:", "limits: {source_bytes_per_second: 1MB}\nhttp:", "limits.source_bytes_per_second" + needs},
		{"listeners traced", "http:", "trace: {file: '-', listeners: [CLIENT]}\nhttp:", "trace.listeners" + needs},
		{"no brokers", "[b1:9092, b2:9092]", "[]", "destination.bootstrap_servers: missing"},
		{"bad properties", "PLAINTEXT}", "OTHER}", "security.protocol: must be"},
		{"two listeners", "node_id_ranges: [\"1-9\"]}", "node_id_ranges: [\"1-9\"]}\n  - {name: OTHER, bootstrap: 127.0.0.1:39600, " +
			"advertised_host: 127.0.0.1, node_id_ranges: [\"1-9\"]}", "gateway: CLIENT and OTHER: brokers tell of one listener"},
		{"no name", "name: CLIENT, ", "", "gateway[0].name: missing"},
		{"TLS without TLS", "name: CLIENT, ", "name: CLIENT, " + shows, "has no meaning for protocol PLAINTEXT of destination.client"},
		{"TLS without a certificate", "PLAINTEXT}", "SSL}", "gateway[0].tls: missing for security.protocol SSL"},
		{"names without TLS", "node_id_ranges: [\"1-9\"]", "sni: {broker: \"b{id}.k.example.com\"}", "sni: needs TLS, which protocol PLAINTEXT of destination.client"},
		{"certificates of clients", "PLAINTEXT}", "SSL, ssl.keystore.location: x.p12}", "nothing can be relayed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(aloneConfig, c.old) {
				t.Fatalf("%q is not there", c.old)
			}
			_, err := parseConfig([]byte(strings.Replace(aloneConfig, c.old, c.new, 1)), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v", err)
			}
		})
	}
	for name, text := range map[string]string{
		"names":              strings.Replace(strings.Replace(aloneConfig, "PLAINTEXT}", "SSL}", 1), "node_id_ranges: [\"1-9\"]", shows+"sni: {broker: \"b{id}.k.example.com\"}", 1),
		"two of a listener":  aloneConfig + "  - {name: CLIENT, bootstrap: 127.0.0.1:39600, advertised_host: 127.0.0.1, node_id_ranges: [\"1-9\"]}\n",
		"the trace of it":    aloneConfig + "trace: {file: '-'}\n",
		"anything but a pin": strings.Replace(aloneConfig, "cluster_id: 5L6g3nShT-eMCtK--X86sw", "", 1),
	} {
		text = strings.Replace(text, "advertised_host: 127.0.0.1, "+shows+"sni", "advertised_host: localhost, "+shows+"sni", 1)
		if _, err := parseConfig([]byte(text), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Neither a gateway nor controllers is what a gateway alone is not: that controllers are missing is said.
func TestNoControllersNoGateway(t *testing.T) {
	text, _, _ := strings.Cut(aloneConfig, "gateway:")
	if _, err := parseConfig([]byte(text), nil); err == nil || !strings.Contains(err.Error(), "destination.controllers: missing") {
		t.Errorf("got %v", err)
	}
}
