package trace

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func handshake(mechanism string) *kmsg.SASLHandshakeRequest {
	req := kmsg.NewPtrSASLHandshakeRequest()
	req.Mechanism = mechanism
	return req
}

func token(b string) *kmsg.SASLAuthenticateRequest {
	req := kmsg.NewPtrSASLAuthenticateRequest()
	req.SASLAuthBytes = []byte(b)
	return req
}

// TestTokensWithoutHeader: after SaslHandshake v0 come bare tokens, then requests again.
func TestTokensWithoutHeader(t *testing.T) {
	p := newPeer(t, 0)
	p.feed(ToServer, ask(1, handshake("PLAIN"), 0))
	p.feed(ToClient, answer(1, kmsg.NewPtrSASLHandshakeResponse(), 0))
	p.lines()
	p.feed(ToServer, sized([]byte("\x00alice\x00pw-of-alice")))
	p.feed(ToClient, sized(nil))
	p.feed(ToServer, ask(2, findCoordinator("a"), 2))
	p.want(`> SASL token 22B
< SASL token principal=User:alice 4B 1.000ms
> FindCoordinator v2 corr=2 client=test principal=User:alice 22B CoordinatorKey=a
`)
}

func TestScramWithoutHeader(t *testing.T) {
	p := newPeer(t, 0)
	p.feed(ToServer, ask(1, handshake("SCRAM-SHA-256"), 0))
	p.feed(ToClient, answer(1, kmsg.NewPtrSASLHandshakeResponse(), 0))
	p.lines()
	p.feed(ToServer, sized([]byte("n,,n=al=2Cice,r=nonce")))
	p.feed(ToClient, sized([]byte("r=nonce2,s=c2FsdA==,i=4096")))
	p.feed(ToServer, sized([]byte("c=biws,r=nonce2,p=proof")))
	p.feed(ToClient, sized([]byte("v=signature")))
	p.feed(ToServer, ask(2, findCoordinator("a"), 2))
	p.want(`> SASL token 25B
< SASL token 30B 1.000ms
> SASL token 27B
< SASL token principal=User:al,ice 15B 1.000ms
> FindCoordinator v2 corr=2 client=test principal=User:al,ice 22B CoordinatorKey=a
`)
}

// TestUnknownRounds: with a mechanism like GSSAPI the first request ends the exchange.
func TestUnknownRounds(t *testing.T) {
	p := newPeer(t, 0)
	p.feed(ToServer, ask(1, handshake("GSSAPI"), 0))
	p.feed(ToClient, answer(1, kmsg.NewPtrSASLHandshakeResponse(), 0))
	for range 3 {
		p.feed(ToServer, sized([]byte("\x60\x82secret token")))
		p.feed(ToClient, sized([]byte("\x60\x82secret answer")))
	}
	p.feed(ToServer, ask(2, findCoordinator("a"), 2))
	text := p.lines()
	if strings.Count(text, "> SASL token") != 3 || strings.Count(text, "< SASL token") != 3 || strings.Contains(text, "secret") ||
		!strings.HasSuffix(text, "> FindCoordinator v2 corr=2 client=test 22B CoordinatorKey=a\n") {
		t.Error(text)
	}
}

// TestPrincipalOfAuthenticate: only a broker's yes makes a principal, and another one replaces it (KIP-368).
func TestPrincipalOfAuthenticate(t *testing.T) {
	p := newPeer(t, 0)
	login := func(mechanism, first, reply string, code int16) {
		p.feed(ToServer, ask(1, handshake(mechanism), 1))
		p.feed(ToClient, answer(1, kmsg.NewPtrSASLHandshakeResponse(), 1))
		p.feed(ToServer, ask(2, token(first), 2))
		resp := kmsg.NewPtrSASLAuthenticateResponse()
		resp.ErrorCode, resp.SASLAuthBytes = code, []byte(reply)
		p.feed(ToClient, answer(2, resp, 2))
	}
	now := func() string {
		p.lines()
		p.feed(ToServer, ask(3, findCoordinator("a"), 2))
		line := p.lines()
		p.feed(ToClient, answer(3, kmsg.NewPtrFindCoordinatorResponse(), 2))
		_, after, found := strings.Cut(line, "principal=")
		if !found {
			return ""
		}
		return strings.Fields(after)[0]
	}
	login("PLAIN", "\x00eve\x00pw", "", 58)
	if got := now(); got != "" {
		t.Errorf("after a refusal: %s", got)
	}
	login("PLAIN", "\x00bob\x00pw", "", 0)
	if got := now(); got != "User:bob" {
		t.Errorf("got %s", got)
	}
	login("SCRAM-SHA-512", "n,,n=carol,r=x", "r=xy,s=eA==,i=4096", 0)
	if got := now(); got != "User:bob" {
		t.Errorf("in the middle of another login: %s", got)
	}
	login("SCRAM-SHA-512", "n,,n=carol,r=x", "v=sig", 0)
	if got := now(); got != "User:carol" {
		t.Errorf("got %s", got)
	}
}

func TestUserOf(t *testing.T) {
	for _, c := range []struct{ mechanism, token, want string }{
		{"PLAIN", "admin\x00alice\x00pw", "alice"}, {"PLAIN", "alice\x00pw", ""}, {"PLAIN", "\x00a\x1bb\x00pw", ""},
		{"PLAIN", "\x00" + strings.Repeat("a", 300) + "\x00pw", ""},
		{"SCRAM-SHA-256", "n,a=x,n=a=3Db,r=1", ""}, {"SCRAM-SHA-256", "n,a=x,n=bob,r=1", "bob"},
		{"SCRAM-SHA-256", "y,,n=bob,r=1", ""}, {"OAUTHBEARER", "n,,\x01auth=Bearer x\x01\x01", ""}, {"", "\x00a\x00b", ""},
	} {
		if got := userOf(c.mechanism, []byte(c.token)); got != c.want {
			t.Errorf("%s %q: %q, want %q", c.mechanism, c.token, got, c.want)
		}
	}
}
