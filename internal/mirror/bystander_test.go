package mirror

import (
	"maps"
	"testing"

	"kmirror/internal/admin"
)

// Of a process that is not registered the image may show the node ids all the same: they are another's that lives, and so are the mirrors.
func TestWhoIsNotRegisteredRunsNoMirror(t *testing.T) {
	w, m := stoppingElsewhere(t)
	shared(t, w, m, false).Dead = true
	registered := false
	m.cfg.Registered = func() bool { return registered }
	before := len(w.stored)
	rounds(t, m, 3)
	if len(w.lists) > 0 || len(w.stored) != before || len(m.parts) > 0 {
		t.Errorf("lists set %v, stored %v, %d partitions run", w.lists, w.stored[before:], len(m.parts))
	}
	if _, mirror := m.MirrorOf("orders"); !mirror {
		t.Error("the topic can be written")
	}
	registered = true
	rounds(t, m, 2)
	if ip := w.Image().Partition(orders0); !w.Owns(ip.Leader) {
		t.Errorf("led by %d, lists set %v", ip.Leader, w.lists)
	}
}

// What a process ran before it lost its node ids to another one is forgotten: should it lead again, what is stored by then holds, even where
// the image shows it leading all the time, since the ids are the same.
func TestWhoIsReplacedForgetsWhatItRan(t *testing.T) {
	w, m := stoppingElsewhere(t)
	shared(t, w, m, false).Dead = true
	registered := true
	m.cfg.Registered = func() bool { return registered }
	rounds(t, m, 2)
	if len(m.parts) == 0 {
		t.Fatal("nothing is run")
	}
	registered = false
	rounds(t, m, 1)
	if len(w.roles) > 0 {
		t.Errorf("%v are assigned to the data path", w.roles)
	}
	if infos, err := m.Describe(t.Context(), admin.DescribeRequest{}); err != nil || len(infos) == 0 {
		t.Errorf("%d partitions described: %v", len(infos), err)
	}
	ran := maps.Clone(m.parts)
	registered = true
	rounds(t, m, 1)
	if len(m.parts) != len(ran) {
		t.Errorf("%d partitions are run, want %d", len(m.parts), len(ran))
	}
	for id, p := range m.parts {
		if ran[id] == p {
			t.Errorf("%v is run as it was remembered", id)
		}
	}
}

// Node ids of a process that does not answer may be those of one that does, which has taken them over: nothing is taken from that one.
func TestTakenOverIDsAreNotDead(t *testing.T) {
	_, m := stoppingElsewhere(t)
	dead := Process{NodeIDs: []int32{9003, 9004}, Dead: true}
	m.cfg.Processes = func() []Process {
		return []Process{{NodeIDs: m.cfg.NodeIDs, Self: true}, dead, {NodeIDs: dead.NodeIDs}}
	}
	if _, ids := m.processes(); len(ids) > 0 {
		t.Errorf("held dead: %v", ids)
	}
	m.cfg.Processes = func() []Process { return []Process{{NodeIDs: m.cfg.NodeIDs, Self: true}, dead} }
	if _, ids := m.processes(); len(ids) != 2 {
		t.Errorf("held dead: %v", ids)
	}
}
