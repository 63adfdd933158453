package kip1279

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kbin"

	"kmirror/protocol"
)

// FirstOwnTag is where kmirror's own tagged fields begin.
const FirstOwnTag = 10000

// ErrMalformed is what all decoding errors wrap.
var ErrMalformed = errors.New("malformed KIP-1279 message")

// Tag is one tagged field that is not interpreted here.
type Tag struct {
	Number uint32
	Value  []byte
}

// Tags are the tagged fields of one struct that are not interpreted here, in ascending order of their numbers.
type Tags []Tag

// Message is a request or response body of this package.
type Message interface {
	// Key is the API key.
	Key() int16
	walk(c *codec)
}

// Append encodes the body of m after dst.
func Append(dst []byte, m Message) []byte {
	c := codec{encoding: true, out: dst}
	m.walk(&c)
	return c.out
}

// Decode reads the body of m; src must hold it and nothing else. What m keeps does not alias src.
func Decode(src []byte, m Message) error {
	c := codec{in: kbin.Reader{Src: src}}
	m.walk(&c)
	if err := c.finish(); err != nil {
		return fmt.Errorf("API key %d: %w", m.Key(), err)
	}
	return nil
}

// codec walks a struct, writing to out or reading from in.
type codec struct {
	encoding bool
	out      []byte
	in       kbin.Reader
	err      error
}

// finish reports the first error of a decoding, and bytes left over.
func (c *codec) finish() error {
	switch {
	case c.err != nil:
		return c.err
	case !c.in.Ok():
		return fmt.Errorf("%w: it ends too early", ErrMalformed)
	case len(c.in.Src) > 0:
		return fmt.Errorf("%w: %d bytes left over", ErrMalformed, len(c.in.Src))
	}
	return nil
}

// fail ends a decoding; what is read afterwards is zero.
func (c *codec) fail(format string, args ...any) {
	if c.err == nil && c.in.Ok() {
		c.err = fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
	}
	c.in.Src = nil
}

func (c *codec) bad() bool { return c.err != nil || !c.in.Ok() }

func (c *codec) bool(v *bool) {
	if c.encoding {
		c.out = kbin.AppendBool(c.out, *v)
		return
	}
	*v = c.in.Bool()
}

func (c *codec) int8(v *int8) {
	if c.encoding {
		c.out = kbin.AppendInt8(c.out, *v)
		return
	}
	*v = c.in.Int8()
}

func (c *codec) int16(v *int16) {
	if c.encoding {
		c.out = kbin.AppendInt16(c.out, *v)
		return
	}
	*v = c.in.Int16()
}

func (c *codec) int32(v *int32) {
	if c.encoding {
		c.out = kbin.AppendInt32(c.out, *v)
		return
	}
	*v = c.in.Int32()
}

func (c *codec) int64(v *int64) {
	if c.encoding {
		c.out = kbin.AppendInt64(c.out, *v)
		return
	}
	*v = c.in.Int64()
}

func (c *codec) uuid(v *protocol.UUID) {
	if c.encoding {
		c.out = append(c.out, v[:]...)
		return
	}
	*v = c.in.Uuid()
}

// string is a compact string that can't be null.
func (c *codec) string(v *string) {
	if c.encoding {
		c.out = kbin.AppendCompactString(c.out, *v)
		return
	}
	if p := c.compactSpan(); p != nil {
		*v = string(p)
	} else {
		c.fail("null where a string must be")
	}
}

// nullable is a compact nullable string.
func (c *codec) nullable(v **string) {
	if c.encoding {
		c.out = kbin.AppendCompactNullableString(c.out, *v)
		return
	}
	*v = nil
	if p := c.compactSpan(); p != nil {
		s := string(p)
		*v = &s
	}
}

// bytes are compact bytes that can't be null.
func (c *codec) bytes(v *[]byte) {
	if c.encoding {
		c.out = kbin.AppendCompactBytes(c.out, *v)
		return
	}
	p := c.compactSpan()
	if p == nil {
		c.fail("null where bytes must be")
	}
	*v = slices.Clone(p)
}

// rest are all bytes that remain: the whole value of a tagged field.
func (c *codec) rest(v *[]byte) {
	if c.encoding {
		c.out = append(c.out, *v...)
		return
	}
	*v = append([]byte{}, c.in.Src...)
	c.in.Src = nil
}

// compactSpan reads a compact length and that many bytes, nil for null. The length is compared as unsigned: 2^32-1 would
// turn into a negative length otherwise.
func (c *codec) compactSpan() []byte {
	n := c.in.Uvarint()
	if n == 0 || c.bad() {
		return nil
	}
	if uint64(n-1) > uint64(len(c.in.Src)) {
		c.fail("%d bytes announced, %d there", n-1, len(c.in.Src))
		return nil
	}
	p := c.in.Src[: n-1 : n-1]
	c.in.Src = c.in.Src[n-1:]
	return p
}

// array walks a compact array. Null is refused unless nullOK, then it reads as empty. Elements are appended one by one, so
// that memory follows the bytes that are really there and not the announced count.
func array[T any](c *codec, v *[]T, nullOK bool, walk func(*T)) {
	if c.encoding {
		c.out = kbin.AppendCompactArrayLen(c.out, len(*v))
		for i := range *v {
			walk(&(*v)[i])
		}
		return
	}
	*v = nil
	n := c.in.Uvarint()
	if n == 0 {
		if !nullOK && !c.bad() {
			c.fail("null where an array must be")
		}
		return
	}
	if uint64(n-1) > uint64(len(c.in.Src)) {
		c.fail("%d elements announced, %d bytes there", n-1, len(c.in.Src))
		return
	}
	for range n - 1 {
		var e T
		walk(&e)
		if c.bad() {
			return
		}
		*v = append(*v, e)
	}
}

func (c *codec) strings(v *[]string) { array(c, v, false, c.string) }

func (c *codec) int32s(v *[]int32) { array(c, v, false, c.int32) }

// field is a tagged field that a struct interprets. present says whether it is written; numbers ascend.
type field struct {
	number  uint32
	present bool
	walk    func(c *codec)
}

// tags walks the tagged fields at the end of a struct: the known ones and those that only pass through.
func (c *codec) tags(rest *Tags, known ...field) {
	if c.encoding {
		c.writeTags(*rest, known)
		return
	}
	*rest = nil
	last := int64(-1)
	for range c.in.Uvarint() {
		number, size := c.in.Uvarint(), c.in.Uvarint()
		if c.bad() {
			return
		}
		if int64(number) <= last {
			c.fail("tagged field %d follows %d", number, last)
			return
		}
		if uint64(size) > uint64(len(c.in.Src)) {
			c.fail("tagged field %d announces %d bytes, %d there", number, size, len(c.in.Src))
			return
		}
		last = int64(number)
		c.readTag(rest, known, number, c.in.Span(int(size)))
		if c.err != nil {
			return
		}
	}
}

func (c *codec) readTag(rest *Tags, known []field, number uint32, value []byte) {
	for _, f := range known {
		if f.number != number {
			continue
		}
		inner := codec{in: kbin.Reader{Src: value}}
		f.walk(&inner)
		if err := inner.finish(); err != nil {
			c.fail("tagged field %d: %v", number, err)
		}
		return
	}
	*rest = append(*rest, Tag{Number: number, Value: append([]byte{}, value...)})
}

func (c *codec) writeTags(rest Tags, known []field) {
	all := slices.Clone(rest)
	for _, f := range known {
		if f.present {
			inner := codec{encoding: true}
			f.walk(&inner)
			all = append(all, Tag{Number: f.number, Value: inner.out})
		}
	}
	slices.SortFunc(all, func(a, b Tag) int { return cmp.Compare(a.Number, b.Number) })
	c.out = kbin.AppendUvarint(c.out, uint32(len(all)))
	for _, t := range all {
		c.out = kbin.AppendUvarint(c.out, t.Number)
		c.out = kbin.AppendUvarint(c.out, uint32(len(t.Value)))
		c.out = append(c.out, t.Value...)
	}
}
