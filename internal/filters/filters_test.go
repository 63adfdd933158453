package filters

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func parse(t *testing.T, config map[string]string) *Filters {
	t.Helper()
	f, err := Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestDefaults(t *testing.T) {
	f := parse(t, map[string]string{"bootstrap.servers": "a:1"})
	if f.Refresh != 30*time.Second || f.PruneAll {
		t.Errorf("refresh %v, prune all %v", f.Refresh, f.PruneAll)
	}
	if f.Discovers("orders") || f.TopicExcluded("orders") || !f.TopicExcluded("__consumer_offsets") {
		t.Error("by default no topic is discovered, and internal ones are excluded")
	}
	if !f.Group("g") || !f.Group("a\nb") {
		t.Error("by default all groups are synced")
	}
	for key, want := range map[string]bool{
		"retention.ms": true, "max.message.bytes": true, "message.timestamp.before.max.ms": true, "cleanup.policy": true,
		"min.insync.replicas": false, "unclean.leader.election.enable": false, "message.timestamp.type": false, "mirror.name": false,
		"remote.storage.enable": false, "local.retention.ms": false, "leader.replication.throttled.replicas": false,
	} {
		if f.Synced(key) != want {
			t.Errorf("%s synced: %v", key, !want)
		}
	}
}

func TestSelections(t *testing.T) {
	f := parse(t, map[string]string{
		TopicsInclude: "orders, shop-.* ,x{2,3},[a,b]c", TopicsExclude: "shop-private.*,__.*", GroupsInclude: "a|b", GroupsExclude: "b",
	})
	for topic, want := range map[string]bool{
		"orders": true, "orders2": false, "my-orders": false, "shop-a": true, "shop-private-a": false, "xx": true, "xxx": true, "x": false,
		"ac": true, ",c": true, "c": false, "__x": false, "orders\n": false,
	} {
		if f.Discovers(topic) != want {
			t.Errorf("topic %q: %v", topic, !want)
		}
	}
	if !f.TopicExcluded("shop-private") || f.TopicExcluded("a-shop-private") || f.TopicExcluded("never-included") {
		t.Error("excluded is what a pattern of the list matches as a whole")
	}
	// The alternatives of a pattern count as a whole name each: "ax" begins with one and is none.
	for group, want := range map[string]bool{"a": true, "b": false, "ax": false, "xb": false, "c": false} {
		if f.Group(group) != want {
			t.Errorf("group %q: %v", group, !want)
		}
	}
	f = parse(t, map[string]string{TopicsInclude: ".*", TopicsExclude: "", GroupsInclude: ""})
	if !f.Discovers("__x") || f.TopicExcluded("__x") || f.Group("g") {
		t.Error("what is set to nothing is no longer the default")
	}
}

func TestConfigs(t *testing.T) {
	source := map[string]string{"retention.ms": "1", "min.insync.replicas": "2", "remote.storage.enable": "true", "mirror.name": "x",
		"message.timestamp.type": "LogAppendTime"}
	for exclude, want := range map[string][]string{
		"none of these":                        {"message.timestamp.type", "min.insync.replicas", "retention.ms"},
		"":                                     {"message.timestamp.type", "min.insync.replicas", "retention.ms"},
		"retention.ms, message.timestamp.type": {"min.insync.replicas"},
	} {
		f := parse(t, map[string]string{TopicPropertiesExclude: exclude})
		if got := slices.Sorted(maps.Keys(f.Configs(source))); !slices.Equal(got, want) {
			t.Errorf("without %q: %v, want %v", exclude, got, want)
		}
	}
	if got := slices.Sorted(maps.Keys(parse(t, nil).Configs(source))); !slices.Equal(got, []string{"retention.ms"}) {
		t.Errorf("by default: %v", got)
	}
}

func TestNumbersAndWords(t *testing.T) {
	f := parse(t, map[string]string{MetadataRefreshInterval: " 100 ", ACLsPrune: "all"})
	if f.Refresh != 100*time.Millisecond || !f.PruneAll {
		t.Errorf("refresh %v, prune all %v", f.Refresh, f.PruneAll)
	}
	if parse(t, map[string]string{ACLsPrune: "own"}).PruneAll {
		t.Error("own is not all")
	}
	for _, c := range []struct{ key, value, say string }{
		{MetadataRefreshInterval, "99", "from 100 up"}, {MetadataRefreshInterval, "30s", "milliseconds"},
		{MetadataRefreshInterval, "", "milliseconds"},
		{MetadataRefreshInterval, "-100", "from 100 up"}, {MetadataRefreshInterval, "99999999999", "milliseconds"},
		{ACLsPrune, "ALL", "neither own nor all"}, {ACLsPrune, "true", "neither own nor all"},
		{ACLsInclude, "TOPIC;a;FETCH", "is no operation"},
		{TopicsInclude, "a(", "is no RE2 pattern"}, {TopicsExclude, "*", "is no RE2 pattern"}, {GroupsInclude, "(?=a)", "is no RE2 pattern"},
		{GroupsExclude, "[a,b", `"[a,b" is no RE2 pattern`}, {TopicsInclude, "a)|(?:b", "is no RE2 pattern"},
		{TopicsInclude, `a\`, "is no RE2 pattern"},
	} {
		_, err := Parse(map[string]string{c.key: c.value})
		if err == nil || !strings.HasPrefix(err.Error(), c.key+": ") || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s=%s: %v, want it named and %q", c.key, c.value, err, c.say)
		}
	}
}

func TestSplitPatterns(t *testing.T) {
	for list, want := range map[string][]string{
		"": nil, " , ,, ": nil, "a": {"a"}, " a , b ": {"a", "b"},
		"a{1,2},b": {"a{1,2}", "b"}, "a{1,},b": {"a{1,}", "b"}, "a{,b": {"a{", "b"},
		"a{1,b},c": {"a{1", "b}", "c"}, "a},b{1,2}": {"a}", "b{1,2}"},
		"[a,b],c": {"[a,b]", "c"}, "[[,],c": {"[[,]", "c"}, "[],],c": {"[],]", "c"}, "[^],],c": {"[^],]", "c"}, `[\],],c`: {`[\],]`, "c"},
		"[[:alpha:],],c": {"[[:alpha:],]", "c"}, "[[:,],c": {"[[:,]", "c"}, "],a{1,2}": {"]", "a{1,2}"}, `\[,a`: {`\[`, "a"},
		`a\,b,c`: {`a\,b`, "c"}, `a\`: {`a\`}, "[a,b": {"[a,b"}, "[^": {"[^"}, "[": {"["},
	} {
		if got := split(list); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
}

// FuzzParse: what is accepted decides without surprises, and a pattern in a list is the pattern that it would be alone.
func FuzzParse(f *testing.F) {
	f.Add("orders,shop-.*", "__.*", "30000", "own", "orders")
	f.Add("x{2,3},[a,b]c", "[[:alpha:],]", "100", "all", "xx")
	f.Add(`[]a],\,`, `(?i)A|b`, "99", "", "]")
	f.Fuzz(func(t *testing.T, include, exclude, refresh, prune, name string) {
		config := map[string]string{TopicsInclude: include, TopicsExclude: exclude, GroupsInclude: include, GroupsExclude: exclude,
			MetadataRefreshInterval: refresh, ACLsPrune: prune, TopicPropertiesExclude: exclude}
		p, err := Parse(config)
		if err != nil {
			return
		}
		if p.Refresh < MinRefresh || p.PruneAll != (strings.TrimSpace(prune) == "all") {
			t.Errorf("refresh %v from %q, prune all %v from %q", p.Refresh, refresh, p.PruneAll, prune)
		}
		if p.Discovers(name) && p.TopicExcluded(name) || p.Group(name) != p.Discovers(name) {
			t.Error("what is excluded is not included")
		}
		if p.Synced(TieredConfig) {
			t.Error("tiered storage is never synced")
		}
		if list := split(include); len(list) == 1 && list[0] == include && len(split(include+",a")) == 2 {
			re, err := regexp.Compile(include)
			if err != nil {
				t.Fatalf("%q was accepted: %v", include, err)
			}
			re.Longest()
			whole := len(re.FindString(name)) == len(name) && re.MatchString(name)
			if got := matches(p.topics.include, name); whole && !got {
				t.Errorf("%q as a whole matches %q", name, include)
			}
		}
		if _, err := Parse(map[string]string{TopicsInclude: "a," + include}); err != nil {
			t.Errorf("%q is refused in a list: %v", include, err)
		}
	})
}
