package main

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	gauges "runtime/metrics"
	"testing"
	"time"
)

func TestPercentFor(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		name        string
		limit, used int64
		want        int
	}{
		{"no limit", 0, 900 * mib, 400},
		{"nothing in use yet", 1024 * mib, 0, 400},
		{"a mirror", 1024 * mib, 30 * mib, 400},
		{"a large one", 1024 * mib, 40 * mib, 320},
		{"thousands of connections", 1024 * mib, 400 * mib, 100},
		{"hundreds, and little memory", 256 * mib, 18 * mib, 160},
		{"beyond the limit", 64 * mib, 80 * mib, 100},
	} {
		if got := percentFor(tt.limit, tt.used); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// The collector follows what is in use, and stays as GOGC says.
func TestCollectorAdapts(t *testing.T) {
	defer debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Setenv(name, "") // is back after the test
		os.Unsetenv(name)
	}
	var c collector
	c.setLimit(256 << 20)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.run(ctx) }()
	awaitPercent(t, func(p int) bool { return p > 200 })
	held := make([]byte, 64<<20)
	runtime.GC()
	awaitPercent(t, func(p int) bool { return p == leastGCPercent })
	runtime.KeepAlive(held)
	runtime.GC()
	awaitPercent(t, func(p int) bool { return p > 200 })
	cancel()
	<-done
	debug.SetGCPercent(77)
	t.Setenv("GOGC", "77")
	c.run(t.Context()) // returns at once
	awaitPercent(t, func(p int) bool { return p == 77 })
}

func awaitPercent(t *testing.T, is func(percent int) bool) {
	t.Helper()
	s := []gauges.Sample{{Name: "/gc/gogc:percent"}}
	for end := time.Now().Add(20 * time.Second); ; {
		if gauges.Read(s); is(int(s[0].Value.Uint64())) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("GOGC stays %d", s[0].Value.Uint64())
		}
		time.Sleep(10 * time.Millisecond)
	}
}
