package proxy

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// versionCache keeps what each real broker advertises, for as long as it is registered under the same broker epoch: a
// broker that was upgraded came back with another.
type versionCache struct {
	s  *Server
	mu sync.Mutex
	of map[int32]brokerVersions
	// static is advertised while no broker was ever reached.
	static []kmsg.ApiVersionsResponseApiKey
}

type brokerVersions struct {
	epoch int64
	resp  *kmsg.ApiVersionsResponse
}

func newVersionCache(s *Server) *versionCache {
	v := &versionCache{s: s, of: make(map[int32]brokerVersions)}
	for _, a := range protocol.APIs() {
		v.static = append(v.static, kmsg.ApiVersionsResponseApiKey{ApiKey: a.Key, MinVersion: a.Min, MaxVersion: a.Max})
	}
	return v
}

// get returns what a broker behind a listener advertises: that of preferred if it lives. Nil when none can be reached.
func (v *versionCache) get(ctx context.Context, l Listener, preferred int32) *kmsg.ApiVersionsResponse {
	targets := v.s.targets(l.Name, preferred)
	for _, t := range targets {
		if resp := v.cached(t); resp != nil {
			return resp
		}
	}
	for _, t := range targets {
		resp, err := v.ask(ctx, l, t)
		if err == nil {
			v.mu.Lock()
			v.of[t.broker] = brokerVersions{epoch: t.epoch, resp: resp}
			v.mu.Unlock()
			return resp
		}
		if ctx.Err() != nil {
			return nil
		}
		v.s.quiet.Warn("versions", "can't ask a broker for its API versions", "broker", t.broker, "err", err)
	}
	return nil
}

func (v *versionCache) cached(t target) *kmsg.ApiVersionsResponse {
	v.mu.Lock()
	defer v.mu.Unlock()
	if b, ok := v.of[t.broker]; ok && b.epoch == t.epoch {
		return b.resp
	}
	return nil
}

// ask uses a connection of its own: the client's must not carry anything before its SASL handshake.
func (v *versionCache) ask(ctx context.Context, l Listener, t target) (*kmsg.ApiVersionsResponse, error) {
	u, err := v.s.dial(ctx, t, v.s.ownTLS(l), nil)
	if err != nil {
		return nil, err
	}
	defer u.close()
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version = 3
	req.ClientSoftwareName, req.ClientSoftwareVersion = "kmirror", "1"
	resp, err := u.ask(ctx, v.s, req, 0)
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.ApiVersionsResponse), nil
}

// apiVersions answers ApiVersions: never forwarded, since version 5 names the broker that is meant (KIP-1242).
func (c *conn) apiVersions(h protocol.RequestHeader, body []byte) error {
	preferred := int32(-1)
	if c.up != nil {
		preferred = c.up.broker
	}
	if api, _ := protocol.LookupAPI(h.Key); h.Version < api.Min || h.Version > api.Max {
		// The layout of the request is not known, that of the answer is version 0 for everybody.
		resp := protocol.ApiVersions(h.Version, nil, c.l.InterBroker)
		return c.replyBuffers([][]byte{protocol.AppendResponse(nil, h.CorrelationID, resp)})
	}
	decoded, err := c.decode(h, body)
	if err != nil {
		return err
	}
	req := decoded.(*kmsg.ApiVersionsRequest)
	req.UnknownTags = kmsg.Tags{} // they are in the frame; nobody has logged in yet, and brokers may be slow to tell what they speak
	c.doneWith()
	keys := c.s.versions.static
	broker := c.s.versions.get(c.ctx, c.l, preferred)
	if broker != nil {
		keys = broker.ApiKeys
	}
	resp := protocol.ApiVersions(h.Version, keys, c.l.InterBroker)
	if broker != nil {
		resp.SupportedFeatures = broker.SupportedFeatures
		resp.FinalizedFeatures, resp.FinalizedFeaturesEpoch = broker.FinalizedFeatures, broker.FinalizedFeaturesEpoch
	}
	if code := protocol.CheckIdentity(req, c.s.cfg.ClusterID(), c.l.NodeID); code != 0 {
		resp.ErrorCode, resp.ApiKeys = code, nil
	}
	return c.reply(h, resp)
}
