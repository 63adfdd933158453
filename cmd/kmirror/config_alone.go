package main

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"kmirror/internal/metapoll"
)

// alone reports whether the process is a gateway and nothing else, which is so where a gateway is configured and no controllers are. It
// knows brokers by asking them, so that they may be of any version and have ZooKeeper.
func (c *Config) alone() bool { return len(c.Gateway) > 0 && len(c.Destination.Controllers) == 0 }

// fronted is the destination's listener of a gateway, and the key that says what it speaks. A gateway alone stands in front of what
// destination.client connects to.
func (c *Config) fronted(name string) (l ListenerConfig, key string, ok bool) {
	if c.alone() {
		return ListenerConfig{Name: name, Protocol: c.Destination.protocol()}, "destination.client", true
	}
	i := slices.IndexFunc(c.Listeners, func(l ListenerConfig) bool { return l.Name == name })
	if i < 0 {
		return l, "", false
	}
	return c.Listeners[i], "listeners." + name, true
}

// protocol is what bootstrap servers speak.
func (d DestinationConfig) protocol() string {
	return cmp.Or(strings.ToUpper(strings.TrimSpace(d.Client["security.protocol"])), "PLAINTEXT")
}

// checkAlone checks what only a gateway alone wants, or can't have.
func (c *Config) checkAlone(k *checker) {
	const without = "has no meaning for a gateway alone; give destination.controllers, by which kmirror joins the destination, or leave it out"
	none := defaultConfig()
	for _, it := range []struct {
		key       string
		is, wants any
	}{
		{"node_ids", c.NodeIDs, none.NodeIDs}, {"rack", c.Rack, none.Rack}, {"admin", c.Admin, none.Admin},
		{"destination.controller_client", len(c.Destination.ControllerClient), 0},
		{"destination.replication_client", len(c.Destination.ReplicationClient), 0},
		{"destination.inter_broker_listener", c.Destination.InterBrokerListener, ""},
		{"listeners", len(c.Listeners), 0}, {"lock", c.Lock, none.Lock}, {"min_real_insync", c.MinRealInsync, none.MinRealInsync},
		{"on_evicted", c.OnEvicted, none.OnEvicted}, {"limits.source_bytes_per_second", c.Limits.SourceBytesPerSecond, none.Limits.SourceBytesPerSecond},
		{"read_only_error", c.ReadOnlyError, none.ReadOnlyError}, {"fence_after", c.FenceAfter, none.FenceAfter},
		{"fence_slower_than", c.FenceSlowerThan, none.FenceSlowerThan}, {"trace.listeners", len(c.Trace.Listeners), 0},
	} {
		if !reflect.DeepEqual(it.is, it.wants) {
			k.add(it.key, without)
		}
	}
	for _, g := range c.Gateway[1:] {
		if g.Name != c.Gateway[0].Name {
			k.add("gateway", "%s and %s: brokers tell of one listener, that of bootstrap_servers; give destination.controllers, by which all are known, "+
				"or run a process for each", c.Gateway[0].Name, g.Name)
		}
	}
	protocol := c.Destination.protocol()
	for i, g := range c.Gateway {
		if g.Name == "" {
			k.add(gatewayKey(i)+".name", "missing; give the listener's name at the destination, or any other for it")
		}
		if g.TLS == nil && strings.HasSuffix(protocol, "SSL") {
			k.add(gatewayKey(i)+".tls", "missing for security.protocol %s of destination.client; give certificate and key, for advertised_host", protocol)
		}
	}
	if protocol == "SSL" && c.Destination.Client["ssl.keystore.location"] != "" {
		k.add("destination.client", "ssl.keystore.location: where brokers know clients by certificates nothing can be relayed, since nobody can "+
			"show another's; remove it, or let clients log in by SASL")
	}
}

// poll is how the brokers of a gateway alone are found.
func (c *Config) poll(l legs) metapoll.Config {
	return metapoll.Config{Opts: l.client, Bootstrap: c.Destination.BootstrapServers, Listener: c.Gateway[0].Name,
		SecurityProtocol: securityProtocols[c.Destination.protocol()], ClusterID: c.ClusterID}
}
