package proxy

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// writeTxnMarkers acknowledges markers for mirror partitions without writing them: the source's log holds the markers
// that belong there, and a transaction coordinator that is refused would try for ever. Other partitions are not ours to
// write, and their coordinator has to find the leader.
func (c *conn) writeTxnMarkers(req *kmsg.WriteTxnMarkersRequest) *kmsg.WriteTxnMarkersResponse {
	img := c.s.cfg.Images.Image()
	resp := kmsg.NewPtrWriteTxnMarkersResponse()
	forbidden := !c.may(mayAlter | mayClusterAction)
	for _, m := range req.Markers {
		rm := kmsg.NewWriteTxnMarkersResponseMarker()
		rm.ProducerID = m.ProducerID
		for _, t := range m.Topics {
			rt := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
			rt.Topic = t.Topic
			topic := img.TopicByName(t.Topic)
			for _, index := range t.Partitions {
				rp := kmsg.NewWriteTxnMarkersResponseMarkerTopicPartition()
				rp.Partition, rp.ErrorCode = index, c.ownMirror(img, named{t.Topic, topic}, index)
				if forbidden {
					rp.ErrorCode = codeClusterAuthorization
				}
				rt.Partitions = append(rt.Partitions, rp)
			}
			rm.Topics = append(rm.Topics, rt)
		}
		resp.Markers = append(resp.Markers, rm)
	}
	return resp
}

// ownMirror returns 0 for a mirror partition that this node leads, else the error to answer.
func (c *conn) ownMirror(img *kraft.Image, topic named, index int32) int16 {
	p := c.lookup(img, topic, index, -1)
	if p.code == 0 && p.mirror == "" {
		return codeNotLeader
	}
	return p.code
}

// deleteRecords refuses to delete from mirrors; the protocol has no room for a text. We lead nothing else that lasts.
func (c *conn) deleteRecords(req *kmsg.DeleteRecordsRequest) *kmsg.DeleteRecordsResponse {
	img := c.s.cfg.Images.Image()
	resp := kmsg.NewPtrDeleteRecordsResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewDeleteRecordsResponseTopic()
		rt.Topic = t.Topic
		topic := img.TopicByName(t.Topic)
		for _, p := range t.Partitions {
			rp := kmsg.NewDeleteRecordsResponseTopicPartition()
			rp.Partition, rp.LowWatermark = p.Partition, -1
			if rp.ErrorCode = c.ownMirror(img, named{t.Topic, topic}, p.Partition); rp.ErrorCode == 0 {
				rp.ErrorCode = codePolicyViolation
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if len(resp.Topics) > 0 {
		c.s.quiet.Warn("delete records", "DeleteRecords came for partitions that kmirror leads: the records of a mirror "+
			"topic are deleted at its source", "listener", c.l.Name, "remote", remoteOf(c.nc), "topic", resp.Topics[0].Topic)
	}
	return resp
}

// describeProducers asks a replica that has the log.
func (c *conn) describeProducers(req *kmsg.DescribeProducersRequest) *kmsg.DescribeProducersResponse {
	img := c.s.cfg.Images.Image()
	resp := kmsg.NewPtrDescribeProducersResponse()
	asks := make(map[int32]*kmsg.DescribeProducersRequest)
	pick := c.newPicker(img, protocol.RequestHeader{Key: req.Key()}, "")
	for _, t := range req.Topics {
		rt := kmsg.NewDescribeProducersResponseTopic()
		rt.Topic = t.Topic
		topic := img.TopicByName(t.Topic)
		for _, index := range t.Partitions {
			rp := kmsg.NewDescribeProducersResponseTopicPartition()
			rp.Partition = index
			p := c.lookup(img, named{t.Topic, topic}, index, -1)
			st, code := c.readable(p)
			if rp.ErrorCode = code; code == codeTopicAuthorization {
				rp.ErrorMessage = new("Topic authorization failed.")
			} else if code == 0 {
				rp.ErrorCode = codeNotLeader
				if broker := pick.replica(p, st, st.HighWatermark); broker >= 0 {
					addProducers(asks, broker, t.Topic, index)
				}
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	for broker, ask := range asks {
		ask.Version = req.Version
		answer, err := c.askReplica(broker, ask, 0)
		if err != nil {
			c.warnLookup(broker, err)
			continue
		}
		mergeProducers(resp, answer.(*kmsg.DescribeProducersResponse))
	}
	return resp
}

func addProducers(asks map[int32]*kmsg.DescribeProducersRequest, broker int32, topic string, index int32) {
	if asks[broker] == nil {
		asks[broker] = kmsg.NewPtrDescribeProducersRequest()
	}
	ask := asks[broker]
	if n := len(ask.Topics); n == 0 || ask.Topics[n-1].Topic != topic {
		t := kmsg.NewDescribeProducersRequestTopic()
		t.Topic = topic
		ask.Topics = append(ask.Topics, t)
	}
	t := &ask.Topics[len(ask.Topics)-1]
	t.Partitions = append(t.Partitions, index)
}

// mergeProducers takes over a replica's answer. "Not the leader" becomes final, or admin clients would ask for ever.
func mergeProducers(resp, answer *kmsg.DescribeProducersResponse) {
	got := make(map[protocol.TopicPartition]kmsg.DescribeProducersResponseTopicPartition)
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == codeNotLeader {
				text := "the partition is a mirror led by kmirror, which keeps no producer state: ask the source cluster"
				p.ErrorCode, p.ErrorMessage = codePolicyViolation, &text
			}
			got[protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}] = p
		}
	}
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			rp := &resp.Topics[i].Partitions[j]
			if p, ok := got[protocol.TopicPartition{Topic: resp.Topics[i].Topic, Partition: rp.Partition}]; ok {
				*rp = p
			}
		}
	}
}

// shareRefusal is the error of a partition in a share request: share groups need a leader that keeps their state.
func (c *conn) shareRefusal(img *kraft.Image, topic *kraft.Topic, index int32) (code int16, text *string) {
	if topic == nil {
		return codeUnknownTopicID, nil
	}
	p := c.lookup(img, named{topic.Name, topic}, index, -1)
	switch {
	case p.code == codeTopicAuthorization:
		return p.code, nil
	case p.mirror == "" || p.code == codeUnknownTopic:
		if p.code == 0 {
			p.code = codeNotLeader
		}
		return p.code, nil
	}
	msg := "topic " + topic.Name + " is mirrored by " + p.mirror + " and led by kmirror, which can't serve share groups: " +
		"use a consumer group, or read the topic at its source"
	return codeInvalidRequest, &msg
}

func (c *conn) shareFetch(req *kmsg.ShareFetchRequest) *kmsg.ShareFetchResponse {
	img := c.s.cfg.Images.Image()
	resp := kmsg.NewPtrShareFetchResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewShareFetchResponseTopic()
		rt.TopicID = t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewShareFetchResponseTopicPartition()
			rp.Partition = p.Partition
			rp.ErrorCode, rp.ErrorMessage = c.shareRefusal(img, img.Topics[t.TopicID], p.Partition)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (c *conn) shareAcknowledge(req *kmsg.ShareAcknowledgeRequest) *kmsg.ShareAcknowledgeResponse {
	img := c.s.cfg.Images.Image()
	resp := kmsg.NewPtrShareAcknowledgeResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewShareAcknowledgeResponseTopic()
		rt.TopicID = t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewShareAcknowledgeResponseTopicPartition()
			rp.Partition = p.Partition
			rp.ErrorCode, rp.ErrorMessage = c.shareRefusal(img, img.Topics[t.TopicID], p.Partition)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}
