package admin

import (
	"encoding/binary"
	"log/slog"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/coordinator"
	"kmirror/internal/quiet"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// FuzzAnswer gives the listener whatever comes as a frame. What it answers is a whole frame with the request's correlation id and, for
// Kafka's own APIs, decodes in the request's version.
func FuzzAnswer(f *testing.F) {
	body := func(m kip1279.Message) []byte {
		return appendRequest(nil, header{key: m.Key()}, func(dst []byte) []byte { return kip1279.Append(dst, m) })[4:]
	}
	for key, v := range kafkaAPIs {
		for version := v.min; version <= v.max; version++ {
			req := kmsg.RequestForKey(key)
			req.SetVersion(version)
			f.Add(appendRequest(nil, header{key: key, version: version, correlation: 7}, req.AppendTo)[4:])
		}
	}
	for _, api := range kip1279.APIs() {
		f.Add(body(api.Request()))
	}
	change := kmsg.NewPtrIncrementalAlterConfigsRequest()
	change.Version = 1
	change.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: resourceMirror, ResourceName: "m",
		Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "mirror.topics.include", Op: 2, Value: new("a,b")}}}}
	f.Add(appendRequest(nil, header{key: keyIncrementalAlterConfigs, version: 1}, change.AppendTo)[4:])
	f.Add(body(&kip1279.CreateClusterMirrorRequest{MirrorName: "m"}))
	f.Add(body(&kip1279.StartMirrorTopicsRequest{MirrorName: "m", Options: []byte(`{"exclude":["a"]}`)}))
	f.Add(body(&kip1279.DescribeClusterMirrorsRequest{Options: []byte(`{"topics":["/a/"]}`)}))
	f.Add(body(&kip1279.KmirrorCallRequest{Verb: "v", Payload: []byte("{}")}))
	f.Add(body(&kip1279.KmirrorCallRequest{Verb: VerbRetire, Payload: []byte(`{"node_ids":[9001]}`)}))
	f.Add(body(&kip1279.StopMirrorTopicsRequest{MirrorName: "m", Patterns: []string{".*"}, Options: []byte(`{"max_loss":0}`)}))
	f.Add(body(&kip1279.PauseMirrorTopicsRequest{MirrorName: "m", Options: []byte(`{"patterns":["a|b"]}`)}))
	f.Add(body(&kip1279.ResumeMirrorTopicsRequest{MirrorName: "m", Topics: named([]string{"t"})}))
	f.Add(body(&kip1279.RecoverMirrorTopicsRequest{MirrorName: "m", Topics: named([]string{"t"}), Options: []byte("{")}))
	f.Add(body(&kip1279.DeleteClusterMirrorRequest{MirrorName: "m", Options: []byte(`{"dry_run":true}`)}))
	f.Add(body(&kip1279.BumpLeaderEpochsRequest{Topics: []kip1279.BumpTopic{{Partitions: []kip1279.BumpPartition{{}, {}}}}}))
	f.Add(body(&kip1279.DescribeClusterMirrorsRequest{ClusterID: new("c"), Lookups: []kip1279.EpochLookup{{Partitions: []int32{1}}}}))
	f.Add([]byte("\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff\x00"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	defer l.Close()
	s := &Server{quiet: quiet.New(slog.New(slog.DiscardHandler), quiet.Interval, nil)}
	f.Fuzz(func(t *testing.T, frame []byte) {
		service := &keeper{fake: &fake{mirrors: []MirrorInfo{{Mirror: "m"}}, parts: []PartitionInfo{fullPartition()}},
			configs: map[string]map[string]string{"m": {"bootstrap.servers": "a:1"}}}
		s.cfg = Config{Listen: l, Service: service, States: &owner{states: map[protocol.PartitionID]coordinator.PartitionState{}},
			Log: slog.New(slog.DiscardHandler)}
		h, _, err := parseHeader(frame)
		if err != nil {
			return
		}
		out, err := s.answer(t.Context(), frame, caller{})
		if err != nil {
			return
		}
		if int(binary.BigEndian.Uint32(out)) != len(out)-4 {
			t.Fatalf("a frame of %d bytes says that it has %d", len(out)-4, binary.BigEndian.Uint32(out))
		}
		correlation, body, err := parseResponse(h, out[4:])
		if err != nil || correlation != h.correlation {
			t.Fatalf("correlation id %d, %v", correlation, err)
		}
		if _, ok := kafkaAPIs[h.key]; ok {
			resp := kmsg.ResponseForKey(h.key)
			resp.SetVersion(h.version)
			if err := resp.ReadFrom(body); err != nil {
				t.Fatalf("the answer to key %d version %d: %v", h.key, h.version, err)
			}
		}
	})
}
