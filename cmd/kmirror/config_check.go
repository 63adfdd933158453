package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"kmirror/internal/clientconf"
	"kmirror/protocol"
)

// checker collects what is wrong with a configuration.
type checker struct{ problems []string }

func (k *checker) add(key, format string, args ...any) {
	k.problems = append(k.problems, key+": "+fmt.Sprintf(format, args...))
}

// problems returns all that is wrong, each line with the key and what to do.
func (c *Config) problems() []string {
	k := &checker{}
	c.checkCluster(k)
	k.bind("http", c.HTTP, false)
	k.servers("destination.bootstrap_servers", c.Destination.BootstrapServers, "brokers of the destination")
	k.client("destination.client", c.Destination.Client)
	if c.alone() {
		c.checkAlone(k)
	} else {
		c.checkIDs(k)
		c.checkAdmin(k)
		c.checkDestination(k)
		c.checkListeners(k)
	}
	c.checkGateways(k)
	c.checkChoices(k)
	c.checkNumbers(k)
	c.checkTrace(k)
	return k.problems
}

func (c *Config) checkCluster(k *checker) {
	if c.ClusterID != "" {
		if _, err := protocol.ParseUUID(c.ClusterID); err != nil {
			k.add("cluster_id", "%v; see kafka-cluster cluster-id, or leave it out", err)
		}
	}
}

func (c *Config) checkIDs(k *checker) {
	if len(c.NodeIDs) < 2 {
		k.add("node_ids", "%d given; give at least two broker ids that no broker of the destination has, such as [9001, 9002]",
			len(c.NodeIDs))
	}
	for i, id := range c.NodeIDs {
		if id < 0 {
			k.add("node_ids", "%d is negative; give ids from 0 up", id)
		}
		if slices.Contains(c.NodeIDs[:i], id) {
			k.add("node_ids", "%d stands twice; give different ids", id)
		}
	}
}

func (c *Config) checkAdmin(k *checker) {
	k.bind("admin", c.Admin.Bind, true)
	if c.Admin.Advertised != "" {
		k.hostPort("admin.advertised", c.Admin.Advertised)
	}
	k.access(c.Admin)
}

// access checks who may use the admin listener.
func (k *checker) access(a AdminConfig) {
	if a.TLS == nil {
		if a.Bind != "" && !loopback(a.Bind) {
			k.add("admin", "%s is reachable from other hosts; add admin.tls and admin.allow, or bind to 127.0.0.1", a.Bind)
		}
		if len(a.Allow) > 0 {
			k.add("admin.allow", "clients are known by their certificates only: add admin.tls with certificate, key and ca, or remove it")
		}
		return
	}
	if host, _ := splitPort(a.Bind); a.Advertised == "" && !loopback(a.Bind) && unspecified(host) {
		k.add("admin.advertised", "missing; give host:port under which operators and other processes reach %s", a.Bind)
	}
	if len(a.Allow) == 0 {
		k.add("admin.allow", `missing, so nobody could ask anything; name principals, those of other processes among them, such as "User:CN=sre"`)
	}
	k.principals("admin.allow", a.Allow, false)
	switch {
	case a.TLS.Certificate == "":
		k.add("admin.tls.certificate", "missing; give files for the host name under which kmirror is reached")
		return
	case a.TLS.CA == "":
		k.add("admin.tls.ca", "missing; give a file with the authorities of the certificates of clients and other processes")
		return
	}
	k.readable("admin", a.TLS.mutual())
}

// readable reads the files of a listener's certificate, so that a wrong one shows before the start.
func (k *checker) readable(key string, files clientconf.ServerFiles) {
	if _, err := clientconf.ServerTLS(files, slog.New(slog.DiscardHandler)); err != nil {
		k.add(key+".tls", "%v; give %s", err, wantedFiles)
	}
}

// wantedFiles is what a certificate may be given as.
const wantedFiles = "PEM, PKCS12 or JKS files that kmirror can read"

// principals checks a list of who may do something, by certificate. mapped: rules make other names of subjects.
func (k *checker) principals(key string, allow []string, mapped bool) {
	for _, principal := range allow {
		switch name, ok := strings.CutPrefix(principal, "User:"); {
		case mapped:
			if !ok || name == "" {
				k.add(key, `%q is no principal; write "User:" and what principal_mapping_rules make of a certificate's subject`, principal)
			}
		case !ok || !strings.Contains(name, "="):
			k.add(key, `%q is no principal; write "User:" and the subject of the client's certificate, such as "User:CN=sre,O=Acme"`, principal)
		case spaced.MatchString(name):
			k.add(key, `%q has a space after a comma; write the subject as Kafka does, such as "User:CN=sre,O=Acme" `+
				"(openssl x509 -noout -subject -nameopt RFC2253)", principal)
		}
	}
}

// spaced finds a space between two parts of a distinguished name.
var spaced = regexp.MustCompile(`(^|[^\\])[,+] `)

// unspecified reports whether a host to listen on stands for all addresses of this one, so that others can't connect to it.
func unspecified(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// loopback reports whether only processes of this host reach an address.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func (c *Config) checkDestination(k *checker) {
	d := c.Destination
	k.servers("destination.controllers", d.Controllers, "controllers of the destination")
	k.client("destination.controller_client", d.ControllerClient)
	k.client("destination.replication_client", d.ReplicationClient)
	if d.InterBrokerListener == "" {
		k.add("destination.inter_broker_listener", "missing; give inter.broker.listener.name of the destination's brokers")
	}
}

// client checks the properties of one kind of connections.
func (k *checker) client(key string, props map[string]string) {
	if err := clientconf.CheckSecrets(props); err != nil {
		k.add(key, "%v", err)
	} else if _, _, err := clientconf.Options(props, nil); err != nil {
		k.add(key, "%v", err)
	}
	if _, ok := props["bootstrap.servers"]; ok {
		k.add(key, "bootstrap.servers belongs into destination.bootstrap_servers; remove it here")
	}
}

func (c *Config) checkListeners(k *checker) {
	if len(c.Listeners) == 0 {
		k.add("listeners", "none given; give every listener name that the destination's brokers have")
	}
	var names []string
	bound, advertised := map[string]string{}, map[string]string{}
	for i, l := range c.Listeners {
		key := fmt.Sprintf("listeners[%d]", i)
		if l.Name == "" {
			k.add(key+".name", "missing; give the listener's name at the destination")
		} else {
			key = "listeners." + l.Name
		}
		if slices.Contains(names, l.Name) {
			k.add(key, "stands twice; give each listener once")
		}
		names = append(names, l.Name)
		if k.bind(key+".bind", l.Bind, true) && k.hostPort(key+".advertised", l.Advertised) {
			c.checkPorts(k, key, l, bound, advertised)
		}
		k.protocol(key, l)
		c.checkPeers(k, key, l)
	}
	if d := c.Destination.InterBrokerListener; d != "" && len(c.Listeners) > 0 && !slices.Contains(names, d) {
		k.add("destination.inter_broker_listener", "%s is not among listeners; add it there", d)
	}
}

// protocol checks what a listener speaks, and that it has a certificate where it needs one.
func (k *checker) protocol(key string, l ListenerConfig) {
	switch l.Protocol {
	case "PLAINTEXT", "SASL_PLAINTEXT":
		if l.TLS != nil {
			k.add(key+".tls", "has no meaning for protocol %s; remove it", l.Protocol)
		}
		return
	case "SSL", "SASL_SSL":
	default:
		k.add(key+".protocol",
			"%q is not known; give PLAINTEXT, SASL_PLAINTEXT, SSL or SASL_SSL, as the destination's brokers have it",
			l.Protocol)
		return
	}
	if l.TLS == nil || l.TLS.Certificate == "" {
		k.add(key+".tls", "missing for protocol %s; give certificate and key, for the host name under which others reach kmirror", l.Protocol)
	}
}

// certificate checks the files that clients are shown.
func (k *checker) certificate(key string, files *TLSFiles) {
	if files.CA != "" {
		k.add(key+".tls.ca", "a client certificate can't be relayed to the broker, so none can be asked for; remove it "+
			"and let clients log in by SASL")
	}
	k.readable(key, files.files())
}

// checkPorts makes sure that no two node ids and listeners share a port. The maps hold what is taken, and by what.
func (c *Config) checkPorts(k *checker, key string, l ListenerConfig, bound, advertised map[string]string) {
	const taken = "%s needs %s, taken by %s; each node id takes one port from the one given up"
	for i, id := range c.NodeIDs {
		bind, host, port := l.endpoint(i)
		addr := net.JoinHostPort(host, strconv.Itoa(int(port)))
		mine := fmt.Sprintf("%s for node id %d", key, id)
		_, first := splitPort(l.Advertised)
		if _, bindPort := splitPort(bind); bindPort > 65535 || first+i > 65535 {
			k.add(key, "needs one port for each node id from the one given up, beyond 65535; give a lower one")
			return
		}
		if other, ok := bound[bind]; ok {
			k.add(key+".bind", taken, mine, bind, other)
		}
		if other, ok := advertised[addr]; ok {
			k.add(key+".advertised", taken, mine, addr, other)
		}
		if _, port := splitPort(bind); port != 0 {
			bound[bind] = mine
		}
		advertised[addr] = mine
	}
}

func (c *Config) checkChoices(k *checker) {
	k.oneOf("on_evicted", c.OnEvicted, "alarm", "reregister")
	k.oneOf("read_only_error", c.ReadOnlyError, "policy_violation", "read_only_topic")
	k.oneOf("log.format", c.Log.Format, "json", "text")
	k.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	if slices.Contains(c.Lock, "deny_acl") {
		k.add("lock", "deny_acl is not supported by this version yet; leave it out")
	}
	for _, must := range []string{"size", "min_isr"} {
		if !slices.Contains(c.Lock, must) {
			k.add("lock", "%s is missing; both size and min_isr are needed to keep mirror topics from being written", must)
		}
	}
	for _, l := range c.Lock {
		if !slices.Contains([]string{"size", "min_isr", "deny_acl"}, l) {
			k.add("lock", "%q is not known; give size and min_isr", l)
		}
	}
}

func (c *Config) checkNumbers(k *checker) {
	if c.MinRealInsync < 0 {
		k.add("min_real_insync", "is negative; give 1 or more, or leave it out for each topic's own min.insync.replicas")
	}
	if c.Limits.Connections < 1 {
		k.add("limits.connections", "must be at least 1")
	}
	if c.Limits.Memory < 64<<20 {
		k.add("limits.memory", "must be at least 64MiB")
	}
	if c.FenceAfter != 0 && (c.FenceAfter < time.Second || c.FenceAfter > time.Hour) {
		k.add("fence_after", "%s; give 1s to 1h, more than the brokers' broker.session.timeout.ms, or 0s for never", c.FenceAfter)
	}
	if c.FenceSlowerThan < 100*time.Millisecond || c.FenceSlowerThan > time.Minute {
		k.add("fence_slower_than", "%s; give 100ms to 1m", c.FenceSlowerThan)
	}
	if c.ShutdownTimeout < time.Second || c.ShutdownTimeout > time.Hour {
		k.add("shutdown_timeout", "%s; give 1s to 1h", c.ShutdownTimeout)
	}
}

func (k *checker) oneOf(key, value string, choices ...string) {
	if !slices.Contains(choices, value) {
		k.add(key, "%q is not known; give %s", value, strings.Join(choices, " or "))
	}
}

func (k *checker) servers(key string, list []string, what string) {
	if len(list) == 0 {
		k.add(key, "missing; give host:port of %s", what)
	}
	for _, s := range list {
		if _, err := clientconf.Servers(s); err != nil {
			k.add(key, "%v", err)
		}
	}
}

// hostPort checks an address that others connect to.
func (k *checker) hostPort(key, address string) bool {
	host, port, err := net.SplitHostPort(address)
	switch {
	case address == "":
		k.add(key, "missing; give host:port under which others reach it")
		return false
	case err != nil || host == "" || !validPort(port) || port == "0":
		k.add(key, "%q is not host:port", address)
		return false
	}
	if unspecified(host) {
		k.add(key, "%s can't be connected to; give a name or address that others reach", address)
		return false
	}
	return true
}

// bind checks an address to listen on; the host may be empty and the port 0.
func (k *checker) bind(key, address string, required bool) bool {
	if address == "" {
		if required {
			k.add(key, "missing; give host:port to listen on")
		}
		return false
	}
	if _, port, err := net.SplitHostPort(address); err != nil || !validPort(port) {
		k.add(key, "%q is not host:port", address)
		return false
	}
	return true
}

func validPort(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}
