package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"reflect"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// PeerCheck judges the certificate of who connects, which was verified in the handshake: whom it names, in Kafka's notation, and
// whether that is a broker of the destination.
type PeerCheck func(*x509.Certificate) (principal string, allowed bool)

// maxStrangers bounds how many principals are remembered as refused.
const maxStrangers = 1000

// identify finds out who is at the other end, where that is told by a certificate. A broker of the destination may do all that we answer
// ourselves, and what it sends on goes to the others under our own certificate: nobody can show them that of another.
func (c *conn) identify() error {
	if c.l.Peer == nil {
		return nil
	}
	secure, ok := c.nc.(*tls.Conn)
	if !ok {
		return closef("no tls", "peers of listener %s are known by certificates, which need TLS", c.l.Name)
	}
	certs := secure.ConnectionState().PeerCertificates
	if len(certs) == 0 && !c.l.Clients {
		return closef("no certificate", "a peer showed no certificate")
	}
	var principal string
	if len(certs) > 0 {
		principal = c.examine(certs[0])
	}
	switch {
	case c.peer:
		c.proved, c.cluster = true, mayAll
	case !c.l.Clients:
		c.refused = true
		c.s.refusePeer(c.l, principal, remoteOf(c.nc))
	}
	return nil
}

// verdict is what was found of a certificate.
type verdict struct {
	cert    *x509.Certificate
	allowed bool
}

// examine finds out whether a certificate is that of a broker. Rejudge may come in between: either it knows of the connection by the
// verdict, or the second look here already sees what has changed.
func (c *conn) examine(cert *x509.Certificate) (principal string) {
	for {
		principal, c.peer = c.l.Peer(cert)
		c.verdict.Store(&verdict{cert, c.peer})
		if _, now := c.l.Peer(cert); now == c.peer {
			return principal
		}
	}
}

// Rejudge is to be called when a listener's Peer judges otherwise than before: it cuts the connections of those whom that concerns, who
// are refused, or served, when they come back. It returns how many there were.
func (s *Server) Rejudge() int {
	var of []*conn
	s.mu.Lock()
	clear(s.strangers) // so that each is logged again
	for c := range s.conns {
		if was := c.verdict.Load(); was != nil {
			if _, allowed := c.l.Peer(was.cert); allowed != was.allowed {
				of = append(of, c)
			}
		}
	}
	s.mu.Unlock()
	s.cut(of)
	return len(of)
}

// refusePeer counts a peer that is no broker of the destination, and logs it, once a principal.
func (s *Server) refusePeer(l Listener, principal, remote string) {
	s.cfg.Observer.PeerRefused(l.Name)
	s.mu.Lock()
	_, seen := s.strangers[principal]
	if seen = seen || len(s.strangers) >= maxStrangers; !seen {
		s.strangers[principal] = struct{}{}
	}
	s.mu.Unlock()
	if !seen {
		s.log.Warn("a peer is refused: its certificate is good, but its principal is not in allow of the listener", "listener", l.Name,
			"principal", principal, "remote", remote)
	}
}

// upstreamTLS is what connections to brokers are made with for this client. Our own certificate is shown for peers that are brokers
// themselves, and where it says nothing of the client because SASL does.
func (c *conn) upstreamTLS() func() *tls.Config {
	if c.peer || c.l.Mutual && c.l.Peer == nil && c.sasl {
		return c.s.ownTLS(c.l)
	}
	return c.s.cfg.UpstreamTLS
}

// ownTLS is what connections to brokers are made with for questions of our own.
func (s *Server) ownTLS(l Listener) func() *tls.Config {
	if s.cfg.PeerTLS != nil && (l.Mutual || l.Peer != nil) {
		return s.cfg.PeerTLS
	}
	return s.cfg.UpstreamTLS
}

// listenerNamed is the first listener of a name, for what all of them have in common.
func (s *Server) listenerNamed(name string) Listener {
	for _, l := range s.cfg.Listeners {
		if l.Name == name {
			return l
		}
	}
	return Listener{Name: name}
}

// refuse answers a peer that may do nothing. What can't be answered with an error closes the connection.
func (c *conn) refuse(h protocol.RequestHeader, body []byte) error {
	if h.Key == keyFetch && h.Version == protocol.MirrorFetchVersion {
		return c.reply(h, fetchRefusal(&kmsg.FetchRequest{Version: h.Version}))
	}
	req, err := c.decode(h, body)
	if err != nil {
		return err
	}
	if c.held() > maxOwnReplyBytes {
		if err := c.quiesce(); err != nil {
			return err
		}
	}
	var resp kmsg.Response
	told := true
	switch req := req.(type) {
	case *kmsg.FetchRequest:
		resp = fetchRefusal(req)
	case *kmsg.ProduceRequest:
		resp, told = refusalOf(req, codeClusterAuthorization)
		told = told && req.Acks != 0
	default:
		resp, told = refusalOf(req, codeClusterAuthorization)
	}
	if !told {
		return closef("refused", "%s of a peer that may do nothing", apiName(h.Key))
	}
	return c.reply(h, resp)
}

// fetchRefusal is the answer to a Fetch of who may not act as a replica. Below version 7 an answer has no error of its own.
func fetchRefusal(req *kmsg.FetchRequest) *kmsg.FetchResponse {
	resp := kmsg.NewPtrFetchResponse()
	if resp.ErrorCode = codeClusterAuthorization; req.Version < 7 {
		refuseFetch(req, resp, codeTopicAuthorization)
	}
	return resp
}

// refusalOf is the answer to a request in which everything that it names has an error, as Kafka's AbstractRequest.getErrorResponse has it.
// False: in that version there is no place for an error, or nothing that has one.
func refusalOf(req kmsg.Request, code int16) (kmsg.Response, bool) {
	resp, sent := req.ResponseKind(), req.ResponseKind()
	refuseFields(reflect.ValueOf(resp).Elem(), reflect.ValueOf(req).Elem(), code)
	err := sent.ReadFrom(resp.AppendTo(nil))
	return resp, err == nil && tells(reflect.ValueOf(sent).Elem(), code)
}

// refuseFields sets error codes in a part of a response and repeats what the part of the request of the same name asked for.
func refuseFields(out, in reflect.Value, code int16) {
	if d, ok := out.Addr().Interface().(interface{ Default() }); ok {
		d.Default()
	}
	for i := range out.NumField() {
		name, field := out.Type().Field(i).Name, out.Field(i)
		if name == "ErrorCode" {
			field.SetInt(int64(code))
			continue
		}
		asked := in.FieldByName(name)
		switch {
		case name == "Version" || name == "UnknownTags" || !asked.IsValid():
		case isList(field) && asked.Kind() == reflect.Slice:
			for j := range asked.Len() {
				element := reflect.New(field.Type().Elem()).Elem()
				refuseElement(element, asked.Index(j), code)
				field.Set(reflect.Append(field, element))
			}
		case field.Type() == asked.Type():
			field.Set(asked)
		}
	}
}

// refuseElement is refuseFields for an element that the request may name by a bare number or name: the first field that takes it.
func refuseElement(out, asked reflect.Value, code int16) {
	if asked.Kind() == reflect.Struct {
		refuseFields(out, asked, code)
		return
	}
	refuseFields(out, reflect.ValueOf(struct{}{}), code)
	for i := range out.NumField() {
		if out.Type().Field(i).Name != "ErrorCode" && out.Field(i).Type() == asked.Type() {
			out.Field(i).Set(asked)
			return
		}
	}
}

// tells reports whether an error code stands anywhere in a response.
func tells(resp reflect.Value, code int16) bool {
	for i := range resp.NumField() {
		field := resp.Field(i)
		if resp.Type().Field(i).Name == "ErrorCode" && field.Int() == int64(code) {
			return true
		}
		if !isList(field) {
			continue
		}
		for j := range field.Len() {
			if tells(field.Index(j), code) {
				return true
			}
		}
	}
	return false
}

// isList reports whether a field holds structures of a message.
func isList(field reflect.Value) bool {
	return field.Kind() == reflect.Slice && field.Type().Elem().Kind() == reflect.Struct
}
