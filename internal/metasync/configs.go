package metasync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/protocol/kraft"
)

// describeAtOnce is how many topics are in one DescribeConfigs: a broker answers with all configs of each, some 3 KB.
const describeAtOnce = 500

// configs has mirror topics have the configs that were set on the source's topics, and no others: what is changed at the destination
// is changed back. Those that the mirror excludes are left alone.
func (j *job) configs(ctx context.Context) error {
	wanted, img := j.wanted(), j.s.cfg.Destination.Image()
	var changes []ConfigChange
	var errs []error
	for names := range slices.Chunk(slices.Sorted(maps.Keys(wanted)), describeAtOnce) {
		described, err := j.src.DescribeTopicConfigs(ctx, names...)
		if err != nil {
			return fmt.Errorf("configs of the source's topics: %w", err)
		}
		for _, r := range described {
			t, ok := wanted[r.Name]
			switch {
			case errors.Is(r.Err, kerr.UnknownTopicOrPartition):
				continue // deleted; the topics' part of the next round sees it
			case r.Err != nil:
				errs = append(errs, fmt.Errorf("configs of the source's topic %s: %w", r.Name, r.Err))
				continue
			case !ok || img.Topics[t.TopicID] == nil:
				continue
			}
			if c := j.configChange(t, r, img); len(c.Set)+len(c.Remove) > 0 {
				changes = append(changes, c)
			}
		}
	}
	if len(changes) == 0 {
		return bounded(errs)
	}
	if err := j.stillSource(ctx); err != nil {
		return err
	}
	for _, c := range changes {
		j.log.Info("configs differ from the source's, changing them", "topic", c.Topic.Name, "set", c.Set, "remove", c.Remove)
	}
	if err := j.s.cfg.Mirrors.SyncConfigs(ctx, changes); err != nil {
		return errors.Join(bounded(errs), err)
	}
	j.changed(Configs, len(changes))
	return bounded(errs)
}

// configChange compares the configs of a topic on both sides.
func (j *job) configChange(t coordinator.Topic, source kadm.ResourceConfig, img *kraft.Image) ConfigChange {
	want, unreadable := map[string]string{}, []string{}
	for _, c := range source.Configs {
		switch {
		case c.Source != kmsg.ConfigSourceDynamicTopicConfig:
		case c.Value == nil:
			unreadable = append(unreadable, c.Key) // left as it is
		default:
			want[c.Key] = *c.Value
		}
	}
	own := img.Configs[kraft.ConfigResource{Type: kraft.ConfigTopic, Name: t.Name}]
	c := diffConfigs(j.f, want, own, t.TrueConfigs)
	c.Topic = t
	c.Remove = slices.DeleteFunc(c.Remove, func(k string) bool { return slices.Contains(unreadable, k) })
	return c
}

// diffConfigs says what is to be set and removed so that the destination's own configs become those of the source, as far as filters
// let them. behind are the true values of the two configs that the lock overwrites.
func diffConfigs(f *filters.Filters, source, own, behind map[string]string) ConfigChange {
	have := f.Configs(own)
	for _, k := range []string{filters.SizeConfig, filters.MinISRConfig} {
		delete(have, k)
		if v, ok := behind[k]; ok && f.Synced(k) {
			have[k] = v
		}
	}
	want, c := f.Configs(source), ConfigChange{Set: map[string]string{}}
	for k, v := range want {
		if now, ok := have[k]; !ok || now != v {
			c.Set[k] = v
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			c.Remove = append(c.Remove, k)
		}
	}
	slices.Sort(c.Remove)
	return c
}
