package e2e

import (
	"testing"
	"time"
)

// mirrors wants the mirror to have come to where the source is now.
func (b *stormBed) mirrors() {
	b.s.tb.Helper()
	b.s.caughtUp(b.src, 1, time.Minute, mirrored)
}

// intact: whatever clients did, the mirror topic holds what the source does and nothing else, and workers have read it in both ways.
func (b *stormBed) intact(t *testing.T) {
	t.Helper()
	t.Logf("the mirror topic: workers were sent to a replica %d times and got records %d times", b.redirected.Load(), b.served.Load())
	if b.redirected.Load() == 0 || b.served.Load() == 0 {
		t.Error("a way to read the mirror topic was not tried")
	}
	b.stopFlow()
	b.s.healed(b.src, time.Minute, mirrored, 1)
	b.s.equal(b.src, mirrored, mirroredPartitions, 1)
}
