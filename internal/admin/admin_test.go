package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"kmirror/internal/lockbuf"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a Service whose answers a test sets.
type fake struct {
	Service // nil: what is not asked of it
	mu      sync.Mutex
	created map[string]map[string]string
	started []StartRequest
	asked   []DescribeRequest
	results []TopicResult
	mirrors []MirrorInfo
	parts   []PartitionInfo
	err     error
	// life are the requests of the later life of topics, in the order in which they came.
	life   []any
	retire RetireResult
	epochs map[protocol.PartitionID]int32
	unfit  map[protocol.PartitionID]error
	// hold, when set, is waited for in Call; entered is told.
	hold, entered chan struct{}
	cancelled     chan struct{}
}

func (f *fake) CreateMirror(_ context.Context, name string, config map[string]string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.created == nil {
		f.created = map[string]map[string]string{}
	}
	f.created[name] = config
	return f.err
}

func (f *fake) StartTopics(_ context.Context, req StartRequest) ([]TopicResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = append(f.started, req)
	return f.results, f.err
}

func (f *fake) ListMirrors(_ context.Context, withTopics bool) ([]MirrorInfo, error) {
	out := append([]MirrorInfo(nil), f.mirrors...)
	for i := range out {
		if !withTopics {
			out[i].Topics, out[i].Properties = nil, nil
		}
	}
	return out, f.err
}

func (f *fake) Describe(_ context.Context, req DescribeRequest) ([]PartitionInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, req)
	return f.parts, f.err
}

func (f *fake) Call(ctx context.Context, verb string, payload json.RawMessage) (json.RawMessage, error) {
	if f.hold != nil {
		close(f.entered)
		select {
		case <-f.hold:
		case <-ctx.Done():
			close(f.cancelled)
			return nil, ctx.Err()
		}
	}
	return json.RawMessage(`{"verb":"` + verb + `","got":` + string(payload) + `}`), f.err
}

// serve starts a server and returns its address, its log and what ends it.
func serve(t *testing.T, f *fake) (address string, lines *lockbuf.Buffer, stop func()) {
	t.Helper()
	return serveWith(t, Config{Service: f})
}

// serveWith starts a server of a configuration.
func serveWith(t *testing.T, c Config) (address string, lines *lockbuf.Buffer, stop func()) {
	t.Helper()
	_, address, lines, stop = startServer(t, c)
	return address, lines, stop
}

func startServer(t *testing.T, c Config) (_ *Server, address string, lines *lockbuf.Buffer, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lines = &lockbuf.Buffer{}
	c.Listen, c.Log, c.DrainTimeout = l, slog.New(slog.NewTextHandler(lines, nil)), cmp.Or(c.DrainTimeout, 300*time.Millisecond)
	srv, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return srv, l.Addr().String(), lines, stop
}

func dial(t *testing.T, addresses ...string) *Client {
	t.Helper()
	c, err := NewClient(ClientConfig{Addresses: addresses, DialTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func fullPartition() PartitionInfo {
	return PartitionInfo{
		Mirror: "m", Topic: "t", Partition: 3, State: "FAILED", StateSince: new(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		SourceTopicID: new("AAAAAAAAAAAAAAAAAAAAAg"), TopicID: new("AAAAAAAAAAAAAAAAAAAAAQ"), SourceOffset: new(int64(10)),
		DestinationOffset: new(int64(7)), Lag: new(int64(3)), LagBytes: new(int64(0)), LagSeconds: new(1.5), SourceAgeSeconds: new(0.25),
		SourceEpoch: new(int32(4)), DestinationEpoch: new(int32(14)), LastMirroredEpoch: new(int32(2)), Locked: new(false),
		LeaderNode: new(int32(9001)), Process: new("km1:9190"), ISRReal: []int32{1, 2}, Retry: -1, Error: new("e"), Hint: new("h"),
	}
}

func TestEveryCallArrivesAndComesBack(t *testing.T) {
	f := &fake{
		mirrors: []MirrorInfo{{Mirror: "m", SourceBootstrap: "a:1", SourceClusterID: "cid", TopicCount: 2, Topics: []string{"t", "u"},
			Properties: map[string]string{"bootstrap.servers": "a:1", "ssl.key.password": "${file:/k}"}}},
		results: []TopicResult{
			{Topic: "t", Partitions: 6, Plan: &TopicPlan{Create: true, Partitions: []PartitionPlan{{Partition: 1, Lost: -1, Copied: 5}},
				Requests: []string{"CreateTopics t"}}},
			{Topic: "u", Err: &Error{Code: kip1279.InconsistentTopicID, Message: "holds data", Hint: "--overwrite", Exit: ExitRefused}},
		},
		parts: []PartitionInfo{
			{Mirror: "a", Topic: "x", State: "UNKNOWN"}, {Mirror: "m", Topic: "t", State: "MIRRORING"}, fullPartition(),
			{Mirror: "m", Topic: "u", Partition: 0, State: "PREPARING"},
		},
	}
	address, lines, _ := serve(t, f)
	c, ctx := dial(t, address), t.Context()

	config := map[string]string{"bootstrap.servers": "a:1", "sasl.jaas.config": "${file:/secret}"}
	if err := c.CreateMirror(ctx, "m", config); err != nil || !reflect.DeepEqual(f.created["m"], config) {
		t.Errorf("create: %v, %v", err, f.created)
	}
	start := StartRequest{Mirror: "m", Topics: []string{"t", "/a{1,2}/"}, Exclude: []string{"x", "/y.*/"}, Overwrite: true, DryRun: true}
	results, err := c.StartTopics(ctx, start)
	if err != nil || !reflect.DeepEqual(results, f.results) || !reflect.DeepEqual(f.started, []StartRequest{start}) {
		t.Errorf("start: %v\n%+v\n%+v", err, results, f.started)
	}
	if got, err := c.ListMirrors(ctx, true); err != nil || !reflect.DeepEqual(got, f.mirrors) {
		t.Errorf("list: %v %+v", err, got)
	}
	if got, err := c.ListMirrors(ctx, false); err != nil || len(got) != 1 || got[0].Topics != nil || got[0].Properties != nil {
		t.Errorf("list without topics: %v %+v", err, got)
	}
	want := DescribeRequest{Mirrors: []string{"a", "m"}, Topics: []string{"t", "/u.*/"}}
	if got, err := c.Describe(ctx, want); err != nil || !reflect.DeepEqual(got, f.parts) {
		t.Errorf("describe: %v\n%+v\n%+v", err, got, f.parts)
	}
	if !reflect.DeepEqual(f.asked, []DescribeRequest{want}) {
		t.Errorf("describe asked %+v", f.asked)
	}
	if got, err := c.Call(ctx, "verify", json.RawMessage(`{"x":1}`)); err != nil || string(got) != `{"verb":"verify","got":{"x":1}}` {
		t.Errorf("call: %v %s", err, got)
	}
	if n := strings.Count(lines.String(), "audit=true"); n != 5 {
		t.Errorf("%d audit lines, want one for each verb:\n%s", n, lines)
	}
	if strings.Contains(lines.String(), "secret") {
		t.Error("the log holds a part of the configuration")
	}
}

func TestErrorsReachTheOperatorWhole(t *testing.T) {
	f := &fake{err: &Error{Code: kip1279.UnknownClusterMirror, Message: "there is no mirror m", Hint: "create it", Exit: ExitRefused}}
	address, lines, _ := serve(t, f)
	c := dial(t, address)
	calls := map[string]func() error{
		"create": func() error {
			return c.CreateMirror(t.Context(), "m", map[string]string{"bootstrap.servers": "a:1"})
		},
		"start": func() error {
			_, err := c.StartTopics(t.Context(), StartRequest{Mirror: "m", Topics: []string{"t"}})
			return err
		},
		"list":     func() error { _, err := c.ListMirrors(t.Context(), false); return err },
		"describe": func() error { _, err := c.Describe(t.Context(), DescribeRequest{}); return err },
		"call":     func() error { _, err := c.Call(t.Context(), "v", []byte("{}")); return err },
	}
	for name, call := range calls {
		var e *Error
		if err := call(); !errors.As(err, &e) || *e != *f.err.(*Error) {
			t.Errorf("%s: %+v", name, err)
		}
	}
	f.err = errors.New("plain")
	var e *Error
	if err := calls["list"](); !errors.As(err, &e) || e.Code != kip1279.UnknownServerError || e.Message != "plain" || e.Hint == "" {
		t.Errorf("plain error: %+v", err)
	}
	if !strings.Contains(lines.String(), "UNKNOWN_CLUSTER_MIRROR") {
		t.Error("the audit line lacks the refusal")
	}
}

func TestRefusedBeforeTheService(t *testing.T) {
	f := &fake{}
	address, _, _ := serve(t, f)
	c := dial(t, address)
	for name, c := range map[string]struct {
		err  error
		part string
	}{
		"name":   {c.CreateMirror(t.Context(), "a b", map[string]string{"bootstrap.servers": "a:1"}), "not a mirror name"},
		"source": {c.CreateMirror(t.Context(), "m", nil), "bootstrap.servers"},
		"secret": {c.CreateMirror(t.Context(), "m", map[string]string{"bootstrap.servers": "a:1", "ssl.key.password": "hunter2"}), "ssl.key.password"},
		"topics": {second(c.StartTopics(t.Context(), StartRequest{Mirror: "m"})), "no topic"},
		"regexp": {second(c.StartTopics(t.Context(), StartRequest{Mirror: "m", Topics: []string{"/(/"}})), "not a pattern"},
		"filter": {second(c.Describe(t.Context(), DescribeRequest{Topics: []string{"/(/"}})), "not a pattern"},
	} {
		var e *Error
		if !errors.As(c.err, &e) || e.Exit != ExitUsage || !strings.Contains(e.Message, c.part) || e.Hint == "" {
			t.Errorf("%s: %+v", name, c.err)
		}
		if strings.Contains(c.err.Error()+e.Hint, "hunter2") {
			t.Error("the error holds the secret")
		}
	}
	if f.created != nil || f.started != nil {
		t.Error("the service was asked")
	}
}

func second[T any](_ T, err error) error { return err }

// A client that knows only the KIP sees its fields and nothing that it has to understand.
func TestClientThatKnowsOnlyTheKIP(t *testing.T) {
	p := fullPartition()
	p.State, p.Error, p.SourceOffset = "MIRRORING", nil, nil
	f := &fake{parts: []PartitionInfo{p}, mirrors: []MirrorInfo{{Mirror: "m", SourceClusterID: "cid"}},
		results: []TopicResult{{Topic: "t", Partitions: 1}}}
	address, _, _ := serve(t, f)
	c := dial(t, address)

	describe := &kip1279.DescribeClusterMirrorsResponse{}
	if err := c.call(t.Context(), &kip1279.DescribeClusterMirrorsRequest{}, describe); err != nil {
		t.Fatal(err)
	}
	got := describe.Mirrors[0].Topics[0].Partitions[0]
	if got.PartitionIndex != 3 || got.SourceOffset != -1 || got.DestinationOffset != 7 || got.Lag != 3 || got.StateValue != "MIRRORING" ||
		got.RetryAttempt != -1 || describe.Mirrors[0].AuthorizedOperations != kip1279.NoOperations {
		t.Errorf("got %+v", got)
	}

	start := &kip1279.StartMirrorTopicsResponse{}
	if err := c.call(t.Context(), &kip1279.StartMirrorTopicsRequest{MirrorName: "m", IncludePatterns: []string{"t.*"}}, start); err != nil {
		t.Fatal(err)
	}
	if len(start.Topics) != 1 || start.Topics[0].ErrorCode != 0 || !reflect.DeepEqual(f.started[0].Topics, []string{"/t.*/"}) {
		t.Errorf("got %+v from %+v", start, f.started)
	}

	states := &kip1279.ReadMirrorStatesResponse{}
	if err := c.call(t.Context(), &kip1279.ReadMirrorStatesRequest{MirrorName: "m"}, states); err != nil {
		t.Fatal(err)
	}
	if states.ErrorCode != kip1279.UnsupportedVersion {
		t.Errorf("a verb that is not served: %+v", states)
	}
}

// franz-go negotiates as every Kafka client does.
func TestKafkaClientsCanNegotiate(t *testing.T) {
	address, _, _ := serve(t, &fake{})
	cl, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	resp, err := cl.SeedBrokers()[0].Request(t.Context(), kmsg.NewPtrApiVersionsRequest())
	if err != nil {
		t.Fatal(err)
	}
	keys := map[int16]bool{}
	for _, k := range resp.(*kmsg.ApiVersionsResponse).ApiKeys {
		keys[k.ApiKey] = true
	}
	for _, want := range []int16{18, 94, 95, 96, 98, 99, 102, 103, 104, 105, 107, 30001} {
		if !keys[want] {
			t.Errorf("key %d is not announced", want)
		}
	}
	for version, v0 := range map[int16]bool{0: true, 3: false, 4: false, 5: true, -1: true} {
		r := apiVersions(version)
		if (r.ErrorCode == kip1279.UnsupportedVersion) != (version < 0 || version > maxApiVersions) || (r.GetVersion() == 0) != v0 {
			t.Errorf("version %d: error %d, layout %d", version, r.ErrorCode, r.GetVersion())
		}
	}
}

func TestGarbageClosesTheConnectionWithALine(t *testing.T) {
	address, lines, _ := serve(t, &fake{})
	for name, c := range map[string]struct{ send, line string }{
		"TLS":         {"\x16\x03\x01\x02\x00\x01\x00\x01", "TLS"},
		"HTTP":        {"GET / HTTP/1.1\r\n\r\n", "HTTP"},
		"oversized":   {"\x7f\xff\xff\xff", "2147483647"},
		"short":       {"\x00\x00\x00\x02\x00\x5e", "header"},
		"Produce":     {"\x00\x00\x00\x0a\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff", "admin listener"},
		"Metadata":    {"\x00\x00\x00\x0a\x00\x03\x00\x01\x00\x00\x00\x01\xff\xff", "Metadata version 1:"},
		"Metadata 99": {"\x00\x00\x00\x0b\x00\x03\x00\x63\x00\x00\x00\x01\xff\xff\x00", "Metadata version 99 is not served"},
		"broken body": {"\x00\x00\x00\x0c\x00\x5e\x00\x00\x00\x00\x00\x01\xff\xff\x00\x07", "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte(c.send)); err != nil {
				t.Fatal(err)
			}
			conn.SetReadDeadline(time.Now().Add(30 * time.Second))
			if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read %d, %v; want a closed connection", n, err)
			}
			if !strings.Contains(lines.String(), c.line) {
				t.Errorf("no line with %q:\n%s", c.line, lines)
			}
		})
	}
	begin := time.Now()
	for range 20 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
		io.Copy(io.Discard, conn)
		conn.Close()
	}
	// One in ten seconds, and one before.
	if n, took := strings.Count(lines.String(), "HTTP request"), time.Since(begin); n < 1 || n > 2+int(took/(10*time.Second)) {
		t.Errorf("%d lines about HTTP within %s", n, took)
	}
}

func TestVersionsThatAreNotServed(t *testing.T) {
	address, _, _ := serve(t, &fake{})
	c := dial(t, address)
	if err := c.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	body, err := c.roundTrip(t.Context(), header{key: kip1279.KeyListClusterMirrors, version: 7}, func(dst []byte) []byte { return dst })
	resp := &kip1279.ListClusterMirrorsResponse{}
	if err == nil {
		err = kip1279.Decode(body, resp)
	}
	if err != nil || resp.ErrorCode != kip1279.UnsupportedVersion {
		t.Errorf("%+v, %v", resp, err)
	}
}
