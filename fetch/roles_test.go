package fetch

import (
	"slices"
	"testing"

	"kmirror/protocol/kraft"
)

func TestRoleTruncate(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.fill(g, 40, 20)
	a := r.assignment(0)
	a.Role = RoleTruncate
	a.TruncateTo = Divergence{Epoch: 3, EndOffset: 20}
	r.l.Assign(a)
	fs := r.three()
	fs[0].parts[0].plant(batch(0, 20, 3, 20), batch(20, 10, 3, 25), batch(30, 10, 4, 25))
	fs[1].parts[0].plant(batch(0, 10, 3, 20), batch(10, 5, 4, 25))
	fs[2].parts[0].plant(batch(0, 10, 2, 20))
	for _, f := range fs[:2] {
		for range 4 {
			if f.once(); f.parts[0].hw >= 0 {
				t.Fatalf("a high watermark while truncating")
			}
		}
		if r.status().Truncated {
			t.Fatal("truncated without 3")
		}
	}
	fs[2].once()
	if s := r.status(); !s.Truncated || fs[0].parts[0].next != 20 || fs[1].parts[0].next != 10 || fs[2].parts[0].next != 10 {
		t.Fatalf("ends %d %d %d, %+v", fs[0].parts[0].next, fs[1].parts[0].next, fs[2].parts[0].next, s)
	}
	if fs[2].parts[0].diverged != 0 || fs[2].parts[0].code != 75 {
		t.Errorf("a follower below is to be held: %+v", fs[2].parts[0])
	}
	a.TruncateTo = Divergence{}
	r.l.Assign(a)
	if r.status().Truncated {
		t.Error("truncated to {0, 0} before anybody was told")
	}
	for _, f := range fs {
		f.once()
		f.once()
		if f.parts[0].next != 0 {
			t.Errorf("{0, 0} left follower %d at %d", f.id, f.parts[0].next)
		}
	}
	r.mirror(1)
	r.syncAll(40, fs...)
	sameBytes(t, fs[1].parts[0].log, g.bytes())
}

func TestRoleFrozen(t *testing.T) {
	r := newRig(t, 1)
	g := r.topic.parts[0]
	r.src.fill(g, 50, 20)
	r.mirror(1)
	fs := r.three()
	r.syncAll(50, fs...)
	a := r.assignment(0)
	a.Role = RoleFrozen
	r.l.Assign(a)
	r.src.fill(g, 100, 20)
	for range 3 {
		for _, f := range fs {
			if f.once(); f.parts[0].next != 50 || f.parts[0].code != 0 {
				t.Fatalf("follower %d at %d, code %d", f.id, f.parts[0].next, f.parts[0].code)
			}
		}
	}
	if hw, ok := r.l.HighWatermark(r.id()); !ok || hw != 50 {
		t.Errorf("high watermark %d", hw)
	}
	if s := r.status(); s.LogEnd != 50 {
		t.Errorf("a frozen log ends at %d", s.LogEnd)
	}
	if e, end, ok := r.l.EpochEnd(r.id(), 3); !ok || e != 0 || end < 50 {
		t.Errorf("epoch end %d %d %v", e, end, ok)
	}
	r.mirror(1)
	r.syncAll(100, fs...)
	sameBytes(t, fs[0].parts[0].log, g.bytes())
}

func TestRoleFrozenAfterRestartWithoutSource(t *testing.T) {
	r := newRig(t, 1)
	a := r.assignment(0)
	a.Role, a.Mirror = RoleFrozen, "gone"
	r.l.Assign(a)
	fs := r.three()
	fs[0].parts[0].plant(batch(0, 10, 0, 20), batch(10, 10, 0, 20))
	fs[1].parts[0].plant(batch(0, 10, 0, 20))
	fs[2].parts[0].plant(batch(0, 10, 0, 20))
	r.syncAll(10, fs...)
	if hw, ok := r.l.HighWatermark(r.id()); !ok || hw != 10 {
		t.Errorf("high watermark %d", hw)
	}
}

func TestRoleStray(t *testing.T) {
	r := newRig(t, 1)
	r.images.edit(func(img *kraft.Image) {
		img.Topics[destID].Partitions[0].ISR = []int32{9001, 1}
		img.Topics[destID].Partitions[0].Replicas = []int32{9001, 1, 2, 3}
	})
	r.until("image", func(s Status) bool { return len(s.ISR) < 5 })
	r.l.Assign(Assignment{ID: r.id(), Topic: topicName, Role: RoleStray})
	f1, f2, f3 := r.follower(1, 1), r.follower(2, 1), r.follower(3, 1)
	f1.parts[0].plant(batch(0, 50, 0, 20))
	f2.parts[0].plant(batch(0, 50, 0, 20))
	for range 3 {
		f1.once()
		f2.once()
		f3.once()
	}
	r.until("2 in the ISR", func(s Status) bool { return slices.Contains(s.ISR, 2) })
	s := r.status()
	if f1.parts[0].hw != 50 || f1.parts[0].code != 0 || f3.parts[0].next != 0 || slices.Contains(s.ISR, 3) {
		t.Errorf("high watermark %d, 3 at %d, %+v", f1.parts[0].hw, f3.parts[0].next, s)
	}
}

func TestRoleStrayWithoutAnyRecord(t *testing.T) {
	r := newRig(t, 1)
	r.images.edit(func(img *kraft.Image) {
		img.Topics[destID].Partitions[0].ISR = []int32{9001}
		img.Topics[destID].Partitions[0].Replicas = []int32{9001, 1, 2}
	})
	r.until("image", func(s Status) bool { return len(s.ISR) < 5 })
	r.l.Assign(Assignment{ID: r.id(), Topic: topicName, Role: RoleStray})
	f1, f2 := r.follower(1, 1), r.follower(2, 1)
	r.syncAll(0, f1, f2)
	r.until("both in the ISR", func(s Status) bool { return slices.Contains(s.ISR, 1) && slices.Contains(s.ISR, 2) })
}

func TestRoleWait(t *testing.T) {
	r := newRig(t, 1)
	r.until("led", func(s Status) bool { return s.Leader == 9001 })
	f := r.follower(1, 1)
	if p := f.once(); p.code != 75 || p.hw >= 0 {
		t.Errorf("code %d, high watermark %d", p.code, p.hw)
	}
	r.src.fill(r.topic.parts[0], 10, 20)
	r.mirror(1)
	fs := r.three()
	r.syncAll(10, fs...)
	r.l.Unassign(r.id())
	if p := fs[0].once(); p.next != 10 || r.status().Role != RoleWait {
		t.Errorf("after Unassign: %+v", p)
	}
}
