package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// TestBrokersFence is what claims rest on: idempotent batches with the epochs of a transactional id.
func TestBrokersFence(t *testing.T) {
	for _, version := range []string{"", testkafka.Previous} {
		t.Run("version "+version, func(t *testing.T) {
			c := testkafka.Start(t, testkafka.Options{Name: "fence", Version: version})
			cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...), kgo.MetadataMinAge(freshness))
			must(t, err)
			defer cl.Close()
			_, err = kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, nil, "raw")
			must(t, err)
			life, end := context.WithCancel(context.Background())
			s := newSender(life, cl, "raw", slog.New(slog.DiscardHandler))
			defer func() { end(); s.close() }()
			k := &cluster{topic: "raw", client: cl, sender: s}
			fencing(t, k)
		})
	}
}

func fencing(t *testing.T, k *cluster) {
	ctx := limit(t, 60*time.Second)
	write := func(p producer) error {
		_, err := k.sender.send(ctx, 0, appendBatch(nil, p, time.Now(), []record{{keyBytes: []byte("k"), value: []byte("v")}}))
		return err
	}
	next := func() producer {
		p, err := k.newProducer(ctx, 0)
		must(t, err)
		return p
	}
	first := next()
	must(t, write(first))
	second := next()
	if second.id != first.id || second.epoch != first.epoch+1 {
		t.Fatalf("%+v after %+v", second, first)
	}
	first.seq++
	if err := write(first); err != nil {
		t.Errorf("raising the epoch alone fences nobody: %v", err)
	}
	if err := write(first); err != nil {
		t.Errorf("the same batch again is recognised: %v", err)
	}
	must(t, write(second))
	first.seq++
	if err := write(first); !errors.Is(err, kerr.InvalidProducerEpoch) {
		t.Errorf("the stale owner's batch: %v", err)
	}
	second.seq++
	must(t, write(second))
	for range 2 { // who takes over may have to do again what another began
		must(t, k.closeProducer(ctx, 0, producer{id: second.id, epoch: math.MaxInt16}, claim{owner: named("b")}))
	}
	second.seq++
	if err := write(second); !errors.Is(err, kerr.InvalidProducerEpoch) {
		t.Errorf("after the producer id was closed: %v", err)
	}
}
