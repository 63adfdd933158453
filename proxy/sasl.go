package proxy

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

const gssapi = "GSSAPI"

// beginSASL looks at a request of a SASL exchange before it is relayed. The broker decides who the client is; what can't work through
// kmirror is refused here, with the reason.
func (c *conn) beginSASL(h protocol.RequestHeader, body []byte) error {
	c.sasl = true
	if h.Key != keySaslHandshake {
		return nil
	}
	if h.Version == 0 {
		// What follows version 0 are bare tokens, which no request can be told from.
		return closef("sasl version", "SaslHandshake version 0 can't be relayed: the client is older than Kafka 1.0")
	}
	if api, _ := protocol.LookupAPI(h.Key); h.Version > api.Max {
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
