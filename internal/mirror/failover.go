package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

// StopTopics ends mirroring: at once, or with Drain once the destination has all that the source has. What is accepted is stored,
// and goes on whatever becomes of this process.
func (m *Manager) StopTopics(ctx context.Context, req admin.StopRequest) ([]admin.TopicResult, error) {
	list := req.Topics
	if req.All {
		list = []string{"/.*/"}
	}
	topics, refused, err := m.selectTopics(req.Mirror, list, func(coordinator.Topic) bool { return true })
	if none := (*admin.Error)(nil); req.All && errors.As(err, &none) && none.Code == kip1279.UnknownTopicOrPartition {
		return nil, nil // a mirror without topics is as stopped as can be
	}
	if err != nil {
		return nil, err
	}
	if req.Drain {
		if err := m.cfg.PingSource(ctx, req.Mirror); err != nil {
			e := unreachable("source", err).(*admin.Error)
			e.Hint = "promote copies the rest first and needs the source; where it is lost, kmirror failover goes on with what there is"
			return nil, e
		}
	}
	var ends map[protocol.PartitionID]int64
	if req.DryRun || req.MaxLoss >= 0 { // else nobody asks what is lost, and a dead source must not hold a failover up
		ends = m.sourceEnds(ctx, req.Mirror, topics)
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	out := make([]admin.TopicResult, len(topics))
	statuses := m.cfg.Data.Statuses()
	var put []coordinator.Topic
	var putAt []int
	for i, t := range topics {
		if now, ok := m.cfg.Store.TopicByName(t.Name); ok && now.Mirror == t.Mirror {
			t = now // it may have grown while the source was asked
		}
		out[i] = admin.TopicResult{Topic: t.Name, Partitions: t.Partitions}
		plan := m.stopPlan(t, req, ends, statuses)
		if req.DryRun {
			out[i].Plan = plan
		}
		if refusal := m.stopGate(t, req, plan); refusal != nil {
			out[i].Err = refusal
			continue
		}
		if req.DryRun || t.Desired == statemachine.Stopped && (req.Drain || !t.Drain) {
			continue // what stops already is changed by a failover that cuts a promote short only
		}
		t.Desired, t.Drain, t.Regrow, t.GroupsDone, t.Ended, t.Note = statemachine.Stopped, req.Drain, true, false, false, ""
		put, putAt = append(put, t), append(putAt, i)
	}
	if len(put) > 0 {
		if err := m.cfg.Store.PutTopic(ctx, put...); err != nil {
			for _, i := range putAt {
				out[i].Err = asError(err)
			}
		}
	}
	if !req.DryRun {
		m.fault("stop wanted")
	}
	m.poke()
	return sortResults(append(out, refused...)), nil
}

// sourceEnds tells where topics end at their source. Where it does not answer soon, what was last heard of it counts.
func (m *Manager) sourceEnds(ctx context.Context, mirror string, topics []coordinator.Topic) map[protocol.PartitionID]int64 {
	out := map[protocol.PartitionID]int64{}
	m.mu.Lock()
	for id, st := range m.cfg.Data.Statuses() {
		if p := m.parts[id]; p != nil && p.topic.Mirror == mirror && st.SourceEnd >= 0 {
			out[id] = st.SourceEnd
		}
	}
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, askSource)
	defer cancel()
	ends, err := m.cfg.SourceEnds(ctx, mirror, topics)
	if err != nil {
		return out
	}
	for topic, of := range ends {
		for n, end := range of {
			out[protocol.PartitionID{Topic: topic, Partition: n}] = end
		}
	}
	return out
}

// askSourceEnds asks a mirror's source where topics end.
func (m *Manager) askSourceEnds(ctx context.Context, mirror string, topics []coordinator.Topic) (map[protocol.UUID]map[int32]int64, error) {
	def, err := m.definition(mirror)
	if err != nil {
		return nil, err
	}
	cl, err := m.sources.source(mirror, def.Config)
	if err != nil {
		return nil, err
	}
	var names []string
	ids, out := map[string]protocol.UUID{}, map[protocol.UUID]map[int32]int64{}
	for _, t := range topics {
		names, ids[t.Name], out[t.TopicID] = append(names, t.Name), t.TopicID, map[int32]int64{}
	}
	ends, err := cl.ListEndOffsets(ctx, names...)
	if err != nil {
		return nil, err
	}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Err == nil {
			out[ids[o.Topic]][o.Partition] = o.Offset
		}
	})
	return out, nil
}

// stopPlan says what a stop would lose: what the source is known to have beyond the longest in-sync replica. With Drain nothing is.
func (m *Manager) stopPlan(t coordinator.Topic, req admin.StopRequest, ends map[protocol.PartitionID]int64,
	statuses map[protocol.PartitionID]replica.Status,
) *admin.TopicPlan {
	plan := &admin.TopicPlan{}
	img := m.cfg.Destination.Image()
	for n := range t.Partitions {
		id := protocol.PartitionID{Topic: t.TopicID, Partition: n}
		pp := admin.PartitionPlan{Partition: n, Lost: -1, Lag: -1}
		st, led := statuses[id]
		have := int64(-1)
		if ip := img.Partition(id); led && ip != nil {
			for _, b := range m.real(ip.ISR) {
				have = max(have, st.Followers[b].FetchOffset)
			}
		}
		if end, ok := ends[id]; ok && have >= 0 {
			pp.Lag = max(0, end-have)
			pp.Lost = pp.Lag
		}
		if t.Desired == statemachine.Stopped && !t.Drain {
			pp.Lost, pp.Lag = 0, 0
		}
		if req.Drain {
			pp.Copied, pp.Lost = pp.Lag, 0
		}
		plan.Partitions = append(plan.Partitions, pp)
	}
	if t.Desired != statemachine.Stopped || t.Drain {
		plan.Partitions = append(plan.Partitions, notMirrored(t, req, ends)...)
	}
	if m.allStopped(t) {
		return plan
	}
	plan.Requests = []string{
		fmt.Sprintf("AlterPartitionReassignments and ElectLeaders %s: a higher leader epoch where the source's is close", t.Name),
		fmt.Sprintf("IncrementalAlterConfigs %s: unlock (%s)", t.Name, trueText(t)),
		fmt.Sprintf("AlterPartitionReassignments %s: to the in-sync real replicas", t.Name),
	}
	return plan
}

// allStopped reports whether nothing is left to be done for a stop of a topic.
func (m *Manager) allStopped(t coordinator.Topic) bool {
	for n := range t.Partitions {
		if m.stored(t, n).State != statemachine.Stopped {
			return false
		}
	}
	return t.Desired == statemachine.Stopped
}

// notMirrored are partitions that the source has and the mirror not yet: all that is in them counts.
func notMirrored(t coordinator.Topic, req admin.StopRequest, ends map[protocol.PartitionID]int64) (out []admin.PartitionPlan) {
	for id, end := range ends {
		if id.Topic != t.TopicID || id.Partition < t.Partitions {
			continue
		}
		pp := admin.PartitionPlan{Partition: id.Partition, Lag: end, Lost: end}
		if req.Drain {
			pp.Copied, pp.Lost = pp.Lag, 0
		}
		out = append(out, pp)
	}
	slices.SortFunc(out, func(a, b admin.PartitionPlan) int { return cmp.Compare(a.Partition, b.Partition) })
	return out
}

// configText is a topic's configs in order.
func configText(configs map[string]string) string {
	var text []string
	for _, k := range slices.Sorted(maps.Keys(configs)) {
		text = append(text, k+"="+configs[k])
	}
	return strings.Join(text, ", ")
}

// trueText says what the lock's configs become.
func trueText(t coordinator.Topic) string {
	var text []string
	for _, k := range []string{sizeConfig, minISRConfig} {
		v, ok := t.TrueConfigs[k]
		if !ok {
			v = "default"
		}
		text = append(text, k+"="+v)
	}
	return strings.Join(text, ", ")
}

// stopGate refuses a stop of partitions whose copy is not complete, and of one that would lose more than is allowed. KIP-1279
// refuses all but MIRRORING and PAUSED; FAILED ones are let through, since a way out is what their operators need.
func (m *Manager) stopGate(t coordinator.Topic, req admin.StopRequest, plan *admin.TopicPlan) *admin.Error {
	if t.Desired == statemachine.Stopped && !t.Drain {
		return nil
	}
	for n := range t.Partitions {
		id := protocol.PartitionID{Topic: t.TopicID, Partition: n}
		s, ok := m.cfg.Store.State(id)
		incomplete := !ok || s.State == statemachine.Unknown || s.State == statemachine.Preparing ||
			s.State == statemachine.Failed && s.Previous == statemachine.Preparing
		if incomplete && !req.Force {
			return &admin.Error{Code: kip1279.InvalidClusterMirrorStates, Exit: admin.ExitRefused,
				Message: fmt.Sprintf("%s-%d is not mirrored yet (%s): the destination would be left with a part of it", t.Name, n, s.State),
				Hint:    "wait until it is MIRRORING; --force stops it as it is"}
		}
	}
	if req.MaxLoss < 0 || req.Drain {
		return nil
	}
	lost := int64(0)
	for _, p := range plan.Partitions {
		if p.Lost < 0 {
			return &admin.Error{Code: kip1279.InvalidRequest, Exit: admin.ExitRefused,
				Message: fmt.Sprintf("what %s-%d would lose is not known: the source has not answered since kmirror began", t.Name, p.Partition),
				Hint:    "leave --max-loss out to fail over whatever is lost"}
		}
		lost += p.Lost
	}
	if lost > req.MaxLoss {
		return &admin.Error{Code: kip1279.InvalidRequest, Exit: admin.ExitRefused,
			Message: fmt.Sprintf("%s would lose %d records, --max-loss allows %d", t.Name, lost, req.MaxLoss),
			Hint:    "wait for the lag to fall, raise --max-loss, or leave it out"}
	}
	return nil
}

// BumpLeaderEpochs raises leader epochs of mirror partitions to max(minimum + 1, current), as KIP-1279's RPC does.
func (m *Manager) BumpLeaderEpochs(ctx context.Context, minimum map[protocol.PartitionID]int32) (map[protocol.PartitionID]error, error) {
	if err := m.loaded(); err != nil {
		return nil, err
	}
	img, out, target := m.cfg.Destination.Image(), map[protocol.PartitionID]error{}, map[protocol.PartitionID]int32{}
	var ids []protocol.PartitionID
	for id, least := range minimum {
		ip := img.Partition(id)
		switch {
		case ip == nil:
			out[id] = &admin.Error{Code: kip1279.UnknownTopicOrPartition,
				Message: fmt.Sprintf("the destination has no partition %d of topic id %s", id.Partition, id.Topic),
				Hint:    "ask with the destination's topic id", Exit: admin.ExitUsage}
		case !m.cfg.Destination.Owns(ip.Leader):
			out[id] = &admin.Error{Code: 6,
				Message: fmt.Sprintf("%s-%d is led by broker %d, not by kmirror", img.Topics[id.Topic].Name, id.Partition, ip.Leader),
				Hint:    "only leader epochs of mirror partitions can be raised", Exit: admin.ExitRefused}
		case ip.LeaderEpoch <= least:
			ids, target[id] = append(ids, id), least+1
		}
	}
	claimed, release := m.claim(bumpTask, ids)
	defer release()
	err := m.bumpEpochs(ctx, claimed, target)
	img = m.cfg.Destination.Image()
	for _, id := range ids {
		ip := img.Partition(id)
		switch {
		case ip != nil && ip.LeaderEpoch >= target[id]:
		case err != nil:
			out[id] = asError(err)
		default:
			out[id] = &admin.Error{Code: 60,
				Message: "another change of this partition is under way", Hint: "try again", Exit: admin.ExitIncomplete}
		}
	}
	return out, nil
}
