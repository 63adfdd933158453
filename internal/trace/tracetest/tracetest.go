// Package tracetest has what the tests of several packages of trace share.
package tracetest

import (
	"bytes"
	"sync"
)

// Output collects what a trace writes. The zero value takes everything. It may be written and read at the same time.
type Output struct {
	// Blocked has writes wait until it is closed, nil: they don't. Err is what they fail with.
	Blocked chan struct{}
	Err     error

	mu sync.Mutex
	b  bytes.Buffer
}

// Write takes p, or fails.
func (o *Output) Write(p []byte) (int, error) {
	if o.Blocked != nil {
		<-o.Blocked
	}
	if o.Err != nil {
		return 0, o.Err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String returns what was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
