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

	"kmirror/internal/coordinator"
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

	topics, groups    selection
	acls              []ACLRule
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
			return nil, fmt.Errorf("%s: %q is not a number of milliseconds from %d up", MetadataRefreshInterval, v,
				MinRefresh.Milliseconds())
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
	rules := []string{anything}
	if v, ok := config[ACLsInclude]; ok {
		rules = splitRules(v)
	}
	for _, r := range rules {
		rule, err := ParseACLRule(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", ACLsInclude, err)
		}
		f.acls = append(f.acls, rule)
	}
	return f, nil
}

// Discovers reports whether a topic of the source is to be mirrored without having been started by anybody.
func (f *Filters) Discovers(topic string) bool { return f.topics.has(topic) }

// DiscoversAny reports whether any topic is to be mirrored without having been started.
func (f *Filters) DiscoversAny() bool { return len(f.topics.include) > 0 }

// TopicExcluded reports whether a topic may not be mirrored, also where it is already.
func (f *Filters) TopicExcluded(topic string) bool { return matches(f.topics.exclude, topic) }

// InternalTopic reports whether a topic is a cluster's own bookkeeping, which is never mirrored, whatever the patterns say. Brokers name
// some by a flag of their own.
func InternalTopic(topic string, flagged bool) bool {
	return flagged || topic == "__mirror_state" || topic == "__cluster_metadata"
}

// Group reports whether offsets of a group are synced.
func (f *Filters) Group(group string) bool { return f.groups.has(group) }

// ACL reports whether an ACL of the source is to be at the destination.
func (f *Filters) ACL(a coordinator.ACL) bool {
	return slices.ContainsFunc(f.acls, func(r ACLRule) bool { return r.Match(a) })
}

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
			if _, err := regexp.Compile(p); err != nil { // what it lacks, such as a parenthesis, must not come from what follows
				return s, fmt.Errorf("%s: %q is no RE2 pattern: %w", l.key, p, err)
			}
			re, err := regexp.Compile(`^(?s:` + p + `)$`) // a dot is any character: ids of groups may hold line breaks
			if err != nil {
				return s, fmt.Errorf("%s: %q is no RE2 pattern: %w", l.key, p, err)
			}
			*l.into = append(*l.into, re)
		}
	}
	return s, nil
}

// repetition is what of a pattern holds a comma besides classes.
var repetition = regexp.MustCompile(`^\{[0-9]+,[0-9]*\}`)

// split splits at the commas that belong to no class ([a,b]), repetition ({1,2}) or escape (\,) of a pattern, and drops what is empty.
func split(list string) []string {
	var out []string
	add := func(s string) {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	from := 0
	for i := 0; i < len(list); i++ {
		switch list[i] {
		case '\\':
			i++
		case '{':
			i += max(len(repetition.FindString(list[i:]))-1, 0)
		case '[':
			i += class(list[i:])
		case ',':
			add(list[from:i])
			from = i + 1
		}
	}
	add(list[from:])
	return out
}

// class returns where the class of characters ends that s begins with: a first ] is one of them, and so are those of [:alpha:].
func class(s string) int {
	i := 1
	if strings.HasPrefix(s[i:], "^") {
		i++
	}
	for first := i; i < len(s); i++ {
		switch {
		case s[i] == '\\':
			i++
		case s[i] == ']' && i > first:
			return i
		case strings.HasPrefix(s[i:], "[:"):
			if end := strings.Index(s[i+2:], ":]"); end >= 0 {
				i += end + 3
			}
		}
	}
	return len(s)
}
