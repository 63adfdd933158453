package verify

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"kmirror/records"
)

// FuzzCut gives a chunk whatever a broker may send: what it keeps is the beginning of it, whole batches that ascend from
// the one that holds the offset asked for or follows it.
func FuzzCut(f *testing.F) {
	logs, err := filepath.Glob("../../records/testdata/*.log")
	if err != nil || len(logs) == 0 {
		f.Fatal("no logs of real brokers: ", err)
	}
	for _, name := range logs {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, int64(0))
		f.Add(b, int64(1))
		f.Add(append(bytes.Clone(b), b...), int64(0))
		f.Add(b[:len(b)-1], int64(0))
	}
	f.Add([]byte{}, int64(3))
	f.Add(bytes.Repeat([]byte{0xff}, records.HeaderSize), int64(0))
	f.Fuzz(func(t *testing.T, raw []byte, offset int64) {
		if offset < 0 {
			return
		}
		c := chunk{until: offset}
		err := c.cut(raw, offset)
		var kept []byte
		until := offset
		for i, b := range c.batches {
			if b.NextOffset() <= until || i > 0 && b.BaseOffset() < until {
				t.Fatalf("batch %d-%d where %d is due", b.BaseOffset(), b.LastOffset(), until)
			}
			kept, until = append(kept, b...), b.NextOffset()
		}
		if c.until != until || !bytes.HasPrefix(raw, kept) {
			t.Fatalf("ends at %d, says %d; %d of %d bytes", until, c.until, len(kept), len(raw))
		}
		if rest := raw[len(kept):]; err == nil && c.corrupt == nil && len(rest) > 0 {
			if _, _, err := records.Split(rest); err == nil {
				t.Fatal("a whole batch was left out")
			}
		}
		if err != nil && c.corrupt != nil {
			t.Fatalf("%v next to %v", err, c.corrupt)
		}
	})
}
