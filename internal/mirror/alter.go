package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

// alterTries is how often single changes are tried when others change the same mirror.
const alterTries = 10

// errMeanwhile is for internal use: a definition is not the one any more that was read.
var errMeanwhile = errors.New("another command changed the mirror meanwhile")

func meanwhile(mirror string) error {
	return &admin.Error{Code: kip1279.InvalidClusterMirrorStates, Message: fmt.Sprintf("another command changed mirror %s meanwhile", mirror),
		Hint: "see list, then try again", Exit: admin.ExitRefused}
}

// AlterMirror gives a mirror that may be running other properties, all of them. A change of how the source is reached is accepted once
// the same source answers that way; connections are then made anew. What only says what is synced takes effect at once, also
// while the source does not answer.
//
// Changes of single properties are made to those that are stored in that moment; when another command comes in between, to what it
// has stored.
func (m *Manager) AlterMirror(ctx context.Context, req admin.AlterRequest) (admin.AlterResult, error) {
	for range alterTries {
		switch out, err := m.alter(ctx, req); {
		case !errors.Is(err, errMeanwhile):
			return out, err
		case len(req.Changes) == 0:
			return out, meanwhile(req.Mirror)
		}
		if err := m.cfg.Store.Fresh(ctx, req.Mirror); err != nil {
			return admin.AlterResult{}, err
		}
	}
	return admin.AlterResult{}, meanwhile(req.Mirror)
}

// alter is one try of AlterMirror; errMeanwhile when what it had read was changed by another.
func (m *Manager) alter(ctx context.Context, req admin.AlterRequest) (admin.AlterResult, error) {
	var out admin.AlterResult
	if err := m.loaded(); err != nil {
		return out, err
	}
	if err := m.defined(req.Mirror); err != nil {
		return out, err
	}
	old, _ := m.cfg.Store.Mirror(req.Mirror)
	if len(req.Changes) > 0 {
		var err error
		if req.Config, err = changed(old, req.Changes); err != nil {
			return out, err
		}
	}
	if err := m.checkConfig(req.Mirror, req.Config); err != nil {
		return out, err
	}
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
		return out, errMeanwhile
	}
	now.Config = req.Config
	switch err := m.cfg.Store.PutMirror(ctx, now); {
	case errors.Is(err, coordinator.ErrChanged): // by another process
		return out, errMeanwhile
	case err != nil:
		return out, err
	}
	m.poke()
	return out, nil
}

// MirrorConfig returns the properties of a mirror, with the source's cluster id among them.
func (m *Manager) MirrorConfig(_ context.Context, name string) (map[string]string, error) {
	if err := m.loaded(); err != nil {
		return nil, err
	}
	if err := m.defined(name); err != nil {
		return nil, err
	}
	def, _ := m.cfg.Store.Mirror(name)
	out := maps.Clone(def.Config)
	out[sourceClusterConfig] = def.SourceClusterID
	return out, nil
}

// changed returns the properties of a mirror with changes made to them, checked as those of a new one are. The source's cluster id may be
// named as what it is.
func changed(def coordinator.Mirror, changes []admin.ConfigChange) (map[string]string, error) {
	for _, c := range changes {
		if c.Name == sourceClusterConfig && (c.Op != admin.ConfigSet || c.Value != def.SourceClusterID) {
			return nil, &admin.Error{Code: kip1279.InvalidConfig, Message: sourceClusterConfig + " can't be changed",
				Hint: "a mirror stays with its source; for another one create another mirror", Exit: admin.ExitRefused}
		}
	}
	config, err := admin.ChangeConfig(def.Config, changes)
	if err != nil {
		return nil, err
	}
	return config, admin.CheckMirror(def.Name, config)
}

// sameSource refuses properties that lead to another cluster, or to none.
func (m *Manager) sameSource(ctx context.Context, def coordinator.Mirror, config map[string]string) error {
	// Not the client that the mirror uses: that goes on until the new properties are stored.
	probe := newSources(nil, nil, slog.New(slog.DiscardHandler))
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
	if _, err := sourceOpts(config, nil); err != nil {
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
