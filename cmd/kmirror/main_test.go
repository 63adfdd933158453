package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"kmirror/internal/admin"
	"kmirror/protocol/kip1279"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeService answers the commands' requests.
type fakeService struct {
	admin.Service // nil: what is not asked of it
	mu            sync.Mutex
	created       map[string]map[string]string
	altered       []admin.AlterRequest
	stops         []string
	sync          []admin.SyncInfo
	starts        []admin.StartRequest
	steps         []admin.VerifyRequest
	mirrors       []admin.MirrorInfo
	parts         []admin.PartitionInfo
	results       []admin.TopicResult
	verify        func(admin.VerifyRequest) admin.VerifyResponse
	err           error
}

func (f *fakeService) CreateMirror(_ context.Context, name string, config map[string]string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.created = map[string]map[string]string{name: config}
	return f.err
}

func (f *fakeService) AlterMirror(_ context.Context, req admin.AlterRequest) (admin.AlterResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.altered = append(f.altered, req)
	return admin.AlterResult{Changed: []string{"mirror.groups.include"}, Stops: f.stops}, f.err
}

func (f *fakeService) SyncStatus(context.Context, []string) ([]admin.SyncInfo, error) {
	return f.sync, nil
}

func (f *fakeService) StartTopics(_ context.Context, req admin.StartRequest) ([]admin.TopicResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.starts = append(f.starts, req)
	return f.results, f.err
}

func (f *fakeService) ListMirrors(context.Context, bool) ([]admin.MirrorInfo, error) {
	return f.mirrors, f.err
}

func (f *fakeService) Describe(_ context.Context, req admin.DescribeRequest) ([]admin.PartitionInfo, error) {
	m, err := admin.NewMatcher(req.Topics)
	if err != nil {
		return nil, err
	}
	var out []admin.PartitionInfo
	for _, p := range f.parts {
		if len(req.Topics) == 0 || m.Match(p.Topic) {
			out = append(out, p)
		}
	}
	return out, f.err
}

func (f *fakeService) Call(_ context.Context, _ string, payload json.RawMessage) (json.RawMessage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var req admin.VerifyRequest
	if err := json.Unmarshal(payload, &req); err != nil {
		return nil, err
	}
	f.steps = append(f.steps, req)
	if f.err != nil {
		return nil, f.err
	}
	return json.Marshal(f.verify(req))
}

// harness runs command lines against a fake kmirror.
type harness struct {
	t        *testing.T
	address  string
	terminal bool
	input    string
}

func newHarness(t *testing.T, f admin.Service, change ...func(*admin.Config)) *harness {
	t.Helper()
	h, _ := newGoingHarness(t, f, change...)
	return h
}

// newGoingHarness has a kmirror that ends when stop is called, at the test's end at the latest.
func newGoingHarness(t *testing.T, f admin.Service, change ...func(*admin.Config)) (h *harness, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conf := admin.Config{Listen: l, Service: f}
	for _, f := range change {
		f(&conf)
	}
	s, err := admin.New(conf)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &harness{t: t, address: l.Addr().String()}, cancel
}

func (h *harness) run(args ...string) (code int, stdout, stderr string) {
	return h.runContext(h.t.Context(), args...)
}

func (h *harness) runContext(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	h.t.Helper()
	var out, errs bytes.Buffer
	c := &cli{
		out: &out, err: &errs, in: strings.NewReader(h.input), terminal: h.terminal, environ: func() []string { return nil },
		env: func(name string) (string, bool) {
			return h.address, h.address != "" && name == "KMIRROR_BOOTSTRAP_SERVER"
		},
	}
	code = c.run(ctx, args)
	return code, out.String(), errs.String()
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUsageErrorsExitWith2AndSayWhatToDo(t *testing.T) {
	h := newHarness(t, &fakeService{})
	secret := file(t, "m", "bootstrap.servers=a:1\nssl.key.password=hunter2\n")
	for name, args := range map[string][]string{
		"unknown command":      {"frobnicate"},
		"unknown flag":         {"list", "--frob"},
		"argument":             {"list", "extra"},
		"missing flag":         {"start", "--mirror", "m"},
		"bad output":           {"list", "-o", "xml"},
		"bad list":             {"start", "--mirror", "m", "--topics", "/("},
		"bad exclude":          {"start", "--mirror", "m", "--topics", "a", "--exclude", "a b"},
		"no mirror file":       {"create", "--mirror", "m", "--mirror-config", "/none"},
		"no bootstrap":         {"create", "--mirror", "m", "--mirror-config", file(t, "e", "")},
		"bad mirror name":      {"create", "--mirror", "a b", "--mirror-config", file(t, "e", "bootstrap.servers=a:1")},
		"secret":               {"create", "--mirror", "m", "--mirror-config", secret},
		"bad address":          {"list", "--bootstrap-server", "nowhere"},
		"no command config":    {"list", "--command-config", "/none"},
		"SASL command config":  {"list", "--command-config", file(t, "c", "security.protocol=SASL_SSL")},
		"bad rate":             {"verify", "--mirror", "m", "--max-rate", "fast"},
		"negative since":       {"verify", "--mirror", "m", "--since", "-1h"},
		"nothing to verify":    {"verify", "--mirror", "m"},
		"short interval":       {"describe", "--watch", "--interval", "1ms"},
		"no topic matches":     {"start", "--mirror", "m", "--topics", "a"},
		"serve without config": {"serve", "--config", "/none"},
		"failover of what":     {"failover", "--mirror", "m"},
		"topics and all":       {"promote", "--mirror", "m", "--topics", "t", "--all"},
		"loss below 0":         {"stop", "--mirror", "m", "--all", "--max-loss", "-2"},
		"wait below 0":         {"pause", "--mirror", "m", "--topics", "t", "--wait", "-1s"},
		"resume bad list":      {"resume", "--mirror", "m", "--topics", "/("},
		"recover of what":      {"recover", "--mirror", "m"},
		"delete of what":       {"delete"},
		"retire of what":       {"retire"},
		"retire bad ids":       {"retire", "--node-ids", "9001,x"},
		"retire no ids":        {"retire", "--node-ids", ","},
		"retire at once":       {"retire", "--node-ids", "9001", "--wait", "0s"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := h.run(args...)
			if code != admin.ExitUsage || !strings.Contains(stderr, "what to do:") {
				t.Errorf("exit %d\n%s%s", code, stdout, stderr)
			}
			if strings.Contains(stderr, "hunter2") {
				t.Error("the secret is printed")
			}
		})
	}
	h.address = ""
	if code, _, stderr := h.run("list"); code != admin.ExitUsage || !strings.Contains(stderr, "KMIRROR_BOOTSTRAP_SERVER") {
		t.Errorf("no address: %d %s", code, stderr)
	}
}

func TestErrorsAsJSONGoToStderr(t *testing.T) {
	h := newHarness(t, &fakeService{err: &admin.Error{Code: kip1279.UnknownClusterMirror, Message: "m", Hint: "h", Exit: admin.ExitRefused}})
	code, stdout, stderr := h.run("list", "-o", "json")
	var got map[string]map[string]string
	if err := json.Unmarshal([]byte(stderr), &got); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	want := map[string]string{"code": "UNKNOWN_CLUSTER_MIRROR", "message": "m", "hint": "h"}
	if code != admin.ExitRefused || stdout != "" || len(got["error"]) != 3 {
		t.Errorf("exit %d, stdout %q, stderr %s", code, stdout, stderr)
	}
	for k, v := range want {
		if got["error"][k] != v {
			t.Errorf("%s: %q", k, got["error"][k])
		}
	}
	h.address = "127.0.0.1:1"
	if code, _, stderr := h.run("list"); code != admin.ExitUnreachable || !strings.Contains(stderr, "kmirror serve") {
		t.Errorf("unreachable: %d %s", code, stderr)
	}
}

func TestCreate(t *testing.T) {
	f := &fakeService{mirrors: []admin.MirrorInfo{{Mirror: "old", SourceBootstrap: "a:1", SourceClusterID: "cid"}}}
	h := newHarness(t, f)
	conf := file(t, "m", "bootstrap.servers=a:1\ngroup.id=x\n")
	code, stdout, stderr := h.run("create", "--mirror", "dc1", "--mirror-config", conf, "--dry-run")
	if code != 0 || !strings.Contains(stdout, "would send: CreateClusterMirror dc1: bootstrap.servers=a:1") || f.created != nil {
		t.Errorf("dry run: %d %s%s", code, stdout, stderr)
	}
	if !strings.Contains(stderr, "group.id") {
		t.Errorf("no warning about a property without effect: %s", stderr)
	}
	if code, stdout, _ := h.run("create", "--mirror", "old", "--mirror-config", conf, "--dry-run"); code != 0 ||
		!strings.Contains(stdout, "it exists") {
		t.Errorf("dry run of one that exists: %d %s", code, stdout)
	}
	code, stdout, _ = h.run("create", "--mirror", "dc1", "--mirror-config", conf, "-o", "json")
	if code != 0 || f.created["dc1"]["bootstrap.servers"] != "a:1" || !strings.Contains(stdout, `"created": true`) {
		t.Errorf("create: %d %s %v", code, stdout, f.created)
	}
}

func TestStart(t *testing.T) {
	f := &fakeService{results: []admin.TopicResult{{Topic: "t", Partitions: 6}}}
	h := newHarness(t, f)
	code, stdout, _ := h.run("start", "--mirror", "m", "--topics", "t,/a.*/", "--exclude", "ab")
	if code != 0 || !strings.Contains(stdout, "started") {
		t.Errorf("%d %s", code, stdout)
	}
	if got := f.starts[0]; got.Mirror != "m" || len(got.Topics) != 2 || len(got.Exclude) != 1 || got.Overwrite || got.DryRun {
		t.Errorf("%+v", got)
	}
	f.results = append(f.results, admin.TopicResult{Topic: "u", Err: &admin.Error{Code: kip1279.InconsistentTopicID, Message: "holds data",
		Hint: "give --overwrite", Exit: admin.ExitRefused}})
	code, stdout, stderr := h.run("start", "--mirror", "m", "--topics", "t,u")
	if code != admin.ExitRefused || !strings.Contains(stdout, "started") || !strings.Contains(stdout, "refused: holds data") ||
		!strings.Contains(stderr, "--overwrite") {
		t.Errorf("%d %s%s", code, stdout, stderr)
	}
}

func TestStartThatTruncatesIsAskedAtATerminalOnly(t *testing.T) {
	plan := []admin.TopicResult{{Topic: "t", Partitions: 1, Plan: &admin.TopicPlan{
		Partitions: []admin.PartitionPlan{{Partition: 0, Lost: 5, Truncated: 5, Copied: 100}}, Requests: []string{"AlterPartitionReassignments t"}}}}
	for _, c := range []struct {
		name, input string
		terminal    bool
		args        []string
		code        int
		starts      []bool // DryRun of each request
	}{
		{"script", "", false, nil, 0, []bool{false}},
		{"terminal, yes", "y\n", true, nil, 0, []bool{true, false}},
		{"terminal, no", "n\n", true, nil, admin.ExitRefused, []bool{true}},
		{"terminal, end of input", "", true, nil, admin.ExitRefused, []bool{true}},
		{"terminal, --yes", "", true, []string{"--yes"}, 0, []bool{false}},
		{"dry run", "", true, []string{"--dry-run"}, 0, []bool{true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fakeService{results: plan}
			h := newHarness(t, f)
			h.terminal, h.input = c.terminal, c.input
			code, stdout, stderr := h.run(append([]string{"start", "--mirror", "m", "--topics", "t", "--overwrite"}, c.args...)...)
			if code != c.code || len(f.starts) != len(c.starts) {
				t.Fatalf("exit %d, %d requests\n%s%s", code, len(f.starts), stdout, stderr)
			}
			for i, s := range f.starts {
				if s.DryRun != c.starts[i] || !s.Overwrite {
					t.Errorf("request %d: %+v", i, s)
				}
			}
			if c.starts[0] && !strings.Contains(stdout+stderr, "5") {
				t.Errorf("what is lost is not shown:\n%s%s", stdout, stderr)
			}
		})
	}
}

func partitions() []admin.PartitionInfo {
	return []admin.PartitionInfo{
		{Mirror: "m", Topic: "t", Partition: 0, State: "MIRRORING", SourceOffset: new(int64(9)), DestinationOffset: new(int64(8)),
			Lag: new(int64(1)), LagSeconds: new(0.5), Locked: new(true), LeaderNode: new(int32(9001)), ISRReal: []int32{1, 2, 3}},
		{Mirror: "m", Topic: "t", Partition: 1, State: "FAILED", Retry: -1, Error: new("diverged"), Hint: new("start again"),
			Lag: new(int64(4)), LagSeconds: new(2.5), Locked: new(false), ISRReal: []int32{1}},
		{Mirror: "m", Topic: "u", Partition: 0, State: "PREPARING"},
	}
}

func TestListAndDescribe(t *testing.T) {
	f := &fakeService{parts: partitions(), mirrors: []admin.MirrorInfo{
		{Mirror: "m", SourceBootstrap: "a:1", SourceClusterID: "cid", TopicCount: 2, Topics: []string{"t", "u"},
			Properties: map[string]string{"bootstrap.servers": "a:1", "ssl.key.password": "${env:HOME}", "ssl.keystore.password": "stored before"}}}}
	h := newHarness(t, f)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"list"}, "MIRROR  TOPICS  SOURCE-CLUSTER-ID  SOURCE-BOOTSTRAP-SERVER\nm       2       cid                a:1\n"},
		{[]string{"list", "-o", "yaml"}, "- mirror: m\n  source_bootstrap_server: a:1\n  source_cluster_id: cid\n  topics: 2\n  topic_names:\n    - t\n    - u\n" +
			"  properties:\n    bootstrap.servers: a:1\n    ssl.key.password: ${env:HOME}\n    ssl.keystore.password: '****'\n"},
		{[]string{"describe"},
			"MIRROR  TOPIC  PARTITION  SOURCE-OFFSET  DESTINATION-OFFSET  LAG  STATE      LOCKED  LEADER  ISR-REAL\n" +
				"m       t      0          9              8                   1    MIRRORING  yes     9001    [1,2,3]\n" +
				"m       t      1          -              -                   4    FAILED     NO      -       [1]\n" +
				"m       u      0          -              -                   -    PREPARING  -       -       -\n"},
		{[]string{"describe", "--failed"},
			"MIRROR  TOPIC  PARTITION  RETRY         ERROR     WHAT TO DO\n" +
				"m       t      1          NonRetryable  diverged  start again\n"},
		{[]string{"describe", "--summary"},
			"MIRROR  TOPICS  PARTITIONS  MIRRORING  PAUSED  STOPPED  FAILED  OTHER  LAG  MAX-LAG  LAG-SECONDS  UNLOCKED  MIN-ISR-REAL\n" +
				"m       2       3           1          0       0        1       1      5    4        2.5          1         1\n"},
	} {
		if code, stdout, stderr := h.run(c.args...); code != 0 || stdout != c.want {
			t.Errorf("%v: exit %d\n%s%s\nwant\n%s", c.args, code, stdout, stderr, c.want)
		}
	}
}

// A lag that was heard of long ago is shown as what it is: the least that it can be.
func TestDescribeOfSilentSource(t *testing.T) {
	parts := partitions()
	parts[0].SourceAgeSeconds, parts[1].SourceAgeSeconds = new(12.4), new(99.0)
	h := newHarness(t, &fakeService{parts: parts})
	const note = "The source of mirror m has not answered for 12 s"
	_, stdout, _ := h.run("describe")
	if !strings.Contains(stdout, " >=1 ") || !strings.Contains(stdout, " >=4 ") || !strings.Contains(stdout, note) {
		t.Errorf("describe:\n%s", stdout)
	}
	_, stdout, _ = h.run("describe", "--summary")
	if !strings.Contains(stdout, " >=5 ") || !strings.Contains(stdout, note) {
		t.Errorf("describe --summary:\n%s", stdout)
	}
	parts[0].SourceAgeSeconds = new(1.0)
	if _, stdout, _ = h.run("describe"); strings.Contains(stdout, ">=1") || strings.Contains(stdout, "has not answered") {
		t.Errorf("describe of a source that answers:\n%s", stdout)
	}
}

// The fields of describe -o json are an interface: none may be renamed or left out.
func TestDescribeJSONIsTheInterface(t *testing.T) {
	h := newHarness(t, &fakeService{parts: partitions()[2:]})
	_, stdout, _ := h.run("describe", "-o", "json")
	want := `[
  {
    "mirror": "m",
    "topic": "u",
    "partition": 0,
    "state": "PREPARING",
    "state_since": null,
    "source_topic_id": null,
    "topic_id": null,
    "source_offset": null,
    "destination_offset": null,
    "lag": null,
    "lag_bytes": null,
    "lag_seconds": null,
    "source_age_seconds": null,
    "source_epoch": null,
    "destination_epoch": null,
    "last_mirrored_epoch": null,
    "locked": null,
    "leader_node": null,
    "process": null,
    "isr_real": null,
    "retry": 0,
    "error": null,
    "hint": null,
    "sync": null
  }
]
`
	if stdout != want {
		t.Errorf("got\n%s", stdout)
	}
	h = newHarness(t, &fakeService{})
	for args, want := range map[string]string{"describe -o json": "[]\n", "describe --summary -o json": "[]\n", "list -o json": "[]\n",
		"list -o yaml": "[]\n"} {
		if code, stdout, _ := h.run(strings.Fields(args)...); code != 0 || stdout != want {
			t.Errorf("%s: %d %q", args, code, stdout)
		}
	}
}

func TestWatchEndsWithoutErrorWhenInterrupted(t *testing.T) {
	h := newHarness(t, &fakeService{parts: partitions()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		code, _, _ := h.runContext(ctx, "describe", "--watch", "--interval", "100ms")
		done <- code
	}()
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestVerify(t *testing.T) {
	f := &fakeService{parts: partitions()}
	f.verify = func(r admin.VerifyRequest) admin.VerifyResponse {
		switch {
		case r.Topic == "t" && r.Cursor == "":
			return admin.VerifyResponse{Cursor: "next", Batches: 10, Bytes: 100}
		case r.Topic == "u":
			return admin.VerifyResponse{Done: true, Batches: 5, Note: "cleaner at work"}
		}
		return admin.VerifyResponse{Done: true, Batches: 1}
	}
	h := newHarness(t, f)
	code, stdout, stderr := h.run("verify", "--mirror", "m", "--since", "1h", "--max-rate", "10MiB")
	if code != 0 || stdout != "note: u-0: cleaner at work\nverify: 0 of 27 batches differ\n" || stderr != "" {
		t.Errorf("%d\n%s%s", code, stdout, stderr)
	}
	if len(f.steps) != 5 || f.steps[1].Cursor != "next" || f.steps[0].MaxRate != 10<<20 || f.steps[0].SinceMS == 0 || f.steps[2].Cursor != "" {
		t.Errorf("%+v", f.steps)
	}
	f.verify = func(r admin.VerifyRequest) admin.VerifyResponse {
		return admin.VerifyResponse{Done: true, Batches: 3, Differ: 1, First: &admin.Difference{Topic: r.Topic, Partition: r.Partition,
			Offset: 42, Field: "crc", Source: "0x1"}}
	}
	code, stdout, stderr = h.run("verify", "--mirror", "m", "--topics", "t")
	if code != admin.ExitDiffers || !strings.HasPrefix(stdout, "first difference: t-0 at offset 42, crc: source 0x1, destination has none\n") ||
		!strings.Contains(stdout, "verify: 2 of 6 batches differ") || stderr == "" {
		t.Errorf("%d\n%s%s", code, stdout, stderr)
	}
	code, stdout, _ = h.run("verify", "--mirror", "m", "--topics", "t", "-o", "json")
	var got verifyResult
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != admin.ExitDiffers || got.Differ != 2 || got.First.Offset != 42 {
		t.Errorf("%d %v %+v", code, err, got)
	}
	f.verify = func(admin.VerifyRequest) admin.VerifyResponse { return admin.VerifyResponse{} }
	if code, _, stderr := h.run("verify", "--mirror", "m"); code != admin.ExitFailed || !strings.Contains(stderr, "no cursor") {
		t.Errorf("a verification that can't go on: %d %s", code, stderr)
	}
	f.err = errors.New("boom")
	if code, _, _ := h.run("verify", "--mirror", "m"); code != admin.ExitFailed {
		t.Errorf("exit %d", code)
	}
}

func TestVersion(t *testing.T) {
	h := &harness{t: t}
	if code, stdout, _ := h.run("version"); code != 0 || !strings.HasPrefix(stdout, "kmirror unknown (go") {
		t.Errorf("%d %s", code, stdout)
	}
	var v map[string]string
	if _, stdout, _ := h.run("version", "-o", "json"); json.Unmarshal([]byte(stdout), &v) != nil || v["version"] != "unknown" {
		t.Errorf("%s", stdout)
	}
}
