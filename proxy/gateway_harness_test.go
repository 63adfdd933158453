package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// gate is a gateway in front of a world's brokers: ids 1, 2 and 9001 have ports, 3 has none.
type gate struct {
	*world
	front  *front
	gw     *Gateway
	cancel context.CancelFunc
	done   chan error
}

// freeSpan finds n free ports in a row and returns the first, open. Nobody connects from one of them or is given one by the kernel, as
// this test's ports are opened one by one.
func freeSpan(t *testing.T, n int) (net.Listener, uint16) {
	t.Helper()
	first, err := testkafka.FreePorts(n)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first)))
	if err != nil {
		t.Fatal(err)
	}
	return ln, uint16(first)
}

func newGate(t *testing.T, change ...func(*GatewayConfig)) *gate {
	t.Helper()
	g := &gate{world: newWorld(t), done: make(chan error, 1)}
	ours := net.TCPAddrFromAddrPort(mustAddr(t, g.addr))
	g.image.edit(func(img *kraft.Image) {
		img.Brokers[node].Endpoints = []kraft.Endpoint{{Name: "CLIENT", Host: "127.0.0.1", Port: uint16(ours.Port)}}
	})
	ln, port := freeSpan(t, 5)
	cfg := GatewayConfig{
		Fronts: []Front{{Name: "CLIENT", Listen: ln, Host: "127.0.0.1", Port: port, AdvertisedHost: "127.0.0.1",
			Ranges: []IDRange{{1, 2}, {9001, 9002}}}},
		Images: g.image, Mirrors: fakeMirrors{"m": "east"}, Guest: func(id int32) bool { return id >= 9000 }, DrainTimeout: 5 * time.Second,
		Log: slog.New(slog.NewTextHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if g.gw, err = NewGateway(cfg); err != nil {
		t.Fatal(err)
	}
	g.front, g.gw.s.patience = g.gw.fronts[0], soon
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	go func() { g.done <- g.gw.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-g.done:
			g.done <- err
		case <-time.After(soon):
			t.Error("Run did not end")
		}
	})
	for _, id := range []int32{1, 2, node} {
		g.opened(id)
	}
	return g
}

// gateOf is a channel that opens when the function is called, or the test fails: brokers that wait for it must not hang then.
func gateOf(t *testing.T) (<-chan struct{}, func()) {
	c := make(chan struct{})
	proceed := sync.OnceFunc(func() { close(c) })
	t.Cleanup(proceed)
	return c, proceed
}

func (g *gate) at(id int32) string {
	port := g.front.Port
	if id != noNode {
		port, _ = g.front.PortOf(id)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
}

// opened waits for a port and has it answer, so that the connection has been seen.
func (g *gate) opened(id int32) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("port of node %d open", id), func() bool {
		nc, err := net.Dial("tcp", g.at(id))
		if err != nil {
			return false
		}
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(soon))
		h := protocol.RequestHeader{Key: keyApiVersions, Version: 99}
		if _, err := nc.Write(sizedFrame(protocol.AppendRequestHeader(nil, h))); err != nil {
			return false
		}
		_, err = protocol.ReadFrame(nc, 1<<10, nil)
		return err == nil
	})
}

func (g *gate) to(id int32) *client {
	g.t.Helper()
	nc, err := net.Dial("tcp", g.at(id))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { nc.Close() })
	return &client{t: g.t, nc: nc, id: "test"}
}

func (g *gate) gotBy(id int32) (keys []int16) {
	for _, h := range g.brokers[id].requests() {
		keys = append(keys, h.Key)
	}
	return keys
}

// clusterMetadata answers Metadata as brokers do.
func clusterMetadata(w *world) func(protocol.RequestHeader, []byte) kmsg.Response {
	return func(h protocol.RequestHeader, _ []byte) kmsg.Response {
		if h.Key != keyMetadata {
			return echo(h)
		}
		r := kmsg.NewPtrMetadataResponse()
		for id, b := range w.image.Image().Brokers {
			mb := kmsg.NewMetadataResponseBroker()
			mb.NodeID, mb.Host, mb.Port = id, b.Endpoints[0].Host, int32(b.Endpoints[0].Port)
			r.Brokers = append(r.Brokers, mb)
		}
		return r
	}
}
