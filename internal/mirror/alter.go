package mirror

import (
	"context"
	"fmt"
	"slices"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

// AlterMirror gives a mirror that may be running other properties, all of them. A change of how the source is reached is accepted once
// the same source answers that way; connections are then made anew. What only says what is synced takes effect at once, also
// while the source does not answer.
func (m *Manager) AlterMirror(ctx context.Context, req admin.AlterRequest) (admin.AlterResult, error) {
	var out admin.AlterResult
	if err := m.loaded(); err != nil {
		return out, err
	}
	if err := m.defined(req.Mirror); err != nil {
		return out, err
	}
	if err := m.checkConfig(req.Mirror, req.Config); err != nil {
		return out, err
	}
	old, _ := m.cfg.Store.Mirror(req.Mirror)
	out.Changed = differing(old.Config, req.Config)
	if len(out.Changed) == 0 {
		return out, nil
	}
	out.Reconnects = connections(old.Config) != connections(req.Config)
	if out.Reconnects {
		if err := m.sameSource(ctx, old, req.Config); err != nil {
			return out, err
		}
	}
	f, err := filters.Parse(req.Config)
	if err != nil {
		return out, err
	}
	for _, t := range m.cfg.Store.Topics() {
		if now, ok := m.cfg.Store.TopicByName(t.Name); ok && now.TopicID == t.TopicID && now.Mirror == req.Mirror && t.Mirror == req.Mirror &&
			t.Desired != statemachine.Stopped && f.TopicExcluded(t.Name) {
			out.Stops = append(out.Stops, t.Name)
		}
	}
	if req.DryRun {
		return out, nil
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	now, ok := m.cfg.Store.Mirror(req.Mirror)
	if !ok || digest(now.Config) != digest(old.Config) {
		return out, &admin.Error{Code: kip1279.InvalidClusterMirrorStates,
			Message: fmt.Sprintf("another command changed mirror %s meanwhile", req.Mirror),
			Hint:    "see list, then try again", Exit: admin.ExitRefused}
	}
	now.Config = req.Config
	if err := m.cfg.Store.PutMirror(ctx, now); err != nil {
		return out, err
	}
	m.poke()
	return out, nil
}

// sameSource refuses properties that lead to another cluster, or to none.
func (m *Manager) sameSource(ctx context.Context, def coordinator.Mirror, config map[string]string) error {
	// Not the client that the mirror uses: that goes on until the new properties are stored.
	probe := newSources(nil, nil)
	defer probe.close()
	cluster, err := probe.clusterOf(ctx, def.Name, config)
	if err != nil {
		return unreachable("source", err)
	}
	if want := config[sourceClusterConfig]; cluster != def.SourceClusterID || want != "" && want != cluster {
		return &admin.Error{Code: kip1279.InvalidRequest,
			Message: fmt.Sprintf("mirror %s was made for cluster %s, the new properties lead to %s", def.Name, def.SourceClusterID,
				cluster), Hint: "a mirror stays with its source; for another one create another mirror", Exit: admin.ExitRefused}
	}
	return nil
}

// checkConfig refuses what can be seen to be wrong without the source.
func (m *Manager) checkConfig(name string, config map[string]string) error {
	wrong := func(err error) error {
		return &admin.Error{Code: kip1279.InvalidConfig,
			Message: err.Error(), Hint: "correct the mirror's configuration", Exit: admin.ExitUsage}
	}
	if config["bootstrap.servers"] == "" {
		return &admin.Error{Code: kip1279.InvalidRequest,
			Message: "the mirror's configuration has no bootstrap.servers", Hint: "add bootstrap.servers=HOST:PORT of the source",
			Exit: admin.ExitUsage}
	}
	if err := m.cfg.Data.CheckMirror(config); err != nil {
		return wrong(err)
	}
	if _, err := m.cfg.DialRemote(coordinator.Mirror{Name: name, Config: config}); err != nil {
		return wrong(err)
	}
	if _, err := filters.Parse(config); err != nil {
		return wrong(err)
	}
	if _, err := sourceOpts(config); err != nil {
		return wrong(err)
	}
	return nil
}

// differing returns the keys whose values differ, sorted.
func differing(a, b map[string]string) []string {
	var out []string
	for k, v := range a {
		if now, ok := b[k]; !ok || now != v {
			out = append(out, k)
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}
