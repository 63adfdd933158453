package records

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// ErrTooLarge: a payload opens to more bytes than the caller allows (KAFKA-20723).
var ErrTooLarge = errors.New("decompressed payload is above the limit")

var errShort = errors.New("a field reaches beyond the end")

// xerialMagic begins the framing that Java's snappy stream writes: 8 bytes of magic, two versions of 4 bytes, then
// chunks with a 4-byte size each. Other clients write one raw block instead.
var xerialMagic = []byte("\x82SNAPPY\x00")

const xerialHeader = 16

// Payload returns what follows the header, opened if it is compressed, up to maxBytes of it. Uncompressed it is a
// part of b whatever its size. Errors are *CorruptError, wrapping ErrTooLarge beyond the limit.
func Payload(b Batch, maxBytes int) ([]byte, error) {
	src := []byte(b[HeaderSize:])
	var out []byte
	var err error
	switch c := b.Codec(); c {
	case None:
		return src, nil
	case Gzip:
		var r *gzip.Reader
		if r, err = gzip.NewReader(bytes.NewReader(src)); err == nil {
			out, err = readLimited(r, maxBytes)
		}
	case Snappy:
		out, err = openSnappy(src, maxBytes)
	case LZ4:
		out, err = readLimited(lz4.NewReader(bytes.NewReader(src)), maxBytes)
	case Zstd:
		out, err = openZstd(src, maxBytes)
	default:
		err = errors.New("unknown codec")
	}
	if err != nil {
		return nil, corrupt(b, b.Codec().String()+" payload", err)
	}
	return out, nil
}

func readLimited(r io.Reader, maxBytes int) ([]byte, error) {
	var buf bytes.Buffer
	n, err := io.Copy(&buf, io.LimitReader(r, int64(maxBytes)+1))
	if n > int64(maxBytes) {
		return nil, fmt.Errorf("%w of %d bytes", ErrTooLarge, maxBytes)
	}
	return buf.Bytes(), err
}

// openZstd decodes into a buffer that grows as it has to. A stream decoder would set aside the frame's window up front,
// which is megabytes for the small batches of librdkafka, and as much as a hostile header says.
func openZstd(src []byte, maxBytes int) ([]byte, error) {
	const javaMaxWindow, maxBlock = 128 << 20, 128 << 10
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(javaMaxWindow))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	for limit := min(maxBytes, max(4*len(src), 1<<16)); ; limit = min(maxBytes, 4*limit) {
		// The decoder fails in various ways when the room is used up. With room for one block more than the limit,
		// what it had until then tells.
		out, err := d.DecodeAll(src, make([]byte, 0, limit+maxBlock))
		if len(out) <= limit && !errors.Is(err, zstd.ErrDecoderSizeExceeded) {
			return out, err
		}
		if limit == maxBytes {
			return nil, fmt.Errorf("%w of %d bytes", ErrTooLarge, maxBytes)
		}
	}
}

func openSnappy(src []byte, maxBytes int) ([]byte, error) {
	if !bytes.HasPrefix(src, xerialMagic) {
		return appendSnappy(nil, src, maxBytes)
	}
	if len(src) < xerialHeader {
		return nil, errShort
	}
	var out []byte
	for src = src[xerialHeader:]; len(src) > 0; {
		if len(src) < 4 {
			return nil, errShort
		}
		size := int64(binary.BigEndian.Uint32(src))
		if size > int64(len(src)-4) {
			return nil, errShort
		}
		var err error
		if out, err = appendSnappy(out, src[4:4+size], maxBytes); err != nil {
			return nil, err
		}
		src = src[4+size:]
	}
	return out, nil
}

// appendSnappy opens one block. Its stated length is held against the limit before room is made for it.
func appendSnappy(dst, block []byte, maxBytes int) ([]byte, error) {
	n, err := snappy.DecodedLen(block)
	if err != nil {
		return nil, err
	}
	if n > maxBytes-len(dst) {
		return nil, fmt.Errorf("%w of %d bytes", ErrTooLarge, maxBytes)
	}
	out, err := snappy.Decode(nil, block)
	if err != nil {
		return nil, err
	}
	if dst == nil {
		return out, nil
	}
	return append(dst, out...), nil
}
