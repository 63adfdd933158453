package e2e

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// stormBed is one broker, with a kmirror of its own in front of it, which mirrors a topic from a source meanwhile.
type stormBed struct {
	stormSize
	src, dst *testkafka.Cluster
	s        *shim
	conf     *tls.Config // of clients
	doors    []door
	base     footprint  // before the storm
	stopFlow func() int // ends the load of the source

	// redirected and served count what workers were answered about the mirror topic.
	redirected, served atomic.Int64
}

// door is an address that clients come to.
type door struct {
	addr string
	tls  bool
	// own: requests are answered by a node id of kmirror's, which leads the mirror topic and nothing else.
	own bool
	// first is the first port of the gateway, 0 for a listener of kmirror's own.
	first int
}

// told reports whether clients that came here may be told of an address.
func (d door) told(addr string) bool {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return d.first == 0 || n > d.first && n < d.first+gatewayPorts
}

// Doors by what is behind them. Those with odd numbers have TLS.
const (
	doorAny = 2 * iota // a gateway's port to bootstrap from
	doorBroker
	doorOwn
	doorOther // a listener of kmirror's own, as the one before
	doorGuest // a gateway's port in front of one of kmirror's own
	doorCount
)

// secureListener is the destination's listener with TLS.
const secureListener = "SECURE"

// newStormBed starts all of it. The mirror is under load until the test ends.
func newStormBed(t *testing.T, size stormSize) *stormBed {
	t.Helper()
	b := &stormBed{stormSize: size}
	sec := testkafka.NewSecurity(t)
	store, err := sec.Store("broker")
	if err == nil {
		b.conf, err = sec.PeerTLS("")
	}
	if err != nil {
		t.Fatal(err)
	}
	b.conf.ServerName = "127.0.0.1"
	const l = "listener.name.secure.ssl.keystore."
	b.src = testkafka.Start(t, testkafka.Options{Name: "src"})
	b.dst = testkafka.Start(t, testkafka.Options{Name: "dst", Heap: "512m", JVM: []string{"-XX:TieredStopAtLevel=4"},
		Listeners: []string{testkafka.ClientListener, secureListener, testkafka.ReplListener},
		Properties: map[string]string{"auto.create.topics.enable": "false", l + "type": "PEM", l + "location": store,
			"listener.security.protocol.map": "CONTROLLER:PLAINTEXT,CLIENT:PLAINTEXT,SECURE:SSL,REPL:PLAINTEXT"}})
	createTopic(t, b.dst, "busy", busyPartitions, nil)
	createTopic(t, b.dst, "row", 1, nil)
	createTopic(t, b.dst, "bulk", 1, nil)
	createTopic(t, b.src, mirrored, mirroredPartitions, nil)
	b.fill(t)
	produce(t, client(t, b.src), mirrored, mirroredPartitions, 100, 100)
	b.serve(t, sec)
	b.s.create(b.src)
	b.s.mirror(mirrored)
	b.stopFlow = flow(t, b.src, mirrored, mirroredPartitions, 200)
	b.mirrors()
	b.work(t, doorCount, 300*time.Millisecond)                              // what is opened once is open
	polled(10*time.Second, func() bool { return b.now(t).connections < 4 }) // kmirror's own clients come to all brokers
	b.base = b.now(t)
	return b
}

// serve starts kmirror: with and without TLS a gateway, and listeners of its own node ids. It fences itself late: the storm may keep the broker,
// which does handshakes in Java, from answering for longer than clients would put up with.
func (b *stormBed) serve(t *testing.T, sec *testkafka.Security) {
	t.Helper()
	certificate, key, err := sec.Certificate("kmirror")
	if err != nil {
		t.Fatal(err)
	}
	plain, first := gatewayYAML(t, "127.0.0.1")
	secure, second := gatewayYAML(t, "127.0.0.1")
	secure = strings.TrimPrefix(strings.Replace(secure, "name: CLIENT", "name: "+secureListener, 1), "gateway: [")
	b.s = makeShim(t, b.dst, 9001, fmt.Sprintf("%s, %s\nlimits: {memory: %dMiB, connections: %d}\nfence_after: 5m", strings.TrimSuffix(plain, "]"), secure,
		b.memory, b.connections))
	own := fmt.Sprintf("127.0.0.1:%d", portPair(t))
	b.s.rewrite("listeners:\n", fmt.Sprintf("  client: {ssl.truststore.type: PEM, ssl.truststore.location: %q}\nlisteners:\n"+
		"  - {name: %s, bind: %q, advertised: %q, protocol: SSL, tls: {certificate: %q, key: %q}}\n", sec.CA(), secureListener, own, own, certificate, key))
	b.s.start()
	at := func(first, i int) string { return fmt.Sprintf("127.0.0.1:%d", first+i) }
	b.doors = []door{
		doorAny: {addr: at(first, 0), first: first}, {addr: at(second, 0), first: second, tls: true},
		doorBroker: {addr: at(first, 1), first: first}, {addr: at(second, 1), first: second, tls: true},
		doorOwn: {addr: b.s.client, own: true}, {addr: own, own: true, tls: true},
		doorOther: {addr: nextPort(t, b.s.client), own: true}, {addr: nextPort(t, own), own: true, tls: true},
		doorGuest: {addr: at(first, 4), first: first, own: true}, {addr: at(second, 4), first: second, own: true, tls: true},
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

// dial connects to a door, with TLS where it has that.
func (b *stormBed) dial(d door) (net.Conn, error) {
	nc, err := net.DialTimeout("tcp", d.addr, patience(20*time.Second))
	if err != nil || !d.tls {
		return nc, err
	}
	secure := tls.Client(nc, b.conf)
	nc.SetDeadline(time.Now().Add(patience(20 * time.Second)))
	if err := secure.Handshake(); err != nil {
		nc.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return secure, nc.SetDeadline(time.Time{})
}

func (b *stormBed) peer(d door) (*peer, error) {
	nc, err := b.dial(d)
	if err != nil {
		return nil, err
	}
	return newPeer(nc), nil
}

// worker is a busy client. They come to all doors in turn. With TLS all clients try again for a while, as clients do: kmirror gives brokers
// five seconds for a handshake, and many at once may take the broker longer on a busy machine.
func (b *stormBed) worker(i int) (w *worker, err error) {
	w = &worker{name: fmt.Sprintf("worker-%d", i), partition: int32(i % busyPartitions), door: b.doors[i%doorCount]}
	w.peer, err = b.greeted(w.door, metadataOf("busy"))
	return w, err
}

// greeted is a client that has been answered a first request where there is TLS.
func (b *stormBed) greeted(d door, first kmsg.Request) (p *peer, err error) {
	polled(time.Minute, func() bool {
		if p, err = b.peer(d); err != nil || !d.tls {
			return err == nil
		}
		if _, err = p.ask(first); err != nil {
			p.nc.Close()
		}
		return err == nil
	})
	return p, err
}

// some is one of the doors by its number; those through two gateways, which count twice, are left out.
func (b *stormBed) some(i int) door { return b.doors[i%doorGuest] }

// footprint is what a kmirror process holds.
type footprint struct {
	connections, files, goroutines int
	resident                       int64
}

func (f footprint) String() string {
	return fmt.Sprintf("%d connections, %d files, %d goroutines, %d MiB", f.connections, f.files, f.goroutines, f.resident>>20)
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
	files, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	f.files = len(files)
	status, err := os.ReadFile(filepath.Join(proc, "status"))
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
// go: those that the beginning did not have stay for up to 40 s after their last request.
func (b *stormBed) settles(t *testing.T) {
	t.Helper()
	var f footprint
	if !polled(patience(40*time.Second), func() bool {
		f = b.now(t)
		return f.connections <= b.base.connections+1 && f.files <= b.base.files+8 && f.goroutines <= b.base.goroutines+24
	}) {
		b.s.cmd.Process.Signal(syscall.SIGQUIT) // the log tells where its goroutines are
		t.Fatalf("%s are left, %s were there before", f, b.base)
	}
}
