package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

func metadataRequest() kmsg.Request {
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	return req
}

func produceRequest(version, acks int16, topics ...string) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks = version, acks
	for _, name := range topics {
		t := kmsg.NewProduceRequestTopic()
		t.Topic = name
		if version >= 13 {
			t.TopicID = map[string]protocol.UUID{"m": mirrorID, "plain": plainID, "stray": strayID}[name]
		}
		p := kmsg.NewProduceRequestTopicPartition()
		p.Records = []byte("records")
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
	}
	return req
}

// https://github.com/kroxylicious/kroxylicious/issues/1611
func TestKroxylicious1611ApiVersionsNewerThanOurs(t *testing.T) {
	w := newWorld(t)
	c := w.dial()
	h := protocol.RequestHeader{Key: keyApiVersions, Version: 6, CorrelationID: 3, ClientID: &c.id}
	frame := protocol.AppendRequestHeader(make([]byte, 4), h)
	frame = append(frame, 0xff, 0x13, 0x37, 0x00, 0xfe)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	c.write(frame)
	req := kmsg.NewPtrApiVersionsRequest()
	corr, r := c.receive(req)
	resp := r.(*kmsg.ApiVersionsResponse)
	if corr != 3 || resp.ErrorCode != 35 || len(resp.ApiKeys) != 1 ||
		resp.ApiKeys[0].ApiKey != keyApiVersions || resp.ApiKeys[0].MaxVersion != 5 {
		t.Errorf("answer %d: %+v, want error 35 and the range of ApiVersions alone", corr, resp)
	}
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion, req.NodeID = 5, "test", "1", -1
	if resp := c.ask(req).(*kmsg.ApiVersionsResponse); resp.ErrorCode != 0 {
		t.Errorf("second try at version 5: error %d", resp.ErrorCode)
	}
}

// https://github.com/grepplabs/kafka-proxy/pull/194
func TestKafkaProxyPR194ApiVersionsOverlap(t *testing.T) {
	w := newWorld(t)
	advertise := func(h protocol.RequestHeader, _ []byte) kmsg.Response {
		resp := kmsg.NewPtrApiVersionsResponse()
		for _, a := range protocol.APIs() {
			resp.ApiKeys = append(resp.ApiKeys,
				kmsg.ApiVersionsResponseApiKey{ApiKey: a.Key, MinVersion: a.Min, MaxVersion: a.Max + 1})
		}
		resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: 999, MaxVersion: 1})
		resp.FinalizedFeaturesEpoch = 8
		f := kmsg.NewApiVersionsResponseFinalizedFeature()
		f.Name, f.MaxVersionLevel = "transaction.version", 2
		resp.FinalizedFeatures = append(resp.FinalizedFeatures, f)
		return resp
	}
	for _, b := range w.brokers {
		b.on(advertise)
	}
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version = 3
	c := w.dial()
	resp := c.ask(req).(*kmsg.ApiVersionsResponse)
	if len(resp.ApiKeys) < 50 {
		t.Fatalf("only %d keys", len(resp.ApiKeys))
	}
	for _, k := range resp.ApiKeys {
		a, known := protocol.LookupAPI(k.ApiKey)
		switch {
		case !known || a.Role == protocol.Hidden:
			t.Errorf("key %d (%s) must not be shown", k.ApiKey, a.Name)
		case (a.Role == protocol.Local || a.Read) && k.MaxVersion != a.Max:
			t.Errorf("%s up to %d, we can decode %d", a.Name, k.MaxVersion, a.Max)
		case a.Role == protocol.Relay && !a.Read && k.MaxVersion != a.Max+1:
			t.Errorf("%s up to %d, the broker has %d", a.Name, k.MaxVersion, a.Max+1)
		}
	}
	if resp.FinalizedFeaturesEpoch != 8 || len(resp.FinalizedFeatures) != 1 {
		t.Errorf("finalized features of the broker are not passed on: %+v", resp)
	}
	c.ask(req)
	asked := 0
	for _, b := range w.brokers {
		asked += len(b.requests())
	}
	if asked != 1 {
		t.Errorf("brokers were asked %d times, want once", asked)
	}
}

func TestApiVersionsIdentityAndNoUpstream(t *testing.T) {
	w := newWorld(t)
	for _, b := range w.brokers {
		b.stop()
	}
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 5, "test", "1"
	for _, tt := range []struct {
		name    string
		cluster string
		node    int32
		want    int16
	}{{"ours", "cluster", node, 0}, {"another node", "cluster", 1, 129}, {"another cluster", "x", node, 129}} {
		req.ClusterID, req.NodeID = &tt.cluster, tt.node
		resp := w.dial().ask(req).(*kmsg.ApiVersionsResponse)
		if resp.ErrorCode != tt.want || (len(resp.ApiKeys) > 0) != (tt.want == 0) {
			t.Errorf("%s: error %d with %d keys, want %d", tt.name, resp.ErrorCode, len(resp.ApiKeys), tt.want)
		}
	}
}

// https://github.com/grepplabs/kafka-proxy/issues/54
func TestKafkaProxy54AcksZero(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	silent := func(h protocol.RequestHeader, _ []byte) kmsg.Response {
		if h.Key == 0 {
			return nil
		}
		return echo(h)
	}
	for _, b := range w.brokers {
		b.on(silent)
	}
	c := w.dial()
	hundred := bytes.Repeat(c.frame(1, produceRequest(9, 0, "plain")), 100)
	for range 100 {
		c.write(hundred)
	}
	req := metadataRequest()
	c.send(4711, req)
	if corr, _ := c.receive(req); corr != 4711 {
		t.Errorf("correlation id %d, want that of Metadata", corr)
	}
	if n := len(w.upstreamRequests()); n != 10001 {
		t.Errorf("%d requests went upstream, want 10001", n)
	}
	w.server.mu.Lock()
	for s := range w.server.conns {
		eventually(t, "nothing in flight", func() bool { return s.idle() && s.up.inFlight.Load() == 0 })
	}
	w.server.mu.Unlock()

	ro := w.dial()
	ro.send(1, produceRequest(9, 0, "m"))
	ro.closed()
	if n := len(w.upstreamRequests()); n != 10001 {
		t.Errorf("a refused request went upstream")
	}
}

func TestAcksZeroIsBoundedByTheBroker(t *testing.T) {
	w := newWorld(t)
	stall := make(chan struct{})
	defer close(stall)
	for _, b := range w.brokers {
		b.on(func(protocol.RequestHeader, []byte) kmsg.Response {
			<-stall
			return nil
		})
	}
	c := w.dial()
	req := produceRequest(9, 0, "plain")
	req.Topics[0].Partitions[0].Records = make([]byte, 256<<10)
	one := c.frame(1, req)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	blocked := false
	for range 1000 {
		c.nc.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		if _, err := c.nc.Write(one); err != nil {
			blocked = true
			break
		}
	}
	runtime.ReadMemStats(&after)
	if !blocked {
		t.Error("250 MB were taken from a client although the broker reads nothing")
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 20<<20 {
		t.Errorf("heap grew by %d bytes", grown)
	}
}

func TestSilentRefusalUpstreamReachesTheClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, b := range w.brokers {
		b.on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
			if h.Key == 0 {
				return rawReply{hangup: true}
			}
			return echo(h)
		})
	}
	c := w.dial()
	c.ask(metadataRequest())
	c.send(1, produceRequest(9, 0, "plain"))
	c.closed()
}

func TestRepliesInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	for _, b := range w.brokers {
		b.on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
			if h.Key == 3 {
				<-release
			}
			return echo(h)
		})
	}
	c := w.dial()
	unknown := append([]byte{0, 0, 0, 14}, 0x7f, 0x01, 0, 9, 0, 0, 0, 4, 0xff, 0xff, 0xde, 0xad, 0xbe, 0xef)
	groups := kmsg.NewPtrListGroupsRequest()
	meta, heartbeat := metadataRequest(), kmsg.NewPtrHeartbeatRequest()
	c.send(1, meta)
	c.send(2, groups)
	c.send(3, heartbeat)
	c.write(unknown)
	c.send(5, produceRequest(9, -1, "m"))
	c.nc.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, _ := c.nc.Read(make([]byte, 1)); n != 0 {
		t.Fatal("a reply overtook the one before it")
	}
	close(release)
	for want, req := range []kmsg.Request{meta, groups, heartbeat} {
		if corr, _ := c.receive(req); corr != int32(want+1) {
			t.Fatalf("reply %d came as number %d", corr, want+1)
		}
	}
	c.nc.SetReadDeadline(time.Now().Add(soon))
	frame, err := protocol.ReadFrame(c.nc, 100, nil)
	if err != nil || len(frame) != 4 || frame[3] != 4 {
		t.Fatalf("reply to the unknown key: %x, %v", frame, err)
	}
	if corr, _ := c.receive(produceRequest(9, -1)); corr != 5 {
		t.Errorf("reply %d, want 5", corr)
	}
	for _, b := range w.brokers {
		if got := b.last(); got != nil && string(got) != string(unknown[4:]) {
			t.Errorf("bytes of an unknown request were changed: %x", got)
		}
	}
}

func TestUpstreamGoesAway(t *testing.T) {
	t.Parallel()
	t.Run("idle: dialled anew", func(t *testing.T) {
		w := newWorld(t)
		c := w.dial()
		c.ask(metadataRequest())
		for _, b := range w.brokers {
			b.hangup()
		}
		w.server.mu.Lock()
		for s := range w.server.conns {
			eventually(t, "loss noticed", func() bool { return s.up.gone() != nil })
		}
		w.server.mu.Unlock()
		c.ask(metadataRequest())
		used := 0
		for _, b := range w.brokers {
			if len(b.requests()) > 0 {
				used++
			}
		}
		if used != 1 {
			t.Errorf("%d brokers were used, want the same one again", used)
		}
	})
	t.Run("in flight: the client is cut off", func(t *testing.T) {
		w := newWorld(t)
		for _, b := range w.brokers {
			b.on(func(protocol.RequestHeader, []byte) kmsg.Response { return rawReply{hangup: true} })
		}
		c := w.dial()
		c.send(1, metadataRequest())
		c.closed()
		eventually(t, "a line", func() bool { return w.log.Lines("in flight") == 1 })
	})
	t.Run("broker down: another one", func(t *testing.T) {
		w := newWorld(t)
		w.brokers[1].stop()
		w.brokers[2].stop()
		for range 3 {
			w.dial().ask(metadataRequest())
		}
	})
	t.Run("no broker", func(t *testing.T) {
		w := newWorld(t)
		for _, b := range w.brokers {
			b.stop()
		}
		c := w.dial()
		c.send(1, metadataRequest())
		c.closed()
	})
	t.Run("wrong correlation id", func(t *testing.T) {
		w := newWorld(t)
		for _, b := range w.brokers {
			b.on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
				h.CorrelationID++
				h.Key = 32000
				return echo(h)
			})
		}
		c := w.dial()
		c.send(1, metadataRequest())
		c.closed()
	})
}

// https://github.com/kroxylicious/kroxylicious/issues/4493
func TestKroxylicious4493Drain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *world, cfg *Config) { cfg.DrainTimeout = soon })
	release := make(chan struct{})
	for _, b := range w.brokers {
		b.on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
			if h.Key == 0 {
				<-release
			}
			return echo(h)
		})
	}
	idle := w.dial()
	idle.ask(metadataRequest())
	before := len(w.upstreamRequests())
	var clients []*client
	for i := range 20 {
		c := w.dial()
		c.send(int32(i), produceRequest(9, -1, "plain"))
		clients = append(clients, c)
	}
	eventually(t, "20 in flight", func() bool { return len(w.upstreamRequests()) == before+20 })
	w.cancel()
	idle.closed()
	if nc, err := net.Dial("tcp", w.addr); err == nil {
		nc.Close()
		t.Error("the listener is still open while replies are awaited")
	}
	eventually(t, "all are told to end", func() bool {
		w.server.mu.Lock()
		defer w.server.mu.Unlock()
		for c := range w.server.conns {
			if !c.stopping() {
				return false
			}
		}
		return true
	})
	for _, c := range clients {
		c.send(99, metadataRequest())
	}
	close(release)
	for i, c := range clients {
		if corr, _ := c.receive(produceRequest(9, -1)); corr != int32(i) {
			t.Errorf("client %d: reply %d", i, corr)
		}
		c.closed()
	}
	if err := <-w.done; err != nil {
		t.Errorf("Run: %v", err)
	}
	w.done <- nil
	if n := len(w.upstreamRequests()); n != before+20 {
		t.Errorf("%d requests were read while draining", n-before-20)
	}
}

func TestDrainLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *world, cfg *Config) { cfg.DrainTimeout = 50 * time.Millisecond })
	for _, b := range w.brokers {
		b.on(func(protocol.RequestHeader, []byte) kmsg.Response { return nil })
	}
	c := w.dial()
	c.send(1, metadataRequest())
	eventually(t, "forwarded", func() bool { return len(w.upstreamRequests()) == 1 })
	w.cancel()
	if err := <-w.done; !errors.Is(err, ErrDrainTimeout) {
		t.Errorf("Run: %v, want ErrDrainTimeout", err)
	}
	w.done <- nil
	c.closed()
}

func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	t.Run("number", func(t *testing.T) {
		w := newWorld(t, func(_ *world, cfg *Config) { cfg.MaxConnections = 2 })
		a, b := w.dial(), w.dial()
		a.ask(metadataRequest())
		b.ask(metadataRequest())
		w.dial().closed()
		a.nc.Close()
		eventually(t, "room again", func() bool {
			w.server.mu.Lock()
			defer w.server.mu.Unlock()
			return len(w.server.conns) == 1
		})
		w.dial().ask(metadataRequest())
		w.server.SetMaxConnections(1)
		w.dial().closed()
		b.ask(metadataRequest()) // is there and stays
		w.server.SetMaxConnections(3)
		w.dial().ask(metadataRequest())
	})
	t.Run("idle", func(t *testing.T) {
		w := newWorld(t, func(_ *world, cfg *Config) { cfg.IdleTimeout = 2 * time.Second }) // each request has to come within that
		for _, b := range w.brokers {
			b.on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
				time.Sleep(3 * time.Second)
				return echo(h)
			})
		}
		c := w.dial()
		c.ask(metadataRequest()) // outlives the limit since its reply is awaited
		c.closed()
		slow := w.dial()
		slow.write([]byte{0, 0, 1, 0, 0})
		slow.closed()
	})
}

func TestListenerFailureEndsRun(t *testing.T) {
	w := newWorld(t)
	w.server.cfg.Listeners[0].Listen.Close()
	if err := <-w.done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Run: %v, want the listener's error", err)
	}
	w.done <- nil
}

func TestNewValidates(t *testing.T) {
	good := newWorld(t).server.cfg
	for name, spoil := range map[string]func(*Config){
		"no listener":    func(c *Config) { c.Listeners = nil },
		"no images":      func(c *Config) { c.Images = nil },
		"no socket":      func(c *Config) { c.Listeners = []Listener{{Name: "x", NodeID: 1}} },
		"foreign code":   func(c *Config) { c.ReadOnlyError = 3 },
		"negative limit": func(c *Config) { c.MaxFrame = -1 },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
