package broker

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/fakepeer"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

const fakeCluster = "5L6g3nShT-eMCtK--X86sw"

// fakeQuorum is a scripted set of controllers that share one metadata log. It registers brokers, unfences them, knows the
// cordon and carries out placements; a hook may answer any request instead.
type fakeQuorum struct {
	t      *testing.T
	closed chan struct{}

	mu     sync.Mutex
	addrs  []string
	active int
	epoch  int32
	log    [][]byte // record values, one a batch
	hw     int64    // -1: all
	image  *kraft.Image
	grown  broadcast
	// snapshot stands for the log below its length when not nil.
	snapshot    []byte
	snapshotEnd int64
	hook        func(node int, req kmsg.Request) kmsg.Response
	requests    []kmsg.Request
}

func newFakeQuorum(t *testing.T, nodes int, recs ...kraft.Record) *fakeQuorum {
	q := &fakeQuorum{t: t, closed: make(chan struct{}), epoch: 3, hw: -1, image: kraft.Empty()}
	if len(recs) == 0 {
		recs = []kraft.Record{&kraft.NoOpRecord{}} // a real log is never empty
	}
	q.append(recs...)
	var wg sync.WaitGroup
	for n := range nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		q.addrs = append(q.addrs, l.Addr().String())
		wg.Go(func() { q.accept(l, n, &wg) })
		defer t.Cleanup(func() { l.Close() }) // runs before the wait below
	}
	t.Cleanup(func() { close(q.closed); wg.Wait() })
	return q
}

func (q *fakeQuorum) accept(l net.Listener, node int, wg *sync.WaitGroup) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			if err := fakepeer.Serve(c, func(req kmsg.Request) kmsg.Response { return q.answer(node, req) }); err != nil {
				q.t.Error(err)
			}
		})
	}
}

// hangUp as a hook's answer closes the connection.
type hangUp struct{ kmsg.Response }

func (q *fakeQuorum) answer(node int, req kmsg.Request) kmsg.Response {
	q.mu.Lock()
	if _, ok := req.(*kmsg.FetchRequest); !ok {
		q.requests = append(q.requests, req)
	}
	hook, active := q.hook, q.active == node
	q.mu.Unlock()
	if hook != nil {
		switch r := hook(node, req).(type) {
		case nil:
		case hangUp:
			return nil
		default:
			return r
		}
	}
	if r, ok := req.(*kmsg.ApiVersionsRequest); ok {
		return q.apiVersions(r)
	}
	resp := req.ResponseKind()
	if f, ok := req.(*kmsg.FetchRequest); ok {
		return q.fetch(f, active)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	code := int16(0)
	if !active {
		code = 41
	}
	switch r := req.(type) {
	case *kmsg.DescribeClusterRequest:
		resp.(*kmsg.DescribeClusterResponse).ClusterID = fakeCluster
	case *kmsg.FetchSnapshotRequest:
		return q.fetchSnapshot(r)
	case *kmsg.BrokerRegistrationRequest:
		out := resp.(*kmsg.BrokerRegistrationResponse)
		if out.ErrorCode = code; active {
			out.BrokerEpoch = q.register(r)
		}
	case *kmsg.BrokerHeartbeatRequest:
		out := resp.(*kmsg.BrokerHeartbeatResponse)
		if out.ErrorCode = code; active {
			q.heartbeat(r, out)
		}
	case *kmsg.CreateTopicsRequest:
		q.createTopics(r, resp.(*kmsg.CreateTopicsResponse), code)
	case *kmsg.AlterPartitionAssignmentsRequest:
		q.reassign(r, resp.(*kmsg.AlterPartitionAssignmentsResponse), code)
	}
	return resp
}

func (q *fakeQuorum) apiVersions(r *kmsg.ApiVersionsRequest) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.ApiVersionsResponse)
	for _, k := range [][3]int16{{1, 0, 18}, {18, 0, 4}, {19, 0, 7}, {43, 0, 2}, {44, 0, 1}, {45, 0, 1}, {56, 2, 3}, {59, 0, 1},
		{60, 0, 2}, {62, 0, 4}, {63, 0, 2}, {64, 0, 0}} {
		x := kmsg.NewApiVersionsResponseApiKey()
		x.ApiKey, x.MinVersion, x.MaxVersion = k[0], k[1], k[2]
		resp.ApiKeys = append(resp.ApiKeys, x)
	}
	for _, f := range []featureRange{{metadataVersion, 9, 40}, {"group.version", 0, 1}, {"future.version", 0, 4}} {
		x := kmsg.NewApiVersionsResponseSupportedFeature()
		x.Name, x.MinVersion, x.MaxVersion = f.name, f.min, f.max
		resp.SupportedFeatures = append(resp.SupportedFeatures, x)
	}
	return resp
}

// append adds records to the log, a batch each. Callers outside answer must not hold mu.
func (q *fakeQuorum) append(recs ...kraft.Record) {
	for _, r := range recs {
		v := kraft.AppendRecord(nil, r)
		img, err := q.image.Apply(int64(len(q.log)), q.epoch, [][]byte{v})
		if err != nil {
			q.t.Error(err)
			return
		}
		q.image = img
		q.log = append(q.log, v)
	}
	q.grown.send()
}

func (q *fakeQuorum) do(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f()
}

func (q *fakeQuorum) register(r *kmsg.BrokerRegistrationRequest) int64 {
	epoch := int64(len(q.log))
	rec := &kraft.RegisterBrokerRecord{Version: 4, BrokerID: r.BrokerID, Incarnation: r.IncarnationID, Epoch: epoch, Fenced: true}
	for _, d := range r.LogDirs {
		rec.LogDirs = append(rec.LogDirs, d)
	}
	q.append(rec)
	return epoch
}

func (q *fakeQuorum) heartbeat(r *kmsg.BrokerHeartbeatRequest, out *kmsg.BrokerHeartbeatResponse) {
	reg := q.image.Brokers[r.BrokerID]
	if reg == nil || reg.Epoch != r.BrokerEpoch {
		out.ErrorCode = 77
		return
	}
	change := &kraft.BrokerRegistrationChangeRecord{Version: 3, BrokerID: r.BrokerID, Epoch: reg.Epoch}
	fence := r.WantFence || r.WantShutdown || r.CurrentMetadataOffset < reg.Epoch
	if out.IsFenced = fence; fence != reg.Fenced {
		change.Fenced = map[bool]int8{true: 1, false: -1}[fence]
	}
	out.ShouldShutdown = r.WantShutdown
	if r.CordonedLogDirs != nil && len(r.CordonedLogDirs) != len(reg.CordonedLogDirs) {
		change.CordonedLogDirs = []protocol.UUID{}
		for _, d := range r.CordonedLogDirs {
			change.CordonedLogDirs = append(change.CordonedLogDirs, d)
		}
	}
	if change.Fenced != 0 || change.CordonedLogDirs != nil {
		q.append(change)
	}
}

func (q *fakeQuorum) createTopics(r *kmsg.CreateTopicsRequest, out *kmsg.CreateTopicsResponse, code int16) {
	for _, t := range r.Topics {
		x := kmsg.NewCreateTopicsResponseTopic()
		x.Topic, x.ErrorCode = t.Topic, code
		x.TopicID = protocol.UUID{8, byte(len(q.log))}
		if code != 0 {
			out.Topics = append(out.Topics, x)
			continue
		}
		q.append(&kraft.TopicRecord{Name: t.Topic, ID: x.TopicID})
		for _, a := range t.ReplicaAssignment {
			for _, id := range a.Replicas {
				if cordoned(q.image, id) {
					x.ErrorCode = 39
				}
			}
			q.append(&kraft.PartitionRecord{Version: 1, PartitionID: a.Partition, TopicID: x.TopicID,
				Partition: kraft.Partition{Replicas: a.Replicas, ISR: a.Replicas, Leader: a.Replicas[0]}})
		}
		out.Topics = append(out.Topics, x)
	}
}

func (q *fakeQuorum) reassign(r *kmsg.AlterPartitionAssignmentsRequest, out *kmsg.AlterPartitionAssignmentsResponse, code int16) {
	for _, t := range r.Topics {
		x := kmsg.NewAlterPartitionAssignmentsResponseTopic()
		x.Topic = t.Topic
		for _, p := range t.Partitions {
			y := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
			y.Partition, y.ErrorCode = p.Partition, code
			x.Partitions = append(x.Partitions, y)
			change := &kraft.PartitionChangeRecord{PartitionID: p.Partition, TopicID: q.image.Names[t.Topic],
				Leader: kraft.NoLeaderChange, LeaderRecoveryState: -1, Replicas: p.Replicas, Adding: []int32{}, Removing: []int32{}}
			if p.Replicas != nil {
				change.ISR, change.Leader = p.Replicas, p.Replicas[0]
			}
			if code == 0 {
				q.append(change)
			}
		}
		out.Topics = append(out.Topics, x)
	}
}

// fetch answers from the log; only the active node has it.
func (q *fakeQuorum) fetch(r *kmsg.FetchRequest, active bool) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.FetchResponse)
	ask := r.Topics[0].Partitions[0]
	q.mu.Lock()
	wait := q.grown.wait()
	atEnd := active && ask.FetchOffset >= int64(len(q.log)) && ask.CurrentLeaderEpoch == q.epoch
	q.mu.Unlock()
	if atEnd {
		select {
		case <-wait:
		case <-q.closed:
		case <-time.After(time.Duration(r.MaxWaitMillis) * time.Millisecond):
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	t := kmsg.NewFetchResponseTopic()
	t.TopicID = r.Topics[0].TopicID
	p := kmsg.NewFetchResponseTopicPartition()
	p.RecordBatches = []byte{}
	switch {
	case ask.CurrentLeaderEpoch < q.epoch || !active:
		p.ErrorCode = 74
		if ask.CurrentLeaderEpoch == q.epoch {
			p.ErrorCode = 6
		}
		p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = int32(100+q.active), q.epoch
		host, port, _ := net.SplitHostPort(q.addrs[q.active])
		n := kmsg.NewFetchResponseBroker()
		n.NodeID, n.Host = int32(100+q.active), host
		for _, d := range port {
			n.Port = n.Port*10 + int32(d-'0')
		}
		resp.Brokers = append(resp.Brokers, n)
	case q.snapshot != nil && ask.FetchOffset < q.snapshotEnd:
		p.SnapshotID.EndOffset, p.SnapshotID.Epoch = q.snapshotEnd, q.epoch
	default:
		for o := ask.FetchOffset; o < int64(len(q.log)); o++ {
			p.RecordBatches = append(p.RecordBatches, fakeBatch(o, q.epoch, false, q.log[o])...)
		}
		if p.HighWatermark = q.hw; q.hw < 0 {
			p.HighWatermark = int64(len(q.log))
		}
	}
	t.Partitions = append(t.Partitions, p)
	resp.Topics = append(resp.Topics, t)
	return resp
}

// fetchSnapshot hands out 100 bytes at a time, so that batches lie across chunks.
func (q *fakeQuorum) fetchSnapshot(r *kmsg.FetchSnapshotRequest) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.FetchSnapshotResponse)
	ask := r.Topics[0].Partitions[0]
	t := kmsg.NewFetchSnapshotResponseTopic()
	t.Topic = r.Topics[0].Topic
	p := kmsg.NewFetchSnapshotResponseTopicPartition()
	p.Size, p.Position = int64(len(q.snapshot)), ask.Position
	p.Bytes = q.snapshot[ask.Position:min(int(ask.Position)+100, len(q.snapshot))]
	t.Partitions = append(t.Partitions, p)
	resp.Topics = append(resp.Topics, t)
	return resp
}

// fakeBatch is a batch of one record for each value, or a control batch.
func fakeBatch(base int64, epoch int32, control bool, values ...[]byte) []byte {
	var recs []byte
	for n, v := range values {
		r := kbin.AppendVarint([]byte{0, 0}, int32(n)) // attributes, timestamp delta, offset delta
		r = kbin.AppendVarint(r, -1)
		r = append(kbin.AppendVarint(r, int32(len(v))), v...)
		r = kbin.AppendVarint(r, 0)
		recs = append(kbin.AppendVarint(recs, int32(len(r))), r...)
	}
	b := kmsg.NewRecordBatch()
	b.FirstOffset, b.PartitionLeaderEpoch, b.Magic = base, epoch, 2
	b.LastOffsetDelta, b.NumRecords, b.Records = int32(len(values)-1), int32(len(values)), recs
	b.ProducerID, b.ProducerEpoch, b.FirstSequence = -1, -1, -1
	b.Length = int32(49 + len(recs))
	if control {
		b.Attributes = 0x20
	}
	out := b.AppendTo(nil)
	return fixCRC(out)
}

// of returns the requests of one kind that came so far.
func of[R kmsg.Request](q *fakeQuorum) []R {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []R
	for _, r := range q.requests {
		if x, ok := r.(R); ok {
			out = append(out, x)
		}
	}
	return out
}

// fakeConfig is a configuration for the given ids with fast heartbeats.
func fakeConfig(q *fakeQuorum, ids ...int32) Config {
	cfg := Config{Controllers: slices.Clone(q.addrs), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		HeartbeatInterval: 100 * time.Millisecond, ShutdownTimeout: time.Second, InterBrokerListener: "REPL"}
	for _, id := range ids {
		cfg.Nodes = append(cfg.Nodes, Node{ID: id, Listeners: []Listener{{Name: "REPL", Host: "127.0.0.1", Port: 1}}})
	}
	return cfg
}

// startFake runs a Broker until the test ends; the function returned ends it before and gives Run's error.
func startFake(t *testing.T, cfg Config) (*Broker, func() error) {
	t.Helper()
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	return b, stop
}
