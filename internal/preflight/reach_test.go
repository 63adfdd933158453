package preflight

import (
	"net"
	"strings"
	"testing"

	"kmirror/internal/fakepeer"
	"kmirror/protocol/kraft"
)

// TestReach: one broker that is reached will do, and the inter-broker listener is looked at elsewhere.
func TestReach(t *testing.T) {
	open, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fakepeer.Refuse(t, closed)
	at := func(name string, l net.Listener) []kraft.Endpoint {
		return []kraft.Endpoint{{Name: name, Host: "127.0.0.1", Port: uint16(l.Addr().(*net.TCPAddr).Port)}}
	}
	c := Config{Listeners: []Listener{{Name: "CLIENT", Protocol: "PLAINTEXT"}, {Name: "REPL", Protocol: "PLAINTEXT", Own: true}}}
	for want, real := range map[string][]*kraft.Broker{
		"ok way to listener CLIENT: broker 2 is reached": {
			{ID: 1, Endpoints: at("CLIENT", closed)}, {ID: 2, Endpoints: at("CLIENT", open)}},
		"warn way to listener CLIENT: none of 1 brokers is reached": {{ID: 1, Endpoints: at("CLIENT", closed)}},
		"warn way to listener CLIENT: no broker that is alive has the listener": {
			{ID: 1, Fenced: true, Endpoints: at("CLIENT", open)}, {ID: 2, Endpoints: at("REPL", open)}},
	} {
		got := report(func(r *Report) { r.reach(t.Context(), c, real) })
		wants(t, want, got, want)
		if strings.Contains(got, "REPL") || strings.Contains(got, "\n") {
			t.Errorf("too much is said:\n%s", got)
		}
	}
}
