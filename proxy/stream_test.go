package proxy

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// largeProduce is a Produce request whose first topic has a batch of so many bytes.
func largeProduce(version, acks int16, size int, topics ...string) *kmsg.ProduceRequest {
	req := produceRequest(version, acks, topics...)
	req.Topics[0].Partitions[0].Records = bytes.Repeat([]byte{7, 0xfe}, size/2)
	return req
}

// rawBroker is broker 1 on a single connection, whose bytes the test takes itself.
type rawBroker struct {
	g  *gate
	ln net.Listener
	nc net.Conn
}

func (g *gate) rawBroker() *rawBroker {
	g.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { ln.Close() })
	g.image.edit(func(img *kraft.Image) {
		port := uint16(ln.Addr().(*net.TCPAddr).Port)
		img.Brokers[1].Endpoints = []kraft.Endpoint{{Name: "CLIENT", Host: "127.0.0.1", Port: port}}
	})
	return &rawBroker{g: g, ln: ln}
}

// expect takes the next bytes and compares them.
func (b *rawBroker) expect(what string, want []byte) {
	b.g.t.Helper()
	if b.nc == nil {
		b.ln.(*net.TCPListener).SetDeadline(time.Now().Add(soon))
		var err error
		if b.nc, err = b.ln.Accept(); err != nil {
			b.g.t.Fatalf("%s: %v", what, err)
		}
		b.g.t.Cleanup(func() { b.nc.Close() })
	}
	b.nc.SetDeadline(time.Now().Add(soon))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(b.nc, got); err != nil {
		b.g.t.Fatalf("%s: %v", what, err)
	}
	if !bytes.Equal(got, want) {
		b.g.t.Fatalf("%s: not what was sent", what)
	}
}

func (b *rawBroker) reply(corr int32, resp kmsg.Response) {
	b.g.t.Helper()
	if _, err := b.nc.Write(protocol.AppendResponse(nil, corr, resp)); err != nil {
		b.g.t.Fatal(err)
	}
}

func TestLargeProducePassesAsItComes(t *testing.T) {
	t.Parallel()
	for _, version := range []int16{3, 8, 9, 12, 13} {
		g := newGate(t)
		b, c := g.rawBroker(), g.to(1)
		resp := kmsg.NewPtrProduceResponse()
		resp.Version = version
		for i, size := range []int{streamFrom, 200 << 10, 3 << 20} {
			frame := c.frame(int32(i), largeProduce(version, 1, size, "plain"))
			half := len(frame) / 2
			c.write(frame[:half])
			b.expect("before the rest is sent", frame[:half])
			c.write(frame[half:])
			b.expect("the rest", frame[half:])
			// The next one is sent before the reply to this one has come.
			unanswered := c.frame(100, largeProduce(version, 0, 100<<10, "plain"))
			c.write(unanswered)
			b.expect("acks=0", unanswered)
			b.reply(int32(i), resp)
			if corr, _ := c.receive(produceRequest(version, 1)); corr != int32(i) {
				t.Errorf("v%d: correlation id %d, want %d", version, corr, i)
			}
		}
	}
}

func TestLargeProduceToReadOnlyTopics(t *testing.T) {
	t.Parallel()
	for _, version := range []int16{3, 9, 13} {
		g := newGate(t)
		c := g.to(1)
		resp := c.ask(largeProduce(version, 1, 100<<10, "m")).(*kmsg.ProduceResponse)
		if len(resp.Topics) != 1 || resp.Topics[0].Partitions[0].ErrorCode != codePolicyViolation || len(g.gotBy(1)) != 0 {
			t.Errorf("v%d: %+v, and the broker got %d requests", version, resp.Topics, len(g.gotBy(1)))
		}
		// Behind another topic's records.
		c.send(1, largeProduce(version, 1, 100<<10, "plain", "m"))
		if _, resp := c.receive(produceRequest(version, 1)); len(resp.(*kmsg.ProduceResponse).Topics) != 1 {
			t.Errorf("v%d: the read-only topic behind another one is not refused", version)
		}
		rest := largeProduce(version, 1, 100<<10, "plain")
		if got := g.brokers[1].last(); !bytes.Equal(got, c.frame(1, rest)[4:]) {
			t.Errorf("v%d: the broker got %d bytes, and not what is for the other topic", version, len(got))
		}
	}
}

// TestLargeProduceBroken: whoever leaves within a request, the other side is told, and replies in flight arrive.
func TestLargeProduceBroken(t *testing.T) {
	t.Parallel()
	frame := (&client{id: "test"}).frame(2, largeProduce(9, 1, 1<<20, "plain"))
	meta := metadataRequest()
	begin := func(t *testing.T) (*gate, *rawBroker, *client) {
		g := newGate(t, func(cfg *GatewayConfig) { cfg.DrainTimeout = soon })
		b, c := g.rawBroker(), g.to(1)
		c.send(1, meta)
		b.expect("Metadata", c.frame(1, meta))
		c.write(frame[:len(frame)/2])
		b.expect("half a request", frame[:len(frame)/2])
		return g, b, c
	}
	t.Run("client leaves", func(t *testing.T) {
		_, b, c := begin(t)
		c.nc.Close()
		if n, err := b.nc.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
	t.Run("broker leaves", func(t *testing.T) {
		_, b, c := begin(t)
		b.nc.Close()
		c.closed()
	})
	t.Run("drain", func(t *testing.T) {
		g, b, c := begin(t)
		g.cancel()
		resp := kmsg.NewPtrMetadataResponse()
		resp.Version = meta.GetVersion()
		b.reply(1, resp)
		if corr, _ := c.receive(meta); corr != 1 {
			t.Errorf("correlation id %d", corr)
		}
		c.closed()
		if err := <-g.done; err != nil {
			t.Error(err)
		}
		g.done <- nil
	})
}

// TestLargeRepliesFromSocketToSocket: replies arrive as they are, whatever of them goes past us, and what follows them too.
func TestLargeRepliesFromSocketToSocket(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	c := g.to(1)
	var wire []byte
	g.brokers[1].on(func(protocol.RequestHeader, []byte) kmsg.Response { return rawReply{bytes: wire} })
	fetch := kmsg.NewPtrFetchRequest()
	fetch.Version = 17
	for _, size := range []int{moveFrom - 100, moveFrom + 100, 40 << 10, 300 << 10, 3 << 20} {
		wire = protocol.AppendResponse(nil, 5, fetchReply(17, 3, size))
		opaque := append(binary.BigEndian.AppendUint32(nil, uint32(size+4)), bytes.Repeat([]byte{0, 0, 0, 9}, size/4+1)...)
		for _, exchange := range []struct{ request, reply []byte }{
			{c.frame(5, fetch), wire},
			{sizedFrame([]byte{0x7f, 0x01, 0, 9, 0, 0, 0, 9, 0xff, 0xff}), opaque},
		} {
			wire = exchange.reply
			c.write(exchange.request)
			c.nc.SetReadDeadline(time.Now().Add(soon))
			got := make([]byte, len(wire))
			if _, err := io.ReadFull(c.nc, got); err != nil || !bytes.Equal(got, wire) {
				t.Fatalf("%d bytes of records: %v, and the reply was changed", size, err)
			}
		}
	}
}

// FuzzOnlyTopic: what is read of a request's beginning is what the whole of it says.
func FuzzOnlyTopic(f *testing.F) {
	for _, version := range []int16{3, 8, 9, 12, 13} {
		for _, topics := range [][]string{{"plain"}, {"plain", "m"}, {}} {
			f.Add(version, produceRequest(version, 1, topics...).AppendTo(nil))
		}
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		acks, topic, ok := onlyTopic(version, body)
		decoded, err := protocol.DecodeRequest(protocol.RequestHeader{Key: keyProduce, Version: version}, body)
		if !ok || err != nil {
			return
		}
		req := decoded.(*kmsg.ProduceRequest)
		if len(req.Topics) != 1 || req.Topics[0].Topic != topic.Topic || req.Topics[0].TopicID != topic.TopicID || req.Acks != acks {
			t.Fatalf("v%d: read topic %q %x, acks %d of %+v", version, topic.Topic, topic.TopicID, acks, req)
		}
	})
}
