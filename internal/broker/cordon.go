package broker

import (
	"context"
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
}

// cordonTimeout bounds the wait for the controller to know that we are not cordoned.
const cordonTimeout = 10 * time.Second

func cordonSupported(i *kraft.Image) bool { return i.Features[metadataVersion] >= cordonLevel }

func cordoned(i *kraft.Image, id int32) bool {
	reg := i.Brokers[id]
	return reg != nil && len(reg.CordonedLogDirs) > 0
}

// wanted reports whether heartbeats are to say that we are cordoned.
func (c *cordon) wanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lifted == 0
}

// lift opens our directories if any of the ids is ours, and blocks until the image shows that. The function returned must
// be called after the placement; what others placed on us in between is looked for then.
func (c *cordon) lift(ctx context.Context, ids []int32) (release func(), err error) {
	if !slices.ContainsFunc(ids, c.b.Owns) || !cordonSupported(c.b.Image()) {
		return func() {}, nil
	}
	c.add(1)
	ctx, cancel := context.WithTimeout(ctx, cordonTimeout)
	defer cancel()
	err = c.b.awaitImage(ctx, func(i *kraft.Image) bool {
		return !slices.ContainsFunc(ids, func(id int32) bool { return c.b.Owns(id) && cordoned(i, id) })
	})
	if err != nil {
		c.add(-1)
		return nil, fmt.Errorf("the controller did not lift the cordon of our node ids: %w", err)
	}
	return sync.OnceFunc(func() { c.add(-1); c.b.strays.look() }), nil
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
