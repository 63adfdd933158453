package protocol

import (
	"encoding/binary"
	"fmt"
	"io"
)

// DefaultMaxFrame is the frame limit in bytes where none is configured: Kafka's own socket.request.max.bytes.
const DefaultMaxFrame = 100 << 20

// frameStep bounds how much ReadFrame allocates ahead of the bytes that have really come, at first: thousands of peers may
// stop there.
const frameStep = 16 << 10

// FrameError reports a size prefix that can't belong to a Kafka frame or is above the limit. The stream can't be used
// any further: where the next frame begins is not known.
type FrameError struct {
	// Size is the prefix read as Kafka's signed length, Max the limit it was held against, both in bytes.
	Size, Max int64
	// Head is what was read of the frame: the four bytes of the prefix.
	Head []byte
}

// Error names the size, the limit and the most likely cause in one sentence.
func (e *FrameError) Error() string {
	var h [4]byte
	copy(h[:], e.Head)
	switch {
	case h[0] == 0x16 && h[1] == 0x03:
		return "a TLS handshake came where a Kafka frame was due: the peer speaks TLS to a plaintext listener"
	case h[0] == 0x15 && h[1] == 0x03:
		return "a TLS alert came where a Kafka frame was due: the peer speaks TLS and refused a plaintext connection"
	}
	switch string(h[:]) {
	case "GET ", "POST", "HEAD", "PUT ", "OPTI", "DELE", "PATC", "CONN", "TRAC", "PRI ":
		return "an HTTP request came where a Kafka frame was due: the peer takes this port for a web server"
	case "HTTP":
		return "an HTTP answer came where a Kafka frame was due: the address is that of a web server"
	case "SSH-":
		return "an SSH greeting came where a Kafka frame was due: the address is that of an SSH server"
	}
	if e.Size < 0 {
		return fmt.Sprintf("frame size %d is negative: the peer does not speak Kafka's protocol", e.Size)
	}
	return fmt.Sprintf("frame of %d bytes is above the limit of %d: "+
		"a larger message than this listener allows, or not Kafka's protocol", e.Size, e.Max)
}

// Kind names the sort of cause, "tls", "text" or "size", so that in a log one kind does not hide another.
func (e *FrameError) Kind() string {
	switch {
	case len(e.Head) > 0 && (e.Head[0] == 0x15 || e.Head[0] == 0x16):
		return "tls"
	case len(e.Head) > 0 && e.Head[0] >= 'A' && e.Head[0] <= 'Z':
		return "text"
	}
	return "size"
}

// Alloc returns a buffer of n bytes or more for a frame of size bytes that is being read. Its error ends the reading.
type Alloc func(n, size int) ([]byte, error)

// ReadFrame reads one size-prefixed frame and returns its body, which is buf's array when that is large enough. The
// limit is checked before anything is allocated, and memory grows with the bytes that come, so that a peer pays for
// what it makes us hold. A stream that ends before the first byte is io.EOF, one that ends within a frame
// io.ErrUnexpectedEOF, an impossible size a *FrameError.
func ReadFrame(r io.Reader, limit int32, buf []byte) ([]byte, error) {
	return ReadFrameInto(r, limit, buf, func(n, _ int) ([]byte, error) { return make([]byte, n), nil })
}

// ReadFrameInto is ReadFrame for a caller that has its own mind about memory: alloc is called for each buffer that is needed beyond
// buf, the next one only when the bytes for the one before have come.
func ReadFrameInto(r io.Reader, limit int32, buf []byte, alloc Alloc) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := int64(int32(binary.BigEndian.Uint32(head[:])))
	if size < 0 || size > int64(limit) {
		return nil, &FrameError{Size: size, Max: int64(limit), Head: head[:]}
	}
	n := int(size)
	if cap(buf) < min(n, frameStep) {
		buf = nil
	}
	// The buffer is at most the larger of one step and twice what has been read.
	buf = buf[:min(n, cap(buf))]
	for filled := 0; ; filled = len(buf) {
		if filled == len(buf) && filled < n {
			next, err := alloc(min(n, max(frameStep, 2*filled)), n)
			if err != nil {
				return nil, err
			}
			next = next[:min(n, cap(next))]
			copy(next, buf)
			buf = next
		}
		if err := readBody(r, buf[filled:]); err != nil {
			return nil, err
		}
		if len(buf) == n {
			return buf, nil
		}
	}
}

// readBody fills b; an end of the stream inside a frame is never a clean end.
func readBody(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
