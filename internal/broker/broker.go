package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"kmirror/protocol/kraft"
)

// Broker is this process's membership of the destination cluster. All methods are safe for concurrent use; those that send
// requests work while Run runs. It implements kraft.ImageSource and fetch.Controller.
type Broker struct {
	cfg     Config
	log     *slog.Logger
	ctl     *controllers
	meta    *follower
	cordon  *cordon
	configs *topicConfigs
	members []*member
	isr     map[int32]*isrQueue
	strays  *strays

	clusterID atomic.Pointer[string]
	image     atomic.Pointer[kraft.Image]
	guests    atomic.Pointer[map[int32]struct{}] // replaced as a whole, by publish only
	images    broadcast                          // at each published image
	fence     atomic.Pointer[string]
	retiring  atomic.Bool
	standing  standing

	ended   chan struct{} // closed when Run returns
	mu      sync.Mutex
	running context.Context // while Run runs: for work that outlives a call, counted by keepers
	keepers sync.WaitGroup
}

// broadcast hands out a channel that is closed at the next event.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *broadcast) send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Broker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	legs := map[string][]kgo.Opt{
		"client": cfg.ClientOpts, "controller": cfg.ControllerOpts, "replication": cfg.ReplicationOpts,
	}
	for leg, opts := range legs {
		if err := kgo.ValidateOpts(clientOpts("localhost:1", opts)...); err != nil {
			return nil, fmt.Errorf("broker: %s options: %w", leg, err)
		}
	}
	b := &Broker{cfg: cfg, log: cfg.Log.With("component", "broker"), isr: map[int32]*isrQueue{}, ended: make(chan struct{})}
	b.configs = newTopicConfigs()
	b.ctl = newControllers(cfg.Controllers, cfg.ControllerOpts, b.log, cfg.Observer)
	b.image.Store(kraft.Empty())
	b.guests.Store(&map[int32]struct{}{})
	b.cordon = newCordon(b)
	b.strays = newStrays(b)
	for _, n := range cfg.Nodes {
		m := newMember(b, n)
		b.members = append(b.members, m)
		b.isr[n.ID] = newISRQueue(b, m)
	}
	b.meta = &follower{ctl: b.ctl, log: b.log, cluster: b.ClusterID, replica: b.observerID, publish: b.publish}
	return b, nil
}

// Run checks that the destination is the cluster it should be, reads its metadata, registers the node ids and keeps them
// alive until ctx ends; then it leaves with a controlled shutdown that takes no longer than Config.ShutdownTimeout, for good
// after Retire. It returns an error when it must not or cannot register: *ClusterMismatchError, *NodeIDTakenError.
func (b *Broker) Run(ctx context.Context) error {
	defer close(b.ended)
	defer b.ctl.close()
	if err := b.checkCluster(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	// life outlives ctx by the time that an orderly leave takes.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	defer background.Wait()
	defer end()
	background.Go(func() { b.meta.run(life) })
	if err := b.awaitImage(ctx, func(*kraft.Image) bool { return b.meta.caughtUp.Load() }); err != nil {
		return nil
	}
	if b.cfg.Check != nil {
		if err := b.cfg.Check(ctx, b.Image()); err != nil {
			return err
		}
	}
	up, leave := context.WithCancel(ctx)
	defer leave()
	b.setRunning(up)
	background.Go(func() { b.strays.run(up) })
	for _, q := range b.isr {
		background.Go(func() { q.run(life) })
	}
	err := b.runMembers(up, leave, life, end)
	b.mu.Lock()
	b.running = nil // nothing that outlives a call may begin any more
	b.mu.Unlock()
	if err == nil && b.retiring.Load() {
		err = b.unregister(ctx)
	}
	end()
	b.keepers.Wait()
	return err
}

// setRunning says until when work that outlives a call may go on.
func (b *Broker) setRunning(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running = ctx
}

// runMembers returns when all node ids have left, which begins with the end of up: that of Run's ctx, or that a node id
// can't be registered. life is ended when leaving takes too long.
func (b *Broker) runMembers(up context.Context, leave func(), life context.Context, end func()) error {
	defer context.AfterFunc(up, func() {
		t := time.AfterFunc(b.cfg.ShutdownTimeout, end)
		context.AfterFunc(life, func() { t.Stop() })
	})()
	var g errgroup.Group
	for _, m := range b.members {
		g.Go(func() error {
			err := m.run(life, up.Done())
			if err != nil {
				leave()
			}
			return err
		})
	}
	return g.Wait()
}

// checkCluster learns the cluster id from the controllers, and compares it with the pin and with what the brokers say.
// Brokers that can't be reached say nothing: the controllers are who we register with.
func (b *Broker) checkCluster(ctx context.Context) error {
	kr, _, err := b.ctl.insist(ctx, requestTimeout, func() kmsg.Request {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.EndpointType = 2 // controllers
		return req
	})
	if err != nil {
		return err
	}
	resp := kr.(*kmsg.DescribeClusterResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return fmt.Errorf("DescribeCluster of the controller: %w", err)
	}
	if b.cfg.ClusterID != "" && resp.ClusterID != b.cfg.ClusterID {
		return &ClusterMismatchError{b.cfg.ClusterID, "cluster_id in the configuration", resp.ClusterID, "controllers"}
	}
	for _, addr := range b.cfg.Bootstrap {
		id, err := brokerClusterID(ctx, addr, b.cfg.ClientOpts)
		if err != nil {
			b.log.Warn("destination broker does not answer", "broker", addr, "err", err)
			continue
		}
		if id != resp.ClusterID {
			return &ClusterMismatchError{id, "broker " + addr, resp.ClusterID, "controllers"}
		}
		break
	}
	b.clusterID.Store(&resp.ClusterID)
	return nil
}

func brokerClusterID(ctx context.Context, addr string, opts []kgo.Opt) (string, error) {
	cl, err := newClient(addr, opts)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	kr, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return "", err
	}
	resp := kr.(*kmsg.MetadataResponse)
	if resp.ClusterID == nil {
		return "", errors.New("broker names no cluster id")
	}
	return *resp.ClusterID, nil
}

// Image returns the newest metadata image, an empty one before the log has been read to its end once.
func (b *Broker) Image() *kraft.Image { return b.image.Load() }

// Changed returns a channel that is closed when the next image is published.
func (b *Broker) Changed() <-chan struct{} { return b.images.wait() }

func (b *Broker) publish(i *kraft.Image) {
	b.noteGuests(i) // whoever sees the image knows its guests
	b.noteTaken(i)  // and does not hold what another process leads by our ids for our own
	b.image.Store(i)
	b.images.send()
}

// noteTaken looks whether another process has registered node ids of ours, as it can once this one was out of reach for the session that
// the controller gives (SIGSTOP, a stall). The image shows that before it shows what the other one leads.
func (b *Broker) noteTaken(i *kraft.Image) {
	for _, m := range b.members {
		m.lookTaken(i.Brokers[m.node.ID])
	}
}

// awaitImage blocks until ok holds for the newest image or ctx ends.
func (b *Broker) awaitImage(ctx context.Context, ok func(*kraft.Image) bool) error {
	for {
		changed := b.Changed()
		if ok(b.Image()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// ClusterID returns the destination's cluster id, empty before Run has learned it.
func (b *Broker) ClusterID() string {
	if id := b.clusterID.Load(); id != nil {
		return *id
	}
	return ""
}

// Nodes returns the state of every node id, in the order of the configuration.
func (b *Broker) Nodes() []NodeStatus {
	out := make([]NodeStatus, len(b.members))
	for i, m := range b.members {
		out[i] = m.snapshot()
	}
	return out
}

// metadataStale: without an answer to metadata fetches for so long the image is not held to be current.
const metadataStale = 15 * time.Second

// Ready returns nil while all node ids are registered and unfenced and the metadata image is current. A metadata record
// that is refused each time the log is read makes it an error that wraps kraft.ErrRecord, a fence that is wanted one that wraps
// ErrSelfFenced, before the controller has heard of it.
func (b *Broker) Ready() error {
	if reason := b.fence.Load(); reason != nil {
		return fmt.Errorf("%w: %s", ErrSelfFenced, *reason)
	}
	if err := b.Current(); err != nil {
		return err
	}
	for _, n := range b.Nodes() {
		switch {
		case n.State == StateActive:
		case n.Err != nil:
			return fmt.Errorf("node id %d is %s: %w", n.ID, n.State, n.Err)
		default:
			return fmt.Errorf("node id %d is %s", n.ID, n.State)
		}
	}
	return nil
}

// Current returns nil while the metadata image is current, which takes a controller that answers.
func (b *Broker) Current() error {
	if r := b.meta.refused.Load(); r != nil {
		return r
	}
	if !b.meta.caughtUp.Load() {
		return b.ctl.because("the metadata log has not been read to its end yet")
	}
	if age := time.Since(time.Unix(0, b.meta.lastPoll.Load())); age > metadataStale {
		return b.ctl.because(fmt.Sprintf("no controller has answered a metadata fetch for %s", age.Round(time.Second)))
	}
	return nil
}

// Owns reports whether a node id is one of this process.
func (b *Broker) Owns(id int32) bool { return b.member(id) != nil }

// Guest reports whether a node id is one of kmirror, of this process or of another one, dead or alive: it holds no log. Another
// process's ids are known by the log directory that they registered with. An id that is not registered any more stays a guest,
// since replica lists may name it for long, until a broker with disks of its own takes it.
func (b *Broker) Guest(id int32) bool {
	if b.Owns(id) {
		return true
	}
	known := b.guests.Load()
	if known == nil {
		return false // no image yet
	}
	_, ok := (*known)[id]
	return ok
}

// noteGuests looks at the registrations that an image has anew.
func (b *Broker) noteGuests(i *kraft.Image) {
	cluster, old, known := b.ClusterID(), b.Image(), *b.guests.Load()
	var next map[int32]struct{}
	for id, r := range i.Brokers {
		if old.Brokers[id] == r {
			continue
		}
		_, was := known[id]
		is := IsGuest(cluster, r)
		if is == was {
			continue
		}
		if next == nil {
			next = maps.Clone(known)
		}
		if delete(next, id); is {
			next[id] = struct{}{}
		}
	}
	if next != nil {
		b.guests.Store(&next)
	}
}

func (b *Broker) member(id int32) *member {
	for _, m := range b.members {
		if m.node.ID == id {
			return m
		}
	}
	return nil
}

// observerID is the id that metadata fetches carry: the first of ours once it is registered.
func (b *Broker) observerID() int32 {
	if st := b.members[0].snapshot(); st.Epoch >= 0 {
		return st.ID
	}
	return -1
}

// WantFence asks the controller to fence all our node ids, by their heartbeats, until ClearFence.
func (b *Broker) WantFence(reason string) {
	b.log.Info("asking the controller to fence our node ids", "reason", reason)
	b.fence.Store(&reason)
	b.poke()
}

// ClearFence takes WantFence back.
func (b *Broker) ClearFence() {
	if b.fence.Swap(nil) != nil {
		b.log.Info("not fencing ourselves any more")
		b.poke()
	}
}

func (b *Broker) fenceWanted() bool { return b.fence.Load() != nil }

func (b *Broker) poke() {
	for _, m := range b.members {
		m.poke()
	}
}
