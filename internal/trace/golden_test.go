package trace

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write what is printed to testdata")

// chunk is a line of a capture.
type chunk struct {
	conn int64
	dir  Direction
	at   time.Time
	data []byte
}

func readCapture(t testing.TB) (chunks []chunk) {
	t.Helper()
	text, err := os.ReadFile("testdata/kafka-4.4.0.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var c chunk
		var sign, data string
		var micros int64
		if _, err := fmt.Sscan(line, &c.conn, &sign, &micros, &data); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if sign == "<" {
			c.dir = ToClient
		}
		c.at = time.UnixMicro(micros).UTC()
		if c.data, err = hex.DecodeString(data); err != nil {
			t.Fatal(err)
		}
		chunks = append(chunks, c)
	}
	return chunks
}

// play feeds a capture to streams and prints what comes out.
func play(t testing.TB, chunks []chunk, r *Reporter) string {
	t.Helper()
	var out bytes.Buffer
	r.Out, r.Stats = &out, NewStats()
	if r.Decoder == nil {
		r.Decoder = NewDecoder(DecoderConfig{})
	}
	budget := NewBudget(64 << 20)
	streams := make(map[int64]*Stream)
	for _, c := range chunks {
		s := streams[c.conn]
		if s == nil {
			s = NewStream(Conn{ID: c.conn, Client: "client", Server: "broker"}, c.at, 0, budget, func(m *Message) {
				r.Stats.Message(m)
				if err := r.Report(m); err != nil {
					t.Error(err)
				}
				budget.Give(m.Charge)
			})
			streams[c.conn] = s
		}
		s.Feed(c.dir, c.at, c.data)
	}
	last := chunks[len(chunks)-1].at
	for id := int64(1); id <= int64(len(streams)); id++ {
		streams[id].Close(last)
	}
	if budget.Left() != 64<<20 {
		t.Errorf("%d bytes of the budget did not come back", 64<<20-budget.Left())
	}
	if err := r.Stats.Write(&out, r.Format, last); err != nil {
		t.Error(err)
	}
	return out.String()
}

// TestGolden prints what real clients and a real broker said, in every format.
func TestGolden(t *testing.T) {
	for _, f := range []Format{Line, Pretty, JSON} {
		t.Run(string(f), func(t *testing.T) {
			got := play(t, readCapture(t), &Reporter{Format: f, Decoder: NewDecoder(DecoderConfig{Payload: true})})
			for _, secret := range []string{"s3cret", "secret-keystore-password"} {
				if strings.Contains(got, secret) {
					t.Errorf("%s is shown", secret)
				}
			}
			if strings.Contains(got, "not decoded:") {
				t.Error("there is something that is not decoded")
			}
			name := "testdata/golden." + string(f)
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n"); got != string(want) {
				for i := range min(len(g), len(w)) {
					if g[i] != w[i] {
						t.Fatalf("line %d:\n got %s\nwant %s", i+1, g[i], w[i])
					}
				}
				t.Fatalf("%d lines, want %d", len(g), len(w))
			}
			if f == JSON {
				for line := range strings.Lines(got) {
					if !json.Valid([]byte(line)) {
						t.Fatalf("not JSON: %s", line)
					}
				}
			}
		})
	}
}

// TestChunksDoNotMatter cuts the same bytes into single ones.
func TestChunksDoNotMatter(t *testing.T) {
	whole := readCapture(t)
	var bytewise []chunk
	for _, c := range whole {
		for i := range c.data {
			bytewise = append(bytewise, chunk{c.conn, c.dir, c.at, c.data[i : i+1]})
		}
	}
	if a, b := play(t, whole, &Reporter{Format: JSON}), play(t, bytewise, &Reporter{Format: JSON}); a != b {
		t.Error("single bytes come out differently")
	}
}
