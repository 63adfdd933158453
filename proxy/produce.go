package proxy

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// produce forwards a Produce request unless a topic in it is read-only. Of a request that names one nothing is written.
func (c *conn) produce(h protocol.RequestHeader, req *kmsg.ProduceRequest, frame []byte, start time.Time) error {
	img := c.s.cfg.Images.Image()
	mirrors := make([]string, len(req.Topics))
	refused := false
	for i := range req.Topics {
		mirrors[i] = c.mirrorOf(img, &req.Topics[i])
		refused = refused || mirrors[i] != ""
	}
	if !refused {
		return c.forward(h, frame, start, req.Acks == 0)
	}
	if err := c.prove(); err != nil {
		return err
	}
	if err := c.judge(req); err != nil {
		return err
	}
	resp := kmsg.NewPtrProduceResponse()
	for i := range req.Topics {
		resp.Topics = append(resp.Topics, c.refuseTopic(img, req.Version, &req.Topics[i], mirrors[i]))
	}
	if req.Acks == 0 {
		return closef("acks=0", "Produce with acks=0 to a read-only mirror topic: the connection is closed, as brokers do")
	}
	c.addLeaders(img, req.Version, resp)
	return c.reply(h, resp)
}

// mirrorOf returns the mirror that writes a topic of the request, empty when there is none.
func (c *conn) mirrorOf(img *kraft.Image, t *kmsg.ProduceRequestTopic) string {
	name := t.Topic
	if !protocol.UUID(t.TopicID).IsZero() {
		if known := img.Topics[t.TopicID]; known != nil {
			name = known.Name
		}
	}
	mirror, _ := c.s.cfg.Mirrors.MirrorOf(name)
	return mirror
}

func (c *conn) refuseTopic(
	img *kraft.Image, version int16, t *kmsg.ProduceRequestTopic, mirror string,
) kmsg.ProduceResponseTopic {
	rt := kmsg.NewProduceResponseTopic()
	rt.Topic, rt.TopicID = t.Topic, t.TopicID
	topic := topicOf(img, t.Topic, t.TopicID)
	name := t.Topic
	if topic != nil {
		name = topic.Name
	}
	// One text for all: there can be very many partitions.
	text := fmt.Sprintf("ReadOnlyTopicException: topic %s is mirrored by %s and read-only: "+
		"write to the source cluster, or fail the mirror over first", name, mirror)
	for i := range t.Partitions {
		rp := kmsg.NewProduceResponseTopicPartition()
		rp.Partition, rp.BaseOffset = t.Partitions[i].Partition, -1
		switch {
		case c.denied[name]:
			rp.ErrorCode = codeTopicAuthorization
		case mirror != "":
			rp.ErrorCode, rp.ErrorMessage = c.s.cfg.ReadOnlyError, &text
		default:
			rp.ErrorCode = codeNotLeader
			if p := c.lookup(img, named{name, topic}, rp.Partition, -1); p.part != nil && version >= 10 {
				rp.CurrentLeader.LeaderID, rp.CurrentLeader.LeaderEpoch = p.part.Leader, p.part.LeaderEpoch
			}
		}
		rt.Partitions = append(rt.Partitions, rp)
	}
	if mirror != "" && !c.denied[name] {
		c.s.cfg.Observer.ProduceRefused(mirror, name)
	}
	return rt
}

// addLeaders names the endpoints of the leaders in an answer (KIP-951).
func (c *conn) addLeaders(img *kraft.Image, version int16, resp *kmsg.ProduceResponse) {
	if version < 10 {
		return
	}
	seen := make(map[int32]bool)
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			id := p.CurrentLeader.LeaderID
			host, port, rack, ok := c.endpointOf(img, id)
			if seen[id] || !ok {
				continue
			}
			seen[id] = true
			b := kmsg.NewProduceResponseBroker()
			b.NodeID, b.Host, b.Port, b.Rack = id, host, port, rack
			resp.Brokers = append(resp.Brokers, b)
		}
	}
}
