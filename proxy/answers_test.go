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

func fetchRequest(version int16, topic string, offset int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaID, req.SessionEpoch, req.MaxBytes = version, -1, -1, 1<<20
	t := kmsg.NewFetchRequestTopic()
	t.Topic = topic
	t.TopicID = map[string]protocol.UUID{"m": mirrorID, "plain": plainID, "stray": strayID}[topic]
	p := kmsg.NewFetchRequestTopicPartition()
	p.FetchOffset, p.PartitionMaxBytes = offset, 1<<20
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

func firstFetched(resp kmsg.Response) kmsg.FetchResponseTopicPartition {
	return resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]
}

func TestConsumersAreSentToReplicas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.dial()
	for version := int16(11); version <= 18; version++ {
		p := firstFetched(c.ask(fetchRequest(version, "m", 20)))
		if p.ErrorCode != 0 || p.PreferredReadReplica < 1 || p.PreferredReadReplica > 3 ||
			p.HighWatermark != 90 || p.LogStartOffset != 10 || len(p.RecordBatches) != 0 {
			t.Errorf("v%d: %+v", version, p)
		}
	}
	replicas := func(rack string, offset int64) map[int32]bool {
		got := make(map[int32]bool)
		for i := range 64 {
			c.id = fmt.Sprint("client-", i)
			req := fetchRequest(12, "m", offset)
			req.Rack = rack
			got[firstFetched(c.ask(req)).PreferredReadReplica] = true
		}
		return got
	}
	if got := replicas("", 20); len(got) != 3 {
		t.Errorf("64 clients were sent to %v, want all of 1, 2, 3", got)
	}
	if got := replicas("r2", 20); len(got) != 1 || !got[2] {
		t.Errorf("clients in r2 were sent to %v, want 2", got)
	}
	if got := replicas("r3", 96); len(got) != 1 || !got[1] {
		t.Errorf("at offset 96 clients were sent to %v, want 1, which alone has it", got)
	}
	w.image.edit(func(img *kraft.Image) { img.Brokers[1].Fenced = true })
	if got := replicas("r1", 20); len(got) != 2 || got[1] {
		t.Errorf("with 1 fenced clients were sent to %v, want 2 and 3", got)
	}
	w.setISR(node, 3)
	if got := replicas("r2", 20); len(got) != 1 || !got[3] {
		t.Errorf("with 3 alone in sync clients were sent to %v", got)
	}
}

func TestConsumerFetchErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.dial()
	ask := func(name string, req *kmsg.FetchRequest, want int16) kmsg.FetchResponseTopicPartition {
		t.Helper()
		p := firstFetched(c.ask(req))
		if p.ErrorCode != want || p.PreferredReadReplica != -1 {
			t.Errorf("%s: error %d, replica %d, want error %d", name, p.ErrorCode, p.PreferredReadReplica, want)
		}
		return p
	}
	epoch := func(e int32) *kmsg.FetchRequest {
		req := fetchRequest(17, "m", 20)
		req.Topics[0].Partitions[0].CurrentLeaderEpoch = e
		return req
	}
	ask("below the log", fetchRequest(12, "m", 9), codeOffsetOutOfRange)
	ask("above the log", fetchRequest(12, "m", 101), codeOffsetOutOfRange)
	ask("old epoch", epoch(4), codeFencedLeaderEpoch)
	ask("new epoch", epoch(6), codeUnknownLeaderEpoch)
	ask("unknown name", fetchRequest(12, "x", 0), codeUnknownTopic)
	ask("stray", fetchRequest(12, "stray", 0), codeNotLeader)
	if p := ask("not ours", fetchRequest(16, "plain", 0), codeNotLeader); p.CurrentLeader.LeaderID != 1 {
		t.Errorf("leader %d, want 1", p.CurrentLeader.LeaderID)
	}
	unknown := fetchRequest(13, "x", 0)
	unknown.Topics[0].TopicID = protocol.UUID{9}
	ask("unknown id", unknown, codeUnknownTopicID)
	session := fetchRequest(12, "m", 20)
	session.SessionID, session.SessionEpoch = 7, 3
	if got := c.ask(session).(*kmsg.FetchResponse).ErrorCode; got != codeFetchSessionNotFound {
		t.Errorf("somebody else's session: error %d", got)
	}
	for name, change := range map[string]func(*fetch.Status){
		"no roll call": func(s *fetch.Status) { s.RollCall = false },
		"truncating":   func(s *fetch.Status) { s.Role = fetch.RoleTruncate },
		"not known":    func(s *fetch.Status) { s.HighWatermark = -1 },
		"nobody there": func(s *fetch.Status) { s.Followers = nil },
	} {
		old, _ := w.data.Status(mirrorPartition)
		w.data.set(mirrorPartition, change)
		ask(name, fetchRequest(12, "m", 20), codeOffsetNotAvailable)
		w.data.set(mirrorPartition, func(s *fetch.Status) { *s = old })
	}
	for _, role := range []fetch.Role{fetch.RoleFrozen, fetch.RoleDrain, fetch.RoleTail} {
		w.data.set(mirrorPartition, func(s *fetch.Status) { s.Role = role })
		if p := firstFetched(c.ask(fetchRequest(12, "m", 20))); p.ErrorCode != 0 || p.PreferredReadReplica < 1 {
			t.Errorf("role %d: error %d, replica %d", role, p.ErrorCode, p.PreferredReadReplica)
		}
	}
}

func TestConsumerFetchWaitsForAReplica(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.data.set(mirrorPartition, func(s *fetch.Status) { s.RollCall = false })
	c := w.dial()
	req := fetchRequest(12, "m", 20)
	req.MaxWaitMillis = 100
	start := time.Now()
	if p := firstFetched(c.ask(req)); p.ErrorCode != codeOffsetNotAvailable || time.Since(start) < 100*time.Millisecond {
		t.Errorf("error %d after %v, want %d after the consumer's wait", p.ErrorCode, time.Since(start), codeOffsetNotAvailable)
	}
	req.MaxWaitMillis = 60000
	c.send(1, req)
	w.data.set(mirrorPartition, func(s *fetch.Status) { s.RollCall = true })
	if _, resp := c.receive(req); firstFetched(resp).PreferredReadReplica < 1 {
		t.Errorf("no replica although there is one: %+v", firstFetched(resp))
	}
	w.data.set(mirrorPartition, func(s *fetch.Status) { s.RollCall = false })
	before := w.data.calls.Load()
	c.send(2, req)
	eventually(t, "the fetch waits", func() bool { return w.data.calls.Load() > before })
	w.cancel()
	if corr, _ := c.receive(req); corr != 2 {
		t.Error("a waiting fetch is not answered at the end")
	}
}

func TestOldFetchVersionsAreReadFromAReplica(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for id, b := range w.brokers {
		b.on(func(h protocol.RequestHeader, body []byte) kmsg.Response {
			if h.Key != keyFetch {
				return echo(h)
			}
			decoded, err := protocol.DecodeRequest(h, body)
			if err != nil || h.Version != 11 {
				t.Errorf("version %d, %v", h.Version, err)
				return nil
			}
			req := decoded.(*kmsg.FetchRequest)
			resp := kmsg.NewPtrFetchResponse()
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic = req.Topics[0].Topic
			rp := kmsg.NewFetchResponseTopicPartition()
			rp.HighWatermark, rp.LastStableOffset = 88, 80
			rp.RecordBatches = fmt.Appendf(nil, "from %d at %d", id, req.Topics[0].Partitions[0].FetchOffset)
			if req.ReplicaID != -1 || req.IsolationLevel != 1 {
				rp.ErrorCode = 99
			}
			rt.Partitions = append(rt.Partitions, rp)
			resp.Topics = append(resp.Topics, rt)
			return resp
		})
	}
	c := w.dial()
	c.ask(metadataRequest())
	for version := int16(4); version <= 10; version++ {
		req := fetchRequest(version, "m", 20)
		req.IsolationLevel = 1
		p := firstFetched(c.ask(req))
		if p.ErrorCode != 0 || !strings.HasSuffix(string(p.RecordBatches), " at 20") || p.LastStableOffset != 80 {
			t.Errorf("v%d: error %d, %q", version, p.ErrorCode, p.RecordBatches)
		}
	}
	dials := 0
	for _, b := range w.brokers {
		dials += b.connections()
	}
	if dials != 1 {
		t.Errorf("%d connections, want the client's one", dials)
	}
	w.image.edit(func(img *kraft.Image) {
		name := kraft.ConfigResource{Type: kraft.ConfigTopic, Name: "m"}
		img.Configs[name] = map[string]string{"compression.type": "zstd"}
	})
	if p := firstFetched(c.ask(fetchRequest(9, "m", 20))); p.ErrorCode != codeUnsupportedCodec {
		t.Errorf("zstd to version 9: error %d", p.ErrorCode)
	}
	w.data.set(mirrorPartition, func(s *fetch.Status) { s.Followers = nil })
	if p := firstFetched(c.ask(fetchRequest(10, "m", 20))); p.ErrorCode != codeNotLeader {
		t.Errorf("no replica: error %d, want one that old clients know", p.ErrorCode)
	}
}

func TestOldFetchSurvivesALostReplica(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setISR(node, 3)
	w.brokers[3].stop()
	if p := firstFetched(w.dial().ask(fetchRequest(10, "m", 20))); p.ErrorCode != codeNotLeader {
		t.Errorf("error %d, want a retriable one", p.ErrorCode)
	}
}

func TestReplicaFetchIsTheLeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.replicaFetch = emptyFetch
	req := fetchRequest(12, "m", 20)
	req.ReplicaID = 1
	if resp := w.dial().ask(req).(*kmsg.FetchResponse); resp.ErrorCode != 0 || len(resp.Topics) != 0 {
		t.Errorf("%+v", resp)
	}
	req = fetchRequest(17, "m", 20)
	req.ReplicaState.ID = 1
	if resp := w.dial().ask(req).(*kmsg.FetchResponse); resp.ErrorCode != 0 || len(resp.Topics) != 0 {
		t.Errorf("%+v", resp)
	}
	client := newWorld(t, func(_ *world, cfg *Config) { cfg.Listeners[0].InterBroker = false })
	if resp := client.dial().ask(req).(*kmsg.FetchResponse); resp.ErrorCode != codeClusterAuthorization {
		t.Errorf("on a client listener: error %d", resp.ErrorCode)
	}
}

func listRequest(version int16, replica int32, isolation int8, topic string, timestamps ...int64) *kmsg.ListOffsetsRequest {
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID, req.IsolationLevel = version, replica, isolation
	for _, ts := range timestamps {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = topic
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Timestamp = ts
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
	}
	return req
}

// offsetScript answers ListOffsets with a fixed offset for each timestamp, and Fetch with a last stable offset.
func offsetScript(t testing.TB, offsets map[int64]int64, lso int64) func(protocol.RequestHeader, []byte) kmsg.Response {
	return func(h protocol.RequestHeader, body []byte) kmsg.Response {
		decoded, err := protocol.DecodeRequest(h, body)
		if err != nil {
			t.Error(err)
			return nil
		}
		switch req := decoded.(type) {
		case *kmsg.ListOffsetsRequest:
			if req.ReplicaID != debugReplica {
				t.Errorf("replica id %d, want one that followers answer", req.ReplicaID)
			}
			resp := kmsg.NewPtrListOffsetsResponse()
			for _, asked := range req.Topics {
				rt := kmsg.NewListOffsetsResponseTopic()
				rt.Topic = asked.Topic
				for _, p := range asked.Partitions {
					rp := kmsg.NewListOffsetsResponseTopicPartition()
					rp.Offset, rp.Timestamp, rp.LeaderEpoch = offsets[p.Timestamp], 1000, 3
					rt.Partitions = append(rt.Partitions, rp)
				}
				resp.Topics = append(resp.Topics, rt)
			}
			return resp
		case *kmsg.FetchRequest:
			if req.IsolationLevel != 1 || req.Topics[0].Partitions[0].FetchOffset != 90 {
				t.Errorf("asked for the last stable offset at %d, isolation %d",
					req.Topics[0].Partitions[0].FetchOffset, req.IsolationLevel)
			}
			resp := kmsg.NewPtrFetchResponse()
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic = req.Topics[0].Topic
			rp := kmsg.NewFetchResponseTopicPartition()
			rp.LastStableOffset, rp.HighWatermark = lso, 85
			rt.Partitions = append(rt.Partitions, rp)
			resp.Topics = append(resp.Topics, rt)
			return resp
		}
		return echo(h)
	}
}

func TestListOffsets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, b := range w.brokers {
		b.on(offsetScript(t, map[int64]int64{-2: 12, -3: 95, -4: 13, 500: 70, 600: 92}, 65))
	}
	c := w.dial()
	for _, tt := range []struct {
		name      string
		version   int16
		replica   int32
		isolation int8
		timestamp int64
		code      int16
		offset    int64
	}{
		{"latest is the high watermark", 7, -1, 0, -1, 0, 90},
		{"latest of committed records is the last stable offset", 7, -1, 1, -1, 0, 65},
		{"earliest from a replica", 7, -1, 0, -2, 0, 12},
		{"earliest of committed records", 7, -1, 1, -2, 0, 12},
		{"earliest local", 8, -1, 0, -4, 0, 13},
		{"latest tiered: none", 9, -1, 0, -5, 0, -1},
		{"by time", 7, -1, 0, 500, 0, 70},
		{"by time, not yet visible", 7, -1, 0, 600, 0, -1},
		{"by time, not yet stable", 7, -1, 1, 500, 0, -1},
		{"maximum, not yet visible", 7, -1, 0, -3, 0, -1},
		{"old version", 1, -1, 0, -2, 0, 12},
		{"replica: latest is the log end", 7, 2, 0, -1, 0, 100},
		{"replica: earliest is our start", 7, 2, 0, -2, 0, 10},
		{"replica: tiered", 9, 2, 0, -5, 0, -1},
		{"debugging replica", 7, -2, 0, -1, 0, 100},
	} {
		resp := c.ask(listRequest(tt.version, tt.replica, tt.isolation, "m", tt.timestamp)).(*kmsg.ListOffsetsResponse)
		if p := resp.Topics[0].Partitions[0]; p.ErrorCode != tt.code || p.Offset != tt.offset {
			t.Errorf("%s: error %d, offset %d, want %d, %d", tt.name, p.ErrorCode, p.Offset, tt.code, tt.offset)
		}
	}
	for topic, want := range map[string]int16{"plain": codeNotLeader, "stray": codeNotLeader, "x": codeUnknownTopic} {
		resp := c.ask(listRequest(7, -1, 0, topic, -1)).(*kmsg.ListOffsetsResponse)
		if got := resp.Topics[0].Partitions[0].ErrorCode; got != want {
			t.Errorf("%s: error %d, want %d", topic, got, want)
		}
	}
	w.data.set(mirrorPartition, func(s *fetch.Status) { s.RollCall = false })
	for version, want := range map[int16]int16{4: codeLeaderNotAvailable, 5: codeOffsetNotAvailable} {
		resp := c.ask(listRequest(version, -1, 0, "m", -1)).(*kmsg.ListOffsetsResponse)
		if got := resp.Topics[0].Partitions[0].ErrorCode; got != want {
			t.Errorf("v%d without roll call: error %d, want %d", version, got, want)
		}
	}
}

func TestListOffsetsOfAnEmptyMirror(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.data.set(mirrorPartition, func(s *fetch.Status) {
		s.LogStart, s.LogEnd, s.HighWatermark = 0, 0, 0
		s.Followers = map[int32]fetch.FollowerStatus{1: {FetchOffset: 0}}
	})
	w.brokers[1].on(offsetScript(t, map[int64]int64{-2: 0}, 0))
	resp := w.dial().ask(listRequest(7, -1, 0, "m", -2)).(*kmsg.ListOffsetsResponse)
	if p := resp.Topics[0].Partitions[0]; p.ErrorCode != 0 || p.Offset != 0 {
		t.Errorf("earliest: error %d, offset %d, want 0", p.ErrorCode, p.Offset)
	}
}

func TestLookupsGetASecondConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setISR(node, 2)
	w.brokers[2].on(offsetScript(t, map[int64]int64{-2: 12}, 65))
	first := func() int16 {
		resp := w.dial().ask(listRequest(7, -1, 0, "m", -2)).(*kmsg.ListOffsetsResponse)
		return resp.Topics[0].Partitions[0].ErrorCode
	}
	if code := first(); code != 0 {
		t.Errorf("error %d", code)
	}
	c := w.dial()
	for range 2 {
		resp := c.ask(listRequest(7, -1, 0, "m", -2)).(*kmsg.ListOffsetsResponse)
		if p := resp.Topics[0].Partitions[0]; p.Offset != 12 {
			t.Errorf("offset %d, error %d", p.Offset, p.ErrorCode)
		}
		w.brokers[2].hangup() // the next lookup needs another connection
	}
	w.brokers[2].stop()
	if code := first(); code != codeOffsetNotAvailable {
		t.Errorf("replica gone: error %d, want a retriable one", code)
	}
}

func TestOffsetForLeaderEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.data.epochs[4] = [2]int64{3, 70}
	ask := func(topic string, replica, current, epoch int32) kmsg.OffsetForLeaderEpochResponseTopicPartition {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		req.Version, req.ReplicaID = 4, replica
		rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
		rt.Topic = topic
		p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		p.CurrentLeaderEpoch, p.LeaderEpoch = current, epoch
		rt.Partitions = append(rt.Partitions, p)
		req.Topics = append(req.Topics, rt)
		return w.dial().ask(req).(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0]
	}
	if p := ask("m", -1, 5, 4); p.ErrorCode != 0 || p.LeaderEpoch != 3 || p.EndOffset != 70 {
		t.Errorf("%+v, want epoch 3 ending at 70", p)
	}
	for _, tt := range []struct {
		topic          string
		replica        int32
		current, epoch int32
		want           int16
	}{
		{"m", -1, 5, 2, codeLeaderNotAvailable}, {"m", -1, 4, 4, codeFencedLeaderEpoch},
		{"m", -1, 6, 4, codeUnknownLeaderEpoch}, {"plain", -1, -1, 4, codeNotLeader}, {"x", -1, -1, 4, codeUnknownTopic},
		{"stray", -1, -1, 4, codeNotLeader}, {"stray", 1, -1, 4, 0},
	} {
		if p := ask(tt.topic, tt.replica, tt.current, tt.epoch); p.ErrorCode != tt.want {
			t.Errorf("%+v: error %d", tt, p.ErrorCode)
		}
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

func TestConfigsOfNodesAndTopics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *world, cfg *Config) {
		cfg.NodeConfig = func(int32) map[string]string { return map[string]string{"b": "2", "a": "1"} }
	})
	for _, b := range w.brokers {
		b.on(func(h protocol.RequestHeader, body []byte) kmsg.Response {
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
		})
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
