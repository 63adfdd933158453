package proxy

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// TestWhoLeftKeepsNoPlace: a client that leaves while its connection waits for a broker, or for its time, is noticed although more of what
// it sent has not been read.
func TestWhoLeftKeepsNoPlace(t *testing.T) {
	t.Parallel()
	silent := func(protocol.RequestHeader, []byte) kmsg.Response { return nil }
	t.Run("full line", func(t *testing.T) {
		t.Parallel()
		g := newGate(t)
		g.brokers[1].on(silent)
		c := g.to(1)
		for range maxInFlight + 3 {
			c.send(1, kmsg.NewPtrListGroupsRequest())
		}
		eventually(t, "the line is full", func() bool { return len(g.gotBy(1)) >= maxInFlight })
		c.nc.Close()
		eventually(t, "nobody is connected", func() bool { return connected(g.gw.s) == 0 })
	})
	t.Run("held fetch", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.setISR(node)
		req := fetchRequest(13, "m", 20)
		req.MaxWaitMillis = 60_000
		c := w.dial()
		c.send(1, req)
		c.send(2, req)
		eventually(t, "somebody is connected", func() bool { return connected(w.server) == 1 })
		time.Sleep(200 * time.Millisecond)
		c.nc.Close()
		eventually(t, "nobody is connected", func() bool { return connected(w.server) == 0 })
	})
}

// TestWhoLeftWaitsForNoMemory: nor does one whose request waits for memory that another client's has.
func TestWhoLeftWaitsForNoMemory(t *testing.T) {
	t.Parallel()
	memory := scarce()
	memory.common.patience = time.Hour
	w := newWorld(t, func(_ *world, cfg *Config) { cfg.Memory = memory })
	frame := (&client{id: "test"}).frame(1, paddedVersions())
	var there, gone []*client
	for range 3 { // two use all of it, the third goes beyond
		there = append(there, w.dial())
		there[len(there)-1].write(frame[:len(frame)-1])
	}
	holders := func() int {
		memory.common.mu.Lock()
		defer memory.common.mu.Unlock()
		return len(memory.common.holders)
	}
	eventually(t, "memory is used up", func() bool { return holders() == len(there) })
	for range 5 {
		gone = append(gone, w.dial())
		gone[len(gone)-1].write(frame)
	}
	eventually(t, "all are connected", func() bool { return connected(w.server) == len(there)+len(gone) })
	for _, c := range gone {
		c.nc.Close()
	}
	eventually(t, "who left does not wait", func() bool { return connected(w.server) == len(there) })
	if n := holders(); n != len(there) {
		t.Errorf("%d hold memory", n)
	}
}

func connected(s *Server) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}
