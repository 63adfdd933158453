package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// oldBed is a cluster of a version before 4 whose two brokers can be watched, with a gateway alone in front of it.
type oldBed struct {
	gatewayBed
	keeper bool   // it has ZooKeeper
	trace  string // the gateway's
	own    []int  // processes of kmirror that may come to brokers, serve's not among them
}

// TestOldBrokers has clients of all ages work through a gateway alone, which has no controllers to learn brokers from, in front of
// brokers of the oldest version that Kafka's clients of today speak to; with make long of later ones too, the last with KRaft.
func TestOldBrokers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	testkafka.EnsureKcat(t)
	for _, version := range []string{testkafka.OldestWithZooKeeper, testkafka.LastOfTwo, testkafka.LaterWithZooKeeper, testkafka.LastOfThree} {
		t.Run(version, func(t *testing.T) {
			if version != testkafka.OldestWithZooKeeper {
				onlyInLong(t)
			}
			oldBrokersOn(t, version)
		})
	}
}

func oldBrokersOn(t *testing.T, version string) {
	b := &oldBed{keeper: version != testkafka.LastOfThree, gatewayBed: gatewayBed{doors: map[int32]*doorman{}, dialed: map[string]bool{}}}
	advertised := map[int32]map[string]string{}
	for id := int32(1); id <= 2; id++ {
		b.doors[id] = newDoorman(t)
		advertised[id] = map[string]string{testkafka.ClientListener: b.doors[id].ln.Addr().String()}
	}
	o := testkafka.Options{Name: "old", Version: version, ZooKeeper: b.keeper, Brokers: 2, Advertised: advertised}
	if !b.keeper {
		o.Controllers = 1 // both brokers are stopped
	}
	b.dst = testkafka.Start(t, o)
	for id, d := range b.doors {
		d.leadsTo(b.dst.Node(id).Addr(testkafka.ClientListener))
	}
	// One broker comes later. The other tells of it until the controller has noticed, and that may have to be elected first.
	if err := b.dst.Node(2).Stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "broker 1 alone", func() error { return tellsOf(b.dst.Node(1).Addr(testkafka.ClientListener), 1) })
	b.serve(t)
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
		long bool
	}{
		{"preflight", b.looks, false}, {"a broker comes", b.comes, false}, {"versions", b.versions, false}, {"kcat", b.kcats, false},
		{"message formats", b.formats, false}, {"franz-go", b.works, false}, {"Kafka's tools", b.oldTools, false}, {"trace", b.traced, false},
		{"brokers restart", b.restarts, true}, {"a broker moves", b.elsewhere, true},
	} {
		if step.long && !inLong() {
			continue
		}
		if !t.Run(step.name, step.run) {
			break // the later ones build on it
		}
	}
	for id, d := range b.doors {
		for _, line := range d.strangers(append(b.own, b.s.cmd.Process.Pid, os.Getpid())...) {
			t.Errorf("broker %d: %s", id, line)
		}
		if d.cameFrom(b.s.cmd.Process.Pid) == 0 {
			t.Errorf("broker %d: kmirror never came, so the watch sees nothing", id)
		}
	}
	b.mu.Lock()
	for addr := range b.dialed {
		if !b.isGateway(addr) {
			t.Errorf("franz-go dialled %s", addr)
		}
	}
	b.mu.Unlock()
	if err := b.s.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	text := mustRead(t, b.trace)
	for _, part := range []string{"> Produce v0", "> Produce v2", "> Fetch v0", "> ApiVersions v3", "< ApiVersions v3(as v0)", "!UNSUPPORTED_VERSION"} {
		if !strings.Contains(text, part) && (version == testkafka.OldestWithZooKeeper || !strings.Contains(part, "ApiVersions v3(") && part[0] != '!') {
			t.Errorf("%q is not in the trace", part)
		}
	}
}

// serve starts kmirror with a gateway and nothing else: brokers are known by the bootstrap servers alone.
func (b *oldBed) serve(t *testing.T) {
	b.s, b.first = aloneGateway(t, b.dst, "", "127.0.0.1", b.doors[1].ln.Addr().String(), b.doors[2].ln.Addr().String())
	b.addr, b.trace = b.s.client, filepath.Join(b.s.dir, "trace.log")
	b.s.start()
	eventually(t, 30*time.Second, "the log says that it is ready", func() error {
		if !strings.Contains(mustRead(t, b.s.log), "msg=ready") {
			return errors.New("it does not")
		}
		return nil
	})
}

// told is what kcat, asking any broker, is told: the brokers' ids by address, without those that are not the gateway's.
func (b *oldBed) told(t *testing.T, at string) map[string]bool {
	t.Helper()
	out, err := testkafka.Kcat(timeout(t, 30*time.Second), "-L", "-b", at).CombinedOutput()
	if err != nil {
		t.Logf("kcat -L: %v\n%s", err, out)
	}
	all := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		var id int32
		var addr string
		if n, _ := fmt.Sscanf(strings.TrimSpace(line), "broker %d at %s", &id, &addr); n != 2 {
			continue
		}
		if addr = strings.TrimSuffix(addr, " (controller)"); addr != b.port(id) {
			t.Errorf("kcat is told that broker %d is at %s, want %s", id, addr, b.port(id))
		}
		all[fmt.Sprint(id)] = true
	}
	return all
}

// port is a broker's address at the gateway.
func (b *oldBed) port(id int32) string { return fmt.Sprintf("127.0.0.1:%d", b.first+int(id)) }

// comes: a broker that was not there when kmirror started gets its port.
func (b *oldBed) comes(t *testing.T) {
	if got := b.told(t, b.addr); len(got) != 1 || !got["1"] {
		t.Fatalf("told of brokers %v", got)
	}
	if nc, err := net.Dial("tcp", b.port(2)); err == nil {
		nc.Close()
		t.Error("broker 2 has a port before it was seen")
	}
	if err := b.dst.Node(2).Start(); err != nil {
		t.Fatal(err)
	}
	b.reached(t, 1, 2)
}

// reached waits until each broker answers at its port of the gateway and is told of there.
func (b *oldBed) reached(t *testing.T, ids ...int32) {
	t.Helper()
	eventually(t, time.Minute, fmt.Sprintf("brokers %v at the gateway", ids), func() error {
		for _, id := range ids {
			if err := tellsOf(b.port(id), 2); err != nil {
				return fmt.Errorf("broker %d: %w", id, err)
			}
		}
		return nil
	})
}

// tellsOf asks whoever is at an address for brokers, and wants so many.
func tellsOf(addr string, brokers int) error {
	req, resp := kmsg.NewPtrMetadataRequest(), kmsg.NewPtrMetadataResponse()
	req.Version, resp.Version, req.Topics = 1, 1, []kmsg.MetadataRequestTopic{}
	body, err := exchanged(addr, req)
	if err == nil {
		err = resp.ReadFrom(body)
	}
	if err == nil && len(resp.Brokers) != brokers {
		err = fmt.Errorf("it tells of %d brokers", len(resp.Brokers))
	}
	return err
}

// restarts: both brokers go and come back, and clients that were at work go on.
func (b *oldBed) restarts(t *testing.T) {
	cl := b.client(t, kgo.RecordRetries(1000), kgo.ConsumeTopics("kept"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if _, err := kadm.NewClient(cl).CreateTopic(timeout(t, 20*time.Second), 2, 2, nil, "kept"); err != nil {
		t.Fatal(err)
	}
	ctx, sent := timeout(t, 8*time.Minute), 0 // two starts of brokers take minutes on a busy machine
	send := func() {
		for p := range int32(2) {
			if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "kept", Partition: p, Value: []byte("kept")}).FirstErr(); err != nil {
				t.Fatalf("record %d: %v", sent, err)
			}
			sent++
		}
	}
	send()
	if err := b.dst.Node(2).Stop(); err != nil {
		t.Fatal(err)
	}
	send()
	// Nobody answers any more: what is known stays.
	if err := b.dst.Node(1).Stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "kmirror has asked in vain", func() error {
		if !strings.Contains(mustRead(t, b.s.log), "those known last stay") {
			return errors.New("it does not say so")
		}
		return nil
	})
	for id := int32(1); id <= 2; id++ {
		if nc, err := net.Dial("tcp", b.port(id)); err != nil {
			t.Errorf("the port of broker %d is closed: %v", id, err)
		} else {
			nc.Close()
		}
	}
	for _, id := range []int32{1, 2} {
		if err := b.dst.Node(id).Start(); err != nil {
			t.Fatal(err)
		}
	}
	send()
	for got := 0; got < sent && ctx.Err() == nil; {
		cl.PollFetches(ctx).EachRecord(func(*kgo.Record) { got++ })
	}
	if ctx.Err() != nil {
		t.Error("not all records came")
	}
	b.reached(t, 1, 2)
}

// elsewhere: a broker comes back at another address, and keeps its port at the gateway.
func (b *oldBed) elsewhere(t *testing.T) {
	n := b.dst.Node(2)
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	was := b.doors[2]
	b.doors[2] = newDoorman(t)
	b.doors[2].leadsTo(n.Addr(testkafka.ClientListener))
	if err := n.Advertise(testkafka.ClientListener, b.doors[2].ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	was.leadsTo("127.0.0.1:1") // nobody
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	b.reached(t, 1, 2)
	if lines := was.strangers(append(b.own, b.s.cmd.Process.Pid, os.Getpid())...); len(lines) > 0 {
		t.Error(lines)
	}
}
