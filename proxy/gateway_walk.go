package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// heldBack is the largest reply with records that is held until its end is known, so that its size may change. Replies that name
	// other leaders are mostly small: partitions whose leader moved have no records.
	heldBack = 128 << 10
	// maxTail bounds what may stand behind the records: addresses of brokers.
	maxTail = 1 << 20
	// blankTag is a tag that no message defines and that fits one byte: readers skip it.
	blankTag = 127
)

// heldBuffers are shared by all connections: each needs one for as long as a reply passes.
var heldBuffers = sync.Pool{New: func() any { return new([heldBack]byte) }}

var errReply = errors.New("a field reaches beyond the end of the reply")

// passRecords passes the reply to a Fetch or ShareFetch on. Brokers name the addresses of new leaders behind the records (KIP-951), so
// the reply is walked: record bytes go by unseen, from socket to socket where there are many. Up to heldBack bytes are kept until the
// end is known and get the gateway's addresses. Of a larger reply the size has been sent by then, and so the addresses are blanked: the
// client asks for metadata then.
func (f *front) passRecords(c *conn, u *upstream, size int64, key, version int16) error {
	held := size <= heldBack
	var kept []byte
	w := walker{
		u: u, left: size, out: func(b []byte) error { return c.replyFrame(b) },
		pass: func(n int64) error { return u.copyTo(c, n) },
	}
	if held {
		pooled := heldBuffers.Get().(*[heldBack]byte)
		defer heldBuffers.Put(pooled)
		kept = pooled[:0]
		w.pass, w.out = nil, func(b []byte) error {
			kept = append(kept, b...)
			return nil
		}
	}
	if key == keyFetch {
		w.fetch(version)
	} else {
		w.shareFetch(version)
	}
	tail, err := w.tail(key)
	if err != nil {
		return w.failed(err)
	}
	if len(tail) > 0 {
		if tail, err = f.rewriteTail(tail, key, version, held); err != nil {
			return w.failed(err)
		}
	}
	if held {
		kept = append(kept, tail...)
		binary.BigEndian.PutUint32(kept, uint32(len(kept)-4))
		return c.replyFrame(kept)
	}
	return c.replyFrame(tail)
}

// rewriteTail changes what stands behind the records; its size stays unless it may change.
func (f *front) rewriteTail(tail []byte, key, version int16, resizable bool) ([]byte, error) {
	resp := kmsg.ResponseForKey(key)
	resp.SetVersion(version)
	// A reply without records in front of the tail is a whole one.
	head := len(resp.AppendTo(nil)) - emptyTail(key)
	whole := append(resp.AppendTo(nil)[:head:head], tail...)
	if err := resp.ReadFrom(whole); err != nil {
		return nil, fmt.Errorf("what stands behind the records: %w", err)
	}
	switch {
	case !f.rewrite(resp):
		return tail, nil
	case resizable:
		return resp.AppendTo(nil)[head:], nil
	case key == keyShareFetch:
		return appendBlank([]byte{1}, len(tail)-1)
	}
	return appendBlank(nil, len(tail))
}

// emptyTail is the size of a tail that names no broker: no tags, and before them ShareFetch's empty list.
func emptyTail(key int16) int {
	if key == keyShareFetch {
		return 2
	}
	return 1
}

// appendBlank appends n bytes of tagged fields that mean nothing.
func appendBlank(dst []byte, n int) ([]byte, error) {
	// One tag of the right size, or two where the length of its length leaves a gap.
	for tags := 1; tags <= 2; tags++ {
		for width := 1; width <= 3; width++ {
			filler := n - 1 - 2*(tags-1) - 1 - width
			if filler < 0 || kbin.UvarintLen(uint32(filler)) != width {
				continue
			}
			dst = append(dst, byte(tags))
			if tags == 2 {
				dst = append(dst, blankTag-1, 0)
			}
			dst = kbin.AppendUvarint(append(dst, blankTag), uint32(filler))
			return append(dst, make([]byte, filler)...), nil
		}
	}
	return nil, errReply
}

// walker reads the fields of a reply as it passes it on. Errors stick; after one all fields are zero.
type walker struct {
	u *upstream
	// win is what has been read of the reply and not passed on; all before pos is done with. left counts the reply's bytes from win on.
	win  []byte
	pos  int
	left int64
	out  func([]byte) error
	// pass passes the next n bytes on unseen; nil where they are held.
	pass func(n int64) error
	err  error
}

// failed says why a reply could not be passed on.
func (w *walker) failed(err error) error {
	if errors.Is(err, errReply) || errors.Is(err, kbin.ErrNotEnoughData) {
		return closef("upstream reply", "reply of broker %d can't be read: %w", w.u.broker, err)
	}
	return err
}

// flush passes on what is done with.
func (w *walker) flush() {
	if w.err == nil && w.pos > 0 {
		if w.err = w.out(w.win[:w.pos]); w.err == nil {
			_, w.err = w.u.br.Discard(w.pos)
		}
	}
	w.left -= int64(w.pos)
	w.win, w.pos = w.win[w.pos:], 0
}

// fill makes n bytes of the reply available, n being small.
func (w *walker) fill(n int) bool {
	if w.err == nil && int64(w.pos+n) > w.left {
		w.err = errReply
	}
	if w.err != nil {
		return false
	}
	if len(w.win)-w.pos >= n {
		return true
	}
	w.flush()
	if w.err != nil {
		return false
	}
	if _, err := w.u.br.Peek(n); err != nil {
		w.err = closeUpstream(err)
		return false
	}
	w.win, w.err = w.u.br.Peek(int(min(int64(w.u.br.Buffered()), w.left)))
	return w.err == nil
}

// skip goes n bytes on.
func (w *walker) skip(n int64) {
	if w.err == nil && (n < 0 || int64(w.pos)+n > w.left) {
		w.err = errReply
	}
	// Of much more than has been read, what comes next need not go through here.
	if rest := n - int64(len(w.win)-w.pos); w.pass != nil && w.err == nil && rest >= moveFrom {
		w.pos = len(w.win)
		if w.flush(); w.err == nil {
			w.err = w.pass(rest)
		}
		w.left -= rest
		return
	}
	for n > 0 && w.fill(1) {
		step := min(n, int64(len(w.win)-w.pos))
		w.pos += int(step)
		n -= step
	}
}

func (w *walker) uvarint() uint32 {
	var v uint64
	for shift := 0; shift < 35; shift += 7 {
		if !w.fill(1) {
			return 0
		}
		b := w.win[w.pos]
		w.pos++
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			if v > 1<<32-1 {
				break
			}
			return uint32(v)
		}
	}
	w.err = errReply
	return 0
}

// sized skips a compact string or bytes, null included.
func (w *walker) sized() {
	if n := w.uvarint(); n > 0 {
		w.skip(int64(n) - 1)
	}
}

// tags skips tagged fields.
func (w *walker) tags() {
	for n := w.uvarint(); n > 0 && w.err == nil; n-- {
		w.uvarint()
		w.skip(int64(w.uvarint()))
	}
}

// each calls f for the elements of a compact array, null included.
func (w *walker) each(f func()) {
	for n := w.uvarint(); n > 1 && w.err == nil; n-- {
		f()
	}
}

// head skips the size prefix and the response header.
func (w *walker) head() {
	w.skip(4 + 4)
	w.tags()
}

// fetch goes to the end of the records of a Fetch reply, version 12 (the first flexible one) and up.
func (w *walker) fetch(version int16) {
	w.head()
	w.skip(4 + 2 + 4) // throttle time, error, session
	w.each(func() {
		if version < 13 {
			w.sized() // topic
		} else {
			w.skip(16) // its id
		}
		w.each(func() {
			w.skip(4 + 2 + 3*8) // index, error, offsets
			w.each(func() { w.skip(2 * 8); w.tags() })
			w.skip(4) // preferred replica
			w.sized() // records
			w.tags()
		})
		w.tags()
	})
}

// shareFetch goes to the end of the records of a ShareFetch reply.
func (w *walker) shareFetch(version int16) {
	w.head()
	w.skip(4 + 2) // throttle time, error
	w.sized()
	if version >= 1 {
		w.skip(4) // lock timeout
	}
	w.each(func() {
		w.skip(16) // topic id
		w.each(func() {
			w.skip(4 + 2) // index, error
			w.sized()
			w.skip(2) // acknowledge error
			w.sized()
			w.skip(4 + 4) // leader and its epoch
			w.tags()
			w.sized() // records
			w.each(func() { w.skip(8 + 8 + 2); w.tags() })
			w.tags()
		})
		w.tags()
	})
}

// tail passes on all that was walked over and takes what is behind it off the connection. Where that names no broker it is passed on too,
// and nothing is returned.
func (w *walker) tail(key int16) ([]byte, error) {
	if rest := w.left - int64(w.pos); w.err == nil && rest == int64(emptyTail(key)) {
		w.skip(rest)
	}
	w.flush()
	switch {
	case w.err != nil:
		return nil, w.err
	case w.left > maxTail:
		return nil, fmt.Errorf("%d bytes behind the records: %w", w.left, errReply)
	case w.left == 0:
		return nil, nil
	}
	b := make([]byte, w.left)
	if _, err := io.ReadFull(w.u.br, b); err != nil {
		return nil, closeUpstream(err)
	}
	return b, nil
}
