package mirror

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol/kip1279"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// CreateMirror stores a mirror's definition after its source was reached. The source must not be the destination.
func (m *Manager) CreateMirror(ctx context.Context, name string, config map[string]string) error {
	if err := m.loaded(); err != nil {
		return err
	}
	if err := m.checkConfig(name, config); err != nil {
		return err
	}
	if old, ok := m.cfg.Store.Mirror(name); ok {
		if digest(old.Config) == digest(config) {
			return nil
		}
		return exists(name)
	}
	cluster, err := m.sources.clusterOf(ctx, name, config)
	if err != nil {
		return unreachable("source", err)
	}
	if want := config[sourceClusterConfig]; want != "" && want != cluster {
		return &admin.Error{Code: kip1279.InvalidRequest,
			Message: fmt.Sprintf("mirror.source.cluster.id is %s, but the bootstrap servers lead to %s", want, cluster),
			Hint:    "correct one of the two", Exit: admin.ExitRefused}
	}
	if cluster == m.cfg.Destination.ClusterID() {
		return &admin.Error{Code: kip1279.InvalidRequest,
			Message: "the source is the destination itself", Hint: "point bootstrap.servers at the other cluster", Exit: admin.ExitRefused}
	}
	err = m.cfg.Store.PutMirror(ctx, coordinator.Mirror{Name: name, Config: config, SourceClusterID: cluster, Created: time.Now()})
	if errors.Is(err, coordinator.ErrChanged) { // another process was asked for it at the same time
		return exists(name)
	}
	return err
}

func exists(mirror string) error {
	return &admin.Error{Code: kip1279.ClusterMirrorAlreadyExists,
		Message: fmt.Sprintf("mirror %q exists with another configuration", mirror),
		Hint:    "choose another name, or change it with kmirror alter", Exit: admin.ExitRefused}
}

// ListMirrors returns the mirrors that are defined.
func (m *Manager) ListMirrors(_ context.Context, withTopics bool) ([]admin.MirrorInfo, error) {
	if err := m.loaded(); err != nil {
		return nil, err
	}
	var out []admin.MirrorInfo
	for _, d := range m.cfg.Store.Mirrors() {
		info := admin.MirrorInfo{Mirror: d.Name, SourceBootstrap: d.Config["bootstrap.servers"], SourceClusterID: d.SourceClusterID}
		if withTopics {
			info.Properties = d.Config
		}
		for _, t := range m.cfg.Store.Topics() {
			if t.Mirror != d.Name || t.Desired == statemachine.Stopped {
				continue
			}
			if t.Desired != statemachine.Paused {
				info.TopicCount++
			}
			if withTopics {
				info.Topics = append(info.Topics, t.Name)
			}
		}
		out = append(out, info)
	}
	return out, nil
}

// Describe returns what is known of partitions.
func (m *Manager) Describe(_ context.Context, req admin.DescribeRequest) ([]admin.PartitionInfo, error) {
	if err := m.loaded(); err != nil {
		return nil, err
	}
	match, err := admin.NewMatcher(req.Topics)
	if err != nil {
		return nil, err
	}
	for _, name := range req.Mirrors {
		if _, ok := m.cfg.Store.Mirror(name); !ok {
			return nil, &admin.Error{Code: kip1279.UnknownClusterMirror,
				Message: fmt.Sprintf("there is no mirror %q", name), Hint: "see kmirror list",
				Exit: admin.ExitUsage}
		}
	}
	img, statuses := m.cfg.Destination.Image(), m.cfg.Data.Statuses()
	var out []admin.PartitionInfo
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, p := range m.parts {
		if len(req.Mirrors) > 0 && !slices.Contains(req.Mirrors, p.topic.Mirror) || len(req.Topics) > 0 && !match.Match(p.topic.Name) {
			continue
		}
		st, led := statuses[id]
		out = append(out, m.info(p, img, st, led))
	}
	slices.SortFunc(out, admin.ComparePartitions)
	return out, nil
}

// known returns a pointer to v, nil for Kafka's -1.
func known[T int32 | int64](v T) *T {
	if v < 0 {
		return nil
	}
	return &v
}

// info puts one line of describe together. Called with m.mu held.
func (m *Manager) info(p *part, img *kraft.Image, st replica.Status, led bool) admin.PartitionInfo {
	locked, srcID, id, since := m.locked(img, p.topic), p.topic.SourceTopicID.String(), p.topic.TopicID.String(), p.since
	i := admin.PartitionInfo{
		Mirror: p.topic.Mirror, Topic: p.topic.Name, Partition: p.id.Partition, State: p.machine.State.String(), StateSince: &since,
		SourceTopicID: &srcID, TopicID: &id, Locked: &locked, Retry: int16(min(p.machine.Retry, 1<<14)), ISRReal: []int32{},
	}
	if p.machine.Final {
		i.Retry = -1
	}
	if ip := img.Partition(p.id); ip != nil {
		i.DestinationEpoch, i.LeaderNode, i.ISRReal = known(ip.LeaderEpoch), known(ip.Leader), append(i.ISRReal, m.real(ip.ISR)...)
	}
	if led {
		i.Process = &m.cfg.Process
		i.SourceOffset, i.DestinationOffset = known(st.SourceEnd), known(st.HighWatermark)
		i.SourceEpoch, i.LastMirroredEpoch = known(st.SourceEpoch), known(st.LastEpoch)
		if st.SourceEnd >= 0 && !st.SourceEndAt.IsZero() {
			i.SourceAgeSeconds = new(max(0, time.Since(st.SourceEndAt).Seconds()))
		}
		if st.SourceEnd >= 0 && st.HighWatermark >= 0 {
			lag := max(0, st.SourceEnd-st.HighWatermark)
			i.Lag = &lag
			if lag == 0 {
				i.LagBytes, i.LagSeconds = new(int64), new(float64)
			}
		}
	}
	if !led && p.work.lme >= 0 {
		i.LastMirroredEpoch = known(p.work.lme)
	}
	if reason, hint := m.reason(p, st, led, locked); reason != "" {
		i.Error, i.Hint = &reason, &hint
	}
	return i
}

// reason is what is the matter with a partition, and what to do; empty when nothing is. Called with m.mu held.
func (m *Manager) reason(p *part, st replica.Status, led, locked bool) (reason, hint string) {
	reason, hint = p.machine.Reason, p.machine.Hint
	if reason == "" && p.unstored != nil {
		reason = fmt.Sprintf("its state can't be stored: %v", p.unstored)
		hint = "it is tried again by itself, and the topic waits for it; see whether kmirror reaches the brokers that lead the state topic"
	}
	if reason == "" && led && st.Err != nil {
		reason, hint = st.Err.Error(), hintFor(st.Err)
	}
	if why := m.lastErr[leadTask]; reason == "" && !led && why != "" {
		reason, hint = why, "it is tried again by itself; consumers read from real brokers meanwhile"
	}
	if why := m.lastErr[lockTask(p.topic.Name)]; reason == "" && !locked && why != "" {
		reason, hint = why, "it is tried again by itself"
	}
	if p.machine.State == statemachine.Stopping && p.machine.Stop == statemachine.StopTailed && m.groupsFirst(p.topic) {
		reason, hint = "waits for the last sync of groups", "describe shows whether it can be done; failover goes on without"
	}
	if reason == "" && p.machine.State == statemachine.Stopping {
		reason, hint = m.stopReason(p)
	}
	waits := p.machine.State == statemachine.Preparing || p.machine.State == statemachine.EpochFencing
	if why := cmp.Or(m.lastErr[dropTask], m.lastErr[bumpTask]); reason == "" && waits && why != "" {
		reason, hint = why, "it is tried again by itself"
	}
	if reason == "" && p.topic.Note != "" {
		reason, hint = p.topic.Note, "the topic keeps what was mirrored; start mirrors it again"
		if p.topic.GroupsDone {
			hint = "its groups are where the last round found them: look at their offsets before applications go on"
		}
	}
	return reason, hint
}

// stopReason says what a stop waits for, where one of its tasks has said so. Called with m.mu held.
func (m *Manager) stopReason(p *part) (reason, hint string) {
	for _, task := range []string{settleTask, retakeTask, releaseTask, dropTask, bumpTask, tailTask, unlockTask(p.topic.Name), handOverTask} {
		if why := m.lastErr[task]; why != "" {
			return why, "it is tried again by itself; the stop goes on"
		}
	}
	return "", ""
}

// hinter is an error that says what to do.
type hinter interface{ Hint() string }

// hintFor returns what to do about an error of the data path.
func hintFor(err error) string {
	var h hinter
	if errors.As(err, &h) {
		return h.Hint()
	}
	return "it is tried again by itself; if it stays, check that the source is reachable and its topic is there"
}

// finalHint is hintFor of an error that no retry helps against.
func finalHint(err error) string {
	var h hinter
	if errors.As(err, &h) {
		return h.Hint()
	}
	return "bring back what the source had and recover it, or start it anew with --overwrite; what is mirrored stays until then, and failover makes it writable"
}

// Call runs a private verb of the admin listener.
func (m *Manager) Call(ctx context.Context, verb string, payload json.RawMessage) (json.RawMessage, error) {
	if verb == admin.VerbVerify && m.cfg.Verify != nil {
		return m.cfg.Verify(ctx, payload)
	}
	return nil, &admin.Error{Code: kip1279.UnsupportedVersion,
		Message: fmt.Sprintf("this process does not know the verb %q", verb), Hint: "upgrade kmirror serve first, then the command",
		Exit: admin.ExitUsage}
}

// SourceFetches returns when each mirror's source last answered, for metrics.
func (m *Manager) SourceFetches() map[string]time.Time {
	statuses, out := m.cfg.Data.Statuses(), map[string]time.Time{}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, p := range m.parts {
		if at := statuses[id].LastSourceFetch; at.After(out[p.topic.Mirror]) {
			out[p.topic.Mirror] = at
		}
	}
	return out
}

// States returns the state of every partition, for metrics.
func (m *Manager) States() []admin.PartitionInfo {
	out, err := m.Describe(context.Background(), admin.DescribeRequest{})
	if err != nil {
		return nil
	}
	return out
}
