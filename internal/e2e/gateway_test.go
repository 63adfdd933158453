package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// gatewayPorts is what a gateway in front of brokers 1 to 3 and node ids 9001 and 9002 takes.
const gatewayPorts = 6

// gatewayYAML is the part of a configuration for such a gateway, and where it begins.
func gatewayYAML(tb testing.TB, host string) (yaml string, first int) {
	tb.Helper()
	first = freePorts(tb, gatewayPorts)
	return fmt.Sprintf(`gateway: [{name: CLIENT, bootstrap: "127.0.0.1:%d", advertised_host: %s, node_id_ranges: ["1-3", "9001-9002"]}]`, first, host), first
}

// gatewayBed is a destination whose brokers can be watched, with a gateway in front of it: topic "ro" is a mirror, "rw" is not.
type gatewayBed struct {
	src, dst *testkafka.Cluster
	s        *shim
	doors    map[int32]*doorman
	first    int
	addr     string

	mu     sync.Mutex
	dialed map[string]bool
}

// TestGateway has every client work through the gateway alone, on a cluster whose own addresses are watched.
func TestGateway(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	testkafka.EnsureKcat(t)
	for _, version := range testkafka.Versions() {
		t.Run(version, func(t *testing.T) {
			if version != testkafka.Latest {
				onlyInLong(t)
			}
			gatewayOn(t, version)
		})
	}
}

func gatewayOn(t *testing.T, version string) {
	b := &gatewayBed{doors: map[int32]*doorman{}, dialed: map[string]bool{}}
	b.src = testkafka.Start(t, testkafka.Options{Name: "src"})
	advertised := map[int32]map[string]string{}
	for id := int32(1); id <= 3; id++ {
		b.doors[id] = newDoorman(t)
		advertised[id] = map[string]string{testkafka.ClientListener: b.doors[id].ln.Addr().String()}
	}
	b.dst = testkafka.Start(t, testkafka.Options{Name: "dst", Version: version, Brokers: 3, Controllers: 1, Advertised: advertised})
	for id, d := range b.doors {
		d.leadsTo(b.dst.Node(id).Addr(testkafka.ClientListener))
	}
	createTopic(t, b.src, "ro", 2, nil)
	produce(t, client(t, b.src), "ro", 2, 200, 100)
	createTopic(t, b.dst, "rw", 3, nil)
	var yaml string
	yaml, b.first = gatewayYAML(t, "127.0.0.1")
	b.addr = fmt.Sprintf("127.0.0.1:%d", b.first)
	trace := filepath.Join(t.TempDir(), "trace.log")
	b.s = newShim(t, b.dst, fmt.Sprintf("%s\ntrace: {file: %q, api: [Produce, Fetch], topic: ^rw$}", yaml, trace))
	b.s.create(b.src)
	b.s.mirror("ro")
	b.s.caughtUp(b.src, 3, time.Minute, "ro")
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"franz-go", b.franz}, {"kcat", b.kcat}, {"console consumers", b.consoles}, {"Java producers", b.java}, {"tools", b.tools},
		{"a request for both", b.both}, {"a broker restarts", b.restart}, {"a leader moves", b.moves},
	} {
		t.Run(step.name, step.run)
	}
	for id, d := range b.doors {
		for _, line := range d.strangers(b.s.cmd.Process.Pid, os.Getpid()) {
			t.Errorf("broker %d: %s", id, line)
		}
		if d.cameFrom(b.s.cmd.Process.Pid) == 0 {
			t.Errorf("broker %d: kmirror never came, so the watch sees nothing", id)
		}
	}
	b.mu.Lock()
	for addr := range b.dialed {
		if !b.isGateway(addr) {
			t.Errorf("franz-go dialled %s", addr)
		}
	}
	if len(b.dialed) < 5 {
		t.Errorf("franz-go dialled %v only", b.dialed)
	}
	b.mu.Unlock()
	if err := b.s.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	tracedGateway(t, trace)
}

func (b *gatewayBed) isGateway(addr string) bool {
	host, port, ok := strings.Cut(addr, ":")
	var n int
	fmt.Sscan(port, &n)
	return ok && host == "127.0.0.1" && n >= b.first && n < b.first+gatewayPorts
}

// client is one of franz-go that notes what it dials.
func (b *gatewayBed) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	return client(t, b.dst, append(opts, kgo.SeedBrokers(b.addr), kgo.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
		b.mu.Lock()
		b.dialed[addr] = true
		b.mu.Unlock()
		return new(net.Dialer).DialContext(ctx, network, addr)
	}))...)
}

// franz: produce, a group on the mirror topic and on the other one, a transaction.
func (b *gatewayBed) franz(t *testing.T) {
	produce(t, b.client(t), "rw", 3, 100, 100)
	cl := b.client(t, kgo.ConsumerGroup("franz"), kgo.ConsumeTopics("rw", "ro"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, got := timeout(t, time.Minute), map[string]int{}
	for (got["rw"] < 300 || got["ro"] < 400) && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) { got[r.Topic]++ })
	}
	if got["rw"] != 300 || got["ro"] != 400 {
		t.Errorf("the group got %v", got)
	}
	if err := cl.CommitUncommittedOffsets(ctx); err != nil {
		t.Error(err)
	}
	tx := b.client(t, kgo.TransactionalID("franz-gateway"))
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		if err := tx.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := tx.ProduceSync(ctx, &kgo.Record{Topic: "rw", Key: []byte("tx"), Value: fmt.Appendf(nil, "%v", end)}).FirstErr(); err != nil {
			t.Error(err)
		}
		if err := tx.EndTransaction(ctx, end); err != nil {
			t.Error(err)
		}
	}
	if got := committedIn(t, b.dst, "rw", "tx"); !slices.Equal(got, []string{"true"}) {
		t.Errorf("committed %v", got)
	}
	err := b.client(t).ProduceSync(ctx, &kgo.Record{Topic: "ro", Value: []byte("no")}).FirstErr()
	if !errors.Is(err, kerr.PolicyViolation) {
		t.Errorf("produce to the mirror: %v", err)
	}
}

// kcat: what it is told of the cluster, produce, consume.
func (b *gatewayBed) kcat(t *testing.T) {
	out, err := testkafka.Kcat(timeout(t, 30*time.Second), "-L", "-J", "-b", b.addr).Output()
	var told struct{ Brokers []struct{ Name string } }
	if err := errors.Join(err, json.Unmarshal(out, &told)); err != nil {
		t.Fatal(err)
	}
	for _, broker := range told.Brokers {
		if !b.isGateway(broker.Name) {
			t.Errorf("kcat is told of %s", broker.Name)
		}
	}
	if len(told.Brokers) != 5 {
		t.Errorf("kcat is told of %v", told.Brokers)
	}
	for _, setting := range []string{"acks=0", "acks=1", "acks=all", "enable.idempotence=true"} {
		cmd := testkafka.Kcat(timeout(t, 30*time.Second), "-P", "-b", b.addr, "-t", "rw", "-p", "1", "-X", setting)
		cmd.Stdin = strings.NewReader("a\nb\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", setting, err, out)
		}
	}
	want := readFranz(t, b.dst, 400, kgo.SeedBrokers(b.addr), kgo.ConsumeTopics("ro"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	sameRecords(t, want, readKcat(t, b.addr, "ro", "read_committed"))
	if n := len(readKcat(t, b.addr, "rw", "read_committed")); n != 309 { // the batches above, and one committed record
		t.Errorf("kcat reads %d records, want 309", n)
	}
	final(t, probeKcat(t, b.addr, "ro", 20*time.Second, "acks=all"), "Policy violation")
}

// consoles: both group protocols, and a share group on the topic that real brokers lead.
func (b *gatewayBed) consoles(t *testing.T) {
	for _, protocol := range []string{"classic", "consumer"} {
		if n := len(readConsole(t, b.addr, "ro", "read_committed", protocol, 400)); n != 400 {
			t.Errorf("%s: %d records", protocol, n)
		}
	}
	if b.dst.Version() != testkafka.Latest {
		return // share groups are a preview there
	}
	setGroupConfig(t, b.client(t), "sharers", "share.auto.offset.reset", "earliest")
	cmd := testkafka.Tool(timeout(t, time.Minute), "", "org.apache.kafka.tools.consumer.ConsoleShareConsumer", "--bootstrap-server", b.addr,
		"--topic", "rw", "--group", "sharers", "--max-messages", "300")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if n := bytes.Count(out, []byte("\n")); err != nil || n != 300 {
		t.Errorf("the share group got %d records, %v\n%.2000s", n, err, errs.String())
	}
}

// setGroupConfig sets a config of a group.
func setGroupConfig(t *testing.T, cl *kgo.Client, group, key, value string) {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r, c := kmsg.NewIncrementalAlterConfigsRequestResource(), kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	r.ResourceType, r.ResourceName, c.Name, c.Value = kmsg.ConfigResourceTypeGroupConfig, group, key, &value
	r.Configs = append(r.Configs, c)
	req.Resources = append(req.Resources, r)
	resp, err := req.RequestWith(timeout(t, 20*time.Second), cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.Resources[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("config of group %s: %v", group, err)
	}
}

// java: all acknowledgements to the mirror, which are refused, and a transaction over both topics, then one over the other alone.
func (b *gatewayBed) java(t *testing.T) {
	for _, o := range probeJava(t, b.addr, "ro", "rw", 20*time.Second, "acks=1", "acks=all", "idempotent")() {
		final(t, o, "ReadOnlyTopicException", "mirrored by m")
	}
	var steps []string
	for _, o := range probeJava(t, b.addr, "ro", "rw", 20*time.Second, "txn-gateway")() {
		t.Log(o)
		steps = append(steps, o.what)
	}
	if len(steps) < 3 || !strings.HasPrefix(steps[0], "final") || steps[len(steps)-1] != "committed" {
		t.Errorf("steps %q, want a refusal, the abort, and a commit", steps)
	}
	if got := committedIn(t, b.dst, "rw", "txn-gateway"); !slices.Equal(got, []string{"committed"}) {
		t.Errorf("committed %v", got)
	}
	out, err := testkafka.Tool(timeout(t, time.Minute), "", "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", b.addr,
		"--topic", "rw",
		"--num-records", "20000", "--record-size", "1000", "--throughput", "-1").CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "20000 records sent") {
		t.Errorf("perf producer: %v", err)
	}
}

// tools: what administrators use.
func (b *gatewayBed) tools(t *testing.T) {
	for _, tool := range []struct {
		class, want string
		args        []string
	}{
		{"org.apache.kafka.tools.TopicCommand", "Partition: 2", []string{"--describe", "--topic", "rw"}},
		{"org.apache.kafka.tools.TopicCommand", "", []string{"--create", "--topic", "made-through-it", "--partitions", "3"}},
		{"org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "franz", []string{"--describe", "--group", "franz"}},
		{"org.apache.kafka.tools.ConfigCommand", "max.message.bytes=0", []string{"--describe", "--entity-type", "topics", "--entity-name", "ro"}},
		{"org.apache.kafka.tools.MetadataQuorumCommand", "LeaderId", []string{"describe", "--status"}},
		{"org.apache.kafka.tools.TransactionsCommand", "franz-gateway", []string{"list"}},
		{"org.apache.kafka.tools.BrokerApiVersionsCommand", fmt.Sprintf(":%d (id: 9001", b.first+4), nil},
		{"org.apache.kafka.tools.LogDirsCommand", `"broker":3`, []string{"--describe", "--topic-list", "rw"}},
	} {
		name := tool.class[strings.LastIndexByte(tool.class, '.')+1:]
		args := append([]string{"--bootstrap-server", b.addr}, tool.args...)
		out, err := testkafka.Tool(timeout(t, time.Minute), "", tool.class, args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), tool.want) {
			t.Errorf("%s %v: %v, %q is not in\n%.3000s", name, tool.args, err, tool.want, out)
		}
		for _, d := range b.doors {
			if strings.Contains(string(out), d.ln.Addr().String()) {
				t.Errorf("%s %v tells a broker's own address:\n%.3000s", name, tool.args, out)
			}
		}
	}
}

// both: one request for the mirror and for a topic that a real broker leads. The first is refused, the second is written.
func (b *gatewayBed) both(t *testing.T) {
	topics, err := kadm.NewClient(b.client(t)).ListTopics(timeout(t, 20*time.Second), "rw", "ro")
	if err != nil {
		t.Fatal(err)
	}
	leader := topics["rw"].Partitions[0].Leader
	before := endOffsets(t, b.dst, "rw", "ro")
	for _, version := range []int16{9, 13} {
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Acks, req.TimeoutMillis = version, -1, 5000
		for _, name := range []string{"ro", "rw"} {
			rt, p := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
			rt.Topic, rt.TopicID, p.Records = name, topics[name].ID, batchOf([]byte("probe"))
			rt.Partitions = append(rt.Partitions, p)
			req.Topics = append(req.Topics, rt)
		}
		codes := map[string]int16{}
		for _, rt := range askAt(t, fmt.Sprintf("127.0.0.1:%d", b.first+int(leader)), req).(*kmsg.ProduceResponse).Topics {
			name := rt.Topic
			for n, d := range topics {
				if version >= 13 && d.ID == rt.TopicID {
					name = n
				}
			}
			codes[name] = rt.Partitions[0].ErrorCode
		}
		if len(codes) != 2 || codes["ro"] != codePolicyViolation || codes["rw"] != 0 {
			t.Errorf("v%d: codes %v", version, codes)
		}
	}
	after := endOffsets(t, b.dst, "rw", "ro")
	if d := after[tp{"rw", 0}] - before[tp{"rw", 0}]; d != 2 || after[tp{"ro", 0}] != before[tp{"ro", 0}] {
		t.Errorf("%d records were written to the one, %d to the other", d, after[tp{"ro", 0}]-before[tp{"ro", 0}])
	}
}

// restart: a broker goes and comes back under its id while a producer and a consumer are at work.
func (b *gatewayBed) restart(t *testing.T) {
	// By their time the first records may be missed: a client that finds none of so late a time asks for the log's end, which may be behind
	// them by then.
	from := map[int32]kgo.Offset{}
	for at, end := range endOffsets(t, b.dst, "rw") {
		from[at.partition] = kgo.NewOffset().At(end)
	}
	cl := b.client(t, kgo.RecordRetries(1000), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"rw": from}))
	ctx := timeout(t, 2*time.Minute)
	send := func(round int) {
		for p := range int32(3) {
			if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "rw", Partition: p, Key: []byte("round"),
				Value: fmt.Appendf(nil, "%d/%d", round, p)}).FirstErr(); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	send(0)
	if err := b.dst.Node(2).Stop(); err != nil {
		t.Fatal(err)
	}
	send(1)
	if err := b.dst.Node(2).Start(); err != nil {
		t.Fatal(err)
	}
	moveLeaders(t, b.dst, "rw")
	send(2)
	for got := map[string]bool{}; len(got) < 9 && ctx.Err() == nil; {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if string(r.Key) == "round" {
				got[string(r.Value)] = true
			}
		})
	}
	if ctx.Err() != nil {
		t.Error("not all records came")
	}
	out, err := testkafka.Kcat(timeout(t, 30*time.Second), "-L", "-b", fmt.Sprintf("127.0.0.1:%d", b.first+2)).CombinedOutput()
	if err != nil || !strings.Contains(string(out), fmt.Sprintf("broker 2 at 127.0.0.1:%d", b.first+2)) {
		t.Errorf("port of broker 2: %v\n%s", err, out)
	}
}

// moves: a client that asks an old leader is told of the new one, by the gateway's address (KIP-951).
func (b *gatewayBed) moves(t *testing.T) {
	adm := kadm.NewClient(b.client(t))
	topics, err := adm.ListTopics(timeout(t, 20*time.Second), "rw")
	if err != nil {
		t.Fatal(err)
	}
	old := topics["rw"].Partitions[0].Leader
	wrong := old%3 + 1
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.MinBytes = 17, 1<<20, 1
	rt, p := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	rt.TopicID, p.CurrentLeaderEpoch, p.PartitionMaxBytes = topics["rw"].ID, -1, 1<<20
	rt.Partitions = append(rt.Partitions, p)
	req.Topics, req.SessionEpoch = append(req.Topics, rt), -1
	// Followers serve consumers too; as a replica of an older leader epoch it is refused.
	req.Topics[0].Partitions[0].CurrentLeaderEpoch = 0
	pr := kmsg.NewPtrProduceRequest()
	pr.Version, pr.Acks, pr.TimeoutMillis = 13, -1, 5000
	pt, pp := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
	pt.TopicID, pp.Records = topics["rw"].ID, batchOf([]byte("probe"))
	pt.Partitions = append(pt.Partitions, pp)
	pr.Topics = append(pr.Topics, pt)
	at := fmt.Sprintf("127.0.0.1:%d", b.first+int(wrong))
	told := map[string]int32{}
	for _, broker := range askAt(t, at, pr).(*kmsg.ProduceResponse).Brokers {
		told["Produce "+fmt.Sprintf("%s:%d", broker.Host, broker.Port)] = broker.NodeID
	}
	for _, broker := range askAt(t, at, req).(*kmsg.FetchResponse).Brokers {
		told["Fetch "+fmt.Sprintf("%s:%d", broker.Host, broker.Port)] = broker.NodeID
	}
	right := fmt.Sprintf("127.0.0.1:%d", b.first+int(old))
	if len(told) != 2 || told["Produce "+right] != old || told["Fetch "+right] != old {
		t.Errorf("told of %v, want %d at %s in both", told, old, right)
	}
	if b.dst.Version() == testkafka.Latest { // share groups are a preview before
		sharerIsTold(t, at, topics["rw"].ID, right)
	}
}
