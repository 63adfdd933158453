package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// handshakeLimit bounds a TLS handshake.
const handshakeLimit = 10 * time.Second

// caller is who sent a request.
type caller struct {
	address, principal string
	// forwarded: another process passes on what it was asked.
	forwarded bool
	// seen are the verbs that the connection has asked for and that change nothing.
	seen map[string]bool
}

// welcome makes the handshake of a new connection and says who is at its other end. Where it fails the connection is of no use.
func (s *Server) welcome(ctx context.Context, conn net.Conn) (net.Conn, caller, error) {
	who := caller{address: conn.RemoteAddr().String(), principal: anonymous, seen: map[string]bool{}}
	if s.cfg.TLS == nil {
		return conn, who, nil
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	secure := tls.Server(conn, s.cfg.TLS)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, who, err
	}
	certs := secure.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		return nil, who, errors.New("the client showed no certificate")
	}
	principal, ok := Principal(certs[0])
	if !ok {
		return nil, who, fmt.Errorf("the subject of the client's certificate can't be read: %x", certs[0].RawSubject)
	}
	who.principal = principal
	return secure, who, nil
}

// handshakeFailed logs why a connection did not come about. Ports are also just looked at, and that is no news.
func (s *Server) handshakeFailed(conn net.Conn, err error) {
	var plain tls.RecordHeaderError
	kind, hint := "handshake", "see what the client says: it needs a certificate that an authority in admin.tls.ca signed"
	switch {
	case quietEnd(err):
		s.cfg.Log.Debug("admin connection ended in its handshake", "peer", conn.RemoteAddr(), "err", err)
		return
	case errors.As(err, &plain):
		kind, hint = "plain", "the client speaks without TLS: have it use security.protocol=SSL (commands: --command-config)"
	}
	s.quiet.Warn(kind, "admin connection refused in its TLS handshake", "peer", conn.RemoteAddr(), "err", err, "hint", hint)
}

// refused is the answer to whoever may not use the listener, nil for all others.
func (s *Server) refused(who caller) *Error {
	if s.cfg.TLS == nil || slices.Contains(*s.allow.Load(), who.principal) {
		return nil
	}
	return &Error{Code: kip1279.ClusterAuthorizationFailed, Exit: ExitUnreachable,
		Message: fmt.Sprintf("%s is not in admin.allow of the kmirror that was asked", who.principal),
		Hint:    fmt.Sprintf("add %q to admin.allow in the kmirror.yaml of each process, or use a certificate that is named there", who.principal)}
}

// refuse answers a request with an error alone.
func refuse(resp kip1279.Response, e *Error) {
	head := resp.Head()
	head.ErrorCode, head.ErrorMessage = e.Code, &e.Message
	if extra := extraOf(resp); extra != nil {
		*extra = mustJSON(errorExtra{Hint: e.Hint, Exit: e.Exit})
	}
}

// extraOf is where the hint of a response goes, nil in those that have no place for one.
func extraOf(resp kip1279.Response) *[]byte {
	switch r := resp.(type) {
	case *kip1279.CreateClusterMirrorResponse:
		return &r.Extra
	case *kip1279.DeleteClusterMirrorResponse:
		return &r.Extra
	case *kip1279.StartMirrorTopicsResponse:
		return &r.Extra
	case *kip1279.StopMirrorTopicsResponse:
		return &r.Extra
	case *kip1279.PauseMirrorTopicsResponse:
		return &r.Extra
	case *kip1279.ResumeMirrorTopicsResponse:
		return &r.Extra
	case *kip1279.RecoverMirrorTopicsResponse:
		return &r.Extra
	case *kip1279.BumpLeaderEpochsResponse:
		return &r.Extra
	case *kip1279.ListClusterMirrorsResponse:
		return &r.Extra
	case *kip1279.DescribeClusterMirrorsResponse:
		return &r.Extra
	case *kip1279.KmirrorCallResponse:
		return &r.Extra
	}
	return nil
}

// stage is how far the first words with a server had come.
type stage int

const (
	inPlain stage = iota // there is no TLS
	inHandshake
	afterHandshake
)

// tlsTrouble turns what happened to the first words with a server into what an operator can act on; nil where it was something else.
func tlsTrouble(address string, at stage, err error) *Error {
	const where = "--command-config (in a mirror's properties: mirror.source.admin.*; among processes: admin.tls)"
	var plain tls.RecordHeaderError
	var frame *protocol.FrameError
	var untrusted *tls.CertificateVerificationError
	alert, alerted := remoteAlert(err)
	switch {
	case at == inPlain && (quietEnd(err) || errors.As(err, &frame) && frame.Kind() == "tls"):
		return unreachable(fmt.Sprintf("%s closes the connection at once: it has just ended, or it may want TLS", address),
			"ask again, or another process; where admin has tls in kmirror.yaml, give security.protocol=SSL with truststore and keystore by "+where)
	case at == inPlain:
		return nil
	case errors.As(err, &untrusted):
		return unreachable(fmt.Sprintf("%s: the certificate there is not trusted: %v", address, err),
			"the authority of kmirror's certificate belongs into the truststore, and the certificate must be for the host's name: see "+where)
	case alerted || at == afterHandshake && quietEnd(err):
		return unreachable(fmt.Sprintf("%s refuses our certificate, or that there is none: %s", address, cmp.Or(alert, err.Error())),
			"show a valid certificate that an authority in admin.tls.ca signed, with ssl.keystore.* by "+where)
	case at == inHandshake && (errors.As(err, &plain) || quietEnd(err)):
		return unreachable(fmt.Sprintf("%s does not speak TLS: %v", address, err),
			"is that the address of admin, and has admin tls in kmirror.yaml? If it has none, leave security.protocol out of "+where)
	}
	return nil
}

// remoteAlert is the text of the alert by which the other side refused, empty where that is not what happened.
func remoteAlert(err error) (string, bool) {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return op.Err.Error(), true
	}
	return "", false
}

// quietEnd reports whether the other side just went away.
func quietEnd(err error) bool {
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
