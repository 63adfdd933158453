package proxy

import (
	"reflect"
	"sync"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

const (
	// minFields and maxFields bound the largest request that is decoded, in bytes; the records of a Produce are not counted, since they
	// stay where they are. Between them it is as much as the memory for requests allows.
	minFields, maxFields = 1 << 20, 4 << 20
	// manyFields is the size from which on a decoded request is counted as memory, fieldCost what a byte of it can cost at most: a topic
	// without a name that has a tagged field without a value takes five.
	manyFields, fieldCost = 512, 90
	// answerCost is what an answer of ours takes for each partition, or other thing, that a request names; tagsCost and tagCost are what
	// tagged fields take that nobody knows.
	answerCost, tagsCost, tagCost = 256, 320, 80
)

// decode decodes a request. A few bytes can stand for much memory, such as a list of a million topics without a name: the size of what is
// decoded is bounded, and beyond that of common requests it counts.
func (c *conn) decode(h protocol.RequestHeader, body []byte) (kmsg.Request, error) {
	return c.decodeBy(h, body, protocol.DecodeRequest)
}

// decodeBy is decode by a function of one's own. Room is made for the most that the request can cost, and kept for what it does.
func (c *conn) decodeBy(h protocol.RequestHeader, body []byte,
	decode func(protocol.RequestHeader, []byte) (kmsg.Request, error),
) (kmsg.Request, error) {
	frame := c.lease.held
	counted, err := c.reserve(h, body)
	if err != nil {
		return nil, err
	}
	req, err := decode(h, body)
	if err != nil {
		return nil, malformed(err)
	}
	if counted {
		c.lease.shrink(frame + weigh(reflect.ValueOf(req).Elem()))
	}
	return req, nil
}

// reserve makes room for a request to be decoded, or refuses it; counted: it needs any. Who has not proved yet who he is gets none, so that
// he can't keep it from others while he waits for that.
func (c *conn) reserve(h protocol.RequestHeader, body []byte) (counted bool, err error) {
	fields := len(body)
	if h.Key == keyProduce {
		fields -= recordBytes(h.Version, body)
	}
	if most := int(c.s.cfg.Memory.fields.Load()); fields > most {
		return false, closef("fields", "%s of %d bytes, records not counted: at most %d are read", apiName(h.Key), fields, most)
	}
	if fields <= manyFields {
		return false, nil
	}
	if h.Key != keyApiVersions && !c.refused {
		if err := c.proveLogin(); err != nil {
			return false, err
		}
	}
	if c.lease.m == nil {
		c.lease.m = c.s.cfg.Memory.of(len(body))
	}
	if err := c.lease.grow(c.ctx, c.lease.held+int64(fields)*fieldCost); err != nil {
		return false, err
	}
	return true, c.lease.read(nil)
}

// weigh is about what a part of a decoded request holds, the part itself excepted, and what our answer to it will. Bytes stay in the frame.
func weigh(part reflect.Value) (n int64) {
	for _, i := range varying(part.Type()) {
		switch f := part.Field(i); {
		case f.Type() == tagsType:
			if tags := f.Addr().Interface().(*kmsg.Tags).Len(); tags > 0 {
				n += tagsCost + tagCost*int64(tags)
			}
		case f.Kind() == reflect.String:
			n += int64(f.Len())
		case f.Kind() == reflect.Pointer && !f.IsNil():
			n += int64(f.Elem().Type().Size())
			if f.Elem().Kind() == reflect.String {
				n += int64(f.Elem().Len())
			}
		case f.Kind() == reflect.Struct:
			n += weigh(f)
		case f.Kind() == reflect.Slice:
			n += int64(f.Len()) * (int64(f.Type().Elem().Size()) + answerCost)
			for j := range f.Len() {
				if e := f.Index(j); e.Kind() == reflect.Struct {
					n += weigh(e)
				} else if e.Kind() == reflect.String {
					n += int64(e.Len())
				}
			}
		}
	}
	return n
}

var (
	tagsType = reflect.TypeFor[kmsg.Tags]()
	// varyingOf has what varying returns, by type.
	varyingOf sync.Map
)

// varying are the fields of a structure that may hold more than it has room for itself.
func varying(t reflect.Type) []int {
	if known, ok := varyingOf.Load(t); ok {
		return known.([]int)
	}
	var fields []int
	for i := range t.NumField() {
		switch f := t.Field(i).Type; f.Kind() {
		case reflect.Slice:
			if f.Elem().Kind() != reflect.Uint8 {
				fields = append(fields, i)
			}
		case reflect.String, reflect.Pointer, reflect.Struct:
			fields = append(fields, i)
		}
	}
	varyingOf.Store(t, fields)
	return fields
}

// recordBytes is how much of the body of a Produce request is records, as far as it can be read.
func recordBytes(version int16, body []byte) (n int) {
	b := kbin.Reader{Src: body}
	flexible := version >= 9
	long := func() int {
		if flexible {
			return int(int32(b.Uvarint() - 1))
		}
		return int(b.Int32())
	}
	text := func() {
		if flexible {
			b.Span(max(0, long()))
		} else {
			b.Span(max(0, int(b.Int16())))
		}
	}
	tags := func() {
		if flexible {
			kmsg.SkipTags(&b)
		}
	}
	if version >= 3 {
		text()
	}
	b.Span(2 + 4) // acks, timeout
	for topics := long(); topics > 0 && b.Ok(); topics-- {
		if version >= 13 {
			b.Span(16)
		} else {
			text()
		}
		for parts := long(); parts > 0 && b.Ok(); parts-- {
			b.Span(4)
			n += len(b.Span(max(0, long())))
			tags()
		}
		tags()
	}
	return n
}
