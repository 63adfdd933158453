package trace

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// configMessages are all kinds of messages that have configs, with one of a name and a value.
func configMessages(resource kmsg.ConfigResourceType, name, value string) map[string]any {
	created := kmsg.NewPtrCreateTopicsRequest()
	created.Topics = []kmsg.CreateTopicsRequestTopic{{Topic: "t", Configs: []kmsg.CreateTopicsRequestTopicConfig{{Name: name, Value: &value}}}}
	answered := kmsg.NewPtrCreateTopicsResponse()
	answered.Topics = []kmsg.CreateTopicsResponseTopic{{Topic: "t", Configs: []kmsg.CreateTopicsResponseTopicConfig{{Name: name, Value: &value}}}}
	described := kmsg.NewPtrDescribeConfigsResponse()
	described.Resources = []kmsg.DescribeConfigsResponseResource{{ResourceType: resource,
		Configs: []kmsg.DescribeConfigsResponseResourceConfig{{Name: name, Value: &value}}}}
	synonym := kmsg.NewPtrDescribeConfigsResponse()
	synonyms := []kmsg.DescribeConfigsResponseResourceConfigConfigSynonym{{Name: name, Value: &value}}
	synonym.Resources = []kmsg.DescribeConfigsResponseResource{{ResourceType: resource,
		Configs: []kmsg.DescribeConfigsResponseResourceConfig{{Name: "retention.ms", ConfigSynonyms: synonyms}}}}
	altered := kmsg.NewPtrAlterConfigsRequest()
	altered.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: resource, Configs: []kmsg.AlterConfigsRequestResourceConfig{{Name: name, Value: &value}}}}
	incremental := kmsg.NewPtrIncrementalAlterConfigsRequest()
	incremental.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: resource,
		Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: name, Value: &value}}}}
	all := map[string]any{"DescribeConfigs": described, "synonym": synonym, "AlterConfigs": altered, "IncrementalAlterConfigs": incremental}
	if resource == kmsg.ConfigResourceTypeTopic {
		all["CreateTopics"], all["CreateTopics reply"] = created, answered
	}
	return all
}

// Values are shown of configs that are known not to be secrets, in every message that has some; nothing of what only a plugin knows.
func TestConfigsThatAreShown(t *testing.T) {
	topic, broker, loggers := kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeBroker, kmsg.ConfigResourceTypeBrokerLogger
	for _, tt := range []struct {
		resource kmsg.ConfigResourceType
		name     string
		shown    bool
	}{
		{topic, "retention.ms", true}, {topic, "cleanup.policy", true}, {topic, "message.format.version", true},
		{topic, "follower.replication.throttled.replicas", true}, {topic, "confluent.placement.constraints", false}, {topic, "Retention.ms", false},
		{topic, "", false},
		{broker, "log.retention.hours", true}, {broker, "advertised.listeners", true}, {broker, "zookeeper.connect", true},
		{broker, "leader.replication.throttled.rate", true}, {broker, "listener.name.client.max.connections", true},
		{broker, "listener.name.client.ssl.keystore.certificate.chain", false},
		{broker, "listener.name.client.scram-sha-256.sasl.jaas.config", false},
		{broker, "listener.name.client", false}, {broker, "listener.name.client.my.plugin", false},
		{broker, "my.plugin", false}, {broker, "ldap.bind.pass", false}, {broker, "ssl.truststore.certificates", false}, {broker, "sasl.jaas.config", false},
		{broker, "ssl.keystore.location", false}, // by its name, although brokers show it
		{kmsg.ConfigResourceTypeGroupConfig, "consumer.session.timeout.ms", true}, {kmsg.ConfigResourceTypeClientMetrics, "match", true},
		{loggers, "kafka.server.KafkaApis", true}, {loggers, "my.token.Reader", false}, {broker, "kafka.server.KafkaApis", false},
	} {
		for kind, m := range configMessages(tt.resource, tt.name, secret) {
			text := string(appendJSON(nil, Render(m)))
			if strings.Contains(text, secret) != tt.shown || strings.Contains(text, string(hidden)) == tt.shown {
				t.Errorf("%s of %v %q, want it shown: %v\n%s", kind, tt.resource, tt.name, tt.shown, text)
			}
		}
	}
	if secretConfig("min.insync.replicas") || len(harmlessConfigs) < 400 {
		t.Errorf("%d configs are known", len(harmlessConfigs))
	}
}

// What a broker says of a value that it refuses quotes it.
func TestRefusalsOfConfigs(t *testing.T) {
	for message, shown := range map[string]bool{
		"Invalid value " + secret + " for configuration retention.ms: Not a number of type LONG": true,
		"Invalid value " + secret + " for configuration my.plugin: it is no good":                false,
		"Invalid value " + secret + " for configuration ssl.key.password":                        false,
		"Topic '" + secret + "' already exists.":                                                 true,
		"Unknown topic config name: " + secret:                                                   true,
	} {
		altered := kmsg.NewPtrIncrementalAlterConfigsResponse()
		altered.Resources = []kmsg.IncrementalAlterConfigsResponseResource{{ErrorCode: 40, ErrorMessage: &message}}
		created := kmsg.NewPtrCreateTopicsResponse()
		created.Topics = []kmsg.CreateTopicsResponseTopic{{ErrorCode: 40, ErrorMessage: &message}}
		for _, m := range []any{altered, created} {
			if text := string(appendJSON(nil, Render(m))); strings.Contains(text, secret) != shown {
				t.Errorf("%T, %s, want it shown: %v: %s", m, message, shown, text)
			}
		}
	}
}
