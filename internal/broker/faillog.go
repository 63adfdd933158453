package broker

import (
	"log/slog"
	"time"
)

// failLogPause is the least time between two lines about one failure that goes on.
const failLogPause = 10 * time.Second

// failLog writes the first failure of a row, then one line now and then, and one when all is well again. Its owner is one
// goroutine.
type failLog struct {
	log   *slog.Logger
	what  string
	n     int
	since time.Time
	last  time.Time
}

func (f *failLog) failed(err error) {
	now := time.Now()
	f.n++
	if f.n == 1 {
		f.since = now
	} else if now.Sub(f.last) < failLogPause {
		return
	}
	f.last = now
	f.log.Warn(f.what, "err", err, "failures", f.n)
}

func (f *failLog) ok() {
	if f.n > 0 {
		f.log.Info(f.what+": well again", "failures", f.n, "after", time.Since(f.since).Round(time.Millisecond))
		f.n = 0
	}
}
