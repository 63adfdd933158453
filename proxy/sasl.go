package proxy

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

const gssapi = "GSSAPI"

// beginSASL looks at a request of a SASL exchange before it is relayed. The broker decides who the client is; what can't work through
// kmirror is refused here, with the reason.
func (c *conn) beginSASL(h protocol.RequestHeader, body []byte) error {
	c.sasl = true
	if !c.peer {
		// Whoever logs in again may fail, or may have other rights now: the broker is asked anew before we answer anything.
		c.proved, c.loggedIn, c.rights = false, false, nil
	}
	api, _ := protocol.LookupAPI(h.Key)
	if h.Key != keySaslHandshake {
		if h.Version < api.Min || h.Version > api.Max {
			return closef("version", "%s version %d is not supported (%d to %d are)", api.Name, h.Version, api.Min, api.Max)
		}
		return nil
	}
	if h.Version == 0 {
		// What follows version 0 are bare tokens, which no request can be told from.
		return closef("sasl version", "SaslHandshake version 0 can't be relayed: the client is older than Kafka 1.0")
	}
	if h.Version > api.Max {
		return nil // the broker says that it doesn't know this version either
	}
	decoded, err := protocol.DecodeRequest(h, body)
	if err != nil {
		return malformed(err)
	}
	if decoded.(*kmsg.SASLHandshakeRequest).Mechanism != gssapi {
		return nil
	}
	resp := kmsg.NewPtrSASLHandshakeResponse()
	resp.ErrorCode, resp.SupportedMechanisms = codeUnsupportedMechanism, c.mechanisms()
	if err := c.reply(h, resp); err != nil {
		return err
	}
	return closef("gssapi", "GSSAPI (Kerberos) can't be relayed: the client's ticket is for the host that it connects to, which is kmirror's, "+
		"not the broker's; have it use one of %v", resp.SupportedMechanisms)
}

// noteSession passes the reply to a login on as it is and notes when the session ends that the broker has begun by it (KIP-368). What is
// forwarded after that the broker refuses by itself; what we answer, prove does.
func noteSession(version int16) replyEdit {
	return func(c *conn, u *upstream, _ int64) error {
		return u.passEdited(c, keySaslAuthenticate, version, func(resp kmsg.Response) bool {
			var ends int64
			if r := resp.(*kmsg.SASLAuthenticateResponse); r.ErrorCode == 0 && r.SessionLifetimeMillis > 0 {
				ends = time.Now().UnixMilli() + r.SessionLifetimeMillis
			}
			c.sessionEnds.Store(ends)
			return false
		})
	}
}

// inSession fails once the session has ended that the client's last login began.
func (c *conn) inSession() error {
	if ends := c.sessionEnds.Load(); ends != 0 && time.Now().UnixMilli() > ends {
		return closef("session", "the client's session has ended, and it did not log in again")
	}
	return nil
}

// mechanisms are those that a broker behind this connection takes, GSSAPI excepted; none when no broker answers. Brokers tell them
// to whoever begins to authenticate.
func (c *conn) mechanisms() []string {
	u, err := c.dialUpstream(noNode)
	if err != nil {
		return nil
	}
	defer u.close()
	req := kmsg.NewPtrSASLHandshakeRequest()
	req.Version, req.Mechanism = 1, gssapi
	resp, err := u.ask(c.ctx, c.s, req, 0)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(resp.(*kmsg.SASLHandshakeResponse).SupportedMechanisms, func(m string) bool { return m == gssapi })
}
