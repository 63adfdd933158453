package metasync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/internal/admin"
	"kmirror/internal/clientconf"
	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/protocol"
	"kmirror/statemachine"
)

// topics compares the topics of both sides: those deleted, excluded or made anew at the source are stopped, those that have grown
// grow here too, and those that are to be discovered are started.
func (j *job) topics(ctx context.Context) error {
	source, err := j.src.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("list topics of the source: %w", err)
	}
	if err := j.stillSource(ctx); err != nil {
		return err
	}
	// In this order: what has ended does not grow, nor does what goes round in a loop.
	return errors.Join(j.ends(ctx, source), j.loops(ctx, source), j.grow(ctx, source), j.discover(ctx, source))
}

// ends stops topics that are not to be mirrored any more. What they hold stays.
func (j *job) ends(ctx context.Context, source kadm.TopicDetails) error {
	reasons := map[string]string{}
	var doubtful []coordinator.Topic
	for name, t := range j.known() {
		if t.Desired == statemachine.Stopped {
			delete(j.w.gone, t.TopicID)
			continue
		}
		d, there := source[name]
		switch {
		case j.f.TopicExcluded(name):
			reasons[name] = "kept out by mirror.topics.exclude"
		case !there || d.Err != nil || remade(t, d):
			doubtful = append(doubtful, t)
		default:
			delete(j.w.gone, t.TopicID)
		}
	}
	lost, err := j.lost(ctx, doubtful)
	for _, t := range doubtful {
		if lost[t.Name] == "" {
			delete(j.w.gone, t.TopicID)
		} else if j.w.missed(t.TopicID, time.Now()) {
			reasons[t.Name] = lost[t.Name]
		}
	}
	if len(reasons) == 0 {
		return err
	}
	if failed := j.stillSource(ctx); failed != nil {
		return errors.Join(err, failed)
	}
	if failed := j.s.cfg.Mirrors.EndTopics(ctx, j.def.Name, reasons); failed != nil {
		return errors.Join(err, failed)
	}
	j.changed(Topics, len(reasons))
	return err
}

// loops looks for topics that the source mirrors from here. Two that follow each other would both stand still; start refuses them, but
// two starts at the same time may not see each other.
func (j *job) loops(ctx context.Context, source kadm.TopicDetails) error {
	j.w.looping = nil
	if !source.Has(coordinator.DefaultTopic) && !slices.ContainsFunc(slices.Collect(maps.Keys(j.def.Config)), func(k string) bool {
		return strings.HasPrefix(k, clientconf.RemoteAdminPrefix)
	}) {
		return nil
	}
	ids := map[string]protocol.UUID{}
	for name, d := range source {
		ids[name] = protocol.UUID(d.ID)
	}
	active, err := j.s.cfg.Mirrors.Loops(ctx, j.def.Name, ids)
	if err != nil {
		j.skipped(Topics, "loops_unknown", 1)
		j.log.Debug("whether the source mirrors from here is not known", "err", err)
	}
	var errs []error
	for name := range j.wanted() {
		if how := active[name]; how != "" {
			errs = append(errs, fmt.Errorf("topic %s goes round in a loop: the source mirrors it from here (%s); end one of the two with "+
				"failover --force", name, how))
		}
	}
	j.w.looping = active
	return bounded(errs)
}

// grow adds partitions that the source's topics have been given.
func (j *job) grow(ctx context.Context, source kadm.TopicDetails) error {
	var errs []error
	for name, t := range j.wanted() {
		d, ok := source[name]
		if !ok || d.Err != nil || remade(t, d) || int32(len(d.Partitions)) <= t.Partitions {
			continue
		}
		if err := j.s.cfg.Mirrors.Grow(ctx, t, int32(len(d.Partitions))); err != nil {
			errs = append(errs, fmt.Errorf("new partitions of %s: %w", name, err))
			continue
		}
		j.changed(Topics, 1)
		j.log.Info("partitions added", "topic", name, "from", t.Partitions, "to", len(d.Partitions))
	}
	return bounded(errs)
}

// discover starts topics that mirror.topics.include asks for and nobody has started yet. One that was stopped stays stopped.
func (j *job) discover(ctx context.Context, source kadm.TopicDetails) error {
	var names []string
	for name, d := range source {
		if d.Err != nil || filters.InternalTopic(name, d.IsInternal) || !j.f.Discovers(name) {
			continue
		}
		if _, known := j.s.cfg.Store.TopicByName(name); !known {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	results, err := j.s.cfg.Mirrors.StartTopics(ctx, admin.StartRequest{Mirror: j.def.Name, Topics: names})
	if err != nil {
		return fmt.Errorf("start topics that were discovered: %w", err)
	}
	var errs []error
	for _, r := range results {
		if r.Err != nil {
			errs = append(errs, fmt.Errorf("%s was discovered and can't be started: %w", r.Topic, r.Err))
			continue
		}
		j.changed(Topics, 1)
		j.log.Info("topic discovered and started", "topic", r.Topic)
	}
	return bounded(errs)
}
