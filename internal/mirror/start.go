package mirror

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/internal/admin"
	"kmirror/internal/broker"
	"kmirror/internal/coordinator"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// notSynced are topic configs that are not copied from the source (KIP-1279, mirror.topic.properties.exclude).
var notSynced = []string{
	"follower.replication.throttled.replicas", "leader.replication.throttled.replicas", "message.timestamp.difference.max.ms",
	"log.message.timestamp.before.max.ms", "log.message.timestamp.after.max.ms", "message.timestamp.type",
	"unclean.leader.election.enable", minISRConfig, "mirror.name",
	// Tiered storage: replicas would look for segments in the destination's remote store, which a mirror does not fill.
	tieredConfig, "local.retention.ms", "local.retention.bytes", "remote.log.copy.disable", "remote.log.delete.on.disable",
}

const tieredConfig = "remote.storage.enable"

// synced returns the configs of a source topic that its mirror gets.
func synced(config map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range config {
		if !slices.Contains(notSynced, k) {
			out[k] = v
		}
	}
	return out
}

// startRun is one StartTopics: what it found out about both sides.
type startRun struct {
	m      *Manager
	req    admin.StartRequest
	mirror coordinator.Mirror
	source kadm.TopicDetails
	config map[string]map[string]string
	src    *kadm.Client
	dst    *kadm.Client
	// rf and minISR are the destination's defaults.
	rf, minISR int
}

// StartTopics begins to mirror the topics of the source that match. It returns once each is accepted or refused; the work
// goes on in the background and shows in Describe.
func (m *Manager) StartTopics(ctx context.Context, req admin.StartRequest) ([]admin.TopicResult, error) {
	if err := m.loaded(); err != nil {
		return nil, err
	}
	def, ok := m.cfg.Store.Mirror(req.Mirror)
	if !ok {
		return nil, &admin.Error{Code: kip1279.UnknownClusterMirror, Message: fmt.Sprintf("there is no mirror %q", req.Mirror),
			Hint: "create it with kmirror create, or see kmirror list", Exit: admin.ExitUsage}
	}
	s := &startRun{m: m, req: req, mirror: def}
	names, err := s.resolve(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]admin.TopicResult, 0, len(names))
	for _, name := range names {
		res := admin.TopicResult{Topic: name, Partitions: int32(len(s.source[name].Partitions))}
		plan, err := s.topic(ctx, name)
		if req.DryRun {
			res.Plan = plan
		}
		if err != nil {
			res.Err = asError(err)
		}
		out = append(out, res)
	}
	m.poke()
	return out, nil
}

// loaded refuses while __mirror_state has not been read.
func (m *Manager) loaded() error {
	select {
	case <-m.cfg.Store.Loaded():
		return nil
	default:
		return &admin.Error{Code: 15, Message: "__mirror_state is still being loaded", Exit: admin.ExitUnreachable,
			Hint: "try again in a few seconds; if it stays so, see whether the destination's brokers are reachable"}
	}
}

// resolve reaches the source and returns the names of the topics that the request means.
func (s *startRun) resolve(ctx context.Context) ([]string, error) {
	match, err := admin.NewMatcher(s.req.Topics)
	if err != nil {
		return nil, err
	}
	exclude, err := admin.NewMatcher(s.req.Exclude)
	if err != nil {
		return nil, err
	}
	if s.src, err = s.m.sources.source(s.mirror.Name, s.mirror.Config); err != nil {
		return nil, err
	}
	if s.dst, err = s.m.sources.destination(); err != nil {
		return nil, err
	}
	if s.source, err = s.src.ListTopics(ctx); err != nil {
		return nil, unreachable("source", err)
	}
	if meta, err := s.src.BrokerMetadata(ctx); err != nil {
		return nil, unreachable("source", err)
	} else if meta.Cluster != s.mirror.SourceClusterID {
		return nil, &admin.Error{Code: 103, Message: fmt.Sprintf("mirror %s was made for cluster %s, but its bootstrap servers now lead to %s",
			s.mirror.Name, s.mirror.SourceClusterID, meta.Cluster), Hint: "point bootstrap.servers at the right cluster", Exit: admin.ExitRefused}
	}
	var names []string
	for _, d := range s.source {
		if match.Match(d.Topic) && (len(s.req.Exclude) == 0 || !exclude.Match(d.Topic)) && !internal(d) {
			names = append(names, d.Topic)
		}
	}
	slices.Sort(names)
	for _, lit := range match.Literals() {
		if !slices.Contains(names, lit) {
			names = append(names, lit) // refused by name, one by one, with the reason
		}
	}
	if len(names) == 0 {
		return nil, &admin.Error{Code: 3, Message: "no topic of the source matches", Hint: "see the source's topics; internal ones are never mirrored",
			Exit: admin.ExitUsage}
	}
	if s.config, err = dynamicConfigs(ctx, s.src, s.existing(names)); err != nil {
		return nil, unreachable("source", err)
	}
	return names, s.replication(ctx)
}

func (s *startRun) existing(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !s.source.Has(n) || s.source[n].Err != nil })
}

// replication finds the destination's defaults.
func (s *startRun) replication(ctx context.Context) error {
	live := s.m.placeable(s.m.cfg.Destination.Image())
	if len(live) == 0 {
		return &admin.Error{Code: 38, Message: "no broker of the destination is alive", Hint: "start the destination's brokers", Exit: admin.ExitUnreachable}
	}
	var err error
	if s.rf, s.minISR, err = brokerDefaults(ctx, s.dst, live[0]); err != nil {
		return unreachable("destination", err)
	}
	return nil
}

// internal topics are never mirrored: they are the source's own bookkeeping.
func internal(d kadm.TopicDetail) bool {
	return d.IsInternal || d.Topic == "__mirror_state" || d.Topic == "__cluster_metadata"
}

// topic accepts or refuses one topic.
func (s *startRun) topic(ctx context.Context, name string) (*admin.TopicPlan, error) {
	d, ok := s.source[name]
	if !ok || d.Err != nil || internal(d) {
		return nil, &admin.Error{Code: 3, Message: fmt.Sprintf("topic %s can't be mirrored: the source does not have it, or it is internal", name),
			Hint: "check the name; the source's principal needs DESCRIBE on it", Exit: admin.ExitUsage}
	}
	sourceID := protocol.UUID(d.ID)
	known, ok := s.m.cfg.Store.TopicByName(name)
	if !ok || known.Desired == statemachine.Stopped {
		return s.fresh(ctx, name, d, nil)
	}
	if done, err := s.again(known, sourceID); err != nil {
		return &admin.TopicPlan{}, err
	} else if done {
		return s.goOn(ctx, known)
	}
	return s.fresh(ctx, name, d, &known)
}

// again deals with a topic that a mirror has already. done is false where it is to be mirrored from scratch: the topic is gone
// from the destination or was made anew there, or the source's was and --overwrite is given.
func (s *startRun) again(known coordinator.Topic, sourceID protocol.UUID) (done bool, err error) {
	if known.Mirror != s.req.Mirror {
		return false, &admin.Error{Code: kip1279.TopicAlreadyInClusterMirror, Message: fmt.Sprintf("topic %s is mirrored by %s", known.Name, known.Mirror),
			Hint: "a topic has one source; stop it there first", Exit: admin.ExitRefused}
	}
	img := s.m.cfg.Destination.Image()
	if it := img.TopicByName(known.Name); it == nil || it.ID != known.TopicID {
		return false, nil
	}
	if known.SourceTopicID != sourceID && !s.req.Overwrite {
		return false, &admin.Error{Code: 103, Message: fmt.Sprintf("topic %s was deleted and made anew at the source: its id is %s, mirrored was %s",
			known.Name, sourceID, known.SourceTopicID), Hint: "what is mirrored stays; --overwrite discards it and copies the new topic", Exit: admin.ExitRefused}
	}
	if known.SourceTopicID != sourceID {
		return false, nil
	}
	return true, nil
}

// goOn starts what is FAILED of a topic again: where it was, or with --overwrite from the beginning.
func (s *startRun) goOn(ctx context.Context, known coordinator.Topic) (*admin.TopicPlan, error) {
	plan, failed := &admin.TopicPlan{}, false
	s.m.mu.Lock()
	for _, p := range s.m.parts {
		failed = failed || p.topic.Name == known.Name && p.machine.State == statemachine.Failed
	}
	if failed && !s.req.DryRun {
		s.m.restart[known.Name] = statemachine.Start{Overwrite: s.req.Overwrite}
	}
	s.m.mu.Unlock()
	if failed && s.req.Overwrite {
		if _, err := s.held(ctx, known.Name, plan); err != nil && s.req.DryRun {
			return plan, unreachable("destination", err)
		}
	}
	return plan, nil
}

// fresh starts a topic from scratch: creates it with the lock on, or takes over one that exists. known is what a mirror
// remembers of one of that name, nil for nothing.
func (s *startRun) fresh(ctx context.Context, name string, d kadm.TopicDetail, known *coordinator.Topic) (*admin.TopicPlan, error) {
	img := s.m.cfg.Destination.Image()
	t := coordinator.Topic{Mirror: s.req.Mirror, Name: name, SourceTopicID: protocol.UUID(d.ID), Desired: statemachine.Mirroring,
		Overwrite: s.req.Overwrite, Partitions: int32(len(d.Partitions)), Replicas: int16(s.rf), MinISR: int16(s.minISR),
		TrueConfigs: map[string]string{}, Started: time.Now()}
	plan := &admin.TopicPlan{}
	it := img.TopicByName(name)
	if it == nil {
		if err := s.create(ctx, t, plan); err != nil {
			return plan, err
		}
		return plan, s.forget(ctx, known, t)
	}
	if len(it.Partitions) != len(d.Partitions) {
		return plan, &admin.Error{Code: 37, Message: fmt.Sprintf("topic %s has %d partitions at the destination and %d at the source", name,
			len(it.Partitions), len(d.Partitions)), Hint: "add partitions where they are missing, or delete the destination's topic", Exit: admin.ExitRefused}
	}
	if v, _ := img.TopicConfig(name, tieredConfig); v == "true" {
		return plan, &admin.Error{Code: 40, Message: fmt.Sprintf("topic %s has %s=true at the destination", name, tieredConfig),
			Hint: "turn tiered storage off for it, or delete the destination's topic: a mirror can't fill the remote store", Exit: admin.ExitRefused}
	}
	held, err := s.held(ctx, name, plan)
	if err != nil {
		return plan, unreachable("destination", err)
	}
	if held && !s.req.Overwrite {
		return plan, &admin.Error{Code: 103, Message: fmt.Sprintf("topic %s exists at the destination, holds data, and is not known as this mirror's", name),
			Hint: "--overwrite discards the destination's data", Exit: admin.ExitRefused}
	}
	t.TopicID, t.Replicas = it.ID, 0
	for _, p := range it.Partitions {
		t.Replicas = max(t.Replicas, int16(len(s.m.real(p.Replicas))))
	}
	s.trueConfigs(&t, img, known)
	plan.Requests = append(plan.Requests, fmt.Sprintf("AlterPartitionReassignments %s: %v to the head of the replica lists", name, s.m.cfg.NodeIDs),
		"ElectLeaders PREFERRED "+name, fmt.Sprintf("IncrementalAlterConfigs %s: lock", name))
	if s.req.DryRun {
		return plan, nil
	}
	if known != nil && known.TopicID == t.TopicID {
		// Whoever loads the topic with its new source must not find the old one's progress with it.
		if err := s.m.cfg.Store.PutState(ctx, preparing(t)...); err != nil {
			return plan, err
		}
	}
	if err := s.m.cfg.Store.PutTopic(ctx, t); err != nil {
		return plan, err
	}
	return plan, s.forget(ctx, known, t)
}

// trueConfigs notes what the topic's two locked configs are without the lock. A lock that is on already hides them: it is
// that of a known topic, or of a start that was cut short after the topic was created.
func (s *startRun) trueConfigs(t *coordinator.Topic, img *kraft.Image, known *coordinator.Topic) {
	if known != nil && known.TopicID == t.TopicID {
		t.TrueConfigs, t.MinISR, t.Replicas = known.TrueConfigs, known.MinISR, max(t.Replicas, known.Replicas)
		return
	}
	if size, _ := img.TopicConfig(t.Name, sizeConfig); size == "0" {
		if v, ok := s.config[t.Name][sizeConfig]; ok {
			t.TrueConfigs[sizeConfig] = v
		}
		return
	}
	for _, key := range []string{sizeConfig, minISRConfig} {
		if v, ok := img.TopicConfig(t.Name, key); ok {
			t.TrueConfigs[key] = v
		}
	}
	if n, err := strconv.ParseInt(t.TrueConfigs[minISRConfig], 10, 16); err == nil {
		t.MinISR = int16(n)
	}
}

// preparing returns the states of a topic's partitions at the very beginning.
func preparing(t coordinator.Topic) []coordinator.PartitionState {
	out := make([]coordinator.PartitionState, 0, t.Partitions)
	for p := range t.Partitions {
		out = append(out, coordinator.PartitionState{Mirror: t.Mirror, ID: protocol.PartitionID{Topic: t.TopicID, Partition: p},
			State: statemachine.Preparing, Previous: statemachine.Unknown, Since: t.Started, LastMirrorEpoch: -1})
	}
	return out
}

// forget drops the memory of a destination topic that is no more, once another has taken its place.
func (s *startRun) forget(ctx context.Context, old *coordinator.Topic, t coordinator.Topic) error {
	if s.req.DryRun || old == nil || old.TopicID == t.TopicID || s.m.cfg.Destination.Image().Topics[old.TopicID] != nil {
		return nil
	}
	return s.m.cfg.Store.DeleteTopic(ctx, *old)
}

// held reports whether a destination topic holds records and how many would go.
func (s *startRun) held(ctx context.Context, name string, plan *admin.TopicPlan) (bool, error) {
	starts, err := s.dst.ListStartOffsets(ctx, name)
	if err != nil {
		return false, err
	}
	ends, err := s.dst.ListEndOffsets(ctx, name)
	if err != nil {
		return false, err
	}
	if err := ends.Error(); err != nil {
		return false, err
	}
	held := false
	ends.Each(func(o kadm.ListedOffset) {
		n := o.Offset
		if st, ok := starts.Lookup(name, o.Partition); ok && st.Err == nil {
			n -= st.Offset
		}
		held = held || o.Offset > 0
		plan.Partitions = append(plan.Partitions, admin.PartitionPlan{Partition: o.Partition, Truncated: n, Lost: n, Copied: -1})
	})
	return held, nil
}

// create makes the topic with the source's partition count and configs and with the lock in its very first request.
func (s *startRun) create(ctx context.Context, t coordinator.Topic, plan *admin.TopicPlan) error {
	if live := s.m.placeable(s.m.cfg.Destination.Image()); s.rf > len(live) {
		return &admin.Error{Code: 38, Message: fmt.Sprintf("default.replication.factor of the destination is %d, but %d brokers are alive", s.rf, len(live)),
			Hint: "bring brokers back, or lower default.replication.factor", Exit: admin.ExitRefused}
	}
	configs := synced(s.config[t.Name])
	if v, ok := configs[sizeConfig]; ok {
		t.TrueConfigs[sizeConfig] = v
	}
	configs[sizeConfig] = "0"
	configs[minISRConfig] = strconv.Itoa(lockValue(len(s.m.cfg.NodeIDs), s.rf, trueMinISR(t)))
	lists := s.m.place(s.m.cfg.Destination.Image(), t.Partitions, s.rf)
	plan.Create = true
	plan.Requests = append(plan.Requests, fmt.Sprintf("CreateTopics %s: %d partitions, replicas %v, configs %v", t.Name, t.Partitions, lists, configs))
	if s.req.DryRun {
		return nil
	}
	s.m.mu.Lock()
	s.m.creating[t.Name] = true
	s.m.mu.Unlock()
	defer func() {
		s.m.mu.Lock()
		delete(s.m.creating, t.Name)
		s.m.mu.Unlock()
	}()
	id, err := s.m.cfg.Destination.CreateTopic(ctx, broker.NewTopic{Name: t.Name, Assignment: lists, Configs: configs})
	if err != nil {
		return fmt.Errorf("create topic %s at the destination: %w", t.Name, err)
	}
	t.TopicID = id
	return s.m.cfg.Store.PutTopic(ctx, t)
}

// unreachable is an error about one of the clusters.
func unreachable(what string, err error) error {
	return &admin.Error{Code: -1, Message: fmt.Sprintf("the %s does not answer: %v", what, err),
		Hint: "check bootstrap.servers, security settings and rights", Exit: admin.ExitUnreachable}
}

// asError makes an operator's error of any.
func asError(err error) *admin.Error {
	if e, ok := err.(*admin.Error); ok {
		return e
	}
	return &admin.Error{Code: -1, Message: err.Error(), Exit: admin.ExitFailed}
}
