package proxy

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"kmirror/fetch"
	"kmirror/internal/testkafka"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/records"
)

// inFront returns a world whose brokers are the given ones of a real cluster.
func inFront(t *testing.T, c *testkafka.Cluster, brokers ...int32) *world {
	return newWorld(t, func(w *world, cfg *Config) {
		cfg.ClusterID = c.ID
		img := w.image.img
		for id := int32(1); id <= 3; id++ {
			delete(img.Brokers, id)
		}
		for _, id := range brokers {
			host, port, err := net.SplitHostPort(c.Node(id).Addr(testkafka.ClientListener))
			if err != nil {
				t.Fatal(err)
			}
			n, err := strconv.Atoi(port)
			if err != nil {
				t.Fatal(err)
			}
			img.Brokers[id] = &kraft.Broker{ID: id, Epoch: 1,
				Endpoints: []kraft.Endpoint{{Name: "CLIENT", Host: host, Port: uint16(n)}}}
		}
	})
}

func newClient(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// epoch is just before the timestamps of the records: recent, or their segment would be rolled at the first marker.
var epoch = time.Now().Add(-time.Minute).Truncate(time.Second)

// fillMirror creates topic m with 10 plain records, 5 of a committed and 5 of an open transaction, and returns its leader.
func fillMirror(t *testing.T, ctx context.Context, c *testkafka.Cluster) int32 {
	t.Helper()
	cl := newClient(t, kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...), kgo.TransactionalID("tx"),
		kgo.DefaultProduceTopic("m"))
	plain := newClient(t, kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...), kgo.DefaultProduceTopic("m"))
	adm := kadm.NewClient(plain)
	if _, err := adm.CreateTopic(ctx, 1, 2, nil, "m"); err != nil {
		t.Fatal(err)
	}
	at := epoch
	records := func(n int) (rs []*kgo.Record) {
		for range n {
			at = at.Add(time.Millisecond)
			rs = append(rs, &kgo.Record{Value: []byte("v"), Timestamp: at})
		}
		return rs
	}
	if err := plain.ProduceSync(ctx, records(10)...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(ctx, records(5)...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(ctx, records(5)...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	topics, err := adm.ListTopics(ctx, "m")
	if err != nil {
		t.Fatal(err)
	}
	return topics["m"].Partitions[0].Leader
}

func TestRealBrokersBehindTheProxy(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 2})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	leader := fillMirror(t, ctx, c)
	follower := 3 - leader
	// 10 records, 5 and a marker, 5 of an open transaction.
	const stable, end = 16, 21

	t.Run("a follower answers what needs a log", func(t *testing.T) {
		w := inFront(t, c, leader, follower)
		w.setISR(node, follower)
		w.data.set(mirrorPartition, func(s *fetch.Status) {
			s.LogStart, s.LogEnd, s.HighWatermark = 0, end, end
			s.Followers = map[int32]fetch.FollowerStatus{follower: {FetchOffset: end}}
		})
		eventually(t, "the follower knows the high watermark", func() bool {
			return firstFetched(w.dial().ask(fetchRequest(10, "m", 0))).HighWatermark == end
		})
		checkLookups(t, w, stable, end)
		checkOldFetches(t, w, follower, stable, end)
		if p := firstFetched(w.dial().ask(fetchRequest(12, "m", 0))); p.PreferredReadReplica != follower {
			t.Errorf("consumers are sent to %d, want %d", p.PreferredReadReplica, follower)
		}
		req := kmsg.NewPtrDescribeProducersRequest()
		rt := kmsg.NewDescribeProducersRequestTopic()
		rt.Topic, rt.Partitions = "m", []int32{0}
		req.Topics = append(req.Topics, rt)
		p := w.dial().ask(req).(*kmsg.DescribeProducersResponse).Topics[0].Partitions[0]
		if p.ErrorCode != 0 || len(p.ActiveProducers) != 2 {
			t.Errorf("DescribeProducers: error %d, %d producers, want 2", p.ErrorCode, len(p.ActiveProducers))
		}
	})
	t.Run("all else is forwarded", func(t *testing.T) {
		w := inFront(t, c, leader)
		checkForwarding(t, ctx, w)
	})
}

func checkLookups(t *testing.T, w *world, stable, end int64) {
	t.Helper()
	for version := int16(1); version <= 11; version++ {
		for _, tt := range []struct {
			name      string
			from      int16
			isolation int8
			timestamp int64
			want      int64
		}{
			{"latest", 1, 0, -1, end}, {"latest stable", 2, 1, -1, stable}, {"earliest", 1, 0, -2, 0},
			{"by time", 1, 0, epoch.UnixMilli() + 3, 2}, {"beyond all", 1, 0, 99999999999999, -1}, {"newest: the marker", 7, 0, -3, stable - 1},
			{"earliest local", 8, 0, -4, 0}, {"latest tiered", 9, 0, -5, -1},
		} {
			if version < tt.from {
				continue
			}
			resp := w.dial().ask(listRequest(version, -1, tt.isolation, "m", tt.timestamp)).(*kmsg.ListOffsetsResponse)
			if p := resp.Topics[0].Partitions[0]; p.ErrorCode != 0 || p.Offset != tt.want {
				t.Errorf("ListOffsets v%d, %s: error %d, offset %d, want %d", version, tt.name, p.ErrorCode, p.Offset, tt.want)
			}
		}
	}
}

func checkOldFetches(t *testing.T, w *world, follower int32, stable, end int64) {
	t.Helper()
	for version := int16(4); version <= 10; version++ {
		for isolation, want := range []int64{end, stable} {
			req := fetchRequest(version, "m", 0)
			req.IsolationLevel = int8(isolation)
			p := firstFetched(w.dial().ask(req))
			got := int64(0)
			for b := p.RecordBatches; len(b) > 0; {
				batch, rest, err := records.Split(b)
				if err != nil {
					t.Fatal(err)
				}
				got, b = batch.NextOffset(), rest
			}
			if p.ErrorCode != 0 || p.HighWatermark != end || got != want {
				t.Errorf("Fetch v%d, isolation %d: error %d, watermark %d, records up to %d, want %d",
					version, isolation, p.ErrorCode, p.HighWatermark, got, want)
			}
		}
	}
}

// checkForwarding uses a client all of whose connections end at the proxy.
func checkForwarding(t *testing.T, ctx context.Context, w *world) {
	t.Helper()
	toProxy := kgo.Dialer(func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", w.addr)
	})
	seeds := kgo.SeedBrokers(w.addr)
	// Version 5 of ApiVersions would find out that all of these nodes are one.
	old := kversion.Stable()
	old.SetMaxKeyVersion(keyApiVersions, 4)
	versions := kgo.MaxVersions(old)
	adm := kadm.NewClient(newClient(t, seeds, toProxy, versions))
	if _, err := adm.CreateTopic(ctx, 1, 1, nil, "forwarded"); err != nil {
		t.Fatal(err)
	}
	assigned, err := adm.ListTopics(ctx, "forwarded", "m")
	if err != nil {
		t.Fatal(err)
	}
	// New versions of Produce name topics by id.
	w.image.edit(func(img *kraft.Image) {
		addTopic(img, "m", protocol.UUID(assigned["m"].ID), node)
	})
	for real := range w.image.Image().Brokers {
		if real != node && assigned["forwarded"].Partitions[0].Leader != real {
			moveTo(t, ctx, adm, real)
		}
	}
	produced := 0
	// A broker tells that it leads a moment before it does, and what is not acknowledged would be lost then: that comes last.
	for _, how := range []struct {
		name string
		opts []kgo.Opt
	}{
		{"idempotent", nil}, {"acks=1", []kgo.Opt{kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()}},
		{"acks=0", []kgo.Opt{kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite()}},
	} {
		cl := newClient(t, append(how.opts, seeds, toProxy, versions, kgo.DefaultProduceTopic("forwarded"))...)
		for i := range 100 {
			if err := cl.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint(how.name, i))).FirstErr(); err != nil {
				t.Fatalf("%s: %v", how.name, err)
			}
			produced++
		}
	}
	cl := newClient(t, seeds, toProxy, versions, kgo.DefaultProduceTopic("m"), kgo.RecordRetries(3))
	if err := cl.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err == nil {
		t.Error("a record for the mirror was taken")
	}
	direct := newClient(t, kgo.SeedBrokers(directAddrs(w)...), kgo.ConsumeTopics("forwarded"))
	got := 0
	for got < produced && ctx.Err() == nil {
		fetches := direct.PollFetches(ctx)
		got += fetches.NumRecords()
	}
	if got != produced {
		t.Errorf("%d records are there, %d were produced", got, produced)
	}
	eventually(t, "a group coordinator", func() bool { return adm.FindGroupCoordinators(ctx, "g").Error() == nil })
}

// moveTo hands the only replica of topic forwarded to a broker.
func moveTo(t *testing.T, ctx context.Context, adm *kadm.Client, broker int32) {
	t.Helper()
	var req kadm.AlterPartitionAssignmentsReq
	req.Assign("forwarded", 0, []int32{broker})
	if _, err := adm.AlterPartitionAssignments(ctx, req); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the topic has moved", func() bool {
		topics, err := adm.ListTopics(ctx, "forwarded")
		return err == nil && topics["forwarded"].Partitions[0].Leader == broker
	})
}

func directAddrs(w *world) (addrs []string) {
	for id, b := range w.image.Image().Brokers {
		if id != node {
			addrs = append(addrs, net.JoinHostPort(b.Endpoints[0].Host, strconv.Itoa(int(b.Endpoints[0].Port))))
		}
	}
	return addrs
}
