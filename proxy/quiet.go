package proxy

import (
	"log/slog"
	"sync"
	"time"
)

// quietInterval is how often one kind of warning is logged at most.
const quietInterval = 10 * time.Second

// quietLog logs the first warning of a kind at once and after that one an interval, with the number of those left out: a
// port scan or a misconfigured client must not fill the disk.
type quietLog struct {
	log   *slog.Logger
	every time.Duration
	now   func() time.Time

	mu    sync.Mutex
	kinds map[string]*quietKind
}

type quietKind struct {
	last    time.Time
	skipped int
}

func newQuietLog(log *slog.Logger, every time.Duration, now func() time.Time) *quietLog {
	return &quietLog{log: log, every: every, now: now, kinds: make(map[string]*quietKind)}
}

// warn logs msg unless one of the same kind was logged within the interval. Kinds must be few: they are kept.
func (q *quietLog) warn(kind, msg string, args ...any) {
	q.mu.Lock()
	k := q.kinds[kind]
	now := q.now()
	if k != nil && now.Sub(k.last) < q.every {
		k.skipped++
		q.mu.Unlock()
		return
	}
	skipped := 0
	if k == nil {
		k = &quietKind{}
		q.kinds[kind] = k
	}
	skipped, k.skipped, k.last = k.skipped, 0, now
	q.mu.Unlock()
	if skipped > 0 {
		args = append(args, "suppressed", skipped)
	}
	q.log.Warn(msg, args...)
}
