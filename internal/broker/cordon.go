package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"kmirror/protocol/kraft"
)

// cordon keeps our log directories closed to the placement of others (KIP-1066), and opens them while we place something
// on ourselves. Controllers below metadata.version 4.3 have no cordon; what lands on us there is a stray.
type cordon struct {
	b      *Broker
	mu     sync.Mutex
	lifted int
	// open holds the ids whose last heartbeat said that they are not cordoned, and was answered.
	open map[int32]bool
	// opened is closed and replaced when an id is added to open.
	opened chan struct{}
}

func newCordon(b *Broker) *cordon {
	return &cordon{b: b, open: map[int32]bool{}, opened: make(chan struct{})}
}

const (
	// cordonTimeout bounds the wait for the controller to know that we are not cordoned.
	cordonTimeout = 10 * time.Second
	// peersTimeout bounds the wait for other processes. One that stands still, or whose controllers are silent, may not be held dead yet, and who
	// takes a dead one's place does without a standby rather than wait.
	peersTimeout = 4 * time.Second
)

func cordonSupported(i *kraft.Image) bool { return i.Features[metadataVersion] >= cordonLevel }

func cordoned(i *kraft.Image, id int32) bool {
	reg := i.Brokers[id]
	return reg != nil && len(reg.CordonedLogDirs) > 0
}

// wanted reports whether the heartbeat that is being made for a node id is to say that it is cordoned.
func (c *cordon) wanted(id int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lifted == 0 {
		// From now on it may reach the controller at any time, however the image looks.
		delete(c.open, id)
		return true
	}
	return false
}

// answered notes that the controller has taken a heartbeat that said that the node id is not cordoned.
func (c *cordon) answered(id int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[id] {
		return
	}
	c.open[id] = true
	close(c.opened)
	c.opened = make(chan struct{})
}

// lift opens our directories if any of the ids is ours, and blocks until the controller knows that. The function returned
// must be called after the placement; what others placed on us in between is looked for then.
func (c *cordon) lift(ctx context.Context, ids []int32) (release func(), err error) {
	if err := c.liftPeers(ctx, ids); err != nil {
		return nil, err
	}
	ids = slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return !c.b.Owns(id) })
	if len(ids) == 0 || !cordonSupported(c.b.Image()) {
		return func() {}, nil
	}
	c.add(1)
	ctx, cancel := context.WithTimeout(ctx, cordonTimeout)
	defer cancel()
	for {
		// The image alone does not tell: a heartbeat of before, with the cordon, may be on its way.
		c.mu.Lock()
		shut := slices.ContainsFunc(ids, func(id int32) bool { return !c.open[id] })
		opened := c.opened
		c.mu.Unlock()
		if !shut {
			return sync.OnceFunc(func() { c.add(-1); c.b.strays.look() }), nil
		}
		select {
		case <-opened:
		case <-ctx.Done():
			c.add(-1)
			return nil, fmt.Errorf("the controller did not lift the cordon of our node ids: %w", ctx.Err())
		}
	}
}

// liftPeers has other processes lift the cordon of ids of theirs among ids.
func (c *cordon) liftPeers(ctx context.Context, ids []int32) error {
	img := c.b.Image()
	if c.b.cfg.LiftPeers == nil || !cordonSupported(img) {
		return nil
	}
	var theirs []int32
	for _, id := range ids {
		if !c.b.Owns(id) && c.b.Guest(id) && !slices.Contains(theirs, id) {
			theirs = append(theirs, id)
		}
	}
	if len(theirs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, peersTimeout)
	defer cancel()
	if err := c.b.cfg.LiftPeers(ctx, theirs); err != nil {
		return fmt.Errorf("%w %v: %w", ErrPeer, theirs, err)
	}
	return nil
}

// Uncordon lifts the cordon of all our node ids for a while, on behalf of another kmirror process that names them in a replica
// list, and returns when the controller knows. It goes on for as long as Run runs, at most for the time given. Who leaves refuses at
// once: its heartbeats say nothing of a cordon any more.
func (b *Broker) Uncordon(ctx context.Context, during time.Duration) error {
	b.mu.Lock()
	running := b.running
	b.mu.Unlock()
	if running == nil || running.Err() != nil {
		return errors.New("this process is not a member of the destination, or leaves it")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(running, cancel)()
	ids := make([]int32, len(b.members))
	for i, m := range b.members {
		ids[i] = m.node.ID
	}
	release, err := b.cordon.lift(ctx, ids)
	if err == nil {
		time.AfterFunc(during, release)
	}
	return err
}

func (c *cordon) add(n int) {
	c.mu.Lock()
	before := c.lifted
	c.lifted += n
	flip := (before == 0) != (c.lifted == 0)
	c.mu.Unlock()
	if flip {
		c.b.poke()
	}
}
