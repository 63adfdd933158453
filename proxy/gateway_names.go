package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
)

// idPlace is where a broker's id stands in a pattern of names.
const idPlace = "{id}"

// Names are the host names of brokers behind one TLS port, such as b1.kafka.example.com for broker 1. The server name that a client's
// TLS asks for (SNI) says which broker it means.
type Names struct {
	prefix, suffix string
	port           uint16
}

// ParseNames reads a pattern of host names with {id} in it, once, such as b{id}.kafka.example.com. Port is what clients are told with
// each name.
func ParseNames(pattern string, port uint16) (*Names, error) {
	prefix, suffix, ok := strings.Cut(strings.ToLower(pattern), idPlace)
	n := &Names{prefix: prefix, suffix: suffix, port: port}
	switch longest := n.Of(math.MaxInt32); {
	case !ok || strings.Contains(suffix, idPlace):
		return nil, fmt.Errorf("%q needs %s once, for the broker's id", pattern, idPlace)
	case port == 0:
		return nil, errors.New("the port is 0")
	case prefix != "" && digit(prefix[len(prefix)-1]) || suffix != "" && digit(suffix[0]):
		return nil, fmt.Errorf("%q has a digit next to %s", pattern, idPlace)
	case !hostName(longest):
		return nil, fmt.Errorf("%q is not a pattern of host names such as b{id}.kafka.example.com", pattern)
	}
	return n, nil
}

func digit(b byte) bool { return b >= '0' && b <= '9' }

// hostName reports whether a name, in lower case, can be asked for by SNI: RFC 6066 leaves addresses and a dot at the end out.
func hostName(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil || len(name) > 253 {
		return false
	}
	letter := false
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		letter = false // the last label of a name has one, that of an address has none
		for i := range len(label) {
			b := label[i]
			letter = letter || b >= 'a' && b <= 'z'
			if !digit(b) && (b < 'a' || b > 'z') && b != '-' && b != '_' {
				return false
			}
		}
	}
	return letter
}

// Of returns the name of a broker.
func (n *Names) Of(id int32) string { return n.prefix + strconv.Itoa(int(id)) + n.suffix }

// ID returns the broker that a name, in lower case, stands for: each has one name only.
func (n *Names) ID(name string) (int32, bool) {
	if len(name) <= len(n.prefix)+len(n.suffix) || !strings.HasPrefix(name, n.prefix) || !strings.HasSuffix(name, n.suffix) {
		return 0, false
	}
	text := name[len(n.prefix) : len(name)-len(n.suffix)]
	id, err := strconv.ParseUint(text, 10, 31)
	if err != nil || strconv.FormatUint(id, 10) != text { // no sign, no leading zero
		return 0, false
	}
	return int32(id), true
}

// String is the pattern.
func (n *Names) String() string { return n.prefix + idPlace + n.suffix }

// Wildcard is what a certificate has to be for to cover all brokers; where the id is not in the first part of the name there is no such
// certificate, and it is the pattern.
func (n *Names) Wildcard() string {
	if _, rest, ok := strings.Cut(n.suffix, "."); ok && !strings.Contains(n.prefix, ".") && strings.Contains(rest, ".") {
		return "*." + rest
	}
	return n.String()
}

// meant returns the broker that a server name asks for, noNode for the bootstrap name, or why it is refused.
func (f *front) meant(name string) (id int32, refused error) {
	asked := strings.ToLower(name)
	if asked != "" && asked == strings.ToLower(f.AdvertisedHost) {
		return noNode, nil
	}
	id, ok := f.Names.ID(asked)
	if ok && f.in(id) {
		if _, ok := endpointOf(f.g.s.cfg.Images.Image().Brokers[id], f.Name); ok {
			return id, nil
		}
	}
	what := fmt.Sprintf("asks for %.100q", name)
	if name == "" {
		what = "names no server (SNI)"
	}
	return 0, fmt.Errorf("the client's TLS %s; served are %s and, for brokers that are registered with listener %s, %s", what,
		f.AdvertisedHost, f.Name, f.Names)
}

// refusal is put into the context of a handshake, for why it fails.
type refusal struct{ err error }

type refusalKey struct{}

// serverNames makes a TLS configuration refuse server names that nothing is behind. Clients get the alert unrecognized_name, which is
// what crypto/tls sends where there is no certificate.
func (f *front) serverNames(conf *tls.Config) *tls.Config {
	nothing := &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
	conf = conf.Clone()
	conf.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		_, err := f.meant(hello.ServerName)
		if err == nil {
			return nil, nil
		}
		if r, ok := hello.Context().Value(refusalKey{}).(*refusal); ok {
			r.err = err
		}
		return nothing, nil
	}
	return conf
}

// named does the handshake of a port whose brokers are told apart by name, after which the connection stands for one of them.
func (c *conn) named(ctx context.Context, secure *tls.Conn) error {
	var r refusal
	err := secure.HandshakeContext(context.WithValue(ctx, refusalKey{}, &r))
	id := noNode
	if err == nil && r.err == nil {
		id, r.err = c.l.front.meant(secure.ConnectionState().ServerName)
	}
	if r.err != nil {
		return &closeError{kind: "server name", err: r.err}
	}
	if err != nil {
		return err
	}
	c.s.mu.Lock() // close looks for a broker's connections
	c.l.NodeID = id
	c.s.mu.Unlock()
	return nil
}

// greet notes a broker that has a name, and says when clients are going to refuse the certificate for it.
func (f *front) greet(id int32) {
	host := f.Names.Of(id)
	f.open[id] = &port{stop: func() {}, cut: func() {}, accepted: closedChannel()}
	f.g.s.log.Info("gateway serves a broker", "listener", f.Name, "broker", id, "name", host, "port", f.Names.port)
	if leaf := leafOf(f.TLS); leaf != nil && leaf.VerifyHostname(host) != nil {
		f.g.s.log.Warn("the gateway's certificate is not for the name of a broker: clients refuse it", "listener", f.Name, "broker", id,
			"name", host, "certificate_names", strings.Join(leaf.DNSNames, ","), "hint", "have one signed for "+f.Names.Wildcard()+" and "+f.AdvertisedHost)
	}
}

func closedChannel() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// leafOf returns the certificate that a server shows, nil when it is not known.
func leafOf(conf *tls.Config) *x509.Certificate {
	if conf.GetCertificate != nil {
		if cert, err := conf.GetCertificate(&tls.ClientHelloInfo{}); err == nil && cert != nil {
			return cert.Leaf
		}
	}
	return nil
}
