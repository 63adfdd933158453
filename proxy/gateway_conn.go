package proxy

import (
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// handleFronted deals with one request on a port of a gateway. All of them go to the broker behind it, in order, except what is too new to
// be understood and what a topic that is read-only would get.
func (c *conn) handleFronted(h protocol.RequestHeader, frame, body []byte, start time.Time) error {
	api, known := protocol.LookupAPI(h.Key)
	_, reads := interpreted[h.Key]
	switch {
	case h.Key == keyApiVersions && (h.Version < api.Min || h.Version > api.Max):
		// The layout of the request is not known, that of the answer is version 0 for everybody.
		return c.replyBuffers(net.Buffers{protocol.AppendResponse(nil, h.CorrelationID, protocol.ApiVersions(h.Version, nil, false))})
	case known && api.Role == protocol.Hidden:
		return closef("hidden", "%s (key %d) is not served by a broker's listener", api.Name, h.Key)
	case !reads:
		return c.relay(h, frame, body, start)
	case h.Version < api.Min || h.Version > api.Max:
		return closef("version", "%s version %d is not supported (%d to %d are)", api.Name, h.Version, api.Min, api.Max)
	case h.Key == keyProduce:
		return c.produceFronted(h, frame, body, start)
	}
	return c.forwardEdited(h, frame, start, false, c.l.front.editOf(h.Key, h.Version))
}

// dialFronted connects to the broker that this port stands for, wherever it is now.
func (c *conn) dialFronted() (*upstream, error) {
	t, ok := endpointOf(c.s.cfg.Images.Image().Brokers[c.l.NodeID], c.l.Name)
	if !ok {
		return nil, fmt.Errorf("broker %d is not registered with a listener %s", c.l.NodeID, c.l.Name)
	}
	return c.s.dial(c.ctx, t, c.upstreamTLS(), c)
}

// produceFronted forwards a Produce request without what it has for read-only topics, whose refusal joins the broker's reply. With acks=0
// there is none to join: the rest is written, then the connection is closed, which is all that brokers do.
func (c *conn) produceFronted(h protocol.RequestHeader, frame, body []byte, start time.Time) error {
	decoded, err := c.decode(h, body)
	if err != nil {
		return err
	}
	req := decoded.(*kmsg.ProduceRequest)
	img := c.s.cfg.Images.Image()
	mirrors, some := make([]string, len(req.Topics)), false
	for i := range req.Topics {
		mirrors[i] = c.mirrorOf(img, &req.Topics[i])
		some = some || mirrors[i] != ""
	}
	if !some {
		return c.forwardEdited(h, frame, start, req.Acks == 0, c.l.front.editOf(h.Key, h.Version))
	}
	if err := c.prove(); err != nil {
		return err
	}
	if err := c.judge(req); err != nil {
		return err
	}
	var refused []kmsg.ProduceResponseTopic
	var rest []kmsg.ProduceRequestTopic
	for i := range req.Topics {
		if mirrors[i] == "" {
			rest = append(rest, req.Topics[i])
			continue
		}
		refused = append(refused, c.refuseTopic(img, h.Version, &req.Topics[i], mirrors[i]))
	}
	if len(rest) > 0 {
		req.Topics = rest
		frame = again(frame, h, req)
		if err := c.forwardEdited(h, frame, start, req.Acks == 0, c.l.front.joining(h.Version, refused)); err != nil {
			return err
		}
	}
	if req.Acks == 0 {
		return closef("acks=0", "Produce with acks=0 to a read-only mirror topic: the connection is closed, as brokers do")
	}
	if len(rest) > 0 {
		return nil
	}
	resp := kmsg.NewPtrProduceResponse()
	resp.Topics = refused
	return c.reply(h, resp)
}

// again encodes what is left of a request in the place of the frame that it came in, where its records still are: nothing of it is larger
// than it was or comes earlier, so nothing is overwritten that is still to be read.
func again(frame []byte, h protocol.RequestHeader, req kmsg.Request) []byte {
	return req.AppendTo(protocol.AppendRequestHeader(frame[:0:len(frame)], h))
}

// joining adds refused topics to the broker's reply to the others.
func (f *front) joining(version int16, refused []kmsg.ProduceResponseTopic) replyEdit {
	return func(c *conn, u *upstream, size int64) error {
		return u.passEdited(c, keyProduce, version, func(resp kmsg.Response) bool {
			f.rewrite(resp)
			r := resp.(*kmsg.ProduceResponse)
			r.Topics = append(r.Topics, refused...)
			return true
		})
	}
}

// replyFrame writes a reply, or a part of one, to the client. Whose turn it is calls it.
func (c *conn) replyFrame(bufs ...[]byte) error {
	if err := c.nc.SetWriteDeadline(time.Now().Add(c.s.cfg.IdleTimeout)); err != nil {
		return err
	}
	c.show(bufs...)
	all := net.Buffers(bufs)
	_, err := all.WriteTo(c.nc)
	return err
}
