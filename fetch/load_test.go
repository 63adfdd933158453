package fetch

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// TestAHungBrokerHoldsUpItsOwnLoadsOnly: the partition of another broker is loaded at once, whether it is wanted
// together with that of the hung one or later; and the hung broker has one load at a time to answer.
func TestAHungBrokerHoldsUpItsOwnLoadsOnly(t *testing.T) {
	r := newRig(t, 2)
	release, hung := make(chan struct{}), make(chan struct{}, 10)
	var now, most atomic.Int32
	r.src.do(func() {
		r.topic.parts[1].lead(2, 0)
		r.src.onOffsets = func(node int32) {
			if node != 1 {
				return
			}
			most.Store(max(most.Load(), now.Add(1)))
			hung <- struct{}{}
			<-release
			now.Add(-1)
		}
	})
	t.Cleanup(func() {
		select {
		case <-release:
		default:
			close(release)
		}
	})
	loaded := func(part int32) func() bool {
		return func() bool {
			s, _ := r.l.Status(protocol.PartitionID{Topic: destID, Partition: part})
			return s.LogStart >= 0 && s.SourceEnd >= 0
		}
	}
	// Metadata may be asked of the hung broker too, and is asked of another after metadataLimit.
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(40 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("never: " + what)
			}
		}
	}
	r.mirror(2)
	<-hung
	eventually("loaded next to the hung one", loaded(1))
	p := r.l.part(protocol.PartitionID{Topic: destID, Partition: 1})
	p.mu.Lock()
	before := p.src.loads
	p.reload()
	p.mu.Unlock()
	eventually("loaded again while it hangs", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.src.loads == before+1
	})
	if loaded(0)() {
		t.Error("the hung broker's partition is loaded")
	}
	close(release)
	eventually("loaded once it answers", loaded(0))
	if n := most.Load(); n != 1 {
		t.Errorf("%d loads of one broker at a time", n)
	}
}

// A late answer of a broker that does not lead any more must not replace what was read since.
func TestALateHistoryIsDropped(t *testing.T) {
	l := still(t, 1, 1, 1000)
	for _, p := range l.parts {
		p.mu.Lock()
		p.src.broker, p.src.epoch = 2, 0
		late := &loading{target: p.target(0, -1), hist: history{{0, 0}}, start: 0, end: 5, leo: 5}
		next, loads := p.src.next, p.src.loads
		p.mu.Unlock()
		m := &mirror{l: l}
		if !m.finishLoads(t.Context(), 1, []*loading{late}) {
			t.Error("another load is wanted")
		}
		if p.src.loads != loads || p.src.next != next || p.src.divergences != 0 {
			t.Errorf("%d loads, next %d, %d divergences; want %d, %d, 0", p.src.loads, p.src.next, p.src.divergences, loads, next)
		}
		p.src.needLoad = true
		if m.finishLoads(t.Context(), 1, []*loading{late}) || !p.src.needLoad {
			t.Error("the history of a broker that does not lead is taken")
		}
		if !m.finishLoads(t.Context(), 2, []*loading{late}) || p.src.needLoad {
			t.Error("the history of the leader is not taken")
		}
	}
}

// TestTheAgeOfAnEndThatNothingWasFetchedOf: an end that only the load has told grows old as any does when its source falls silent.
func TestTheAgeOfAnEndThatNothingWasFetchedOf(t *testing.T) {
	r := newRig(t, 1)
	r.src.do(func() { r.topic.parts[0].add(batch(0, 10, 0, 50)) })
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	r.src.onFetch = func(int32, *kmsg.FetchRequest) *kmsg.FetchResponse { <-release; return nil }
	began := time.Now()
	r.mirror(1)
	r.syncAll(0, r.three()...)
	s := r.until("the end is known", func(s Status) bool { return s.SourceEnd == 10 })
	if !s.LastSourceFetch.IsZero() || s.SourceEndAt.Before(began) {
		t.Errorf("fetched at %v, the end told at %v", s.LastSourceFetch, s.SourceEndAt)
	}
}
