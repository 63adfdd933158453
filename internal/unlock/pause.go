package unlock

import (
	"context"
	"math/rand/v2"
	"time"
)

// Bounds of the pause between two looks.
const (
	pauseFirst = 50 * time.Millisecond
	pauseMost  = time.Second
)

// pause is the time between two looks at the destination: it grows, with jitter.
type pause struct{ span time.Duration }

func newPause() *pause { return &pause{pauseFirst} }

// next waits; the error is that of ctx.
func (p *pause) next(ctx context.Context) error {
	t := time.NewTimer(p.span/2 + rand.N(p.span))
	defer t.Stop()
	p.span = min(2*p.span, pauseMost)
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
