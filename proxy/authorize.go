package proxy

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// Operations as bits of what a broker says that a client may do (org.apache.kafka.common.acl.AclOperation).
const (
	mayRead            int32 = 1 << 3
	mayWrite           int32 = 1 << 4
	mayDelete          int32 = 1 << 6
	mayAlter           int32 = 1 << 7
	mayDescribe        int32 = 1 << 8
	mayClusterAction   int32 = 1 << 9
	mayDescribeConfigs int32 = 1 << 10
	mayAlterConfigs    int32 = 1 << 11

	mayAll int32 = -1
)

const (
	// rightsLife is for how long a broker's word on a client's rights is taken: ACLs change while connections last. What it may do with the
	// cluster is asked again after that without waiting, and waited for after three times as long.
	rightsLife = 5 * time.Second
	// maxRights bounds what is remembered of them, in topics.
	maxRights = 10_000
	// rightsVersion is the first Metadata version that tells them.
	rightsVersion = 8
)

// right is what a client may do with a topic.
type right struct {
	operations int32
	until      time.Time
}

// may reports whether the client may do something with the cluster.
func (c *conn) may(operation int32) bool { return c.cluster&operation != 0 }

// askRights learns what the client may do with the cluster, by the word of the broker that it is logged in at.
func (c *conn) askRights() error {
	for req := c.rightsQuestion(); req != nil; {
		resp, err := c.askUpstream(req, 0)
		if err != nil {
			return err
		}
		req = c.learnCluster(resp)
	}
	return nil
}

// rightsQuestion is the first that is asked for the rights on the cluster.
func (c *conn) rightsQuestion() kmsg.Request {
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeClusterAuthorizedOperations = true
	return req
}

// learnCluster takes what a broker answers, and returns what is to be asked next, nil for nothing: a broker of the destination may have
// CLUSTER_ACTION and lack DESCRIBE on the cluster, so that it is not told its rights. It fetches then, as a replica, from a topic that
// can't be there, which a broker refuses to those who may not for another reason.
func (c *conn) learnCluster(resp kmsg.Response) (next kmsg.Request) {
	switch resp := resp.(type) {
	case *kmsg.DescribeClusterResponse:
		c.told = resp.ClusterAuthorizedOperations
		if c.told&mayDescribe == 0 && c.l.InterBroker {
			req := kmsg.NewPtrFetchRequest()
			req.Version, req.ReplicaID, req.SessionEpoch, req.MaxBytes = 12, c.l.NodeID, -1, 1
			addFetch(req, "", kmsg.NewFetchRequestTopicPartition())
			return req
		}
	case *kmsg.FetchResponse:
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if p.ErrorCode == codeUnknownTopic {
					c.told |= mayClusterAction
				}
			}
		}
	}
	if c.l.Peer != nil { // whom Peer allows is proved already
		c.told &^= mayClusterAction | mayAlter
	}
	c.cluster, c.learnt = c.told, time.Now()
	return nil
}

// question is one of our own on the connection upstream whose answer nobody waits for.
type question struct {
	u     *upstream
	req   kmsg.Request
	reply chan answer
	asked time.Time
}

// renew has what is known of the rights on the cluster not grow old. Where nothing is in flight the broker is asked beside what goes on, so
// that replicas wait for no other broker; where that is not to be had, or nothing was asked for long, the request waits for the answer.
func (c *conn) renew() error {
	if !c.guarded {
		return nil
	}
	if q := c.question; q != nil {
		switch waited := time.Since(q.asked); {
		case len(q.reply) > 0 || q.u.gone() != nil || waited > askTimeout:
			return c.settle()
		default:
			return nil
		}
	}
	switch age := time.Since(c.learnt); {
	case age < c.s.rightsLife:
		return nil
	case age > 3*c.s.rightsLife:
		return c.askRights()
	case c.idle():
		return c.askBeside(c.rightsQuestion())
	}
	return nil
}

// askBeside asks the broker upstream without waiting for the answer.
func (c *conn) askBeside(req kmsg.Request) error {
	if err := c.connect(); err != nil {
		return err
	}
	reply, err := c.up.pose(req)
	if err != nil {
		return closef("upstream ask", "asking broker %d: %w", c.up.broker, err)
	}
	c.question = &question{c.up, req, reply, time.Now()}
	return nil
}

// settle takes the answer to what was asked beside, waiting for it, and asks what follows from it.
func (c *conn) settle() error {
	q := c.question
	c.question = nil
	ctx, cancel := context.WithDeadline(c.ctx, q.asked.Add(askTimeout))
	defer cancel()
	frame, err := q.u.await(ctx, q.reply)
	var resp kmsg.Response
	if err == nil {
		resp, err = q.u.understand(q.req, frame)
	}
	if err != nil {
		return closef("upstream ask", "asking broker %d: %w", q.u.broker, err)
	}
	if next := c.learnCluster(resp); next != nil && c.idle() {
		return c.askBeside(next)
	}
	return nil
}

// judge finds out which topics of a request that we answer ourselves the client may not touch; lookup then refuses those, as the
// broker would have. It asks the broker that the client is logged in at.
func (c *conn) judge(req kmsg.Request) error {
	c.denied = nil
	if !c.guarded {
		return nil
	}
	names, operation := c.needs(c.s.cfg.Images.Image(), req)
	if err := c.learnRights(names); err != nil {
		return err
	}
	for _, name := range names {
		if c.rights[name].operations&operation == 0 {
			if c.denied == nil {
				c.denied = make(map[string]bool)
			}
			c.denied[name] = true
		}
	}
	return nil
}

// learnRights asks for the rights on topics that are not known, or not any more.
func (c *conn) learnRights(names []string) error {
	now := time.Now()
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.AllowAutoTopicCreation, req.IncludeTopicAuthorizedOperations = rightsVersion, false, true
	for _, name := range names {
		if r, ok := c.rights[name]; ok && now.Before(r.until) {
			continue
		}
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = &name
		req.Topics = append(req.Topics, t)
	}
	if len(req.Topics) == 0 {
		return nil
	}
	resp, err := c.askUpstream(req, 0)
	if err != nil {
		return fmt.Errorf("rights on topics: %w", err)
	}
	if c.rights == nil || len(c.rights)+len(req.Topics) > maxRights {
		c.rights = make(map[string]right)
	}
	for _, t := range resp.(*kmsg.MetadataResponse).Topics {
		if t.Topic != nil {
			c.rights[*t.Topic] = right{t.AuthorizedOperations, now.Add(c.s.rightsLife)}
		}
	}
	return nil
}

// needs returns the topics that a request names, and what brokers want a client to be allowed to do with each. Replicas do what they
// are there for by a right on the cluster.
func (c *conn) needs(img *kraft.Image, req kmsg.Request) (names []string, operation int32) {
	note := func(name string, id protocol.UUID) {
		if t := img.Topics[id]; t != nil {
			name = t.Name
		}
		if name != "" {
			names = append(names, name)
		}
	}
	switch req := req.(type) {
	case *kmsg.ProduceRequest:
		operation = mayWrite
		for i := range req.Topics {
			note(req.Topics[i].Topic, req.Topics[i].TopicID)
		}
	case *kmsg.FetchRequest:
		if replicaOf(req) >= 0 {
			return nil, 0
		}
		operation = mayRead
		for i := range req.Topics {
			note(req.Topics[i].Topic, req.Topics[i].TopicID)
		}
	case *kmsg.ShareFetchRequest:
		operation = mayRead
		for i := range req.Topics {
			note("", req.Topics[i].TopicID)
		}
	case *kmsg.ShareAcknowledgeRequest:
		operation = mayRead
		for i := range req.Topics {
			note("", req.Topics[i].TopicID)
		}
	case *kmsg.DescribeProducersRequest:
		operation = mayRead
		for i := range req.Topics {
			note(req.Topics[i].Topic, protocol.UUID{})
		}
	case *kmsg.DeleteRecordsRequest:
		operation = mayDelete
		for i := range req.Topics {
			note(req.Topics[i].Topic, protocol.UUID{})
		}
	default:
		return c.needsToDescribe(req)
	}
	return names, operation
}

// needsToDescribe is needs for what both replicas and consumers ask.
func (c *conn) needsToDescribe(req kmsg.Request) (names []string, operation int32) {
	switch req := req.(type) {
	case *kmsg.ListOffsetsRequest:
		if req.ReplicaID >= 0 && c.may(mayClusterAction) {
			return nil, 0
		}
		for i := range req.Topics {
			names = append(names, req.Topics[i].Topic)
		}
	case *kmsg.OffsetForLeaderEpochRequest:
		if c.may(mayClusterAction) {
			return nil, 0
		}
		for i := range req.Topics {
			names = append(names, req.Topics[i].Topic)
		}
	}
	return names, mayDescribe
}
