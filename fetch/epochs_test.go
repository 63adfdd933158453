package fetch

import (
	"math/rand/v2"
	"testing"
)

func TestEndOffsetFor(t *testing.T) {
	h := history{{2, 10}, {5, 20}, {6, 30}}
	for _, tt := range []struct {
		ask, epoch int32
		end        int64
	}{{0, 0, 10}, {1, 1, 10}, {2, 2, 20}, {3, 2, 20}, {4, 2, 20}, {5, 5, 30}, {6, 6, 40}, {7, 6, 40}, {100, 6, 40}} {
		if e, end := h.endOffsetFor(tt.ask, 40); e != tt.epoch || end != tt.end {
			t.Errorf("epoch %d: (%d, %d), want (%d, %d)", tt.ask, e, end, tt.epoch, tt.end)
		}
	}
	if e, end := history(nil).endOffsetFor(7, 40); e != 0 || end != 0 {
		t.Errorf("empty history: (%d, %d)", e, end)
	}
}

func TestHistoryRecord(t *testing.T) {
	var h history
	for _, e := range []epochStart{{2, 0}, {2, 10}, {1, 15}, {4, 20}, {4, 30}, {7, 20}} {
		h = h.record(e.epoch, e.start)
	}
	if len(h) != 2 || h[0] != (epochStart{2, 0}) || h[1] != (epochStart{7, 20}) {
		t.Errorf("%v: an epoch without records goes when the next starts at the same offset", h)
	}
	for offset, want := range map[int64]int32{-1: -1, 0: 2, 19: 2, 20: 7, 1000: 7} {
		if got := h.epochAt(offset); got != want {
			t.Errorf("epoch at %d is %d, want %d", offset, got, want)
		}
	}
	if at, ok := h.firstAbove(2); !ok || at != 20 {
		t.Errorf("first above 2 is %d, %v", at, ok)
	}
	if _, ok := h.firstAbove(7); ok {
		t.Error("something above the newest")
	}
}

// TestCommon compares with logs that are written out offset by offset.
func TestCommon(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	grow := func(epochs []int32, end int, step func() int32) []int32 {
		for e := int32(0); len(epochs) < end; {
			if n := len(epochs); n > 0 {
				e = epochs[n-1]
			}
			epochs = append(epochs, e+step())
		}
		return epochs
	}
	hist := func(epochs []int32) (h history) {
		for i, e := range epochs {
			h = h.record(e, int64(i))
		}
		return h
	}
	for range 2000 {
		shared := grow(nil, rnd.IntN(20), func() int32 { return int32(rnd.IntN(5) / 4) })
		// Two leaders of the same past never use the same epoch.
		a := grow(append([]int32(nil), shared...), len(shared)+rnd.IntN(10), func() int32 { return 2 * int32(rnd.IntN(5)/4) })
		b := append([]int32(nil), shared...)
		for i, n := 0, rnd.IntN(10); i < n; i++ {
			last := int32(0)
			if len(b) > 0 {
				last = b[len(b)-1]
			}
			if i == 0 {
				last += 1001
			}
			b = append(b, last+int32(rnd.IntN(2)))
		}
		want := 0
		for want < len(a) && want < len(b) && a[want] == b[want] {
			want++
		}
		if got := common(hist(a), int64(len(a)), hist(b), int64(len(b)), 0); got != int64(want) {
			t.Fatalf("%v\n%v\nagree up to %d, want %d", a, b, got, want)
		}
	}
	if got := common(history{{1, 0}}, 50, history{{2, 0}}, 60, 30); got > 30 {
		t.Errorf("below the start nothing is known: %d", got)
	}
}

func TestEpochAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		logs  history
		start int64
		end   int64
		want  history
	}{
		"one":             {history{{0, 0}}, 0, 10, history{{0, 0}}},
		"several":         {history{{1, 0}, {4, 20}, {5, 30}, {9, 45}}, 0, 100, history{{1, 0}, {4, 20}, {5, 30}, {9, 45}}},
		"adjacent":        {history{{0, 0}, {1, 5}, {2, 6}}, 0, 7, history{{0, 0}, {1, 5}, {2, 6}}},
		"log start":       {history{{4, 25}, {7, 40}}, 25, 60, history{{4, 25}, {7, 40}}},
		"newest is empty": {history{{4, 0}, {7, 60}}, 0, 60, history{{4, 0}, {7, 60}}},
		"empty log":       {history{{3, 0}}, 0, 0, history{{3, 0}}},
		"emptied log":     {history{{3, 500}}, 500, 500, history{{3, 500}}},
		"no epochs":       {nil, 0, 70, nil},
	} {
		g := &fakeLog{epochs: tt.logs, start: tt.start}
		if tt.end > tt.start {
			b := batch(tt.start, int(tt.end-tt.start), 0, 0)
			g.batches = append(g.batches, b)
		}
		l := &loading{start: tt.start, end: tt.end, leo: -1, ask: max(tt.logs.newest(), 0)}
		rounds := 0
		for ; !l.done && rounds < 100; rounds++ {
			l.epochAnswer(g.endFor(l.ask))
		}
		got := history{}
		for i := len(l.hist) - 1; i >= 0; i-- {
			got = append(got, l.hist[i])
		}
		if !l.done || len(got) != len(tt.want) {
			t.Errorf("%s: %v after %d rounds, want %v", name, got, rounds, tt.want)
			continue
		}
		for i := range got {
			if got[i] != tt.want[i] {
				t.Errorf("%s: %v, want %v", name, got, tt.want)
			}
		}
	}
}
