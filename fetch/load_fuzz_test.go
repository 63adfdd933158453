package fetch

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// answerSize is the size of one scripted answer of FuzzLoad.
const answerSize = 14

// script reads the next scripted answer: what it says of the partition, and how it is wrong.
func script(in []byte) (twist byte, code int16, epoch int32, offset int64, rest []byte) {
	n := int64(int8(in[5]))<<32 | int64(binary.BigEndian.Uint32(in[6:]))
	if in[5] == 0x7f {
		n = int64(binary.BigEndian.Uint64(in[6:]))
	}
	return in[0] % 5, int16(int8(in[0])) >> 5, int32(binary.BigEndian.Uint32(in[1:])), n, in[answerSize:]
}

func scripted(twist byte, code int8, epoch int32, offset int64) []byte {
	b := binary.BigEndian.AppendUint32([]byte{byte(code<<5) | twist}, uint32(epoch))
	b = binary.BigEndian.AppendUint32(append(b, byte(offset>>32)), uint32(offset))
	return append(b, 0, 0, 0, 0)
}

// FuzzLoad answers the reading of a history with anything: answers that lack the partition or its topic, that hold it
// twice, epochs above the one asked for, offsets that are negative or fall. It ends, and a history that it accepts is one
// that a log can have.
func FuzzLoad(f *testing.F) {
	join := func(answers ...[]byte) (all []byte) {
		for _, a := range answers {
			all = append(all, a...)
		}
		return all
	}
	f.Add(int32(7), join(scripted(0, 0, 0, 10), scripted(0, 0, 0, 90), scripted(0, 0, 7, 95), scripted(0, 0, 3, 60), scripted(0, 0, 0, 20)))
	f.Add(int32(7), join(scripted(0, 0, 0, 10), scripted(0, 0, 0, 90), scripted(0, 0, -1, -1), scripted(0, 0, 6, 95), scripted(0, 0, -1, -1)))
	f.Add(int32(2), join(scripted(0, 0, 0, 90), scripted(0, 0, 0, 10)))
	f.Add(int32(2), join(scripted(0, 0, 0, 0), scripted(0, 0, 0, 0), scripted(0, 0, 3, 9), scripted(0, 0, 3, 9)))
	f.Add(int32(2), join(scripted(0, 0, 0, 0), scripted(0, 0, 0, 0), scripted(0, 0, 2, 9), scripted(0, 0, 1, 19)))
	f.Add(int32(2), join(scripted(1, 0, 0, 0), scripted(2, 0, 0, 0)))
	f.Add(int32(2), join(scripted(3, 0, 0, 0), scripted(4, 1, 0, -5), scripted(0, 2, 2, 9)))
	l := still(f, 1, 1, 1000)
	f.Fuzz(func(t *testing.T, epoch int32, in []byte) {
		var p *partition
		for _, p = range l.parts {
		}
		x := &loading{target: target{p: p, name: topicName, epoch: epoch}, leo: -1}
		ls := []*loading{x}
		for _, ts := range []int64{-2, -1} {
			if len(in) < answerSize {
				return
			}
			var resp *kmsg.ListOffsetsResponse
			resp, in = scriptedOffsets(in)
			takeOffsets(ls, ts, resp)
		}
		x.ask = x.epoch
		for !x.done && x.err == nil {
			if len(in) < answerSize {
				return
			}
			var resp *kmsg.OffsetForLeaderEpochResponse
			resp, in = scriptedEpochs(in)
			asked := x.ask
			takeEpochs(ls, resp)
			if !x.done && x.err == nil && x.ask >= asked {
				t.Fatalf("epoch %d is asked for after %d: there is no end to it", x.ask, asked)
			}
		}
		if x.err == nil {
			x.accepted(t)
		}
	})
}

// accepted checks a history as loadEpochs collects it, newest first, and gives it to a partition.
func (x *loading) accepted(t *testing.T) {
	if x.start < 0 || x.end < x.start {
		t.Fatalf("a log from %d to %d", x.start, x.end)
	}
	for i, e := range x.hist {
		if e.epoch < 0 || e.start < 0 || e.start > x.leo || i > 0 && e.epoch >= x.hist[i-1].epoch {
			t.Fatalf("history %v of a log that ends at %d", x.hist, x.leo)
		}
		if i > 0 && e.start >= x.hist[i-1].start {
			t.Fatalf("history %v", x.hist)
		}
	}
	for i, j := 0, len(x.hist)-1; i < j; i, j = i+1, j-1 {
		x.hist[i], x.hist[j] = x.hist[j], x.hist[i]
	}
	x.p.mu.Lock()
	x.p.loadedHistory(x.hist, x.start, x.end, x.leo, time.Now())
	memory := x.p.l.memory.Load()
	held := x.p.win.bytes + x.p.catchBytes
	x.p.mu.Unlock()
	if memory != int64(held) || memory < 0 {
		t.Fatalf("%d bytes are accounted, %d held", memory, held)
	}
	if s := x.p.status(); s.LogEnd < s.LogStart || s.HighWatermark > s.LogEnd {
		t.Fatalf("log %d to %d, high watermark %d", s.LogStart, s.LogEnd, s.HighWatermark)
	}
}

func scriptedOffsets(in []byte) (*kmsg.ListOffsetsResponse, []byte) {
	twist, code, epoch, offset, rest := script(in)
	p := kmsg.NewListOffsetsResponseTopicPartition()
	p.ErrorCode, p.LeaderEpoch, p.Offset = code, epoch, offset
	rt := kmsg.NewListOffsetsResponseTopic()
	rt.Topic, rt.Partitions = topicName, []kmsg.ListOffsetsResponseTopicPartition{p}
	resp := kmsg.NewPtrListOffsetsResponse()
	switch resp.Topics = []kmsg.ListOffsetsResponseTopic{rt}; twist {
	case 1:
		resp.Topics = nil
	case 2:
		resp.Topics[0].Partitions[0].Partition = epoch | 1
	case 3:
		p.Offset = offset / 2
		resp.Topics[0].Partitions = append(resp.Topics[0].Partitions, p)
	case 4:
		resp.Topics = append([]kmsg.ListOffsetsResponseTopic{kmsg.NewListOffsetsResponseTopic()}, rt, rt)
	}
	return resp, rest
}

func scriptedEpochs(in []byte) (*kmsg.OffsetForLeaderEpochResponse, []byte) {
	twist, code, epoch, offset, rest := script(in)
	p := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
	p.ErrorCode, p.LeaderEpoch, p.EndOffset = code, epoch, offset
	rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
	rt.Topic, rt.Partitions = topicName, []kmsg.OffsetForLeaderEpochResponseTopicPartition{p}
	resp := kmsg.NewPtrOffsetForLeaderEpochResponse()
	switch resp.Topics = []kmsg.OffsetForLeaderEpochResponseTopic{rt}; twist {
	case 1:
		resp.Topics = nil
	case 2:
		resp.Topics[0].Partitions[0].Partition = epoch | 1
	case 3:
		p.LeaderEpoch = epoch / 2
		resp.Topics[0].Partitions = append(resp.Topics[0].Partitions, p)
	case 4:
		resp.Topics = append([]kmsg.OffsetForLeaderEpochResponseTopic{kmsg.NewOffsetForLeaderEpochResponseTopic()}, rt, rt)
	}
	return resp, rest
}
