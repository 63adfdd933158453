package admin

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"

	"kmirror/protocol/kip1279"
)

// FuzzResponse gives the client whatever a server may answer, to each key: it costs an error at most, and what the client
// makes of a partition says the same when it is encoded and read again.
func FuzzResponse(f *testing.F) {
	frame := func(m kip1279.Message) []byte {
		return kip1279.Append(kbin.AppendInt32(nil, 3)[:4:4], m)
	}
	add := func(key int16, m kip1279.Message) {
		b := frame(m)
		f.Add(key, slices.Insert(b, 4, 0))
		f.Add(key, b)
	}
	hint, since, lag := "ask", time.Unix(1e9, 0).UTC(), int64(5)
	failed := kip1279.Status{ErrorCode: kip1279.UnsupportedVersion, ErrorMessage: &hint}
	add(kip1279.KeyCreateClusterMirror, &kip1279.CreateClusterMirrorResponse{Status: failed, Extra: mustJSON(errorExtra{hint, 3})})
	add(kip1279.KeyStartMirrorTopics, &kip1279.StartMirrorTopicsResponse{Status: failed, Extra: []byte("{")})
	add(kip1279.KeyListClusterMirrors, &kip1279.ListClusterMirrorsResponse{})
	add(kip1279.KeyKmirrorCall, &kip1279.KmirrorCallResponse{Payload: []byte("{}")})
	outcome := kip1279.TopicOutcome{Name: "t", Extra: mustJSON(topicExtra{Plan: &TopicPlan{Partitions: []PartitionPlan{{Lag: 1}}}})}
	add(kip1279.KeyStopMirrorTopics, &kip1279.StopMirrorTopicsResponse{Topics: []kip1279.TopicOutcome{outcome}})
	add(kip1279.KeyPauseMirrorTopics, &kip1279.PauseMirrorTopicsResponse{Status: failed})
	add(kip1279.KeyResumeMirrorTopics, &kip1279.ResumeMirrorTopicsResponse{Topics: []kip1279.TopicOutcome{{Name: "t", ErrorCode: 141}}})
	add(kip1279.KeyRecoverMirrorTopics, &kip1279.RecoverMirrorTopicsResponse{Topics: []kip1279.TopicOutcome{outcome}})
	add(kip1279.KeyDeleteClusterMirror, &kip1279.DeleteClusterMirrorResponse{Status: failed})
	add(kip1279.KeyBumpLeaderEpochs, &kip1279.BumpLeaderEpochsResponse{Topics: []kip1279.PartitionOutcomes{
		{Name: "t", TopicID: [16]byte{1}, Partitions: []kip1279.PartitionOutcome{{ErrorCode: 3, Extra: []byte("{}")}}}}})
	p := PartitionInfo{Partition: 1, StateSince: &since, Lag: &lag, LagBytes: &lag, Hint: &hint, ISRReal: []int32{1, 2}}
	described := &kip1279.DescribeClusterMirrorsResponse{}
	described.Mirrors = make([]kip1279.DescribedMirror, 1)
	described.Mirrors[0].Topics = make([]kip1279.DescribedTopic, 1)
	described.Mirrors[0].Topics[0].Partitions = []kip1279.DescribedPartition{partitionTo(p)}
	add(kip1279.KeyDescribeClusterMirrors, described)
	f.Fuzz(func(t *testing.T, key int16, frame []byte) {
		correlation, body, err := parseResponse(header{key: key}, frame)
		if err != nil {
			if correlation != 0 || body != nil {
				t.Fatal("a result next to an error")
			}
			return
		}
		if len(body) > len(frame)-4 {
			t.Fatalf("a body of %d bytes in a frame of %d", len(body), len(frame))
		}
		for _, resp := range []kip1279.Response{
			&kip1279.CreateClusterMirrorResponse{}, &kip1279.StartMirrorTopicsResponse{}, &kip1279.ListClusterMirrorsResponse{},
			&kip1279.DescribeClusterMirrorsResponse{}, &kip1279.KmirrorCallResponse{}, &kip1279.StopMirrorTopicsResponse{},
			&kip1279.PauseMirrorTopicsResponse{}, &kip1279.ResumeMirrorTopicsResponse{}, &kip1279.RecoverMirrorTopicsResponse{},
			&kip1279.DeleteClusterMirrorResponse{}, &kip1279.BumpLeaderEpochsResponse{},
		} {
			if resp.Key() == key && kip1279.Decode(body, resp) == nil {
				_ = statusError(resp.Head(), body)
				checkPartitions(t, resp)
				checkOutcomes(t, resp)
			}
		}
	})
}

func checkPartitions(t *testing.T, resp kip1279.Response) {
	described, ok := resp.(*kip1279.DescribeClusterMirrorsResponse)
	if !ok {
		return
	}
	for _, m := range described.Mirrors {
		for _, topic := range m.Topics {
			for _, p := range topic.Partitions {
				info, err := partitionFrom(m.MirrorName, topic.TopicName, p)
				if err != nil {
					continue
				}
				for _, offset := range []*int64{info.SourceOffset, info.DestinationOffset, info.Lag} {
					if offset != nil && *offset < 0 {
						t.Fatalf("%d is shown where the server does not know", *offset)
					}
				}
				again, err := partitionFrom(m.MirrorName, topic.TopicName, partitionTo(info))
				if one, two := mustJSON(info), mustJSON(again); err != nil || !json.Valid(one) || string(one) != string(two) {
					t.Fatalf("%s\nread again: %s, %v", one, two, err)
				}
			}
		}
	}
}

// checkOutcomes: what the client makes of topics' results says the same when it is encoded and read again.
func checkOutcomes(t *testing.T, resp kip1279.Response) {
	var topics []kip1279.TopicOutcome
	switch r := resp.(type) {
	case *kip1279.StartMirrorTopicsResponse:
		topics = r.Topics
	case *kip1279.StopMirrorTopicsResponse:
		topics = r.Topics
	case *kip1279.PauseMirrorTopicsResponse:
		topics = r.Topics
	case *kip1279.ResumeMirrorTopicsResponse:
		topics = r.Topics
	case *kip1279.RecoverMirrorTopicsResponse:
		topics = r.Topics
	}
	results, err := outcomesFrom(topics)
	if err != nil {
		return
	}
	encoded, _ := outcomesTo(results)
	again, err := outcomesFrom(encoded)
	if one, two := mustJSON(results), mustJSON(again); err != nil || !json.Valid(one) || string(one) != string(two) {
		t.Fatalf("%s\nread again: %s, %v", one, two, err)
	}
}
