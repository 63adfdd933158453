package fetch

import (
	"bytes"
	"context"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/records"
)

// FuzzFetch gives the Leader whatever decodes as a Fetch request. The answer decodes, holds nothing but whole batches of
// the log, and no log start that would stop a follower.
func FuzzFetch(f *testing.F) {
	for version := int16(minFetchVersion); version <= maxFetchVersion; version++ {
		q := kmsg.NewPtrFetchRequest()
		q.Version, q.ReplicaID, q.ReplicaState.ID, q.ReplicaState.Epoch = version, 1, 1, 10
		q.MinBytes, q.MaxBytes = 1, 1<<20
		t := kmsg.NewFetchRequestTopic()
		t.Topic, t.TopicID = topicName, destID
		for i := range 3 {
			p := kmsg.NewFetchRequestTopicPartition()
			p.Partition, p.FetchOffset, p.CurrentLeaderEpoch, p.PartitionMaxBytes = int32(i), int64(i*70), 5, 1<<17
			p.LastFetchedEpoch = int32(i - 1)
			t.Partitions = append(t.Partitions, p)
		}
		q.Topics = append(q.Topics, t)
		if version%2 == 0 {
			q.SessionEpoch, q.SessionID = 0, 3
			forget(q, 1)
		}
		f.Add(uint8(version), q.AppendTo(nil))
	}
	l := still(f, 2, 2, 200_000)
	f.Fuzz(func(t *testing.T, version uint8, body []byte) {
		h := protocol.RequestHeader{Key: 1, Version: int16(version)}
		var q *kmsg.FetchRequest
		if version == protocol.MirrorFetchVersion {
			var err error
			if q, err = protocol.DecodeMirrorFetch(body); err != nil {
				return
			}
		} else {
			req, err := protocol.DecodeRequest(h, body)
			if err != nil {
				return
			}
			q = req.(*kmsg.FetchRequest)
		}
		q.MaxWaitMillis = 0
		reply, err := l.Fetch(context.Background(), q, 9001)
		if err != nil {
			return
		}
		resp := decodeReply(t, reply, q.Version)
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				if p.ErrorCode == 0 && p.DivergingEpoch.EndOffset < 0 && p.LogStartOffset > p.HighWatermark {
					t.Errorf("log start %d above high watermark %d", p.LogStartOffset, p.HighWatermark)
				}
				for b := p.RecordBatches; len(b) > 0; {
					x, rest, err := records.Split(b)
					if err != nil || x.CheckCRC() != nil {
						t.Fatalf("answer holds %s: %v", outline(p.RecordBatches), err)
					}
					b = rest
				}
			}
		}
	})
}

// FuzzParseChunk gives the window whatever a source may send: what it keeps is the front of the input's batches, whole,
// in order, and not above the epoch asked for.
func FuzzParseChunk(f *testing.F) {
	ok := bytes.Join([][]byte{batch(0, 10, 1, 30), batch(10, 5, 1, 0), batch(30, 1, 4, 9)}, nil)
	f.Add(ok, int64(0), int32(4), int32(0))
	f.Add(ok[:len(ok)-3], int64(10), int32(1), int32(1))
	f.Add(ok[5:], int64(12), int32(-1), int32(3))
	f.Fuzz(func(t *testing.T, in []byte, from int64, maxEpoch, last int32) {
		c, err := parseChunk(in, from, maxEpoch, last)
		if err != nil || c == nil {
			return
		}
		if !bytes.Contains(in, c.data) {
			t.Fatal("bytes that were not there")
		}
		next, epoch := int64(-1), last
		for b := c.data; len(b) > 0; {
			x, rest, err := records.Split(b)
			if err != nil || x.BaseOffset() < next || x.NextOffset() <= from || x.PartitionLeaderEpoch() < epoch ||
				maxEpoch >= 0 && x.PartitionLeaderEpoch() > maxEpoch {
				t.Fatalf("from %d, epoch %d to %d: %s (%v)", from, last, maxEpoch, outline(c.data), err)
			}
			next, epoch, b = x.NextOffset(), x.PartitionLeaderEpoch(), rest
		}
		if c.next != next || c.lastEpoch != epoch {
			t.Fatalf("ends at %d in epoch %d, says %d, %d", next, epoch, c.next, c.lastEpoch)
		}
		for _, limit := range []int{0, 1, len(c.data) / 2, len(c.data)} {
			for _, offset := range []int64{from, c.next - 1, c.next, (from + c.next) / 2} {
				upTo := (offset + c.next) / 2
				bufs, n, _ := chunks{c}.read(nil, offset, limit, maxEpoch, upTo, true)
				got := bytes.Join(bufs, nil)
				if len(got) != n || !bytes.Contains(c.data, got) {
					t.Fatalf("read %d of %d bytes", len(got), n)
				}
				for len(got) > 0 {
					x, rest, err := records.Split(got)
					if err != nil || x.NextOffset() > upTo {
						t.Fatalf("read up to %d: %s (%v)", upTo, outline(got), err)
					}
					got = rest
				}
			}
		}
		if head := c.head((from + c.next) / 2); head != nil && !bytes.HasPrefix(c.data, head.data) {
			t.Fatal("head is no front")
		}
	})
}
