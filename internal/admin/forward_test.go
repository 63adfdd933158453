package admin

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"kmirror/protocol"
)

// site is a process that knows some partitions.
type site struct {
	Service
	infos   []PartitionInfo
	asked   []string
	refuses map[protocol.PartitionID]error
	err     error
}

func (s *site) Describe(context.Context, DescribeRequest) ([]PartitionInfo, error) {
	return s.infos, s.err
}

func (s *site) StopTopics(_ context.Context, req StopRequest) ([]TopicResult, error) {
	s.asked = append(s.asked, "stop "+req.Mirror)
	return nil, s.err
}

func (s *site) Retire(context.Context, RetireRequest) (RetireResult, error) {
	s.asked = append(s.asked, "retire")
	return RetireResult{}, nil
}

func (s *site) BumpLeaderEpochs(context.Context, map[protocol.PartitionID]int32) (map[protocol.PartitionID]error, error) {
	return s.refuses, nil
}

func twoSites() (*Forward, *site, *site) {
	here, there := &site{}, &site{}
	self, other := Process{Address: "a:1", NodeIDs: []int32{9001}, Self: true}, Process{Address: "b:1", NodeIDs: []int32{9003}}
	return &Forward{
		Service:   here,
		Processes: func() []Process { return []Process{self, other} },
		Owner: func(mirror string) (Process, bool) {
			return map[string]Process{"here": self, "there": other}[mirror], mirror != "nobody"
		},
		Dial: func(string) (Service, func(), error) { return there, func() {}, nil },
	}, here, there
}

func TestForwardToTheOwner(t *testing.T) {
	f, here, there := twoSites()
	for _, mirror := range []string{"here", "there", "nobody"} {
		if _, err := f.StopTopics(t.Context(), StopRequest{Mirror: mirror}); err != nil {
			t.Fatal(err)
		}
	}
	// What was passed on is never passed on again, whatever this process believes.
	if _, err := f.StopTopics(context.WithValue(t.Context(), forwarded{}, true), StopRequest{Mirror: "there"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Retire(t.Context(), RetireRequest{NodeIDs: []int32{9003}}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(here.asked, []string{"stop here", "stop nobody", "stop there"}) || !slices.Equal(there.asked, []string{"stop there", "retire"}) {
		t.Errorf("asked here %v, there %v", here.asked, there.asked)
	}
}

func TestForwardDescribe(t *testing.T) {
	f, here, there := twoSites()
	process := "b:1"
	here.infos = []PartitionInfo{{Mirror: "m", Topic: "x", Partition: 1}, {Mirror: "m", Topic: "x", Partition: 2}}
	there.infos = []PartitionInfo{{Mirror: "m", Topic: "x", Partition: 1, Process: &process}, {Mirror: "m", Topic: "x", Partition: 0}}
	got, err := f.Describe(t.Context(), DescribeRequest{})
	if err != nil || len(got) != 3 || got[0].Partition != 0 || got[1].Process == nil || got[2].Partition != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	there.err = errors.New("dead")
	if got, err = f.Describe(t.Context(), DescribeRequest{}); err != nil || len(got) < 2 {
		t.Errorf("with a dead process: %+v, %v", got, err)
	}
}

func TestForwardBump(t *testing.T) {
	f, here, there := twoSites()
	a, b, c := protocol.PartitionID{Partition: 1}, protocol.PartitionID{Partition: 2}, protocol.PartitionID{Partition: 3}
	notMine, busy := &Error{Code: notLeader, Message: "not mine"}, &Error{Code: 60, Message: "busy"}
	here.refuses = map[protocol.PartitionID]error{a: notMine, b: notMine, c: notMine}
	there.refuses = map[protocol.PartitionID]error{b: busy, c: notMine}
	got, err := f.BumpLeaderEpochs(t.Context(), nil)
	if err != nil || len(got) != 2 || got[b] != error(busy) || got[c] == nil {
		t.Errorf("%v, %v", got, err)
	}
}

// TestForwardPastTheDead: an owner that is stopped, and so keeps its connection, does not keep an operator from what the others can do.
func TestForwardPastTheDead(t *testing.T) {
	f, here, there := twoSites()
	self, other := f.Processes()[0], f.Processes()[1]
	var dead atomic.Bool
	f.Processes = func() []Process {
		if dead.Load() {
			return []Process{self}
		}
		return []Process{self, other}
	}
	f.Owner = func(string) (Process, bool) {
		if dead.Load() {
			return self, true
		}
		return other, true
	}
	f.Dial = func(string) (Service, func(), error) { return hanging{there}, func() {}, nil }
	time.AfterFunc(300*time.Millisecond, func() { dead.Store(true) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := f.StopTopics(ctx, StopRequest{Mirror: "m"}); err != nil || !slices.Equal(here.asked, []string{"stop m"}) {
		t.Errorf("asked here %v, %v", here.asked, err)
	}
}

// hanging is a process that was stopped.
type hanging struct{ *site }

func (hanging) StopTopics(ctx context.Context, _ StopRequest) ([]TopicResult, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
