package clientconf

import (
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"kmirror/internal/quiet"
)

const (
	// youth is for how long after its last change a file may change once more without another time or size: file systems count time in
	// steps, of up to two seconds.
	youth = 2 * time.Second
	// retry is how often files that are so young, or could not be used (their rights may have changed since), are read again at most while
	// they look the same.
	retry = 200 * time.Millisecond
)

// followed is something that is made of files, and made again when it is asked for after they have changed. While what is there can't be
// used, what was made before is used on, and the log says so.
type followed[T any] struct {
	// make makes it, names are the files that it reads, which need not be there.
	make  func() (T, error)
	names []string
	// every is how often the files are looked at, at most.
	every time.Duration
	what  string // for the log
	log   *slog.Logger
	quiet *quiet.Log
	now   func() time.Time

	mu      sync.Mutex
	current T
	// looked is when the files were last looked at, seen what they were before they were last read (nil where there was none), and read
	// when that was. failed: they could not be used then.
	looked, read time.Time
	seen         []fs.FileInfo
	failed       bool
}

// follow makes it for the first time. A nil log is none.
func follow[T any](f *followed[T], log *slog.Logger) (*followed[T], error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if f.now == nil {
		f.now = time.Now
	}
	f.log, f.quiet = log, quiet.New(log, quiet.Interval, f.now)
	f.looked, f.read, f.seen = f.now(), f.now(), f.look()
	var err error
	f.current, err = f.make()
	return f, err
}

// get returns what the files say now, or said when they could last be used.
func (f *followed[T]) get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if now.Sub(f.looked) < f.every {
		return f.current
	}
	f.looked = now
	at := f.look()
	if !f.changed(at, now) {
		return f.current
	}
	news := f.failed || f.touched(at)
	f.seen, f.read = at, now // looked at before they are read: a file that is exchanged meanwhile differs from what was seen
	next, err := f.make()
	if f.failed = err != nil; f.failed {
		f.quiet.Warn("unusable", f.what+" can't be used as they are now; new connections use what was read before: correct the files, they are "+
			"read again then", "err", err)
		return f.current
	}
	f.current = next
	if news {
		f.log.Info(f.what + " were read again")
	}
	return f.current
}

// changed reports whether it is to be made again.
func (f *followed[T]) changed(at []fs.FileInfo, now time.Time) bool {
	if f.touched(at) {
		return true
	}
	young := slices.ContainsFunc(at, func(info fs.FileInfo) bool { return info != nil && info.ModTime().After(f.read.Add(-youth)) })
	return (f.failed || young) && now.Sub(f.read) >= retry
}

// touched reports whether files are others than they were when they were last read.
func (f *followed[T]) touched(at []fs.FileInfo) bool {
	for i, now := range at {
		if FileChanged(f.seen[i], now) {
			return true
		}
	}
	return false
}

// FileChanged reports whether there is another file than there was, by what os.Stat has told of it, nil where there is none.
func FileChanged(was, now fs.FileInfo) bool {
	if was == nil || now == nil {
		return was != nil || now != nil
	}
	return !os.SameFile(was, now) || !was.ModTime().Equal(now.ModTime()) || was.Size() != now.Size()
}

func (f *followed[T]) look() []fs.FileInfo {
	at := make([]fs.FileInfo, len(f.names))
	for i, name := range f.names {
		if info, err := os.Stat(name); err == nil {
			at[i] = info
		}
	}
	return at
}
