// Package quiet logs what peers can cause at any rate: a port scan or a misconfigured client must not fill the disk.
package quiet

import (
	"log/slog"
	"sync"
	"time"
)

// Interval is how often one kind of warning is logged at most, where nothing else is asked for.
const Interval = 10 * time.Second

// Log logs the first warning of a kind at once and after that one an interval, with the number of those left out. It may be
// used from many goroutines.
type Log struct {
	log   *slog.Logger
	every time.Duration
	now   func() time.Time

	mu    sync.Mutex
	kinds map[string]*kind
}

type kind struct {
	last    time.Time
	skipped int
}

// New makes a Log with an interval and a clock, time.Now when now is nil.
func New(log *slog.Logger, every time.Duration, now func() time.Time) *Log {
	if now == nil {
		now = time.Now
	}
	return &Log{log: log, every: every, now: now, kinds: make(map[string]*kind)}
}

// Warn logs msg unless one of the same kind was logged within the interval. Kinds must be few: they are kept.
func (q *Log) Warn(of, msg string, args ...any) {
	q.mu.Lock()
	k := q.kinds[of]
	now := q.now()
	if k != nil && now.Sub(k.last) < q.every {
		k.skipped++
		q.mu.Unlock()
		return
	}
	skipped := 0
	if k == nil {
		k = &kind{}
		q.kinds[of] = k
	}
	skipped, k.skipped, k.last = k.skipped, 0, now
	q.mu.Unlock()
	if skipped > 0 {
		args = append(args, "suppressed", skipped)
	}
	q.log.Warn(msg, args...)
}
