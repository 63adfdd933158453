package fetch

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// TestReplyIsWhatKmsgEncodes compares our encoder with kmsg's in all versions.
func TestReplyIsWhatKmsgEncodes(t *testing.T) {
	one, two, three := batch(0, 10, 1, 300), batch(10, 1, 1, 0), batch(11, 5, 2, 70)
	bufs := [][]byte{one, two, three}
	other := protocol.UUID{1: 1}
	answers := []answer{
		{a: &asked{topic: destID, name: "orders", index: 0}, hw: 10, start: 0, lo: 0, hi: 2, size: len(one) + len(two), mirrorEpoch: -1},
		{a: &asked{topic: destID, name: "orders", index: 1 << 20}, hw: 1 << 40, start: 3, lo: 2, hi: 2, mirrorEpoch: 7},
		{a: &asked{topic: other, name: "", index: 3}, hw: 5, start: 0, lo: 2, hi: 2, diverging: true,
			div: Divergence{Epoch: 3, EndOffset: 5}, mirrorEpoch: -1},
		{a: &asked{topic: other, name: "", index: 4}, code: 74, hw: -1, start: -1, lo: 2, hi: 2, mirrorEpoch: -1},
		{a: &asked{topic: destID, name: "orders", index: 2}, hw: 5, start: 0, lo: 2, hi: 3, size: len(three), diverging: true,
			div: Divergence{}, mirrorEpoch: 0},
	}
	for version := int16(minFetchVersion); version <= maxFetchVersion; version++ {
		want := kmsg.NewPtrFetchResponse()
		want.Version, want.ErrorCode, want.SessionID = version, 71, 12345
		for i, r := range answers {
			if i == 0 || !sameTopic(r.a, answers[i-1].a) {
				want.Topics = append(want.Topics, kmsg.FetchResponseTopic{Topic: r.a.name, TopicID: r.a.topic})
			}
			p := kmsg.NewFetchResponseTopicPartition()
			p.Partition, p.ErrorCode, p.HighWatermark, p.LogStartOffset = r.a.index, r.code, r.hw, r.start
			p.RecordBatches = bytes.Join(bufs[r.lo:r.hi], nil)
			if p.RecordBatches == nil {
				p.RecordBatches = []byte{}
			}
			if r.diverging {
				p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = r.div.Epoch, r.div.EndOffset
			}
			if r.mirrorEpoch >= 0 && version >= protocol.MirrorFetchVersion {
				p.UnknownTags.Set(3, binary.BigEndian.AppendUint32(nil, uint32(r.mirrorEpoch)))
			}
			last := &want.Topics[len(want.Topics)-1]
			last.Partitions = append(last.Partitions, p)
		}
		reply := encode(version, 71, 12345, answers, bufs)
		var got []byte
		for _, b := range reply.Buffers(-5) {
			got = append(got, b...)
		}
		if w := protocol.AppendResponse(nil, -5, want); !bytes.Equal(got, w) {
			t.Errorf("version %d:\n%x\nwant\n%x", version, got, w)
		}
		if reply.Size() != len(got) {
			t.Errorf("version %d: size %d of %d", version, reply.Size(), len(got))
		}
	}
	if reply := encode(17, 70, 0, nil, nil); len(reply.Buffers(1)) != 1 {
		t.Error("an answer without partitions is one piece")
	}
}

func TestReplySharesRecordBytes(t *testing.T) {
	b := batch(0, 10, 1, 3000)
	reply := encode(17, 0, 1, []answer{{a: &asked{}, hi: 1, size: len(b), mirrorEpoch: -1}}, [][]byte{b})
	for _, piece := range reply.Buffers(1) {
		if len(piece) == len(b) && &piece[0] == &b[0] {
			return
		}
	}
	t.Error("records were copied")
}
