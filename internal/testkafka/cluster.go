package testkafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	launchTries = 3
	// launchLimit bounds the start of a cluster, jars at hand. Far more than it takes on an idle machine.
	launchLimit = 3 * time.Minute
)

// Cluster is a running Kafka cluster. Its methods may be called by several goroutines.
type Cluster struct {
	opts   Options
	dir    string
	lib    *library
	format string // files of a formatted directory
	nodes  []*Node

	mu      sync.Mutex
	allowed []string
}

// Launch starts a cluster below dir, which must exist, and returns when every broker is unfenced and knows all others.
// The nodes run until Close, or until this process ends. Progress is written to log, nil for none. The directory is the
// caller's: Close leaves it.
func Launch(ctx context.Context, dir string, o Options, log io.Writer) (*Cluster, error) {
	if log == nil {
		log = io.Discard
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	lib, err := load(ctx, kafkaBundle(o.Version))
	if err != nil {
		return nil, err
	}
	if lib.slow != nil {
		fmt.Fprintf(log, "%s: nodes start slowly, no class data archive: %v\n", o.Name, lib.slow)
	}
	format := ""
	if !o.ZooKeeper {
		if format, err = lib.formatted(ctx, o.FormatArgs); err != nil {
			return nil, fmt.Errorf("testkafka: %w", err)
		}
	}
	begin := time.Now()
	for try := 1; ; try++ {
		c := &Cluster{opts: o, dir: dir, lib: lib, format: format}
		err := c.launch(ctx)
		if err == nil {
			fmt.Fprintf(log, "%s: Kafka %s, %d nodes, up in %v\n", o.Name, o.Version, len(c.nodes),
				time.Since(begin).Round(time.Millisecond))
			return c, nil
		}
		// Somebody else may have taken a port between its choice and its use.
		retry := try < launchTries && ctx.Err() == nil && c.portTaken()
		if err = errors.Join(err, c.Close()); !retry {
			return nil, fmt.Errorf("testkafka: cluster %q: %w", o.Name, err)
		}
	}
}

func (c *Cluster) launch(ctx context.Context) error {
	if err := c.layOut(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, launchLimit)
	defer cancel()
	if err := c.up(ctx); err != nil {
		return err
	}
	return c.learnID(ctx)
}

// layOut makes the nodes' ports, directories and configurations.
func (c *Cluster) layOut() error {
	c.nodes = c.opts.plan()
	for _, n := range c.nodes {
		n.cluster, n.ports = c, map[string]int{}
		n.dir = filepath.Join(c.dir, "node-"+strconv.Itoa(int(n.ID)))
		for _, name := range c.opts.listenerNames(n) {
			port, err := FreePort()
			if err != nil {
				return err
			}
			n.ports[name] = port
		}
	}
	for _, n := range c.nodes {
		if err := os.RemoveAll(n.dir); err != nil {
			return err
		}
		if err := os.MkdirAll(n.dir, 0o755); err != nil {
			return err
		}
		n.properties = c.opts.properties(n, c.nodes)
		if err := os.WriteFile(n.configFile(), formatProperties(n.properties), 0o644); err != nil {
			return err
		}
		if err := n.formatDir(randomID()); err != nil {
			return err
		}
	}
	return nil
}

// up starts all nodes at once and waits until every broker knows every other as unfenced.
func (c *Cluster) up(ctx context.Context) error {
	for _, n := range c.nodes {
		if err := n.Spawn(); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range c.nodes {
		g.Go(func() error { return n.ready(ctx, c.Brokers()) })
	}
	return g.Wait()
}

func (c *Cluster) portTaken() bool {
	return slices.ContainsFunc(c.nodes, func(n *Node) bool {
		text, err := os.ReadFile(n.Log())
		return err == nil && bindFailed(string(text))
	})
}

// Close kills all nodes and waits for their ends. It may be called again.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range c.nodes {
		if err := n.Kill(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// ID is the cluster id.
func (c *Cluster) ID() string { return c.opts.ClusterID }

// Version is the version of Apache Kafka that the nodes run.
func (c *Cluster) Version() string { return c.opts.Version }

// Dir holds the nodes' directories.
func (c *Cluster) Dir() string { return c.dir }

// Nodes returns all nodes, brokers first.
func (c *Cluster) Nodes() []*Node { return slices.Clone(c.nodes) }

// Node returns a node by id, nil if there is none.
func (c *Cluster) Node(id int32) *Node {
	i := slices.IndexFunc(c.nodes, func(n *Node) bool { return n.ID == id })
	if i < 0 {
		return nil
	}
	return c.nodes[i]
}

// Brokers returns the brokers' ids in ascending order.
func (c *Cluster) Brokers() []int32 {
	var ids []int32
	for _, n := range c.nodes {
		if n.Broker {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// Bootstrap returns the brokers' addresses on a listener, running or not.
func (c *Cluster) Bootstrap(listener string) []string {
	return c.addresses(listener, func(n *Node) bool { return n.Broker })
}

// Controllers returns the addresses of the quorum's voters.
func (c *Cluster) Controllers() []string {
	return c.addresses(ControllerListener, func(n *Node) bool { return n.Controller })
}

func (c *Cluster) addresses(listener string, use func(*Node) bool) []string {
	var a []string
	for _, n := range c.nodes {
		if addr := n.Addr(listener); use(n) && addr != "" {
			a = append(a, addr)
		}
	}
	return a
}
