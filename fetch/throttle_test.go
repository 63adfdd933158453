package fetch

import (
	"log/slog"
	"testing"
	"time"
)

func TestThrottleSpreadsBytes(t *testing.T) {
	var l limiter
	l.rate.Store(1000)
	now := time.Unix(1000, 0)
	if d := l.take(500, now); d != 500*time.Millisecond {
		t.Errorf("wait %v after half a second's bytes", d)
	}
	if d := l.take(500, now); d != time.Second {
		t.Errorf("wait %v after a second's bytes", d)
	}
	if d := l.take(100, now.Add(time.Hour)); d != 100*time.Millisecond {
		t.Errorf("wait %v: an idle hour is no credit", d)
	}
}

// The bound for all mirrors counts as well as a mirror's own, and a throttled source is asked for little at a time.
func TestThrottleOfAllMirrors(t *testing.T) {
	l := &Leader{cfg: Config{}, log: slog.New(slog.DiscardHandler)}
	l.SetLimits(1000, DefaultMemoryBytes)
	m, err := newMirror(l, MirrorConfig{Name: "m", BytesPerSecond: 4000})
	if err != nil {
		t.Fatal(err)
	}
	if response, partition := m.bounds(); response != 500 || partition != 500 {
		t.Errorf("asks for %d bytes, %d of a partition", response, partition)
	}
	if d := m.pace(1000, time.Unix(1000, 0)); d != time.Second {
		t.Errorf("wait %v after a second's bytes", d)
	}
	l.SetLimits(0, DefaultMemoryBytes)
	m.throttle.rate.Store(0)
	if response, partition := m.bounds(); response != DefaultResponseMaxBytes || partition != DefaultMaxBytes {
		t.Errorf("asks for %d bytes, %d of a partition without a throttle", response, partition)
	}
}
