package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
)

func frame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func TestReadFrameReadsOneFrameAndReusesItsBuffer(t *testing.T) {
	in := bytes.NewReader(append(frame("first"), frame("")...))
	buf := make([]byte, 0, 64)
	got, err := ReadFrame(in, 100, buf)
	if err != nil || string(got) != "first" {
		t.Fatalf("got %q, %v", got, err)
	}
	if &got[0] != &buf[:1][0] {
		t.Error("a large enough buffer was not used")
	}
	if got, err = ReadFrame(in, 100, got); err != nil || len(got) != 0 {
		t.Fatalf("empty frame: got %q, %v", got, err)
	}
	if _, err = ReadFrame(in, 100, got); err != io.EOF {
		t.Errorf("clean end: got %v, want io.EOF", err)
	}
}

func TestReadFrameLargerThanOneStep(t *testing.T) {
	body := strings.Repeat("0123456789", frameStep/2)
	got, err := ReadFrame(bytes.NewReader(frame(body)), DefaultMaxFrame, make([]byte, 10))
	if err != nil || string(got) != body {
		t.Fatalf("got %d bytes, %v; want %d", len(got), err, len(body))
	}
}

func TestReadFrameEndsWithinAFrame(t *testing.T) {
	whole := frame("body")
	for n := 1; n < len(whole); n++ {
		if _, err := ReadFrame(bytes.NewReader(whole[:n]), 100, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut to %d bytes: got %v, want io.ErrUnexpectedEOF", n, err)
		}
	}
}

// kroxylicious #2439: TLS bytes read as a length; the text must name the cause.
func TestReadFrameNamesTheCauseOfAnImpossibleSize(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want string
		kind string
	}{
		"TLS client hello": {"\x16\x03\x01\x02\x00\x01\x00", "TLS handshake", "tls"},
		"TLS alert":        {"\x15\x03\x03\x00\x02\x02\x28", "TLS alert", "tls"},
		"HTTP request":     {"GET / HTTP/1.1\r\n", "HTTP request", "text"},
		"HTTP answer":      {"HTTP/1.1 400 Bad Request", "HTTP answer", "text"},
		"negative":         {"\xff\xff\xff\xff", "negative", "size"},
		"too large":        {"\x00\x00\x01\x01....", "257 bytes is above the limit of 256", "size"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadFrame(strings.NewReader(c.in), 256, nil)
			var fe *FrameError
			if !errors.As(err, &fe) {
				t.Fatalf("got %v, want a FrameError", err)
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q does not name %q", err, c.want)
			}
			if string(fe.Head) != c.in[:4] || fe.Max != 256 || fe.Kind() != c.kind {
				t.Errorf("head %x, max %d, kind %s", fe.Head, fe.Max, fe.Kind())
			}
		})
	}
}

// A peer that sends a size and no more must not make us hold what it announced.
func TestReadFrameAllocatesByWhatComes(t *testing.T) {
	in := append(binary.BigEndian.AppendUint32(nil, 90<<20), make([]byte, 100)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := ReadFrame(bytes.NewReader(in), DefaultMaxFrame, nil)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("got %v", err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 2*frameStep {
		t.Errorf("allocated %d bytes for a frame of which 100 came", got)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(frame("hello"), uint16(100), uint8(0))
	f.Add([]byte("\x16\x03\x01\x00"), uint16(100), uint8(3))
	f.Add([]byte("\x00\x00\x00\x05abc"), uint16(5), uint8(200))
	f.Fuzz(func(t *testing.T, in []byte, limit uint16, room uint8) {
		r := bytes.NewReader(in)
		got, err := ReadFrame(r, int32(limit), make([]byte, 0, room))
		if err != nil {
			if fe := new(FrameError); errors.As(err, &fe) && (fe.Error() == "" || r.Len() != len(in)-4) {
				t.Fatalf("%d bytes read before the size was refused", len(in)-r.Len())
			}
			return
		}
		if len(got) > int(limit) {
			t.Fatalf("frame of %d bytes above the limit %d", len(got), limit)
		}
		if back := frame(string(got)); !bytes.Equal(back, in[:len(in)-r.Len()]) {
			t.Fatalf("frame %x is not what was read: %x", back, in)
		}
	})
}
