package trace

import (
	"bytes"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

const (
	keyProduce          = 0
	keySaslHandshake    = 17
	keyApiVersions      = 18
	keySaslAuthenticate = 36
)

// maxToken is the largest request with a token that a user's name is looked for in: brokers take 512 KiB at most before a login
// (sasl.server.max.receive.size).
const maxToken = 512 << 10

// saslState learns from a connection's SASL exchange who its client is. It keeps the user's name, never anything else of a
// token.
type saslState struct {
	mechanism string
	// asked is who the client says it is; principal is what a broker has accepted.
	asked, principal string
	// raw: frames are tokens without header (SaslHandshake v0), for rounds more of them, fewer than 0 for an unknown number.
	raw    bool
	rounds int
}

// takesToken reports whether the next frame of the client is a token. With a mechanism whose number of rounds is not known
// the first frame that could be a request ends the exchange.
func (s *saslState) takesToken(frame []byte) bool {
	if s.raw && s.rounds < 0 && plausible(frame) {
		s.raw = false
	}
	return s.raw
}

func (s *saslState) request(h protocol.RequestHeader, body []byte) {
	switch h.Key {
	case keySaslHandshake:
		req, err := protocol.DecodeRequest(h, body)
		if err != nil {
			return
		}
		s.mechanism = req.(*kmsg.SASLHandshakeRequest).Mechanism
		// Whatever the answer: the next frame of a client that goes on is a token, and must not be shown as a request.
		s.raw, s.rounds = h.Version == 0, rounds(s.mechanism)
	case keySaslAuthenticate:
		if len(body) > maxToken {
			return
		}
		req, err := protocol.DecodeRequest(h, body)
		if err != nil {
			return
		}
		s.clientToken(req.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes)
	}
}

func (s *saslState) response(h protocol.RequestHeader, body []byte) {
	switch h.Key {
	case keySaslHandshake:
		if len(body) >= 2 && (body[0] != 0 || body[1] != 0) {
			s.raw = false
		}
	case keySaslAuthenticate:
		resp := kmsg.NewPtrSASLAuthenticateResponse()
		if h.Version < 0 || h.Version > resp.MaxVersion() {
			return
		}
		resp.SetVersion(h.Version)
		if resp.ReadFrom(body) == nil && resp.ErrorCode == 0 {
			s.accept(resp.SASLAuthBytes)
		}
	}
}

func (s *saslState) clientToken(token []byte) {
	if len(token) > maxToken {
		return
	}
	if user := userOf(s.mechanism, token); user != "" {
		s.asked = "User:" + user
	}
}

// serverToken takes the answer to a token without header. Brokers refuse by closing the connection.
func (s *saslState) serverToken(token []byte) {
	s.accept(token)
	if s.rounds--; s.rounds == 0 {
		s.raw = false
	}
}

// accept takes a server's token of an exchange that goes on or has ended well.
func (s *saslState) accept(token []byte) {
	if s.mechanism == "PLAIN" || isScram(s.mechanism) && bytes.HasPrefix(token, []byte("v=")) {
		s.principal = s.asked
	}
}

func isScram(mechanism string) bool { return strings.HasPrefix(mechanism, "SCRAM-SHA-") }

// rounds is how many tokens a client sends, -1 when that is not known.
func rounds(mechanism string) int {
	switch {
	case mechanism == "PLAIN", mechanism == "OAUTHBEARER":
		return 1
	case isScram(mechanism):
		return 2
	}
	return -1
}

// userOf returns the user's name of a client's first token: PLAIN's is authzid NUL user NUL password (RFC 4616), SCRAM's
// "n,authzid,n=user,r=nonce" (RFC 5802). "" where there is none, or none that may be printed.
func userOf(mechanism string, token []byte) string {
	const longest = 256
	var user string
	switch {
	case mechanism == "PLAIN":
		parts := bytes.Split(token, []byte{0})
		if len(parts) != 3 || len(parts[1]) > longest {
			return ""
		}
		user = string(parts[1])
	case isScram(mechanism):
		parts := strings.SplitN(string(token), ",", 4)
		if len(parts) != 4 || parts[0] != "n" || len(parts[2]) > longest || !strings.HasPrefix(parts[2], "n=") {
			return ""
		}
		user = strings.NewReplacer("=2C", ",", "=3D", "=").Replace(parts[2][2:])
	}
	if !plain(user) {
		return ""
	}
	return user
}
