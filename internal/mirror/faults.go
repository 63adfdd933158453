package mirror

import (
	"slices"
	"strings"

	"kmirror/internal/replica"
	"kmirror/statemachine"
)

// FaultPoints names every moment at which tests end the process by force, in the order in which a partition's life comes by them.
// What may be cut short there, and must be found again by looking, is what a step has just done.
var FaultPoints = []string{
	"created", "stored PREPARING", "started", "listed", "joined", "led", "locked", "aligning", "dropped", "aligned", "reordered", "raised",
	"stored MIRRORING",
	"stored EPOCH_FENCING",
	"stored PAUSING", "stored PAUSED",
	"stop wanted", "stored STOPPING freeze", "converged", "stored STOPPING mark", "tails made", "tail begun", "tail served",
	"stored STOPPING hand over", "size unlocked", "unlocked", "handed over", "stored STOPPED", "grown back",
}

// fault tells tests that a point was reached. In production nobody listens.
func (m *Manager) fault(point string) {
	if m.cfg.Fault != nil {
		m.cfg.Fault(point)
	}
}

// faultOfTask names the point after a task, empty for those that are none.
func faultOfTask(task string) string {
	switch task {
	case leadTask, retakeTask:
		return "led"
	case dropTask:
		return "dropped"
	case bumpTask:
		return "raised"
	case tailTask:
		return "tails made"
	case handOverTask:
		return "handed over"
	case regrowTask:
		return "grown back"
	}
	switch {
	case strings.HasPrefix(task, lockTask("")):
		return "locked"
	case strings.HasPrefix(task, unlockTask("")):
		return "unlocked"
	}
	return ""
}

// faultsStored tells of the states that were just stored.
func (m *Manager) faultsStored(parts []*part) {
	if m.cfg.Fault == nil {
		return
	}
	var points []string
	for _, p := range parts {
		point := "stored " + p.machine.State.String()
		if p.machine.State == statemachine.Stopping {
			point += " " + p.machine.Stop.String()
		}
		if !slices.Contains(points, point) {
			points = append(points, point)
		}
	}
	for _, point := range points {
		m.fault(point)
	}
}

// faultsSeen tells of what followers have done, all of them or some.
func (m *Manager) faultsSeen(p *part, f statemachine.Facts, st replica.Status) {
	switch {
	case m.cfg.Fault == nil || !f.Leading:
	case f.Aligned:
		m.fault("aligned")
	case f.Converged:
		m.fault("converged")
	case f.Tailed:
		m.fault("tail served")
	case st.Role == replica.RoleTruncate && !st.Truncated:
		for _, follower := range st.Followers { // one that is not told to truncate is counted
			if follower.FetchOffset >= 0 {
				m.fault("aligning")
			}
		}
	case st.Role == replica.RoleTail:
		for _, follower := range st.Followers {
			if follower.FetchOffset > p.work.end {
				m.fault("tail begun")
			}
		}
	}
}
