package proxy

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

const (
	// moveFrom is how much has to be left of a frame for it to go from socket to socket: less costs more than a copy does.
	moveFrom = 8 << 10
	// moveStep bounds what the kernel holds on the way for one connection, and how much a peer may take within a deadline.
	moveStep = 256 << 10
	// streamFrom is the size of requests from which they are passed on as they come.
	streamFrom = 16 << 10
	// streamHead is how much of such a request is looked at. Where that does not hold its topic's name, all of it is read.
	streamHead = 1 << 10
)

// bare returns two connections as the kernel knows them, nil, nil where one of them is more than a TCP socket, as with TLS.
func bare(a, b net.Conn) (*net.TCPConn, *net.TCPConn) {
	ta, ok := a.(*net.TCPConn)
	tb, also := b.(*net.TCPConn)
	if !ok || !also {
		return nil, nil
	}
	return ta, tb
}

// move takes n bytes from one socket to another, without their passing through our memory where the kernel can (splice on Linux).
// A source that ends before is io.ErrUnexpectedEOF. limit bounds how long each step may take.
func move(dst, src *net.TCPConn, n int64, limit time.Duration) error {
	for n > 0 {
		step := min(n, moveStep)
		if err := dst.SetWriteDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
		moved, err := dst.ReadFrom(&io.LimitedReader{R: src, N: step})
		if err == nil && moved < step {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		n -= moved
	}
	return nil
}

// copyTo moves n bytes to the client: what is in br through its own buffer, the rest, where it is much and nobody watches, from socket to
// socket.
func (u *upstream) copyTo(c *conn, n int64) error {
	limit := c.s.cfg.IdleTimeout
	to, from := bare(c.nc, u.nc)
	if c.w != nil {
		to = nil
	}
	for n > 0 {
		if to != nil && u.br.Buffered() == 0 && n >= moveFrom {
			if err := move(to, from, n, limit); errors.Is(err, io.ErrUnexpectedEOF) {
				return closeUpstream(err)
			} else if err != nil {
				return err
			}
			return nil
		}
		if _, err := u.br.Peek(1); err != nil {
			return closeUpstream(err)
		}
		b, err := u.br.Peek(int(min(n, int64(u.br.Buffered()))))
		if err != nil {
			return closeUpstream(err)
		}
		if err := c.nc.SetWriteDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
		c.show(b)
		if _, err := c.nc.Write(b); err != nil {
			return err
		}
		if _, err := u.br.Discard(len(b)); err != nil {
			return err
		}
		n -= int64(len(b))
	}
	return nil
}

// stream passes a large Produce request on as it comes, where that may be decided by what stands at its beginning: it is for one topic,
// which is not read-only, and nobody watches. False: nothing of the request has been read, and it is to be read as a whole.
func (c *conn) stream(start time.Time) (done bool, err error) {
	if c.l.front == nil || c.w != nil {
		return false, nil
	}
	b, err := c.br.Peek(4)
	if err != nil {
		return false, nil // who reads on is told again
	}
	size := int64(int32(binary.BigEndian.Uint32(b)))
	if size < streamFrom || size > int64(c.s.cfg.MaxFrame) {
		return false, nil
	}
	if b, err = c.br.Peek(4 + streamHead); err != nil {
		return false, nil
	}
	h, body, err := protocol.ParseRequestHeader(b[4:])
	if err != nil || h.Key != keyProduce {
		return false, nil
	}
	acks, topic, ok := onlyTopic(h.Version, body)
	if !ok || c.mirrorOf(c.s.cfg.Images.Image(), &topic) != "" {
		return false, nil
	}
	if err := c.connect(); err != nil {
		return false, err
	}
	to, from := bare(c.up.nc, c.nc)
	if to == nil {
		return false, nil
	}
	return true, c.forwardBy(h, start, acks == 0, c.l.front.editOf(h.Key, h.Version), func(u *upstream) error {
		return c.streamTo(u, to, from, size+4)
	})
}

// streamTo sends the request of size bytes, size prefix included, that the client has begun to send.
func (c *conn) streamTo(u *upstream, to, from *net.TCPConn, size int64) error {
	first := int(min(size, int64(c.br.Buffered())))
	b, err := c.br.Peek(first)
	if err != nil {
		return err
	}
	if err := to.SetWriteDeadline(time.Now().Add(c.s.cfg.IdleTimeout)); err != nil {
		return u.unwritten(keyProduce, err)
	}
	if err := writeMore(to, b); err != nil {
		return u.unwritten(keyProduce, err)
	}
	if _, err := c.br.Discard(first); err != nil {
		return err
	}
	err = move(to, from, size-int64(first), c.s.cfg.IdleTimeout)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EPIPE) || u.gone() != nil:
		return u.unwritten(keyProduce, err)
	case c.stopping():
		return errDraining
	}
	return err
}

// unwritten is why a request could not be sent.
func (u *upstream) unwritten(key int16, err error) error {
	return closef("upstream write", "forwarding %s to broker %d: %w", apiName(key), u.broker, err)
}

// onlyTopic reads the beginning of a Produce request; false where it is for several topics, or does not tell.
func onlyTopic(version int16, body []byte) (acks int16, t kmsg.ProduceRequestTopic, ok bool) {
	api, _ := protocol.LookupAPI(keyProduce)
	if version < max(3, api.Min) || version > api.Max {
		return 0, t, false
	}
	flexible := version >= 9
	r := kbin.Reader{Src: body}
	var topics int32
	if flexible {
		r.CompactNullableString() // transactional id
		acks, _ = r.Int16(), r.Int32()
		topics = r.CompactArrayLen()
	} else {
		r.NullableString()
		acks, _ = r.Int16(), r.Int32()
		topics = r.ArrayLen()
	}
	switch {
	case version >= 13:
		t.TopicID = r.Uuid()
	case flexible:
		t.Topic = r.CompactString()
	default:
		t.Topic = r.String()
	}
	return acks, t, r.Ok() && topics == 1
}
