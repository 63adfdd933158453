package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/fetch"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// Listener is one open socket of one of our node ids.
type Listener struct {
	// Name is the listener's name in the destination; requests are forwarded to the endpoint of the same name.
	Name string
	// Listen accepts connections, of TLS (tls.NewListener) where the listener has it: its handshake is done in the connection's
	// own goroutine. Run closes it.
	Listen net.Listener
	NodeID int32
	// InterBroker: replica fetches are served. Set it on every listener of a cluster that has only one.
	InterBroker bool
	// Peer tells brokers of the destination by their certificates, where TLS asks for those; nil: they log in by SASL, or nobody proves
	// anything. Who is none is refused whatever it asks.
	Peer PeerCheck
	// Clients: who Peer does not take for a broker, or shows no certificate, is a client, served like one of a listener without Peer but
	// for what is between brokers.
	Clients bool
	// Mutual: brokers want a certificate there besides SASL.
	Mutual bool

	// front is set on the ports of a gateway, whose NodeID is the broker that is fronted, noNode on the bootstrap port.
	front *front
}

// Data is the leader's side of our partitions; *fetch.Leader is one.
type Data interface {
	// Fetch serves a replica's fetch that came to our node id.
	Fetch(ctx context.Context, req *kmsg.FetchRequest, nodeID int32) (*fetch.Reply, error)
	Status(id protocol.PartitionID) (fetch.Status, bool)
	// EpochEnd answers OffsetForLeaderEpoch; false: not known yet.
	EpochEnd(id protocol.PartitionID, epoch int32) (e int32, end int64, ok bool)
	HighWatermark(id protocol.PartitionID) (int64, bool)
}

var _ Data = (*fetch.Leader)(nil)

// Mirrors knows which topics of the destination are read-only.
type Mirrors interface {
	// MirrorOf returns the mirror that writes the topic, never "", and "", false when the topic is anybody's to write.
	MirrorOf(topicName string) (mirror string, ok bool)
}

// Asker sends a request to a real broker under kmirror's own principal.
type Asker interface {
	Ask(ctx context.Context, brokerID int32, req kmsg.Request) (kmsg.Response, error)
}

// Observer is told what happens; methods are called from many goroutines and must not block.
type Observer interface {
	// ProduceRefused: one topic of a Produce request was refused because mirror writes it.
	ProduceRefused(mirror, topic string)
	// Forwarded: the reply to a forwarded request went to the client this long after the request was read.
	Forwarded(api string, d time.Duration)
	ConnectionOpened(listener string)
	ConnectionClosed(listener string)
	// PeerRefused: a peer that is no broker of the destination connected to a listener with Peer.
	PeerRefused(listener string)
}

// NopObserver ignores everything. Embed it to watch a part only.
type NopObserver struct{}

// ProduceRefused does nothing.
func (NopObserver) ProduceRefused(string, string) {}

// Forwarded does nothing.
func (NopObserver) Forwarded(string, time.Duration) {}

// ConnectionOpened does nothing.
func (NopObserver) ConnectionOpened(string) {}

// ConnectionClosed does nothing.
func (NopObserver) ConnectionClosed(string) {}

// PeerRefused does nothing.
func (NopObserver) PeerRefused(string) {}

// Config of a Server. Listeners, Images, ClusterID, Leader, Mirrors and Owns are required.
type Config struct {
	Listeners []Listener
	Images    kraft.ImageSource
	// ClusterID is the destination's; empty as long as it is not known.
	ClusterID func() string
	Leader    Data
	Mirrors   Mirrors
	// Owns reports whether a node id is one of this or another kmirror process, so never a real broker.
	Owns func(int32) bool
	// UpstreamTLS makes a new configuration for each connection to an endpoint whose security protocol has TLS; the host of the endpoint is
	// the ServerName unless that is set. nil: all upstream connections are plain. It must hold no certificate of ours, which would give
	// every client our principal.
	UpstreamTLS func() *tls.Config
	// PeerTLS is used instead on listeners with Peer, for those whom it allows, and with Mutual. It may hold our certificate. Default
	// UpstreamTLS.
	PeerTLS func() *tls.Config
	// Asker looks up offsets at replicas that a client's SASL connection can't reach, since its authentication was relayed
	// to one broker. Without it such lookups are answered with a retriable error. Records are never read through it.
	Asker Asker
	// MaxFrame is the largest request and reply in bytes, default protocol.DefaultMaxFrame.
	MaxFrame int32
	// Memory bounds what requests hold; servers and gateways may share one. Default 256 MiB of its own.
	Memory *Memory
	// MaxConnections over all listeners, default 10000. Beyond it new ones are closed at once.
	MaxConnections int
	// ReadOnlyError refuses Produce to mirror topics: 44 (POLICY_VIOLATION, the default) or 134 (READ_ONLY_TOPIC).
	ReadOnlyError int16
	// IdleTimeout closes a connection that sends nothing, stops within a frame or does not read its replies for so long;
	// default 10 minutes, as connections.max.idle.ms. A request that waits for its reply keeps a connection alive.
	IdleTimeout time.Duration
	// DrainTimeout bounds how long replies in flight are awaited once Run is told to end, default 10 seconds.
	DrainTimeout time.Duration
	// NodeConfig is what DescribeConfigs shows of a node id of ours; nil: nothing.
	NodeConfig func(nodeID int32) map[string]string
	// Watch is asked once for each connection, when it is ready for requests; nil: none is watched.
	Watch    WatchFunc
	Log      *slog.Logger
	Observer Observer
}

// Error codes that ReadOnlyError may be.
const (
	PolicyViolation int16 = 44
	ReadOnlyTopic   int16 = 134
)

func (c *Config) validate() error {
	switch {
	case len(c.Listeners) == 0:
		return errors.New("proxy: no listener")
	case c.Images == nil || c.ClusterID == nil || c.Leader == nil || c.Mirrors == nil || c.Owns == nil:
		return errors.New("proxy: Images, ClusterID, Leader, Mirrors and Owns are required")
	}
	if err := c.validateLimits(); err != nil {
		return err
	}
	for _, l := range c.Listeners {
		if l.Listen == nil || l.Name == "" || l.NodeID < 0 {
			return fmt.Errorf("proxy: listener %q of node %d lacks a socket, a name or a node id", l.Name, l.NodeID)
		}
	}
	c.setDefaults()
	return nil
}

// showsCertificate reports whether a client with the configuration shows a certificate.
func showsCertificate(c *tls.Config) bool {
	return len(c.Certificates) > 0 || c.GetClientCertificate != nil
}

// validateLimits checks what a gateway has as well.
func (c *Config) validateLimits() error {
	switch {
	case c.UpstreamTLS != nil && showsCertificate(c.UpstreamTLS()):
		return errors.New("proxy: UpstreamTLS must not hold a certificate")
	case c.MaxFrame < 0 || c.MaxConnections < 0 || c.IdleTimeout < 0 || c.DrainTimeout < 0:
		return errors.New("proxy: limits must not be negative")
	case c.ReadOnlyError != 0 && c.ReadOnlyError != PolicyViolation && c.ReadOnlyError != ReadOnlyTopic:
		return fmt.Errorf("proxy: read-only error %d is neither %d nor %d", c.ReadOnlyError, PolicyViolation, ReadOnlyTopic)
	}
	return nil
}

func (c *Config) setDefaults() {
	if c.MaxFrame == 0 {
		c.MaxFrame = protocol.DefaultMaxFrame
	}
	if c.Memory == nil {
		c.Memory = NewMemory(256 << 20)
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = 10000
	}
	if c.ReadOnlyError == 0 {
		c.ReadOnlyError = PolicyViolation
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = 10 * time.Minute
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 10 * time.Second
	}
	if c.NodeConfig == nil {
		c.NodeConfig = func(int32) map[string]string { return nil }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Observer == nil {
		c.Observer = NopObserver{}
	}
}
