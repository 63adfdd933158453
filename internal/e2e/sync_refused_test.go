package e2e

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
)

// TestSourcesRefused: a source that turns out to be another cluster, and a destination that is given tiered storage.
func TestSourcesRefused(t *testing.T) {
	t.Parallel()
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	// Its controller lets topics be tiered; its broker has no remote store, which nobody asks for here.
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Controllers: 1,
		NodeProperties: map[int32]map[string]string{101: {"remote.log.storage.system.enable": "true"}}})
	const topic = "orders"
	createTopic(t, src, topic, 1, map[string]string{"retention.ms": "7000000"})
	produce(t, client(t, src), topic, 1, 200, 100)
	wire := newWire(t)
	wire.leads(src.Bootstrap("CLIENT")[0])
	s := newShim(t, dst, "")
	s.define("m", "bootstrap.servers="+wire.addr(), brisk)
	s.mirror(topic)
	s.caughtUp(src, 1, time.Minute, topic)
	t.Run("tiered", func(t *testing.T) { tieredFails(t, s, src, dst, topic) })
	t.Run("another cluster", func(t *testing.T) { anotherCluster(t, s, wire, src, dst, topic) })
}

// tieredFails: a mirror topic that is given tiered storage fails until it is taken away again.
func tieredFails(t *testing.T, s *shim, src, dst *testkafka.Cluster, topic string) {
	dst.AllowFaults("Error updating topic orders with new configuration") // the broker that has no remote store
	setConfigs(t, dst, topic, map[string]string{"remote.storage.enable": "true"})
	for _, p := range s.get(20*time.Second, "FAILED", topic) {
		if p.Error == nil || !strings.Contains(*p.Error, "remote.storage.enable") || p.Hint == nil || p.Retry != -1 {
			t.Errorf("failed for %v, hint %v, retry %d", deref(p.Error), deref(p.Hint), p.Retry)
		}
	}
	setConfigs(t, dst, topic, map[string]string{"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})
	s.verb("recover", topic)
	dst.AllowFaults("Error updating topic cold with new configuration")
	createTopic(t, src, "cold", 1, nil)
	createTopic(t, dst, "cold", 1, nil)
	setConfigs(t, dst, "cold", map[string]string{"remote.storage.enable": "true"})
	s.refusedAs(admin.ExitRefused, "INVALID_CONFIG", "start", "--mirror", "m", "--topics", "cold")
	produce(t, client(t, src), topic, 1, 50, 100)
	s.caughtUp(src, 1, 30*time.Second, topic)
}

// anotherCluster: the source's addresses lead to a cluster with a topic of the same name, its own records, configs and groups. Nothing of
// it reaches the destination, nothing there is changed, and everything goes on when they lead back.
func anotherCluster(t *testing.T, s *shim, wire *wire, src, dst *testkafka.Cluster, topic string) {
	wrong := testkafka.Start(t, testkafka.Options{Name: "wrong"})
	createTopic(t, wrong, topic, 3, map[string]string{"retention.ms": "1000"})
	produce(t, client(t, wrong), topic, 3, 5000, 10)
	commitAt(t, wrong, "app", topic, 77, 0)
	before, ends := topicConfigs(t, dst, topic), endOffsets(t, dst, topic)
	if err := src.Node(1).Kill(); err != nil {
		t.Fatal(err)
	}
	wire.leads(wrong.Bootstrap("CLIENT")[0])
	eventually(t, 30*time.Second, "that it is another cluster is shown", func() error {
		parts, err := s.describe("--topics", topic)
		if err != nil {
			return err
		}
		p := parts[0]
		if why := p.Sync["cluster"].Error; why == nil || !strings.Contains(*why, "another cluster") || !strings.Contains(*why, "kmirror alter") {
			return fmt.Errorf("sync: %v", deref(why))
		}
		if p.Error == nil || !strings.Contains(*p.Error, "another cluster") {
			return fmt.Errorf("partition: %v", deref(p.Error))
		}
		return nil
	})
	time.Sleep(3 * time.Second) // six rounds
	if now := topicConfigs(t, dst, topic); !maps.Equal(now, before) {
		t.Errorf("configs were %v and are %v", before, now)
	}
	if now := endOffsets(t, dst, topic); !maps.Equal(now, ends) {
		t.Errorf("ends were %v and are %v", ends, now)
	}
	if rs, err := kadm.NewClient(client(t, dst)).FetchOffsets(timeout(t, 20*time.Second), "app"); err == nil && len(rs) > 0 {
		t.Errorf("group of the wrong cluster: %v", rs)
	}
	s.get(time.Second, "MIRRORING", topic)
	eventually(t, 30*time.Second, "that what is known of the source is old", func() error {
		out, _, _ := s.run("describe", "--topics", topic)
		if !strings.Contains(out, ">=0") || !strings.Contains(out, "The source of mirror m has not answered for") {
			return errors.New(out)
		}
		return nil
	})
	s.refusedAs(admin.ExitRefused, "INVALID_REQUEST", "alter", "--mirror", "m", "--mirror-config", s.properties(wrong))
	if err := src.Node(1).Start(); err != nil {
		t.Fatal(err)
	}
	wire.leads(src.Bootstrap("CLIENT")[0])
	produce(t, client(t, src), topic, 1, 50, 100)
	s.caughtUp(src, 1, time.Minute, topic)
	sameSegments(t, src, dst, topic, 1, 1)
}
