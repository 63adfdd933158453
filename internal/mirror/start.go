package mirror

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/internal/admin"
	"kmirror/internal/broker"
	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// startRun is one StartTopics: what it found out about both sides.
type startRun struct {
	m      *Manager
	req    admin.StartRequest
	mirror coordinator.Mirror
	// filters are what the mirror's properties say of topics and configs.
	filters *filters.Filters
	names   []string
	source  kadm.TopicDetails
	config  map[string]map[string]string
	src     *kadm.Client
	dst     *kadm.Client
	// there and here answer for the logs of both sides.
	there, here logs
	// memory is what the source remembers of us, once it was asked.
	memory *memory
	// rf and minISR are the destination's defaults.
	rf, minISR int
}

// StartTopics begins to mirror the topics of the source that match. It returns once each is accepted or refused; the work
// goes on in the background and shows in Describe.
func (m *Manager) StartTopics(ctx context.Context, req admin.StartRequest) ([]admin.TopicResult, error) {
	if err := m.loaded(); err != nil {
		return nil, err
	}
	if m.leaving.Load() {
		return nil, &admin.Error{Code: kip1279.RequestTimedOut,
			Message: "this process is about to leave the destination", Hint: "ask another process, or start one again",
			Exit: admin.ExitRefused}
	}
	def, ok := m.cfg.Store.Mirror(req.Mirror)
	if !ok {
		return nil, &admin.Error{Code: kip1279.UnknownClusterMirror, Message: fmt.Sprintf("there is no mirror %q", req.Mirror),
			Hint: "create it with kmirror create, or see kmirror list", Exit: admin.ExitUsage}
	}
	s := &startRun{m: m, req: req, mirror: def}
	var err error
	if s.filters, err = filters.Parse(def.Config); err != nil {
		return nil, &admin.Error{Code: kip1279.InvalidConfig,
			Message: err.Error(), Hint: "correct the mirror with kmirror alter", Exit: admin.ExitUsage}
	}
	if err := s.resolve(ctx); err != nil {
		return nil, err
	}
	out := make([]admin.TopicResult, 0, len(s.names))
	for _, name := range s.names {
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

// loaded refuses while __mirror_state has not been read, and once this process leaves.
func (m *Manager) loaded() error {
	if m.over.Load() {
		return &admin.Error{Code: kip1279.CoordinatorNotAvailable,
			Message: "this process is shutting down", Exit: admin.ExitUnreachable,
			Hint: "ask another one, or this one again once it is back"}
	}
	select {
	case <-m.cfg.Store.Loaded():
		return nil
	default:
		return &admin.Error{Code: kip1279.CoordinatorNotAvailable,
			Message: "__mirror_state is still being loaded", Exit: admin.ExitUnreachable,
			Hint: "try again in a few seconds; if it stays so, see whether the destination's brokers are reachable"}
	}
}

// resolve reaches the source and finds the names of the topics that the request means.
func (s *startRun) resolve(ctx context.Context) error {
	match, err := admin.NewMatcher(s.req.Topics)
	if err != nil {
		return err
	}
	exclude, err := admin.NewMatcher(s.req.Exclude)
	if err != nil {
		return err
	}
	if s.src, err = s.m.sources.source(s.mirror.Name, s.mirror.Config); err != nil {
		return err
	}
	if s.dst, err = s.m.sources.destination(); err != nil {
		return err
	}
	s.there, s.here = s.src, s.dst
	if s.source, err = s.src.ListTopics(ctx); err != nil {
		return unreachable("source", err)
	}
	if cluster, err := s.m.sources.clusterOf(ctx, s.mirror.Name, s.mirror.Config); err != nil {
		return unreachable("source", err)
	} else if cluster != s.mirror.SourceClusterID {
		return &admin.Error{Code: kip1279.InconsistentTopicID,
			Message: fmt.Sprintf("mirror %s was made for cluster %s, but its bootstrap servers now lead to %s",
				s.mirror.Name, s.mirror.SourceClusterID, cluster), Hint: "point bootstrap.servers at the right cluster", Exit: admin.ExitRefused}
	}
	var names []string
	for _, d := range s.source {
		if match.Match(d.Topic) && (len(s.req.Exclude) == 0 || !exclude.Match(d.Topic)) && !internal(d) &&
			!s.filters.TopicExcluded(d.Topic) {
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
		return &admin.Error{Code: kip1279.UnknownTopicOrPartition,
			Message: "no topic of the source matches", Exit: admin.ExitUsage,
			Hint: "see the source's topics, those that the mirror's principal has DESCRIBE on; internal ones are never mirrored"}
	}
	if s.config, err = dynamicConfigs(ctx, s.src, s.existing(names)); err != nil {
		return unreachable("source", err)
	}
	s.names = names
	return s.replication(ctx)
}

func (s *startRun) existing(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !s.source.Has(n) || s.source[n].Err != nil })
}

// replication finds the destination's defaults.
func (s *startRun) replication(ctx context.Context) error {
	live := s.m.placeable(s.m.cfg.Destination.Image())
	if len(live) == 0 {
		return &admin.Error{Code: 38,
			Message: "no broker of the destination is alive", Hint: "start the destination's brokers", Exit: admin.ExitUnreachable}
	}
	var err error
	if s.rf, s.minISR, err = brokerDefaults(ctx, s.dst, live[0]); err != nil {
		return unreachable("destination", err)
	}
	return nil
}

// internal topics are never mirrored: they are the source's own bookkeeping.
func internal(d kadm.TopicDetail) bool {
	return filters.InternalTopic(d.Topic, d.IsInternal)
}

// topic accepts or refuses one topic.
func (s *startRun) topic(ctx context.Context, name string) (*admin.TopicPlan, error) {
	d, ok := s.source[name]
	if !ok || d.Err != nil || internal(d) {
		return nil, &admin.Error{Code: kip1279.UnknownTopicOrPartition,
			Message: fmt.Sprintf("topic %s can't be mirrored: the source does not have it, or it is internal", name),
			Hint:    "check the name; the source's principal needs DESCRIBE on it", Exit: admin.ExitUsage}
	}
	if want, ok := s.req.TopicIDs[name]; ok && want != protocol.UUID(d.ID) {
		return nil, &admin.Error{Code: kip1279.InconsistentTopicID,
			Message: fmt.Sprintf("topic %s has id %s at the source, not %s", name, protocol.UUID(d.ID), want),
			Hint:    "look the topic up at the source again", Exit: admin.ExitRefused}
	}
	if s.filters.TopicExcluded(name) {
		return nil, &admin.Error{Code: kip1279.InvalidRequest,
			Message: fmt.Sprintf("topic %s is kept out by %s of mirror %s", name, filters.TopicsExclude, s.mirror.Name),
			Hint:    "change that with kmirror alter", Exit: admin.ExitRefused}
	}
	known, ok := s.m.cfg.Store.TopicByName(name)
	if !ok {
		return s.fresh(ctx, name, d, nil)
	}
	if done, err := s.again(known, protocol.UUID(d.ID)); err != nil {
		return &admin.TopicPlan{}, err
	} else if done {
		return s.goOn(ctx, known)
	}
	return s.fresh(ctx, name, d, &known)
}

// again deals with a topic that a mirror has or had. done is false where it is to be started anew: it is STOPPED, gone from the
// destination or made anew there, or the source's was made anew and --overwrite is given.
func (s *startRun) again(known coordinator.Topic, sourceID protocol.UUID) (done bool, err error) {
	if known.Desired == statemachine.Stopped {
		return false, s.ended(known)
	}
	if known.Mirror != s.req.Mirror {
		return false, &admin.Error{Code: kip1279.TopicAlreadyInClusterMirror,
			Message: fmt.Sprintf("topic %s is mirrored by %s", known.Name, known.Mirror),
			Hint:    "a topic has one source; stop it there first", Exit: admin.ExitRefused}
	}
	img := s.m.cfg.Destination.Image()
	if it := img.TopicByName(known.Name); it == nil || it.ID != known.TopicID {
		return false, nil
	}
	if known.SourceTopicID != sourceID && !s.req.Overwrite {
		return false, &admin.Error{Code: kip1279.InconsistentTopicID,
			Message: fmt.Sprintf("topic %s was deleted and made anew at the source: its id is %s, mirrored was %s",
				known.Name, sourceID, known.SourceTopicID),
			Hint: "what is mirrored stays; --overwrite discards it and copies the new topic", Exit: admin.ExitRefused}
	}
	if known.SourceTopicID != sourceID {
		return false, nil
	}
	if known.Desired == statemachine.Paused {
		return false, &admin.Error{Code: kip1279.MirrorTopicNotStopped, Message: fmt.Sprintf("topic %s is paused", known.Name),
			Hint: "use resume", Exit: admin.ExitRefused}
	}
	return true, nil
}

// ended refuses a topic whose stop is not done yet. It is where this process saw it STOPPED, whatever a start that was cut short has
// stored since.
func (s *startRun) ended(known coordinator.Topic) error {
	if s.m.cfg.Destination.Image().Topics[known.TopicID] == nil {
		return nil
	}
	for p := range known.Partitions {
		state := s.m.stored(known, p).State
		s.m.mu.Lock()
		part := s.m.parts[protocol.PartitionID{Topic: known.TopicID, Partition: p}]
		if part != nil && part.topic.Mirror == known.Mirror && part.machine.State == statemachine.Stopped {
			state = statemachine.Stopped
		}
		s.m.mu.Unlock()
		if state == statemachine.Stopped || state == statemachine.Unknown {
			continue
		}
		hint := "wait until describe shows it STOPPED, then start it"
		if state == statemachine.Failed {
			hint = "describe says why; recover it, wait until it is STOPPED, then start it"
		}
		return &admin.Error{Code: kip1279.MirrorTopicNotStopped, Hint: hint, Exit: admin.ExitRefused,
			Message: fmt.Sprintf("topic %s is still being stopped: partition %d is %s", known.Name, p, state)}
	}
	return nil
}

// goOn starts what is FAILED of a topic again: where it was, or with --overwrite from the very beginning, whatever it was aligned to
// when it was started.
func (s *startRun) goOn(ctx context.Context, known coordinator.Topic) (*admin.TopicPlan, error) {
	plan, failed := &admin.TopicPlan{}, s.m.failed(known)
	if len(failed) == 0 {
		return plan, nil
	}
	if s.req.DryRun {
		if !s.req.Overwrite {
			return plan, nil
		}
		known.Align = nil
		held, err := extents(ctx, s.here, known.Name)
		if err != nil {
			return plan, unreachable("destination", err)
		}
		maps.DeleteFunc(held, func(p int32, _ extent) bool { return !slices.Contains(failed, p) })
		s.count(ctx, plan, known, held)
		return plan, nil
	}
	if s.req.Overwrite {
		return plan, s.fromScratch(ctx, known, failed)
	}
	return plan, s.m.sendOn(ctx, known, failed, statemachine.Start{}, -1)
}

// fromScratch forgets what a topic has in common with the source.
func (s *startRun) fromScratch(ctx context.Context, known coordinator.Topic, partitions []int32) error {
	s.m.writing.Lock()
	defer s.m.writing.Unlock()
	if err := s.unchanged(&known, known.Name); err != nil {
		return err
	}
	// The topic first: whoever takes PREPARING up is not to find what the log was aligned to before.
	known.Align, known.Overwrite = nil, true
	if err := s.m.cfg.Store.PutTopic(ctx, known); err != nil {
		return err
	}
	return s.m.sendOn(ctx, known, partitions, statemachine.Start{Overwrite: true}, coordinator.ForgetEpoch)
}

// fresh starts a topic: creates it with the lock on, or takes over one that exists, aligned to what the source remembers of it.
// known is what a mirror remembers of one of that name, nil for nothing.
func (s *startRun) fresh(ctx context.Context, name string, d kadm.TopicDetail, known *coordinator.Topic) (*admin.TopicPlan, error) {
	img, plan := s.m.cfg.Destination.Image(), &admin.TopicPlan{}
	t := coordinator.Topic{Mirror: s.req.Mirror, Name: name, SourceTopicID: protocol.UUID(d.ID), Desired: statemachine.Mirroring,
		Overwrite: s.req.Overwrite, Partitions: int32(len(d.Partitions)), Replicas: int16(s.rf), MinISR: int16(s.minISR),
		TrueConfigs: map[string]string{}, Started: time.Now()}
	if known != nil && !t.Started.After(known.Started) {
		t.Started = known.Started.Add(time.Millisecond) // the newest of a name counts, by whichever clock
	}
	memory := s.recall(ctx)
	if err := memory.loop(name); err != nil {
		return plan, err
	}
	it := img.TopicByName(name)
	if it == nil {
		return plan, s.create(ctx, t, known, plan)
	}
	if err := takable(img, it, d); err != nil {
		return plan, err
	}
	held, err := s.held(ctx, it, known)
	if err != nil {
		return plan, unreachable("destination", err)
	}
	t.TopicID, t.Replicas = it.ID, 0
	for _, p := range it.Partitions {
		t.Replicas = max(t.Replicas, int16(len(s.m.real(p.Replicas))))
	}
	t.Align = memory.align(t, known)
	if s.req.DryRun {
		s.count(ctx, plan, t, held) // a refusal is easier to understand next to what it keeps
	}
	if err := s.permit(t, held); err != nil {
		return plan, err
	}
	s.trueConfigs(&t, img, known)
	plan.Requests = append(plan.Requests, fmt.Sprintf("AlterPartitionReassignments %s: %v to the head of the replica lists", name, s.m.cfg.NodeIDs),
		"ElectLeaders PREFERRED "+name, fmt.Sprintf("IncrementalAlterConfigs %s: lock", name))
	if s.req.DryRun {
		return plan, nil
	}
	return plan, s.put(ctx, t, known)
}

// takable refuses topics of the destination that can't become a mirror.
func takable(img *kraft.Image, it *kraft.Topic, d kadm.TopicDetail) error {
	if len(it.Partitions) != len(d.Partitions) {
		return &admin.Error{Code: 37,
			Message: fmt.Sprintf("topic %s has %d partitions at the destination and %d at the source", it.Name,
				len(it.Partitions), len(d.Partitions)),
			Hint: "add partitions where they are missing, or delete the destination's topic", Exit: admin.ExitRefused}
	}
	if v, _ := img.TopicConfig(it.Name, filters.TieredConfig); v == "true" {
		return &admin.Error{Code: kip1279.InvalidConfig,
			Message: fmt.Sprintf("topic %s has %s=true at the destination", it.Name, filters.TieredConfig),
			Hint:    "turn tiered storage off for it, or delete the destination's topic: a mirror can't fill the remote store", Exit: admin.ExitRefused}
	}
	return nil
}

// put stores a topic that begins: the states first, since whoever loads the topic must not find STOPPED or old progress with it.
func (s *startRun) put(ctx context.Context, t coordinator.Topic, known *coordinator.Topic) error {
	// Both sides were asked for long; whoever was stopped meanwhile is not to store PREPARING over what others have begun.
	if err := s.m.cfg.Store.Fresh(ctx, t.Mirror); err != nil {
		return err
	}
	s.m.writing.Lock()
	defer s.m.writing.Unlock()
	if err := s.m.defined(t.Mirror); err != nil {
		return err // deleted meanwhile: no mirror would ever give the topic back
	}
	if err := s.unchanged(known, t.Name); err != nil {
		return err
	}
	if err := s.m.cfg.Store.PutState(ctx, s.m.preparing(t)...); err != nil {
		return err
	}
	s.m.fault("stored PREPARING")
	if err := s.m.cfg.Store.PutTopic(ctx, t); err != nil {
		return err
	}
	s.m.fault("started")
	return s.forget(ctx, t)
}

// unchanged refuses to go on from what another call has changed meanwhile (KIP-1279: 145 where the topic changed since it was judged).
func (s *startRun) unchanged(known *coordinator.Topic, name string) error {
	now, ok := s.m.cfg.Store.TopicByName(name)
	if ok == (known != nil) && (!ok || sameStart(now, *known) && now.Desired == known.Desired) {
		return nil
	}
	return &admin.Error{Code: kip1279.InvalidClusterMirrorStates,
		Message: fmt.Sprintf("another command changed topic %s meanwhile", name),
		Hint:    "see describe, then try again", Exit: admin.ExitRefused}
}

// preparing returns the states of a topic's partitions at the very beginning. Their last mirrored epoch is what they are aligned to
// (see alignEpoch).
func (m *Manager) preparing(t coordinator.Topic) []coordinator.PartitionState {
	out := make([]coordinator.PartitionState, 0, t.Partitions)
	for p := range t.Partitions {
		epoch := alignEpoch(t, p)
		if epoch < 0 {
			epoch = coordinator.ForgetEpoch
		}
		was := m.stored(t, p)
		out = append(out, coordinator.PartitionState{Mirror: t.Mirror, ID: was.ID, State: statemachine.Preparing, Previous: statemachine.Unknown,
			Since: later(t.Started, was.Since), LastMirrorEpoch: epoch}.Over(was))
	}
	return out
}

// forget drops the memory of others of that name, once a topic has taken their place: destination topics that are no more, and what
// another mirror remembers of this one.
func (s *startRun) forget(ctx context.Context, t coordinator.Topic) error {
	img := s.m.cfg.Destination.Image()
	for _, old := range s.m.cfg.Store.Topics() {
		same := old.TopicID == t.TopicID
		if old.Name != t.Name || same && old.Mirror == t.Mirror || !same && img.Topics[old.TopicID] != nil {
			continue
		}
		if err := s.m.cfg.Store.DeleteTopic(ctx, old); err != nil {
			return err
		}
	}
	return nil
}

// create makes the topic with the source's partition count and configs and with the lock in its very first request.
func (s *startRun) create(ctx context.Context, t coordinator.Topic, known *coordinator.Topic, plan *admin.TopicPlan) error {
	if live := s.m.placeable(s.m.cfg.Destination.Image()); s.rf > len(live) {
		return &admin.Error{Code: 38,
			Message: fmt.Sprintf("default.replication.factor of the destination is %d, but %d brokers are alive", s.rf, len(live)),
			Hint:    "bring brokers back, or lower default.replication.factor", Exit: admin.ExitRefused}
	}
	configs := s.filters.Configs(s.config[t.Name])
	remember(&t, configs)
	configs[sizeConfig] = "0"
	configs[minISRConfig] = strconv.Itoa(lockValue(len(s.m.cfg.NodeIDs), s.rf, trueMinISR(t)))
	lists := s.m.place(s.m.cfg.Destination.Image(), t.Partitions, s.rf)
	plan.Create = true
	plan.Requests = append(plan.Requests, fmt.Sprintf("CreateTopics %s: %d partitions, replicas %v, configs %s", t.Name, t.Partitions, lists,
		configText(configs)))
	if s.req.DryRun {
		s.count(ctx, plan, t, nil)
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
	s.m.fault("created")
	t.TopicID = id
	return s.put(ctx, t, known)
}
