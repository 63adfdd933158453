package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

var errNoBroker = errors.New("no live broker of the destination has a listener of this name")

// forward sends a request as it came to the broker behind this connection. noReply: it is a Produce with acks=0.
func (c *conn) forward(h protocol.RequestHeader, frame []byte, start time.Time, noReply bool) error {
	return c.forwardEdited(h, frame, start, noReply, nil)
}

// forwardEdited is forward for a request whose reply passes through edit, unless that is nil.
func (c *conn) forwardEdited(h protocol.RequestHeader, frame []byte, start time.Time, noReply bool, edit replyEdit) error {
	return c.forwardBy(h, start, noReply, edit, func(u *upstream) error {
		if err := u.send(frame, c.s.cfg.IdleTimeout); err != nil {
			return u.unwritten(h.Key, err)
		}
		return nil
	})
}

// forwardBy is forwardEdited for a request that send writes; its error ends the connection.
func (c *conn) forwardBy(h protocol.RequestHeader, start time.Time, noReply bool, edit replyEdit, send func(*upstream) error) error {
	if err := c.connect(); err != nil {
		return err
	}
	u := c.up
	u.sent++
	if noReply {
		u.noReply.Store(u.sent)
		return send(u)
	}
	e := entry{up: u, corr: h.CorrelationID, seq: u.sent, key: h.Key, start: start, edit: edit}
	u.inFlight.Add(1)
	if err := c.enqueue(e); err != nil { // before the reply can come
		return err
	}
	err := send(u)
	if err != nil {
		c.withdraw(u)
	}
	return err
}

// connect makes sure that there is an upstream connection. One that ended while nothing was in flight is replaced, the same
// broker first; one that was authenticated or had requests in flight is not, nor one of a gateway: the client has to know.
func (c *conn) connect() error {
	preferred := int32(-1)
	if c.up != nil {
		why := c.up.gone()
		if why == nil {
			return nil
		}
		if c.l.front != nil || c.sasl || c.up.refusedSilently() || c.up.inFlight.Load() > 0 {
			return closeUpstream(why)
		}
		preferred = c.up.broker
		c.up.close()
		c.up = nil
	}
	u, err := c.dialUpstream(preferred)
	if err != nil {
		return closef("no upstream", "nothing can be forwarded: %w", err)
	}
	c.up = u
	return nil
}

// dialUpstream connects to the broker that is fronted, or to any.
func (c *conn) dialUpstream(preferred int32) (*upstream, error) {
	if c.l.front != nil && c.l.NodeID != noNode {
		return c.dialFronted()
	}
	return c.dialAny(preferred)
}

// lost is called when the broker upstream ended a connection. Requests that wait for a reply find out by themselves. Behind a gateway
// the client's connection ends with it, as if there were nothing in between.
func (c *conn) lost(u *upstream) {
	if c.l.front != nil || u.refusedSilently() {
		c.stop()
	}
}

// dialAny connects to the first of the live brokers that can be reached.
func (c *conn) dialAny(preferred int32) (*upstream, error) {
	err := errNoBroker
	for _, t := range c.s.targets(c.l.Name, preferred) {
		u, dialErr := c.s.dial(c.ctx, t, c.upstreamTLS(), c)
		if dialErr == nil {
			return u, nil
		}
		err = dialErr
		if c.ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// askUpstream sends a request of our own over the connection that forwarded requests take, after all of those before it.
func (c *conn) askUpstream(req kmsg.Request, wait time.Duration) (kmsg.Response, error) {
	if err := c.quiesce(); err != nil {
		return nil, err
	}
	if err := c.connect(); err != nil {
		return nil, err
	}
	for c.question != nil {
		if err := c.settle(); err != nil {
			return nil, err
		}
	}
	resp, err := c.up.ask(c.ctx, c.s, req, wait)
	if err != nil {
		c.up.close()
		return nil, closef("upstream ask", "asking broker %d: %w", c.up.broker, err)
	}
	return resp, nil
}

// askReplica sends a lookup to a certain real broker: over the connection that we have to it, or over another one of this
// client's own. A client that authenticated by SASL did so to one broker only; what it asks of others goes through Asker,
// unless the answer holds records.
func (c *conn) askReplica(broker int32, req kmsg.Request, wait time.Duration) (kmsg.Response, error) {
	if c.up != nil && c.up.broker == broker && c.up.gone() == nil {
		return c.askUpstream(req, wait)
	}
	img := c.s.cfg.Images.Image()
	t, ok := c.s.targetOf(img.Brokers[broker], c.l.Name)
	if !ok {
		return nil, fmt.Errorf("broker %d: %w", broker, errNoBroker)
	}
	if t.sasl {
		if c.s.cfg.Asker == nil {
			return nil, fmt.Errorf("broker %d can't be asked: the client is authenticated at another broker", broker)
		}
		ctx, cancel := context.WithTimeout(c.ctx, wait+askTimeout)
		defer cancel()
		return c.s.cfg.Asker.Ask(ctx, broker, req)
	}
	u := c.others[broker]
	fresh := false
	if u == nil || u.gone() != nil || u.target != t {
		u.close()
		delete(c.others, broker)
		var err error
		if u, err = c.s.dial(c.ctx, t, c.upstreamTLS(), nil); err != nil {
			return nil, err
		}
		c.others[broker] = u
		fresh = true
	}
	resp, err := u.ask(c.ctx, c.s, req, wait)
	if err == nil {
		return resp, nil
	}
	u.close()
	delete(c.others, broker)
	if fresh || c.ctx.Err() != nil {
		return nil, err
	}
	// Lookups change nothing: one that met a connection that had just died is worth a second try.
	return c.askReplica(broker, req, wait)
}

// prove makes sure that the client is authenticated, where the listener wants SASL, before we answer anything ourselves, and that what it
// may do with the cluster is known, and is not old. On a plaintext listener everybody may do everything: where that is the brokers' own, it
// is so for them too. On one with TLS alone it is up to them, since they may want a certificate, which nobody can show through us.
func (c *conn) prove() error {
	if c.proved {
		if err := c.inSession(); err != nil {
			return err
		}
		return c.renew()
	}
	sasl, secure, known := c.s.security(c.l)
	switch {
	case !known:
		return closef("not ready", "the destination's brokers are not known yet")
	case !sasl && !secure:
		c.proved, c.cluster = true, mayAll
		return nil
	case sasl && !c.sasl:
		return closef("not authenticated", "a request came before the SASL handshake")
	}
	if err := c.askRights(); err != nil {
		return err
	}
	c.proved, c.guarded = true, true
	return nil
}

// proveLogin is prove where it does not matter what the client may do. Behind a gateway there may be brokers that know nothing of what
// prove asks, those before 2.8, and end the connection of who asks that. Metadata of no topic all of them tell, to whom is logged in.
func (c *conn) proveLogin() error {
	if c.l.front == nil || c.proved {
		return c.prove()
	}
	sasl, _, known := c.s.security(c.l)
	switch {
	case !known || !sasl:
		return nil // nobody logs in
	case !c.sasl:
		return closef("not authenticated", "a request came before the SASL handshake")
	case c.loggedIn:
		return c.inSession()
	}
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics = 1, []kmsg.MetadataRequestTopic{} // nil would be all topics
	if _, err := c.askUpstream(req, 0); err != nil {
		return err
	}
	c.loggedIn = true
	return nil
}

// security reports whether the listener authenticates by SASL and whether it has TLS, by what brokers registered under its name.
func (s *Server) security(l Listener) (sasl, secure, known bool) {
	for _, b := range s.cfg.Images.Image().Brokers {
		for _, e := range b.Endpoints {
			if e.Name == l.Name {
				known = true
				sasl = sasl || e.SASL()
				secure = secure || e.TLS()
			}
		}
	}
	return sasl, secure, known
}

func apiName(key int16) string {
	if api, ok := protocol.LookupAPI(key); ok {
		return api.Name
	}
	return "unknown"
}

func sortedBrokers(img *kraft.Image) []int32 {
	ids := make([]int32, 0, len(img.Brokers))
	for id := range img.Brokers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
