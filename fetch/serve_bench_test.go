package fetch

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// still makes a Leader without goroutines, whose partitions hold chunks of size bytes from offset 0 on, as if read from a
// source, and whose roll call is complete.
func still(t testing.TB, parts, chunksEach, size int) *Leader {
	t.Helper()
	images := newFakeImages(topicName, parts, allFive, allFive)
	l, err := NewLeader(Config{Images: images, Controller: &fakeController{images: images}, WindowBytes: 1 << 30, MemoryBytes: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	l.apply(images.Image())
	now := time.Now()
	for i := range parts {
		id := protocol.PartitionID{Topic: destID, Partition: int32(i)}
		l.Assign(Assignment{ID: id, Topic: topicName, Role: RoleMirror, Mirror: "none", MinRealISR: 1})
		p := l.part(id)
		p.mu.Lock()
		p.loadedHistory(history{{0, 0}}, 0, 1<<40, 1<<40, now)
		p.startAt(0)
		for range chunksEach {
			var data []byte
			for n := p.src.next; len(data) < size; n += 64 {
				data = append(data, batch(n, 64, 0, 64000)...)
			}
			p.append(mustChunk(t, p.src.next, data))
		}
		for _, id := range []int32{1, 2, 3} {
			p.count(id, p.follower(id), 0, -1, true, now)
		}
		p.mu.Unlock()
	}
	return l
}

// BenchmarkFetch is a follower in catch-up that reads four partitions, one request at a time.
func BenchmarkFetch(b *testing.B) {
	const parts, size = 4, 1 << 20
	l := still(b, parts, 4, size)
	ctx := context.Background()
	q := kmsg.NewPtrFetchRequest()
	q.Version, q.ReplicaState.ID, q.ReplicaState.Epoch = 17, 1, 10
	q.MaxWaitMillis, q.MinBytes, q.MaxBytes = 500, 1, 10<<20
	q.SessionEpoch = 0
	t := kmsg.NewFetchRequestTopic()
	t.TopicID = destID
	for i := range parts {
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch, p.PartitionMaxBytes = int32(i), 5, size
		t.Partitions = append(t.Partitions, p)
	}
	q.Topics = []kmsg.FetchRequestTopic{t}
	reply, err := l.Fetch(ctx, q, 9001)
	if err != nil {
		b.Fatal(err)
	}
	q.SessionID = decodeReply(b, reply, 17).SessionID
	b.ReportAllocs()
	bytes := 0
	for b.Loop() {
		q.SessionEpoch++
		reply, err := l.Fetch(ctx, q, 9001)
		if err != nil {
			b.Fatal(err)
		}
		for _, piece := range reply.Buffers(1) {
			bytes += len(piece)
		}
	}
	if bytes < b.N*parts*size/2 {
		b.Fatalf("%d bytes in %d fetches", bytes, b.N)
	}
	b.SetBytes(int64(bytes / b.N))
}

// BenchmarkFetchIdle is one look at a session of 1000 partitions with nothing new.
func BenchmarkFetchIdle(b *testing.B) {
	const parts = 1000
	l := still(b, parts, 0, 0)
	q := kmsg.NewPtrFetchRequest()
	q.Version, q.ReplicaState.ID, q.ReplicaState.Epoch = 17, 1, 10
	q.MinBytes, q.MaxBytes = 1, 10<<20
	t := kmsg.NewFetchRequestTopic()
	t.TopicID = destID
	for i := range parts {
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch, p.PartitionMaxBytes = int32(i), 5, 1<<20
		t.Partitions = append(t.Partitions, p)
	}
	q.Topics = []kmsg.FetchRequestTopic{t}
	q.SessionEpoch = 0
	reply, err := l.Fetch(context.Background(), q, 9001)
	if err != nil {
		b.Fatal(err)
	}
	q.SessionID, q.Topics = decodeReply(b, reply, 17).SessionID, nil
	b.ReportAllocs()
	for b.Loop() {
		q.SessionEpoch++
		if _, err := l.Fetch(context.Background(), q, 9001); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseChunk(b *testing.B) {
	var data []byte
	for n := int64(0); len(data) < 1<<20; n += 64 {
		data = append(data, batch(n, 64, 0, 64000)...)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseChunk(data, 0, 0, 0); err != nil {
			b.Fatal(err)
		}
	}
}
