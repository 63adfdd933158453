package proxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/fetch"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

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
