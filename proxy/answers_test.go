package proxy

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/fetch"
	"kmirror/internal/quiet"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

var mirrorPartition = protocol.PartitionID{Topic: mirrorID}

// fuzzServer has brokers that nobody can reach.
func fuzzServer(f *testing.F) *Server {
	img := kraft.Empty()
	img.Brokers = map[int32]*kraft.Broker{1: {ID: 1, Endpoints: []kraft.Endpoint{{Name: "CLIENT", Host: "127.0.0.1", Port: 1}}}}
	img.Names, img.Topics = map[string]protocol.UUID{}, map[protocol.UUID]*kraft.Topic{}
	addTopic(img, "m", mirrorID, node)
	cfg := Config{
		Images: &fixedImage{img: img}, ClusterID: func() string { return "c" }, Mirrors: fakeMirrors{"m": "east"},
		Leader: &fakeData{status: map[protocol.PartitionID]fetch.Status{}}, Owns: func(id int32) bool { return id >= 9000 },
		MaxFrame: 1 << 16, Listeners: []Listener{{Name: "CLIENT", NodeID: node, InterBroker: true}},
	}
	cfg.setDefaults()
	s := &Server{cfg: cfg, log: cfg.Log, quiet: quiet.New(cfg.Log, time.Hour, nil), replicaFetch: emptyFetch}
	s.versions = newVersionCache(s)
	return s
}

type refusals struct {
	NopObserver
	mu  sync.Mutex
	got []string
}

func (r *refusals) ProduceRefused(mirror, topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, mirror+"/"+topic)
}

func TestProduceToMirrorIsRefusedByPartition(t *testing.T) {
	t.Parallel()
	seen := &refusals{}
	w := newWorld(t, func(_ *world, cfg *Config) { cfg.Observer = seen })
	c := w.dial()
	for version := int16(3); version <= 13; version++ {
		resp := c.ask(produceRequest(version, -1, "plain", "m", "stray")).(*kmsg.ProduceResponse)
		for i, want := range []int16{codeNotLeader, PolicyViolation, codeNotLeader} {
			p := resp.Topics[i].Partitions[0]
			if p.ErrorCode != want || p.BaseOffset != -1 {
				t.Errorf("v%d topic %d: error %d at offset %d, want %d", version, i, p.ErrorCode, p.BaseOffset, want)
			}
			if hasText := p.ErrorMessage != nil; hasText != (version >= 8 && want == PolicyViolation) {
				t.Errorf("v%d topic %d: text %v", version, i, p.ErrorMessage)
			}
			if m := p.ErrorMessage; m != nil &&
				!strings.HasPrefix(*m, "ReadOnlyTopicException: topic m is mirrored by east and read-only") {
				t.Errorf("v%d: text %q", version, *m)
			}
		}
		if version >= 13 && protocol.UUID(resp.Topics[1].TopicID) != mirrorID {
			t.Errorf("v%d: topic id %v", version, resp.Topics[1].TopicID)
		}
		if leader := resp.Topics[0].Partitions[0].CurrentLeader.LeaderID; version >= 10 && leader != 1 {
			t.Errorf("v%d: leader %d of the other topic, want 1", version, leader)
		}
		if version >= 10 && (len(resp.Brokers) != 2 || resp.Brokers[0].Port != int32(w.brokers[1].endpoint().Port)) {
			t.Errorf("v%d: endpoints %+v, want those of broker 1 and of this node", version, resp.Brokers)
		}
	}
	if n := len(w.upstreamRequests()); n != 0 {
		t.Errorf("%d requests went upstream", n)
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if len(seen.got) != 11 || seen.got[0] != "east/m" {
		t.Errorf("observer saw %v", seen.got)
	}
	c.ask(produceRequest(9, 1, "plain", "stray"))
	c.ask(produceRequest(13, 1, "plain"))
	if n := len(w.upstreamRequests()); n != 2 {
		t.Errorf("%d requests without a mirror topic went upstream, want 2", n)
	}
}

func TestReadOnlyErrorByConfig(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *world, cfg *Config) { cfg.ReadOnlyError = ReadOnlyTopic })
	resp := w.dial().ask(produceRequest(9, 1, "m")).(*kmsg.ProduceResponse)
	if got := resp.Topics[0].Partitions[0].ErrorCode; got != ReadOnlyTopic {
		t.Errorf("error %d, want 134", got)
	}
}

func TestMarkersDeletionsAndShares(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.dial()
	topics := []string{"m", "plain", "stray", "x"}

	markers := kmsg.NewPtrWriteTxnMarkersRequest()
	markers.Version = 1
	m := kmsg.NewWriteTxnMarkersRequestMarker()
	deletion := kmsg.NewPtrDeleteRecordsRequest()
	for _, name := range topics {
		mt := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
		mt.Topic, mt.Partitions = name, []int32{0}
		m.Topics = append(m.Topics, mt)
		dt := kmsg.NewDeleteRecordsRequestTopic()
		dt.Topic = name
		dt.Partitions = append(dt.Partitions, kmsg.NewDeleteRecordsRequestTopicPartition())
		deletion.Topics = append(deletion.Topics, dt)
	}
	markers.Markers = append(markers.Markers, m)
	marked := c.ask(markers).(*kmsg.WriteTxnMarkersResponse)
	deleted := c.ask(deletion).(*kmsg.DeleteRecordsResponse)
	wantMarked := []int16{0, codeNotLeader, codeNotLeader, codeUnknownTopic}
	wantDeleted := []int16{codePolicyViolation, codeNotLeader, codeNotLeader, codeUnknownTopic}
	for i := range topics {
		if got := marked.Markers[0].Topics[i].Partitions[0].ErrorCode; got != wantMarked[i] {
			t.Errorf("marker for %s: error %d, want %d", topics[i], got, wantMarked[i])
		}
		if got := deleted.Topics[i].Partitions[0].ErrorCode; got != wantDeleted[i] {
			t.Errorf("deletion from %s: error %d, want %d", topics[i], got, wantDeleted[i])
		}
	}

	shares, acks := kmsg.NewPtrShareFetchRequest(), kmsg.NewPtrShareAcknowledgeRequest()
	shares.Version, acks.Version = 1, 1
	wantShared := []int16{codeInvalidRequest, codeNotLeader, codeNotLeader, codeUnknownTopicID}
	for _, id := range []protocol.UUID{mirrorID, plainID, strayID, {9}} {
		st, at := kmsg.NewShareFetchRequestTopic(), kmsg.NewShareAcknowledgeRequestTopic()
		st.TopicID, at.TopicID = id, id
		st.Partitions = append(st.Partitions, kmsg.NewShareFetchRequestTopicPartition())
		at.Partitions = append(at.Partitions, kmsg.NewShareAcknowledgeRequestTopicPartition())
		shares.Topics, acks.Topics = append(shares.Topics, st), append(acks.Topics, at)
	}
	fetched, acked := c.ask(shares).(*kmsg.ShareFetchResponse), c.ask(acks).(*kmsg.ShareAcknowledgeResponse)
	for i, want := range wantShared {
		f, a := fetched.Topics[i].Partitions[0], acked.Topics[i].Partitions[0]
		if f.ErrorCode != want || a.ErrorCode != want || (f.ErrorMessage != nil) != (i == 0) {
			t.Errorf("share requests for topic %d: errors %d and %d, want %d", i, f.ErrorCode, a.ErrorCode, want)
		}
	}
	if n := len(w.upstreamRequests()); n != 0 {
		t.Errorf("%d requests went upstream", n)
	}
}

func TestDescribeProducers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	req := kmsg.NewPtrDescribeProducersRequest()
	for _, name := range []string{"m", "plain"} {
		rt := kmsg.NewDescribeProducersRequestTopic()
		rt.Topic, rt.Partitions = name, []int32{0}
		req.Topics = append(req.Topics, rt)
	}
	for _, tt := range []struct{ replica, want int16 }{{0, 0}, {codeNotLeader, codePolicyViolation}} {
		for _, b := range w.brokers {
			b.on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
				if h.Key != 61 {
					return echo(h)
				}
				resp := kmsg.NewPtrDescribeProducersResponse()
				rt := kmsg.NewDescribeProducersResponseTopic()
				rt.Topic = "m"
				rp := kmsg.NewDescribeProducersResponseTopicPartition()
				rp.ErrorCode = tt.replica
				rt.Partitions = append(rt.Partitions, rp)
				resp.Topics = append(resp.Topics, rt)
				return resp
			})
		}
		resp := w.dial().ask(req).(*kmsg.DescribeProducersResponse)
		if got := resp.Topics[0].Partitions[0]; got.ErrorCode != tt.want || (got.ErrorMessage != nil) != (tt.want != 0) {
			t.Errorf("replica answers %d: error %d, want %d", tt.replica, got.ErrorCode, tt.want)
		}
		if got := resp.Topics[1].Partitions[0].ErrorCode; got != codeNotLeader {
			t.Errorf("not ours: error %d", got)
		}
	}
}

func TestNodeAddressedRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *world, cfg *Config) {
		cfg.NodeConfig = func(int32) map[string]string { return map[string]string{"b": "2", "a": "1"} }
	})
	c := w.dial()
	if resp := c.ask(kmsg.NewPtrListGroupsRequest()).(*kmsg.ListGroupsResponse); resp.ErrorCode != 0 || len(resp.Groups) != 0 {
		t.Errorf("ListGroups: %+v", resp)
	}
	if resp := c.ask(kmsg.NewPtrListTransactionsRequest()).(*kmsg.ListTransactionsResponse); resp.ErrorCode != 0 {
		t.Errorf("ListTransactions: %+v", resp)
	}
	dirs := kmsg.NewPtrDescribeLogDirsRequest()
	dirs.Version = 4
	if resp := c.ask(dirs).(*kmsg.DescribeLogDirsResponse); len(resp.Dirs) != 1 || len(resp.Dirs[0].Topics) != 0 {
		t.Errorf("DescribeLogDirs: %+v", resp)
	}
	move := kmsg.NewPtrAlterReplicaLogDirsRequest()
	dir, topic := kmsg.NewAlterReplicaLogDirsRequestDir(), kmsg.NewAlterReplicaLogDirsRequestDirTopic()
	topic.Topic, topic.Partitions = "m", []int32{0}
	dir.Topics = append(dir.Topics, topic)
	move.Dirs = append(move.Dirs, dir)
	resp := c.ask(move).(*kmsg.AlterReplicaLogDirsResponse)
	if got := resp.Topics[0].Partitions[0].ErrorCode; got != codeLogDirNotFound {
		t.Errorf("AlterReplicaLogDirs: error %d", got)
	}
	if n := len(w.upstreamRequests()); n != 0 {
		t.Errorf("%d requests went upstream", n)
	}
}

// configScript answers requests about configs with their resources, without an error.
func configScript(t *testing.T) func(protocol.RequestHeader, []byte) kmsg.Response {
	return func(h protocol.RequestHeader, body []byte) kmsg.Response {
		decoded, err := protocol.DecodeRequest(h, body)
		if err != nil {
			t.Error(err)
			return nil
		}
		switch req := decoded.(type) {
		case *kmsg.DescribeConfigsRequest:
			resp := kmsg.NewPtrDescribeConfigsResponse()
			for _, r := range req.Resources {
				out := kmsg.NewDescribeConfigsResponseResource()
				out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
				resp.Resources = append(resp.Resources, out)
			}
			return resp
		case *kmsg.IncrementalAlterConfigsRequest:
			resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
			for _, r := range req.Resources {
				out := kmsg.NewIncrementalAlterConfigsResponseResource()
				out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
				resp.Resources = append(resp.Resources, out)
			}
			return resp
		}
		return echo(h)
	}
}

func TestConfigsOfNodesAndTopics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *world, cfg *Config) {
		cfg.NodeConfig = func(int32) map[string]string { return map[string]string{"b": "2", "a": "1"} }
	})
	for _, b := range w.brokers {
		b.on(configScript(t))
	}
	c := w.dial()
	c.send(1, metadataRequest()) // in flight while the merged request asks upstream
	req := kmsg.NewPtrDescribeConfigsRequest()
	alter := kmsg.NewPtrIncrementalAlterConfigsRequest()
	old := kmsg.NewPtrAlterConfigsRequest()
	for _, r := range []struct {
		kind kmsg.ConfigResourceType
		name string
	}{{4, "9001"}, {2, "plain"}, {4, "1"}, {4, ""}} {
		dr := kmsg.NewDescribeConfigsRequestResource()
		dr.ResourceType, dr.ResourceName = r.kind, r.name
		req.Resources = append(req.Resources, dr)
		ar := kmsg.NewIncrementalAlterConfigsRequestResource()
		ar.ResourceType, ar.ResourceName = r.kind, r.name
		alter.Resources = append(alter.Resources, ar)
	}
	or := kmsg.NewAlterConfigsRequestResource()
	or.ResourceType, or.ResourceName = 4, "9001"
	old.Resources = append(old.Resources, or)
	c.send(2, req)
	c.receive(metadataRequest())
	_, r := c.receive(req)
	got := make(map[string]int16)
	for _, res := range r.(*kmsg.DescribeConfigsResponse).Resources {
		got[fmt.Sprint(int8(res.ResourceType), "/", res.ResourceName)] = res.ErrorCode
		if res.ResourceName == "9001" {
			names := []string{res.Configs[0].Name, res.Configs[1].Name}
			if !slices.Equal(names, []string{"a", "b"}) || !res.Configs[0].ReadOnly {
				t.Errorf("configs of our node: %+v", res.Configs)
			}
		}
	}
	want := map[string]int16{"4/9001": 0, "2/plain": 0, "4/1": codeInvalidRequest, "4/": 0}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("DescribeConfigs: %v, want %v", got, want)
	}
	altered := c.ask(alter).(*kmsg.IncrementalAlterConfigsResponse)
	got = make(map[string]int16)
	for _, res := range altered.Resources {
		got[fmt.Sprint(int8(res.ResourceType), "/", res.ResourceName)] = res.ErrorCode
	}
	want["4/9001"] = codeInvalidRequest
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("IncrementalAlterConfigs: %v, want %v", got, want)
	}
	// Who clears the throttles of all brokers clears nothing here: there is nothing to refuse.
	for op, code := range map[kmsg.IncrementalAlterConfigOp]int16{kmsg.IncrementalAlterConfigOpDelete: 0,
		kmsg.IncrementalAlterConfigOpSet: codeInvalidRequest} {
		throttle, value := kmsg.NewIncrementalAlterConfigsRequestResourceConfig(), "1"
		throttle.Name, throttle.Op, throttle.Value = "leader.replication.throttled.rate", op, &value
		alter.Resources = alter.Resources[:1]
		alter.Resources[0].Configs = []kmsg.IncrementalAlterConfigsRequestResourceConfig{throttle}
		if got := c.ask(alter).(*kmsg.IncrementalAlterConfigsResponse).Resources[0].ErrorCode; got != code {
			t.Errorf("operation %v on a config of our node: error %d, want %d", op, got, code)
		}
	}
	p := c.ask(old).(*kmsg.AlterConfigsResponse).Resources[0]
	if p.ErrorCode != codeInvalidRequest || p.ErrorMessage == nil {
		t.Errorf("AlterConfigs of our node: %+v", p)
	}
}
