package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kmirror/proxy"
)

// GatewayConfig fronts every broker of the destination.
type GatewayConfig struct {
	// Name is the destination's listener that is connected to.
	Name string `yaml:"name"`
	// Bootstrap is the address of the first port. Node ids have the ports after it, in the order of NodeIDRanges, unless there is SNI.
	Bootstrap string `yaml:"bootstrap"`
	// AdvertisedHost is what clients are told instead of brokers' hosts; with SNI, the name to bootstrap from.
	AdvertisedHost string `yaml:"advertised_host"`
	// NodeIDRanges are ranges such as 1-9, or single ids. With SNI none means all.
	NodeIDRanges []string `yaml:"node_id_ranges"`
	// SNI has one port, Bootstrap, for all brokers, which the server names of clients' TLS tell apart. Optional.
	SNI *SNIConfig `yaml:"sni"`
	// TLS is used where the listener has TLS; the listener's own by default.
	TLS *TLSFiles `yaml:"tls"`
}

// SNIConfig gives brokers host names.
type SNIConfig struct {
	// Broker is a pattern of host names with {id} in it, such as b{id}.kafka.example.com.
	Broker string `yaml:"broker"`
	// Port is what clients are told with them; that of Bootstrap by default.
	Port int `yaml:"port"`
}

// names are the brokers' names of a gateway, nil without SNI.
func (g GatewayConfig) names() (*proxy.Names, error) {
	if g.SNI == nil {
		return nil, nil
	}
	if g.SNI.Port < 0 || g.SNI.Port > 65535 {
		return nil, fmt.Errorf("port %d is not one", g.SNI.Port)
	}
	_, port := splitPort(g.Bootstrap)
	return proxy.ParseNames(g.SNI.Broker, uint16(cmp.Or(g.SNI.Port, port)))
}

// fronts reports whether a node id is in the ranges.
func (g GatewayConfig) fronts(id int32) bool {
	ranges, _ := g.ranges()
	return g.SNI != nil && len(ranges) == 0 || slices.ContainsFunc(ranges, func(r proxy.IDRange) bool { return id >= r.First && id <= r.Last })
}

// ranges reads NodeIDRanges.
func (g GatewayConfig) ranges() ([]proxy.IDRange, error) {
	var list []proxy.IDRange
	for _, text := range g.NodeIDRanges {
		from, to, ok := strings.Cut(text, "-")
		if !ok {
			to = from
		}
		first, err := strconv.ParseInt(strings.TrimSpace(from), 10, 32)
		last, err2 := strconv.ParseInt(strings.TrimSpace(to), 10, 32)
		if err != nil || err2 != nil || first < 0 || last < first {
			return nil, fmt.Errorf("%q is not a range of broker ids such as 1-9", text)
		}
		r := proxy.IDRange{First: int32(first), Last: int32(last)}
		for _, other := range list {
			if r.First <= other.Last && other.First <= r.Last {
				return nil, fmt.Errorf("%q overlaps with %d-%d; give each id once", text, other.First, other.Last)
			}
		}
		list = append(list, r)
	}
	return list, nil
}

// last is the highest port of a gateway.
func (g GatewayConfig) last() int {
	_, port := splitPort(g.Bootstrap)
	if g.SNI != nil {
		return port
	}
	ranges, _ := g.ranges()
	for _, r := range ranges {
		port += int(r.Last) - int(r.First) + 1
	}
	return port
}

// files are the certificate of a gateway in front of a listener, nil for none.
func (g GatewayConfig) files(l ListenerConfig) *TLSFiles {
	if g.TLS != nil {
		return g.TLS
	}
	return l.TLS
}

// gatewayKey names a gateway in messages.
func gatewayKey(i int) string { return fmt.Sprintf("gateway[%d]", i) }

func (c *Config) checkGateways(k *checker) {
	for i, g := range c.Gateway {
		key := gatewayKey(i)
		l, by, ok := c.fronted(g.Name)
		if !ok {
			k.add(key+".name", "%q is not among listeners; give the listener of the destination that clients are to be connected to", g.Name)
		} else if !c.alone() && c.knowsPeers(l) {
			k.add(key+".name", "brokers know each other by certificates on %s, which nobody can show through a gateway; give another listener", g.Name)
		} else if secure := strings.HasSuffix(l.Protocol, "SSL"); g.TLS != nil && secure {
			k.certificate(key, g.TLS)
		} else if g.TLS != nil {
			k.add(key+".tls", "has no meaning for protocol %s of %s; remove it", l.Protocol, by)
		}
		k.advertisedHost(key+".advertised_host", g.AdvertisedHost)
		if g.SNI != nil {
			c.checkNames(k, key, g)
		}
		ranges, err := g.ranges()
		switch {
		case err != nil:
			k.add(key+".node_id_ranges", "%v", err)
		case len(ranges) == 0 && g.SNI == nil:
			k.add(key+".node_id_ranges", "missing; give the ids of all brokers to be fronted, kmirror's own among them, such as [1-9, 9001-9002]")
		case k.bind(key+".bootstrap", g.Bootstrap, true):
			c.checkGatewayPorts(k, key, i)
			c.checkOwnIDs(k, key, g)
		}
	}
}

// checkOwnIDs wants a gateway to front this process: what it leads are the mirror topics.
func (c *Config) checkOwnIDs(k *checker, key string, g GatewayConfig) {
	for _, id := range c.NodeIDs {
		if !g.fronts(id) {
			k.add(key+".node_id_ranges", `%d of node_ids is in none of them, so that clients could not reach what it leads; append "%d"`, id, id)
		}
	}
}

// checkNames checks what tells brokers apart on one port.
func (c *Config) checkNames(k *checker, key string, g GatewayConfig) {
	names, err := g.names()
	if err != nil {
		k.add(key+".sni", "%v", err)
	}
	if l, by, ok := c.fronted(g.Name); ok && !strings.HasSuffix(l.Protocol, "SSL") {
		k.add(key+".sni", "needs TLS, which protocol %s of %s has not; give node_id_ranges instead, a port for each broker", l.Protocol, by)
	}
	if _, err := netip.ParseAddr(g.AdvertisedHost); err == nil {
		k.add(key+".advertised_host", "%s is an address, which clients' TLS never asks for by SNI; give a host name", g.AdvertisedHost)
	}
	if names != nil {
		if id, ok := names.ID(strings.ToLower(g.AdvertisedHost)); ok {
			k.add(key+".advertised_host", "%s is the name of broker %d by sni.broker; give the bootstrap port another name", g.AdvertisedHost, id)
		}
	}
}

// checkGatewayPorts makes sure that nothing else is bound to a gateway's ports.
func (c *Config) checkGatewayPorts(k *checker, key string, i int) {
	host, first := splitPort(c.Gateway[i].Bootstrap)
	last := c.Gateway[i].last()
	if first == 0 && c.Gateway[i].SNI != nil {
		k.add(key+".bootstrap", "needs a port that is not 0")
		return
	}
	if first == 0 || last > 65535 {
		k.add(key+".bootstrap", "needs a port that is not 0, and one more for each node id of node_id_ranges: up to %d, of 65535", last)
		return
	}
	taken := func(what, address string, more int) {
		other, from := splitPort(address)
		if from > 0 && from <= last && from+more >= first && (host == other || unspecified(host) || unspecified(other)) {
			k.add(key+".bootstrap", "needs the ports %d to %d, some of which %s has; each node id of node_id_ranges takes one", first, last, what)
		}
	}
	taken("admin", c.Admin.Bind, 0)
	taken("http", c.HTTP, 0)
	for _, l := range c.Listeners {
		taken("listeners."+l.Name, l.Bind, len(c.NodeIDs)-1)
	}
	for j, g := range c.Gateway[:i] {
		_, from := splitPort(g.Bootstrap)
		taken(gatewayKey(j), g.Bootstrap, g.last()-from)
	}
}

// advertisedHost checks a host, without port, that others connect to.
func (k *checker) advertisedHost(key, host string) {
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "":
		k.add(key, "missing; give the host name under which clients reach this process")
	case err == nil && ip.IsUnspecified():
		k.add(key, "%s can't be connected to; give a name or address that others reach", host)
	case err != nil && strings.ContainsAny(host, ":/ "):
		k.add(key, "%q is not a host name; the port is that of bootstrap and what follows it", host)
	}
}
