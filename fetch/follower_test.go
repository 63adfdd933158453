package fetch

import (
	"context"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/records"
)

// fakeFollower fetches partitions of the topic as a broker's fetcher thread does, one request at a time.
type fakeFollower struct {
	r           *rig
	id          int32
	node        int32
	brokerEpoch int64
	version     int16
	leaderEpoch int32
	session     int32
	epoch       int32
	maxWait     int32
	maxBytes    int32
	partBytes   int32
	parts       []*fakeReplica
}

// fakeReplica is a follower's log.
type fakeReplica struct {
	log       []byte
	start     int64
	next      int64
	lastEpoch int32
	hw        int64
	logStart  int64
	epochs    history
	code      int16
	diverged  int
	data      int
	sent      bool
	sentAt    int64
	lastSent  int32
	sentEpoch int32
}

func (r *rig) follower(id int32, parts int) *fakeFollower {
	f := &fakeFollower{
		r: r, id: id, node: 9001, brokerEpoch: int64(id) * 10, version: 17, leaderEpoch: 5, maxWait: 50,
		maxBytes: 10 << 20, partBytes: 1 << 20,
	}
	for range parts {
		f.parts = append(f.parts, &fakeReplica{lastEpoch: -1, hw: -1})
	}
	return f
}

func (f *fakeFollower) request() *kmsg.FetchRequest {
	q := kmsg.NewPtrFetchRequest()
	q.Version = f.version
	q.ReplicaState.ID, q.ReplicaState.Epoch = f.id, f.brokerEpoch
	q.ReplicaID = f.id
	q.MaxWaitMillis, q.MinBytes, q.MaxBytes = f.maxWait, 1, f.maxBytes
	q.SessionID, q.SessionEpoch = f.session, f.epoch
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = topicName, destID
	for i, p := range f.parts {
		if f.session != 0 && p.sent && p.sentAt == p.next && p.lastSent == p.lastEpoch && p.sentEpoch == f.leaderEpoch {
			continue
		}
		x := kmsg.NewFetchRequestTopicPartition()
		x.Partition, x.FetchOffset, x.LastFetchedEpoch = int32(i), p.next, p.lastEpoch
		x.CurrentLeaderEpoch, x.PartitionMaxBytes, x.LogStartOffset = f.leaderEpoch, f.partBytes, p.logStart
		p.sent, p.sentAt, p.lastSent, p.sentEpoch = true, p.next, p.lastEpoch, f.leaderEpoch
		t.Partitions = append(t.Partitions, x)
	}
	if len(t.Partitions) > 0 {
		q.Topics = append(q.Topics, t)
	}
	return q
}

// fetch does one round and applies the answer as ReplicaFetcherThread does.
func (f *fakeFollower) fetch(ctx context.Context) *kmsg.FetchResponse {
	f.r.t.Helper()
	q := f.request()
	reply, err := f.r.l.Fetch(ctx, q, f.node)
	if err != nil {
		if ctx.Err() == nil && err != ErrStopped {
			f.r.t.Errorf("fetch: %v", err)
		}
		return nil
	}
	resp := decodeReply(f.r.t, reply, q.Version)
	if resp.ErrorCode != 0 {
		f.session, f.epoch = 0, 0
		return resp
	}
	if f.epoch >= 0 {
		f.session = resp.SessionID
		if f.epoch++; f.session == 0 {
			f.epoch = 0
		}
	}
	for _, t := range resp.Topics {
		for i := range t.Partitions {
			f.parts[t.Partitions[i].Partition].apply(f, &t.Partitions[i])
		}
	}
	return resp
}

func decodeReply(t testing.TB, reply *Reply, version int16) *kmsg.FetchResponse {
	t.Helper()
	var frame []byte
	for _, b := range reply.Buffers(77) {
		frame = append(frame, b...)
	}
	if len(frame) != reply.Size() {
		t.Errorf("reply of %d bytes says %d", len(frame), reply.Size())
	}
	corr, body, err := protocol.ParseResponseHeader(1, version, frame[4:])
	if err != nil || corr != 77 {
		t.Fatalf("response header: %d %v", corr, err)
	}
	resp := kmsg.NewPtrFetchResponse()
	resp.Version = version
	if err := resp.ReadFrom(body); err != nil {
		t.Fatal(err)
	}
	return resp
}

func (p *fakeReplica) apply(f *fakeFollower, rp *kmsg.FetchResponseTopicPartition) {
	p.code = rp.ErrorCode
	switch {
	case rp.ErrorCode == 1: // out of range: truncate to the leader's end, or start at its start
		s, _ := f.r.l.Status(protocol.PartitionID{Topic: destID, Partition: rp.Partition})
		if s.LogEnd < p.next {
			p.truncate(s.LogEnd)
		} else if s.LogStart > p.next {
			p.log, p.epochs, p.start, p.next, p.lastEpoch, p.logStart = nil, nil, s.LogStart, s.LogStart, -1, s.LogStart
		}
		p.sent = false
		return
	case rp.ErrorCode != 0:
		p.sent = false
		return
	case rp.DivergingEpoch.EndOffset >= 0 && rp.DivergingEpoch.Epoch >= 0:
		p.diverged++
		e, end := p.epochs.endOffsetFor(rp.DivergingEpoch.Epoch, p.next)
		if len(p.epochs) == 0 || e != rp.DivergingEpoch.Epoch && len(p.epochs) > 0 && rp.DivergingEpoch.Epoch > p.epochs.newest() {
			end = rp.DivergingEpoch.EndOffset
		}
		if e == rp.DivergingEpoch.Epoch {
			end = min(end, rp.DivergingEpoch.EndOffset)
		}
		p.truncate(min(end, p.next))
		return
	}
	b := rp.RecordBatches
	for len(b) > 0 {
		x, rest, err := records.Split(b)
		if err != nil {
			f.r.t.Errorf("follower got %v in %s", err, outline(rp.RecordBatches))
			return
		}
		if x.BaseOffset() < p.next || x.CheckCRC() != nil || x.PartitionLeaderEpoch() > f.leaderEpoch {
			f.r.t.Errorf("follower %d at %d got %s", f.id, p.next, outline(b))
			return
		}
		p.log = append(p.log, x...)
		p.epochs = p.epochs.record(x.PartitionLeaderEpoch(), x.BaseOffset())
		p.next, p.lastEpoch = x.NextOffset(), x.PartitionLeaderEpoch()
		p.data++
		b = rest
	}
	if rp.LogStartOffset > min(rp.HighWatermark, p.next) {
		f.r.t.Errorf("log start %d above high watermark %d or end %d stops the follower", rp.LogStartOffset, rp.HighWatermark, p.next)
	}
	hw := min(rp.HighWatermark, p.next)
	if hw < p.hw && p.diverged == 0 {
		f.r.t.Errorf("high watermark of follower %d went from %d to %d", f.id, p.hw, hw)
	}
	p.hw = hw
	p.logStart = max(p.logStart, rp.LogStartOffset)
}

func (p *fakeReplica) truncate(to int64) {
	b := p.log
	kept := 0
	next := p.start
	for {
		x, rest, err := records.Split(b)
		if err != nil || x.NextOffset() > to {
			break
		}
		kept += len(x)
		next = x.NextOffset()
		b = rest
	}
	p.log = p.log[:kept:kept]
	p.next = min(max(next, p.start), max(to, 0))
	if next < to && kept == 0 {
		p.next = min(to, max(p.start, 0))
	}
	p.epochs = p.epochs.truncated(p.next)
	p.lastEpoch = p.epochs.newest()
	p.hw = min(p.hw, p.next)
	p.sent = false
}

// plant gives a replica a log of its own.
func (p *fakeReplica) plant(batches ...[]byte) {
	for _, b := range batches {
		x := records.Batch(b)
		p.log = append(p.log, b...)
		p.epochs = p.epochs.record(x.PartitionLeaderEpoch(), x.BaseOffset())
		p.next, p.lastEpoch = x.NextOffset(), x.PartitionLeaderEpoch()
	}
}

// loop fetches until ctx ends.
func (f *fakeFollower) loop(ctx context.Context) {
	for ctx.Err() == nil {
		if f.fetch(ctx) == nil {
			return
		}
	}
}
