package proxy

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// TestProbe: what is asked of a broker is what forwarding needs of it.
func TestProbe(t *testing.T) {
	w := newWorld(t)
	ids := w.server.Usable("CLIENT")
	slices.Sort(ids)
	if !slices.Equal(ids, []int32{1, 2, 3}) || len(w.server.Usable("OTHER")) != 0 {
		t.Errorf("usable: %v, and %v of a listener that nobody has", ids, w.server.Usable("OTHER"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := w.server.Probe(ctx, "CLIENT", 1); err != nil {
		t.Error(err)
	}
	if got := w.brokers[1].requests(); len(got) != 1 || got[0].Key != keyApiVersions {
		t.Errorf("broker 1 was asked %v", got)
	}
	hang, proceed := gateOf(t)
	w.brokers[1].on(func(h protocol.RequestHeader, _ []byte) kmsg.Response { <-hang; return echo(h) })
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if began := time.Now(); w.server.Probe(short, "CLIENT", 1) == nil || time.Since(began) > soon {
		t.Errorf("a broker that does not answer was waited for %s", time.Since(began))
	}
	proceed()
	for id, change := range map[int32]func(*kraft.Broker){2: func(b *kraft.Broker) { b.Fenced = true },
		3: func(b *kraft.Broker) { b.Endpoints = nil }} {
		w.image.edit(func(img *kraft.Image) { change(img.Brokers[id]) })
		if w.server.Probe(ctx, "CLIENT", id) == nil || slices.Contains(w.server.Usable("CLIENT"), id) {
			t.Errorf("broker %d is held usable", id)
		}
	}
}

// TestHangup: clients that wait for a broker are cut off, at that listener only.
func TestHangup(t *testing.T) {
	w := newWorld(t)
	hang, proceed := gateOf(t)
	for _, b := range w.brokers {
		b.on(func(h protocol.RequestHeader, _ []byte) kmsg.Response { <-hang; return echo(h) })
	}
	waiting := w.dial()
	waiting.send(1, metadataRequest())
	eventually(t, "the request is with a broker", func() bool { return len(w.upstreamRequests()) > 0 })
	if n := w.server.Hangup("OTHER"); n != 0 {
		t.Errorf("%d connections of another listener", n)
	}
	if n := w.server.Hangup("CLIENT"); n != 1 {
		t.Errorf("%d connections cut", n)
	}
	waiting.closed()
	proceed()
}
