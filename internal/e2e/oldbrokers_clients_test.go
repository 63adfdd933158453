package e2e

import (
	"bytes"
	bin "encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
	"kmirror/protocol"
)

// looks: preflight and --check tell what this is.
func (b *oldBed) looks(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(timeout(t, time.Minute), path, "preflight", "--config", b.s.config, "--kafka-version", b.dst.Version())
	out, err := cmd.CombinedOutput()
	b.own = append(b.own, cmd.Process.Pid)
	if err != nil || strings.Contains(string(out), "warn") {
		t.Errorf("preflight: %v\n%s", err, out)
	}
	keepers := "the brokers have KRaft"
	if b.keeper {
		keepers = "the brokers have ZooKeeper"
	}
	for _, part := range []string{"1 of 1 answer", keepers, "1 of 1 brokers are fronted and reached", "cluster", b.dst.ID()} {
		if !strings.Contains(string(out), part) {
			t.Errorf("preflight does not say %q:\n%s", part, out)
		}
	}
}

// rawly sends one request and returns the reply's bytes after its correlation id.
func rawly(t *testing.T, addr string, req kmsg.Request) []byte {
	t.Helper()
	body, err := exchanged(addr, req)
	if err != nil {
		t.Fatalf("%s v%d at %s: %v", kmsg.NameForKey(req.Key()), req.GetVersion(), addr, err)
	}
	return body
}

// exchanged is rawly where it may fail.
func exchanged(addr string, req kmsg.Request) ([]byte, error) {
	nc, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := nc.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 7)); err != nil {
		return nil, err
	}
	head := make([]byte, 8)
	if _, err := io.ReadFull(nc, head); err != nil {
		return nil, err
	}
	body := make([]byte, bin.BigEndian.Uint32(head)-4)
	_, err = io.ReadFull(nc, body)
	return body, err
}

// versions: what is advertised is what the broker has, less what only brokers use among themselves, and never more.
func (b *oldBed) versions(t *testing.T) {
	ask := func(addr string, version, layout int16) *kmsg.ApiVersionsResponse {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = version, "old", "1"
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.Version = layout
		if err := resp.ReadFrom(rawly(t, addr, req)); err != nil {
			t.Fatalf("v%d at %s: %v", version, addr, err)
		}
		return resp
	}
	direct := ask(b.doors[1].ln.Addr().String(), 0, 0)
	has, hidden := map[int16]kmsg.ApiVersionsResponseApiKey{}, 0
	for _, k := range direct.ApiKeys {
		has[k.ApiKey] = k
		if api, _ := protocol.LookupAPI(k.ApiKey); api.Role == protocol.Hidden {
			hidden++
		}
	}
	for _, addr := range []string{b.addr, b.port(1)} {
		got := ask(addr, 0, 0)
		for _, k := range got.ApiKeys {
			if api, ok := protocol.LookupAPI(k.ApiKey); !ok || api.Role == protocol.Hidden || k.MinVersion != has[k.ApiKey].MinVersion ||
				k.MaxVersion != has[k.ApiKey].MaxVersion {
				t.Errorf("%+v is advertised, the broker has %+v", k, has[k.ApiKey])
			}
		}
		if len(got.ApiKeys) != len(direct.ApiKeys)-hidden || b.keeper && hidden < 4 { // LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown
			t.Errorf("%d keys of %d are advertised, %d are the brokers' own", len(got.ApiKeys), len(direct.ApiKeys), hidden)
		}
		for _, version := range []int16{6, 99} {
			if got := ask(addr, version, 0); got.ErrorCode != 35 {
				t.Errorf("v%d: %+v", version, got)
			}
		}
	}
}

// kcats: librdkafka, as it is and as it was before brokers told their versions.
func (b *oldBed) kcats(t *testing.T) {
	if _, err := kadm.NewClient(b.client(t)).CreateTopic(timeout(t, 20*time.Second), 2, 2, nil, "kcat"); err != nil {
		t.Fatal(err)
	}
	ancient := []string{"-X", "api.version.request=false", "-X", "broker.version.fallback=0.9.0"}
	sent := 0
	for _, opts := range [][]string{{"-X", "acks=all"}, {"-X", "acks=0"}, {"-X", "enable.idempotence=true"}, {"-z", "lz4"}, ancient} {
		cmd := testkafka.Kcat(timeout(t, 30*time.Second), append([]string{"-P", "-b", b.addr, "-t", "kcat", "-p", "1"}, opts...)...)
		cmd.Stdin = strings.NewReader("a\nb\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", opts, err, out)
		}
		sent += 2
	}
	want := fmt.Sprint(sent)
	for _, opts := range [][]string{{"-o", "beginning"}, append([]string{"-o", "beginning"}, ancient...)} {
		cmd := testkafka.Kcat(timeout(t, 30*time.Second), append([]string{"-C", "-e", "-q", "-b", b.addr, "-t", "kcat", "-f", "%s "}, opts...)...)
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != strings.TrimSpace(strings.Repeat("a b ", sent/2)) {
			t.Errorf("%v: %v, read %q", opts, err, out)
		}
	}
	out, err := testkafka.Kcat(timeout(t, 30*time.Second), "-G", "kcat", "-c", want, "-q", "-b", b.addr, "-X", "auto.offset.reset=earliest", "kcat").Output()
	if n := bytes.Count(out, []byte("\n")); err != nil || n != sent {
		t.Errorf("a group got %d records, %v", n, err)
	}
	if got := b.told(t, b.port(2)); len(got) != 2 {
		t.Errorf("told of brokers %v", got)
	}
}

// message is one of the format before records: magic 0, or 1, which has a timestamp.
func message(magic byte, value string) []byte {
	m := []byte{magic, 0}
	if magic == 1 {
		m = bin.BigEndian.AppendUint64(m, 1_600_000_000_000)
	}
	m = bin.BigEndian.AppendUint32(m, 0xffffffff) // no key
	m = bin.BigEndian.AppendUint32(m, uint32(len(value)))
	m = append(m, value...)
	set := bin.BigEndian.AppendUint64(nil, 0)
	set = bin.BigEndian.AppendUint32(set, uint32(len(m)+4))
	return append(bin.BigEndian.AppendUint32(set, crc32.ChecksumIEEE(m)), m...)
}

// formats: requests of the first versions, with messages of formats 0 and 1, small ones and such as are passed on as they come; the replies
// to Fetch are the broker's to the byte.
func (b *oldBed) formats(t *testing.T) {
	adm := kadm.NewClient(b.client(t))
	keep := "0.10.0"
	if _, err := adm.CreateTopic(timeout(t, 20*time.Second), 1, 1, map[string]*string{"message.format.version": &keep}, "formats"); err != nil {
		t.Fatal(err)
	}
	var leader int32 = -1
	eventually(t, 20*time.Second, "a leader", func() error {
		topics, err := adm.ListTopics(timeout(t, 5*time.Second), "formats")
		if err == nil {
			err = topics["formats"].Err // of a broker that has not heard of it
		}
		if err != nil {
			return err
		}
		if leader = topics["formats"].Partitions[0].Leader; leader < 1 {
			return fmt.Errorf("%d leads", leader)
		}
		return nil
	})
	for version := range int16(3) {
		for _, value := range []string{"small", strings.Repeat("large", 20_000)} {
			req := kmsg.NewPtrProduceRequest()
			req.Version, req.Acks, req.TimeoutMillis = version, -1, 10_000
			rt, p := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
			rt.Topic, p.Records = "formats", message(byte(version/2), value)
			rt.Partitions = append(rt.Partitions, p)
			req.Topics = append(req.Topics, rt)
			resp := kmsg.NewPtrProduceResponse()
			resp.Version = version
			if err := resp.ReadFrom(rawly(t, b.port(leader), req)); err != nil || resp.Topics[0].Partitions[0].ErrorCode != 0 {
				t.Fatalf("Produce v%d: %v, %+v", version, err, resp)
			}
		}
	}
	for version := range int16(4) {
		req := kmsg.NewPtrFetchRequest()
		req.Version, req.MinBytes, req.MaxBytes, req.MaxWaitMillis = version, 1, 1<<20, 100
		rt, p := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
		rt.Topic, p.PartitionMaxBytes = "formats", 1<<20
		rt.Partitions = append(rt.Partitions, p)
		req.Topics = append(req.Topics, rt)
		want, got := rawly(t, b.doors[leader].ln.Addr().String(), req), rawly(t, b.port(leader), req)
		if !bytes.Equal(got, want) || !bytes.Contains(got, []byte("largelarge")) || len(got) < 300_000 {
			t.Errorf("Fetch v%d: %d bytes through the gateway, %d of the broker", version, len(got), len(want))
		}
	}
}

// works: franz-go makes topics, writes, reads in a group, commits a transaction and asks as an administrator.
func (b *oldBed) works(t *testing.T) {
	ctx, adm := timeout(t, time.Minute), kadm.NewClient(b.client(t))
	if _, err := adm.CreateTopic(ctx, 2, 2, nil, "franz"); err != nil {
		t.Fatal(err)
	}
	produce(t, b.client(t), "franz", 2, 100, 100)
	tx := b.client(t, kgo.TransactionalID("old"))
	for _, commit := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		if err := tx.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := tx.ProduceSync(ctx, &kgo.Record{Topic: "franz", Value: fmt.Append(nil, commit)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := tx.EndTransaction(ctx, commit); err != nil {
			t.Fatal(err)
		}
	}
	group := b.client(t, kgo.ConsumerGroup("franz"), kgo.ConsumeTopics("franz"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	for got := 0; got < 201 && ctx.Err() == nil; {
		group.PollFetches(ctx).EachRecord(func(*kgo.Record) { got++ })
	}
	if err := group.CommitUncommittedOffsets(ctx); err != nil || ctx.Err() != nil {
		t.Fatal(err, ctx.Err())
	}
	// The marker of the first transaction, and all of the second, are behind what the group has read.
	lags, err := adm.Lag(ctx, "franz")
	if l := lags["franz"]; err != nil || l.Error() != nil || l.Lag.Total() > 3 {
		t.Errorf("lag: %v, %+v", err, l)
	}
	configs, err := adm.DescribeTopicConfigs(ctx, "franz")
	if err != nil || len(configs) != 1 || configs[0].Err != nil || len(configs[0].Configs) == 0 {
		t.Errorf("configs: %v, %+v", err, configs)
	}
	value := "1000"
	if altered, err := adm.AlterTopicConfigsState(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &value}}, "franz"); err != nil || altered[0].Err != nil {
		t.Errorf("alter: %v, %+v", err, altered)
	}
	if deleted, err := adm.DeleteTopics(ctx, "franz"); err != nil || deleted.Error() != nil {
		t.Errorf("delete: %v, %v", err, deleted)
	}
}

// oldTools: Kafka's own, as old as the brokers and of today.
func (b *oldBed) oldTools(t *testing.T) {
	tool := func(version, class, stdin, want string, args ...string) {
		t.Helper()
		cmd := testkafka.Tool(timeout(t, time.Minute), version, class, args...)
		cmd.Stdin = strings.NewReader(stdin)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s %s: %v, %q is not in\n%.2000s%.2000s", version, class, err, want, out, errs.String())
		}
		for _, d := range b.doors {
			if strings.Contains(string(out)+errs.String(), d.ln.Addr().String()) {
				t.Errorf("%s %s tells a broker's own address:\n%.3000s", version, class, out)
			}
		}
	}
	now := "org.apache.kafka.tools."
	writer, reader, groups := "kafka.tools.ConsoleProducer", "kafka.tools.ConsoleConsumer", "kafka.admin.ConsumerGroupCommand"
	if b.dst.Version() == testkafka.LastOfThree { // by then they had moved, all but the producer
		reader, groups = now+"consumer.ConsoleConsumer", now+"consumer.group.ConsumerGroupCommand"
	}
	if inLong() {
		// Brokers before 2.4 have no default for the replication factor that they would tell.
		tool("", now+"TopicCommand", "", "Created topic consoles", "--bootstrap-server", b.addr, "--create", "--topic", "consoles", "--partitions", "2",
			"--replication-factor", "2")
		tool("", now+"TopicCommand", "", "Partition: 1", "--bootstrap-server", b.addr, "--describe", "--topic", "consoles")
	} else if _, err := kadm.NewClient(b.client(t)).CreateTopic(timeout(t, 20*time.Second), 2, 2, nil, "consoles"); err != nil {
		t.Fatal(err)
	}
	read := []string{"--bootstrap-server", b.addr, "--topic", "consoles", "--from-beginning", "--group", "old", "--max-messages", "1"}
	tool("", now+"ConsoleProducer", "new\n", "", "--bootstrap-server", b.addr, "--topic", "consoles")
	tool(b.dst.Version(), reader, "", "new\n", read...)
	if inLong() {
		read[len(read)-1], read[len(read)-3] = "2", "new"
		tool(b.dst.Version(), writer, "old\n", "", "--broker-list", b.addr, "--topic", "consoles")
		tool("", now+"consumer.ConsoleConsumer", "", "old\n", read...)
		tool(b.dst.Version(), groups, "", "consoles", "--bootstrap-server", b.addr, "--describe", "--group", "old")
	}
}

// traced: kmirror trace between the gateway and a broker.
func (b *oldBed) traced(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	cmd := exec.CommandContext(timeout(t, time.Minute), path, "trace", "--listen", at, "--upstream", b.dst.Node(1).Addr(testkafka.ClientListener), "--payload")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	eventually(t, 20*time.Second, "the trace listens", func() error {
		nc, err := net.Dial("tcp", at)
		if err == nil {
			nc.Close()
		}
		return err
	})
	b.doors[1].leadsTo(at)
	defer b.doors[1].leadsTo(b.dst.Node(1).Addr(testkafka.ClientListener))
	cl := b.client(t)
	if _, err := kadm.NewClient(cl).CreateTopic(timeout(t, 20*time.Second), 4, 2, nil, "traced"); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, "traced", 4, 1, 10)
	for version := range int16(3) { // as kcat does before brokers told their versions
		req := kmsg.NewPtrFetchRequest()
		req.Version, req.MinBytes, req.MaxBytes, req.MaxWaitMillis = version, 1, 1<<20, 100
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic = "traced"
		for n := range int32(4) {
			p := kmsg.NewFetchRequestTopicPartition()
			p.Partition, p.PartitionMaxBytes = n, 1<<20
			rt.Partitions = append(rt.Partitions, p)
		}
		req.Topics = append(req.Topics, rt)
		rawly(t, b.port(1), req)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("trace: %v\n%s", err, errs.String())
	}
	for _, part := range []string{"> Produce v", "< Produce v", "> Fetch v0", "< Fetch v2", "topics=traced["} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is not in\n%.4000s%s", part, out.String(), errs.String())
		}
	}
	if strings.Contains(out.String(), "not decoded:") {
		t.Errorf("not all is decoded:\n%.4000s", out.String())
	}
}
