package broker

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/lockbuf"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// follow returns a follower without a network and what it published last.
func follow() (*follower, *kraft.Image) {
	f := &follower{log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	shown := kraft.Empty()
	f.publish = func(i *kraft.Image) { *shown = *i }
	f.restart()
	return f, shown
}

func topicBatch(offset int64, epoch int32, name string) []byte {
	return fakeBatch(offset, epoch, false, kraft.AppendRecord(nil, &kraft.TopicRecord{Name: name, ID: protocol.UUID{name[0]}}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOnlyWhatIsCommittedIsApplied(t *testing.T) {
	f, shown := follow()
	must(t, f.append(slices.Concat(topicBatch(0, 1, "a"), topicBatch(1, 1, "b"), topicBatch(2, 1, "c")[:30])))
	must(t, f.commit(1))
	if shown.Offset != 0 || shown.TopicByName("a") == nil || shown.TopicByName("b") != nil || f.next != 2 || f.lastEpoch() != 1 {
		t.Errorf("offset %d, next %d, topics %v", shown.Offset, f.next, shown.Names)
	}
	must(t, f.append(topicBatch(1, 1, "b"))) // sent once more: not applied twice
	must(t, f.commit(2))
	if shown.Offset != 1 || shown.TopicByName("b") == nil || len(f.pending) != 0 {
		t.Errorf("offset %d, topics %v", shown.Offset, shown.Names)
	}
}

func TestAnImageIsShownOnlyOnceItHasCaughtUp(t *testing.T) {
	f, shown := follow()
	must(t, f.append(topicBatch(0, 1, "a")))
	must(t, f.commit(-1)) // a leader that has not committed in its epoch knows no high watermark
	must(t, f.commit(2))
	if shown.Offset != -1 || f.caughtUp.Load() {
		t.Errorf("shown at offset %d", shown.Offset)
	}
	must(t, f.append(topicBatch(1, 1, "b")))
	must(t, f.commit(2))
	if shown.Offset != 1 || !f.caughtUp.Load() {
		t.Errorf("offset %d", shown.Offset)
	}
}

func TestDivergenceDropsUncommittedBatchesOnly(t *testing.T) {
	f, shown := follow()
	must(t, f.append(slices.Concat(topicBatch(0, 1, "a"), topicBatch(1, 1, "b"), topicBatch(2, 1, "c"))))
	must(t, f.commit(1))
	f.diverged(1, 2)
	if f.next != 2 || f.img.Offset != 0 {
		t.Errorf("next %d, offset %d", f.next, f.img.Offset)
	}
	must(t, f.append(topicBatch(2, 2, "d")))
	must(t, f.commit(3))
	if shown.TopicByName("d") == nil || shown.TopicByName("c") != nil || shown.Epoch != 2 {
		t.Errorf("topics %v, epoch %d", shown.Names, shown.Epoch)
	}
	// A leader without the committed records: all is read anew, what is shown stays till then.
	f.diverged(1, 1)
	if f.next != 0 || shown.TopicByName("d") == nil {
		t.Errorf("next %d, topics %v", f.next, shown.Names)
	}
}

func TestASnapshotThatEndsWithinABatchIsRefused(t *testing.T) {
	s := &snapshotReader{endOffset: 10, epoch: 2, img: kraft.Empty()}
	must(t, s.add(topicBatch(0, 0, "a")))
	must(t, s.add(topicBatch(1, 0, "b")[:40]))
	if _, err := s.done(); err == nil {
		t.Error("no error")
	}
	must(t, s.add(topicBatch(1, 0, "b")[40:]))
	img, err := s.done()
	must(t, err)
	if img.Offset != 9 || img.Epoch != 2 || len(img.Topics) != 2 {
		t.Errorf("offset %d, epoch %d, %d topics", img.Offset, img.Epoch, len(img.Topics))
	}
}

func TestPlacementKeepsTheCopiesThatCount(t *testing.T) {
	b := &Broker{members: []*member{{node: Node{ID: 9001}}}}
	img := kraft.Empty()
	for id := int32(1); id <= 4; id++ {
		img.Brokers[id] = &kraft.Broker{ID: id, Fenced: id == 3}
	}
	img.Brokers[9001] = &kraft.Broker{ID: 9001}
	img.Topics[protocol.UUID{1}] = &kraft.Topic{Partitions: []*kraft.Partition{{Replicas: []int32{1}}, {Replicas: []int32{1, 2}}}}
	for name, c := range map[string]struct {
		p    kraft.Partition
		n    int
		want []int32
	}{
		"wholly on us":                  {kraft.Partition{Replicas: []int32{9001}, ISR: []int32{9001}}, 1, []int32{4}},
		"in-sync ones first, filled up": {kraft.Partition{Replicas: []int32{9001, 1, 2}, ISR: []int32{2}}, 3, []int32{2, 1, 4}},
		"a dead one is replaced":        {kraft.Partition{Replicas: []int32{9001, 3, 1}, ISR: []int32{1}}, 3, []int32{1, 4, 2}},
		"unless it has the only copy":   {kraft.Partition{Replicas: []int32{9001, 3}, ISR: []int32{9001}}, 2, []int32{3, 4}},
		"more than there are":           {kraft.Partition{Replicas: []int32{9001, 1}, ISR: []int32{1}}, 5, []int32{1, 4, 2}},
	} {
		if got := newPlacement(b, img).target(&c.p, c.n); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestLogDirIDs(t *testing.T) {
	a, b := logDirID("c", 1), logDirID("c", 2)
	if a == b || a != logDirID("c", 1) || a == logDirID("d", 1) {
		t.Error("not stable, or not unique")
	}
	for n := range int32(1000) {
		u := logDirID("c", n)
		if (protocol.UUID{15: u[15]}) == u {
			t.Errorf("node %d: %s is one of the small numbers that Kafka reserves", n, u)
		}
	}
}

// FuzzMetadataLog: whatever a controller answers with, as log or as snapshot, costs an error at most.
func FuzzMetadataLog(f *testing.F) {
	f.Add(slices.Concat(topicBatch(0, 1, "a"), topicBatch(1, 1, "b")), 40)
	f.Add(topicBatch(0, 1, "a")[:30], 7)
	f.Add(fakeBatch(0, 1, true, []byte{0, 0}), 0)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		cut = min(max(cut, 0), len(b))
		fo, _ := follow()
		before := fo.next
		if fo.append(b) == nil {
			_ = fo.commit(fo.next)
		}
		if fo.next < before {
			t.Errorf("the log went back to %d", fo.next)
		}
		s := &snapshotReader{endOffset: 10, epoch: 1, img: kraft.Empty()}
		if s.add(slices.Clone(b[:cut])) == nil && s.add(slices.Clone(b[cut:])) == nil {
			_, _ = s.done()
		}
	})
}

// A record that our rules refuse does not go away: the image stays, but Ready names the record from the second time on,
// one line at error level says what to do, and the log is not read again and again without a pause.
func TestARefusedRecordIsNamedOnceItComesAgain(t *testing.T) {
	q := newFakeQuorum(t, 1)
	var lines lockbuf.Buffer
	cfg := fakeConfig(q, 9001)
	cfg.Log = slog.New(slog.NewTextHandler(&lines, nil))
	var anew atomic.Int32
	q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		if f, ok := req.(*kmsg.FetchRequest); ok && f.Topics[0].Partitions[0].FetchOffset == 0 {
			anew.Add(1)
		}
		return nil
	}
	b, _ := startFake(t, cfg)
	ready(t, b)
	before, at := anew.Load(), 0
	shown := b.Image()
	q.do(func() {
		at = len(q.log)
		q.log = append(q.log, kraft.AppendRecord(nil, &kraft.RemoveTopicRecord{ID: protocol.UUID{9}}))
		q.grown.send()
	})
	eventually(t, 10*time.Second, "refused", func() error {
		if err := b.Ready(); !errors.Is(err, kraft.ErrRecord) || !strings.Contains(err.Error(), "offset "+strconv.Itoa(at)) {
			return fmt.Errorf("ready says %v", err)
		}
		return nil
	})
	if n := anew.Load() - before; n < 1 || n > 3 { // the first of them perhaps twice, for the leader epoch
		t.Errorf("the log was read %d times from its beginning", n)
	}
	if img := b.Image(); img != shown && img.Offset >= int64(at) {
		t.Errorf("an image at offset %d is shown", img.Offset)
	}
	again := anew.Load()
	eventually(t, 10*time.Second, "read once more", func() error {
		if anew.Load() == again {
			return errors.New("not read")
		}
		return nil
	})
	q.do(func() { q.log[at] = kraft.AppendRecord(nil, &kraft.NoOpRecord{}) })
	ready(t, b)
	text := lines.String()
	if n := strings.Count(text, "level=ERROR"); n != 1 || !strings.Contains(text, "metadata.version") {
		t.Errorf("%d lines at error level:\n%s", n, text)
	}
	if !strings.Contains(text, "can be followed again") {
		t.Errorf("nothing says that it is over:\n%s", text)
	}
}

// The same within a snapshot; a record that comes only once is no more than a warning.
func TestWhatIsRefusedTwiceAtTheSameOffset(t *testing.T) {
	f, _ := follow()
	s := &snapshotReader{endOffset: 10, epoch: 1, img: kraft.Empty()}
	must(t, s.add(fakeBatch(0, 0, false, kraft.AppendRecord(nil, &kraft.RemoveTopicRecord{ID: protocol.UUID{9}}))))
	var r *refusedError
	if _, err := s.done(); !errors.As(err, &r) || r.offset != 9 {
		t.Fatalf("got %v", err)
	}
	f.refuse(r)
	f.refuse(&refusedError{4, kraft.ErrRecord})
	if err := f.refused.Load(); err != nil {
		t.Errorf("two different ones: %v", err)
	}
	f.refuse(&refusedError{4, kraft.ErrRecord})
	if err := f.refused.Load(); err == nil || err.offset != 4 {
		t.Errorf("twice the same: %v", err)
	}
	must(t, f.append(topicBatch(0, 1, "a")))
	must(t, f.commit(1))
	if f.refused.Load() != nil || f.suspect != nil {
		t.Error("still refused once an image is shown")
	}
}
