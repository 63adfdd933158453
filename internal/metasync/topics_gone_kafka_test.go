package metasync

import (
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/coordinator"
	"kmirror/internal/testkafka"
	"kmirror/protocol"
)

// TestCutOffBroker: a broker of the source that its controllers do not reach goes on telling clients what it knew. What it does not know, or
// knows by an id from before, is not taken for deleted while another broker has it.
func TestCutOffBroker(t *testing.T) {
	src := testkafka.Start(t, testkafka.Options{Name: "src", Brokers: 2, Controllers: 1,
		Properties: map[string]string{"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "1000"}})
	way := newWay(t, src.Controllers()[0])
	cut := src.Node(2)
	check(t, cut.Stop())
	config := filepath.Join(filepath.Dir(cut.Log()), "server.properties")
	text, err := os.ReadFile(config)
	check(t, err)
	through := strings.ReplaceAll(string(text), "101@"+src.Controllers()[0], "101@"+way.ln.Addr().String())
	if through == string(text) {
		t.Fatalf("no controller in %s", text)
	}
	check(t, os.WriteFile(config, []byte(through), 0o600))
	check(t, cut.Start())
	at := func(node int32, opts ...kgo.Opt) *kgo.Client {
		cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(src.Node(node).Addr(testkafka.ClientListener)))...)
		check(t, err)
		t.Cleanup(cl.Close)
		return cl
	}
	first := kadm.NewClient(at(1))
	id := func(name string) (id protocol.UUID) {
		eventually(t, name, func() bool {
			ds, err := first.ListTopics(t.Context(), name)
			id = protocol.UUID(ds[name].ID)
			return err == nil && ds[name].Err == nil
		})
		return id
	}
	made := func(name string) coordinator.Topic {
		_, err := first.CreateTopic(t.Context(), 1, 1, nil, name)
		check(t, err)
		return coordinator.Topic{Name: name, SourceTopicID: id(name)}
	}
	deleted := func(name string) {
		rs, err := first.DeleteTopics(t.Context(), name)
		check(t, err)
		check(t, rs.Error())
		eventually(t, "deleted", func() bool {
			ds, err := first.ListTopics(t.Context(), name)
			return err == nil && !ds.Has(name) || ds[name].Err != nil
		})
	}
	old := made("anew")
	beyond := kadm.NewClient(at(2))
	eventually(t, "the broker that is to be cut off knows the other", func() bool { // which may have been fenced for a moment
		ms, err := beyond.ListBrokers(t.Context())
		return err == nil && len(ms) == 2
	})
	way.cut()
	fenced := func() bool {
		ms, err := first.ListBrokers(t.Context())
		return err == nil && len(ms) == 1
	}
	eventually(t, "the cut off broker is fenced", fenced)
	late := made("late")
	deleted("anew")
	anew := made("anew")

	// Each client comes by way of the broker that is cut off.
	var j *job
	told := 0
	for range 10 {
		cl := at(2)
		j = &job{src: kadm.NewClient(cl), srcClient: cl, log: slog.New(slog.DiscardHandler)}
		lost, err := j.lost(t.Context(), []coordinator.Topic{late, anew})
		if len(lost) > 0 {
			t.Fatalf("given up because a broker that is cut off does not know better: %v", lost)
		}
		if err != nil && strings.Contains(err.Error(), "cut off") {
			told++
		}
	}
	if told < 5 {
		t.Errorf("the broker that is cut off was asked %d times of 10: that shows little", told)
	}
	// What no broker has is lost, whoever is asked.
	j.src, j.srcClient = first, at(1)
	lost, err := j.lost(t.Context(), []coordinator.Topic{{Name: "never", SourceTopicID: old.SourceTopicID}, old})
	if err != nil || !strings.Contains(lost["never"], "was deleted") || !strings.Contains(lost["anew"], "made anew") {
		t.Errorf("lost %v, %v", lost, err)
	}
}

// way is a proxy to one address that can be cut for good.
type way struct {
	ln net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	off   bool
}

func newWay(t *testing.T, to string) *way {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	w := &way{ln: ln, to: to}
	w.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { w.pass(c) })
		}
	})
	t.Cleanup(func() { w.cut(); w.wg.Wait() })
	return w
}

func (w *way) pass(c net.Conn) {
	defer c.Close()
	d, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer d.Close()
	w.mu.Lock()
	w.conns = append(w.conns, c, d)
	off := w.off
	w.mu.Unlock()
	if off {
		return
	}
	done := make(chan struct{})
	go func() { defer close(done); io.Copy(d, c); d.Close() }()
	io.Copy(c, d)
	c.Close()
	<-done
}

// cut ends all connections, and lets nobody through any more.
func (w *way) cut() {
	w.ln.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.off = true
	for _, c := range w.conns {
		c.Close()
	}
}
