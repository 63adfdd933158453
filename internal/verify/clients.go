package verify

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// clients keeps connections over the steps of verifications and closes those that nobody has used for a while.
type clients struct {
	mu     sync.Mutex
	byName map[string]*client
	closed bool
}

type client struct {
	key  string
	kgo  *kgo.Client
	uses int
	last time.Time
	// gone: closed when the last use ends.
	gone bool
}

// get returns the client of that name, a new one when key has changed. release must be called once.
func (c *clients) get(name, key string, opts []kgo.Opt) (cl *kgo.Client, release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, errClosed
	}
	e := c.byName[name]
	if e == nil || e.key != key {
		kcl, err := kgo.NewClient(append(opts[:len(opts):len(opts)], kgo.MetadataMinAge(100*time.Millisecond),
			kgo.RetryTimeout(requestLimit), kgo.DisableClientMetrics())...)
		if err != nil {
			return nil, nil, err
		}
		c.drop(name)
		e = &client{key: key, kgo: kcl}
		c.byName[name] = e
	}
	e.uses++
	return e.kgo, sync.OnceFunc(func() { c.release(e) }), nil
}

func (c *clients) release(e *client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.uses--
	e.last = time.Now()
	if e.gone && e.uses == 0 {
		e.kgo.Close()
	}
}

// drop takes a client out; c.mu is held.
func (c *clients) drop(name string) {
	e := c.byName[name]
	if e == nil {
		return
	}
	delete(c.byName, name)
	e.gone = true
	if e.uses == 0 {
		e.kgo.Close()
	}
}

// evict closes clients that have been idle for longer than d.
func (c *clients) evict(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, e := range c.byName {
		if e.uses == 0 && time.Since(e.last) > d {
			c.drop(name)
		}
	}
}

// close closes all, those in use as soon as their step ends; no new ones are made.
func (c *clients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for name := range c.byName {
		c.drop(name)
	}
}
