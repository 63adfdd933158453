package trace

import (
	_ "embed"
	"regexp"
	"strings"
)

// knownConfigs are the names of Kafka's own configs of brokers, topics, groups and client metrics, of versions 2.1.1, 2.8.2 and 4.4.0, that
// are not of type PASSWORD and have no sensitive word in their names.
//
//go:embed configs.txt
var knownConfigs string

var harmlessConfigs = func() map[string]bool {
	names := map[string]bool{}
	for line := range strings.Lines(knownConfigs) {
		names[strings.TrimSpace(line)] = true
	}
	return names
}()

// configAPIs set or tell configs: CreateTopics, DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.
var configAPIs = map[int16]bool{19: true, 32: true, 33: true, 44: true}

// brokerLogger is the type of the resource whose configs are levels of loggers, named after classes.
const brokerLogger = 8

// sensitiveWords make a value a secret wherever they stand in its name.
var sensitiveWords = []string{"password", "passwd", "secret", "jaas", "key", "token", "credential", "basic.auth"}

func sensitive(name string) bool {
	name = strings.ToLower(name)
	for _, w := range sensitiveWords {
		if strings.Contains(name, w) {
			return true
		}
	}
	return false
}

// secretConfig reports whether a config's value is not shown: of what Kafka does not know, such as a plugin's configs, nobody knows what it
// holds, and brokers call it sensitive too. A listener's own config is judged as the one that holds for all.
func secretConfig(name string) bool {
	if rest, ok := strings.CutPrefix(name, "listener.name."); ok {
		if _, own, ok := strings.Cut(rest, "."); ok {
			return !harmlessConfigs[own]
		}
	}
	return !harmlessConfigs[name]
}

// quotedConfig finds the name of the config whose value a broker quotes when it refuses it.
var quotedConfig = regexp.MustCompile(`for configuration ([^\s:]+)`)

// quotesSecret reports whether what a broker says of a config may have a value in it that is not shown.
func quotesSecret(message string) bool {
	if sensitive(message) {
		return true
	}
	for _, m := range quotedConfig.FindAllStringSubmatch(message, -1) {
		if secretConfig(m[1]) {
			return true
		}
	}
	return false
}
