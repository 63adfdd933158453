package fetch

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func (f *fakeFollower) ask(t *testing.T, change func(q *kmsg.FetchRequest)) *kmsg.FetchResponse {
	t.Helper()
	q := f.request()
	q.MaxWaitMillis = 0
	change(q)
	reply, err := f.r.l.Fetch(context.Background(), q, f.node)
	if err != nil {
		t.Fatal(err)
	}
	return decodeReply(t, reply, q.Version)
}

func partsOf(resp *kmsg.FetchResponse) (n int) {
	for _, t := range resp.Topics {
		n += len(t.Partitions)
	}
	return n
}

func TestSessions(t *testing.T) {
	r := newRig(t, 3)
	for _, g := range r.topic.parts {
		r.src.fill(g, 10, 20)
	}
	r.mirror(3)
	fs := []*fakeFollower{r.follower(1, 3), r.follower(2, 3), r.follower(3, 3)}
	r.syncAll(10, fs...)
	f := r.follower(1, 3)
	for _, p := range f.parts {
		p.plant(batch(0, 10, 0, 20))
	}
	full := f.ask(t, func(q *kmsg.FetchRequest) { q.SessionEpoch = 0 })
	if full.SessionID == 0 || partsOf(full) != 3 {
		t.Fatalf("full answer: session %d with %d partitions", full.SessionID, partsOf(full))
	}
	id := full.SessionID
	incremental := func(epoch int32, change func(*kmsg.FetchRequest)) *kmsg.FetchResponse {
		return f.ask(t, func(q *kmsg.FetchRequest) {
			q.SessionID, q.SessionEpoch, q.Topics = id, epoch, nil
			if change != nil {
				change(q)
			}
		})
	}
	if resp := incremental(1, nil); resp.ErrorCode != 0 || resp.SessionID != id || partsOf(resp) != 0 {
		t.Errorf("nothing changed: %+v", resp)
	}
	if resp := incremental(1, nil); resp.ErrorCode != 71 || resp.SessionID != 0 {
		t.Errorf("an epoch used twice: code %d", resp.ErrorCode)
	}
	if resp := incremental(2, func(q *kmsg.FetchRequest) { q.SessionID++ }); resp.ErrorCode != 70 {
		t.Errorf("unknown session: code %d", resp.ErrorCode)
	}
	if resp := incremental(2, func(q *kmsg.FetchRequest) { q.ReplicaState.ID = 2 }); resp.ErrorCode != 70 {
		t.Errorf("another follower's session: code %d", resp.ErrorCode)
	}
	if resp := incremental(2, func(q *kmsg.FetchRequest) { q.Version, q.ReplicaID = 12, 1 }); resp.ErrorCode != 106 {
		t.Errorf("names in a session of ids: code %d", resp.ErrorCode)
	}
	// New data shows for the partition that has it, and again until it was asked for beyond.
	r.src.fill(r.topic.parts[1], 20, 20)
	r.l.part(r.assignment(1).ID)
	for epoch, end := int32(2), time.Now().Add(soon); ; epoch++ {
		resp := incremental(epoch, nil)
		if partsOf(resp) == 1 && resp.Topics[0].Partitions[0].Partition == 1 && len(resp.Topics[0].Partitions[0].RecordBatches) > 0 {
			id = resp.SessionID
			resp = incremental(epoch+1, func(q *kmsg.FetchRequest) { forget(q, 1) })
			if partsOf(resp) != 0 {
				t.Errorf("a forgotten partition is answered: %+v", resp.Topics)
			}
			resp = incremental(epoch+2, func(q *kmsg.FetchRequest) { forget(q, 0, 2) })
			if resp.SessionID != 0 || resp.ErrorCode != 0 {
				t.Errorf("a session without partitions lives on: %+v", resp)
			}
			if resp = incremental(epoch+3, nil); resp.ErrorCode != 70 {
				t.Errorf("ended session: code %d", resp.ErrorCode)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("data never shows")
		}
	}
	// Epoch -1 closes a session and makes none, 0 makes a new one in place of the old.
	a := f.ask(t, func(q *kmsg.FetchRequest) { q.SessionEpoch = 0 })
	b := f.ask(t, func(q *kmsg.FetchRequest) { q.SessionEpoch, q.SessionID = 0, a.SessionID })
	c := f.ask(t, func(q *kmsg.FetchRequest) { q.SessionEpoch, q.SessionID = -1, b.SessionID })
	if c.SessionID != 0 || partsOf(c) != 3 || b.SessionID == a.SessionID {
		t.Errorf("sessions %d %d %d", a.SessionID, b.SessionID, c.SessionID)
	}
	for _, id := range []int32{a.SessionID, b.SessionID} {
		resp := f.ask(t, func(q *kmsg.FetchRequest) { q.SessionID, q.SessionEpoch = id, 1 })
		if resp.ErrorCode != 70 {
			t.Errorf("closed session: code %d", resp.ErrorCode)
		}
	}
}

func forget(q *kmsg.FetchRequest, parts ...int32) {
	t := kmsg.NewFetchRequestForgottenTopic()
	t.Topic, t.TopicID, t.Partitions = topicName, destID, parts
	q.ForgottenTopics = append(q.ForgottenTopics, t)
}

func TestSessionsAreBounded(t *testing.T) {
	s := newSessions()
	q := kmsg.NewPtrFetchRequest()
	q.Version, q.SessionEpoch = 17, 0
	q.Topics = []kmsg.FetchRequestTopic{{Partitions: make([]kmsg.FetchRequestTopicPartition, 1)}}
	var first, second int32
	for i := range maxSessions + 1 {
		v, code := s.begin(q, 1, 9001)
		if code != 0 {
			t.Fatal(code)
		}
		s.end(v.sess)
		switch i {
		case 0:
			first = v.sess.id
		case 1:
			second = v.sess.id
			next := *q
			next.SessionID, next.SessionEpoch = first, 1
			if v, code = s.begin(&next, 1, 9001); code != 0 {
				t.Fatal(code)
			}
			s.end(v.sess)
		}
	}
	if len(s.byID) != maxSessions || s.byID[first] == nil || s.byID[second] != nil {
		t.Errorf("%d sessions; the one used last stays: %v, the one used first goes: %v", len(s.byID), s.byID[first] != nil, s.byID[second] == nil)
	}
	if nextSessionEpoch(1<<31-1) != 1 || nextSessionEpoch(1) != 2 {
		t.Error("session epochs don't wrap to 1")
	}
}

func TestPartitionsTakeTurns(t *testing.T) {
	const parts = 4
	r := &rig{t: t, l: still(t, parts, 1, 300_000)}
	f := r.follower(1, parts)
	f.maxBytes = 3000 // less than one batch
	for range 3 * parts {
		f.fetch(context.Background())
	}
	for i, p := range f.parts {
		if p.data != 3 {
			t.Errorf("partition %d got %d batches of %d", i, p.data, 3*parts)
		}
	}
}
