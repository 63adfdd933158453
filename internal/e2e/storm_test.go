package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// stormSize is how much of everything.
type stormSize struct {
	idle, busy, comeAndGo     int
	slowReaders, slowWriters  int
	memory                    int // limits.memory, MiB
	connections               int // limits.connections
	busyFor, slowFor, fuzzFor time.Duration
}

// stormBed is one broker, with a kmirror of its own in front of it: a gateway, and listeners of its own node ids.
type stormBed struct {
	stormSize
	dst     *testkafka.Cluster
	s       *shim
	gateway []string // addresses of the bootstrap port and of the broker's
	own     []string // those of kmirror's node ids
	first   int
	base    footprint // before the storm
}

// footprint is what a kmirror process holds.
type footprint struct {
	connections, files, goroutines int
	resident                       int64
}

func (f footprint) String() string {
	return fmt.Sprintf("%d connections, %d files, %d goroutines, %d MiB", f.connections, f.files, f.goroutines, f.resident>>20)
}

// TestStorm has many clients, and many that are none, come to a gateway and to listeners of kmirror's own at the same time. TestLoad, which
// is more of it, has the sizes that are promised.
func TestStorm(t *testing.T) {
	storm(t, stormSize{idle: 150, busy: 20, comeAndGo: 600, slowReaders: 10, slowWriters: 40, memory: 64, connections: 200,
		busyFor: 2 * time.Second, slowFor: 2 * time.Second, fuzzFor: 5 * time.Second})
}

// TestLoad is run by make load, without the race detector, so that memory is kmirror's.
func TestLoad(t *testing.T) {
	onlyWith(t, "KMIRROR_LOAD", "load")
	storm(t, stormSize{idle: 1000, busy: 200, comeAndGo: 5000, slowReaders: 100, slowWriters: 200, memory: 256, connections: 800,
		busyFor: 30 * time.Second, slowFor: 20 * time.Second, fuzzFor: 5 * time.Minute})
}

func storm(t *testing.T, size stormSize) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	b := &stormBed{stormSize: size}
	b.dst = testkafka.Start(t, testkafka.Options{Name: "dst", Heap: "512m", Properties: map[string]string{"auto.create.topics.enable": "false"}})
	createTopic(t, b.dst, "busy", busyPartitions, nil)
	createTopic(t, b.dst, "row", 1, nil)
	createTopic(t, b.dst, "bulk", 1, nil)
	b.fill(t)
	yaml, first := gatewayYAML(t, "127.0.0.1")
	b.first, b.gateway = first, []string{fmt.Sprintf("127.0.0.1:%d", first), fmt.Sprintf("127.0.0.1:%d", first+1)}
	b.s = newShim(t, b.dst, yaml+fmt.Sprintf("\nlimits: {memory: %dMiB, connections: %d}", size.memory, size.connections))
	b.own = []string{b.s.client, nextPort(t, b.s.client)}
	b.work(t, 4, 300*time.Millisecond)                                      // what is opened once is open
	polled(10*time.Second, func() bool { return b.now(t).connections < 4 }) // kmirror's own clients come to all brokers
	b.base = b.now(t)
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"idle and busy", b.crowd}, {"acks 0", b.row}, {"too many", b.tooMany}, {"come and go", b.comeAndGoAll}, {"slow readers", b.slowRead},
		{"slow requests", b.slowWrite}, {"fuzz", b.fuzz},
	} {
		t.Run(step.name, func(t *testing.T) {
			begin := time.Now()
			step.run(t)
			b.settles(t)
			t.Logf("%s: %s", time.Since(begin).Round(time.Millisecond), b.now(t))
		})
	}
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

// fill writes what slow readers ask for: 32 MiB in batches of 512 KiB.
func (b *stormBed) fill(t *testing.T) {
	value := make([]byte, 512<<10)
	cl := client(t, b.dst, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(0))
	for range 64 {
		if err := cl.ProduceSync(timeout(t, time.Minute), &kgo.Record{Topic: "bulk", Value: value}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// gauges reads a metric, summed up over its labels but for the brokers' own listener.
func (s *shim) gauges(name string) (sum int, err error) {
	resp, err := http.Get("http://" + s.http + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' || strings.Contains(rest, "REPL") { // brokers come there by themselves
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
		if err != nil {
			return 0, err
		}
		sum += int(f)
	}
	return sum, nil
}

// now measures.
func (b *stormBed) now(t *testing.T) (f footprint) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", b.s.cmd.Process.Pid)
	files, err := os.ReadDir(proc + "fd")
	if err != nil {
		t.Fatal(err)
	}
	f.files = len(files)
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		t.Fatal(err)
	}
	// Without the pages of the binary itself.
	if _, rest, ok := strings.Cut(string(status), "RssAnon:"); ok {
		var kib int64
		fmt.Sscan(rest, &kib)
		f.resident = kib << 10
	}
	http.DefaultClient.CloseIdleConnections()
	f.goroutines, err = b.s.gauges("go_goroutines")
	if err == nil {
		f.connections, err = b.s.gauges("kmirror_connections")
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// settles wants connections, files and goroutines to be as many as in the beginning, but for some of kmirror's own clients, which come and
// go.
func (b *stormBed) settles(t *testing.T) {
	t.Helper()
	var f footprint
	if !polled(20*time.Second, func() bool {
		f = b.now(t)
		return f.connections <= b.base.connections+1 && f.files <= b.base.files+8 && f.goroutines <= b.base.goroutines+24
	}) {
		b.s.cmd.Process.Signal(syscall.SIGQUIT) // the log tells where its goroutines are
		t.Fatalf("%s are left, %s were there before", f, b.base)
	}
}

// told reports whether clients may be told of an address.
func (b *stormBed) told(addr string) bool {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return n > b.first && n < b.first+gatewayPorts
}

// worker is a busy client. Those with odd numbers come to a listener of kmirror's own.
func (b *stormBed) worker(i int) (*worker, error) {
	w := &worker{name: fmt.Sprintf("worker-%d", i), partition: int32(i % busyPartitions), told: b.told}
	addr := b.gateway[i/2%2]
	if w.own = i%2 == 1; w.own {
		addr, w.told = b.own[i/2%2], func(string) bool { return true }
	}
	var err error
	w.peer, err = newPeer(addr)
	return w, err
}

// all are the addresses that clients come to.
func (b *stormBed) all() []string { return slices.Concat(b.gateway, b.own) }

// crowd: idle and busy clients at once. The idle ones are still served in the end.
func (b *stormBed) crowd(t *testing.T) {
	before := b.now(t)
	var idle []*peer
	for i := range b.idle {
		p, err := newPeer(b.all()[i%4])
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

// row: 10,000 records without acknowledgement over one connection, twice. All are there, in their order.
func (b *stormBed) row(t *testing.T) {
	const n = 10_000
	for turn, addr := range []string{b.gateway[1], b.own[0]} {
		p, err := newPeer(addr)
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
	for next < 2*n && ctx.Err() == nil && !t.Failed() {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if string(r.Value) != fmt.Sprint(next) {
				t.Errorf("%s came, want %d", r.Value, next)
			}
			next++
		})
	}
	if next != 2*n {
		t.Errorf("%d of %d records", next, 2*n)
	}
}

// tooMany: beyond limits.connections new ones are closed without a byte, and the others are served.
func (b *stormBed) tooMany(t *testing.T) {
	const excess, left = 50, 10 // a few connections of the step before may still be there
	var peers []*peer
	for range b.connections + excess {
		p, err := newPeer(b.gateway[1])
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
		p.nc.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		switch _, err := p.br.Read(make([]byte, 1)); {
		case err == io.EOF:
			closed++
		case !errors.Is(err, os.ErrDeadlineExceeded):
			t.Errorf("connection %d: %v", i, err)
		}
	}
	w, err := b.worker(1) // listeners of kmirror's own have a limit of their own
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
		lines < 1 || lines > 3 {
		t.Errorf("%d connections were closed, %d were too many; %d lines in the log, %v", closed, excess, lines, err)
	}
}
