package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// adminTools are the tools of administrators, all on Kafka's AdminClient.
func adminTools() []compatClient {
	return []compatClient{
		{name: "kafka-topics", did: "create, describe, alter, list, delete", run: (*compatBed).topicsTool},
		{name: "kafka-configs", did: "of a topic, a broker, a group, a user's quota, a SCRAM user who logs in then",
			run: (*compatBed).configsTool},
		{name: "kafka-consumer-groups, kafka-groups", did: "list, describe, reset offsets, delete offsets, delete",
			run: (*compatBed).groupsTool},
		{name: "kafka-acls", did: "add, list, remove", run: (*compatBed).aclsTool},
		{name: "kafka-reassign-partitions", did: "generate, execute with a throttle, list, verify: the replicas have moved",
			run: (*compatBed).reassignTool},
		{name: "kafka-leader-election", did: "preferred: the leader has moved", run: (*compatBed).electionTool},
		{name: "kafka-transactions", did: "list, describe, describe producers, find hanging ones; abort of an open one: it is gone",
			run: (*compatBed).transactionsTool},
		{name: "kafka-features", did: "describe; an upgrade as a dry run", run: (*compatBed).featuresTool},
		{name: "kafka-log-dirs", did: "describe, of every broker", run: (*compatBed).logDirsTool},
		{name: "kafka-delete-records, kafka-get-offsets", did: "delete; first and last offsets then", run: (*compatBed).recordsTool},
		{name: "kafka-broker-api-versions, kafka-cluster", did: "every node answers at the gateway's address; cluster id, endpoints",
			run: (*compatBed).clusterTools},
		{name: "kafka-metadata-quorum", did: "describe status and replication", run: (*compatBed).quorumTool},
		{name: "kafka-client-metrics", did: "alter, describe, delete", run: (*compatBed).metricsTool},
		{name: "kafka-delegation-tokens", did: "create, describe, renew, expire", run: (*compatBed).tokensTool},
	}
}

func (b *compatBed) topicsTool(t *testing.T) error {
	config := " --command-config " + b.admins
	if err := b.asks(t,
		ask{"TopicCommand", "--create --topic by-tool --partitions 3 --replication-factor 2 --config retention.ms=3600000" + config,
			[]string{"Created topic by-tool"}},
		ask{"TopicCommand", "--describe --topic by-tool" + config, []string{"PartitionCount: 3", "ReplicationFactor: 2",
			"retention.ms=3600000"}},
		ask{"TopicCommand", "--alter --topic by-tool --partitions 4" + config, nil},
		ask{"TopicCommand", "--describe --topic by-tool" + config, []string{"PartitionCount: 4", "Partition: 3"}},
		ask{"TopicCommand", "--list" + config, []string{"by-tool"}}); err != nil {
		return err
	}
	if err := b.ends(t, "by-tool", 0); err != nil {
		return err
	}
	if err := b.asks(t, ask{"TopicCommand", "--delete --topic by-tool" + config, nil}); err != nil {
		return err
	}
	eventually(t, toolLimit/2, "the topic to be gone", func() error {
		topics, err := kadm.NewClient(client(t, b.dst)).ListTopics(timeout(t, toolLimit))
		if err == nil && topics.Has("by-tool") {
			err = fmt.Errorf("it is there")
		}
		return err
	})
	return nil
}

func (b *compatBed) configsTool(t *testing.T) error {
	createTopic(t, b.dst, "configured", 1, nil)
	config := " --command-config " + b.admins
	if err := b.asks(t,
		ask{"ConfigCommand", "--alter --entity-type topics --entity-name configured --add-config max.message.bytes=123456" + config,
			nil},
		ask{"ConfigCommand", "--describe --entity-type topics --entity-name configured" + config,
			[]string{"max.message.bytes=123456"}},
		ask{"ConfigCommand", "--alter --entity-type brokers --entity-name 2 --add-config background.threads=5" + config, nil},
		ask{"ConfigCommand", "--describe --entity-type brokers --entity-name 2" + config, []string{"background.threads=5"}},
		ask{"ConfigCommand", "--alter --entity-type groups --entity-name configured --add-config consumer.session.timeout.ms=50000" +
			config, nil},
		ask{"ConfigCommand", "--describe --entity-type groups --entity-name configured" + config,
			[]string{"consumer.session.timeout.ms=50000"}},
		ask{"ConfigCommand", "--alter --entity-type users --entity-name quota --add-config producer_byte_rate=1000000" + config, nil},
		ask{"ConfigCommand", "--describe --entity-type users --entity-name quota" + config, []string{"producer_byte_rate=1000000"}},
		ask{"ConfigCommand", "--alter --entity-type users --entity-name by-tool --add-config SCRAM-SHA-512=[iterations=4096,password=by-tool-secret]" + config, nil},
		ask{"ConfigCommand", "--describe --entity-type users --entity-name by-tool" + config,
			[]string{"SCRAM-SHA-512=iterations=4096"}}); err != nil {
		return err
	}
	if got := topicConfigs(t, b.dst, "configured")["max.message.bytes"]; got != "123456" {
		return fmt.Errorf("the topic's max.message.bytes is %q", got)
	}
	login, err := b.dst.Security().WriteProperties("by-tool.properties", b.dst.Security().Properties("by-tool"))
	if err != nil {
		return err
	}
	return b.asks(t, ask{"TopicCommand", "--list --command-config " + login, nil})
}

func (b *compatBed) groupsTool(t *testing.T) error {
	createTopic(t, b.dst, "grouped", 2, nil)
	produce(t, client(t, b.dst), "grouped", 2, 50, 10)
	adm := kadm.NewClient(client(t, b.dst))
	offsets := kadm.Offsets{}
	offsets.AddOffset("grouped", 0, 20, -1)
	offsets.AddOffset("grouped", 1, 30, -1)
	if err := adm.CommitAllOffsets(timeout(t, toolLimit), "grouped", offsets); err != nil {
		return err
	}
	config := " --command-config " + b.admins
	if err := b.asks(t,
		ask{"ConsumerGroupCommand", "--list" + config, []string{"grouped"}},
		ask{"GroupsCommand", "--list" + config, []string{"grouped"}},
		ask{"ConsumerGroupCommand", "--describe --group grouped" + config, []string{"grouped grouped 0 20 50 30",
			"grouped grouped 1 30 50 20"}},
		ask{"ConsumerGroupCommand", "--describe --state --group grouped" + config, []string{"Empty"}},
		ask{"ConsumerGroupCommand", "--reset-offsets --to-offset 10 --group grouped --topic grouped --execute" + config,
			[]string{"grouped 0 10", "grouped 1 10"}}); err != nil {
		return err
	}
	if err := b.committed(t, "grouped", 20); err != nil {
		return err
	}
	if err := b.asks(t,
		ask{"ConsumerGroupCommand", "--delete-offsets --group grouped --topic grouped:1" + config,
			[]string{"Successful"}}); err != nil {
		return err
	}
	if err := b.committed(t, "grouped", 10); err != nil {
		return err
	}
	return b.asks(t, ask{"ConsumerGroupCommand", "--delete --group grouped" + config, []string{"successful"}})
}

func (b *compatBed) aclsTool(t *testing.T) error {
	config := " --command-config " + b.admins
	if err := b.asks(t,
		ask{"AclCommand", "--add --allow-principal User:by-tool --operation Read --topic by-tool --resource-pattern-type prefixed" +
			config, []string{"User:by-tool"}},
		ask{"AclCommand", "--list --principal User:by-tool" + config, []string{"operation=READ, permissionType=ALLOW"}}); err != nil {
		return err
	}
	for _, addr := range b.dst.Bootstrap(testkafka.ClientListener) {
		eventually(t, toolLimit/2, "the ACL at "+addr, func() error { return knowsACLs(t, b.dst, addr, "by-tool", 1) })
	}
	if err := b.asks(t,
		ask{"AclCommand", "--remove --force --allow-principal User:by-tool --operation Read --topic by-tool --resource-pattern-type prefixed" + config, nil}); err != nil {
		return err
	}
	out, err := b.tool("AclCommand", "", "--bootstrap-server", b.addr, "--command-config", b.admins, "--list", "--principal",
		"User:by-tool")
	if err == nil && strings.Contains(out, "operation=READ") {
		err = fmt.Errorf("the ACL is still there: %s", out)
	}
	return err
}

// placed makes a topic of one partition with replicas on two brokers, the first of which leads.
func (b *compatBed) placed(t *testing.T, topic string) error {
	plan := fmt.Sprintf("--create --topic %s --replica-assignment 1:2 --command-config %s", topic, b.admins)
	if err := b.asks(t, ask{"TopicCommand", plan, nil}); err != nil {
		return err
	}
	return b.ends(t, topic, 0)
}

// moved waits until a partition has replicas in this order, all in sync, and a leader; at the cluster itself.
func (b *compatBed) moved(t *testing.T, topic string, leader int32, replicas ...int32) {
	t.Helper()
	eventually(t, toolLimit/2, topic+" to be moved", func() error {
		topics, err := kadm.NewClient(client(t, b.dst)).ListTopics(timeout(t, toolLimit), topic)
		if err != nil {
			return err
		}
		p := topics[topic].Partitions[0]
		if p.Leader != leader || !slices.Equal(p.Replicas, replicas) || len(p.ISR) != len(replicas) {
			return fmt.Errorf("leader %d, replicas %v, in sync %v", p.Leader, p.Replicas, p.ISR)
		}
		return nil
	})
}

func reassignment(topic, replicas string) string {
	return fmt.Sprintf(`{"version":1,"partitions":[{"topic":%q,"partition":0,"replicas":[%s]}]}`, topic, replicas)
}

func (b *compatBed) reassignTool(t *testing.T) error {
	if err := b.placed(t, "moves"); err != nil {
		return err
	}
	topics, err := b.file("topics.json", `{"version":1,"topics":[{"topic":"moves"}]}`)
	if err != nil {
		return err
	}
	plan, err := b.file("plan.json", reassignment("moves", "3,2"))
	if err != nil {
		return err
	}
	config := " --command-config " + b.admins
	if err := b.asks(t,
		ask{"ReassignPartitionsCommand", "--generate --broker-list 1,2,3 --topics-to-move-json-file " + topics + config,
			[]string{`"topic":"moves"`}},
		ask{"ReassignPartitionsCommand", "--execute --throttle 10000000 --reassignment-json-file " + plan + config,
			[]string{"Successfully started partition reassignment"}},
		ask{"ReassignPartitionsCommand", "--list" + config, nil},
		ask{"ReassignPartitionsCommand", "--verify --reassignment-json-file " + plan + config,
			[]string{"Reassignment of partition moves-0 is completed", "Clearing topic-level throttles"}}); err != nil {
		return err
	}
	b.moved(t, "moves", 3, 3, 2)
	return nil
}

func (b *compatBed) electionTool(t *testing.T) error {
	if err := b.placed(t, "elects"); err != nil {
		return err
	}
	plan, err := b.file("elect.json", reassignment("elects", "2,1"))
	if err != nil {
		return err
	}
	if err := b.asks(t, ask{"ReassignPartitionsCommand", "--execute --reassignment-json-file " + plan + " --command-config " +
		b.admins, []string{"Successfully started"}}); err != nil {
		return err
	}
	b.moved(t, "elects", 1, 2, 1)
	elect := fmt.Sprintf("--election-type preferred --topic elects --partition 0 %s %s", b.option("--admin.config"), b.admins)
	if err := b.asks(t, ask{"LeaderElectionCommand", elect,
		[]string{"Successfully completed leader election (PREFERRED)"}}); err != nil {
		return err
	}
	b.moved(t, "elects", 2, 2, 1)
	return nil
}

func (b *compatBed) transactionsTool(t *testing.T) error {
	createTopic(t, b.dst, "hangs", 1, nil)
	cl, err := b.open(t, "hangs", "left-open")
	if err != nil {
		return err
	}
	config := "--command-config " + b.admins + " "
	if err := b.asks(t,
		ask{"TransactionsCommand", config + "list", []string{"left-open", "Ongoing"}},
		ask{"TransactionsCommand", config + "describe --transactional-id left-open", []string{"left-open", "Ongoing", "hangs-0"}},
		ask{"TransactionsCommand", config + "describe-producers --topic hangs --partition 0",
			[]string{"CurrentTransactionStartOffset"}},
		ask{"TransactionsCommand", config + "find-hanging --broker-id 1", nil},
		ask{"TransactionsCommand", config + "abort --topic hangs --partition 0 --start-offset 0", nil}); err != nil {
		return err
	}
	stable, err := kadm.NewClient(client(t, b.dst)).ListCommittedOffsets(timeout(t, toolLimit), "hangs")
	if err != nil {
		return err
	}
	if at, _ := stable.Lookup("hangs", 0); at.Offset != 2 {
		return fmt.Errorf("the stable offset is %d, want 2: the record and the marker", at.Offset)
	}
	cl.EndTransaction(timeout(t, toolLimit), kgo.TryAbort) // what the coordinator knows of it ends, too
	return nil
}

func (b *compatBed) featuresTool(t *testing.T) error {
	config := "--command-config " + b.admins + " "
	return b.asks(t,
		ask{"FeatureCommand", config + "describe", []string{"Feature: metadata.version", "Feature: group.version",
			"Feature: transaction.version"}},
		ask{"FeatureCommand", config + "upgrade --feature transaction.version=2 --dry-run",
			[]string{"transaction.version can be upgraded to 2."}})
}

func (b *compatBed) logDirsTool(t *testing.T) error {
	return b.asks(t, ask{"LogDirsCommand", "--describe --topic-list perf --command-config " + b.admins,
		[]string{`"broker":1`, `"broker":2`, `"broker":3`, `"partition":"perf-0"`}})
}

func (b *compatBed) recordsTool(t *testing.T) error {
	createTopic(t, b.dst, "trimmed", 1, nil)
	produce(t, client(t, b.dst), "trimmed", 1, 100, 10)
	plan, err := json.Marshal(map[string]any{"version": 1, "partitions": []any{map[string]any{"topic": "trimmed", "partition": 0,
		"offset": 40}}})
	if err != nil {
		return err
	}
	file, err := b.file("trim.json", string(plan))
	if err != nil {
		return err
	}
	config := " --command-config " + b.admins
	if err := b.asks(t,
		ask{"DeleteRecordsCommand", "--offset-json-file " + file + config, []string{"partition: trimmed-0 low_watermark: 40"}},
		ask{"GetOffsetShell", "--topic trimmed --time -2" + config, []string{"trimmed:0:40"}},
		ask{"GetOffsetShell", "--topic trimmed --time -1" + config, []string{"trimmed:0:100"}}); err != nil {
		return err
	}
	starts, err := kadm.NewClient(client(t, b.dst)).ListStartOffsets(timeout(t, toolLimit), "trimmed")
	if err != nil {
		return err
	}
	if at, _ := starts.Lookup("trimmed", 0); at.Offset != 40 {
		return fmt.Errorf("the topic begins at %d", at.Offset)
	}
	return nil
}

func (b *compatBed) clusterTools(t *testing.T) error {
	var nodes, endpoints []string
	host, first := b.gatewayAt()
	for i, id := range []int{1, 2, 3, 9001, 9002} {
		nodes = append(nodes, fmt.Sprintf("%s:%d (id: %d rack: null", host, first+1+i, id))
		endpoints = append(endpoints, fmt.Sprintf("%d %s %d", id, host, first+1+i))
	}
	config := " " + b.option("--config") + " " + b.admins
	return b.asks(t,
		ask{"BrokerApiVersionsCommand", "--command-config " + b.admins, append(nodes, "Produce(0)")},
		ask{"ClusterTool", "cluster-id @" + config, []string{"Cluster ID: " + b.dst.ID()}},
		ask{"ClusterTool", "list-endpoints @" + config, endpoints})
}

func (b *compatBed) quorumTool(t *testing.T) error {
	config := "--command-config " + b.admins + " "
	return b.asks(t,
		ask{"MetadataQuorumCommand", config + "describe --status", []string{"LeaderId: 1", b.dst.ID()}},
		ask{"MetadataQuorumCommand", config + "describe --replication", []string{"Leader", "Observer"}})
}

func (b *compatBed) metricsTool(t *testing.T) error {
	config := " --command-config " + b.admins
	return b.asks(t,
		ask{"ClientMetricsCommand", "--alter --name by-tool --metrics org.apache.kafka.producer. --interval 10000" + config, nil},
		ask{"ClientMetricsCommand", "--describe --name by-tool" + config, []string{"interval.ms=10000"}},
		ask{"ClientMetricsCommand", "--delete --name by-tool" + config, nil})
}

func (b *compatBed) tokensTool(t *testing.T) error {
	config := []string{"--bootstrap-server", b.addr, "--command-config", b.admins}
	out, err := b.tool("DelegationTokenCommand", "", append(config, "--create", "--max-life-time-period", "-1", "--renewer-principal",
		"User:"+compatUser)...)
	if err != nil {
		return err
	}
	hmac := ""
	for _, word := range strings.Fields(out) {
		if len(word) > 60 && strings.HasSuffix(word, "=") {
			hmac = word
		}
	}
	if hmac == "" {
		return fmt.Errorf("no token in %s", out)
	}
	tail := " --hmac " + hmac + " --command-config " + b.admins
	return b.asks(t,
		ask{"DelegationTokenCommand", "--describe --owner-principal User:" + testkafka.AdminUser + " --command-config " + b.admins,
			[]string{hmac, "User:" + testkafka.AdminUser}},
		ask{"DelegationTokenCommand", "--renew --renew-time-period -1" + tail, []string{"Completed renew"}},
		ask{"DelegationTokenCommand", "--expire --expiry-time-period -1" + tail, []string{"Completed expire"}})
}
