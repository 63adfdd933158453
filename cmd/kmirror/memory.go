package main

import (
	"context"
	"os"
	"runtime/debug"
	gauges "runtime/metrics"
	"sync/atomic"
	"time"
)

const (
	// gcPercent lets garbage grow to four times what is in use before it is collected. What is in use is mostly small (windows of record
	// bytes), while each response of a source is a new buffer of some MB: at Go's default a tenth of all CPU went into collecting
	// and into pages given back and taken again.
	gcPercent = 400
	// garbageShare is the part of limits.memory that garbage may take where four times what is in use would be more. Where more than that part
	// is in use, it may be as much again, which is Go's default: each KiB of a connection, and there may be thousands, would else be five.
	garbageShare   = 8
	leastGCPercent = 100
	// tendInterval is how often the collector is set anew.
	tendInterval = time.Second
)

// collector sets the garbage collector up for a process that passes bytes through, within limits.memory. GOGC and GOMEMLIMIT win.
type collector struct{ limit atomic.Int64 }

// setLimit brings another limits.memory into force.
func (c *collector) setLimit(limit byteSize) {
	c.limit.Store(int64(limit))
	if os.Getenv("GOMEMLIMIT") == "" && limit > 0 {
		debug.SetMemoryLimit(int64(limit))
	}
}

// run adapts to what is in use, until ctx ends.
func (c *collector) run(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	inUse := []gauges.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	ticker := time.NewTicker(tendInterval)
	defer ticker.Stop()
	for percent := 0; ; {
		gauges.Read(inUse)
		used := int64(0)
		for _, s := range inUse {
			used += int64(s.Value.Uint64())
		}
		// Each change stops the process for a moment.
		if p := percentFor(c.limit.Load(), used); p != percent {
			debug.SetGCPercent(p)
			percent = p
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// percentFor is how much garbage there may be, in percent of the bytes in use, in steps that are worth a change.
func percentFor(limit, used int64) int {
	const step = 20
	if limit <= 0 {
		return gcPercent
	}
	percent := limit / garbageShare * 100 / max(used, 1)
	return int(min(max(percent/step*step, leastGCPercent), gcPercent))
}
