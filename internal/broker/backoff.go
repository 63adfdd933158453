package broker

import (
	"context"
	"math/rand/v2"
	"time"

	"kmirror/internal/wait"
)

// backoff grows by doubling from min to max; each wait is jittered down by up to half, so that many don't go in step.
type backoff struct {
	min, max, last time.Duration
}

func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, b.min), b.max)
	return b.last/2 + rand.N(b.last/2+1)
}

func (b *backoff) reset() { b.last = 0 }

// wait blocks for the next step, less when ctx ends; its error says so.
func (b *backoff) wait(ctx context.Context) error { return pause(ctx, b.next()) }

// pause blocks for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if !wait.For(ctx, d) {
		return ctx.Err()
	}
	return nil
}
