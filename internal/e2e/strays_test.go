package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// TestOthersTopics: what others create while kmirror is a broker, the clusters' own topics included, never stays on its node
// ids and works, with the cordon (4.4) and without (4.1), beside a mirror that does stay.
func TestOthersTopics(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	createTopic(t, src, "orders", 3, nil)
	produce(t, client(t, src), "orders", 3, 200, 100)
	for _, version := range testkafka.Versions() {
		t.Run(version, func(t *testing.T) { othersTopics(t, src, version) })
	}
}

func othersTopics(t *testing.T, src *testkafka.Cluster, version string) {
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Version: version, Brokers: 3, Controllers: 1,
		Properties: map[string]string{"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "8"}})
	s := newShim(t, dst, "")
	s.create(src)
	s.mirror("orders")

	real, shim := client(t, dst), clientAt(t, s.client)
	topics := []string{"__consumer_offsets", "__transaction_state"}
	for i, cl := range []*kgo.Client{real, shim} {
		for rf := int16(1); rf <= 3; rf++ {
			name := fmt.Sprintf("others-%d-%d", i, rf)
			made(t, name, func() error { // without waiting for leaders: it is written to before the move
				rs, err := kadm.NewClient(cl).CreateTopics(timeout(t, 30*time.Second), 4, rf, nil, name)
				if err == nil {
					err = rs.Error()
				}
				return err
			})
			topics = append(topics, name)
		}
	}
	for _, name := range topics[2:] {
		work(t, real, name)
	}
	transact(t, dst, "others", "others-0-3", 0, 5, "ca")

	eventually(t, time.Minute, "nothing of others on our node ids", func() error {
		ts, err := kadm.NewClient(real).ListTopicsWithInternal(timeout(t, 10*time.Second))
		if err != nil {
			return err
		}
		for _, name := range topics {
			if !ts.Has(name) {
				return fmt.Errorf("%s is not there", name)
			}
			for _, p := range ts[name].Partitions {
				if slices.Contains(p.Replicas, 9001) || slices.Contains(p.Replicas, 9002) || len(p.ISR) < len(p.Replicas) {
					return fmt.Errorf("%s-%d: replicas %v, ISR %v", name, p.Partition, p.Replicas, p.ISR)
				}
			}
		}
		return nil
	})
	for _, name := range topics[2:] {
		work(t, real, name) // nothing that was written before the move is lost
		offs := endOffsets(t, dst, name)
		for p := range int32(4) {
			if got := offs[tp{name, p}]; got < 2 {
				t.Errorf("%s-%d ends at %d: a record is gone", name, p, got)
			}
		}
	}
	s.caughtUp(src, 3, time.Minute, "orders")
	sameSegments(t, src, dst, "orders", 3, 3)
}

// work produces a record to each partition and commits a group's offset.
func work(t *testing.T, cl *kgo.Client, topic string) {
	t.Helper()
	ctx := timeout(t, time.Minute)
	for p := range int32(4) {
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Partition: p, Value: []byte("v")}).FirstErr(); err != nil {
			t.Fatalf("produce to %s-%d: %v", topic, p, err)
		}
	}
	offs := kadm.Offsets{}
	offs.AddOffset(topic, 0, 1, -1)
	eventually(t, time.Minute, "commit of group g-"+topic, func() error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return kadm.NewClient(cl).CommitAllOffsets(ctx, "g-"+topic, offs)
	})
}

// clientAt is a franz-go client that bootstraps at one address.
func clientAt(tb testing.TB, addr string) *kgo.Client {
	tb.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cl.Close)
	return cl
}
