package main

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"kmirror/internal/admin"
	"kmirror/statemachine"
)

// allStates are reported for every partition, 0 included: an alert on a state must not depend on a series coming to be.
var allStates = []statemachine.State{
	statemachine.Unknown, statemachine.Preparing, statemachine.EpochFencing, statemachine.Mirroring, statemachine.Pausing,
	statemachine.Paused, statemachine.Stopping, statemachine.Stopped, statemachine.Failed,
}

// Describe implements prometheus.Collector.
func (c *partitionCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.state, c.lag, c.lagBytes, c.lagSeconds, c.locked, c.isr, c.room, c.age} {
		ch <- d
	}
}

// group is what one series is about: a partition, or all of a topic.
type group struct{ mirror, topic, partition string }

// sample adds up a group. Sums for what adds up, the worst for what does not; nil is not known.
type sample struct {
	states                                   map[string]float64
	lag, lagBytes, lagSeconds, isr, headroom *float64
}

// Collect implements prometheus.Collector.
func (c *partitionCollector) Collect(ch chan<- prometheus.Metric) {
	parts := c.partitions()
	groups := map[group]*sample{}
	locks := map[group]bool{}
	for _, p := range parts {
		g := group{mirror: p.Mirror, topic: p.Topic}
		if p.Locked != nil {
			was, seen := locks[g]
			locks[g] = *p.Locked && (was || !seen)
		}
		if c.perPartition {
			g.partition = strconv.Itoa(int(p.Partition))
		}
		if groups[g] == nil {
			groups[g] = &sample{states: map[string]float64{}}
		}
		groups[g].add(p)
	}
	for g, s := range groups {
		c.send(ch, g, s)
	}
	for g, locked := range locks {
		v := 0.0
		if locked {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(c.locked, prometheus.GaugeValue, v, g.mirror, g.topic)
	}
	now := c.now()
	for mirror, last := range c.sources() {
		if !last.IsZero() {
			ch <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, max(0, now.Sub(last).Seconds()), mirror)
		}
	}
}

func (s *sample) add(p admin.PartitionInfo) {
	s.states[p.State]++
	s.lag = sum(s.lag, float(p.Lag))
	s.lagBytes = sum(s.lagBytes, float(p.LagBytes))
	s.lagSeconds = worst(s.lagSeconds, p.LagSeconds, func(a, b float64) float64 { return max(a, b) })
	least := func(a, b float64) float64 { return min(a, b) }
	if p.ISRReal != nil {
		s.isr = worst(s.isr, new(float64(len(p.ISRReal))), least)
	}
	if p.DestinationEpoch != nil && p.SourceEpoch != nil {
		s.headroom = worst(s.headroom, new(float64(*p.DestinationEpoch-*p.SourceEpoch)), least)
	}
}

func float(v *int64) *float64 {
	if v == nil {
		return nil
	}
	return new(float64(*v))
}

func sum(a, b *float64) *float64 {
	return worst(a, b, func(a, b float64) float64 { return a + b })
}

// worst joins two values that may be unknown.
func worst(a, b *float64, join func(a, b float64) float64) *float64 {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return new(join(*a, *b))
}

func (c *partitionCollector) send(ch chan<- prometheus.Metric, g group, s *sample) {
	labels := []string{g.mirror, g.topic}
	if c.perPartition {
		labels = append(labels, g.partition)
	}
	for _, state := range allStates {
		name := state.String()
		ch <- prometheus.MustNewConstMetric(c.state, prometheus.GaugeValue, s.states[name], append(labels, name)...)
	}
	for _, m := range []struct {
		desc  *prometheus.Desc
		value *float64
	}{
		{c.lag, s.lag}, {c.lagBytes, s.lagBytes}, {c.lagSeconds, s.lagSeconds}, {c.isr, s.isr}, {c.room, s.headroom},
	} {
		if m.value != nil {
			ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, *m.value, labels...)
		}
	}
}
