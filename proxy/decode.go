package proxy

import (
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

const (
	// maxFields is the largest request that is decoded, in bytes; the records of a Produce are not counted, since they stay where they are.
	maxFields = 4 << 20
	// manyFields is the size from which on a decoded request is counted as memory, fieldCost what a byte of it can cost at most.
	manyFields, fieldCost = 256 << 10, 90
)

// decode decodes a request. A few bytes can stand for much memory, such as a list of a million topics without a name: the size of what is
// decoded is bounded, and beyond that of common requests it counts.
func (c *conn) decode(h protocol.RequestHeader, body []byte) (kmsg.Request, error) {
	if err := c.reserve(h, body); err != nil {
		return nil, err
	}
	req, err := protocol.DecodeRequest(h, body)
	if err != nil {
		return nil, malformed(err)
	}
	return req, nil
}

// reserve makes room for a request to be decoded, or refuses it.
func (c *conn) reserve(h protocol.RequestHeader, body []byte) error {
	fields := len(body)
	if h.Key == keyProduce {
		fields -= recordBytes(h.Version, body)
	}
	if fields > maxFields {
		return closef("fields", "%s of %d bytes, records not counted: at most %d are read", apiName(h.Key), fields, maxFields)
	}
	if fields > manyFields {
		if c.lease.m == nil {
			c.lease.m = c.s.cfg.Memory.of(len(body))
		}
		if err := c.lease.grow(c.ctx, c.lease.held+int64(fields)*fieldCost); err != nil {
			return err
		}
		_ = c.lease.read(nil)
	}
	return nil
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
