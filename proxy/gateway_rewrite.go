package proxy

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

const (
	keyProduce          = 0
	keyMetadata         = 3
	keyFindCoordinator  = 10
	keyDescribeQuorum   = 55
	keyDescribeCluster  = 60
	keyShareFetch       = 78
	keyShareAcknowledge = 79
)

// interpreted are the keys that a gateway reads, with the first version whose replies are read: for Produce and Fetch the first one
// that has tags, although brokers use those for addresses from 10 and 16 on. All other keys pass as bytes. A test walks kmsg's types
// for replies that hold an address and are not here.
var interpreted = map[int16]int16{
	keyProduce: 9, keyFetch: 12, keyMetadata: 0, keyFindCoordinator: 0, keyApiVersions: 0, keyDescribeQuorum: 2, keyDescribeCluster: 0,
	keyShareFetch: 0, keyShareAcknowledge: 0,
}

// editOf returns what the reply to a request passes through, nil where it can't hold an address.
func (f *front) editOf(key, version int16) replyEdit {
	from, ok := interpreted[key]
	switch {
	case !ok || version < from:
		return nil
	case key == keyFetch || key == keyShareFetch:
		return func(c *conn, u *upstream, size int64) error { return f.passRecords(c, u, size, key, version) }
	}
	return func(c *conn, u *upstream, size int64) error {
		return u.passEdited(c, key, version, func(resp kmsg.Response) bool { return f.rewrite(resp) })
	}
}

// passEdited reads a reply, has change look at it and passes it on: encoded anew when that reports a change, else as it came.
func (u *upstream) passEdited(c *conn, key, version int16, change func(kmsg.Response) bool) error {
	frame, err := protocol.ReadFrame(u.br, c.s.cfg.MaxFrame, nil)
	if err != nil {
		return closeUpstream(err)
	}
	if frame, err = edited(frame, key, version, change); err != nil {
		return closef("upstream reply", "reply of broker %d can't be read: %w", u.broker, err)
	}
	size := binary.BigEndian.AppendUint32(nil, uint32(len(frame)))
	return c.replyFrame(size, frame)
}

// edited returns the frame of a reply after change.
func edited(frame []byte, key, version int16, change func(kmsg.Response) bool) ([]byte, error) {
	_, body, err := protocol.ParseResponseHeader(key, version, frame)
	if err != nil {
		return nil, err
	}
	if key == keyApiVersions && len(body) >= 2 && binary.BigEndian.Uint16(body) == codeUnsupportedVersion {
		version = 0 // a broker that does not know the version asked for answers so
	}
	resp := kmsg.ResponseForKey(key)
	resp.SetVersion(version)
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("%s v%d: %w", apiName(key), version, err)
	}
	if !change(resp) {
		return frame, nil
	}
	return resp.AppendTo(frame[: len(frame)-len(body) : len(frame)-len(body)]), nil
}

// rewrite replaces all addresses in a reply by those of the gateway and reports whether there was anything to change.
func (f *front) rewrite(resp kmsg.Response) (changed bool) {
	switch r := resp.(type) {
	case *kmsg.ApiVersionsResponse:
		r.ApiKeys = Understood(r.ApiKeys)
	case *kmsg.MetadataResponse:
		f.metadata(r)
	case *kmsg.FindCoordinatorResponse:
		f.coordinators(r)
	case *kmsg.DescribeClusterResponse:
		f.cluster(r)
	case *kmsg.DescribeQuorumResponse:
		// Controllers are not fronted; their ids stay.
		for i := range r.Nodes {
			r.Nodes[i].Listeners = nil
		}
	case *kmsg.ProduceResponse:
		changed = len(r.Brokers) > 0
		r.Brokers = keep(r.Brokers, func(b *kmsg.ProduceResponseBroker) bool { return f.place(b.NodeID, &b.Host, &b.Port) })
		return changed
	case *kmsg.FetchResponse:
		changed = len(r.Brokers) > 0
		r.Brokers = keep(r.Brokers, func(b *kmsg.FetchResponseBroker) bool { return f.place(b.NodeID, &b.Host, &b.Port) })
		return changed
	case *kmsg.ShareFetchResponse:
		changed = len(r.NodeEndpoints) > 0
		r.NodeEndpoints = keep(r.NodeEndpoints, func(b *kmsg.ShareFetchResponseNodeEndpoint) bool { return f.place(b.NodeID, &b.Host, &b.Port) })
		return changed
	case *kmsg.ShareAcknowledgeResponse:
		changed = len(r.NodeEndpoints) > 0
		r.NodeEndpoints = keep(r.NodeEndpoints, func(b *kmsg.ShareAcknowledgeResponseNodeEndpoint) bool { return f.place(b.NodeID, &b.Host, &b.Port) })
		return changed
	}
	return true
}

// keep filters in place; f may change what it keeps.
func keep[T any](list []T, f func(*T) bool) []T {
	kept := list[:0]
	for i := range list {
		if f(&list[i]) {
			kept = append(kept, list[i])
		}
	}
	return kept
}

// place puts the gateway's address of a node in the place of the node's own; false when it has none.
func (f *front) place(id int32, host *string, port *int32) bool {
	to, number, ok := f.AddressOf(id)
	if !ok {
		f.outside(id)
		return false
	}
	*host, *port = to, int32(number)
	return true
}

// fronts reports whether clients are told of a node.
func (f *front) fronts(id int32) bool {
	_, _, ok := f.AddressOf(id)
	return ok
}

// metadata leaves nodes out that have no port. What they lead has no leader for now, which clients ask for again later.
func (f *front) metadata(r *kmsg.MetadataResponse) {
	r.Brokers = keep(r.Brokers, func(b *kmsg.MetadataResponseBroker) bool { return f.place(b.NodeID, &b.Host, &b.Port) })
	if !f.fronts(r.ControllerID) {
		r.ControllerID = -1
		// With KRaft this is any broker that forwards to the controller, so another one will do.
		if len(r.Brokers) > 0 {
			r.ControllerID = r.Brokers[0].NodeID
		}
	}
	for i := range r.Topics {
		for j := range r.Topics[i].Partitions {
			p := &r.Topics[i].Partitions[j]
			if p.Leader >= 0 && !f.fronts(p.Leader) {
				p.Leader, p.ErrorCode = -1, codeLeaderNotAvailable
			}
		}
	}
}

// coordinators makes a coordinator that has no port unavailable.
func (f *front) coordinators(r *kmsg.FindCoordinatorResponse) {
	one := func(id *int32, host *string, port *int32, code *int16) {
		if *id >= 0 && f.place(*id, host, port) {
			return
		}
		*id, *host, *port = -1, "", -1
		if *code == 0 {
			*code = codeCoordinatorNotAvailable
		}
	}
	if r.Version < 4 {
		one(&r.NodeID, &r.Host, &r.Port, &r.ErrorCode)
	}
	for i := range r.Coordinators {
		c := &r.Coordinators[i]
		one(&c.NodeID, &c.Host, &c.Port, &c.ErrorCode)
	}
}

// cluster leaves nodes out that have no port, and controllers, which are not fronted.
func (f *front) cluster(r *kmsg.DescribeClusterResponse) {
	const controllers = 2
	r.Brokers = keep(r.Brokers, func(b *kmsg.DescribeClusterResponseBroker) bool {
		return r.EndpointType != controllers && f.place(b.NodeID, &b.Host, &b.Port)
	})
	if !f.fronts(r.ControllerID) && r.EndpointType != controllers {
		r.ControllerID = -1
		if len(r.Brokers) > 0 {
			r.ControllerID = r.Brokers[0].NodeID
		}
	}
}

// Understood is what a client of a gateway may use of what a broker advertises: no more than we can read of what we read, nothing that only
// brokers and controllers use among themselves, and no key that we don't know, whose replies could name addresses. It writes into keys.
func Understood(keys []kmsg.ApiVersionsResponseApiKey) []kmsg.ApiVersionsResponseApiKey {
	return keep(keys, func(k *kmsg.ApiVersionsResponseApiKey) bool {
		api, known := protocol.LookupAPI(k.ApiKey)
		if !known || api.Role == protocol.Hidden {
			return false
		}
		if _, ok := interpreted[k.ApiKey]; ok || api.Read {
			k.MinVersion, k.MaxVersion = max(k.MinVersion, api.Min), min(k.MaxVersion, api.Max)
		}
		return k.MinVersion <= k.MaxVersion
	})
}
