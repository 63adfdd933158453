package trace

import (
	"bytes"
	"testing"
	"time"
)

// FuzzStream feeds bytes of both sides in chunks, with losses. Nothing may panic, the memory of frames under way stays in its
// budget and comes back, and what is printed does not depend on how the bytes were cut.
func FuzzStream(f *testing.F) {
	var both [2][]byte
	for _, c := range readCapture(f) {
		if c.conn == 6 || c.conn == 7 {
			both[c.dir] = append(both[c.dir], c.data...)
		}
	}
	f.Add(both[0], both[1], uint8(7), uint16(0))
	f.Add(ask(1, handshake("PLAIN"), 0), []byte("\x00\x00\x00\x00"), uint8(255), uint16(0))
	f.Add([]byte("\x16\x03\x01\x02\x00\x01"), []byte("HTTP/1.1 200 OK"), uint8(1), uint16(40))
	f.Fuzz(func(t *testing.T, client, server []byte, step uint8, lost uint16) {
		for _, format := range []Format{Line, Pretty, JSON} {
			whole := run(t, client, server, len(client)+len(server), int(lost), format)
			if cut := run(t, client, server, int(step), int(lost), format); lost == 0 && whole != cut {
				t.Fatalf("chunks of %d bytes:\n%s\nwhole:\n%s", step, cut, whole)
			}
		}
	})
}

// run shows the client's bytes and then the server's, in chunks of step bytes, and takes lost off the end of the client's.
func run(t *testing.T, client, server []byte, step, lost int, format Format) string {
	const memory = 1 << 16
	budget := NewBudget(memory)
	var out bytes.Buffer
	r := Reporter{Decoder: NewDecoder(DecoderConfig{Payload: true, PayloadBytes: 1 << 16}), Format: format, Stats: NewStats(),
		Out: &out}
	frames := 0
	s := NewStream(Conn{ID: 1}, time.Unix(0, 0), 1<<20, budget, func(m *Message) {
		r.Stats.Message(m)
		if m.Kind <= Response {
			frames += m.Size
		}
		if err := r.Report(m); err != nil {
			t.Fatal(err)
		}
		budget.Give(m.Charge)
	})
	for dir, b := range [][]byte{client, server} {
		for len(b) > 0 {
			n := min(len(b), max(1, step))
			s.Feed(Direction(dir), time.Unix(0, 0), b[:n])
			b = b[n:]
			if budget.Left() < 0 {
				t.Fatal("the budget is overdrawn")
			}
		}
		if dir == 0 && lost > 0 {
			s.Lost(ToServer, time.Unix(0, 0), lost)
		}
	}
	s.Close(time.Unix(0, 0))
	if budget.Left() != memory {
		t.Fatalf("%d bytes of the budget did not come back", memory-budget.Left())
	}
	if frames > len(client)+len(server)+lost {
		t.Fatalf("frames of %d bytes out of %d", frames, len(client)+len(server))
	}
	return out.String()
}
