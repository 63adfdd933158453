// Package lockbuf has the buffer by which tests read a log while it is written.
package lockbuf

import (
	"bytes"
	"strings"
	"sync"
)

// Buffer takes text from several goroutines. The zero Buffer is empty and ready.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String is all that was written and not taken.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Take returns what String does, and forgets it.
func (b *Buffer) Take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.buf.Reset()
	return b.buf.String()
}

// Lines is the number of lines with a text in them.
func (b *Buffer) Lines(part string) (n int) {
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}
