package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 61204: "61,204", 1234567: "1,234,567", -100: "-100", -1000: "-1,000"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestSegmentSums(t *testing.T) {
	want := map[string]string{"orders-0/0.log": "aa", "orders-1/0.log": "bb"}
	s := segmentSums{"A": want, "B1": {"orders-0/0.log": "aa", "orders-1/0.log": "bb"}}
	if err := s.same(want); err != nil {
		t.Error(err)
	}
	s["B1"]["orders-1/0.log"] = "cc"
	if err := s.same(want); err == nil || !strings.Contains(err.Error(), "orders-1/0.log of B1") {
		t.Errorf("a sum that differs: %v", err)
	}
	delete(s["B1"], "orders-1/0.log")
	if err := s.same(want); err == nil {
		t.Error("a file that is missing is not seen")
	}
	s["B1"]["orders-1/0.log"], s["B1"]["orders-1/9.log"] = "bb", "dd"
	if err := s.same(want); err == nil {
		t.Error("a file too many is not seen")
	}
}

// A tool that ends well and says nothing was not refused; one that could not even start proves nothing.
func TestRefusedBy(t *testing.T) {
	if err := refusedBy("% Delivery failed for message", errors.New("exit status 1"), "Delivery failed"); err != nil {
		t.Error(err)
	}
	if err := refusedBy("1 records sent", nil, "Exception"); !errors.Is(err, errAccepted) {
		t.Errorf("accepted: %v", err)
	}
	if err := refusedBy("", errors.New("not found"), "Exception"); err == nil || errors.Is(err, errAccepted) {
		t.Errorf("not run: %v", err)
	}
}

// What was last said before the limit is in the error, and it is shown at a terminal only.
func TestDemoAwait(t *testing.T) {
	var screen bytes.Buffer
	d := &demo{cli: &cli{out: io.Discard, err: &screen}}
	err := d.await(t.Context(), "mirror", 250*time.Millisecond, func(ctx context.Context) (string, bool, error) {
		if ctx.Err() != nil {
			return "deadline", false, nil
		}
		return "lag 5", false, nil
	})
	if err == nil || !strings.HasSuffix(err.Error(), ": lag 5") || screen.Len() > 0 {
		t.Errorf("%v, screen %q", err, screen.String())
	}
	d.terminal = true
	calls := 0
	if err := d.await(t.Context(), "mirror", time.Minute, func(context.Context) (string, bool, error) {
		calls++
		return "lag 1", calls == 2, nil
	}); err != nil || !strings.Contains(screen.String(), "mirror    lag 1") {
		t.Errorf("%v, screen %q", err, screen.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.await(ctx, "mirror", time.Minute, func(context.Context) (string, bool, error) { return "", false, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// Records of the demo differ from one another and have the length that the figures are made from.
func TestOrder(t *testing.T) {
	seen := map[string]bool{}
	for n := range 100 {
		v := string(order(n).Value)
		if seen[v] || len(v) < demoValue || len(v) > demoValue+20 {
			t.Fatalf("order %d: %d bytes, seen %v", n, len(v), seen[v])
		}
		seen[v] = true
	}
}
