package unlock

import (
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ids(n ...int32) []int32 { return n }

// testCluster has the guests 9001 and 9002, both dead, and of the real brokers 1 to 4 those alive that are named.
func testCluster(alive ...int32) *cluster {
	c := &cluster{live: map[int32]bool{}, guests: map[int32]bool{9001: true, 9002: true}, load: map[int32]int{1: 5, 2: 5, 3: 5, 4: 1}}
	for _, id := range alive {
		c.live[id] = true
	}
	return c
}

func TestNext(t *testing.T) {
	all := ids(9001, 9002, 1, 2, 3)
	tests := []struct {
		name  string
		live  []int32
		p     partition
		elr   bool
		want  move
		wants []int32
	}{
		{"all in sync", ids(1, 2, 3), partition{leader: 1, replicas: all, isr: ids(1, 2, 3)}, true, reassign, ids(1, 2, 3)},
		{"one is down", ids(1, 2), partition{leader: 1, replicas: all, isr: ids(1, 2)}, true, reassign, ids(1, 2)},
		{"one is alive and behind", ids(1, 2, 3), partition{leader: 1, replicas: all, isr: ids(1, 3)}, true, reassign, ids(1, 3)},
		{"kmirror leads", ids(1, 2, 3, 9001), partition{leader: 9001, replicas: all, isr: all}, true, reassign, ids(1, 2, 3)},
		{"the move is under way", ids(1, 2, 3), partition{leader: 1, replicas: all, isr: ids(1, 2, 3), removing: ids(9001, 9002)}, true, await, nil},
		{"the move hangs", ids(1, 2), partition{leader: 1, replicas: all, isr: ids(1, 2), removing: ids(9001, 9002)}, true, cancel, nil},
		{"a guest is being added", ids(1, 2, 3), partition{leader: 1, replicas: ids(9002, 1, 2, 3), isr: ids(1, 2, 3), adding: ids(9002)},
			true, cancel, nil},
		{"done", ids(1, 2, 3), partition{leader: 1, replicas: ids(1, 2, 3), isr: ids(1, 2, 3)}, true, free, nil},
		{"done, and growing", ids(1, 2, 3), partition{leader: 1, replicas: ids(1, 2, 3), isr: ids(1, 2), adding: ids(3)}, true, free, nil},
		{"eligible leaders in the way", ids(1, 2, 3), partition{leader: 1, replicas: ids(1, 2), isr: ids(1, 2), elr: ids(9001)}, true,
			reassign, ids(2, 1)},
		{"eligible leaders of a single replica", ids(1, 2, 4), partition{leader: 1, replicas: ids(1), isr: ids(1), elr: ids(9001)}, true,
			reassign, ids(1, 4)},
		{"eligible leaders of a single replica, no other broker", ids(1),
			partition{leader: 1, replicas: ids(1), isr: ids(1), elr: ids(9001)}, true, stuck, nil},
		{"eligible leaders that don't matter", ids(1, 2), partition{leader: 1, replicas: ids(1, 2, 3), isr: ids(1, 2), elr: ids(3)}, false, free, nil},
		{"eligible leader that is out of sync", ids(1, 2), partition{leader: 1, replicas: ids(1, 2, 3), isr: ids(1, 2), elr: ids(3)}, true,
			reassign, ids(1, 2)},
		{"no leader", ids(1, 2, 3), partition{leader: -1, replicas: all, elr: ids(9001)}, true, stuck, nil},
		{"the last in sync is dead", ids(1, 2), partition{leader: -1, replicas: all, isr: ids(3)}, true, stuck, nil},
	}
	for _, tt := range tests {
		got, list := testCluster(tt.live...).next(tt.p, tt.elr)
		if got != tt.want || !slices.Equal(list, tt.wants) {
			t.Errorf("%s: %d %v, want %d %v", tt.name, got, list, tt.want, tt.wants)
		}
	}
}

func TestWhy(t *testing.T) {
	c := testCluster(1)
	if s := c.why("orders", 0, partition{leader: -1, replicas: ids(9001, 2, 3), elr: ids(9001, 2, 3)}); !strings.Contains(s, "start broker 2 or 3") {
		t.Error(s)
	}
	if s := c.why("orders", 2, partition{leader: -1, replicas: ids(9001), isr: ids(9001)}); !strings.Contains(s, "kmirror's ids alone") {
		t.Error(s)
	}
	if s := c.why("orders", 1, partition{leader: 1, replicas: ids(1), isr: ids(1), elr: ids(9001)}); !strings.Contains(s, "can be written, with acks=all too") {
		t.Error(s)
	}
	if s := c.why("orders", 7, partition{leader: -1, replicas: ids(9001, 1), isr: ids(9001)}); !strings.Contains(
		s, "UNCLEAN --topic orders --partition 7") {
		t.Error(s)
	}
}

func TestRegrown(t *testing.T) {
	tests := []struct {
		name   string
		live   []int32
		now    []int32
		before []int32
		wanted int
		borrow int32
		want   []int32
	}{
		{"nothing is missing", ids(1, 2, 3, 4), ids(1, 2, 3), ids(1, 2, 3), 3, -1, ids(1, 2, 3)},
		{"one comes back into its place", ids(1, 2, 3), ids(1, 3), ids(1, 2, 3), 3, -1, ids(1, 2, 3)},
		{"one is still down", ids(1, 2), ids(1, 2), ids(1, 2, 3), 2, -1, ids(1, 2)},
		{"the place of one that is down is kept", ids(1, 2, 4), ids(1, 2), ids(1, 2, 3), 3, -1, ids(1, 2)},
		{"nobody remembers, fewest replicas first", ids(1, 2, 3, 4), ids(1, 2), ids(1, 2), 3, -1, ids(1, 2, 4)},
		{"not more than asked", ids(1, 2, 3, 4), ids(1, 2, 3), nil, 2, -1, ids(1, 2, 3)},
		{"guests never", ids(1, 2, 9001, 9002), ids(1), ids(9001, 1, 2), 3, -1, ids(1, 2)},
		{"what was borrowed is left out", ids(1, 2, 3), ids(1, 3), ids(1), 1, 3, ids(1)},
		{"the order of before", ids(1, 2, 3), ids(2, 3, 1), ids(1, 2, 3), 3, -1, ids(1, 2, 3)},
	}
	for _, tt := range tests {
		if got := testCluster(tt.live...).regrown(partition{replicas: tt.now}, tt.before, tt.wanted, tt.borrow); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
