package proxy

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// withSASL has the listeners of the world's brokers authenticate by SASL.
func withSASL(w *world, _ *Config) {
	for _, b := range w.image.img.Brokers {
		b.Endpoints[0].SecurityProtocol = 2
	}
}

func handshakeRequest() kmsg.Request {
	req := kmsg.NewPtrSASLHandshakeRequest()
	req.Version, req.Mechanism = 1, "PLAIN"
	return req
}

func replicaFetchRequest() kmsg.Request {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaID = 13, 1
	return req
}

// logIn returns a client that authenticates at brokers that follow a script. Replica fetches are answered with nothing.
func logIn(
	t *testing.T, script func(protocol.RequestHeader, []byte) kmsg.Response, options ...func(*world, *Config),
) (*world, *client) {
	t.Helper()
	w := newWorld(t, append([]func(*world, *Config){withSASL}, options...)...)
	return w, w.logIn(script)
}

func (w *world) logIn(script func(protocol.RequestHeader, []byte) kmsg.Response) *client {
	w.t.Helper()
	w.server.replicaFetch = emptyFetch
	for _, b := range w.brokers {
		b.on(script)
	}
	c := w.dial()
	c.ask(handshakeRequest())
	return c
}

func TestSASLComesFirst(t *testing.T) {
	t.Parallel()
	t.Run("nothing is answered before the handshake", func(t *testing.T) {
		w := newWorld(t, withSASL)
		for _, req := range []kmsg.Request{kmsg.NewPtrListGroupsRequest(), replicaFetchRequest(), produceRequest(9, 1, "m")} {
			c := w.dial()
			c.send(1, req)
			c.closed()
		}
	})
	t.Run("nor when the broker does not confirm it", func(t *testing.T) {
		_, c := logIn(t, func(h protocol.RequestHeader, _ []byte) kmsg.Response {
			if h.Key == 60 {
				return rawReply{hangup: true}
			}
			return echo(h)
		})
		c.send(1, kmsg.NewPtrListGroupsRequest())
		c.closed()
	})
	t.Run("version 0 is refused", func(t *testing.T) {
		c := newWorld(t, withSASL).dial()
		c.send(1, kmsg.NewPtrSASLHandshakeRequest())
		c.closed()
	})
	t.Run("GSSAPI is refused, with what there is else", func(t *testing.T) {
		w := newWorld(t, withSASL)
		for _, b := range w.brokers {
			b.on(func(protocol.RequestHeader, []byte) kmsg.Response {
				resp := kmsg.NewPtrSASLHandshakeResponse()
				resp.SupportedMechanisms = []string{"GSSAPI", "PLAIN"}
				return resp
			})
		}
		c := w.dial()
		req := handshakeRequest().(*kmsg.SASLHandshakeRequest)
		req.Mechanism = "GSSAPI"
		resp := c.ask(req).(*kmsg.SASLHandshakeResponse)
		if resp.ErrorCode != codeUnsupportedMechanism || !slices.Equal(resp.SupportedMechanisms, []string{"PLAIN"}) {
			t.Errorf("%+v", resp)
		}
		c.closed()
	})
	t.Run("an authenticated connection is not replaced", func(t *testing.T) {
		w, c := logIn(t, grants(t, 0, nil))
		for _, b := range w.brokers {
			b.hangup()
		}
		c.send(1, metadataRequest())
		c.closed()
	})
}

// logins answers SaslAuthenticate in turn by what it is given, and the rest as a broker does whose client has CLUSTER_ACTION.
func logins(t *testing.T, replies ...kmsg.SASLAuthenticateResponse) func(protocol.RequestHeader, []byte) kmsg.Response {
	var n atomic.Int32
	return func(h protocol.RequestHeader, body []byte) kmsg.Response {
		if h.Key != keySaslAuthenticate {
			return grants(t, mayClusterAction|mayDescribe, nil)(h, body)
		}
		resp := replies[n.Add(1)-1]
		resp.SetVersion(h.Version)
		return rawReply{bytes: protocol.AppendResponse(nil, h.CorrelationID, &resp), hangup: resp.ErrorCode != 0}
	}
}

func authenticate() kmsg.Request {
	req := kmsg.NewPtrSASLAuthenticateRequest()
	req.Version, req.SASLAuthBytes = 2, []byte("token")
	return req
}

// TestSessionsEnd: what we answer ourselves ends with the session that the broker has begun (KIP-368), also where nothing is asked there.
func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	w, c := logIn(t, logins(t, kmsg.SASLAuthenticateResponse{SessionLifetimeMillis: 3_600_000},
		kmsg.SASLAuthenticateResponse{SessionLifetimeMillis: 3000}))
	for range 2 { // the second one lasts shorter
		if resp := c.ask(authenticate()).(*kmsg.SASLAuthenticateResponse); resp.ErrorCode != 0 || resp.SessionLifetimeMillis == 0 {
			t.Fatalf("login: %+v", resp)
		}
		if resp := c.ask(replicaFetchRequest()).(*kmsg.FetchResponse); resp.ErrorCode != 0 {
			t.Fatalf("within the session: error %d", resp.ErrorCode)
		}
	}
	time.Sleep(3100 * time.Millisecond) // it ends by the clock
	c.send(1, replicaFetchRequest())
	c.closed()
	eventually(t, "a line in the log", func() bool { return w.log.Lines("session has ended") == 1 })
}

// TestFailedLoginEndsTheFirst: who is in and logs in again, which fails, is not in any more.
func TestFailedLoginEndsTheFirst(t *testing.T) {
	t.Parallel()
	_, c := logIn(t, logins(t, kmsg.SASLAuthenticateResponse{}, kmsg.SASLAuthenticateResponse{ErrorCode: 58}))
	c.ask(authenticate())
	if resp := c.ask(replicaFetchRequest()).(*kmsg.FetchResponse); resp.ErrorCode != 0 {
		t.Fatalf("logged in: error %d", resp.ErrorCode)
	}
	c.send(1, authenticate())
	c.send(2, replicaFetchRequest()) // does not wait for the broker's word
	if _, resp := c.receive(authenticate()); resp.(*kmsg.SASLAuthenticateResponse).ErrorCode != 58 {
		t.Errorf("%+v", resp)
	}
	c.closed()
}

// TestNobodyIsLetInWithoutBrokers: a login that no broker can confirm is none.
func TestNobodyIsLetInWithoutBrokers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withSASL)
	w.server.replicaFetch = emptyFetch
	for _, b := range w.brokers {
		b.stop()
	}
	for _, req := range []kmsg.Request{handshakeRequest(), replicaFetchRequest()} {
		c := w.dial()
		c.send(1, req)
		c.closed()
	}
}

// TestReplicasHaveClusterAction: by what a broker says of the client's rights, or, where it says nothing of them, of its fetch.
func TestReplicasHaveClusterAction(t *testing.T) {
	t.Parallel()
	for ops, want := range map[int32]int16{0: codeClusterAuthorization, mayClusterAction: 0} {
		_, c := logIn(t, grants(t, ops, nil))
		if got := c.ask(replicaFetchRequest()).(*kmsg.FetchResponse).ErrorCode; got != want {
			t.Errorf("operations %#x: error %d, want %d", ops, got, want)
		}
	}
	for code, want := range map[int16]int16{codeTopicAuthorization: codeClusterAuthorization, codeUnknownTopic: 0} {
		_, c := logIn(t, func(h protocol.RequestHeader, body []byte) kmsg.Response {
			if h.Key != keyFetch {
				return grants(t, 0, nil)(h, body)
			}
			resp := kmsg.NewPtrFetchResponse()
			rt := kmsg.NewFetchResponseTopic()
			rt.Partitions = append(rt.Partitions, fetchError(0, code))
			resp.Topics = append(resp.Topics, rt)
			return resp
		})
		if got := c.ask(replicaFetchRequest()).(*kmsg.FetchResponse).ErrorCode; got != want {
			t.Errorf("a broker says %d: error %d, want %d", code, got, want)
		}
	}
}

// TestOtherReplicasAreAskedAsKmirror: offsets of a replica that the client is not authenticated at come through Asker, records never do.
func TestOtherReplicasAreAskedAsKmirror(t *testing.T) {
	t.Parallel()
	var other atomic.Int32
	asker := askerFunc(func(broker int32, req kmsg.Request) (kmsg.Response, error) {
		if want := other.Load(); broker != want {
			t.Errorf("broker %d was asked, want %d", broker, want)
		}
		h := protocol.RequestHeader{Key: req.Key(), Version: req.GetVersion()}
		return offsetScript(t, map[int64]int64{-2: 12}, 65)(h, req.AppendTo(nil)), nil
	})
	for want, with := range map[int16]Asker{codeOffsetNotAvailable: nil, 0: asker} {
		w, c := logIn(t, grants(t, 0, map[string]int32{"m": mayRead | mayDescribe}), func(_ *world, cfg *Config) { cfg.Asker = with })
		home := int32(1)
		for len(w.brokers[home].requests()) == 0 {
			home++
		}
		other.Store(home%3 + 1)
		w.setISR(node, other.Load())
		resp := c.ask(listRequest(7, -1, 0, "m", -2)).(*kmsg.ListOffsetsResponse)
		if got := resp.Topics[0].Partitions[0].ErrorCode; got != want {
			t.Errorf("offsets: error %d, want %d", got, want)
		}
		// Records are the client's own to read, or nobody's.
		if p := firstFetched(c.ask(fetchRequest(10, "m", 20))); p.ErrorCode != codeNotLeader {
			t.Errorf("old fetch: error %d, want %d", p.ErrorCode, codeNotLeader)
		}
	}
}

type askerFunc func(broker int32, req kmsg.Request) (kmsg.Response, error)

func (f askerFunc) Ask(_ context.Context, broker int32, req kmsg.Request) (kmsg.Response, error) {
	return f(broker, req)
}

func emptyFetch(_ context.Context, req *kmsg.FetchRequest, _, corr int32) (net.Buffers, error) {
	resp := kmsg.NewPtrFetchResponse()
	resp.Version = req.Version
	b := protocol.AppendResponse(nil, corr, resp)
	return net.Buffers{b[:5], b[5:]}, nil
}
