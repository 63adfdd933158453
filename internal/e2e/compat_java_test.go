package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// early says why share groups are not tried.
var early = map[string]string{testkafka.Oldest: "share groups are early access there, and off"}

// javaClients are those that run in the JVM of tools, in this order.
func javaClients() []compatClient {
	return append([]compatClient{
		{name: "kafka-console-producer, kafka-console-consumer",
			did: "300 records with keys, idempotent; group protocol `classic`: records, offsets, commit",
			run: func(b *compatBed, t *testing.T) error { return b.consoles(t, "classic") }},
		{name: "the same, KIP-848", did: "group protocol `consumer`: records, offsets, commit, the group's type",
			run: func(b *compatBed, t *testing.T) error { return b.consoles(t, "consumer") }},
		{name: "kafka-console-share-consumer, kafka-share-groups",
			did: "300 records by a share group; its state, start offsets and deletion", missing: early,
			run: (*compatBed).shareGroups},
		{name: "Java client, transactions",
			did: "read, write and commit offsets in transactions, one aborted, one committed: what is visible, the group's offsets",
			run: (*compatBed).javaTransactions},
		{name: "kafka-producer-perf-test", did: "5,000 records with lz4; 5,000 in transactions of 200 ms: what is visible",
			run: (*compatBed).producerPerf},
		{name: "kafka-consumer-perf-test", did: "reads the 5,000 records", run: (*compatBed).consumerPerf},
		{name: "kafka-share-consumer-perf-test", did: "reads the 5,000 records by a share group", missing: early,
			run: (*compatBed).sharePerf},
		{name: "kafka-e2e-latency", did: "100 records there and back", run: (*compatBed).latency},
		{name: "kafka-verifiable-producer, kafka-verifiable-consumer", did: "200 records, `acks=all`: each is acknowledged and read",
			run: (*compatBed).verifiable},
	}, adminTools()...)
}

// withProperties is the users' properties file with further lines.
func (b *compatBed) withProperties(name string, lines ...string) (string, error) {
	text, err := os.ReadFile(b.users)
	if err != nil {
		return "", err
	}
	return b.file(name, string(text)+strings.Join(lines, "\n")+"\n")
}

// consolesWrite makes a topic and has the console producer write to it.
func (b *compatBed) consolesWrite(t *testing.T, topic string) error {
	createTopic(t, b.dst, topic, 3, nil)
	_, err := b.tool("ConsoleProducer", numberedLines(compatCount), "--bootstrap-server", b.addr, "--topic", topic,
		b.option("--producer.config"), b.users,
		b.option("--reader"), "parse.key=true", b.option("--reader"), "key.separator=:", "--compression-codec", "gzip")
	if err == nil {
		err = b.ends(t, topic, compatCount)
	}
	return err
}

func (b *compatBed) consoles(t *testing.T, protocol string) error {
	topic, group := "console-"+protocol, "console-"+protocol
	if err := b.consolesWrite(t, topic); err != nil {
		return err
	}
	config, err := b.withProperties(protocol+".properties", "group.protocol="+protocol)
	if err != nil {
		return err
	}
	out, err := b.tool("ConsoleConsumer", "", "--bootstrap-server", b.addr, "--topic", topic, "--group", group, "--from-beginning",
		"--max-messages", strconv.Itoa(compatCount), "--timeout-ms", "30000", b.option("--consumer.config"), config,
		b.option("--formatter"), "print.key=true", b.option("--formatter"), "print.partition=true", b.option("--formatter"),
		"print.offset=true")
	if err != nil {
		return err
	}
	got := map[tpOffset]string{}
	for line := range strings.Lines(out) {
		var at tpOffset
		var key, value string
		if n, _ := fmt.Sscanf(line, "Partition:%d\tOffset:%d\t%s\t%s", &at.partition, &at.offset, &key, &value); n == 4 {
			got[at] = key + "=" + value
		}
	}
	if err := whole(got, compatCount); err != nil {
		return fmt.Errorf("%w in\n%.1000s", err, out)
	}
	if err := b.committed(t, group, compatCount); err != nil {
		return err
	}
	return b.groupType(t, group, protocol)
}

// groupType wants a group to be of a type, at the cluster itself.
func (b *compatBed) groupType(t *testing.T, group, kind string) error {
	for _, shard := range client(t, b.dst).RequestSharded(timeout(t, toolLimit), kmsg.NewPtrListGroupsRequest()) {
		if shard.Err != nil {
			return shard.Err
		}
		for _, g := range shard.Resp.(*kmsg.ListGroupsResponse).Groups {
			if g.Group == group && strings.EqualFold(g.GroupType, kind) {
				return nil
			}
		}
	}
	return fmt.Errorf("no group %s of type %s", group, kind)
}

func (b *compatBed) shareGroups(t *testing.T) error {
	const topic, group = "console-share", "console-share"
	if err := b.consolesWrite(t, topic); err != nil {
		return err
	}
	err := b.asks(t, ask{"ConfigCommand", "--alter --entity-type groups --entity-name " + group +
		" --add-config share.auto.offset.reset=earliest --command-config " + b.admins, nil})
	if err != nil {
		return err
	}
	out, err := b.tool("ConsoleShareConsumer", "", "--bootstrap-server", b.addr, "--topic", topic, "--group", group, "--max-messages",
		strconv.Itoa(compatCount),
		"--timeout-ms", "30000", "--command-config", b.users)
	if err != nil {
		return err
	}
	if n := strings.Count(out, "v"); n < compatCount {
		return fmt.Errorf("%d records of %d", n, compatCount)
	}
	config := " --command-config " + b.admins
	return b.asks(t,
		ask{"ShareGroupCommand", "--list" + config, []string{group}},
		ask{"ShareGroupCommand", "--describe --state --group " + group + config, []string{group, "Empty"}},
		ask{"ShareGroupCommand", "--describe --offsets --group " + group + config, []string{topic}},
		ask{"ShareGroupCommand", "--delete --group " + group + config, []string{"successful"}})
}

func (b *compatBed) javaTransactions(t *testing.T) error {
	const in, out = "tx-in", "tx-out"
	if err := b.consolesWrite(t, in); err != nil {
		return err
	}
	createTopic(t, b.dst, out, 3, nil)
	if _, err := b.tool("Tools$Transactions", "", b.addr, b.users, in, out, strconv.Itoa(compatCount)); err != nil {
		return err
	}
	if err := b.visible(t, out, "committed", compatCount); err != nil {
		return err
	}
	return b.committed(t, out+"-readers", compatCount)
}

func (b *compatBed) producerPerf(t *testing.T) error {
	common := []string{"--num-records", "5000", "--record-size", "500", "--bootstrap-server", b.addr, b.option("--producer.config"),
		b.users}
	for _, try := range []struct {
		topic string
		args  []string
	}{
		{"perf", []string{"--throughput", "-1"}},
		{"perf-tx", []string{"--throughput", "4000", "--transactional-id", "perf-tx", "--transaction-duration-ms", "200"}},
	} {
		createTopic(t, b.dst, try.topic, 3, map[string]string{"compression.type": "lz4"})
		args := append(append([]string{"--topic", try.topic}, try.args...), common...)
		if b.version == testkafka.Oldest { // wants the servers among the properties
			args = append(args, "--producer-props", "bootstrap.servers="+b.addr)
			args = without(args, "--bootstrap-server", b.addr)
		}
		out, err := b.tool("ProducerPerformance", "", args...)
		if err == nil {
			err = contains(out, "5000 records sent")
		}
		if err == nil {
			err = b.visible(t, try.topic, "", 5000)
		}
		if err != nil {
			return err
		}
	}
	return b.ends(t, "perf", 5000)
}

// without returns args less two that follow one another.
func without(args []string, name, value string) (out []string) {
	for i := 0; i < len(args); i++ {
		if args[i] == name && args[i+1] == value {
			i++
			continue
		}
		out = append(out, args[i])
	}
	return out
}

// perfReads has a tool read the 5,000 records and checks the number that it prints as a table of comma separated values.
func (b *compatBed) perfReads(tool string, args ...string) error {
	out, err := b.tool(tool, "", append([]string{"--bootstrap-server", b.addr, "--topic", "perf", b.option("--messages"), "5000"},
		args...)...)
	if err != nil {
		return err
	}
	rows := strings.Split(strings.TrimSpace(out), "\n")
	cells := strings.Split(rows[len(rows)-1], ",")
	for i, name := range strings.Split(rows[max(0, len(rows)-2)], ",") {
		if name = strings.TrimSpace(name); (name == "data.consumed.in.nMsg" || name == "nMsg") && i < len(cells) &&
			strings.TrimSpace(cells[i]) == "5000" {
			return nil
		}
	}
	return fmt.Errorf("%s: not 5000 records:\n%s", tool, out)
}

func (b *compatBed) consumerPerf(t *testing.T) error {
	if err := b.perfReads("ConsumerPerformance", "--group", "perf", b.option("--consumer.config"), b.users); err != nil {
		return err
	}
	return b.committed(t, "perf", 5000)
}

func (b *compatBed) sharePerf(t *testing.T) error {
	err := b.asks(t, ask{"ConfigCommand",
		"--alter --entity-type groups --entity-name perf-share --add-config share.auto.offset.reset=earliest --command-config " +
			b.admins, nil})
	if err != nil {
		return err
	}
	return b.perfReads("ShareConsumerPerformance", "--group", "perf-share", "--command-config", b.users)
}

func (b *compatBed) latency(t *testing.T) error {
	createTopic(t, b.dst, "latency", 1, nil)
	args := []string{b.addr, "latency", "100", "all", "100", b.users}
	if b.version != testkafka.Oldest {
		args = []string{"--bootstrap-server", b.addr, "--topic", "latency", "--num-records", "100", "--producer-acks", "all",
			"--record-size", "100", "--command-config", b.users}
	}
	out, err := b.tool("EndToEndLatency", "", args...)
	if err == nil {
		err = contains(out, "Percentiles: 50th")
	}
	if err == nil {
		err = b.ends(t, "latency", 100)
	}
	return err
}

func (b *compatBed) verifiable(t *testing.T) error {
	createTopic(t, b.dst, "verifiable", 3, nil)
	out, err := b.tool("VerifiableProducer", "", "--bootstrap-server", b.addr, "--topic", "verifiable", "--max-messages", "200",
		"--acks", "-1",
		b.option("--producer.config"), b.users)
	if err != nil {
		return err
	}
	acked := map[string]bool{}
	for line := range strings.Lines(out) {
		var said struct{ Name, Value string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Name == "producer_send_success" {
			acked[said.Value] = true
		}
	}
	if len(acked) != 200 {
		return fmt.Errorf("%d records were acknowledged, want 200", len(acked))
	}
	if out, err = b.tool("VerifiableConsumer", "", "--bootstrap-server", b.addr, "--topic", "verifiable", "--group-id", "verifiable",
		"--max-messages", "200",
		"--verbose", "--reset-policy", "earliest", b.option("--consumer.config"), b.users); err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		var said struct{ Name, Value string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Name == "record_data" {
			delete(acked, said.Value)
		}
	}
	if len(acked) != 0 {
		return fmt.Errorf("%d records were not read: %v", len(acked), acked)
	}
	return b.committed(t, "verifiable", 200)
}

// open begins a transaction past kmirror and leaves it open.
func (b *compatBed) open(t *testing.T, topic, id string) (*kgo.Client, error) {
	cl := client(t, b.dst, kgo.TransactionalID(id), kgo.TransactionTimeout(10*toolLimit))
	if err := cl.BeginTransaction(); err != nil {
		return nil, err
	}
	return cl, cl.ProduceSync(timeout(t, toolLimit), &kgo.Record{Topic: topic, Value: []byte("open")}).FirstErr()
}
