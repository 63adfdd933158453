package preflight

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"time"

	"kmirror/protocol/kraft"
)

// dialLimit is how long a broker may take to be connected to.
const dialLimit = 5 * time.Second

// reach connects to the listeners of clients as forwarded connections do. Where no broker can be reached, clients that choose kmirror are
// not served.
func (r *Report) reach(ctx context.Context, c Config, real []*kraft.Broker) {
	for _, l := range c.Listeners {
		if l.Own {
			continue
		}
		check, tried, first := "way to listener "+l.Name, 0, error(nil)
		for _, b := range real {
			there, err := reachBroker(ctx, c, b, l.Name)
			if !there {
				continue
			}
			if tried++; err == nil {
				r.ok(check, "broker %d is reached", b.ID)
				first = nil
				break
			}
			if first == nil {
				first = err
			}
		}
		switch {
		case tried == 0:
			r.add(Warn, check, "start a broker with it", "no broker that is alive has the listener")
		case first != nil:
			r.add(Warn, check, "open the way from this host to what the brokers advertise, and let destination.client trust their certificates",
				"none of %d brokers is reached, so clients would not be served there: %v", tried, first)
		}
	}
}

// reachBroker connects to a broker's endpoint of a listener, with TLS where it has it; false when it is dead or has none.
func reachBroker(ctx context.Context, c Config, b *kraft.Broker, listener string) (there bool, err error) {
	for _, e := range b.Endpoints {
		if e.Name != listener || b.Fenced {
			continue
		}
		addr := net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
		ctx, cancel := context.WithTimeout(ctx, dialLimit)
		defer cancel()
		var dialer interface {
			DialContext(ctx context.Context, network, addr string) (net.Conn, error)
		} = new(net.Dialer)
		if e.TLS() && c.UpstreamTLS != nil {
			dialer = &tls.Dialer{Config: c.UpstreamTLS()} // which asks for the certificate of the host, if the configuration names no other
		}
		nc, err := dialer.DialContext(ctx, "tcp", addr)
		if nc != nil {
			nc.Close()
		}
		if err != nil {
			err = fmt.Errorf("broker %d at %s: %w", b.ID, addr, err)
		}
		return true, err
	}
	return false, nil
}
