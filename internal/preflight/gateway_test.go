package preflight

import (
	"net"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
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
