package fetch

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol/kraft"
)

// nextDoor is a replica list of this process, an id of the process next door, and the real brokers.
var nextDoor = []int32{9001, 9002, 9003, 1, 2, 3}

// withNextDoor lets a process next door have 9003 registered, which is in the ISR.
func (r *rig) withNextDoor(isr ...int32) {
	r.images.edit(func(img *kraft.Image) {
		img.Brokers[9003] = &kraft.Broker{ID: 9003, Epoch: 77}
		p := img.Topics[destID].Partitions[0]
		p.Replicas, p.ISR = nextDoor, isr
	})
	r.until("image", func(s Status) bool { return slices.Equal(s.ISR, isr) })
}

func TestGuestOfAnotherProcessDoesNotHoldTheWatermark(t *testing.T) {
	r := newRig(t, 1)
	r.withNextDoor(nextDoor...)
	g := r.topic.parts[0]
	r.src.fill(g, 50, 20)
	a := r.assignment(0)
	a.MinRealISR = 3
	r.l.Assign(a)
	fs := r.three()
	r.syncAll(50, fs...) // 9003 never fetches
	p := r.l.part(r.id())
	if n := p.realISR(); n != 3 {
		t.Errorf("%d real members among %v", n, p.isr)
	}
	r.ctl.mu.Lock()
	r.ctl.answer = func(kraft.ISRProposal) (kraft.ISROutcome, error) { return kraft.ISROutcome{ErrorCode: 107}, nil }
	r.ctl.mu.Unlock()
	// With 3 gone there are too few real ones, however many guests are in.
	r.images.part(func(p *kraft.Partition) { p.ISR = []int32{9001, 9002, 9003, 1, 2} })
	r.until("3 is out", func(s Status) bool { return len(s.ISR) == 5 && s.Err != nil })
	r.src.fill(g, 60, 20)
	r.until("1 and 2 at 60", func(Status) bool { return fs[0].once().next == 60 && fs[1].once().next == 60 })
	if hw, _ := r.l.HighWatermark(r.id()); hw != 50 {
		t.Errorf("high watermark %d with two real members of three", hw)
	}
}

func TestGuestOfAnotherProcessJoinsAndLeaves(t *testing.T) {
	r := newRig(t, 1, func(c *Config, _ *MirrorConfig) { c.isrRetry = 5 * time.Millisecond })
	r.withNextDoor(9001, 9002, 1, 2, 3)
	r.mirror(1)
	fs := r.three()
	r.syncAll(0, fs...)
	r.until("9003 in the ISR", func(s Status) bool { return slices.Contains(s.ISR, 9003) })
	for _, m := range r.ctl.taken()[0].ISR {
		if m.ID == 9003 && m.Epoch != 77 {
			t.Errorf("9003 is proposed with broker epoch %d, not as it is registered", m.Epoch)
		}
	}
	time.Sleep(30 * time.Millisecond)
	before := r.ctl.taken()
	for _, q := range before { // the same one comes again where the image is late
		if q.PartitionEpoch != before[0].PartitionEpoch {
			t.Errorf("proposals for a guest that never fetches: %+v", before)
		}
	}
	r.flip(9002, 6, fs...)
	if _, ok := r.status().Followers[9003]; ok {
		t.Error("a guest counts as a follower")
	}
	// It is fenced while 3 wants to join: a proposal that names it would be refused.
	r.images.edit(func(img *kraft.Image) {
		img.Brokers[9003] = &kraft.Broker{ID: 9003, Epoch: 77, Fenced: true}
		img.Topics[destID].Partitions[0].ISR = []int32{9001, 9002, 9003, 1, 2}
	})
	r.until("9003 out and 3 in", func(s Status) bool {
		for _, f := range fs {
			f.once()
		}
		return !slices.Contains(s.ISR, 9003) && slices.Contains(s.ISR, 3)
	})
	for _, q := range r.ctl.taken()[len(before):] {
		if slices.ContainsFunc(q.ISR, func(m kraft.ISRMember) bool { return m.ID == 9003 }) {
			t.Errorf("a fenced id was proposed: %+v", q)
		}
	}
	r.images.edit(func(img *kraft.Image) { delete(img.Brokers, 9003) })
	n := len(r.ctl.taken())
	r.images.part(func(p *kraft.Partition) { p.ISR = nextDoor })
	r.until("gone for good", func(s Status) bool { return len(r.ctl.taken()) > n && !slices.Contains(s.ISR, 9003) })
}

func TestTruncatedWithAGuestInTheISR(t *testing.T) {
	r := newRig(t, 1)
	r.withNextDoor(nextDoor...)
	r.become(RoleTruncate)
	for _, f := range r.three() {
		f.once()
	}
	if s := r.status(); !s.Truncated {
		t.Errorf("waits for a log that is nowhere: %+v", s)
	}
}

func TestFetchOfAGuest(t *testing.T) {
	for name, role := range map[string]Role{
		"wait": RoleWait, "stray": RoleStray, "truncate": RoleTruncate, "mirror": RoleMirror, "frozen": RoleFrozen,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.withNextDoor(nextDoor...)
			r.src.fill(r.topic.parts[0], 50, 20)
			a := r.assignment(0)
			a.Role = role
			r.l.Assign(a)
			g := r.follower(9003, 1)
			g.brokerEpoch = 77
			g.parts[0].next = 1000 // the end as it heard, not as it is
			q := g.request()
			q.SessionEpoch, q.MaxWaitMillis = -1, 0
			ask := func() kmsg.FetchResponseTopicPartition {
				reply, err := r.l.Fetch(context.Background(), q, 9001)
				if err != nil {
					t.Fatal(err)
				}
				return decodeReply(t, reply, q.Version).Topics[0].Partitions[0]
			}
			if p := ask(); p.ErrorCode != 0 || p.DivergingEpoch.EndOffset >= 0 || len(p.RecordBatches) > 0 || p.HighWatermark < 0 {
				t.Errorf("answer %+v", p)
			}
			if s := r.status(); s.Followers[9003].FetchOffset > 0 || s.LogEnd >= 1000 {
				t.Errorf("a guest's word counts: %+v", s)
			}
			q.ReplicaState.Epoch = 76
			if p := ask(); p.ErrorCode != 77 {
				t.Errorf("a fetch of an older incarnation is answered with code %d", p.ErrorCode)
			}
		})
	}
}
