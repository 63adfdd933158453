package proxy

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

const (
	keyFetch            = 1
	keySaslHandshake    = 17
	keyApiVersions      = 18
	keySaslAuthenticate = 36
)

// handle deals with one request. An error ends the connection once all requests before it are answered.
func (c *conn) handle(frame []byte, start time.Time) error {
	h, body, err := protocol.ParseRequestHeader(frame)
	if err != nil {
		return malformed(err)
	}
	if c.l.front != nil {
		return c.handleFronted(h, frame, body, start)
	}
	api, known := protocol.LookupAPI(h.Key)
	switch {
	case h.Key == keyApiVersions:
		return c.apiVersions(h, body)
	case known && api.Role == protocol.Hidden:
		return closef("hidden", "%s (key %d) is not served by a broker's listener", api.Name, h.Key)
	case c.refused:
		return c.refuse(h, body)
	case !known || api.Role == protocol.Relay:
		return c.relay(h, frame, body, start)
	case h.Key == keyFetch && h.Version == protocol.MirrorFetchVersion && c.l.InterBroker:
		return c.mirrorFetch(h, body)
	case h.Version < api.Min || h.Version > api.Max:
		return closef("version", "%s version %d is not supported (%d to %d are)", api.Name, h.Version, api.Min, api.Max)
	}
	req, err := c.decode(h, body)
	if err != nil {
		return err
	}
	if p, ok := req.(*kmsg.ProduceRequest); ok {
		return c.produce(h, p, frame, start)
	}
	if c.held() > maxOwnReplyBytes {
		if err := c.quiesce(); err != nil {
			return err
		}
	}
	if err := c.prove(); err != nil {
		return err
	}
	if err := c.judge(req); err != nil {
		return err
	}
	return c.answer(h, req, frame, start)
}

// relay forwards what we don't look into.
func (c *conn) relay(h protocol.RequestHeader, frame, body []byte, start time.Time) error {
	if h.Key == keySaslHandshake || h.Key == keySaslAuthenticate {
		if err := c.beginSASL(h, body); err != nil {
			return err
		}
	}
	if h.Key == keySaslAuthenticate {
		return c.forwardEdited(h, frame, start, false, noteSession(h.Version))
	}
	return c.forward(h, frame, start, false)
}

// mirrorFetch deals with a Fetch of a version that is not advertised, by which brokers that know KIP-1279 follow.
func (c *conn) mirrorFetch(h protocol.RequestHeader, body []byte) error {
	req, err := c.decodeBy(h, body, func(_ protocol.RequestHeader, body []byte) (kmsg.Request, error) {
		return protocol.DecodeMirrorFetch(body)
	})
	if err != nil {
		return err
	}
	if err := c.prove(); err != nil {
		return err
	}
	if err := c.judge(req); err != nil {
		return err
	}
	return c.fetch(h, req.(*kmsg.FetchRequest))
}

// answer deals with the APIs that the registry calls Local.
func (c *conn) answer(h protocol.RequestHeader, req kmsg.Request, frame []byte, start time.Time) error {
	switch req := req.(type) {
	case *kmsg.FetchRequest:
		return c.fetch(h, req)
	case *kmsg.ListOffsetsRequest:
		return c.reply(h, c.listOffsets(req))
	case *kmsg.OffsetForLeaderEpochRequest:
		return c.reply(h, c.offsetForLeaderEpoch(req))
	case *kmsg.WriteTxnMarkersRequest:
		return c.reply(h, c.writeTxnMarkers(req))
	case *kmsg.DeleteRecordsRequest:
		return c.reply(h, c.deleteRecords(req))
	case *kmsg.DescribeProducersRequest:
		return c.reply(h, c.describeProducers(req))
	case *kmsg.ShareFetchRequest:
		return c.reply(h, c.shareFetch(req))
	case *kmsg.ShareAcknowledgeRequest:
		return c.reply(h, c.shareAcknowledge(req))
	case *kmsg.DescribeConfigsRequest:
		return c.describeConfigs(h, req, frame, start)
	case *kmsg.AlterConfigsRequest:
		return c.alterConfigs(h, req, frame, start)
	case *kmsg.IncrementalAlterConfigsRequest:
		return c.incrementalAlterConfigs(h, req, frame, start)
	case *kmsg.DescribeLogDirsRequest:
		return c.reply(h, c.describeLogDirs())
	case *kmsg.AlterReplicaLogDirsRequest:
		return c.reply(h, c.alterReplicaLogDirs(req))
	case *kmsg.ListGroupsRequest:
		return c.reply(h, kmsg.NewPtrListGroupsResponse())
	case *kmsg.ListTransactionsRequest:
		return c.reply(h, kmsg.NewPtrListTransactionsResponse())
	}
	return closef("no answer", "%s is not served", apiName(h.Key))
}

func malformed(err error) error {
	kind := "malformed"
	if errors.Is(err, protocol.ErrUnsupported) {
		kind = "version"
	}
	return closef(kind, "request can't be decoded: %w", err)
}

// led is a partition as a request names it, looked up in one image.
type led struct {
	topic *kraft.Topic
	part  *kraft.Partition
	id    protocol.PartitionID
	// mirror is the mirror that writes the topic, empty when none does.
	mirror string
	code   int16
}

// topicOf finds a topic by id where the request has one, else by name; nil when it is not there.
func topicOf(img *kraft.Image, name string, id protocol.UUID) *kraft.Topic {
	if !id.IsZero() {
		return img.Topics[id]
	}
	return img.TopicByName(name)
}

// named is a topic as a request names it: by a name, empty where it does so by id, and the topic itself, nil when it is not there.
type named struct {
	name  string
	topic *kraft.Topic
}

// lookup finds a partition and checks, as brokers do, that the client may do this, that this node leads the partition and that the
// leader epoch asked with is ours.
func (c *conn) lookup(img *kraft.Image, n named, index, epoch int32) led {
	t := n.topic
	if c.denied[n.name] || t != nil && c.denied[t.Name] {
		return led{topic: t, code: codeTopicAuthorization}
	}
	if t == nil || index < 0 || int(index) >= len(t.Partitions) {
		return led{topic: t, code: codeUnknownTopic}
	}
	p := led{topic: t, part: t.Partitions[index], id: protocol.PartitionID{Topic: t.ID, Partition: index}}
	p.mirror, _ = c.s.cfg.Mirrors.MirrorOf(t.Name)
	switch {
	case p.part.Leader != c.l.NodeID:
		p.code = codeNotLeader
	case epoch >= 0 && epoch < p.part.LeaderEpoch:
		p.code = codeFencedLeaderEpoch
	case epoch > p.part.LeaderEpoch:
		p.code = codeUnknownLeaderEpoch
	}
	return p
}

// endpointOf returns where a node's listener of this connection's name is; false when it is not known.
func (c *conn) endpointOf(img *kraft.Image, node int32) (host string, port int32, rack *string, ok bool) {
	b := img.Brokers[node]
	if b == nil {
		return "", 0, nil, false
	}
	for _, e := range b.Endpoints {
		if e.Name == c.l.Name {
			if b.Rack != "" {
				rack = &b.Rack
			}
			return e.Host, int32(e.Port), rack, true
		}
	}
	return "", 0, nil, false
}
