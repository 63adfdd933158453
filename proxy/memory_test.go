package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"kmirror/protocol"
)

// newLease is one whose cutting off is told by a channel.
func newLease(m *share) (*lease, chan struct{}) {
	cut := make(chan struct{}, 1)
	return &lease{m: m, cut: func() { cut <- struct{}{} }}, cut
}

func TestMemoryWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	m := &NewMemory(200).large
	ctx := t.Context()
	a, _ := newLease(m)
	b, _ := newLease(m)
	c, _ := newLease(m)
	if err := errors.Join(a.grow(ctx, 60), b.grow(ctx, 500)); err != nil { // b is the one that may go beyond
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { got <- c.grow(ctx, 50) }()
	select {
	case err := <-got:
		t.Fatalf("there was room: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	b.release()
	select {
	case err := <-got:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(soon):
		t.Fatal("what was given back was not given on")
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := b.grow(ended, 500); err == nil {
		t.Error("two are beyond the limit")
	}
	for _, l := range []*lease{a, b, c} {
		l.release()
		l.release()
	}
	if m.used != 0 || len(m.holders) != 0 || len(m.waiting) != 0 || m.first != nil {
		t.Errorf("%d used, %d holders, %d waiting", m.used, len(m.holders), len(m.waiting))
	}
}

// A higher limit lets those in that wait, a lower one takes nothing away.
func TestMemoryLimitChanges(t *testing.T) {
	t.Parallel()
	both := NewMemory(200)
	m := &both.large
	a, _ := newLease(m)
	b, _ := newLease(m)
	c, _ := newLease(m)
	if err := errors.Join(a.grow(t.Context(), 60), b.grow(t.Context(), 90)); err != nil { // b is the one that may go beyond
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { got <- c.grow(t.Context(), 50) }()
	both.SetLimit(300)
	select {
	case err := <-got:
		t.Fatalf("there was room: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	both.SetLimit(400)
	select {
	case err := <-got:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(soon):
		t.Fatal("a higher limit is not seen")
	}
	both.SetLimit(100)
	b.release()
	if m.used != 110 {
		t.Errorf("%d are held, want what a and c hold", m.used)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if a.grow(ended, 61) != nil { // the one that may go beyond
		t.Error("nobody gets on")
	}
	if b.grow(ended, 10) == nil {
		t.Error("there is room beyond the lower limit")
	}
}

// All grow at once and each has a part of what another needs: they get through one after the other.
func TestMemoryDoesNotLock(t *testing.T) {
	t.Parallel()
	m := &NewMemory(2 << 20).large
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			l, _ := newLease(m)
			defer l.release()
			for n := int64(32 << 10); n <= 4<<20; n *= 2 {
				if err := l.grow(t.Context(), n); err != nil {
					t.Error(err)
				}
				l.came.Add(n)
			}
			if err := l.read(nil); err != nil {
				t.Error(err)
			}
			m.mu.Lock()
			if m.used > m.limit+4<<20 {
				t.Errorf("%d bytes are used", m.used)
			}
			m.mu.Unlock()
		})
	}
	wg.Wait()
}

func TestMemoryCutsOffWhatIsSlow(t *testing.T) {
	t.Parallel()
	m := &NewMemory(200 << 10).large
	m.patience = 200 * time.Millisecond
	slow, cut := newLease(m)
	done, _ := newLease(m) // has come, and waits for a broker
	next, _ := newLease(m)
	if err := errors.Join(slow.grow(t.Context(), 60<<10), done.grow(t.Context(), 60<<10), done.read(nil)); err != nil {
		t.Fatal(err)
	}
	slow.came.Add(10)
	got := make(chan error, 1)
	go func() { got <- next.grow(t.Context(), 90<<10) }()
	<-cut
	var closing *closeError
	if err := slow.read(io.ErrUnexpectedEOF); !errors.As(err, &closing) || closing.kind != "memory" {
		t.Errorf("the slow one is closed for %v", err)
	}
	slow.release()
	done.release()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// TestGatewaySlowRequests: many clients stop within a request, each with as much as it has sent. Memory does not grow with them, and others
// get through.
func TestGatewaySlowRequests(t *testing.T) {
	t.Parallel()
	const limit = 4 << 20
	both := NewMemory(2 * limit)
	memory := &both.large
	memory.patience = 5 * time.Second // less, and a good client that a busy machine holds up is cut off too
	g := newGate(t, func(cfg *GatewayConfig) { cfg.Memory = both })
	req := produceRequest(9, -1, "plain")
	req.Topics[0].Partitions[0].Records = make([]byte, 1<<19)
	good := g.to(1)
	good.ask(req)
	part := binary.BigEndian.AppendUint32(nil, protocol.DefaultMaxFrame)
	part = append(part, make([]byte, 200<<10)...)
	var slow []net.Conn
	for range 60 {
		c := g.to(1)
		c.nc.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		c.nc.Write(part) // some of it, when memory is used up
		slow = append(slow, c.nc)
	}
	for range 20 {
		good.ask(req)
	}
	memory.mu.Lock()
	used := memory.used
	memory.mu.Unlock()
	if used > limit+1<<20 {
		t.Errorf("%d bytes are held", used)
	}
	for _, nc := range slow {
		nc.Close()
	}
	good.nc.Close()
	eventually(t, "all memory is given back", func() bool {
		memory.mu.Lock()
		defer memory.mu.Unlock()
		return memory.used == 0 && len(memory.waiting) == 0 && memory.first == nil
	})
}
