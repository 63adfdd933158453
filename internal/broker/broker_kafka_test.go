package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// kafkaBroker is a Broker that runs against a real cluster until stopped.
type kafkaBroker struct {
	*Broker
	t      *testing.T
	cancel context.CancelFunc
	done   chan error
}

func kafkaConfig(t *testing.T, c *testkafka.Cluster, ids ...int32) Config {
	cfg := Config{
		ClusterID: c.ID(), Bootstrap: c.Bootstrap(testkafka.ClientListener), Controllers: c.Controllers(),
		InterBrokerListener: testkafka.ReplListener,
		Log:                 slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, id := range ids {
		n := Node{ID: id}
		for _, name := range []string{testkafka.ClientListener, testkafka.ReplListener} {
			port, err := testkafka.FreePort()
			if err != nil {
				t.Fatal(err)
			}
			n.Listeners = append(n.Listeners, Listener{Name: name, Host: "127.0.0.1", Port: uint16(port)})
		}
		cfg.Nodes = append(cfg.Nodes, n)
	}
	return cfg
}

func startKafka(t *testing.T, cfg Config) *kafkaBroker {
	t.Helper()
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &kafkaBroker{b, t, cancel, make(chan error, 1)}
	go func() { k.done <- b.Run(ctx) }()
	t.Cleanup(func() { k.stop() })
	return k
}

func (k *kafkaBroker) stop() {
	k.cancel()
	if err, ok := <-k.done; ok {
		if err != nil {
			k.t.Error("Run:", err)
		}
		close(k.done)
	}
}

func (k *kafkaBroker) ready(within time.Duration) {
	k.t.Helper()
	eventually(k.t, within, "ready", func() error { return k.Ready() })
}

func (k *kafkaBroker) image(what string, ok func(*kraft.Image) bool) *kraft.Image {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 90*time.Second)
	defer cancel()
	if err := k.awaitImage(ctx, ok); err != nil {
		k.t.Fatalf("image never showed %s", what)
	}
	return k.Image()
}

func eventually(t *testing.T, within time.Duration, what string, f func() error) {
	t.Helper()
	within *= 3 // it only ends the wait, also on a machine with much else to do
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not %s within %s: %v", what, within, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func noErrors[K comparable](t *testing.T, what string, errs map[K]error) {
	t.Helper()
	for k, err := range errs {
		if err != nil {
			t.Fatalf("%s %v: %v", what, k, err)
		}
	}
}

func adminClient(t *testing.T, c *testkafka.Cluster) *kadm.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// byOthers sends a request as an ordinary client at a real broker does.
func byOthers[R kmsg.Response](t *testing.T, c *testkafka.Cluster, req kmsg.Request) R {
	t.Helper()
	cl, err := newClient(c.Bootstrap(testkafka.ClientListener)[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	resp, err := cl.SeedBrokers()[0].Request(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.(R)
}

func createByOthers(t *testing.T, c *testkafka.Cluster, name string, partitions int32, rf int16) {
	t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	x := kmsg.NewCreateTopicsRequestTopic()
	x.Topic, x.NumPartitions, x.ReplicationFactor = name, partitions, rf
	req.Topics = append(req.Topics, x)
	tried := false
	eventually(t, 30*time.Second, "created: "+name, func() error { // a controller may just come up
		resp := byOthers[*kmsg.CreateTopicsResponse](t, c, req)
		err := kerr.ErrorForCode(resp.Topics[0].ErrorCode)
		if tried && errors.Is(err, kerr.TopicAlreadyExists) {
			return nil // by the try before, whatever its answer was
		}
		tried = true
		return err
	})
}

func tp(topic string) protocol.TopicPartition { return protocol.TopicPartition{Topic: topic} }

func ledBy(id int32, topic string) func(*kraft.Image) bool {
	return func(i *kraft.Image) bool { p := partitionOf(i, tp(topic)); return p != nil && p.Leader == id }
}

func TestKafkaMembership(t *testing.T) {
	// Metadata of 4.0 at first: no cordon, and features that can be raised with us as a member.
	c := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1, FormatArgs: []string{"--release-version", "4.0"}})
	cfg := kafkaConfig(t, c, 9001, 9002)
	k := startKafka(t, cfg)
	k.ready(30 * time.Second)

	t.Run("features can be raised", func(t *testing.T) {
		cmd := testkafka.Tool(t.Context(), c.Version(), "org.apache.kafka.tools.FeatureCommand",
			"--bootstrap-server", c.Bootstrap(testkafka.ClientListener)[0], "upgrade", "--release-version", "4.4")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		k.image("the raised level", func(i *kraft.Image) bool { return i.Features[metadataVersion] == 33 })
		k.image("our cordon", func(i *kraft.Image) bool { return cordoned(i, 9001) && cordoned(i, 9002) })
	})
	t.Run("others' topics don't land on us", func(t *testing.T) { othersTopics(t, c, k) })
	t.Run("lead and hand over", func(t *testing.T) { leadAndHandOver(t, k) })
	t.Run("take over from a real leader", func(t *testing.T) { takeOver(t, c, k) })
	t.Run("controller restarted", func(t *testing.T) {
		n := c.Node(101)
		if err := n.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		before := k.Nodes()
		createByOthers(t, c, "after-controller-restart", 2, 3)
		k.image("a topic made after the restart", func(i *kraft.Image) bool { return i.TopicByName("after-controller-restart") != nil })
		k.ready(30 * time.Second)
		if after := k.Nodes(); after[0].Epoch != before[0].Epoch {
			t.Errorf("registered anew: epoch %d, was %d", after[0].Epoch, before[0].Epoch)
		}
	})
	k = restarted(t, c, k, cfg)
	t.Run("unregistered by others", func(t *testing.T) {
		req := kmsg.NewPtrUnregisterBrokerRequest()
		req.BrokerID = 9002
		resp := byOthers[*kmsg.UnregisterBrokerResponse](t, c, req)
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			t.Fatal(err)
		}
		eventually(t, 30*time.Second, "evicted", func() error {
			if st := k.Nodes()[1]; st.State != StateEvicted {
				return fmt.Errorf("%+v", st)
			}
			return nil
		})
		if st := k.Nodes()[0]; st.State != StateActive {
			t.Errorf("the other id: %+v", st)
		}
	})
}

func othersTopics(t *testing.T, c *testkafka.Cluster, k *kafkaBroker) {
	for n := range 8 {
		createByOthers(t, c, fmt.Sprintf("others-%d", n), 5, 2)
	}
	img := k.image("the last topic", func(i *kraft.Image) bool { return i.TopicByName("others-7") != nil })
	for _, topic := range img.Topics {
		for n, p := range topic.Partitions {
			if slices.ContainsFunc(p.Replicas, k.Owns) {
				t.Errorf("%s-%d is on %v", topic.Name, n, p.Replicas)
			}
		}
	}
}

// leadAndHandOver creates a topic that we lead, changes its ISR as its leader does, flips its leader and gives it away.
// Nobody answers followers here; they stay in the ISR for longer than this takes.
func leadAndHandOver(t *testing.T, k *kafkaBroker) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	id, err := k.CreateTopic(ctx, NewTopic{Name: "ours", Assignment: [][]int32{{9001, 9002, 1, 2, 3}},
		Configs: map[string]string{"min.insync.replicas": "4"}})
	if err != nil {
		t.Fatal(err)
	}
	k.image("us as leader", ledBy(9001, "ours"))
	k.image("our cordon", func(i *kraft.Image) bool { return cordoned(i, 9001) && cordoned(i, 9002) })

	p := partitionOf(k.Image(), tp("ours"))
	proposal := kraft.ISRProposal{ID: protocol.PartitionID{Topic: id}, Leader: 9001, LeaderEpoch: p.LeaderEpoch,
		PartitionEpoch: p.PartitionEpoch, ISR: []kraft.ISRMember{{ID: 9001, Epoch: -1}, {ID: 9002, Epoch: -1}, {ID: 1, Epoch: -1}, {ID: 2, Epoch: -1}}}
	got, err := k.AlterISR(ctx, []kraft.ISRProposal{proposal})
	for err != nil && partitionOf(k.Image(), tp("ours")).PartitionEpoch == p.PartitionEpoch && ctx.Err() == nil {
		got, err = k.AlterISR(ctx, []kraft.ISRProposal{proposal}) // a busy machine, and the image shows that nothing happened
	}
	if err != nil || got[0].ErrorCode != 0 || !slices.Equal(got[0].ISR, []int32{9001, 9002, 1, 2}) {
		t.Fatalf("shrink: %+v, %v", got, err)
	}
	got, err = refusedISR(ctx, k, proposal)
	if err != nil || got[0].ErrorCode != kerr.InvalidUpdateVersion.Code {
		t.Fatalf("a proposal from an old partition epoch: %+v, %v", got, err)
	}
	proposal.PartitionEpoch++
	proposal.ISR = append(proposal.ISR, kraft.ISRMember{ID: 3, Epoch: 1})
	got, err = refusedISR(ctx, k, proposal)
	if err != nil || got[0].ErrorCode != kerr.IneligibleReplica.Code {
		t.Fatalf("a member with an old broker epoch: %+v, %v", got, err)
	}

	noErrors(t, "reorder", k.Reassign(ctx, map[protocol.TopicPartition][]int32{tp("ours"): {9002, 9001, 1, 2, 3}}))
	noErrors(t, "elect", k.ElectPreferred(ctx, []protocol.TopicPartition{tp("ours")}))
	k.image("our other id as leader", ledBy(9002, "ours"))
	noErrors(t, "elect again", k.ElectPreferred(ctx, []protocol.TopicPartition{tp("ours")}))
	if err := k.SetTopicConfigs(ctx, "ours", map[string]string{"retention.ms": "1000"}, []string{"min.insync.replicas"}); err != nil {
		t.Fatal(err)
	}
	k.image("the configs", func(i *kraft.Image) bool {
		_, locked := i.TopicConfig("ours", "min.insync.replicas")
		v, _ := i.TopicConfig("ours", "retention.ms")
		return !locked && v == "1000"
	})
	// 3 is out of sync and gets no data from us, so this one can't complete; the next must not be held up by it.
	noErrors(t, "hand over", k.Reassign(ctx, map[protocol.TopicPartition][]int32{tp("ours"): {3, 1, 2}}))
	k.image("an unfinished reassignment", func(i *kraft.Image) bool { return len(partitionOf(i, tp("ours")).Removing) > 0 })
	noErrors(t, "hand over", k.Reassign(ctx, map[protocol.TopicPartition][]int32{tp("ours"): {1, 2}}))
	k.image("a real leader", func(i *kraft.Image) bool {
		p := partitionOf(i, tp("ours"))
		return (p.Leader == 1 || p.Leader == 2) && slices.Equal(p.Replicas, []int32{1, 2}) && len(p.Removing) == 0
	})
	if _, err := k.CreateTopic(ctx, NewTopic{Name: "ours", Assignment: [][]int32{{1}}}); kerrCode(err) != kerr.TopicAlreadyExists.Code {
		t.Errorf("creating it again: %v", err)
	}
}

// refusedISR makes a proposal that is to be refused, again while no answer comes in time.
func refusedISR(ctx context.Context, k *kafkaBroker, p kraft.ISRProposal) (got []kraft.ISROutcome, err error) {
	for {
		if got, err = k.AlterISR(ctx, []kraft.ISRProposal{p}); err == nil || ctx.Err() != nil {
			return got, err
		}
	}
}

// takeOver enters the ISRs of partitions that real brokers lead and produce to, and takes their leadership.
func takeOver(t *testing.T, c *testkafka.Cluster, k *kafkaBroker) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	createByOthers(t, c, "live", 6, 3)
	img := k.image("the topic", func(i *kraft.Image) bool {
		t := i.TopicByName("live")
		return t != nil && len(t.Partitions) == 6
	})
	lists := map[protocol.TopicPartition][]int32{}
	var ids []protocol.PartitionID
	for n, p := range img.TopicByName("live").Partitions {
		lists[protocol.TopicPartition{Topic: "live", Partition: int32(n)}] = append([]int32{9001, 9002}, p.Replicas...)
		ids = append(ids, protocol.PartitionID{Topic: img.Names["live"], Partition: int32(n)})
	}
	acked := produce(t, c, "live")
	noErrors(t, "reassign", k.Reassign(ctx, lists))
	begin := time.Now()
	noErrors(t, "join", k.JoinISR(ctx, 9001, ids))
	t.Logf("joined 6 ISRs in %s", time.Since(begin))
	begin = time.Now()
	for _, id := range ids {
		if p := k.Image().Partition(id); !slices.Contains(p.ISR, 9001) {
			t.Errorf("partition %d: ISR %v", id.Partition, p.ISR)
		}
	}
	// A member that does not fetch holds up every acks=all: they must go on.
	before := acked.Load()
	eventually(t, 30*time.Second, "written to while we are in the ISR", func() error {
		if n := acked.Load() - before; n < 100 {
			return fmt.Errorf("%d records", n)
		}
		return nil
	})
	t.Logf("100 records with acks=all, one by one, in %s", time.Since(begin))
	noErrors(t, "elect", k.ElectPreferred(ctx, slices.Collect(maps.Keys(lists))))
	k.image("us as leader of all", func(i *kraft.Image) bool {
		return !slices.ContainsFunc(i.TopicByName("live").Partitions, func(p *kraft.Partition) bool { return p.Leader != 9001 })
	})
	for tp, l := range lists {
		lists[tp] = l[2:]
	}
	noErrors(t, "hand back", k.Reassign(ctx, lists))
	k.image("real leaders", func(i *kraft.Image) bool {
		return !slices.ContainsFunc(i.TopicByName("live").Partitions, func(p *kraft.Partition) bool { return k.Owns(p.Leader) || len(p.Replicas) > 3 })
	})
}

// produce writes with acks=all, one record at a time, until the test ends. It returns once one was acknowledged.
func produce(t *testing.T, c *testkafka.Cluster, topic string) *atomic.Int64 {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)[0]), kgo.DefaultProduceTopic(topic),
		kgo.DisableClientMetrics(), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.AllISRAcks()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var acked atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if cl.ProduceSync(ctx, &kgo.Record{Key: fmt.Append(nil, acked.Load()), Value: make([]byte, 100)}).FirstErr() == nil {
				acked.Add(1)
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait(); cl.Close() })
	eventually(t, 30*time.Second, "written to", func() error {
		if acked.Load() == 0 {
			return errors.New("nothing acknowledged")
		}
		return nil
	})
	return &acked
}

// restarted ends the process in order and starts another one, then lets that one die and starts a third.
func restarted(t *testing.T, c *testkafka.Cluster, k *kafkaBroker, cfg Config) *kafkaBroker {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := k.CreateTopic(ctx, NewTopic{Name: "led", Assignment: [][]int32{{9001, 1, 2}}}); err != nil {
		t.Fatal(err)
	}
	k.image("us as leader", ledBy(9001, "led"))
	before := k.Nodes()
	begin := time.Now()
	k.stop()
	t.Logf("controlled shutdown took %s", time.Since(begin))

	watch := cfg
	watch.ShutdownTimeout = time.Nanosecond // kill -9: no leave is taken
	k = startKafka(t, watch)
	k.ready(30 * time.Second)
	p := partitionOf(k.Image(), tp("led"))
	if k.Owns(p.Leader) || slices.Contains(p.ISR, 9001) {
		t.Errorf("after a controlled shutdown: leader %d, ISR %v", p.Leader, p.ISR)
	}
	if after := k.Nodes(); after[0].Epoch <= before[0].Epoch {
		t.Errorf("epoch %d after %d", after[0].Epoch, before[0].Epoch)
	}
	k.stop()
	begin = time.Now()
	k = startKafka(t, cfg)
	k.ready(30 * time.Second)
	t.Logf("back %s after a death", time.Since(begin))
	return k
}

func TestKafkaSnapshotBootstrap(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{Name: "snap", Brokers: 1, Controllers: 3,
		Properties: map[string]string{"metadata.log.max.record.bytes.between.snapshots": "4000"}})
	cfg := kafkaConfig(t, c, 9001)
	first := startKafka(t, cfg)
	first.ready(30 * time.Second)
	adm := adminClient(t, c)
	for n := range 20 {
		if _, err := adm.CreateTopic(t.Context(), 3, 1, nil, fmt.Sprintf("t%d", n)); err != nil {
			t.Fatal(err)
		}
	}
	want := first.image("the last topic", func(i *kraft.Image) bool {
		return i.TopicByName("t19") != nil && len(i.TopicByName("t19").Partitions) == 3
	})
	var snapshots atomic.Int32
	cfg2 := kafkaConfig(t, c, 9002)
	cfg2.Log = slog.New(countHandler{slog.NewTextHandler(t.Output(), nil), "loading a metadata snapshot", &snapshots})
	second := startKafka(t, cfg2)
	second.ready(30 * time.Second)
	if snapshots.Load() == 0 {
		t.Error("no snapshot was loaded")
	}
	got := second.Image()
	if len(got.Topics) != len(want.Topics) {
		t.Errorf("%d topics after the snapshot, want %d", len(got.Topics), len(want.Topics))
	}
	for id, w := range want.Topics {
		g := got.Topics[id]
		if g == nil || g.Name != w.Name || len(g.Partitions) != len(w.Partitions) || !slices.Equal(g.Partitions[0].Replicas, w.Partitions[0].Replicas) {
			t.Errorf("%s: got %+v, want %+v", w.Name, g, w)
		}
	}

	t.Run("active controller killed", func(t *testing.T) {
		addr, _, _ := first.ctl.current()
		for _, n := range c.Nodes() {
			if n.Addr(testkafka.ControllerListener) == addr {
				n.Kill()
				defer func() {
					if err := n.Start(); err != nil {
						t.Error(err)
					}
				}()
			}
		}
		eventually(t, 30*time.Second, "topics made", func() error {
			_, err := adm.CreateTopic(t.Context(), 1, 1, nil, "after-failover")
			if errors.Is(err, kerr.TopicAlreadyExists) { // the answer to a try before was lost
				return nil
			}
			return err
		})
		for _, k := range []*kafkaBroker{first, second} {
			k.image("a topic made after the failover", func(i *kraft.Image) bool { return i.TopicByName("after-failover") != nil })
			k.ready(30 * time.Second)
		}
		if a, _, _ := first.ctl.current(); a == addr {
			t.Errorf("still talking to %s", a)
		}
	})
}

// countHandler counts a message.
type countHandler struct {
	slog.Handler
	message string
	n       *atomic.Int32
}

func (h countHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.n.Add(1)
	}
	return h.Handler.Handle(ctx, r)
}

func (h countHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return countHandler{h.Handler.WithAttrs(a), h.message, h.n}
}
