package mirror

import (
	"context"
	"fmt"
	"strconv"

	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// The two configs of the lock (facts 10 and 11 of docs/kafka-facts.md).
const (
	sizeConfig   = filters.SizeConfig
	minISRConfig = filters.MinISRConfig
)

// lockValue is L for partitions with so many of our ids and so many real replicas: so large that real brokers alone never
// satisfy it, and no larger, since eligible leader replicas trust it.
func lockValue(own, real, trueMin int) int { return max(own+trueMin, real+1) }

// topicLockValue is L over all partitions of a topic. Real replicas that are missing for the moment count: L is not to change with
// each of their comings and goings, and brokers cap it at the replicas that there are.
func (m *Manager) topicLockValue(t coordinator.Topic, it *kraft.Topic) int {
	l := 0
	for _, p := range it.Partitions {
		l = max(l, lockValue(len(p.Replicas)-len(m.real(p.Replicas)), max(len(m.real(p.Replicas)), int(t.Replicas)), trueMinISR(t)))
	}
	return l
}

// locked reports whether both halves of the lock are on: nothing fits, and real replicas alone are never enough.
func (m *Manager) locked(img *kraft.Image, t coordinator.Topic) bool {
	it := img.Topics[t.TopicID]
	if it == nil {
		return false
	}
	size, _ := img.TopicConfig(t.Name, sizeConfig)
	isr, _ := img.TopicConfig(t.Name, minISRConfig)
	n, err := strconv.Atoi(isr)
	if size != "0" || err != nil {
		return false
	}
	for _, p := range it.Partitions {
		if n <= len(m.real(p.Replicas)) {
			return false
		}
	}
	return true
}

// lockTopic puts the lock on. Lead, then lock: with a real leader the size limit alone would leave the destination's
// transaction coordinator with markers that it takes for hopeless. min.insync.replicas is written only while no partition
// has eligible leader replicas, since writing it clears them and harms the controller later (fact 12 of docs/kafka-facts.md).
func (m *Manager) lockTopic(ctx context.Context, t coordinator.Topic) error {
	img := m.cfg.Destination.Image()
	it := img.Topics[t.TopicID]
	if it == nil {
		return fmt.Errorf("topic %s is gone", t.Name)
	}
	for n, p := range it.Partitions {
		if !m.guest(p.Leader) {
			return fmt.Errorf("partition %d of %s is led by %d: it is locked once all partitions are led by kmirror", n, t.Name, p.Leader)
		}
		if len(p.ELR) > 0 {
			return fmt.Errorf("partition %d of %s has eligible leader replicas %v: min.insync.replicas must not change yet", n, t.Name, p.ELR)
		}
	}
	return m.cfg.Destination.SetTopicConfigs(ctx, t.Name, map[string]string{
		sizeConfig: "0", minISRConfig: strconv.Itoa(m.topicLockValue(t, it)),
	}, nil)
}

// lockOutgrown reports whether L is no longer what the number of kmirror's ids in the replica lists asks for: another process stands
// by now, or does not any more. It is only set right while nothing forbids to write it.
func (m *Manager) lockOutgrown(img *kraft.Image, t coordinator.Topic) bool {
	it := img.Topics[t.TopicID]
	if it == nil {
		return false
	}
	for _, p := range it.Partitions {
		if !m.guest(p.Leader) || len(p.ELR) > 0 || len(p.Adding)+len(p.Removing) > 0 {
			return false
		}
	}
	isr, _ := img.TopicConfig(t.Name, minISRConfig)
	n, err := strconv.Atoi(isr)
	return err == nil && n != m.topicLockValue(t, it)
}

// trueConfigs notes what the topic's two locked configs are without the lock. A lock that is on already hides them: it is
// that of a known topic, or of a start that was cut short after the topic was created.
func (s *startRun) trueConfigs(t *coordinator.Topic, img *kraft.Image, known *coordinator.Topic) {
	size, _ := img.TopicConfig(t.Name, sizeConfig)
	same := known != nil && known.TopicID == t.TopicID
	if same && known.Regrow {
		t.Replicas = max(t.Replicas, known.Replicas) // not all are back yet
	}
	if same && (known.Desired != statemachine.Stopped || size == "0") {
		t.TrueConfigs, t.MinISR, t.Replicas = known.TrueConfigs, known.MinISR, max(t.Replicas, known.Replicas)
		return
	}
	if size == "0" {
		remember(t, s.filters.Configs(s.config[t.Name]))
		return
	}
	own := map[string]string{}
	for _, key := range []string{sizeConfig, minISRConfig} {
		if v, ok := img.TopicConfig(t.Name, key); ok {
			own[key] = v
		}
	}
	remember(t, own)
}

// remember notes those of the two locked configs that are among a topic's own.
func remember(t *coordinator.Topic, configs map[string]string) {
	for _, key := range []string{sizeConfig, minISRConfig} {
		if v, ok := configs[key]; ok {
			t.TrueConfigs[key] = v
		}
	}
	if n, err := strconv.ParseInt(t.TrueConfigs[minISRConfig], 10, 16); err == nil {
		t.MinISR = int16(n)
	}
}
