package proxy

import (
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// narrow accepts connections whose replies soon wait for a client that does not read.
type narrow struct{ net.Listener }

func (n narrow) Accept() (net.Conn, error) {
	nc, err := n.Listener.Accept()
	if err == nil {
		_ = nc.(*net.TCPConn).SetWriteBuffer(4 << 10)
	}
	return nc, err
}

// scarce is memory that two requests of 17 KiB use up; a third one is the one that may go beyond.
func scarce() *Memory {
	m := NewMemory(256 << 10)
	m.common.patience = time.Second
	return m
}

// paddedVersions is an ApiVersions request, which needs no login, of 17 KiB.
func paddedVersions() *kmsg.ApiVersionsRequest {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version = 3
	req.UnknownTags.Set(100, make([]byte, 17<<10))
	return req
}

// served fails unless a client gets an answer to a request that needs memory.
func served(t *testing.T, c *client, req kmsg.Request) {
	t.Helper()
	c.send(1, req)
	c.nc.SetReadDeadline(time.Now().Add(soon))
	if _, err := protocol.ReadFrame(c.nc, 1<<24, nil); err != nil {
		t.Fatalf("others keep the memory for requests: %v", err)
	}
}

// TestMemoryIsNotKeptByWhoDoesNotRead: a request whose answer waits for its client holds nothing any more.
func TestMemoryIsNotKeptByWhoDoesNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *world, cfg *Config) {
		cfg.Memory = scarce()
		cfg.Listeners[0].Listen = narrow{cfg.Listeners[0].Listen}
	})
	for _, b := range w.brokers {
		b.on(func(protocol.RequestHeader, []byte) kmsg.Response {
			resp := kmsg.NewPtrApiVersionsResponse()
			resp.ApiKeys = w.server.versions.static
			return resp
		})
	}
	frame := (&client{id: "test"}).frame(1, paddedVersions())
	for range 3 {
		c := w.dial()
		for sent, n := 0, 1; n > 0; sent += n { // until nothing goes any more
			c.nc.SetWriteDeadline(time.Now().Add(time.Second))
			n, _ = c.nc.Write(frame[sent%len(frame):])
		}
	}
	served(t, w.dial(), paddedVersions())
}

// TestLargeAnswersCount: a large answer of ours that its client does not read counts, until others need the memory.
func TestLargeAnswersCount(t *testing.T) {
	t.Parallel()
	memory := NewMemory(1 << 20)
	memory.common.patience = time.Second
	w := newWorld(t, func(_ *world, cfg *Config) {
		cfg.Memory = memory
		cfg.Listeners[0].Listen = narrow{cfg.Listeners[0].Listen}
	})
	del := kmsg.NewPtrDeleteRecordsRequest()
	del.Version = 2
	topic := kmsg.NewDeleteRecordsRequestTopic()
	topic.Topic = "m"
	for range 9_500 {
		topic.Partitions = append(topic.Partitions, kmsg.NewDeleteRecordsRequestTopicPartition())
	}
	for range 8 { // fewer than may be asked for at once; their answer is more than sockets hold
		del.Topics = append(del.Topics, topic)
	}
	frame := (&client{id: "test"}).frame(1, del)
	go w.dial().nc.Write(frame)
	used := func() int64 {
		memory.common.mu.Lock()
		defer memory.common.mu.Unlock()
		return memory.common.used
	}
	answer := int64(len(frame)) // of the size of the request, within a few bytes a partition
	eventually(t, "the answer counts", func() bool { return used() > answer/2 && used() < 3*answer })
	go w.dial().nc.Write(frame)
	eventually(t, "who does not read is cut off", func() bool { return w.log.Lines("limits.memory") > 0 })
}

// TestMemoryIsNotKeptByWhoWaits: a request that waits for replies to those before it, or for its time, is no reason for others to wait.
func TestMemoryIsNotKeptByWhoWaits(t *testing.T) {
	t.Parallel()
	t.Run("full line", func(t *testing.T) {
		t.Parallel()
		g := newGate(t, func(cfg *GatewayConfig) { cfg.Memory = scarce() })
		g.brokers[1].on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
			if h.Key != keyProduce {
				return nil
			}
			return kmsg.NewPtrProduceResponse()
		})
		large := largeProduce(9, 1, 17<<10, "plain", "plain")
		for range 3 {
			c := g.to(1)
			for range maxInFlight {
				c.send(1, kmsg.NewPtrListGroupsRequest())
			}
			c.send(1, large)
		}
		eventually(t, "all came", func() bool { return len(g.gotBy(1)) >= 3*maxInFlight })
		served(t, g.to(1), large)
	})
	t.Run("behind a reply", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, func(_ *world, cfg *Config) { cfg.Memory = scarce() }, withSASL)
		for _, b := range w.brokers {
			b.on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
				if h.Key == keyApiVersions {
					return echo(h)
				}
				return nil
			})
		}
		for range 3 {
			c := w.dial()
			c.send(1, kmsg.NewPtrSASLAuthenticateRequest())
			c.send(2, largeProduce(9, 1, 17<<10, "m"))
		}
		eventually(t, "all came", func() bool { return len(w.upstreamRequests()) == 3 })
		served(t, w.dial(), paddedVersions())
	})
	t.Run("held fetch", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, func(_ *world, cfg *Config) { cfg.Memory = scarce() })
		w.setISR(node)
		for range 3 {
			req := fetchRequest(13, "m", 20)
			req.MaxWaitMillis = 60_000
			req.UnknownTags.Set(100, make([]byte, 17<<10))
			w.dial().send(1, req)
		}
		time.Sleep(200 * time.Millisecond)
		served(t, w.dial(), paddedVersions())
	})
}
