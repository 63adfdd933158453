package testkafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka versions before 4 under test.
const (
	// OldestWithZooKeeper is the oldest version that Kafka 4's clients speak to (KIP-896).
	OldestWithZooKeeper = "2.1.1"
	// LastOfTwo is the last of version 2, which has ZooKeeper.
	LastOfTwo = "2.8.2"
	// LaterWithZooKeeper is of version 3, with ZooKeeper.
	LaterWithZooKeeper = "3.6.2"
	// LastOfThree is the last of version 3, with controllers here.
	LastOfThree = "3.9.1"
)

const (
	// keeperListener is where brokers find ZooKeeper, keeperID the id of its node.
	keeperListener = "ZOOKEEPER"
	keeperID       = 201
	// zooKeeperVersion takes the place of the one that Kafka 2 depends on: those before 3.5.8 find no server on Java 14 and later
	// (ZOOKEEPER-3779).
	zooKeeperVersion = "3.5.10"
)

// before reports whether a version of Kafka is one before major.minor.
func before(version string, major, minor int) bool {
	var has [2]int
	n, _ := fmt.Sscanf(version, "%d.%d", &has[0], &has[1])
	return n == 2 && slices.Compare(has[:], []int{major, minor}) < 0
}

// beforeFour reports whether a version of Kafka is one that can have ZooKeeper.
func beforeFour(version string) bool { return before(version, 4, 0) }

// oldBundle is Kafka before version 4. Its logging goes the way that Kafka 4's does.
func oldBundle(version string) bundle {
	kafka := []artifact{{"org.apache.kafka", "kafka_2.12", version}, {"org.apache.zookeeper", "zookeeper", zooKeeperVersion}}
	if !before(version, 3, 0) {
		kafka = []artifact{{"org.apache.kafka", "kafka_2.13", version}, {"org.apache.kafka", "kafka-tools", version}}
	}
	return bundle{name: "kafka-" + version, artifacts: append(kafka,
		artifact{"org.apache.logging.log4j", "log4j-slf4j-impl", log4jVersion},
		artifact{"org.apache.logging.log4j", "log4j-1.2-api", log4jVersion},
	)}
}

// checkZooKeeper checks the options of a cluster with ZooKeeper, and that others don't need it.
func (o Options) checkZooKeeper() error {
	switch {
	case o.ZooKeeper && (!beforeFour(o.Version) || o.Controllers > 0 || o.Combined > 1 || o.security != nil || len(o.FormatArgs) > 0):
		return fmt.Errorf("testkafka: cluster %q: with ZooKeeper the version is below 4, and there are no controllers, security or format", o.Name)
	case !o.ZooKeeper && before(o.Version, 3, 3): // the first whose controllers were meant for use
		return fmt.Errorf("testkafka: cluster %q: version %s is run with ZooKeeper here, set Options.ZooKeeper", o.Name, o.Version)
	}
	return nil
}

// planZooKeeper is plan for a cluster with ZooKeeper, one node of it, whatever the number of brokers.
func (o Options) planZooKeeper() []*Node {
	var nodes []*Node
	for i := range o.Brokers {
		nodes = append(nodes, &Node{ID: o.BaseID + int32(i), Broker: true})
	}
	return append(nodes, &Node{ID: keeperID, keeper: true})
}

// withZooKeeper turns the properties of a KRaft broker into those of one with ZooKeeper, or of ZooKeeper itself.
func (o Options) withZooKeeper(n *Node, nodes []*Node, p map[string]string) map[string]string {
	if n.keeper {
		host, port, _ := net.SplitHostPort(n.Addr(keeperListener))
		return map[string]string{"dataDir": n.LogDir(), "clientPort": port, "clientPortAddress": host, "admin.enableServer": "false",
			"maxClientCnxns": "0", "tickTime": "1000"}
	}
	for key := range p {
		if key == "node.id" || key == "process.roles" || strings.HasPrefix(key, "controller.") || strings.HasPrefix(key, "share.") {
			delete(p, key)
		}
	}
	p["broker.id"] = strconv.Itoa(int(n.ID))
	p["zookeeper.connect"] = nodes[len(nodes)-1].Addr(keeperListener)
	p["zookeeper.connection.timeout.ms"] = "60000"
	p["zookeeper.session.timeout.ms"] = "6000"
	// The last broker has nobody to give its leadership to, and would ask three times, at five seconds.
	p["controlled.shutdown.retry.backoff.ms"] = "200"
	return p
}

// mainClass is what the node runs.
func (n *Node) mainClass() string {
	if n.keeper {
		return "org.apache.zookeeper.server.quorum.QuorumPeerMain"
	}
	return "kafka.Kafka"
}

// started is what the node logs at the end of its start-up.
func (n *Node) started() string {
	switch {
	case n.keeper:
		return "binding to port"
	case n.cluster.opts.ZooKeeper:
		return fmt.Sprintf("[KafkaServer id=%d] started", n.ID)
	}
	return startedLine
}

// learnID asks for the cluster's id, which with ZooKeeper the first broker makes up.
func (c *Cluster) learnID(ctx context.Context) error {
	if !c.opts.ZooKeeper {
		return nil
	}
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	var resp kmsg.Response
	var last error
	err := poll(ctx, func() (bool, error) {
		resp, last = ask(ctx, c.nodes[0].Addr(c.opts.Listeners[0]), req)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	if id := resp.(*kmsg.MetadataResponse).ClusterID; id != nil {
		c.opts.ClusterID = *id
	}
	return nil
}

// Advertise has a node that does not run name another address (host:port) for a listener when it starts again.
func (n *Node) Advertise(listener, addr string) error {
	if n.PID() != 0 {
		return fmt.Errorf("%v runs: it keeps its addresses", n)
	}
	all := strings.Split(cmp.Or(n.properties["advertised.listeners"], n.properties["listeners"]), ",")
	for i, at := range all {
		if name, _, _ := strings.Cut(at, "://"); name == listener {
			all[i] = name + "://" + addr
		}
	}
	n.properties["advertised.listeners"] = strings.Join(all, ",")
	return os.WriteFile(n.configFile(), formatProperties(n.properties), 0o644)
}
