package fetch

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/fakepeer"
	"kmirror/protocol"
	"kmirror/records"
)

type fakeTopic struct {
	id    protocol.UUID
	parts []*fakeLog
}

// fakeSource is a cluster of scripted brokers on loopback.
type fakeSource struct {
	t       testing.TB
	mu      sync.Mutex
	topics  map[string]*fakeTopic
	nodes   []net.Listener
	wg      sync.WaitGroup
	conns   map[net.Conn]struct{}
	changed chan struct{}
	closed  bool
	dials   int

	// fetchMax is the highest Fetch version offered.
	fetchMax int16
	// onFetch may answer in the broker's stead (not nil) or block; it runs without the lock.
	onFetch func(node int32, req *kmsg.FetchRequest) *kmsg.FetchResponse
	// onReply sees and may change what goes out, without the lock.
	onReply func(req *kmsg.FetchRequest, resp *kmsg.FetchResponse)
	// onOffsets sees ListOffsets requests and may block; it runs without the lock.
	onOffsets func(node int32)
	// onMetadata may change answers; onEpochs may answer instead.
	onMetadata func(*kmsg.MetadataResponse)
	onEpochs   func(*kmsg.OffsetForLeaderEpochRequest) *kmsg.OffsetForLeaderEpochResponse
	fetches    []kmsg.FetchRequest
	metadatas  int
}

func newFakeSource(t testing.TB, brokers int) *fakeSource {
	s := &fakeSource{
		t: t, topics: map[string]*fakeTopic{}, conns: map[net.Conn]struct{}{}, changed: make(chan struct{}), fetchMax: 18,
	}
	for i := range brokers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s.nodes = append(s.nodes, l)
		s.wg.Go(func() { s.accept(int32(i+1), l) })
	}
	t.Cleanup(s.close)
	return s
}

func (s *fakeSource) close() {
	s.mu.Lock()
	s.closed = true
	close(s.changed)
	s.changed = make(chan struct{})
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	for _, l := range s.nodes {
		l.Close()
	}
	s.wg.Wait()
}

// die ends the cluster while the test goes on: who connects is refused.
func (s *fakeSource) die() {
	for _, l := range s.nodes {
		fakepeer.Refuse(s.t, l)
	}
	s.close()
}

func (s *fakeSource) opts() []kgo.Opt {
	var seeds []string
	for _, l := range s.nodes {
		seeds = append(seeds, l.Addr().String())
	}
	return []kgo.Opt{kgo.SeedBrokers(seeds...)}
}

// topic makes a topic of n partitions led by broker 1 under epoch 0.
func (s *fakeSource) topic(name string, n int) *fakeTopic {
	ft := &fakeTopic{id: protocol.UUID{15: byte(len(s.topics) + 1), 0: 0xaa}}
	for range n {
		g := &fakeLog{}
		g.lead(1, 0)
		ft.parts = append(ft.parts, g)
	}
	s.do(func() { s.topics[name] = ft })
	return ft
}

// do changes the cluster and wakes long polls.
func (s *fakeSource) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *fakeSource) accept(node int32, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.dials++
		if s.closed {
			s.mu.Unlock()
			c.Close()
			continue
		}
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		s.wg.Go(func() { s.serve(node, c) })
	}
}

func (s *fakeSource) serve(node int32, c net.Conn) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	err := fakepeer.Serve(c, func(req kmsg.Request) kmsg.Response {
		switch q := req.(type) {
		case *kmsg.ApiVersionsRequest:
			return s.apiVersions(q)
		case *kmsg.MetadataRequest:
			return s.metadata(q)
		case *kmsg.ListOffsetsRequest:
			return s.listOffsets(node, q)
		case *kmsg.OffsetForLeaderEpochRequest:
			return s.epochs(q)
		case *kmsg.FetchRequest:
			return s.fetch(node, q)
		}
		return nil
	})
	if err != nil {
		s.t.Error(err)
	}
}

func (s *fakeSource) apiVersions(q *kmsg.ApiVersionsRequest) kmsg.Response {
	r := q.ResponseKind().(*kmsg.ApiVersionsResponse)
	for _, k := range []struct{ key, min, max int16 }{{1, 4, s.fetchMax}, {2, 1, 7}, {3, 0, 12}, {18, 0, 3}, {23, 2, 4}} {
		x := kmsg.NewApiVersionsResponseApiKey()
		x.ApiKey, x.MinVersion, x.MaxVersion = k.key, k.min, k.max
		r.ApiKeys = append(r.ApiKeys, x)
	}
	return r
}

func (s *fakeSource) metadata(q *kmsg.MetadataRequest) kmsg.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metadatas++
	r := q.ResponseKind().(*kmsg.MetadataResponse)
	for i, l := range s.nodes {
		b := kmsg.NewMetadataResponseBroker()
		a := l.Addr().(*net.TCPAddr)
		b.NodeID, b.Host, b.Port = int32(i+1), a.IP.String(), int32(a.Port)
		r.Brokers = append(r.Brokers, b)
	}
	for _, qt := range q.Topics {
		t := kmsg.NewMetadataResponseTopic()
		t.Topic = qt.Topic
		ft := s.topics[*qt.Topic]
		if ft == nil {
			t.ErrorCode = kerr.UnknownTopicOrPartition.Code
			r.Topics = append(r.Topics, t)
			continue
		}
		t.TopicID = ft.id
		for i, g := range ft.parts {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.Partition, p.Leader, p.LeaderEpoch = int32(i), g.leader, g.epoch
			t.Partitions = append(t.Partitions, p)
		}
		r.Topics = append(r.Topics, t)
	}
	if s.onMetadata != nil {
		s.onMetadata(r)
	}
	return r
}

func (s *fakeSource) log(name string, index int32) *fakeLog {
	if ft := s.topics[name]; ft != nil && int(index) < len(ft.parts) {
		return ft.parts[index]
	}
	return nil
}

func (g *fakeLog) fence(node, epoch int32) int16 {
	switch {
	case g == nil:
		return kerr.UnknownTopicOrPartition.Code
	case epoch >= 0 && epoch < g.epoch:
		return kerr.FencedLeaderEpoch.Code
	case epoch > g.epoch:
		return kerr.UnknownLeaderEpoch.Code
	case node > 0 && g.leader != node:
		return kerr.NotLeaderForPartition.Code
	}
	return 0
}

func (s *fakeSource) listOffsets(node int32, q *kmsg.ListOffsetsRequest) kmsg.Response {
	s.mu.Lock()
	hook := s.onOffsets
	s.mu.Unlock()
	if hook != nil {
		hook(node)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := q.ResponseKind().(*kmsg.ListOffsetsResponse)
	for _, qt := range q.Topics {
		t := kmsg.NewListOffsetsResponseTopic()
		t.Topic = qt.Topic
		for _, qp := range qt.Partitions {
			p := kmsg.NewListOffsetsResponseTopicPartition()
			p.Partition = qp.Partition
			g := s.log(qt.Topic, qp.Partition)
			if p.ErrorCode = g.fence(0, qp.CurrentLeaderEpoch); p.ErrorCode == 0 {
				if p.Offset = g.hw; qp.Timestamp == -2 {
					p.Offset = g.start
				}
			}
			t.Partitions = append(t.Partitions, p)
		}
		r.Topics = append(r.Topics, t)
	}
	return r
}

func (s *fakeSource) epochs(q *kmsg.OffsetForLeaderEpochRequest) kmsg.Response {
	s.mu.Lock()
	hook := s.onEpochs
	s.mu.Unlock()
	if hook != nil {
		if r := hook(q); r != nil {
			return r
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := q.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	for _, qt := range q.Topics {
		t := kmsg.NewOffsetForLeaderEpochResponseTopic()
		t.Topic = qt.Topic
		for _, qp := range qt.Partitions {
			p := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			p.Partition = qp.Partition
			g := s.log(qt.Topic, qp.Partition)
			if p.ErrorCode = g.fence(0, qp.CurrentLeaderEpoch); p.ErrorCode == 0 {
				p.LeaderEpoch, p.EndOffset = g.endFor(qp.LeaderEpoch)
			}
			t.Partitions = append(t.Partitions, p)
		}
		r.Topics = append(r.Topics, t)
	}
	return r
}

func (s *fakeSource) fetch(node int32, q *kmsg.FetchRequest) kmsg.Response {
	s.mu.Lock()
	s.fetches = append(s.fetches, cloneFetch(q))
	hook, onReply := s.onFetch, s.onReply
	s.mu.Unlock()
	if hook != nil {
		if r := hook(node, q); r != nil {
			return r
		}
	}
	deadline := time.After(time.Duration(q.MaxWaitMillis) * time.Millisecond)
	for {
		s.mu.Lock()
		r, n, answer := s.read(node, q)
		changed, closed := s.changed, s.closed
		s.mu.Unlock()
		if n > 0 || answer || closed {
			if onReply != nil {
				onReply(q, r)
			}
			return r
		}
		select {
		case <-changed:
		case <-deadline:
			return r
		}
	}
}

func cloneFetch(q *kmsg.FetchRequest) kmsg.FetchRequest {
	c := *q
	c.Topics = nil
	for _, t := range q.Topics {
		t.Partitions = append([]kmsg.FetchRequestTopicPartition(nil), t.Partitions...)
		c.Topics = append(c.Topics, t)
	}
	return c
}

func (s *fakeSource) read(node int32, q *kmsg.FetchRequest) (r *kmsg.FetchResponse, n int, answer bool) {
	r = q.ResponseKind().(*kmsg.FetchResponse)
	for _, qt := range q.Topics {
		t := kmsg.NewFetchResponseTopic()
		t.Topic, t.TopicID = qt.Topic, qt.TopicID
		name := qt.Topic
		code := int16(0)
		if q.Version >= 13 {
			code = kerr.UnknownTopicID.Code
			for nm, ft := range s.topics {
				if ft.id == protocol.UUID(qt.TopicID) {
					name, code = nm, 0
				}
			}
		}
		for _, qp := range qt.Partitions {
			p := kmsg.NewFetchResponseTopicPartition()
			p.Partition, p.ErrorCode = qp.Partition, code
			if code == 0 {
				s.log(name, qp.Partition).read(node, q, &qp, &p, n == 0)
			}
			n += len(p.RecordBatches)
			answer = answer || p.ErrorCode != 0 || p.DivergingEpoch.EndOffset >= 0
			t.Partitions = append(t.Partitions, p)
		}
		r.Topics = append(r.Topics, t)
	}
	return r, n, answer
}

func (g *fakeLog) read(node int32, q *kmsg.FetchRequest, qp *kmsg.FetchRequestTopicPartition, p *kmsg.FetchResponseTopicPartition, one bool) {
	if p.ErrorCode = g.fence(node, qp.CurrentLeaderEpoch); p.ErrorCode != 0 {
		if q.Version >= 12 && g != nil {
			p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = g.leader, g.epoch
		}
		return
	}
	p.HighWatermark, p.LogStartOffset, p.LastStableOffset = g.hw, g.start, g.hw
	if q.Version >= 12 && qp.LastFetchedEpoch >= 0 {
		e, end := g.endFor(qp.LastFetchedEpoch)
		if e < 0 {
			p.ErrorCode = kerr.OffsetOutOfRange.Code
			return
		}
		if e < qp.LastFetchedEpoch || end < qp.FetchOffset {
			p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = e, end
			return
		}
	}
	if qp.FetchOffset < g.start || qp.FetchOffset > g.end() {
		p.ErrorCode = kerr.OffsetOutOfRange.Code
		return
	}
	left := int(min(qp.PartitionMaxBytes, q.MaxBytes))
	for _, b := range g.batches {
		if b.NextOffset() <= qp.FetchOffset || b.NextOffset() > g.hw {
			continue
		}
		if len(p.RecordBatches)+len(b) > left && !(one && len(p.RecordBatches) == 0) {
			p.RecordBatches = append(p.RecordBatches, b[:len(b)/2]...) // Kafka cuts where the limit is
			break
		}
		p.RecordBatches = append(p.RecordBatches, b...)
	}
}

// requests returns the fetches of a partition so far.
func (s *fakeSource) requests(index int32) (ps []kmsg.FetchRequestTopicPartition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.fetches {
		for _, t := range s.fetches[i].Topics {
			for _, p := range t.Partitions {
				if p.Partition == index {
					ps = append(ps, p)
				}
			}
		}
	}
	return ps
}

func sameBytes(t testing.TB, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("bytes differ: got %s, want %s", outline(got), outline(want))
	}
}

func outline(b []byte) string {
	s := fmt.Sprintf("%d bytes:", len(b))
	for {
		x, rest, err := records.Split(b)
		if err != nil {
			return s
		}
		s += fmt.Sprintf(" [%d-%d e%d]", x.BaseOffset(), x.LastOffset(), x.PartitionLeaderEpoch())
		b = rest
	}
}

// newest returns the newest epoch, -1 when there is none.
func (h history) newest() int32 {
	if len(h) == 0 {
		return -1
	}
	return h[len(h)-1].epoch
}
