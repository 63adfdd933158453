package proxy

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/fetch"
	"kmirror/protocol"
)

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
