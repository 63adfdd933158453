package mirror

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

// writers is how many records of topics are written at a time.
const writers = 32

// PauseTopics has mirroring of topics rest: desired and every actual state must be MIRRORING (KIP-1279), of which EPOCH_FENCING is
// a part. A topic that is paused already is accepted. Patterns pass over topics that were stopped.
func (m *Manager) PauseTopics(ctx context.Context, req admin.TopicsRequest) ([]admin.TopicResult, error) {
	return m.want(ctx, req, statemachine.Paused, func(t coordinator.Topic) (done bool, err error) {
		switch t.Desired {
		case statemachine.Paused:
			if req.Strict {
				return false, &admin.Error{Code: kip1279.MirrorTopicAlreadyPaused, Message: fmt.Sprintf("topic %s is paused already", t.Name),
					Hint: "to go on use resume", Exit: admin.ExitRefused}
			}
			return true, nil
		case statemachine.Stopped:
			return false, &admin.Error{Code: kip1279.MirrorTopicBeingStopped, Message: fmt.Sprintf("topic %s stops, or is STOPPED", t.Name),
				Hint: "nothing is mirrored any more; to mirror it again use start", Exit: admin.ExitRefused}
		}
		return false, m.gate("pause", t, statemachine.Mirroring, statemachine.EpochFencing)
	})
}

// ResumeTopics has paused topics go on: desired and every actual state must be PAUSED (KIP-1279). A topic that mirrors is accepted.
// Patterns pass over topics that were stopped.
func (m *Manager) ResumeTopics(ctx context.Context, req admin.TopicsRequest) ([]admin.TopicResult, error) {
	return m.want(ctx, req, statemachine.Mirroring, func(t coordinator.Topic) (done bool, err error) {
		switch t.Desired {
		case statemachine.Mirroring:
			if req.Strict {
				return false, &admin.Error{Code: kip1279.MirrorTopicNotPaused, Message: fmt.Sprintf("topic %s is not paused", t.Name),
					Hint: "it is mirrored; describe says how far it is", Exit: admin.ExitRefused}
			}
			return true, nil
		case statemachine.Stopped:
			return false, &admin.Error{Code: kip1279.MirrorTopicNotPaused, Message: fmt.Sprintf("topic %s is not paused: it stops, or is STOPPED", t.Name),
				Hint: "to mirror it again use start", Exit: admin.ExitRefused}
		}
		return false, m.gate("resume", t, statemachine.Paused)
	})
}

// want stores that topics are to be in another state, where judge finds nothing against it. done leaves a topic as it is.
func (m *Manager) want(ctx context.Context, req admin.TopicsRequest, desired statemachine.State,
	judge func(coordinator.Topic) (done bool, err error),
) ([]admin.TopicResult, error) {
	m.writing.Lock()
	defer m.writing.Unlock()
	topics, out, err := m.selectTopics(req.Mirror, req.Topics, func(t coordinator.Topic) bool { return t.Desired != statemachine.Stopped })
	if err != nil {
		return nil, err
	}
	results, g := make([]admin.TopicResult, len(topics)), errgroup.Group{}
	g.SetLimit(writers)
	for i, t := range topics {
		res := &results[i]
		res.Topic, res.Partitions = t.Name, t.Partitions
		done, err := judge(t)
		if req.DryRun {
			res.Plan = &admin.TopicPlan{}
		}
		switch {
		case err != nil:
			res.Err = asError(err)
		case done:
		case req.DryRun:
			res.Plan.Requests = []string{fmt.Sprintf("Produce __mirror_state: topic %s of mirror %s is to be %s", t.Name, t.Mirror, desired)}
		default:
			t.Desired = desired
			g.Go(func() error {
				if err := m.cfg.Store.PutTopic(ctx, t); err != nil {
					res.Err = asError(err)
				}
				return nil
			})
		}
	}
	_ = g.Wait()
	m.poke()
	return sortResults(append(out, results...)), nil
}

// gate refuses while a partition is in none of the states.
func (m *Manager) gate(verb string, t coordinator.Topic, states ...statemachine.State) error {
	partition, state, ok := m.outside(t, states...)
	if !ok {
		return nil
	}
	hint := "wait until describe shows it there, then try again"
	if state == statemachine.Failed {
		hint = "describe says why; once that is mended, recover it and try again"
	}
	return &admin.Error{Code: kip1279.InvalidClusterMirrorStates, Message: fmt.Sprintf("can't %s topic %s: partition %d is %s, not %s", verb, t.Name,
		partition, state, states[0]), Hint: hint, Exit: admin.ExitRefused}
}

// outside returns the first partition that is stored in none of the states.
func (m *Manager) outside(t coordinator.Topic, states ...statemachine.State) (int32, statemachine.State, bool) {
	for p := range t.Partitions {
		if s := m.stored(t, p).State; !slices.Contains(states, s) {
			return p, s, true
		}
	}
	return 0, statemachine.Unknown, false
}

// stored returns what is stored of a partition by the topic's own mirror, Unknown where that is nothing: another mirror may have
// taken the topic over since.
func (m *Manager) stored(t coordinator.Topic, partition int32) coordinator.PartitionState {
	id := protocol.PartitionID{Topic: t.TopicID, Partition: partition}
	st, ok := m.cfg.Store.Look(t.Mirror, id)
	if ok && st.Mirror == t.Mirror {
		return st
	}
	return coordinator.PartitionState{Mirror: t.Mirror, ID: id, State: statemachine.Unknown, Previous: statemachine.Unknown, LastMirrorEpoch: -1,
		Base: st.Base}
}

// takenOver reports whether a topic that a mirror remembers is another mirror's now.
func (m *Manager) takenOver(t coordinator.Topic) bool {
	now, ok := m.cfg.Store.TopicByName(t.Name)
	return ok && now.TopicID == t.TopicID && now.Mirror != t.Mirror
}

// sameStart reports whether two records are of one topic of one mirror, not started anew in between.
func sameStart(a, b coordinator.Topic) bool {
	return a.TopicID == b.TopicID && a.Mirror == b.Mirror && a.Started.Equal(b.Started)
}

// note stores what the loop has found of topics, together: that they are drained, or have grown back. One that an operator's call has
// changed meanwhile is left as it is.
func (m *Manager) note(ctx context.Context, topics ...coordinator.Topic) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	var put []coordinator.Topic
	for _, t := range topics {
		now, ok := m.cfg.Store.TopicByName(t.Name)
		if !ok || !sameStart(now, t) || now.Desired != t.Desired {
			continue
		}
		now.Drain, now.Regrow = now.Drain && t.Drain, now.Regrow && t.Regrow
		put = append(put, now)
	}
	if len(put) == 0 {
		return nil
	}
	return m.cfg.Store.PutTopic(ctx, put...)
}

// RecoverTopics sends FAILED partitions of topics on where they were, their attempts counted from 0. Others are left alone.
func (m *Manager) RecoverTopics(ctx context.Context, req admin.TopicsRequest) ([]admin.TopicResult, error) {
	topics, out, err := m.selectTopics(req.Mirror, req.Topics, func(coordinator.Topic) bool { return true })
	if err != nil {
		return nil, err
	}
	for _, t := range topics {
		res := admin.TopicResult{Topic: t.Name, Partitions: t.Partitions}
		failed := m.failed(t)
		if req.DryRun {
			res.Plan = &admin.TopicPlan{}
			for _, p := range failed {
				res.Plan.Requests = append(res.Plan.Requests, fmt.Sprintf("Produce __mirror_state: partition %d of %s leaves FAILED", p, t.Name))
			}
		} else if err := m.sendOn(ctx, t, failed, statemachine.Recover{}, -1); err != nil {
			res.Err = asError(err)
		}
		out = append(out, res)
	}
	m.poke()
	return sortResults(out), nil
}

// sendOn stores where FAILED partitions of a topic go on after an operator's word, Recover or Start. Whichever process leads them
// takes it up. lme is what becomes of their last mirrored epoch.
func (m *Manager) sendOn(ctx context.Context, t coordinator.Topic, partitions []int32, word statemachine.Event, lme int32) error {
	states := make([]coordinator.PartitionState, 0, len(partitions))
	for _, n := range partitions {
		s := m.stored(t, n)
		machine := statemachine.New()
		for _, ev := range []statemachine.Event{loaded(s), word} {
			if _, err := machine.Step(ev); err != nil {
				return err
			}
		}
		work := stopWork{lme: lme, end: s.StopEnd, epoch: s.StopEpoch}
		states = append(states, storedState(machine, s.Mirror, s.ID, later(time.Now(), s.Since), work).Over(s))
	}
	if len(states) == 0 {
		return nil
	}
	return m.cfg.Store.PutState(ctx, states...)
}

// later is now, or right after a time that lies ahead by another process's clock: of states that replace each other the later one is the newer.
func later(now, than time.Time) time.Time {
	if now.After(than) {
		return now
	}
	return than.Add(time.Millisecond)
}

// failed returns the partitions of a topic that are FAILED, as far as is stored.
func (m *Manager) failed(t coordinator.Topic) []int32 {
	var out []int32
	for p := range t.Partitions {
		if m.stored(t, p).State == statemachine.Failed {
			out = append(out, p)
		}
	}
	return out
}

// DeleteMirror removes a mirror whose topics are all STOPPED: states, topics, then the definition, so that what was cut short can be
// repeated. The last mirrored epochs go as well: to mirror back from here then takes --overwrite, and copies everything.
func (m *Manager) DeleteMirror(ctx context.Context, req admin.DeleteRequest) error {
	if err := m.loaded(); err != nil {
		return err
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	if err := m.defined(req.Mirror); err != nil {
		return err
	}
	var topics []coordinator.Topic
	for _, t := range m.cfg.Store.Topics() {
		if t.Mirror != req.Mirror {
			continue
		}
		if err := m.ended(t); err != nil {
			return err
		}
		topics = append(topics, t)
	}
	if req.DryRun {
		return nil
	}
	for _, t := range topics {
		if err := m.cfg.Store.DeleteTopic(ctx, t); err != nil {
			return err
		}
	}
	if err := m.cfg.Store.DeleteMirror(ctx, req.Mirror); err != nil {
		return err
	}
	m.sources.forget(req.Mirror)
	m.poke()
	return nil
}

// ended refuses while a topic stands in the way of its mirror's end. One that no longer exists, or that another mirror has taken
// over, needs no more than to be wanted no more.
func (m *Manager) ended(t coordinator.Topic) error {
	notEmpty := &admin.Error{Code: kip1279.ClusterMirrorNotEmpty, Message: fmt.Sprintf("mirror %s still has topic %s", t.Mirror, t.Name),
		Hint: "stop it first, with promote or failover", Exit: admin.ExitRefused}
	if t.Desired != statemachine.Stopped {
		return notEmpty
	}
	if m.cfg.Destination.Image().Topics[t.TopicID] == nil || m.takenOver(t) {
		return nil
	}
	if partition, state, ok := m.outside(t, statemachine.Stopped); ok {
		notEmpty.Message += fmt.Sprintf(", whose partition %d is %s", partition, state)
		notEmpty.Hint = "wait until describe shows it STOPPED"
		return notEmpty
	}
	return nil
}

// LastMirrorEpochs answers the kmirror of another cluster that is to mirror from here: which epoch of its topics' partitions was
// mirrored last when they were stopped here. Partitions that are not STOPPED, or not known, get -1.
func (m *Manager) LastMirrorEpochs(_ context.Context, sourceClusterID string,
	parts []protocol.PartitionID) (map[protocol.PartitionID]int32, error) {
	if err := m.loaded(); err != nil {
		return nil, err
	}
	img, out := m.cfg.Destination.Image(), map[protocol.PartitionID]int32{}
	bySource := map[protocol.UUID]coordinator.Topic{}
	for _, t := range m.cfg.Store.Topics() {
		def, ok := m.cfg.Store.Mirror(t.Mirror)
		now, _ := m.cfg.Store.TopicByName(t.Name)
		if ok && def.SourceClusterID == sourceClusterID && img.Topics[t.TopicID] != nil && now.TopicID == t.TopicID && now.Mirror == t.Mirror {
			bySource[t.SourceTopicID] = t
		}
	}
	for _, id := range parts {
		out[id] = -1
		if t, ok := bySource[id.Topic]; ok && t.Desired == statemachine.Stopped {
			if st := m.stored(t, id.Partition); st.State == statemachine.Stopped {
				out[id] = st.LastMirrorEpoch
			}
		}
	}
	return out, nil
}

// selectTopics returns the topics of a mirror that a list means: those named, and those that match a pattern and pattern holds for.
// What is named and not to be found is refused, one by one, with the KIP's codes.
func (m *Manager) selectTopics(mirror string, list []string, pattern func(coordinator.Topic) bool,
) (topics []coordinator.Topic, refused []admin.TopicResult, err error) {
	if err := m.loaded(); err != nil {
		return nil, nil, err
	}
	if err := m.defined(mirror); err != nil {
		return nil, nil, err
	}
	match, err := admin.NewMatcher(list)
	if err != nil {
		return nil, nil, err
	}
	literals, seen := match.Literals(), map[string]bool{}
	for _, t := range m.cfg.Store.Topics() {
		now, ok := m.cfg.Store.TopicByName(t.Name)
		if !ok || now.Mirror != mirror || seen[t.Name] || !match.Match(t.Name) {
			continue
		}
		seen[t.Name] = true
		if slices.Contains(literals, t.Name) || pattern(now) {
			topics = append(topics, now)
		}
	}
	for _, name := range literals {
		if !seen[name] {
			seen[name] = true
			refused = append(refused, admin.TopicResult{Topic: name, Err: m.notOf(mirror, name)})
		}
	}
	if len(topics)+len(refused) == 0 {
		return nil, nil, &admin.Error{Code: kip1279.UnknownTopicOrPartition, Message: fmt.Sprintf("mirror %s has no topic that matches", mirror),
			Hint: "see kmirror describe --mirror " + mirror, Exit: admin.ExitUsage}
	}
	return topics, refused, nil
}

// defined refuses names of mirrors that are not known.
func (m *Manager) defined(mirror string) error {
	if _, ok := m.cfg.Store.Mirror(mirror); ok {
		return nil
	}
	return &admin.Error{Code: kip1279.UnknownClusterMirror, Message: fmt.Sprintf("there is no mirror %q", mirror), Hint: "see kmirror list",
		Exit: admin.ExitUsage}
}

// notOf says why a topic that was named is not one of a mirror.
func (m *Manager) notOf(mirror, name string) *admin.Error {
	if t, ok := m.cfg.Store.TopicByName(name); ok {
		return &admin.Error{Code: kip1279.TopicNotInClusterMirror, Message: fmt.Sprintf("topic %s is mirrored by %s, not by %s", name, t.Mirror, mirror),
			Hint: "give --mirror " + t.Mirror, Exit: admin.ExitRefused}
	}
	if m.cfg.Destination.Image().TopicByName(name) != nil {
		return &admin.Error{Code: kip1279.UnknownClusterMirror, Message: fmt.Sprintf("topic %s is in no mirror", name),
			Hint: "see kmirror describe --mirror " + mirror, Exit: admin.ExitRefused}
	}
	return &admin.Error{Code: kip1279.UnknownTopicOrPartition, Message: fmt.Sprintf("there is no topic %s", name),
		Hint: "see kmirror describe --mirror " + mirror, Exit: admin.ExitUsage}
}

func sortResults(out []admin.TopicResult) []admin.TopicResult {
	slices.SortFunc(out, func(a, b admin.TopicResult) int { return strings.Compare(a.Topic, b.Topic) })
	return out
}
