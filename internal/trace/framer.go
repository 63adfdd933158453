package trace

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"kmirror/protocol"
)

// Budget bounds what frames under way may hold, in bytes, over all streams that share it. A nil Budget bounds nothing.
type Budget struct{ left atomic.Int64 }

// NewBudget makes a Budget of n bytes.
func NewBudget(n int64) *Budget {
	b := &Budget{}
	b.left.Store(n)
	return b
}

// Take reports whether there was room for n bytes, which are taken then.
func (b *Budget) Take(n int) bool {
	if b == nil {
		return true
	}
	if b.left.Add(-int64(n)) >= 0 {
		return true
	}
	b.left.Add(int64(n))
	return false
}

// Give returns n bytes.
func (b *Budget) Give(n int) {
	if b != nil {
		b.left.Add(int64(n))
	}
}

// Left is what there is room for.
func (b *Budget) Left() int64 { return b.left.Load() }

const (
	// headSize is what is kept of frames that are not kept whole: enough for their header.
	headSize = 4 << 10
	// firstRoom is what a frame holds at first; it grows as bytes come, so that a peer pays for what it makes us hold.
	firstRoom = 512
)

type framerMode uint8

const (
	framing framerMode = iota
	// astray: bytes are missing, and where the next frame begins is not known. It is looked for at the beginning of chunks.
	astray
	// blind: this is not Kafka's protocol, or no longer.
	blind
)

// framer cuts one direction of a connection into frames.
type framer struct {
	limit  int // of a frame that is kept whole
	budget *Budget

	mode   framerMode
	prefix [4]byte
	have   int // bytes of prefix that have come
	size   int // of the frame's body
	seen   int // bytes of the body that have come, or are known to be lost
	buf    []byte
	// whole: buf holds all that has come of the body; else its head, and why says so.
	whole   bool
	why     string
	charged int
}

// take uses up some of b and reports whether a frame is complete. The error is a *protocol.FrameError.
func (f *framer) take(b []byte) (n int, done bool, err error) {
	if f.have < len(f.prefix) {
		n = copy(f.prefix[f.have:], b)
		if f.have += n; f.have < len(f.prefix) {
			return n, false, nil
		}
		if err := f.begin(); err != nil {
			return n, false, err
		}
	}
	body := b[n:min(len(b), n+f.size-f.seen)]
	f.keep(body)
	f.seen += len(body)
	return n + len(body), f.seen == f.size, nil
}

// begin looks at a complete prefix.
func (f *framer) begin() error {
	size := int64(int32(binary.BigEndian.Uint32(f.prefix[:])))
	most := max(int64(f.limit), protocol.DefaultMaxFrame)
	if size < 0 || size > most {
		return &protocol.FrameError{Size: size, Max: most, Head: f.prefix[:]}
	}
	f.size, f.seen = int(size), 0
	f.whole, f.why = true, ""
	if f.size > f.limit {
		f.whole, f.why = false, fmt.Sprintf("not decoded: above the limit of %d bytes for frames that are decoded", f.limit)
	}
	return nil
}

// keep appends to buf as much as is to be kept and there is room for.
func (f *framer) keep(b []byte) {
	if f.whole && len(f.buf)+len(b) > cap(f.buf) {
		room := min(f.size, max(len(f.buf)+len(b), 2*cap(f.buf), firstRoom))
		if more := room - f.charged; f.budget.Take(more) {
			f.charged += more
			f.buf = append(make([]byte, 0, room), f.buf...)
		} else {
			f.behead("not decoded: the limit on memory is reached")
		}
	}
	if !f.whole {
		b = b[:max(0, min(len(b), headSize-len(f.buf)))]
		if f.seen > len(f.buf) {
			b = nil // what is kept must be one piece
		}
	}
	f.buf = append(f.buf, b...)
}

// behead gives up all but the head of the frame.
func (f *framer) behead(why string) {
	f.buf = append([]byte(nil), f.buf[:min(len(f.buf), headSize)]...)
	f.budget.Give(f.charged)
	f.charged, f.whole, f.why = 0, false, why
}

// reset makes ready for the next frame and returns what there is of this one; the charge goes with it.
func (f *framer) reset() (buf []byte, charged int) {
	buf, charged = f.buf, f.charged
	f.buf, f.charged, f.have, f.size, f.seen = nil, 0, 0, 0, 0
	return buf, charged
}

// lose counts n bytes that never came, fewer than 0 for an unknown number. It reports whether they end a frame.
func (f *framer) lose(n int) (done bool) {
	if f.mode != framing {
		return false
	}
	if n >= 0 && f.have == len(f.prefix) && n <= f.size-f.seen {
		f.behead("not decoded: a part of it was not captured")
		f.seen += n
		return f.seen == f.size
	}
	f.stop(astray)
	return false
}

// stop gives the current frame up.
func (f *framer) stop(mode framerMode) {
	_, charged := f.reset()
	f.budget.Give(charged)
	f.mode = mode
}
