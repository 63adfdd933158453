package verify

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/records"
)

// kafkaRig compares a topic of a real cluster with itself: the leader is the source, all three replicas the destination.
type kafkaRig struct {
	c      *testkafka.Cluster
	adm    *kadm.Client
	opts   []kgo.Opt
	images *images
	v      *Verifier
}

func newKafkaRig(t *testing.T) *kafkaRig {
	c := testkafka.Start(t, testkafka.Options{Brokers: 3, Properties: map[string]string{
		"log.cleaner.backoff.ms": "200", "log.segment.delete.delay.ms": "100",
	}, NodeProperties: map[int32]map[string]string{
		// Broker 3 cleans nothing while the test runs.
		3: {"log.cleaner.backoff.ms": "3600000"},
	}})
	r := &kafkaRig{c: c, opts: []kgo.Opt{kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...)}, images: &images{}}
	cl, err := kgo.NewClient(r.opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	r.adm = kadm.NewClient(cl)
	r.v, err = New(Config{
		Images: r.images, Owns: func(int32) bool { return false }, Destination: r.opts,
		Source: func(_, _ string) (Source, error) { return Source{Opts: r.opts}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.v.Close)
	return r
}

// inSync waits until all three replicas of partition 0 are in sync, publishes that image and returns the leader.
func (r *kafkaRig) inSync(t *testing.T, topic string) int32 {
	t.Helper()
	for ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second); ; {
		defer cancel()
		ts, err := r.adm.ListTopics(ctx, topic)
		if err == nil && len(ts[topic].Partitions[0].ISR) == 3 && ts[topic].Partitions[0].Leader >= 0 {
			id, p := protocol.UUID(ts[topic].ID), ts[topic].Partitions[0]
			part := &kraft.Partition{Replicas: p.Replicas, ISR: p.ISR, Leader: p.Leader}
			r.images.img = &kraft.Image{
				Topics: map[protocol.UUID]*kraft.Topic{id: {ID: id, Name: topic, Partitions: []*kraft.Partition{part}}},
				Names:  map[string]protocol.UUID{topic: id},
			}
			return p.Leader
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s is not in sync: %v %v", topic, ts, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// produce writes n records in batches of ten, one codec after the other, a third of them in transactions of which every
// second is aborted.
func (r *kafkaRig) produce(t *testing.T, topic string, n, keys int, opts ...kgo.Opt) {
	t.Helper()
	ctx := t.Context()
	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	for i, codec := range codecs {
		all := slices.Concat(r.opts, opts, []kgo.Opt{kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(codec)})
		if i == 2 {
			all = append(all, kgo.TransactionalID("verify"))
		}
		cl, err := kgo.NewClient(all...)
		if err != nil {
			t.Fatal(err)
		}
		for j := range n / len(codecs) / 10 {
			if i == 2 {
				if err := cl.BeginTransaction(); err != nil {
					t.Fatal(err)
				}
			}
			var rs []*kgo.Record
			for k := range 10 {
				rs = append(rs, kgo.KeySliceRecord(fmt.Appendf(nil, "key-%d", (j*10+k)%keys), make([]byte, 200)))
			}
			if err := cl.ProduceSync(ctx, rs...).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if i == 2 {
				if err := cl.EndTransaction(ctx, kgo.TransactionEndTry(j%2 == 0)); err != nil {
					t.Fatal(err)
				}
			}
		}
		cl.Close()
	}
}

func (r *kafkaRig) verify(t *testing.T, topic string) admin.VerifyResponse {
	t.Helper()
	return (&rig{v: r.v}).verify(t, admin.VerifyRequest{Mirror: "m", Topic: topic})
}

// One bit of a payload, altered on the disk of one stopped follower, is found; so is what a cleaner took not called a
// difference.
func TestVerifyOnKafka(t *testing.T) {
	r := newKafkaRig(t)
	if _, err := r.adm.CreateTopic(t.Context(), 1, 3, nil, "plain"); err != nil {
		t.Fatal(err)
	}
	r.produce(t, "plain", 1000, 1000)
	leader := r.inSync(t, "plain")
	got := r.verify(t, "plain")
	if got.Batches < 100 || got.Differ != 0 || got.Note != "" {
		t.Fatalf("nothing altered yet: %+v %+v", got, got.First)
	}

	victim := r.c.Node(leader%3 + 1)
	if err := victim.Stop(); err != nil {
		t.Fatal(err)
	}
	flip(t, testkafka.SegmentFiles(victim, "plain", 0)[0])
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	r.inSync(t, "plain")
	damaged := r.verify(t, "plain")
	if damaged.Batches != got.Batches || damaged.Differ != 1 || damaged.First == nil || damaged.First.Field != "payload_crc32c" {
		t.Fatalf("one bit flipped on %s: %+v, %+v", victim, damaged, damaged.First)
	}
	t.Logf("found: %+v", *damaged.First)

	segment, ratio, policy, zero := "200", "0.01", "compact", "100"
	if _, err := r.adm.CreateTopic(t.Context(), 1, 3, map[string]*string{
		"cleanup.policy": &policy, "segment.ms": &segment, "min.cleanable.dirty.ratio": &ratio, "delete.retention.ms": &zero,
	}, "compacted"); err != nil {
		t.Fatal(err)
	}
	r.produce(t, "compacted", 2000, 30)
	r.inSync(t, "compacted")
	// Compared while two cleaners work, each at its own pace, and the third does not.
	for range 300 {
		got = r.verify(t, "compacted")
		if got.Differ != 0 {
			t.Fatalf("compacted: %+v, %+v", got, got.First)
		}
		if strings.Contains(got.Note, "records compacted away") {
			t.Logf("%d batches, %s", got.Batches, got.Note)
			return
		}
		select {
		case <-t.Context().Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	t.Fatalf("no cleaner has worked: %+v", got)
}

// flip alters the last bit of the batch in the middle of a segment.
func flip(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for at < len(raw)/2 {
		b, _, err := records.Split(raw[at:])
		if err != nil {
			t.Fatal(err)
		}
		at += len(b)
	}
	raw[at-1] ^= 1
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}
