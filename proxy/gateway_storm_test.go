package proxy

import (
	"bytes"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// https://github.com/grepplabs/kafka-proxy/issues/54
func TestKafkaProxy54GatewayAcksZero(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	g.brokers[1].on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
		if h.Key == keyProduce {
			return nil
		}
		return echo(h)
	})
	c := g.to(1)
	hundred := bytes.Repeat(c.frame(1, produceRequest(9, 0, "plain")), 100)
	for range 100 {
		c.write(hundred)
	}
	req := metadataRequest()
	c.send(4711, req)
	if corr, _ := c.receive(req); corr != 4711 {
		t.Errorf("correlation id %d, want that of Metadata", corr)
	}
	if n := len(g.gotBy(1)); n != 10001 {
		t.Errorf("%d requests, want 10001", n)
	}
}

// TestGatewayStorm: clients that come, ask and leave at any moment, also within a request, do not disturb others, and nothing of them
// stays.
func TestGatewayStorm(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	fetched := fetchReply(17, 1, 100<<10, 2)
	for _, b := range g.brokers {
		b.on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
			if h.Key == keyFetch {
				return rawReply{bytes: protocol.AppendResponse(nil, h.CorrelationID, fetched)}
			}
			return echo(h)
		})
	}
	fetch, meta := kmsg.NewPtrFetchRequest(), metadataRequest()
	fetch.Version = 17
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 10 {
				nc, err := net.Dial("tcp", g.at([]int32{noNode, 1, 2}[rand.N(3)]))
				if err != nil {
					t.Error(err)
					return
				}
				c := &client{t: t, nc: nc, id: "storm"}
				second := c.frame(2, meta)
				nc.Write(append(c.frame(1, fetch), second[:rand.N(len(second))]...))
				nc.SetReadDeadline(time.Now().Add(time.Duration(rand.N(3)) * time.Millisecond))
				nc.Read(make([]byte, 1+rand.N(1<<16)))
				nc.Close()
			}
		})
	}
	steady := g.to(1)
	for corr := range int32(40) {
		steady.send(corr, fetch)
		steady.send(corr+1000, meta)
		for i, req := range []kmsg.Request{fetch, meta} {
			if got, _ := steady.receive(req); got != corr+1000*int32(i) {
				t.Fatalf("correlation id %d, want %d", got, corr+1000*int32(i))
			}
		}
	}
	wg.Wait()
	steady.nc.Close()
	eventually(t, "no connection left", func() bool {
		g.gw.s.mu.Lock()
		defer g.gw.s.mu.Unlock()
		return len(g.gw.s.conns) == 0
	})
	idle := make([]*client, 200)
	for i := range idle {
		idle[i] = g.to(2)
	}
	for _, c := range idle { // all of them are still served
		if r := c.ask(meta); r == nil {
			t.Error("no reply")
		}
	}
}

// A client does what ends its connection while the broker takes its time with a request, and leaves: nothing stays of it.
func TestGatewayClientLeavesBehindLongRequest(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	held, release := gateOf(t)
	g.brokers[1].on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
		if h.Key == keyMetadata {
			<-held
		}
		return echo(h)
	})
	c := g.to(1)
	c.send(1, metadataRequest())
	c.write([]byte{0xff, 0xff, 0xff, 0xff})
	controlled := kmsg.NewPtrControlledShutdownRequest()
	d := g.to(1)
	d.send(1, metadataRequest())
	d.send(2, controlled)
	eventually(t, "both requests at the broker", func() bool { return len(g.gotBy(1)) == 2 })
	c.nc.Close()
	d.nc.Close()
	eventually(t, "no connection left", func() bool {
		g.gw.s.mu.Lock()
		defer g.gw.s.mu.Unlock()
		return len(g.gw.s.conns) == 0
	})
	release()
}
