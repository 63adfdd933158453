package trace

import (
	"net"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Addresses are the brokers' addresses, host:port, that a response to Metadata, FindCoordinator or DescribeCluster tells its client,
// which connects to them from then on. Each is named once.
func (e *Event) Addresses() []string {
	var out []string
	add := func(host string, port int32) {
		if host == "" || port <= 0 {
			return // there is none, as of a coordinator that is not available
		}
		if a := net.JoinHostPort(host, strconv.Itoa(int(port))); !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	switch r := e.Body.(type) {
	case *kmsg.MetadataResponse:
		for _, b := range r.Brokers {
			add(b.Host, b.Port)
		}
	case *kmsg.FindCoordinatorResponse:
		add(r.Host, r.Port)
		for _, c := range r.Coordinators {
			add(c.Host, c.Port)
		}
	case *kmsg.DescribeClusterResponse:
		for _, b := range r.Brokers {
			add(b.Host, b.Port)
		}
	}
	return out
}
