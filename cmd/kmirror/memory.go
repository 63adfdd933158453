package main

import (
	"os"
	"runtime/debug"
)

// gcPercent lets garbage grow to four times what is in use before it is collected. What is in use is small (windows of record
// bytes), while each response of a source is a new buffer of some MB: at Go's default a tenth of all CPU went into collecting
// and into pages given back and taken again.
const gcPercent = 400

// tuneMemory sets the collector up for a process that passes bytes through, within limits.memory. GOGC and GOMEMLIMIT win.
func tuneMemory(limit byteSize) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" && limit > 0 {
		debug.SetMemoryLimit(int64(limit))
	}
}
