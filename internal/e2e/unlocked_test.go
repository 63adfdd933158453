package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// TestForeignData: what others wrote to a destination topic is never discarded unasked, and when it is discarded on request,
// no replica keeps a piece of it.
func TestForeignData(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1})
	createTopic(t, src, "orders", 1, nil)
	createTopic(t, src, "suffix", 1, nil)
	produce(t, client(t, src), "orders", 1, 300, 100)
	produce(t, client(t, src), "suffix", 1, 300, 100)
	createTopic(t, dst, "suffix", 1, nil)
	produce(t, client(t, dst), "suffix", 1, 1000, 50)
	s := newShim(t, dst, "")
	s.create(src)
	t.Run("written while kmirror was dead and the lock off", func(t *testing.T) { writtenWhileDead(t, s, src, dst) })
	t.Run("a replica that was away comes back without its old log", func(t *testing.T) {
		broker := dst.Node(3)
		if err := broker.Pause(); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "start without broker 3", func() error {
			if _, errs, code := s.run("start", "--mirror", "m", "--topics", "suffix", "--overwrite", "--yes"); code != 0 {
				return fmt.Errorf("exit %d: %s", code, errs)
			}
			return nil
		})
		s.caughtUp(src, 2, 90*time.Second, "suffix")
		if err := broker.Resume(); err != nil {
			t.Fatal(err)
		}
		s.caughtUp(src, 3, 90*time.Second, "suffix", "orders")
		sameSegments(t, src, dst, "suffix", 1, 3)
		if out := s.must("verify", "--mirror", "m"); out == "" {
			t.Error("verify says nothing")
		}
	})
}

func writtenWhileDead(t *testing.T, s *shim, src, dst *testkafka.Cluster) {
	s.mirror("orders")
	s.caughtUp(src, 3, time.Minute, "orders")
	s.kill()
	adm := kadm.NewClient(client(t, dst))
	_, err := adm.AlterTopicConfigs(timeout(t, 20*time.Second), []kadm.AlterConfig{{Op: kadm.DeleteConfig, Name: "max.message.bytes"}}, "orders")
	if err != nil {
		t.Fatal(err)
	}
	cl := client(t, dst, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	eventually(t, time.Minute, "a write without the lock", func() error {
		return cl.ProduceSync(timeout(t, 15*time.Second), &kgo.Record{Topic: "orders", Partition: 0, Value: []byte("theirs")}).FirstErr()
	})
	s.start()
	failed := func(when string) {
		t.Helper()
		eventually(t, time.Minute, "FAILED "+when, func() error {
			parts, err := s.describe("--topics", "orders")
			if err != nil {
				return err
			}
			if len(parts) != 1 || parts[0].State != "FAILED" || parts[0].Hint == nil {
				return fmt.Errorf("%+v", parts)
			}
			return nil
		})
		for _, n := range dst.Nodes() {
			if !n.Broker {
				continue
			}
			var v replicaView
			eventually(t, 30*time.Second, "view of "+n.String(), func() (err error) { v, err = viewOf(t, n, "orders", 0); return err })
			if v.end != 301 {
				t.Fatalf("%s, %s: log ends at %d, want 301: what clients wrote is gone", when, n, v.end)
			}
		}
	}
	failed("after the restart")
	s.must("start", "--mirror", "m", "--topics", "orders")
	failed("after a plain start")
	s.must("start", "--mirror", "m", "--topics", "orders", "--overwrite", "--yes")
	s.caughtUp(src, 3, 90*time.Second, "orders")
	sameSegments(t, src, dst, "orders", 1, 3)
}
