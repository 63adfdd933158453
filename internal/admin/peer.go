package admin

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"kmirror/internal/coordinator"
	"kmirror/internal/peers"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// Verbs between processes that KIP-1279 has no RPC for.
const (
	// VerbPing asks for a peers.Pong.
	VerbPing = "ping"
	// VerbUncordon asks a process to lift the cordon of its node ids for a while, because a replica list is to name them.
	VerbUncordon = "uncordon"
	// VerbWriteRecords has the owner of records of __mirror_state store them; only definitions, topics and removals come this way.
	VerbWriteRecords = "write_records"
)

// StateOwner is what other processes ask this one for; *coordinator.Store.
type StateOwner interface {
	WriteStates(ctx context.Context, states []coordinator.PartitionState) []coordinator.Outcome
	WriteRecords(ctx context.Context, records []coordinator.Record) []coordinator.Outcome
	OwnStates(ctx context.Context, mirror string, ids []protocol.PartitionID) []coordinator.ReadOutcome
	// PassStates and ReadStates are for who is no process, and knows of no owners: each state is written and read at its own.
	PassStates(ctx context.Context, states []coordinator.PartitionState) []coordinator.Outcome
	ReadStates(ctx context.Context, mirror string, ids []protocol.PartitionID) []coordinator.ReadOutcome
	Topics() []coordinator.Topic
}

// recordsJSON is the payload of VerbWriteRecords.
type recordsJSON struct {
	Records []coordinator.Record `json:"records"`
}

// outcomeJSON is an element of its answer.
type outcomeJSON struct {
	Offset  int64  `json:"offset"`
	Code    int16  `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// errNoState: a request names a state that there is not.
var errNoState = errors.New("not a state of KIP-1279")

// stateCodes maps the errors of states to the KIP's codes.
var stateCodes = []struct {
	err  error
	code int16
}{
	{coordinator.ErrNotCoordinator, kip1279.NotCoordinator},
	{coordinator.ErrLoading, kip1279.CoordinatorLoadInProgress},
	{coordinator.ErrUnreachable, kip1279.CoordinatorNotAvailable},
	{coordinator.ErrClosed, kip1279.CoordinatorNotAvailable}, // it is leaving, and another process stores it
	{coordinator.ErrFencedLeaderEpoch, kip1279.FencedLeaderEpoch},
	{coordinator.ErrChanged, kip1279.InvalidClusterMirrorStates},
	{errNoState, kip1279.InvalidRequest},
	{context.DeadlineExceeded, kip1279.RequestTimedOut},
	{context.Canceled, kip1279.RequestTimedOut},
}

func stateCode(err error) (int16, *string) {
	if err == nil {
		return kip1279.None, nil
	}
	message := err.Error()
	for _, c := range stateCodes {
		if errors.Is(err, c.err) {
			return c.code, &message
		}
	}
	return kip1279.UnknownServerError, &message
}

// stateError is the other direction. What the owner had no time for may be asked again, like what it is loading.
func stateError(code int16, message *string) error {
	if code == kip1279.None {
		return nil
	}
	text := kip1279.ErrorName(code)
	if message != nil {
		text = *message
	}
	switch code {
	case kip1279.NotCoordinator, kip1279.CoordinatorNotAvailable:
		return fmt.Errorf("%w: %s", coordinator.ErrNotCoordinator, text)
	case kip1279.CoordinatorLoadInProgress, kip1279.RequestTimedOut:
		return fmt.Errorf("%w: %s", coordinator.ErrLoading, text)
	case kip1279.FencedLeaderEpoch:
		return fmt.Errorf("%w: %s", coordinator.ErrFencedLeaderEpoch, text)
	case kip1279.InvalidClusterMirrorStates:
		return fmt.Errorf("%w: %s", coordinator.ErrChanged, text)
	}
	return errors.New(text)
}

// ownTag is kmirror's tagged field of a struct for which kip1279 has none; nil when it is not there.
func ownTag(tags kip1279.Tags) []byte { return tagged(tags, kip1279.FirstOwnTag) }

// baseTag is PartitionState.Base of a state that a process has written.
const baseTag = kip1279.FirstOwnTag + 1

func tagged(tags kip1279.Tags, number uint32) []byte {
	for _, t := range tags {
		if t.Number == number {
			return t.Value
		}
	}
	return nil
}

func withTag(value []byte) kip1279.Tags {
	return kip1279.Tags{{Number: kip1279.FirstOwnTag, Value: value}}
}

// topicIDOf finds the topic that a request means: by the id that kmirror sends along, else by its name.
func (s *Server) topicIDOf(mirror, name string, tags kip1279.Tags) (protocol.UUID, bool) {
	if b := ownTag(tags); len(b) == len(protocol.UUID{}) {
		return protocol.UUID(b), true
	}
	for _, t := range s.cfg.States.Topics() {
		if t.Mirror == mirror && t.Name == name {
			return t.TopicID, true
		}
	}
	return protocol.UUID{}, false
}

// betweenProcesses serves the verbs between processes; false for others.
func (s *Server) betweenProcesses(ctx context.Context, verb string, payload []byte) (answer []byte, ok bool, err error) {
	switch {
	case verb == VerbPing && s.cfg.Pong != nil:
		answer, err = json.Marshal(s.cfg.Pong())
	case verb == VerbWriteRecords && s.cfg.States != nil:
		var req recordsJSON
		if err := json.Unmarshal(payload, &req); err != nil {
			return nil, true, fmt.Errorf("payload of %s: %w", verb, err)
		}
		out := make([]outcomeJSON, 0, len(req.Records))
		for _, o := range s.cfg.States.WriteRecords(ctx, req.Records) {
			j := outcomeJSON{Offset: o.Offset}
			code, message := stateCode(o.Err)
			if j.Code = code; message != nil {
				j.Message = *message
			}
			out = append(out, j)
		}
		answer, err = json.Marshal(out)
	case verb == VerbUncordon && s.cfg.Uncordon != nil:
		err = s.cfg.Uncordon(ctx)
		answer = []byte("{}")
	default:
		return nil, false, nil
	}
	return answer, true, err
}

// Peers asks other processes. It is a coordinator.Peer and a peers.Pinger, and keeps two connections to each address.
type Peers struct {
	cfg ClientConfig

	mu      sync.Mutex
	clients map[string]*Client // for states
	pings   map[string]*Client // apart, since calls share a connection in turn
	lifts   map[string]*Client
}

var (
	_ coordinator.Peer = (*Peers)(nil)
	_ peers.Pinger     = (*Peers)(nil)
)

// NewPeers makes Peers with the TLS of c; its addresses are not used.
func NewPeers(c ClientConfig) *Peers {
	c.ClientID = PeerClientID
	return &Peers{cfg: c, clients: map[string]*Client{}, pings: map[string]*Client{}, lifts: map[string]*Client{}}
}

// Close closes all connections.
func (p *Peers) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, set := range []map[string]*Client{p.clients, p.pings, p.lifts} {
		for _, c := range set {
			c.Close()
		}
	}
}

func (p *Peers) client(set map[string]*Client, address string) (*Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := set[address]; c != nil {
		return c, nil
	}
	cfg := p.cfg
	cfg.Addresses = []string{address}
	c, err := NewClient(cfg)
	if err == nil {
		set[address] = c
	}
	return c, err
}

// Ping implements peers.Pinger.
func (p *Peers) Ping(ctx context.Context, address string) (peers.Pong, error) {
	c, err := p.client(p.pings, address)
	if err != nil {
		return peers.Pong{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh := c.conn == nil
	for {
		pong, err := c.ping(ctx, address)
		var e *Error
		switch {
		case err == nil:
			return pong, nil
		case errors.As(err, &e) && (c.cfg.TLS != nil || e.Code == kip1279.ClusterAuthorizationFailed):
			// Somebody answers there, by TLS or in words.
			return pong, fmt.Errorf("%w: %s; %s", peers.ErrRefused, e.Message, e.Hint)
		case fresh || ctx.Err() != nil || c.conn != nil:
			c.disconnect()
			return pong, err
		}
		fresh = true // the old connection broke: is there still somebody?
	}
}

// ping asks on the connection there is, or on a new one. After an error of the connection there is none. Called with mu held.
func (c *Client) ping(ctx context.Context, address string) (pong peers.Pong, err error) {
	if c.conn == nil {
		if err := c.dial(ctx, address); err != nil {
			c.disconnect()
			return pong, err
		}
	}
	resp := &kip1279.KmirrorCallResponse{}
	body, err := c.roundTrip(ctx, header{key: kip1279.KeyKmirrorCall}, func(dst []byte) []byte {
		return kip1279.Append(dst, &kip1279.KmirrorCallRequest{Verb: VerbPing, Payload: []byte("{}")})
	})
	if err != nil {
		c.disconnect()
		return pong, err
	}
	if err = kip1279.Decode(body, resp); err == nil {
		err = statusError(&resp.Status, resp.Extra)
	}
	if err == nil {
		err = json.Unmarshal(resp.Payload, &pong)
	}
	return pong, err
}

// Uncordon asks the process at an address to lift the cordon of its node ids for a while.
func (p *Peers) Uncordon(ctx context.Context, address string) error {
	c, err := p.client(p.lifts, address)
	if err != nil {
		return err
	}
	_, err = c.Call(ctx, VerbUncordon, []byte("{}"))
	return err
}

// WriteStates implements coordinator.Peer.
func (p *Peers) WriteStates(
	ctx context.Context, to coordinator.Member, states []coordinator.PartitionState,
) ([]coordinator.Outcome, error) {
	c, err := p.client(p.clients, to.Admin)
	if err != nil {
		return nil, err
	}
	out := make([]coordinator.Outcome, len(states))
	for mirror, list := range byMirror(states) {
		req := &kip1279.WriteMirrorStatesRequest{MirrorName: mirror}
		for _, i := range list {
			st := states[i]
			value, err := coordinator.EncodeState(st)
			if err != nil {
				return nil, err
			}
			if n := len(req.Topics); n == 0 || protocol.UUID(ownTag(req.Topics[n-1].Tags)) != st.ID.Topic {
				req.Topics = append(req.Topics, kip1279.WriteStateTopic{Name: st.ID.Topic.String(), Tags: withTag(st.ID.Topic[:])})
			}
			t := &req.Topics[len(req.Topics)-1]
			t.Partitions = append(t.Partitions, kip1279.WriteStatePartition{PartitionIndex: st.ID.Partition,
				LastMirrorEpoch: st.LastMirrorEpoch, State: int8(st.State), Tags: withState(value, st)})
		}
		resp := &kip1279.WriteMirrorStatesResponse{}
		if err := c.call(ctx, req, resp); err != nil {
			return nil, err
		}
		if err := statusError(&resp.Status, nil); err != nil {
			return nil, err
		}
		var got []kip1279.PartitionOutcome
		for _, t := range resp.Topics {
			got = append(got, t.Partitions...)
		}
		if len(got) != len(list) {
			return nil, fmt.Errorf("%s answers for %d of %d states", to.Admin, len(got), len(list))
		}
		for k, i := range list {
			out[i] = coordinator.Outcome{Offset: -1, Err: stateError(got[k].ErrorCode, got[k].ErrorMessage)}
			if b := got[k].Extra; len(b) == 8 {
				out[i].Offset = int64(binary.BigEndian.Uint64(b))
			}
		}
	}
	return out, nil
}

func byMirror(states []coordinator.PartitionState) map[string][]int {
	out := map[string][]int{}
	for i, st := range states {
		out[st.Mirror] = append(out[st.Mirror], i)
	}
	return out
}

// WriteRecords implements coordinator.Peer.
func (p *Peers) WriteRecords(
	ctx context.Context, to coordinator.Member, records []coordinator.Record,
) ([]coordinator.Outcome, error) {
	c, err := p.client(p.clients, to.Admin)
	if err != nil {
		return nil, err
	}
	payload, err := json.Marshal(recordsJSON{records})
	if err != nil {
		return nil, err
	}
	answer, err := c.Call(ctx, VerbWriteRecords, payload)
	if err != nil {
		return nil, err
	}
	var got []outcomeJSON
	if err := json.Unmarshal(answer, &got); err != nil {
		return nil, fmt.Errorf("the answer to %s is not readable: %w", VerbWriteRecords, err)
	}
	out := make([]coordinator.Outcome, 0, len(got))
	for _, o := range got {
		out = append(out, coordinator.Outcome{Offset: o.Offset, Err: stateError(o.Code, &o.Message)})
	}
	return out, nil
}

// ReadStates implements coordinator.Peer.
func (p *Peers) ReadStates(
	ctx context.Context, to coordinator.Member, mirror string, ids []protocol.PartitionID,
) ([]coordinator.ReadOutcome, error) {
	c, err := p.client(p.clients, to.Admin)
	if err != nil {
		return nil, err
	}
	req := &kip1279.ReadMirrorStatesRequest{MirrorName: mirror}
	for _, id := range ids {
		if n := len(req.Topics); n == 0 || protocol.UUID(ownTag(req.Topics[n-1].Tags)) != id.Topic {
			req.Topics = append(req.Topics, kip1279.ReadStateTopic{Name: id.Topic.String(), Tags: withTag(id.Topic[:])})
		}
		t := &req.Topics[len(req.Topics)-1]
		t.Partitions = append(t.Partitions, kip1279.ReadStatePartition{PartitionIndex: id.Partition})
	}
	resp := &kip1279.ReadMirrorStatesResponse{}
	if err := c.call(ctx, req, resp); err != nil {
		return nil, err
	}
	if err := statusError(&resp.Status, nil); err != nil {
		return nil, err
	}
	out := make([]coordinator.ReadOutcome, 0, len(ids))
	for _, t := range resp.Topics {
		for _, a := range t.Partitions {
			if len(out) == len(ids) {
				return nil, fmt.Errorf("%s answers for more than %d states", to.Admin, len(ids))
			}
			o := coordinator.ReadOutcome{Err: stateError(a.ErrorCode, a.ErrorMessage)}
			if b := ownTag(a.Tags); o.Err == nil && b != nil {
				o.Known = true
				if o.State, err = decodeState(mirror, ids[len(out)], a.LastMirrorEpoch, b, a.Tags); err != nil {
					return nil, err
				}
			}
			out = append(out, o)
		}
	}
	if len(out) != len(ids) {
		return nil, fmt.Errorf("%s answers for %d of %d states", to.Admin, len(out), len(ids))
	}
	return out, nil
}
