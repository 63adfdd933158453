package coordinator

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// claimsAtOnce bounds the claims under way: each is two requests.
	claimsAtOnce = 64
	// lookAgain is the longest pause between two looks at who should own what.
	lookAgain = time.Second
)

// owned counts the partitions that this process may write to.
func (c *cluster) owned() int {
	n := 0
	for _, s := range c.shards {
		if held, _ := s.holds(); held {
			n++
		}
	}
	return n
}

// own claims what this process is to own and drops what others are to, until ctx ends.
func (c *cluster) own(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	slots := make(chan struct{}, claimsAtOnce)
	told, owned, since := 0, 0, time.Now()
	for {
		if n := c.owned(); n != owned {
			owned, since = n, time.Now()
		} else if n != told && time.Since(since) >= lookAgain {
			c.log.Info("partitions of the state topic that this process owns", "now", n, "before", told)
			told = n
		}
		changed, live, standing := c.wait(), c.live.Changed(), c.stands.RegisteredChanged()
		registered := c.stands.Registered()
		if c.isLoaded() {
			c.live.Watch(c.others())
		}
		for p := range c.n {
			s := c.shards[p]
			m, ok := c.target(p)
			switch {
			case !registered:
				s.drop("this process is not registered with the destination", c.log)
			case ok && !m.Self:
				s.drop("another process is to own it", c.log)
			}
			if _, _, may := c.mayClaim(p); !ok || !m.Self || !may || !s.begin() {
				continue
			}
			tasks.Go(func() {
				select {
				case slots <- struct{}{}:
				case <-ctx.Done():
					s.end(ctx.Err())
					return
				}
				defer func() { <-slots }()
				err := c.claim(ctx, s)
				if err != nil && ctx.Err() == nil && !errors.Is(err, ErrNotCoordinator) && !errors.Is(err, errClaimLost) {
					c.often.Warn("claim", "can't become the owner yet, trying again", "partition", p, "err", err)
				}
				s.end(err)
				c.mu.Lock()
				c.signal()
				c.mu.Unlock()
			})
		}
		timer := time.NewTimer(jitter(lookAgain))
		select {
		case <-changed:
		case <-live:
			c.touch()
		case <-standing:
			c.touch()
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}
