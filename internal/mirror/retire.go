package mirror

import (
	"context"
	"fmt"
	"slices"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/protocol/kip1279"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// lastWord is how long the process goes on after a retirement is answered, so that the answer arrives.
const lastWord = 500 * time.Millisecond

// Retired is closed when the process has handed everything back and is to leave the destination for good.
func (m *Manager) Retired() <-chan struct{} { return m.retired }

// Retire hands everything back and waits until no replica list names an id of this process. Without Failover active mirrors are a
// reason to refuse: their topics would be writable in the middle of mirroring.
func (m *Manager) Retire(ctx context.Context, req admin.RetireRequest) (admin.RetireResult, error) {
	res := admin.RetireResult{Process: m.cfg.Process}
	if err := m.loaded(); err != nil {
		return res, err
	}
	asked, own := slices.Sorted(slices.Values(req.NodeIDs)), slices.Sorted(slices.Values(m.cfg.NodeIDs))
	if !slices.Equal(asked, own) {
		return res, &admin.Error{Code: kip1279.InvalidRequest,
			Message: fmt.Sprintf("this process has the node ids %v, not %v", own, asked),
			Hint:    "name all node ids of the process, and ask the process that has them", Exit: admin.ExitUsage}
	}
	active := map[string]bool{}
	for _, t := range m.cfg.Store.Topics() {
		if t.Desired != statemachine.Stopped || !m.isStopped(t.TopicID) {
			active[t.Mirror] = true
			res.Stopped = append(res.Stopped, t.Name)
		}
	}
	res.Remains = []string{coordinator.DefaultTopic}
	res.Partitions = len(m.named(m.cfg.Destination.Image()))
	others := m.others()
	if others {
		res.Stopped = nil // they are mirrored on by another process
	}
	if len(active) > 0 && !req.Failover && !others {
		return res, &admin.Error{Code: kip1279.ClusterMirrorNotEmpty,
			Message: fmt.Sprintf("%d topics are still mirrored, %s among them", len(res.Stopped), res.Stopped[0]),
			Hint:    "promote or stop them first, or let --failover do it", Exit: admin.ExitRefused}
	}
	if req.DryRun {
		return res, nil
	}
	if others {
		active = nil
		defer m.poke()
	}
	for mirror := range active {
		stopped, err := m.StopTopics(ctx, admin.StopRequest{Mirror: mirror, All: true, MaxLoss: -1, Force: true})
		if err != nil {
			return res, err
		}
		for _, r := range stopped {
			if r.Err != nil {
				return res, r.Err
			}
		}
	}
	m.leaving.Store(true)
	if err := m.awaitNobodyNamesUs(ctx); err != nil {
		return res, err
	}
	m.retireOnce.Do(func() { time.AfterFunc(lastWord, func() { close(m.retired) }) })
	return res, nil
}

// others reports whether another process is there to take over.
func (m *Manager) others() bool {
	procs, _ := m.processes()
	return slices.ContainsFunc(procs, func(p Process) bool { return !p.Self && p.able() })
}

// named returns the partitions, by topic and number, whose replica lists name an id of this process.
func (m *Manager) named(img *kraft.Image) []string {
	var out []string
	for _, t := range img.Topics {
		for n, p := range t.Partitions {
			if len(m.own(p.Replicas)) > 0 {
				out = append(out, fmt.Sprintf("%s-%d", t.Name, n))
			}
		}
	}
	return out
}

func (m *Manager) awaitNobodyNamesUs(ctx context.Context) error {
	var left []string
	if m.awaitImage(ctx, func(img *kraft.Image) bool { left = m.named(img); return len(left) == 0 }) == nil {
		return nil
	}
	return &admin.Error{Code: kip1279.RequestTimedOut,
		Message: fmt.Sprintf("%d partitions still name node ids of this process, %s among them", len(left), left[0]),
		Hint:    "see kmirror describe for what they wait for; the same command again goes on", Exit: admin.ExitIncomplete}
}
