package main

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"kmirror/internal/admin"
	"kmirror/protocol/kip1279"
)

// leaver is a process that can be told to end once it was asked to; its answer is given all the same.
type leaver struct {
	*lifeService
	asked chan struct{}
}

func (l leaver) Retire(ctx context.Context, req admin.RetireRequest) (admin.RetireResult, error) {
	defer close(l.asked)
	return l.lifeService.Retire(ctx, req)
}

func TestRetire(t *testing.T) {
	f := &lifeService{result: admin.RetireResult{Partitions: 7, Stopped: []string{"a", "c"}, Remains: []string{"__mirror_state"}}}
	h := newHarness(t, f)
	code, stdout, _ := h.run("retire", "--node-ids", "9001,9002", "--failover", "--dry-run")
	want := "would hand back: 7 partitions\nstopped: a, c\nwould send: AlterPartitionReassignments: 7 partitions to their real replicas\n" +
		"would send: IncrementalAlterConfigs broker 9001: remove all\nwould send: UnregisterBroker 9001\n" +
		"would send: IncrementalAlterConfigs broker 9002: remove all\nwould send: UnregisterBroker 9002\nleft behind: __mirror_state\n"
	if code != 0 || stdout != want {
		t.Errorf("exit %d\n%s", code, stdout)
	}
	code, stdout, stderr := h.run("retire", "--node-ids", "9001,9002", "--wait", "100ms")
	if code != admin.ExitIncomplete || !strings.Contains(stdout, "handed back: 7 partitions\n") || strings.Contains(stdout, "left: ") ||
		!strings.Contains(stderr, h.address+" still runs") {
		t.Errorf("a process that stays: exit %d\n%s%s", code, stdout, stderr)
	}
	if want := []admin.RetireRequest{{NodeIDs: []int32{9001, 9002}, Failover: true, DryRun: true},
		{NodeIDs: []int32{9001, 9002}}}; !reflect.DeepEqual(f.retire, want) {
		t.Errorf("%+v", f.retire)
	}
	l := leaver{f, make(chan struct{})}
	gone, stop := newGoingHarness(t, l)
	f.result.Process = gone.address
	go func() { <-l.asked; stop() }()
	code, stdout, stderr = gone.run("retire", "--node-ids", "9001,9002")
	want = "handed back: 7 partitions\nstopped: a, c\nleft: node ids [9001,9002] are unregistered, the process has ended\nleft behind: __mirror_state\n"
	if code != 0 || stdout != want {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	f.refused = &admin.Error{Code: kip1279.ClusterMirrorNotEmpty, Message: "2 topics are active", Hint: "give --failover", Exit: admin.ExitRefused}
	if code, stdout, stderr := h.run("retire", "--node-ids", "9001,9002"); code != admin.ExitRefused || stdout != "" ||
		!strings.Contains(stderr, "give --failover") {
		t.Errorf("exit %d %s%s", code, stdout, stderr)
	}
}
