package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
	"kmirror/internal/trace/tap"
	"kmirror/proxy"
)

// TestReloadOnceFilesFit: who is taken out of allow while certificates are renewed is out once those fit again, though the configuration has
// not changed since.
func TestReloadOnceFilesFit(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	certificate, key, err := sec.Certificate("kmirror")
	if err != nil {
		t.Fatal(err)
	}
	renewing := filepath.Join(t.TempDir(), "tls.key")
	good, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(renewing, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(good)
	with := func(allow string) string {
		return strings.Replace(goodConfig, "admin: 127.0.0.1:9190", fmt.Sprintf(
			"admin: {bind: \"127.0.0.1:9190\", tls: {certificate: %q, key: %q, ca: %q}, allow: [%s]}", certificate, renewing, sec.CA(), allow), 1)
	}
	r := newReloads(t)
	r.write(with(`"User:CN=a", "User:CN=b"`))
	r.look()
	if n := len(r.applied); n != 1 {
		t.Fatalf("applied %d times: %s", n, &r.log)
	}
	write(nil)
	r.write(with(`"User:CN=a"`))
	for range 3 {
		r.look()
	}
	if n := strings.Count(r.log.String(), "stays in force"); n != 1 || len(r.applied) != 1 {
		t.Fatalf("told %d times, applied %d times: %s", n, len(r.applied), &r.log)
	}
	write(good)
	r.look()
	if n := len(r.applied); n != 2 || !slices.Equal(r.current.Admin.Allow, []string{"User:CN=a"}) {
		t.Errorf("applied %d times, in force is %v: %s", n, r.current.Admin.Allow, &r.log)
	}
	r.look()
	if n := len(r.applied); n != 2 {
		t.Errorf("applied %d times, without a reason", n)
	}
}

// TestAllowOutlivesAListenerThatWaits: where a listener is to know its peers otherwise after a restart, those whom it knows by certificates
// until then stay allowed. Else all brokers and processes were shut out by a change that is not in force yet.
func TestAllowOutlivesAListenerThatWaits(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	certificate, key, err := sec.Certificate("kmirror")
	if err != nil {
		t.Fatal(err)
	}
	conf, err := sec.PeerTLS("broker")
	if err != nil {
		t.Fatal(err)
	}
	files := fmt.Sprintf("tls: {certificate: %q, key: %q, ca: %q}", certificate, key, sec.CA())
	parse := func(repl, admin string) *Config {
		t.Helper()
		c, err := parseConfig([]byte(strings.Replace(peersConfig("protocol: PLAINTEXT", repl), "admin: 127.0.0.1:0", "admin: "+admin, 1)), nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const plain = "127.0.0.1:0"
	secured := func(allow string) string {
		return fmt.Sprintf(`{bind: "127.0.0.1:0", %s, allow: ["User:CN=%s"]}`, files, allow)
	}
	certificates := func(allow string) string {
		return fmt.Sprintf(`protocol: SSL, %s, allow: ["User:CN=%s"]`, files, allow)
	}
	var log bytes.Buffer
	before := parse(certificates("broker"), secured("sre"))
	allow := newAllowance(before.Listeners[1])
	p := &process{log: slog.New(slog.NewTextHandler(&log, nil)), admin: new(admin.Server), proxy: new(proxy.Server), tap: tap.New(nil),
		sockets: &sockets{allow: map[string]*allowance{"REPL": allow}}}
	for _, c := range []struct {
		name    string
		next    *Config
		allowed bool
		logged  int
	}{
		{"logins", parse("protocol: SASL_SSL, "+files, secured("sre")), true, 0},
		{"no TLS", parse("protocol: PLAINTEXT", plain), true, 0},
		{"others", parse(certificates("other"), secured("other")), false, 2},
	} {
		log.Reset()
		p.reload(before, c.next, false)
		if _, ok := allow.check(conf.Certificates[0].Leaf); ok != c.allowed || strings.Count(log.String(), "verb=allow") != c.logged {
			t.Errorf("%s: the broker is allowed: %v; log: %s", c.name, ok, &log)
		}
	}
}
