package queue

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"kmirror/internal/quiet"
	"kmirror/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pace is an output that takes its time for each line.
type pace time.Duration

func (p pace) Write(b []byte) (int, error) {
	time.Sleep(time.Duration(p))
	return len(b), nil
}

// TestEndWaitsForWhatIsSlow: an output that goes on taking is not stuck, one that takes nothing is, and none holds up the end for ever.
func TestEndWaitsForWhatIsSlow(t *testing.T) {
	for _, tt := range []struct {
		name  string
		each  time.Duration
		takes time.Duration
		err   error
	}{
		{"fast", time.Millisecond, 10 * time.Millisecond, nil},
		{"slow", 2 * time.Second, 20 * time.Second, nil},
		{"too slow", 4 * time.Second, endLimit, ErrStuck},
		{"stuck", time.Minute, stuckAfter, ErrStuck},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := trace.NewBudget(100)
				q := New(&trace.Reporter{Decoder: trace.NewDecoder(trace.DecoderConfig{}), Format: trace.Line, Stats: trace.NewStats(),
					Out: pace(tt.each)}, budget, quiet.New(slog.New(slog.DiscardHandler), quiet.Interval, nil))
				for range 10 {
					budget.Take(10)
					q.Put(&trace.Message{Kind: trace.Note, At: time.Now(), Reason: "of a test", Charge: 10})
				}
				written := make(chan error, 1)
				go func() { written <- q.Run() }()
				synctest.Wait()
				began := time.Now()
				if err := q.End(written); !errors.Is(err, tt.err) || time.Since(began) != tt.takes {
					t.Errorf("%v after %s, want %v after %s", err, time.Since(began), tt.err, tt.takes)
				}
				if tt.err != nil {
					<-written
				}
				if left := budget.Left(); left != 100 {
					t.Errorf("%d of 100 bytes came back", left)
				}
			})
		})
	}
}
