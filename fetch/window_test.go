package fetch

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"kmirror/records"
)

func mustChunk(t testing.TB, from int64, batches ...[]byte) *chunk {
	t.Helper()
	c, err := parseChunk(bytes.Join(batches, nil), from, -1, -1)
	if err != nil || c == nil {
		t.Fatalf("chunk %v: %v", c, err)
	}
	return c
}

func TestParseChunk(t *testing.T) {
	a, b, c := batch(10, 10, 3, 40), batch(20, 10, 3, 40), batch(35, 10, 5, 40)
	all := bytes.Join([][]byte{a, b, c}, nil)
	bad := bytes.Clone(b)
	bad[16] = 1
	for name, tt := range map[string]struct {
		in         []byte
		from       int64
		max, last  int32
		data       []byte
		next       int64
		fails, nil bool
	}{
		"whole":                 {all, 10, 5, 3, all, 45, false, false},
		"partial end":           {all[:len(all)-1], 10, 5, 3, all[:len(all)-len(c)], 30, false, false},
		"only a beginning":      {a[:30], 10, 5, 3, nil, 0, false, true},
		"nothing":               {nil, 10, 5, 3, nil, 0, false, true},
		"begins below":          {all, 20, 5, 3, all[len(a):], 45, false, false},
		"begins within a batch": {all, 25, 5, 3, all[len(a):], 45, false, false},
		"all below":             {a, 20, 5, 3, nil, 0, false, true},
		"newer epoch":           {all, 10, 4, 3, all[:len(all)-len(c)], 30, false, false},
		"only newer epochs":     {c, 35, 4, 3, nil, 0, false, true},
		"no epoch limit":        {all, 10, -1, 3, all, 45, false, false},
		"epoch falls":           {all, 10, 5, 4, nil, 0, true, false},
		"offsets fall":          {append(bytes.Clone(b), a...), 20, 5, 3, nil, 0, true, false},
		"old format":            {append(bytes.Clone(a), bad...), 10, 5, 3, nil, 0, true, false},
	} {
		got, err := parseChunk(tt.in, tt.from, tt.max, tt.last)
		if (err != nil) != tt.fails || tt.fails {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			continue
		}
		if (got == nil) != tt.nil {
			t.Errorf("%s: chunk %+v", name, got)
		} else if got != nil && (!bytes.Equal(got.data, tt.data) || got.next != tt.next || got.from != tt.from) {
			t.Errorf("%s: from %d to %d, %s", name, got.from, got.next, outline(got.data))
		}
	}
}

// TestReadAgainstASlowReader compares reads with one that looks at every batch.
func TestReadAgainstASlowReader(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		var w window
		var all [][]byte
		next, epoch := int64(rnd.IntN(50)), int32(1)
		start := next
		for range 1 + rnd.IntN(6) {
			from := next
			var batches [][]byte
			for range 1 + rnd.IntN(30) {
				if rnd.IntN(10) == 0 {
					epoch += int32(1 + rnd.IntN(3))
				}
				if rnd.IntN(5) == 0 {
					next += int64(rnd.IntN(20)) // a hole
				}
				b := batch(next, 1+rnd.IntN(10), epoch, rnd.IntN(4000))
				next = records.Batch(b).NextOffset()
				batches = append(batches, b)
			}
			all = append(all, batches...)
			w.push(mustChunk(t, from, batches...))
		}
		for range 50 {
			offset := start + rnd.Int64N(next-start)
			limit, maxEpoch, one := rnd.IntN(20000), int32(rnd.IntN(int(epoch)+2)), rnd.IntN(2) == 0
			upTo := offset + rnd.Int64N(2*(next-start))
			var want []byte
			lastEpoch := int32(-1)
			for _, b := range all {
				x := records.Batch(b)
				if x.NextOffset() <= offset {
					continue
				}
				if x.PartitionLeaderEpoch() > maxEpoch || x.NextOffset() > upTo || len(want)+len(b) > limit && !(one && len(want) == 0) {
					break
				}
				want = append(want, b...)
				lastEpoch = x.PartitionLeaderEpoch()
			}
			bufs, n, last := w.chunks.read(nil, offset, limit, maxEpoch, upTo, one)
			got := bytes.Join(bufs, nil)
			if n != len(got) || !bytes.Equal(got, want) || last != lastEpoch {
				t.Fatalf("read %d limit %d epoch %d one %v: epoch %d %s\nwant epoch %d %s", offset, limit, maxEpoch, one, last, outline(got),
					lastEpoch, outline(want))
			}
		}
		if len(w.chunks) > 1 {
			if w.chunks.find(start-1) != -1 || w.chunks.find(next) != -1 {
				t.Fatal("found what is not there")
			}
		}
	}
}

func TestWindowTruncate(t *testing.T) {
	for _, tt := range []struct{ to, next, bytes int64 }{
		{100, 60, 6}, {60, 60, 6}, {50, 50, 5}, {45, 40, 4}, {40, 40, 4}, {30, 30, 3}, {20, 20, 2}, {10, 10, 1}, {5, 0, 0}, {0, 0, 0},
	} {
		var w window
		for i := range int64(3) {
			w.push(mustChunk(t, i*20, batch(i*20, 10, int32(i), 39), batch(i*20+10, 10, int32(i), 39)))
		}
		dropped := w.truncate(tt.to)
		next, kept := int64(0), 0
		for _, c := range w.chunks {
			next, kept = c.next, kept+len(c.data)
		}
		if next != tt.next || int64(kept) != tt.bytes*100 || w.bytes != kept || dropped != 600-kept {
			t.Errorf("truncate to %d: ends at %d with %d bytes (%d), dropped %d", tt.to, next, kept, w.bytes, dropped)
		}
	}
}

func TestSmallChunksDontKeepLargeResponses(t *testing.T) {
	b := batch(0, 10, 0, 300<<10)
	small := batch(0, 10, 0, 1000)
	for _, tt := range []struct {
		part          []byte
		parts         int
		tight, copied bool
	}{
		{b, 1, true, false}, {b, 4, true, false}, {b, 5, true, true}, {b, 5, false, false}, {b, 30, true, true},
		{small, 4, true, false}, {small, 4, false, false}, {small, 5, true, true}, {small, 5, false, true},
	} {
		c := mustChunk(t, 0, tt.part)
		first, all := &c.data[0], len(tt.part)*tt.parts
		if c.own(&response{size: all}, tt.tight); (first != &c.data[0]) != tt.copied {
			t.Errorf("%d of %d bytes, tight %v: copied is %v, want %v", len(tt.part), all, tt.tight, !tt.copied, tt.copied)
		}
		if n := c.hold(); tt.copied && n != len(tt.part) || !tt.copied && n != all {
			t.Errorf("%d of %d bytes, copied %v: %d are accounted", len(tt.part), all, tt.copied, n)
		}
	}
}

// TestWhatStaysAliveIsAccounted moves parts of responses through windows and catch-up of several partitions: what is
// accounted is the copies and all of each response that a part is left of, at any time.
func TestWhatStaysAliveIsAccounted(t *testing.T) {
	l := still(t, 4, 0, 0)
	l.cfg.WindowBytes = 64 << 10
	var parts []*partition
	for _, p := range l.parts {
		parts = append(parts, p)
	}
	check := func(what string) {
		t.Helper()
		alive, whole := 0, map[*response]bool{}
		for _, p := range parts {
			for _, c := range append(p.win.chunks[:len(p.win.chunks):len(p.win.chunks)], p.catch...) {
				if c.of == nil {
					alive += len(c.data)
				} else if !whole[c.of] {
					whole[c.of] = true
					alive += c.of.size
				}
			}
		}
		if n := l.memory.Load(); n != int64(alive) {
			t.Fatalf("%s: %d bytes are accounted, %d alive", what, n, alive)
		}
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 400 {
		r := &response{}
		read := map[*partition]*chunk{}
		for _, p := range parts {
			if rnd.IntN(3) > 0 {
				next := p.src.next
				read[p] = mustChunk(t, next, batch(next, 10, 0, rnd.IntN(9000)), batch(next+10, 10, 0, rnd.IntN(9000)))
				r.size += len(read[p].data)
			}
		}
		for p, c := range read {
			if c.own(r, rnd.IntN(2) == 0); rnd.IntN(4) == 0 {
				p.pushCatchUp(c)
				check("read below the window")
				continue
			}
			p.append(c)
			check("read")
		}
		p := parts[rnd.IntN(len(parts))]
		switch now := time.Now(); rnd.IntN(6) {
		case 0, 1:
			p.evictBelow(p.win.from(p.src.next) + rnd.Int64N(60))
		case 2:
			p.diverge(max(p.src.next-rnd.Int64N(50), 0))
		case 3:
			p.forgetCatchUp(now.Add(2 * catchUpKeep))
		case 4:
			p.startAt(p.src.next)
		case 5:
			p.dropData()
		}
		check("dropped")
	}
	for _, p := range parts {
		p.close()
	}
	if n := l.memory.Load(); n != 0 {
		t.Errorf("%d bytes are accounted, none held", n)
	}
}

// TestCatchUpIsForgotten: what a lagging follower needed does not take memory from the windows for good.
func TestCatchUpIsForgotten(t *testing.T) {
	r := newRig(t, 1)
	p := newPartition(r.l, r.id())
	p.pushCatchUp(mustChunk(t, 0, batch(0, 10, 1, 100)))
	if r.l.memory.Load() == 0 {
		t.Fatal("nothing is accounted")
	}
	p.forgetCatchUp(time.Now())
	if len(p.catch) != 1 {
		t.Error("forgotten at once")
	}
	p.forgetCatchUp(time.Now().Add(2 * catchUpKeep))
	if n := r.l.memory.Load(); n != 0 || len(p.catch) != 0 {
		t.Errorf("%d chunks, %d bytes are kept", len(p.catch), n)
	}
}
