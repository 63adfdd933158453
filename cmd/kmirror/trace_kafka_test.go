package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"kmirror/internal/lockbuf"
	"kmirror/internal/testkafka"
)

// tracedLine is what the test reads of a line of JSON.
type tracedLine struct {
	Kind      string
	API       string
	ClientID  string `json:"client_id"`
	Version   int16
	Reason    string
	Principal string
	NoReply   bool     `json:"no_reply"`
	Duration  *float64 `json:"duration_ms"`
	Topics    []struct{ Topic string }
	Errors    []struct{ Error, About string }
	Batches   []struct {
		Topic         string
		Records       int32
		Codec         string
		Transactional bool
		Control       string
		ProducerID    int64 `json:"producer_id"`
		CRC           bool  `json:"crc_ok"`
		Payload       []struct{ Key, Value string }
	}
	APIs []struct {
		API                             string
		Requests, Responses, NotDecoded int64
		P99                             float64 `json:"p99_ms"`
	}
}

// TestTraceOfARealBroker has a client write in transactions and read through a trace of a broker with TLS and SCRAM.
func TestTraceOfARealBroker(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a broker")
	}
	sec := testkafka.NewSecurity(t)
	props, err := sec.WriteProperties("trace", sec.Properties(testkafka.AdminUser))
	if err != nil {
		t.Fatal(err)
	}
	port, err := testkafka.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", fmt.Sprint(port))
	// The broker tells clients the address of the trace.
	broker := testkafka.Start(t, sec.Secure(testkafka.Options{Name: "traced",
		Advertised: map[int32]map[string]string{1: {testkafka.ClientListener: address}}}))
	login := scram.Auth{User: testkafka.AdminUser, Pass: sec.Password(testkafka.AdminUser)}
	// traced runs a trace while a client is at work and returns its output.
	traced := func(at string, work func(t *testing.T, address string, login kgo.Opt)) (string, string) {
		var out, errs lockbuf.Buffer
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		code := make(chan int, 1)
		go func() {
			c := &cli{out: &out, err: &errs, in: strings.NewReader(""), env: os.LookupEnv, environ: os.Environ}
			code <- c.run(ctx, []string{"trace", "--listen", at, "--upstream", broker.Node(1).Addr(testkafka.ClientListener),
				"--upstream-config", props, "--format", "json", "--payload"})
		}()
		work(t, traceAddress(t, &errs), kgo.SASL(login.AsSha512Mechanism()))
		stop()
		select {
		case got := <-code:
			if got != 0 {
				t.Fatalf("exit code %d\n%s", got, errs.String())
			}
		case <-time.After(time.Minute):
			t.Fatal("trace does not end")
		}
		return out.String(), errs.String()
	}
	const goneAround = "not the trace's own"
	out, errs := traced(address, talk)
	if strings.Contains(out, login.Pass) {
		t.Error("the password is shown")
	}
	checkTrace(t, out)
	if strings.Contains(errs, goneAround) {
		t.Errorf("the trace takes its own address for another:\n%s", errs)
	}
	// Of a trace that the broker does not advertise the client learns where to go instead.
	if port, err = testkafka.FreePort(); err != nil {
		t.Fatal(err)
	}
	out, errs = traced(net.JoinHostPort("127.0.0.1", fmt.Sprint(port)), look)
	if strings.Count(errs, goneAround) != 1 || !strings.Contains(errs, "address="+address) || strings.Contains(out, goneAround) {
		t.Errorf("clients go around the trace:\n%s", errs)
	}
	var described *kmsg.DescribeConfigsResponse
	out, _ = traced(address, func(t *testing.T, address string, login kgo.Opt) { described = configured(t, address, login) })
	checkConfigs(t, out, described)
}

const pluginValue = "oNlYtHePlUgInKnOwS"

// configured has a client set a config that Kafka does not know, be refused another, and ask for all of the broker and of a topic.
func configured(t *testing.T, address string, login kgo.Opt) *kmsg.DescribeConfigsResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(login, kgo.SeedBrokers(address))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	alter := kmsg.NewPtrIncrementalAlterConfigsRequest()
	for name, value := range map[string]string{"my.plugin": pluginValue, "log.cleaner.threads": "none"} {
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeBroker, "1"
		r.Configs = []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: name, Value: &value}}
		alter.Resources = []kmsg.IncrementalAlterConfigsRequestResource{r}
		resp, err := alter.RequestWith(ctx, cl)
		if err != nil || (resp.Resources[0].ErrorCode == 0) != (name == "my.plugin") {
			t.Errorf("%s: %v, %+v", name, err, resp)
		}
	}
	describe := kmsg.NewPtrDescribeConfigsRequest()
	for name, kind := range map[string]kmsg.ConfigResourceType{"1": kmsg.ConfigResourceTypeBroker, "orders": kmsg.ConfigResourceTypeTopic} {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName = kind, name
		describe.Resources = append(describe.Resources, r)
	}
	resp, err := cl.SeedBrokers()[0].Request(ctx, describe)
	if err != nil {
		t.Fatal(err)
	}
	return resp.(*kmsg.DescribeConfigsResponse)
}

// checkConfigs wants what a broker calls harmless to be shown, all else not.
func checkConfigs(t *testing.T, out string, described *kmsg.DescribeConfigsResponse) {
	t.Helper()
	if strings.Contains(out, pluginValue) || !strings.Contains(out, `"Name":"my.plugin"`) {
		t.Error("the value of a plugin's config is shown, or not even its name")
	}
	if !strings.Contains(out, "for configuration log.cleaner.threads") {
		t.Error("what the broker says of a bad value is not shown")
	}
	shown := 0
	var not []string
	for _, r := range described.Resources {
		for _, c := range r.Configs {
			if c.Value == nil || *c.Value == "" {
				continue
			}
			value, err := json.Marshal(*c.Value)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(out, fmt.Sprintf(`"Name":%q,"Value":%s`, c.Name, value)) {
				shown++
			} else {
				not = append(not, c.Name)
			}
		}
	}
	// Their names have a sensitive word.
	if slices.Sort(not); shown < 200 || !slices.Equal(not, hiddenByName) {
		t.Errorf("%d configs are shown, not those: %q", shown, not)
	}
}

// hiddenByName are the configs of that broker that it tells and the trace does not.
var hiddenByName = []string{"delegation.token.expiry.check.interval.ms", "delegation.token.expiry.time.ms", "delegation.token.max.lifetime.ms",
	"listener.name.client.ssl.keystore.location", "listener.name.client.ssl.keystore.type", "ssl.keymanager.algorithm", "ssl.keystore.type"}

// look has a client ask for metadata twice.
func look(t *testing.T, address string, login kgo.Opt) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(login, kgo.SeedBrokers(address))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for range 2 {
		if _, err := cl.SeedBrokers()[0].Request(ctx, kmsg.NewPtrMetadataRequest()); err != nil {
			t.Fatal(err)
		}
	}
}

// talk has a client create a topic, write in transactions, commit, abort, read, and ask for what is not there.
func talk(t *testing.T, address string, login kgo.Opt) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	client := func(opts ...kgo.Opt) *kgo.Client {
		cl, err := kgo.NewClient(append(opts, login, kgo.SeedBrokers(address), kgo.ClientID("talker"))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		return cl
	}
	writer := client(kgo.TransactionalID("tx"), kgo.ProducerBatchCompression(kgo.ZstdCompression()),
		kgo.DefaultProduceTopic("orders"))
	if _, err := kadm.NewClient(writer).CreateTopic(ctx, 1, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	for i, commit := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		if err := writer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		value := strings.Repeat(fmt.Sprint("value", i), 100)
		if err := writer.ProduceSync(ctx, &kgo.Record{Key: []byte("k"), Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := writer.EndTransaction(ctx, commit); err != nil {
			t.Fatal(err)
		}
	}
	silent := client(kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite(), kgo.DefaultProduceTopic("orders"))
	if err := silent.ProduceSync(ctx, kgo.StringRecord("nobody answers")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	reader := client(kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumerGroup("g"))
	var got []string
	for len(got) < 2 && ctx.Err() == nil {
		reader.PollFetches(ctx).EachRecord(func(r *kgo.Record) { got = append(got, string(r.Value)) })
	}
	if len(got) != 2 || got[1] != "nobody answers" {
		t.Fatalf("%d records through the trace", len(got))
	}
	if err := reader.CommitUncommittedOffsets(ctx); err != nil {
		t.Fatal(err)
	}
	described, err := kadm.NewClient(reader).DeleteTopics(ctx, "missing")
	if err != nil || described["missing"].Err == nil {
		t.Fatalf("a topic that is not there: %v, %v", described, err)
	}
}

// fetches reports whether a line is of a fetch that brought a control record.
func (l *tracedLine) fetches(control string) bool {
	for _, b := range l.Batches {
		if b.Control == control {
			return l.Kind == "response" && l.API == "Fetch"
		}
	}
	return false
}

// checkTrace reads every line and looks for what talk did.
func checkTrace(t *testing.T, text string) {
	t.Helper()
	var lines []tracedLine
	for line := range strings.Lines(text) {
		var l tracedLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if l.Kind == "note" || l.Reason != "" {
			t.Errorf("not decoded: %s", line)
		}
		lines = append(lines, l)
	}
	for what, is := range map[string]func(tracedLine) bool{
		"a transactional produce with payload": func(l tracedLine) bool {
			return l.Kind == "request" && l.API == "Produce" && len(l.Batches) == 1 && l.Batches[0].Transactional &&
				l.Principal == "User:admin" && l.Batches[0].Codec == "zstd" && l.Batches[0].CRC &&
				l.Batches[0].Topic == "orders" && l.ClientID == "talker" &&
				strings.HasPrefix(l.Batches[0].Payload[0].Value, "value0") && l.Batches[0].Payload[0].Key == "k"
		},
		"a produce without reply": func(l tracedLine) bool { return l.API == "Produce" && l.NoReply },
		"a marker of a commit":    func(l tracedLine) bool { return l.fetches("COMMIT") }, // the broker may write the other one after a fetch
		"one of an abort":         func(l tracedLine) bool { return l.fetches("ABORT") },
		"a commit of offsets, answered": func(l tracedLine) bool {
			return l.Kind == "response" && l.API == "OffsetCommit" && l.Duration != nil && *l.Duration > 0
		},
		"an error about a topic": func(l tracedLine) bool {
			return l.API == "DeleteTopics" && len(l.Errors) == 1 && l.Errors[0].Error == "UNKNOWN_TOPIC_OR_PARTITION" &&
				l.Errors[0].About == "missing"
		},
		"a summary": func(l tracedLine) bool { return l.Kind == "summary" && len(l.APIs) > 10 },
	} {
		if !slices.ContainsFunc(lines, is) {
			t.Errorf("no line with %s", what)
		}
	}
	if t.Failed() {
		t.Logf("%s", text)
	}
}
