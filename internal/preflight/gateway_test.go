package preflight

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/proxy"
)

func TestFrontedVersion(t *testing.T) {
	for version, want := range map[string]string{"2.1.1": "ok kafka version", "3.9.1": "ok kafka version", "4.4.0": "ok kafka version",
		"2.0.1": "warn kafka version: 2.0.1 is not tested", "4.5.0": "warn kafka version: 4.5.0 is newer", "x": "FAIL kafka version"} {
		wants(t, version, report(func(r *Report) { r.frontedVersion(version) }), want)
	}
}

// Each broker is connected to; those outside the ranges are named.
func TestFronted(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	alive := int32(ln.Addr().(*net.TCPAddr).Port)
	g := Gateway{Listener: Listener{Name: "CLIENT", Protocol: "PLAINTEXT"}, Fronts: func(id int32) bool { return id < 3 }}
	got := report(func(r *Report) {
		r.fronted(t.Context(), g, kadm.BrokerDetails{{NodeID: 1, Host: "127.0.0.1", Port: alive}, {NodeID: 2, Host: "127.0.0.1", Port: 1},
			{NodeID: 3, Host: "127.0.0.1", Port: alive}})
	})
	wants(t, "three", got, "ok gateway: 1 of 3 brokers are fronted and reached", "warn gateway: clients are not told of broker 3",
		"FAIL gateway: clients would not be served: broker 2 at 127.0.0.1:1")
	if strings.Count(got, "\n") != 2 {
		t.Error(got)
	}
}

// What the gateway passes as bytes is told to clients whatever its version, also where a mirror process answers it itself.
func TestWithheld(t *testing.T) {
	everything := func(up int16) []kmsg.ApiVersionsResponseApiKey {
		var keys []kmsg.ApiVersionsResponseApiKey
		for _, a := range protocol.APIs() {
			keys = append(keys, kmsg.ApiVersionsResponseApiKey{ApiKey: a.Key, MinVersion: a.Min, MaxVersion: a.Max + up})
		}
		return keys
	}
	one := func(key, least, most int16) []kmsg.ApiVersionsResponseApiKey {
		return []kmsg.ApiVersionsResponseApiKey{{ApiKey: key, MinVersion: least, MaxVersion: most}}
	}
	for _, tt := range []struct {
		name   string
		broker []kmsg.ApiVersionsResponseApiKey
		want   string
	}{
		{"what is known", everything(0), ""},
		{"one version more of all", everything(1), "Produce 14, Fetch 19, Metadata 14, FindCoordinator 7, SaslHandshake 2, ApiVersions 6, " +
			"SaslAuthenticate 3, DescribeQuorum 3, DescribeCluster 3, ShareFetch 3, ShareAcknowledge 3"},
		{"ListOffsets is passed", one(2, 1, 99), ""},
		{"brokers' own", one(56, 2, 99), ""},
		{"only newer versions", one(3, 50, 99), "Metadata 99"},
		{"an unknown key", one(999, 0, 1), "API key 999"},
	} {
		if got := strings.Join(withheld(tt.broker, proxy.Understood), ", "); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestExpiry(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name string
		list []Certificate
		want string
	}{
		{"none", nil, ""},
		{"good", []Certificate{{"admin", now.Add(ExpiresSoon)}, {"listener A", now.AddDate(1, 0, 0)}},
			"ok certificates: 2 of 2 are valid for two weeks and more"},
		{"soon", []Certificate{{"admin", now.Add(ExpiresSoon - time.Second)}},
			"warn certificates: that of admin is valid until 2026-01-14T23:59:59Z only"},
		{"expired", []Certificate{{"admin", now}, {"listener A", now.AddDate(1, 0, 0)}},
			"FAIL certificates: that of admin has expired, it was valid until 2026-01-01T00:00:00Z\nok certificates: 1 of 2 are valid for two weeks and more"},
	} {
		if got := report(func(r *Report) { r.expiry(tt.list, now) }); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
