package lockbuf

import (
	"fmt"
	"sync"
	"testing"
)

// Lines of many writers come whole, are counted one by one, and are taken once.
func TestBuffer(t *testing.T) {
	var b Buffer
	var writers sync.WaitGroup
	taken := make(chan string)
	for i := range 10 {
		writers.Go(func() { fmt.Fprintf(&b, "line %d, line\n", i) })
		writers.Go(func() { b.Lines("line"); taken <- b.Take() })
	}
	go func() { writers.Wait(); close(taken) }()
	var all Buffer
	for text := range taken {
		fmt.Fprint(&all, text)
	}
	fmt.Fprint(&all, b.Take())
	if n := all.Lines("line"); n != 10 || len(all.String()) != 10*len("line 0, line\n") {
		t.Errorf("%d lines: %q", n, all.String())
	}
	if text := b.String(); text != "" {
		t.Errorf("%q is left", text)
	}
}
