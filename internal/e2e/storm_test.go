package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// stormSize is how much of everything.
type stormSize struct {
	idle, busy, comeAndGo     int
	unacked                   int // records without acknowledgement, through each of four doors
	slowReaders, slowWriters  int
	memory                    int // limits.memory, MiB
	connections               int // limits.connections
	busyFor, slowFor, fuzzFor time.Duration
}

// TestStorm has many clients, and many that are none, come to a gateway and to listeners of kmirror's own at the same time. TestLoad, which
// is more of it, has the sizes that are promised.
func TestStorm(t *testing.T) {
	storm(t, stormSize{idle: 150, busy: 20, comeAndGo: 600, unacked: 5000, slowReaders: 10, slowWriters: 40, memory: 64, connections: 200,
		busyFor: 2 * time.Second, slowFor: 2 * time.Second, fuzzFor: 5 * time.Second})
}

// TestLoad is run by make load, without the race detector, so that memory is kmirror's.
func TestLoad(t *testing.T) {
	onlyWith(t, "KMIRROR_LOAD", "load")
	storm(t, stormSize{idle: 1000, busy: 200, comeAndGo: 5000, unacked: 10_000, slowReaders: 100, slowWriters: 200, memory: 256, connections: 800,
		busyFor: 30 * time.Second, slowFor: 20 * time.Second, fuzzFor: 5 * time.Minute})
}

func storm(t *testing.T, size stormSize) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	b := newStormBed(t, size)
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"idle and busy", b.crowd}, {"acks 0", b.row}, {"too many", b.tooMany}, {"come and go", b.comeAndGoAll}, {"handshakes", b.handshakes},
		{"slow readers", func(t *testing.T) { b.slowRead(t, b.doors[doorBroker], b.slowReaders, 5) }},
		{"slow readers with TLS", func(t *testing.T) { b.slowRead(t, b.doors[doorBroker+1], 2*b.slowReaders, 1) }},
		{"slow requests", b.slowWrite}, {"fuzz", b.fuzz},
	} {
		t.Run(step.name, func(t *testing.T) {
			begin := time.Now()
			step.run(t)
			b.settles(t)
			b.mirrors()
			t.Logf("%s: %s", time.Since(begin).Round(time.Millisecond), b.now(t))
		})
	}
	b.intact(t)
	if err := b.s.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	out, err := os.ReadFile(b.s.log)
	for _, sign := range []string{"panic", "DATA RACE", "fatal error", "level=ERROR"} {
		if i := strings.Index(string(out), sign); err != nil || i >= 0 {
			t.Errorf("%v, kmirror's log: %.3000s", err, out[max(0, i-200):])
		}
	}
}

// crowd: idle and busy clients at once. The idle ones are still served in the end.
func (b *stormBed) crowd(t *testing.T) {
	before := b.now(t)
	var idle []*peer
	for i := range b.idle {
		p, err := b.greeted(b.some(i), versionsOf())
		if err == nil {
			idle = append(idle, p)
			_, err = p.ask(versionsOf())
		}
		if err != nil {
			t.Fatalf("idle client %d: %v", i, err)
		}
	}
	quiet := b.now(t)
	rounds := b.work(t, b.busy, b.busyFor)
	busy := b.now(t)
	for i, p := range idle {
		if _, err := p.ask(metadataOf("busy")); err != nil {
			t.Errorf("idle client %d: %v", i, err)
		}
		p.nc.Close()
	}
	t.Logf("before %s; %d idle clients %s; %d busy ones %s, %d rounds", before, b.idle, quiet, b.busy, busy, rounds)
	if per := (quiet.resident - before.resident) / int64(b.idle); per > 200<<10 && !raceEnabled {
		t.Errorf("an idle client costs %d KiB", per>>10)
	}
}

// work has n workers do rounds for a time and returns how many they did.
func (b *stormBed) work(t *testing.T, n int, d time.Duration) (rounds int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	end := time.Now().Add(d)
	for i := range n {
		wg.Go(func() {
			w, err := b.worker(i)
			for err == nil && time.Now().Before(end) {
				err = w.round()
			}
			if err != nil {
				t.Error(err)
				return
			}
			w.nc.Close()
			mu.Lock()
			rounds += w.n
			mu.Unlock()
			b.redirected.Add(w.redirected)
			b.served.Add(w.served)
		})
	}
	wg.Wait()
	return rounds
}

func versionsOf() *kmsg.ApiVersionsRequest {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 3, "peer", "1"
	return req
}

// row: records without acknowledgement over one connection, through one door after the other. All are there, in their order.
func (b *stormBed) row(t *testing.T) {
	n := b.unacked
	doors := []door{b.doors[doorBroker], b.doors[doorBroker+1], b.doors[doorOwn], b.doors[doorOwn+1]}
	for turn, d := range doors {
		p, err := b.greeted(d, metadataOf("row"))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < n; i += 100 {
			var reqs []kmsg.Request
			for j := range 100 {
				reqs = append(reqs, produceOf("row", 0, 0, fmt.Appendf(nil, "%d", turn*n+i+j)))
			}
			if err := p.send(reqs...); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.ask(metadataOf("row")); err != nil {
			t.Errorf("after %d requests without reply: %v", n, err)
		}
		p.nc.Close()
	}
	cl := client(t, b.dst, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"row": {0: kgo.NewOffset().AtStart()}}))
	next, ctx := 0, timeout(t, time.Minute)
	for next < len(doors)*n && ctx.Err() == nil && !t.Failed() {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if string(r.Value) != fmt.Sprint(next) {
				t.Errorf("%s came, want %d", r.Value, next)
			}
			next++
		})
	}
	if next != len(doors)*n {
		t.Errorf("%d of %d records", next, len(doors)*n)
	}
}

// tooMany: beyond limits.connections new ones are closed without a byte, and the others are served.
func (b *stormBed) tooMany(t *testing.T) {
	const excess, left = 50, 10 // a few connections of the step before may still be there
	begin := time.Now()
	var peers []*peer
	for range b.connections + excess {
		p, err := b.peer(b.doors[doorBroker])
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, p)
	}
	closed := 0
	for i, p := range peers {
		if i < b.connections-left {
			if _, err := p.ask(versionsOf()); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
			continue
		}
		wait := 300 * time.Millisecond
		if i >= b.connections { // this one is closed, if not at once
			wait = patience(10 * time.Second)
		}
		p.nc.SetReadDeadline(time.Now().Add(wait))
		switch _, err := p.br.Read(make([]byte, 1)); {
		case err == io.EOF:
			closed++
		case !errors.Is(err, os.ErrDeadlineExceeded):
			t.Errorf("connection %d: %v", i, err)
		}
	}
	w, err := b.worker(doorOwn) // listeners of kmirror's own have a limit of their own
	if err == nil {
		err = w.round()
	}
	if err != nil {
		t.Error(err)
	} else {
		w.nc.Close()
	}
	for _, p := range peers {
		p.nc.Close()
	}
	out, err := os.ReadFile(b.s.log)
	if lines := strings.Count(string(out), "connection limit reached"); err != nil || closed < excess || closed > excess+left ||
		lines < 1 || lines > 2+int(time.Since(begin)/(10*time.Second)) {
		t.Errorf("%d connections were closed, %d were too many; %d lines in the log, %v", closed, excess, lines, err)
	}
}
