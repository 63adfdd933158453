package metasync

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestFailures(t *testing.T) {
	var f failures
	if f.err() != nil {
		t.Error("an error of none")
	}
	last := errors.New("a is first")
	for i := range 40 {
		f.add(fmt.Errorf("group %02d %s", i, strings.Repeat("ü", 1000)))
	}
	f.add(last)
	err := f.err()
	text := err.Error()
	if !strings.HasPrefix(text, "a is first; group 00 ü") || !strings.HasSuffix(text, " (and 36 more)") || len(text) > 5*(longestError+5)+20 {
		t.Errorf("text of %d bytes: %q", len(text), text)
	}
	if strings.ToValidUTF8(text, "") != text {
		t.Error("cut within a letter")
	}
	if !errors.Is(err, last) {
		t.Error("errors are not found in it")
	}
	if one := bounded([]error{last}); one.Error() != "a is first" {
		t.Errorf("of one: %q", one)
	}
}
