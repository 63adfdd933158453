package main

import (
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"kmirror/internal/testkafka"
	"kmirror/proxy"
)

const goodGateway = `
gateway:
  - {name: CLIENT, bootstrap: 127.0.0.1:39500, advertised_host: 127.0.0.1, node_id_ranges: ["1-9", "9001-9002", "20"]}
`

func TestGatewayConfig(t *testing.T) {
	c, err := parseConfig([]byte(goodConfig+goodGateway), nil)
	if err != nil {
		t.Fatal(err)
	}
	ranges, err := c.Gateway[0].ranges()
	if want := []proxy.IDRange{{First: 1, Last: 9}, {First: 9001, Last: 9002}, {First: 20, Last: 20}}; err != nil || !reflect.DeepEqual(ranges, want) {
		t.Errorf("%v, %v", ranges, err)
	}
	if last := c.Gateway[0].last(); last != 39512 {
		t.Errorf("ports up to %d", last)
	}
}

func TestGatewayConfigProblems(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown key", "advertised_host", "advertised", "unknown key advertised"},
		{"no such listener", "name: CLIENT", "name: OTHER", `"OTHER" is not among listeners`},
		{"no bootstrap", "bootstrap: 127.0.0.1:39500, ", "", "bootstrap: missing"},
		{"port 0", "39500", "0", "port that is not 0"},
		{"beyond the last port", "39500", "65530", "up to 65542, of 65535"},
		{"no host", "advertised_host: 127.0.0.1, ", "", "advertised_host: missing"},
		{"unspecified host", "advertised_host: 127.0.0.1", "advertised_host: 0.0.0.0", "can't be connected to"},
		{"host with port", "advertised_host: 127.0.0.1", `advertised_host: "km1:9092"`, "not a host name"},
		{"no ranges", `["1-9", "9001-9002", "20"]`, "[]", "node_id_ranges: missing"},
		{"no number", `"20"`, `"x"`, "not a range"},
		{"backwards", `"1-9"`, `"9-1"`, "not a range"},
		{"negative", `"1-9"`, `"-1-9"`, "not a range"},
		{"overlap", `"20"`, `"5-30"`, "overlaps with 1-9"},
		{"too many", `"20"`, `"100000-2147483647"`, "of 65535"},
		{"admin's port", "39500", "9180", "some of which admin has"},
		{"http's port", "127.0.0.1:39500", "127.0.0.1:9191", "some of which http has"},
		{"a listener's second port", "127.0.0.1:39500", "127.0.0.2:9094", "some of which listeners.CLIENT has"},
		{"without its own ids", `"9001-9002"`, `"9001"`, `9002 of node_ids is in none of them, so that clients could not reach what it leads; append "9002"`},
		{"names without TLS", `"20"]`, `"20"], sni: {broker: "b{id}.kafka.example.com"}`, "sni: needs TLS"},
		{"TLS without TLS", `"20"]`, `"20"], tls: *tls`, "has no meaning for protocol PLAINTEXT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(goodGateway, c.old) {
				t.Fatalf("%q is not there", c.old)
			}
			_, err := parseConfig([]byte(goodConfig+strings.Replace(goodGateway, c.old, c.new, 1)), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v", err)
			}
		})
	}
	_, err := parseConfig([]byte(goodConfig+goodGateway+strings.Replace(strings.TrimPrefix(goodGateway, "\ngateway:\n"), "39500", "39512", 1)), nil)
	if err == nil || !strings.Contains(err.Error(), "some of which gateway[0] has") {
		t.Errorf("two gateways with a port in common: %v", err)
	}
}

// A gateway shows the listener's certificate unless it has its own, and says when clients are going to refuse it.
func TestGatewayCertificate(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	cfg := secureConfig(t, sec, "localhost")
	own, key, err := sec.Certificate("own")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []GatewayConfig{
		{Name: "A", Bootstrap: "127.0.0.1:0", AdvertisedHost: "localhost", NodeIDRanges: []string{"1"}},
		{Name: "A", Bootstrap: "127.0.0.1:0", AdvertisedHost: "elsewhere", NodeIDRanges: []string{"1"}, TLS: &TLSFiles{Certificate: own, Key: key}},
	} {
		cfg.Gateway = []GatewayConfig{g}
		s := &sockets{}
		if err := s.openGateways(cfg, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		s.close()
		wrong := g.AdvertisedHost != "localhost"
		if len(s.fronts) != 1 || s.fronts[0].TLS == nil || (len(s.notes) > 0) != wrong {
			t.Errorf("%d fronts, notes %q", len(s.fronts), s.notes)
		}
		shown, err := s.fronts[0].TLS.GetCertificate(nil)
		if err != nil || strings.Contains(shown.Leaf.Subject.String(), "own") != (g.TLS != nil) {
			t.Errorf("certificate of %v, %v", shown.Leaf.Subject, err)
		}
	}
}

// nameGateway is a gateway by server names; the last %s is what else it has.
const nameGateway = `
gateway:
  - {name: A, bootstrap: 127.0.0.1:39500, advertised_host: all.kafka.example.com, sni: {broker: "b{id}.kafka.example.com"%s}%s}
`

func TestGatewayNames(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	certificate, key, err := sec.Certificate("all", "*.kafka.example.com")
	if err != nil {
		t.Fatal(err)
	}
	base := fmt.Sprintf(`
node_ids: [9001, 9002]
admin: 127.0.0.1:0
destination: {bootstrap_servers: [b:1], controllers: [c:1], inter_broker_listener: A}
listeners: [{name: A, bind: "127.0.0.1:0", advertised: "localhost:9092", protocol: SASL_SSL, tls: {certificate: %q, key: %q}}]
`, certificate, key)
	for _, c := range []struct{ name, sni, more, old, new, want string }{
		{"plain", "", "", "", "", ""},
		{"a port", ", port: 9092", "", "", "", ""},
		{"ranges", "", `, node_id_ranges: ["1-3", "9001-9002"]`, "", "", ""},
		{"no such port", ", port: 65536", "", "", "", "gateway[0].sni: port 65536 is not one"},
		{"unknown key", ", host: x", "", "", "", "unknown key host"},
		{"no id", "", "", "b{id}", "b1", "needs {id} once"},
		{"no name", "", "", "b{id}.kafka.example.com", "10.0.0.{id}", "not a pattern of host names"},
		{"an address to bootstrap from", "", "", "host: all.kafka.example.com", "host: 10.0.0.1", "is an address"},
		{"a broker's name to bootstrap from", "", "", "host: all.", "host: b5.", "is the name of broker 5"},
		{"without its own ids", "", `, node_id_ranges: ["1-3"]`, "", "", `9001 of node_ids is in none of them`},
		{"port 0", "", "", "39500", "0", "needs a port that is not 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := base + strings.Replace(fmt.Sprintf(nameGateway, c.sni, c.more), c.old, c.new, 1)
			cfg, err := parseConfig([]byte(text), nil)
			switch {
			case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("got %v", err)
			case err != nil:
				return
			}
			names, err := cfg.Gateway[0].names()
			if err != nil || names.Of(3) != "b3.kafka.example.com" || cfg.Gateway[0].last() != 39500 {
				t.Errorf("%v, %v, last port %d", names, err, cfg.Gateway[0].last())
			}
		})
	}
	cfg, err := parseConfig([]byte(base+strings.Replace(fmt.Sprintf(nameGateway, "", ""), "39500", "39501", 1)), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &sockets{}
	cfg.Gateway[0].Bootstrap = "127.0.0.1:0"
	cfg.Gateway[0].SNI.Port = 9443
	cfg.Gateway = append(cfg.Gateway, cfg.Gateway[0])
	cfg.Gateway[1].SNI = &SNIConfig{Broker: "b{id}.elsewhere.example.com", Port: 9443}
	if err := s.openGateways(cfg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	s.close()
	if len(s.notes) != 1 || !strings.Contains(s.notes[0], "b9001.elsewhere.example.com") || !strings.Contains(s.notes[0], "*.elsewhere.example.com") {
		t.Errorf("notes %q", s.notes)
	}
}

// TestOutsideNotes: --check names brokers that a gateway has no port for.
func TestOutsideNotes(t *testing.T) {
	c, err := parseConfig([]byte(goodConfig+goodGateway), nil)
	if err != nil {
		t.Fatal(err)
	}
	if notes := c.outsideNotes([]int32{1, 20, 30}); len(notes) != 1 ||
		!strings.Contains(notes[0], `broker 30, which is outside node_id_ranges; append "30"`) {
		t.Errorf("%q", notes)
	}
}
