// Package broker is our membership of the destination cluster: it registers node ids with the KRaft controller, keeps
// them alive, follows the metadata log, proposes ISRs as a leader does and places our own partitions as an operator does.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// Listener is one endpoint that a node id advertises. SecurityProtocol is Kafka's id: 0 PLAINTEXT, 1 SSL,
// 2 SASL_PLAINTEXT, 3 SASL_SSL.
type Listener struct {
	Name, Host       string
	Port             uint16
	SecurityProtocol int16
}

// Node is one node id that this process registers.
type Node struct {
	ID        int32
	Rack      string
	Listeners []Listener
}

// What to do when somebody unregisters one of our node ids (Config.OnEvicted).
const (
	// EvictedAlarm leaves the node id unregistered: whoever took it away had a reason.
	EvictedAlarm = "alarm"
	// EvictedReregister registers again.
	EvictedReregister = "reregister"
)

// Config is what a Broker needs; zero values of the optional fields mean their defaults.
type Config struct {
	// Nodes are the node ids of this process, at least one.
	Nodes []Node
	// ClusterID pins the destination; when set, any other cluster is refused before anything is registered.
	ClusterID string
	// Bootstrap are real brokers of the destination, Controllers its controllers (host:port).
	Bootstrap, Controllers []string
	// ClientOpts, ControllerOpts and ReplicationOpts carry TLS and SASL of the three legs.
	ClientOpts, ControllerOpts, ReplicationOpts []kgo.Opt
	// InterBrokerListener names the listener of real brokers that replica fetches go to.
	InterBrokerListener string
	// Log is slog.Default() when nil.
	Log *slog.Logger
	// OnEvicted is EvictedAlarm (default) or EvictedReregister.
	OnEvicted string
	// Check looks at the destination before anything is registered; its error ends Run. Optional.
	Check func(context.Context, *kraft.Image) error
	// LiftPeers asks other kmirror processes to lift the cordon of their node ids for a few seconds, and returns when they have: a
	// replica list that names a cordoned id is refused, whoever asks. nil where there are no others.
	LiftPeers func(ctx context.Context, ids []int32) error
	// Observer gets events for metrics; optional.
	Observer Observer
	// HeartbeatInterval is broker.heartbeat.interval.ms, 2 s by default.
	HeartbeatInterval time.Duration
	// ShutdownTimeout bounds the controlled shutdown, 10 s by default.
	ShutdownTimeout time.Duration
}

// State is the life of one node id.
type State string

// States of a node id.
const (
	// StateStarting: not registered by this process yet.
	StateStarting State = "STARTING"
	// StateRegistered: registered, no heartbeat answered yet.
	StateRegistered State = "REGISTERED"
	// StateFenced: the controller does not let it lead or be in an ISR.
	StateFenced State = "FENCED"
	// StateActive: unfenced.
	StateActive State = "ACTIVE"
	// StateEvicted: unregistered by somebody else.
	StateEvicted State = "EVICTED"
)

// NodeStatus is a snapshot of one node id. Epoch is -1 before the first registration; Err is the newest failure, nil
// once the node is well again.
type NodeStatus struct {
	ID    int32
	Epoch int64
	State State
	Err   error
}

// Observer gets events for metrics. Its methods must not block.
type Observer interface {
	// NodeState reports each change of a node id's state.
	NodeState(id int32, state State)
	// Evicted reports that a node id was unregistered by others.
	Evicted(id int32)
	// FeatureMax reports the highest level of a feature that we register as supported.
	FeatureMax(name string, level int16)
	// ControllerChanged reports a change of the controller that is talked to.
	ControllerChanged(addr string)
	// Strays reports how many partitions that are not ours to serve are still placed on us.
	Strays(partitions int)
}

type noObserver struct{}

func (noObserver) NodeState(int32, State)   {}
func (noObserver) Evicted(int32)            {}
func (noObserver) FeatureMax(string, int16) {}
func (noObserver) ControllerChanged(string) {}
func (noObserver) Strays(int)               {}

// ErrEvicted is the Err of a node id that somebody else unregistered.
var ErrEvicted = errors.New("node id was unregistered by somebody else")

// ErrSelfFenced is wrapped by what Ready returns between WantFence and ClearFence.
var ErrSelfFenced = errors.New("kmirror has fenced itself, since it can't serve clients")

// ErrPeer is wrapped by errors of replica lists that name ids of other kmirror processes, when one of these does not open its ids in time.
var ErrPeer = errors.New("another kmirror process does not lift the cordon of its node ids")

// ClusterMismatchError says that the controllers, the brokers and the pin don't name one and the same cluster.
// Nothing was registered.
type ClusterMismatchError struct{ Want, WantFrom, Got, GotFrom string }

// Error implements error.
func (e *ClusterMismatchError) Error() string {
	return fmt.Sprintf("cluster id of the %s is %s, but %s says %s: refusing to register", e.GotFrom, e.Got, e.WantFrom, e.Want)
}

// NodeIDTakenError says that a configured node id is registered with log directories that are not ours: a real broker,
// perhaps stopped at the moment, whose place in every replica list we would take.
type NodeIDTakenError struct {
	ID      int32
	LogDirs []protocol.UUID
}

// Error implements error.
func (e *NodeIDTakenError) Error() string {
	return fmt.Sprintf("node id %d belongs to another broker (its log directories are %v): choose an id that is free",
		e.ID, e.LogDirs)
}

func (c Config) validate() error {
	if len(c.Nodes) == 0 {
		return errors.New("broker: no node ids")
	}
	if len(c.Controllers) == 0 {
		return errors.New("broker: no controllers")
	}
	if c.OnEvicted != EvictedAlarm && c.OnEvicted != EvictedReregister {
		return fmt.Errorf("broker: on_evicted %q is neither %s nor %s", c.OnEvicted, EvictedAlarm, EvictedReregister)
	}
	seen := map[int32]bool{}
	for _, n := range c.Nodes {
		if n.ID < 0 || seen[n.ID] {
			return fmt.Errorf("broker: node id %d is negative or named twice", n.ID)
		}
		seen[n.ID] = true
		if err := n.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (n Node) validate() error {
	if len(n.Listeners) == 0 {
		return fmt.Errorf("broker: node id %d has no listeners", n.ID)
	}
	seen := map[string]bool{}
	for _, l := range n.Listeners {
		if l.Name == "" || seen[l.Name] {
			return fmt.Errorf("broker: listener name %q of node id %d is empty or named twice", l.Name, n.ID)
		}
		seen[l.Name] = true
		switch strings.Trim(l.Host, "[]") {
		case "", "0.0.0.0", "::":
			return fmt.Errorf("broker: listener %s of node id %d advertises %q, which no client can reach", l.Name, n.ID, l.Host)
		}
		if l.Port == 0 {
			return fmt.Errorf("broker: listener %s of node id %d has no port", l.Name, n.ID)
		}
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.OnEvicted == "" {
		c.OnEvicted = EvictedAlarm
	}
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	if c.HeartbeatInterval <= 0 {
		c.HeartbeatInterval = 2 * time.Second
	}
	if c.ShutdownTimeout <= 0 {
		c.ShutdownTimeout = 10 * time.Second
	}
	return c
}
