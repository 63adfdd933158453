// Package wait holds the one way to let time pass in a goroutine that must end with its context.
package wait

import (
	"context"
	"time"
)

// For waits for d, less when ctx ends first, and reports whether ctx goes on. Where many would wait in step the caller jitters d.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
