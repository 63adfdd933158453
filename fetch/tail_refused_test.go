package fetch

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"kmirror/internal/replica"
)

func TestTailsThatDontFit(t *testing.T) {
	good := tailOf(50, 2)
	broken := bytes.Clone(good.Batches)
	broken[len(broken)/2+16] = 1
	for name, tail := range map[string]*replica.Tail{
		"none":              nil,
		"above the end":     tailOf(51, 2),
		"below the end":     tailOf(49, 2),
		"a gap":             {Batches: slices.Concat(batch(50, 1, 0, 9), batch(52, 1, 0, 9)), End: 53},
		"another end":       {Batches: good.Batches, End: 53},
		"ends within batch": {Batches: good.Batches[:len(good.Batches)-1], End: 52},
		"old format":        {Batches: broken, End: 52},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			fs := r.mirrored()
			for _, f := range fs {
				f.session, f.epoch = 0, -1 // sessions leave out what is held
			}
			r.assignTail(3, 50, tail)
			for _, f := range fs {
				if f.once(); f.parts[0].code != 75 || f.parts[0].next != 50 {
					t.Errorf("follower %d at %d, code %d", f.id, f.parts[0].next, f.parts[0].code)
				}
			}
			p := r.l.part(r.id())
			p.mu.Lock()
			p.src.diverged = errors.New("long ago")
			p.mu.Unlock()
			if s := r.status(); !errors.Is(s.Err, ErrTail) || !s.Fatal || s.Tailed {
				t.Errorf("%+v", s)
			}
			if _, _, ok := r.l.EpochEnd(r.id(), 5); ok {
				t.Error("it has an end")
			}
			p.mu.Lock()
			p.src.diverged = nil
			p.mu.Unlock()
			r.assignTail(3, 50, good)
			r.tailed(append(r.topic.parts[0].bytes(), stampedBytes(good, 5)...), fs...)
		})
	}
}

func TestTailNeedsANewerLeaderEpoch(t *testing.T) {
	for name, spoil := range map[string]func(r *rig, fs []*fakeFollower){
		"not above the last mirrored one": func(r *rig, fs []*fakeFollower) { r.assignTail(5, 50, tailOf(50, 2)) },
		"another tail was handed out": func(r *rig, fs []*fakeFollower) {
			r.assignTail(3, 50, tailOf(50, 4))
			fs[0].once()
			r.assignTail(3, 50, tailOf(50, 2))
		},
		"another tail was handed out, with a pause": func(r *rig, fs []*fakeFollower) {
			r.assignTail(3, 50, tailOf(50, 4))
			fs[0].once()
			r.become(RoleFrozen)
			r.assignTail(3, 50, tailOf(50, 2))
		},
		"an earlier process handed one out": func(r *rig, fs []*fakeFollower) {
			fs[0].parts[0].plant(splitAll(stampedBytes(tailOf(50, 2), 5))...)
			r.assignTail(3, 50, tailOf(50, 2))
			fs[0].once()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			fs := r.mirrored()
			for _, f := range fs {
				f.session, f.epoch = 0, -1 // sessions leave out what is held
			}
			log := r.topic.parts[0].bytes()
			spoil(r, fs)
			for range 2 {
				for _, f := range fs {
					if f.once(); f.parts[0].code != 75 {
						t.Errorf("follower %d at %d, code %d", f.id, f.parts[0].next, f.parts[0].code)
					}
				}
			}
			if s := r.status(); !errors.Is(s.Err, ErrTailEpoch) || s.Fatal || !s.EpochBlocked || s.Tailed {
				t.Errorf("%+v", s)
			}
			r.flip(9002, 6, fs...)
			tail := tailOf(50, 2)
			r.assignTail(3, 50, tail)
			r.tailed(append(log, stampedBytes(tail, 6)...), fs...)
		})
	}
}

func TestTailAssignedInAnothersPlaceBeforeAnythingWasGiven(t *testing.T) {
	r := newRig(t, 1)
	fs := r.mirrored()
	r.assignTail(3, 50, &replica.Tail{Batches: batch(50, 1, 0, 77), End: 51})
	p := r.l.part(r.id())
	p.mu.Lock()
	p.readTail(&asked{offset: 50}, p.followers[1], 0, false, &answer{}, nil) // no room for it in an answer
	p.mu.Unlock()
	tail := tailOf(50, 2)
	r.assignTail(3, 50, tail)
	r.tailed(append(r.topic.parts[0].bytes(), stampedBytes(tail, 5)...), fs...)
}
