package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

func TestGatewayPortsLeadToTheirBrokers(t *testing.T) {
	g := newGate(t)
	for _, b := range g.brokers {
		b.on(clusterMetadata(g.world))
	}
	for _, id := range []int32{1, 2} {
		m := g.to(id).ask(metadataRequest()).(*kmsg.MetadataResponse)
		var told []string
		for _, b := range m.Brokers {
			told = append(told, fmt.Sprintf("%d=%s:%d", b.NodeID, b.Host, b.Port))
		}
		slices.Sort(told)
		want := []string{"1=" + g.at(1), "2=" + g.at(2), "9001=" + g.at(node)}
		if !slices.Equal(told, want) {
			t.Errorf("brokers %v, want %v", told, want)
		}
		if got := g.gotBy(id); !slices.Equal(got, []int16{keyMetadata}) {
			t.Errorf("broker %d got requests %v", id, got)
		}
	}
	// Our own node answers by itself what concerns it.
	if r := g.to(node).ask(kmsg.NewPtrListGroupsRequest()).(*kmsg.ListGroupsResponse); r.ErrorCode != 0 {
		t.Errorf("ListGroups of our node: %d", r.ErrorCode)
	}
	for tries := 0; len(g.gotBy(3)) == 0; tries++ {
		if tries == 200 {
			t.Fatal("the bootstrap port does not spread over all real brokers")
		}
		g.to(noNode).ask(metadataRequest())
	}
	if n := g.log.Lines("outside the gateway's node_id_ranges"); n != 1 {
		t.Errorf("%d lines about the broker without a port, want 1", n)
	}
}

// https://github.com/grepplabs/kafka-proxy/pull/191
func TestKafkaProxyPR191BrokersMoveComeAndGo(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	old := g.to(1)
	old.ask(metadataRequest())
	for i := range 50 {
		moved := startBroker(t, 1)
		g.image.edit(func(img *kraft.Image) {
			img.Brokers[1].Epoch++
			img.Brokers[1].Endpoints = []kraft.Endpoint{moved.endpoint()}
		})
		g.to(1).ask(metadataRequest())
		if len(moved.requests()) != 1 {
			t.Fatalf("move %d: the new address was not reached", i)
		}
		moved.stop()
	}
	g.brokers[1].hangup()
	old.closed() // as if there were nothing in between
	g.image.edit(func(img *kraft.Image) { img.Brokers[1].Endpoints = []kraft.Endpoint{g.brokers[1].endpoint()} })
	if n := g.log.Lines("gateway port open"); n != 3 {
		t.Errorf("%d ports were opened, want 3", n)
	}

	pending, proceed := gateOf(t)
	g.brokers[2].on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
		<-pending
		return echo(h)
	})
	c, req := g.to(2), metadataRequest()
	c.send(9, req)
	eventually(t, "the request is there", func() bool { return len(g.gotBy(2)) == 1 })
	g.image.edit(func(img *kraft.Image) { delete(img.Brokers, 2) })
	eventually(t, "port closed", func() bool {
		nc, err := net.Dial("tcp", g.at(2))
		if err == nil {
			nc.Close()
		}
		return err != nil
	})
	proceed()
	if corr, _ := c.receive(req); corr != 9 {
		t.Errorf("correlation id %d", corr)
	}
	c.closed()
	g.image.edit(func(img *kraft.Image) {
		img.Brokers[2] = &kraft.Broker{ID: 2, Epoch: 9, Endpoints: []kraft.Endpoint{g.brokers[2].endpoint()}}
	})
	g.opened(2)
	g.to(2).ask(req)
}

func TestGatewayPortThatIsTakenIsTriedAgain(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	taken, err := net.Listen("tcp", g.at(9002))
	if err != nil {
		t.Skip("somebody else has the port:", err)
	}
	g.image.edit(func(img *kraft.Image) {
		img.Brokers[9002] = &kraft.Broker{ID: 9002, Endpoints: []kraft.Endpoint{g.brokers[1].endpoint()}}
	})
	eventually(t, "told", func() bool { return g.log.Lines("can't be opened") > 0 })
	taken.Close()
	g.opened(9002)
	g.to(9002).ask(metadataRequest())
}

func TestGatewayPassesBytesInOrder(t *testing.T) {
	g := newGate(t)
	release, proceed := gateOf(t)
	g.brokers[1].on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
		switch h.Key {
		case keyMetadata:
			<-release
		case keyProduce:
			return nil
		}
		return echo(h)
	})
	c := g.to(1)
	unknown := append([]byte{0, 0, 0, 14}, 0x7f, 0x01, 0, 9, 0, 0, 0, 4, 0xff, 0xff, 0xde, 0xad, 0xbe, 0xef)
	meta, groups := metadataRequest(), kmsg.NewPtrListGroupsRequest()
	groups.Version = 3
	c.send(1, meta)
	c.send(2, groups)
	for range 200 {
		c.send(3, produceRequest(9, 0, "plain"))
	}
	c.write(unknown)
	c.send(5, meta)
	proceed()
	for _, want := range []struct {
		corr int32
		req  kmsg.Request
	}{{1, meta}, {2, groups}} {
		if corr, _ := c.receive(want.req); corr != want.corr {
			t.Errorf("correlation id %d, want %d", corr, want.corr)
		}
	}
	got, err := protocol.ReadFrame(c.nc, 1<<20, nil)
	if err != nil || !bytes.Equal(got, []byte{0, 0, 0, 4}) {
		t.Errorf("reply to the unknown key: %x, %v", got, err)
	}
	if corr, _ := c.receive(meta); corr != 5 {
		t.Errorf("correlation id %d, want 5", corr)
	}
	if n := len(g.gotBy(1)); n != 204 {
		t.Errorf("%d requests, want 204", n)
	}
}

// https://github.com/kroxylicious/kroxylicious/issues/1611 and https://github.com/grepplabs/kafka-proxy/pull/194
func TestGatewayApiVersions(t *testing.T) {
	g := newGate(t)
	g.brokers[1].on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
		resp := kmsg.NewPtrApiVersionsResponse()
		if h.Version == 4 { // one that knows up to 3
			resp.ErrorCode, resp.ApiKeys = 35, []kmsg.ApiVersionsResponseApiKey{{ApiKey: keyApiVersions, MaxVersion: 3}}
			return rawReply{bytes: framed(h.CorrelationID, resp.AppendTo(nil))}
		}
		for _, a := range protocol.APIs() {
			resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: a.Key, MinVersion: a.Min, MaxVersion: a.Max + 1})
		}
		resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: 999, MaxVersion: 1})
		resp.FinalizedFeaturesEpoch = 8
		return resp
	})
	c := g.to(1)
	h := protocol.RequestHeader{Key: keyApiVersions, Version: 6, CorrelationID: 3, ClientID: &c.id}
	c.write(sizedFrame(append(protocol.AppendRequestHeader(nil, h), 0xff, 0x13, 0x37, 0x00, 0xfe)))
	req := kmsg.NewPtrApiVersionsRequest()
	corr, r := c.receive(req)
	if resp := r.(*kmsg.ApiVersionsResponse); corr != 3 || resp.ErrorCode != 35 || len(resp.ApiKeys) != 1 || resp.ApiKeys[0].MaxVersion != 5 {
		t.Errorf("answer %d: %+v, want error 35 and the range of ApiVersions alone", corr, resp)
	}
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion, req.NodeID = 5, "test", "1", -1
	resp := c.ask(req).(*kmsg.ApiVersionsResponse)
	if len(resp.ApiKeys) < 60 || resp.FinalizedFeaturesEpoch != 8 {
		t.Fatalf("%d keys, features of epoch %d", len(resp.ApiKeys), resp.FinalizedFeaturesEpoch)
	}
	for _, k := range resp.ApiKeys {
		a, known := protocol.LookupAPI(k.ApiKey)
		_, reads := interpreted[k.ApiKey]
		reads = reads || a.Read
		if !known || a.Role == protocol.Hidden || reads && k.MaxVersion != a.Max || !reads && k.MaxVersion != a.Max+1 {
			t.Errorf("key %d (%s) is shown up to version %d", k.ApiKey, a.Name, k.MaxVersion)
		}
	}
	older := kmsg.NewPtrApiVersionsRequest()
	older.Version, older.ClientSoftwareName, older.ClientSoftwareVersion = 4, "test", "1"
	c.send(8, older)
	corr, r = c.receive(kmsg.NewPtrApiVersionsRequest())
	if resp := r.(*kmsg.ApiVersionsResponse); corr != 8 || resp.ErrorCode != 35 || resp.ApiKeys[0].MaxVersion != 3 {
		t.Errorf("an older broker's answer: %d: %+v", corr, resp)
	}
}

func sizedFrame(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func framed(corr int32, body []byte) []byte {
	return sizedFrame(append(binary.BigEndian.AppendUint32(nil, uint32(corr)), body...))
}

func TestGatewayRefusesProducePartitionByPartition(t *testing.T) {
	g := newGate(t)
	var rest []string
	g.brokers[1].on(func(h protocol.RequestHeader, body []byte) kmsg.Response {
		decoded, err := protocol.DecodeRequest(h, body)
		if err != nil {
			t.Error(err)
			return nil
		}
		req := decoded.(*kmsg.ProduceRequest)
		resp := kmsg.NewPtrProduceResponse()
		for _, rt := range req.Topics {
			name := cmpName(rt.Topic, rt.TopicID)
			rest = append(rest, name)
			if !bytes.Equal(rt.Partitions[0].Records, []byte("records")) {
				t.Errorf("records %q", rt.Partitions[0].Records)
			}
			pt := kmsg.NewProduceResponseTopic()
			pt.Topic, pt.TopicID = rt.Topic, rt.TopicID
			p := kmsg.NewProduceResponseTopicPartition()
			p.BaseOffset = 42
			pt.Partitions = append(pt.Partitions, p)
			resp.Topics = append(resp.Topics, pt)
		}
		if h.Version >= 10 {
			b := kmsg.NewProduceResponseBroker()
			b.NodeID, b.Host, b.Port = 2, leak, 1
			resp.Brokers = append(resp.Brokers, b)
		}
		if req.Acks == 0 {
			return nil
		}
		return resp
	})
	for _, version := range []int16{3, 8, 9, 10, 12, 13} {
		rest = nil
		resp := g.to(1).ask(produceRequest(version, -1, "plain", "m", "stray")).(*kmsg.ProduceResponse)
		got := map[string]int16{}
		for _, rt := range resp.Topics {
			got[cmpName(rt.Topic, rt.TopicID)] = rt.Partitions[0].ErrorCode
		}
		if len(got) != 3 || got["m"] != codePolicyViolation || got["plain"] != 0 || got["stray"] != 0 || !slices.Equal(rest, []string{"plain", "stray"}) {
			t.Errorf("v%d: codes %v, the broker got %v", version, got, rest)
		}
		for _, b := range resp.Brokers {
			if b.Host != "127.0.0.1" {
				t.Errorf("v%d: address %s", version, b.Host)
			}
		}
		rest = nil
		if r := g.to(1).ask(produceRequest(version, 1, "m")).(*kmsg.ProduceResponse); r.Topics[0].Partitions[0].ErrorCode != codePolicyViolation || len(rest) > 0 {
			t.Errorf("v%d, the mirror alone: %+v", version, r)
		}
	}
	rest = nil
	c := g.to(1)
	c.send(1, produceRequest(9, 0, "m", "plain"))
	c.closed()
	eventually(t, "the rest of acks=0 is written", func() bool { return len(g.gotBy(1)) == 7 })
}

func cmpName(name string, id protocol.UUID) string {
	if names := map[protocol.UUID]string{mirrorID: "m", plainID: "plain", strayID: "stray"}; !id.IsZero() {
		return names[id]
	}
	return name
}

// TestGatewaySlowReader: a client that does not read makes the gateway read no more from the broker.
func TestGatewaySlowReader(t *testing.T) {
	g := newGate(t)
	reply := protocol.AppendResponse(nil, 5, fetchReply(17, 1, 6<<20))
	g.brokers[1].on(func(protocol.RequestHeader, []byte) kmsg.Response { return rawReply{bytes: reply} })
	c := g.to(1)
	req := kmsg.NewPtrFetchRequest()
	req.Version = 17
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 5 {
		c.send(5, req)
	}
	eventually(t, "requests there", func() bool { return len(g.gotBy(1)) > 0 })
	time.Sleep(50 * time.Millisecond)
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("heap grew by %d bytes", grown)
	}
	if _, r := c.receive(req); len(r.(*kmsg.FetchResponse).Topics) != 1 {
		t.Error("not the reply that the broker sent")
	}
}

func TestGatewayDrainsAndLimits(t *testing.T) {
	g := newGate(t, func(c *GatewayConfig) { c.MaxConnections, c.DrainTimeout = 3, soon })
	eventually(t, "no connection left", func() bool {
		g.gw.s.mu.Lock()
		defer g.gw.s.mu.Unlock()
		return len(g.gw.s.conns) == 0
	})
	release, proceed := gateOf(t)
	g.brokers[1].on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
		<-release
		return echo(h)
	})
	req := metadataRequest()
	cs := []*client{g.to(1), g.to(1), g.to(1)}
	for _, c := range cs {
		c.send(1, req)
	}
	eventually(t, "requests there", func() bool { return len(g.gotBy(1)) == 3 })
	g.to(2).closed()
	g.cancel()
	eventually(t, "ports closed", func() bool {
		nc, err := net.Dial("tcp", g.at(noNode))
		if err == nil {
			nc.Close()
		}
		return err != nil
	})
	proceed()
	for _, c := range cs {
		if corr, _ := c.receive(req); corr != 1 {
			t.Errorf("correlation id %d", corr)
		}
		c.closed()
	}
	if err := <-g.done; err != nil {
		t.Error(err)
	} else {
		g.done <- nil
	}
}

func TestGatewayCutsWhatDoesNotDrain(t *testing.T) {
	g := newGate(t, func(c *GatewayConfig) { c.DrainTimeout = 20 * time.Millisecond })
	g.brokers[1].on(func(protocol.RequestHeader, []byte) kmsg.Response { return nil })
	c := g.to(1)
	c.send(1, metadataRequest())
	eventually(t, "request there", func() bool { return len(g.gotBy(1)) == 1 })
	g.cancel()
	err := <-g.done
	if !errors.Is(err, ErrDrainTimeout) {
		t.Errorf("Run: %v", err)
	}
	g.done <- err
}

func TestGatewayConnectionsEnd(t *testing.T) {
	g := newGate(t, func(c *GatewayConfig) { c.MaxFrame = 1 << 20; c.IdleTimeout = 2 * time.Second })
	for name, bytes := range map[string][]byte{
		"too large": {0x7f, 0, 0, 0}, "TLS": {0x16, 0x03, 1, 0}, "HTTP": []byte("GET / HTTP/1.1\r\n\r\n"), "nothing": nil,
		"Metadata 99": sizedFrame(protocol.AppendRequestHeader(nil, protocol.RequestHeader{Key: keyMetadata, Version: 99})),
		"hidden":      sizedFrame(protocol.AppendRequestHeader(nil, protocol.RequestHeader{Key: 56, Version: 3})),
	} {
		c := g.to(1)
		if bytes != nil {
			c.write(bytes)
		}
		c.nc.SetReadDeadline(time.Now().Add(soon))
		if n, err := c.nc.Read(make([]byte, 1)); n != 0 || strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: the connection stays", name)
		}
	}
	g.brokers[1].stop()
	c := g.to(1)
	c.send(1, metadataRequest())
	c.closed()
	if n := g.log.Lines("nothing can be forwarded"); n == 0 {
		t.Error("an unreachable broker is not told")
	}
}

func TestGatewayConfigIsChecked(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	good := GatewayConfig{Fronts: []Front{{Name: "A", Listen: ln, Port: 1, AdvertisedHost: "h", Ranges: []IDRange{{1, 2}}}},
		Images: &fixedImage{}, Mirrors: fakeMirrors{}, Guest: func(int32) bool { return false }}
	if _, err := NewGateway(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*GatewayConfig){
		"no front":  func(c *GatewayConfig) { c.Fronts = nil },
		"no images": func(c *GatewayConfig) { c.Images = nil },
		"no socket": func(c *GatewayConfig) {
			c.Fronts = []Front{{Name: "A", Port: 1, AdvertisedHost: "h", Ranges: []IDRange{{1, 2}}}}
		},
		"limit": func(c *GatewayConfig) { c.MaxFrame = -1 },
		"error": func(c *GatewayConfig) { c.ReadOnlyError = 3 },
	} {
		c := good
		spoil(&c)
		if _, err := NewGateway(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
