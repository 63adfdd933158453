package fetch

import (
	"testing"
)

// fill gives a log batches of 10 records each from its end to end.
func (s *fakeSource) fill(g *fakeLog, end int64, size int) {
	s.do(func() {
		for g.end() < end {
			g.add(batch(g.end(), 10, g.epoch, size))
		}
	})
}

func TestMirrorThreeFollowersOneRead(t *testing.T) {
	r := newRig(t, 4)
	for _, g := range r.topic.parts {
		r.src.fill(g, 2000, 2000)
	}
	r.mirror(4)
	fs := []*fakeFollower{r.follower(1, 4), r.follower(2, 4), r.follower(3, 4)}
	r.syncAll(2000, fs...)
	read := int64(0)
	for _, s := range r.l.Statuses() {
		read += s.FetchedBytes
	}
	want := int64(0)
	for i, g := range r.topic.parts {
		want += int64(len(g.bytes()))
		for _, f := range fs {
			sameBytes(t, f.parts[i].log, g.bytes())
		}
	}
	if read != want {
		t.Errorf("read %d bytes from the source, its logs have %d: RF 3 is to cost one read", read, want)
	}
}
