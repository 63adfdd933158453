// Package filters reads the properties of a mirror that say what is kept in step: mirror.topics.*, mirror.groups.*, mirror.acls.*,
// mirror.topic.properties.exclude and mirror.metadata.refresh.interval.ms (KIP-1279, ClusterMirrorConfig).
package filters

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Properties of a mirror that are read here. Changing them needs no new connections to the source.
const (
	TopicsInclude           = "mirror.topics.include"
	TopicsExclude           = "mirror.topics.exclude"
	GroupsInclude           = "mirror.groups.include"
	GroupsExclude           = "mirror.groups.exclude"
	ACLsInclude             = "mirror.acls.include"
	ACLsPrune               = "mirror.acls.prune"
	TopicPropertiesExclude  = "mirror.topic.properties.exclude"
	MetadataRefreshInterval = "mirror.metadata.refresh.interval.ms"
)

// Keys are all of them.
var Keys = []string{TopicsInclude, TopicsExclude, GroupsInclude, GroupsExclude, ACLsInclude, ACLsPrune, TopicPropertiesExclude,
	MetadataRefreshInterval}

// The two configs that the lock of a mirror topic overwrites.
const (
	SizeConfig   = "max.message.bytes"
	MinISRConfig = "min.insync.replicas"
)

// TieredConfig is refused at the destination: a mirror can't fill its remote store.
const TieredConfig = "remote.storage.enable"

// propertiesExclude is the KIP's default of mirror.topic.properties.exclude.
var propertiesExclude = []string{
	"follower.replication.throttled.replicas", "leader.replication.throttled.replicas", "message.timestamp.difference.max.ms",
	"log.message.timestamp.before.max.ms", "log.message.timestamp.after.max.ms", "message.timestamp.type",
	"unclean.leader.election.enable", MinISRConfig,
}

// never are not copied, whatever is configured. With those of tiered storage replicas would look for segments in the destination's
// remote store.
var never = []string{
	"mirror.name", TieredConfig, "local.retention.ms", "local.retention.bytes", "remote.log.copy.disable", "remote.log.delete.on.disable",
}

// DefaultRefresh is the default of mirror.metadata.refresh.interval.ms, and MinRefresh the least that is accepted.
const (
	DefaultRefresh = 30 * time.Second
	MinRefresh     = 100 * time.Millisecond
)

// Filters say what of a source is kept in step.
type Filters struct {
	// Refresh is the time from the begin of one round to that of the next.
	Refresh time.Duration
	// PruneAll: ACLs of the destination that the source does not have are deleted, whoever created them (the KIP to the letter).
	PruneAll bool
	// ACLs are the rules of mirror.acls.include, as they were written, one a rule.
	ACLs []string

	topics, groups    selection
	propertiesExclude []string
}

// Parse reads a mirror's properties. The error names the property.
func Parse(config map[string]string) (*Filters, error) {
	f := &Filters{Refresh: DefaultRefresh}
	var err error
	if f.topics, err = parseSelection(config, TopicsInclude, "", TopicsExclude, "__.*"); err != nil {
		return nil, err
	}
	if f.groups, err = parseSelection(config, GroupsInclude, ".*", GroupsExclude, ""); err != nil {
		return nil, err
	}
	if v, ok := config[MetadataRefreshInterval]; ok {
		ms, err := strconv.ParseInt(strings.TrimSpace(v), 10, 32)
		if f.Refresh = time.Duration(ms) * time.Millisecond; err != nil || f.Refresh < MinRefresh {
			return nil, fmt.Errorf("%s: %q is not a number of milliseconds from %d up", MetadataRefreshInterval, v, MinRefresh.Milliseconds())
		}
	}
	switch v := strings.TrimSpace(config[ACLsPrune]); v {
	case "", "own":
	case "all":
		f.PruneAll = true
	default:
		return nil, fmt.Errorf("%s: %q is neither own nor all", ACLsPrune, v)
	}
	f.propertiesExclude = propertiesExclude
	if v, ok := config[TopicPropertiesExclude]; ok {
		f.propertiesExclude = split(v)
	}
	f.ACLs = []string{"*"}
	if v, ok := config[ACLsInclude]; ok {
		f.ACLs = splitRules(v)
	}
	for _, r := range f.ACLs {
		if _, err := ParseACLRule(r); err != nil {
			return nil, fmt.Errorf("%s: %w", ACLsInclude, err)
		}
	}
	return f, nil
}

// Discovers reports whether a topic of the source is to be mirrored without having been started by anybody.
func (f *Filters) Discovers(topic string) bool { return f.topics.has(topic) }

// TopicExcluded reports whether a topic may not be mirrored, also where it is already.
func (f *Filters) TopicExcluded(topic string) bool { return matches(f.topics.exclude, topic) }

// Group reports whether offsets of a group are synced.
func (f *Filters) Group(group string) bool { return f.groups.has(group) }

// Configs returns those of a source topic's own configs that its mirror gets.
func (f *Filters) Configs(config map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range config {
		if f.Synced(k) {
			out[k] = v
		}
	}
	return out
}

// Synced reports whether a topic config follows the source.
func (f *Filters) Synced(key string) bool {
	return !slices.Contains(f.propertiesExclude, key) && !slices.Contains(never, key)
}

// selection is a pair of pattern lists.
type selection struct{ include, exclude []*regexp.Regexp }

func (s selection) has(name string) bool {
	return matches(s.include, name) && !matches(s.exclude, name)
}

func matches(list []*regexp.Regexp, name string) bool {
	return slices.ContainsFunc(list, func(re *regexp.Regexp) bool { return re.MatchString(name) })
}

func parseSelection(config map[string]string, include, includeDefault, exclude, excludeDefault string) (s selection, err error) {
	for _, l := range []struct {
		key, standard string
		into          *[]*regexp.Regexp
	}{{include, includeDefault, &s.include}, {exclude, excludeDefault, &s.exclude}} {
		v, ok := config[l.key]
		if !ok {
			v = l.standard
		}
		for _, p := range split(v) {
			re, err := regexp.Compile(`^(?:` + p + `)$`)
			if err != nil {
				return s, fmt.Errorf("%s: %q is no RE2 pattern: %w", l.key, p, err)
			}
			*l.into = append(*l.into, re)
		}
	}
	return s, nil
}

// split splits at the commas that stand in no braces or brackets of a pattern, and drops what is empty.
func split(list string) []string {
	var out []string
	depth, from := 0, 0
	for i := 0; i <= len(list); i++ {
		if i < len(list) {
			switch list[i] {
			case '\\':
				i++
				continue
			case '{', '[':
				depth++
				continue
			case '}', ']':
				depth--
				continue
			case ',':
				if depth > 0 {
					continue
				}
			default:
				continue
			}
		}
		if s := strings.TrimSpace(list[from:min(i, len(list))]); s != "" {
			out = append(out, s)
		}
		from = i + 1
	}
	return out
}
