package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/internal/metasync"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// What follows is asked for by internal/metasync; see metasync.Mirrors for what it promises.

// SourceClient returns the client of a mirror's source, which is not the caller's to close.
func (m *Manager) SourceClient(mirror string) (*kgo.Client, error) {
	def, err := m.definition(mirror)
	if err != nil {
		return nil, err
	}
	return m.sources.sourceClient(mirror, def.Config)
}

// DestinationClient returns a client of the destination, which is not the caller's to close.
func (m *Manager) DestinationClient() (*kgo.Client, error) { return m.sources.destinationClient() }

// SourceCluster asks a mirror's source for its cluster id. Where that is not the mirror's, the next one who asks begins at the source's
// addresses again: a client stays with the brokers of the cluster that it has come to.
func (m *Manager) SourceCluster(ctx context.Context, mirror string) (string, error) {
	def, err := m.definition(mirror)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, taskLimit)
	defer cancel()
	id, err := m.sources.clusterOf(ctx, mirror, def.Config)
	if err == nil && id != def.SourceClusterID {
		m.sources.forget(mirror)
	}
	return id, err
}

// EndTopics stops topics at once, each for the reason given, which is stored and shown.
func (m *Manager) EndTopics(ctx context.Context, mirror string, reasons map[string]string) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	var put []coordinator.Topic
	for name, why := range reasons {
		t, ok := m.cfg.Store.TopicByName(name)
		if !ok || t.Mirror != mirror || t.Desired == statemachine.Stopped {
			continue
		}
		t.Desired, t.Drain, t.Regrow, t.Ended, t.Note = statemachine.Stopped, false, true, true, why
		put = append(put, t)
		m.log.Warn("mirroring of a topic is stopped", "mirror", mirror, "topic", name, "reason", why)
	}
	if len(put) == 0 {
		return nil
	}
	defer m.poke()
	return m.cfg.Store.PutTopic(ctx, put...)
}

// Grow gives a mirror topic as many partitions as its source has now: our ids first in each list, real brokers spread. What was cut
// short is taken up where it was: partitions that exist but are not known are taken over.
func (m *Manager) Grow(ctx context.Context, t coordinator.Topic, partitions int32) error {
	img := m.cfg.Destination.Image()
	it := img.Topics[t.TopicID]
	if it == nil {
		return fmt.Errorf("topic %s is gone", t.Name)
	}
	if _, ok := m.still(t); !ok {
		return nil
	}
	if have := int32(len(it.Partitions)); have > partitions {
		return fmt.Errorf("topic %s has %d partitions at the destination, %d at the source: somebody added some; delete the destination's topic "+
			"and start it again, or add partitions at the source", t.Name, have, partitions)
	} else if have < partitions {
		if err := m.createPartitions(ctx, img, t, have, partitions); err != nil {
			return err
		}
	}
	// This took its time: others may have done it, and more, if this process was stopped.
	if err := m.cfg.Store.Fresh(ctx, t.Mirror); err != nil {
		return err
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	now, ok := m.still(t)
	if !ok || now.Partitions >= partitions {
		return nil // changed meanwhile; the next round looks again
	}
	// The states first: whoever loads the topic is not to find partitions of which nothing is known.
	grown := now
	grown.Partitions = partitions
	if err := m.cfg.Store.PutState(ctx, m.preparing(grown)[now.Partitions:]...); err != nil {
		return err
	}
	defer m.poke()
	return m.cfg.Store.PutTopic(ctx, grown)
}

// still returns a topic as it is stored now; false where it is not mirrored any more, or was started anew. Then it is its writers', and
// nothing of the source is brought to it.
func (m *Manager) still(t coordinator.Topic) (coordinator.Topic, bool) {
	now, ok := m.cfg.Store.TopicByName(t.Name)
	return now, ok && sameStart(now, t) && (now.Desired != statemachine.Stopped || now.Draining(m.cfg.Store.State))
}

// createPartitions adds partitions to a topic of the destination and waits until the image shows them.
func (m *Manager) createPartitions(ctx context.Context, img *kraft.Image, t coordinator.Topic, have, partitions int32) error {
	rf, live := max(int(t.Replicas), 1), len(m.placeable(img))
	if rf > live {
		return fmt.Errorf("topic %s has a replication factor of %d, but %d brokers of the destination are alive: its %d new partitions "+
			"wait for them", t.Name, rf, live, partitions-have)
	}
	if err := m.cfg.Destination.CreatePartitions(ctx, t.Name, partitions, m.place(img, partitions, rf)[have:]); err != nil {
		return err
	}
	if err := m.awaitImage(ctx, func(img *kraft.Image) bool {
		it := img.Topics[t.TopicID]
		return it == nil || len(it.Partitions) >= int(partitions)
	}); err != nil {
		return fmt.Errorf("wait for the new partitions of %s: %w", t.Name, err)
	}
	return nil
}

// SyncConfigs sets and removes configs of mirror topics; the two that the lock overwrites are remembered instead. One that the
// destination refuses, since it does not know it or its value, does not keep the others of its topic from being set.
func (m *Manager) SyncConfigs(ctx context.Context, changes []metasync.ConfigChange) error {
	if len(changes) == 0 {
		return nil
	}
	if err := m.cfg.Store.Fresh(ctx, changes[0].Topic.Mirror); err != nil { // all are of one mirror
		return err
	}
	errs, g := make([]error, len(changes)), errgroup.Group{}
	g.SetLimit(writers)
	for i, c := range changes {
		g.Go(func() error {
			errs[i] = errors.Join(m.setConfigs(ctx, c), m.rememberConfigs(ctx, c))
			return nil
		})
	}
	_ = g.Wait()
	failed := make(map[string]error, len(changes))
	for i, c := range changes {
		failed[c.Topic.Name] = errs[i]
	}
	return joinErrors("topic", failed)
}

// lockConfig reports whether a config is one of the two that the lock overwrites.
func lockConfig(key string) bool { return key == sizeConfig || key == minISRConfig }

func (m *Manager) setConfigs(ctx context.Context, c metasync.ConfigChange) error {
	set := map[string]string{}
	for k, v := range c.Set {
		if !lockConfig(k) {
			set[k] = v
		}
	}
	remove := slices.DeleteFunc(slices.Clone(c.Remove), lockConfig)
	if len(set)+len(remove) == 0 {
		return nil
	}
	if _, ok := m.still(c.Topic); !ok {
		return nil
	}
	err := m.cfg.Destination.SetTopicConfigs(ctx, c.Topic.Name, set, remove)
	if err == nil || ctx.Err() != nil || len(set)+len(remove) == 1 {
		return err
	}
	var errs []error
	for _, k := range slices.Sorted(maps.Keys(set)) {
		errs = append(errs, m.cfg.Destination.SetTopicConfigs(ctx, c.Topic.Name, map[string]string{k: set[k]}, nil))
	}
	for _, k := range remove {
		errs = append(errs, m.cfg.Destination.SetTopicConfigs(ctx, c.Topic.Name, nil, []string{k}))
	}
	return errors.Join(errs...)
}

// rememberConfigs changes what the two locked configs are to be once the lock is gone.
func (m *Manager) rememberConfigs(ctx context.Context, c metasync.ConfigChange) error {
	if !slices.ContainsFunc(slices.AppendSeq(slices.Clone(c.Remove), maps.Keys(c.Set)), lockConfig) {
		return nil
	}
	minISR := 0
	if slices.Contains(c.Remove, minISRConfig) {
		var err error
		if minISR, err = m.defaultMinISR(ctx); err != nil {
			return err
		}
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	now, ok := m.still(c.Topic)
	if !ok {
		return nil
	}
	values := map[string]string{}
	for k, v := range now.TrueConfigs {
		if !slices.Contains(c.Remove, k) {
			values[k] = v
		}
	}
	for k, v := range c.Set {
		if lockConfig(k) {
			values[k] = v
		}
	}
	if n, err := strconv.ParseInt(c.Set[minISRConfig], 10, 16); err == nil {
		now.MinISR = int16(n)
	} else if minISR > 0 {
		now.MinISR = int16(minISR)
	}
	now.TrueConfigs = values
	return m.cfg.Store.PutTopic(ctx, now)
}

// defaultMinISR is the destination's min.insync.replicas for topics that have none of their own.
func (m *Manager) defaultMinISR(ctx context.Context) (int, error) {
	live := m.placeable(m.cfg.Destination.Image())
	if len(live) == 0 {
		return 0, errors.New("no broker of the destination is alive")
	}
	cl, err := m.sources.destination()
	if err != nil {
		return 0, err
	}
	_, n, err := brokerDefaults(ctx, cl, live[0])
	return n, err
}

// Loops tells which topics the source of a mirror mirrors from the destination and is active with, and how that stands. ids are the
// source's topics.
func (m *Manager) Loops(ctx context.Context, mirror string, ids map[string]protocol.UUID) (map[string]string, error) {
	def, err := m.definition(mirror)
	if err != nil {
		return nil, err
	}
	details := kadm.TopicDetails{}
	for name, id := range ids {
		details[name] = kadm.TopicDetail{Topic: name, ID: kadm.TopicID(id)}
	}
	s := &startRun{m: m, mirror: def, source: details}
	mem := s.recall(ctx)
	return mem.active, mem.unread
}

// GroupsSynced stores that the groups of topics that are promoted were synced for the last time, or why not.
func (m *Manager) GroupsSynced(ctx context.Context, topics []coordinator.Topic, whyNot string) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	var put []coordinator.Topic
	for _, t := range topics {
		now, ok := m.cfg.Store.TopicByName(t.Name)
		if !ok || !sameStart(now, t) || !now.Drain {
			continue
		}
		if now.GroupsDone = true; whyNot != "" {
			now.Note = "the offsets of groups were not synced a last time: " + whyNot
			m.log.Warn("promote goes on without a last sync of groups", "mirror", t.Mirror, "topic", t.Name, "err", whyNot)
		}
		put = append(put, now)
	}
	if len(put) == 0 {
		return nil
	}
	defer m.poke()
	return m.cfg.Store.PutTopic(ctx, put...)
}

// groupsFirst reports whether a topic that is promoted still waits for the last sync of its groups.
func (m *Manager) groupsFirst(t coordinator.Topic) bool {
	return m.cfg.SyncsGroups && t.Draining(m.cfg.Store.State)
}

// tiered fails a partition whose topic was given tiered storage: its replicas would look for segments in the destination's remote
// store, which a mirror does not fill. Called with m.mu held.
func (m *Manager) tiered(r *round, p *part) {
	if v, _ := r.img.TopicConfig(p.topic.Name, filters.TieredConfig); v != "true" {
		return
	}
	switch p.machine.State {
	case statemachine.Failed, statemachine.Stopping, statemachine.Stopped, statemachine.Unknown:
		return
	}
	m.step(r, p, statemachine.Fail{Final: true, Reason: fmt.Sprintf("the topic was given %s=true at the destination", filters.TieredConfig),
		Hint: "turn it off there and recover it; a mirror can't fill the remote store"})
}

var _ metasync.Mirrors = (*Manager)(nil)
