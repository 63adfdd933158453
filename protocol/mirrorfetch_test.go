package protocol

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func mirrorFetchBody() []byte {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaState.ID = MirrorFetchVersion, 1
	topic, p := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	topic.TopicID, p.HighWatermark = UUID{1}, 5
	p.UnknownTags.Set(2, []byte{0, 0, 0, 7})
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	return req.AppendTo(nil)
}

func TestDecodeMirrorFetch(t *testing.T) {
	body := mirrorFetchBody()
	req, err := DecodeMirrorFetch(body)
	if err != nil || req.Version != MirrorFetchVersion || req.ReplicaState.ID != 1 || req.Topics[0].Partitions[0].HighWatermark != 5 {
		t.Fatalf("%+v, %v", req, err)
	}
	if _, err := DecodeMirrorFetch(append(body, 0)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("with a byte more: %v", err)
	}
	if _, err := DecodeMirrorFetch(body[:len(body)-3]); !errors.Is(err, ErrShort) {
		t.Errorf("with bytes less: %v", err)
	}
	h := RequestHeader{Key: keyFetch, Version: MirrorFetchVersion, CorrelationID: 3}
	got, rest, err := ParseRequestHeader(append(AppendRequestHeader(nil, h), body...))
	if err != nil || got != h || len(rest) != len(body) {
		t.Errorf("header %+v, %d bytes of %d, %v", got, len(rest), len(body), err)
	}
}

// FuzzDecodeMirrorFetch: what is decoded is encoded to the same bytes.
func FuzzDecodeMirrorFetch(f *testing.F) {
	f.Add(mirrorFetchBody())
	f.Fuzz(func(t *testing.T, body []byte) {
		if req, err := DecodeMirrorFetch(body); err == nil && string(req.AppendTo(nil)) != string(body) {
			t.Errorf("%x is encoded again to %x", body, req.AppendTo(nil))
		}
	})
}
