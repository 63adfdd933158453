package proxy

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// TestOldBrokersAreNotAskedForRights: brokers before 2.8 don't know DescribeCluster, and end the connection of who asks it. A gateway in
// front of them has clients that log in be served, also what is so large once decoded that it counts.
func TestOldBrokersAreNotAskedForRights(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	g.image.edit(func(img *kraft.Image) {
		for _, b := range img.Brokers {
			b.Endpoints[0].SecurityProtocol = 2
		}
	})
	logins := 0
	g.brokers[1].on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
		switch h.Key {
		case 60:
			return rawReply{hangup: true}
		case 3:
			logins++ // one connection is all that there is
			return kmsg.NewPtrMetadataResponse()
		}
		return echo(h)
	})
	var topics []string
	for i := range 60 {
		topics = append(topics, fmt.Sprintf("a-topic-of-many-%d", i))
	}
	produce := produceRequest(7, 1, topics...)
	c := g.to(1)
	c.ask(handshakeRequest())
	c.ask(authenticate())
	for range 2 {
		c.ask(produce)
	}
	if logins != 1 {
		t.Errorf("the login was looked at %d times", logins)
	}
	c.ask(authenticate())
	if c.ask(produce); logins != 2 {
		t.Errorf("the second login: looked at %d times", logins)
	}
	c = g.to(1)
	c.send(1, produce)
	c.closed()
}
