package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/admin"
	"kmirror/internal/broker"
	"kmirror/internal/clientconf"
	"kmirror/internal/verify"
	"kmirror/protocol/kip1279"
	"kmirror/protocol/kraft"
	"kmirror/proxy"
)

// legs are the options of our own connections: to brokers (with and without their addresses), controllers, replication.
type legs struct{ bootstrap, client, controller, replication []kgo.Opt }

// legs reads the client properties. Connections of the options follow their stores, and log says so.
func (c *Config) legs(log *slog.Logger) (l legs, err error) {
	d := c.Destination
	for _, leg := range []struct {
		key   string
		props map[string]string
		into  *[]kgo.Opt
	}{
		{"client", d.Client, &l.client}, {"controller_client", d.ControllerClient, &l.controller},
		{"replication_client", d.ReplicationClient, &l.replication},
	} {
		if *leg.into, _, err = clientconf.Options(d.orClient(leg.props), log.With("leg", leg.key)); err != nil {
			return l, usageError(fmt.Sprintf("destination.%s: %v", leg.key, err), "correct the configuration")
		}
	}
	l.bootstrap = append(slices.Clone(l.client), kgo.SeedBrokers(d.BootstrapServers...), kgo.ClientID("kmirror"))
	return l, nil
}

// orClient returns the properties of a leg, which are those of Client where it has none of its own.
func (d DestinationConfig) orClient(props map[string]string) map[string]string {
	if len(props) == 0 {
		return d.Client
	}
	return props
}

// address is where the admin listener is reached.
func (a AdminConfig) address() string {
	if a.Advertised != "" {
		return a.Advertised
	}
	return a.Bind
}

// sockets are all listening sockets of the process. Each listener's addresses are those of the first node id; every further
// node id has the next port.
type sockets struct {
	clients     []proxy.Listener
	fronts      []proxy.Front
	nodes       []broker.Node
	admin, http net.Listener
	// adminTLS is the admin listener's, peerTLS what other processes are asked by; nil without TLS.
	adminTLS *tls.Config
	peerTLS  func() *tls.Config
	// allow are the brokers that may replicate, by listener.
	allow map[string]*allowance
	notes []string // what an operator should look at
}

func openSockets(cfg *Config, log *slog.Logger) (s *sockets, err error) {
	s = &sockets{allow: map[string]*allowance{}}
	for _, l := range cfg.Listeners {
		s.allow[l.Name] = newAllowance(l)
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	secure, err := serverTLS(cfg, log)
	if err != nil {
		return s, err
	}
	if s.adminTLS, s.peerTLS, err = adminTLS(cfg, log); err != nil {
		return s, err
	}
	legs, err := cfg.clientCertificates()
	if err != nil {
		return s, usageError(err.Error(), "correct the configuration")
	}
	s.notes = slices.Concat(certificateNotes(cfg, secure, time.Now()), adminNotes(cfg, s.adminTLS, time.Now()), expiryNotes(legs, time.Now()))
	for i, id := range cfg.NodeIDs {
		node := broker.Node{ID: id, Rack: cfg.Rack}
		for _, l := range cfg.Listeners {
			bind, host, port := l.endpoint(i)
			sock, err := listen(fmt.Sprintf("listeners.%s, node id %d", l.Name, id), bind)
			if err != nil {
				return s, err
			}
			if conf := secure[l.Name]; conf != nil {
				sock = tls.NewListener(sock, conf)
			}
			s.clients = append(s.clients, cfg.proxyListener(l, sock, id, s.allow[l.Name]))
			node.Listeners = append(node.Listeners, broker.Listener{Name: l.Name, Host: host, Port: port, SecurityProtocol: securityProtocols[l.Protocol]})
		}
		s.nodes = append(s.nodes, node)
	}
	if err := s.openGateways(cfg, log); err != nil {
		return s, err
	}
	if cfg.Admin.Bind != "" {
		if s.admin, err = listen("admin", cfg.Admin.Bind); err != nil {
			return s, err
		}
	}
	if cfg.HTTP != "" {
		s.http, err = listen("http", cfg.HTTP)
	}
	return s, err
}

// securityProtocols are Kafka's ids.
var securityProtocols = map[string]int16{"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

// listen opens an address for a key of the configuration.
func listen(key, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, usageError(key+": "+err.Error(), "free the address or choose another: another program has it, or a kmirror that still runs (ss -ltnp); "+
			"node ids after the first use the following ports")
	case err != nil:
		return nil, usageError(key+": "+err.Error(), "give an address of this machine, and a port that kmirror's user may open")
	}
	return l, nil
}

// close closes what is open; closing twice does no harm.
func (s *sockets) close() {
	for _, l := range s.clients {
		l.Listen.Close()
	}
	for _, f := range s.fronts {
		f.Listen.Close()
	}
	for _, l := range []net.Listener{s.admin, s.http} {
		if l != nil {
			l.Close()
		}
	}
}

// missingListeners refuses a destination whose real brokers have listeners that the configuration does not, or another protocol there:
// a client that learns of our node ids would find nobody, or somebody whom it does not understand.
func missingListeners(cfg *Config, img *kraft.Image) error {
	ours := map[string]bool{}
	for _, l := range cfg.Listeners {
		ours[l.Name] = true
	}
	var missing []string
	for id, b := range img.Brokers {
		if slices.Contains(cfg.NodeIDs, id) {
			continue
		}
		for _, e := range b.Endpoints {
			if !ours[e.Name] && !slices.Contains(missing, e.Name) {
				missing = append(missing, e.Name)
			}
		}
	}
	if len(missing) == 0 {
		return wrongProtocols(cfg, img)
	}
	slices.Sort(missing)
	return usageError("the destination's brokers have listeners that kmirror.yaml does not name: "+strings.Join(missing, ", "),
		"add an entry for each to listeners; nothing was registered")
}

// nodeConfig is what DescribeConfigs shows of our node ids.
func (p *process) nodeConfig(id int32) map[string]string {
	return map[string]string{"node.id": strconv.Itoa(int(id)), "process.roles": "broker", "kmirror.version": version, "broker.rack": p.cfg.Rack,
		"kmirror.admin": p.cfg.Admin.address()}
}

// verifySource finds out how to read the source of a mirror topic.
func (p *process) verifySource(name, topic string) (verify.Source, error) {
	def, ok := p.store.Mirror(name)
	if !ok {
		return verify.Source{}, &admin.Error{Code: kip1279.UnknownClusterMirror,
			Message: fmt.Sprintf("there is no mirror %q", name), Hint: "see kmirror list", Exit: admin.ExitUsage}
	}
	opts, _, err := clientconf.Options(def.Config, p.log.With("mirror", name))
	if err != nil {
		return verify.Source{}, err
	}
	src := verify.Source{Opts: opts, Key: name + fmt.Sprint(def.Config)}
	if t, ok := p.store.TopicByName(topic); ok && t.Mirror == name {
		src.TopicID = t.SourceTopicID
	}
	return src, nil
}

// askBrokers asks the destination what brokers it has, and holds the cluster against the one that is pinned.
func (c *Config) askBrokers(ctx context.Context, l legs) (kadm.Metadata, error) {
	cl, err := kgo.NewClient(append(slices.Clone(l.bootstrap), kgo.RetryTimeout(10*time.Second))...)
	if err != nil {
		return kadm.Metadata{}, err
	}
	defer cl.Close()
	meta, err := kadm.NewClient(cl).BrokerMetadata(ctx)
	if err != nil {
		return meta, unreachableError("the destination's brokers at "+strings.Join(c.Destination.BootstrapServers, ", "), err)
	}
	if c.ClusterID != "" && meta.Cluster != c.ClusterID {
		return meta, usageError(fmt.Sprintf("the destination is cluster %s, cluster_id pins %s", meta.Cluster, c.ClusterID), "correct one of the two")
	}
	return meta, nil
}

func unreachableError(what string, err error) error {
	return &admin.Error{Code: kip1279.UnknownServerError,
		Message: fmt.Sprintf("%s: %v", what, err), Exit: admin.ExitUnreachable,
		Hint: "check addresses (whose listener is it, brokers' or controllers'?), security settings and the network"}
}
