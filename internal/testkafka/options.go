package testkafka

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"kmirror/protocol"
)

// Kafka versions under test.
const (
	// Latest is the version used when Options name none.
	Latest = "4.4.0"
	// Previous lacks what newer brokers have: no cordoned log directories (KIP-1066), BrokerHeartbeat v1 only.
	Previous = "4.1.1"
	// Oldest is the first version of the line. Only compatibility is tested with it.
	Oldest = "4.0.0"
)

// Versions are the Kafka versions that tests run against, newest first.
func Versions() []string { return []string{Latest, Previous} }

// Listener names of a cluster that asks for none.
const (
	ClientListener     = "CLIENT"
	ReplListener       = "REPL"
	ControllerListener = "CONTROLLER"
)

// controllerIDOffset separates the ids of controller-only nodes (101, 102, ...) from those of brokers (1, 2, ...).
const controllerIDOffset = 100

// Options describe a cluster. The zero value is one combined node of the latest version.
type Options struct {
	// Name stands in file names and messages. Default "kafka".
	Name string
	// Version of Apache Kafka. Default Latest.
	Version string
	// Brokers have the ids BaseID, BaseID+1, ... Default 1.
	Brokers int
	// Controllers is the number of nodes that are controllers only; their ids are BaseID+100, ... With 0, the first
	// Combined brokers are controllers as well.
	Controllers int
	// Combined is the number of brokers that are controllers too, when Controllers is 0. Default 1.
	Combined int
	// Properties are server properties of every node; they win over all that this package sets.
	Properties map[string]string
	// NodeProperties are server properties of single nodes; they win over Properties.
	NodeProperties map[int32]map[string]string
	// Listeners of brokers besides CONTROLLER. Default CLIENT and REPL. REPL is the inter-broker listener, or the last
	// one where that name is missing. All are PLAINTEXT unless Properties set listener.security.protocol.map.
	Listeners []string
	// Advertised are addresses (host:port) that nodes name instead of their own to whoever connects to a listener, by node id and
	// the listener's name: those of proxies in front of it.
	Advertised map[int32]map[string]string
	// ZooKeeper makes a cluster of a version before 4, with a node of ZooKeeper instead of controllers.
	ZooKeeper bool
	// Heap is the JVM's -Xmx. Default "256m".
	Heap string
	// JVM are further arguments of the nodes' JVMs.
	JVM []string
	// FormatArgs are further arguments of StorageTool's format command that hold for every node alike, such as
	// "--feature", "eligible.leader.replicas.version=0" or "--release-version", "4.0".
	FormatArgs []string
	// BaseID is the first broker's id. Default 1.
	BaseID int32
	// ClusterID is random by default.
	ClusterID string

	security *Security // set by Security.Secure
	mutual   bool      // set by Security.Mutual
}

func (o Options) withDefaults() (Options, error) {
	if o.Name == "" {
		o.Name = "kafka"
	}
	if o.Version == "" {
		o.Version = Latest
	}
	if o.Brokers == 0 {
		o.Brokers = 1
	}
	if o.Combined == 0 {
		o.Combined = 1
	}
	if o.Heap == "" {
		o.Heap = "256m"
	}
	if o.BaseID == 0 {
		o.BaseID = 1
	}
	if len(o.Listeners) == 0 {
		o.Listeners = []string{ClientListener, ReplListener}
	}
	if o.ClusterID == "" {
		o.ClusterID = randomID().String()
	}
	switch {
	case o.Brokers < 0 || o.Controllers < 0 || o.Combined < 0 || o.BaseID < 0:
		return o, fmt.Errorf("testkafka: negative number in options of cluster %q", o.Name)
	case o.Brokers > controllerIDOffset:
		return o, fmt.Errorf("testkafka: %d brokers, at most %d", o.Brokers, controllerIDOffset)
	case o.Controllers == 0 && o.Combined > o.Brokers:
		return o, fmt.Errorf("testkafka: %d combined nodes of %d brokers", o.Combined, o.Brokers)
	}
	if _, err := protocol.ParseUUID(o.ClusterID); err != nil {
		return o, fmt.Errorf("testkafka: cluster id: %w", err)
	}
	return o, o.checkZooKeeper()
}

func (o Options) interBroker() string {
	if slices.Contains(o.Listeners, ReplListener) {
		return ReplListener
	}
	return o.Listeners[len(o.Listeners)-1]
}

// plan returns the cluster's nodes without ports.
func (o Options) plan() []*Node {
	if o.ZooKeeper {
		return o.planZooKeeper()
	}
	var nodes []*Node
	for i := range o.Brokers {
		n := &Node{ID: o.BaseID + int32(i), Broker: true, Controller: o.Controllers == 0 && i < o.Combined}
		nodes = append(nodes, n)
	}
	for i := range o.Controllers {
		nodes = append(nodes, &Node{ID: o.BaseID + controllerIDOffset + int32(i), Controller: true})
	}
	return nodes
}

// listenerNames are the listeners that n binds.
func (o Options) listenerNames(n *Node) []string {
	var names []string
	if n.Broker {
		names = append(names, o.Listeners...)
	}
	if n.Controller {
		names = append(names, ControllerListener)
	}
	if n.keeper {
		names = append(names, keeperListener)
	}
	return names
}

// properties is the server.properties of n, once all nodes have ports.
func (o Options) properties(n *Node, nodes []*Node) map[string]string {
	replicas := strconv.Itoa(min(3, o.Brokers))
	minISR := strconv.Itoa(min(2, o.Brokers))
	p := map[string]string{
		"node.id":                          strconv.Itoa(int(n.ID)),
		"process.roles":                    strings.Join(n.roles(), ","),
		"log.dirs":                         n.LogDir(),
		"controller.listener.names":        ControllerListener,
		"controller.quorum.voters":         quorumVoters(nodes),
		"controlled.shutdown.enable":       "true",
		"group.initial.rebalance.delay.ms": "0",
		// By default a broker ends when it has not registered within a minute, which may be too little on a machine with much else to do.
		"initial.broker.registration.timeout.ms": "180000",
		"num.network.threads":                    "2",
		"num.io.threads":                         "4",
		"background.threads":                     "4",
		// The default of 128 MiB is taken from the heap as soon as the cleaner starts.
		"log.cleaner.dedupe.buffer.size":                   "8388608",
		"default.replication.factor":                       replicas,
		"offsets.topic.num.partitions":                     "4",
		"offsets.topic.replication.factor":                 replicas,
		"transaction.state.log.num.partitions":             "4",
		"transaction.state.log.replication.factor":         replicas,
		"transaction.state.log.min.isr":                    minISR,
		"share.coordinator.state.topic.num.partitions":     "4",
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            minISR,
	}
	names := o.listenerNames(n)
	listeners, advertised := make([]string, len(names)), make([]string, len(names))
	for i, name := range names {
		listeners[i] = name + "://" + n.Addr(name)
		advertised[i] = name + "://" + cmp.Or(o.Advertised[n.ID][name], n.Addr(name))
	}
	p["listeners"] = strings.Join(listeners, ",")
	if len(o.Advertised[n.ID]) > 0 {
		p["advertised.listeners"] = strings.Join(advertised, ",")
	}
	// Every node must know the protocol of the controllers' listener, and brokers that of their own.
	protocols := []string{ControllerListener + ":PLAINTEXT"}
	for _, name := range o.Listeners {
		protocols = append(protocols, name+":PLAINTEXT")
	}
	p["listener.security.protocol.map"] = strings.Join(protocols, ",")
	if n.Broker {
		p["inter.broker.listener.name"] = o.interBroker()
	}
	if o.ZooKeeper {
		p = o.withZooKeeper(n, nodes, p)
	}
	maps.Copy(p, o.Properties)
	maps.Copy(p, o.NodeProperties[n.ID])
	return p
}

func quorumVoters(nodes []*Node) string {
	var voters []string
	for _, n := range nodes {
		if n.Controller {
			voters = append(voters, fmt.Sprintf("%d@%s", n.ID, n.Addr(ControllerListener)))
		}
	}
	return strings.Join(voters, ",")
}

// formatProperties writes a Java properties file, sorted, with the characters escaped that would end a value early.
func formatProperties(p map[string]string) []byte {
	var b strings.Builder
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", k, escape.Replace(p[k]))
	}
	return []byte(b.String())
}
