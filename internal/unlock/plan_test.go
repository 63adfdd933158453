package unlock

import (
	"fmt"
	"strings"
	"testing"
)

// TestNoteSpare: a second replica of a topic that had one is told of when an earlier run has ended between the two halves of the lock.
func TestNoteSpare(t *testing.T) {
	var notes []string
	u := &Unlocker{cfg: Config{Note: func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }}}
	k := &task{plan: &TopicPlan{Topic: "orders"}, wanted: 1, minISR: true, before: [][]int32{{1, 3}, {2}}}
	u.noteSpare(k)
	if len(notes) != 1 || !strings.Contains(notes[0], "orders-0 is on brokers [1 3]") || !strings.Contains(notes[0], "broker 3") {
		t.Errorf("%q", notes)
	}
	notes = nil
	for _, change := range []func(){func() { k.wanted = 2 }, func() { k.wanted = 0 }, func() { k.wanted, k.size = 1, true }} {
		change()
		u.noteSpare(k)
	}
	if len(notes) > 0 {
		t.Errorf("%q", notes)
	}
}
