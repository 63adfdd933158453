package quiet

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestOneLineOfAKindAnInterval(t *testing.T) {
	var lines bytes.Buffer
	now := time.Unix(0, 0)
	q := New(slog.New(slog.NewTextHandler(&lines, nil)), time.Second, func() time.Time { return now })
	for range 5 {
		q.Warn("a", "first kind")
	}
	q.Warn("b", "second kind")
	now = now.Add(time.Second)
	q.Warn("a", "first kind")
	text := lines.String()
	if a, b := strings.Count(text, "first kind"), strings.Count(text, "second kind"); a != 2 || b != 1 {
		t.Errorf("%d and %d lines, want 2 and 1", a, b)
	}
	if strings.Count(text, "suppressed=4") != 1 {
		t.Error("the number of suppressed lines is not told")
	}
}
