package broker

import (
	"testing"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

func TestGuestsAreKnownByTheirLogDirectory(t *testing.T) {
	q := newFakeQuorum(t, 1)
	b, err := New(fakeConfig(q, 9001))
	if err != nil {
		t.Fatal(err)
	}
	cluster := fakeCluster
	b.clusterID.Store(&cluster)
	broker := func(id int32, epoch int64, dirs ...protocol.UUID) *kraft.Broker {
		return &kraft.Broker{ID: id, Epoch: epoch, LogDirs: dirs, Fenced: epoch%2 == 1}
	}
	show := func(brokers ...*kraft.Broker) {
		img := kraft.Empty()
		for _, r := range brokers {
			img.Brokers[r.ID] = r
		}
		b.publish(img)
	}
	want := func(when string, ids map[int32]bool) {
		t.Helper()
		for id, guest := range ids {
			if b.Guest(id) != guest {
				t.Errorf("%s: Guest(%d) is %v", when, id, !guest)
			}
		}
	}
	want("before any image", map[int32]bool{9001: true, 9003: false, 1: false, -1: false})
	dir := func(id int32) protocol.UUID { return logDirID(fakeCluster, id) }
	show(
		broker(1, 2, protocol.UUID{1: 5}), broker(2, 4, dir(9001)), broker(3, 6), broker(4, 8, dir(4), protocol.UUID{1: 6}),
		broker(5, 10, logDirID("another cluster", 5)), broker(9003, 12, dir(9003)), broker(9004, 13, dir(9004)),
	)
	all := map[int32]bool{9001: true, 1: false, 2: false, 3: false, 4: false, 5: false, 9003: true, 9004: true, 9005: false}
	want("as registered, fenced or not", all)
	show(broker(9005, 15, dir(9005)))
	all[9005] = true
	want("9003 and 9004 are gone, 9005 is new", all)
	show()
	want("with nobody registered", all)
	show(broker(9004, 16, protocol.UUID{1: 9}))
	all[9004] = false
	want("a real broker has 9004", all)
}
