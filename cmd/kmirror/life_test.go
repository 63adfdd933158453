package main

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"kmirror/internal/admin"
	"kmirror/protocol/kip1279"
)

// lifeService answers the verbs of topics' later life.
type lifeService struct {
	fakeService
	// answer is what a request for a change is told, refused its error.
	answer  func(dryRun bool) []admin.TopicResult
	refused error
	// look describes; n counts from 1.
	look  func(n int) ([]admin.PartitionInfo, error)
	looks int
	// asked are the requests for a change by their verb, a dry run's with a star.
	asked  []string
	stops  []admin.StopRequest
	topics []admin.TopicsRequest
	retire []admin.RetireRequest
	result admin.RetireResult
}

func (f *lifeService) note(verb string, dryRun bool) ([]admin.TopicResult, error) {
	if dryRun {
		verb += "*"
	}
	f.asked = append(f.asked, verb)
	if f.answer == nil || f.refused != nil {
		return nil, f.refused
	}
	return f.answer(dryRun), nil
}

func (f *lifeService) StopTopics(_ context.Context, req admin.StopRequest) ([]admin.TopicResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stops = append(f.stops, req)
	return f.note("stop", req.DryRun)
}

func (f *lifeService) change(verb string, req admin.TopicsRequest) ([]admin.TopicResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topics = append(f.topics, req)
	return f.note(verb, req.DryRun)
}

func (f *lifeService) PauseTopics(_ context.Context, req admin.TopicsRequest) ([]admin.TopicResult, error) {
	return f.change("pause", req)
}

func (f *lifeService) ResumeTopics(_ context.Context, req admin.TopicsRequest) ([]admin.TopicResult, error) {
	return f.change("resume", req)
}

func (f *lifeService) RecoverTopics(_ context.Context, req admin.TopicsRequest) ([]admin.TopicResult, error) {
	return f.change("recover", req)
}

func (f *lifeService) DeleteMirror(_ context.Context, req admin.DeleteRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.note("delete", req.DryRun)
	return err
}

func (f *lifeService) Retire(_ context.Context, req admin.RetireRequest) (admin.RetireResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retire = append(f.retire, req)
	_, err := f.note("retire", req.DryRun)
	return f.result, err
}

func (f *lifeService) Describe(_ context.Context, req admin.DescribeRequest) ([]admin.PartitionInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.looks++; f.look == nil {
		return nil, nil
	}
	parts, err := f.look(f.looks)
	m, _ := admin.NewMatcher(req.Topics)
	var out []admin.PartitionInfo
	for _, p := range parts {
		if len(req.Topics) == 0 || m.Match(p.Topic) {
			out = append(out, p)
		}
	}
	return out, err
}

// accepted answers that topics were accepted.
func accepted(topics ...string) func(bool) []admin.TopicResult {
	return func(bool) []admin.TopicResult {
		var out []admin.TopicResult
		for _, t := range topics {
			out = append(out, admin.TopicResult{Topic: t, Partitions: 1})
		}
		return out
	}
}

// in describes partitions written topic-number STATE.
func in(lines ...string) []admin.PartitionInfo {
	var out []admin.PartitionInfo
	for _, l := range lines {
		name, state, _ := strings.Cut(l, " ")
		topic, n, _ := strings.Cut(name, "-")
		out = append(out, admin.PartitionInfo{Mirror: "m", Topic: topic, Partition: int32(n[0] - '0'), State: state})
	}
	return out
}

func TestVerbsWaitForTheirGoal(t *testing.T) {
	for _, c := range []struct {
		args       string
		from, goal string
		stop       *admin.StopRequest
		topics     *admin.TopicsRequest
	}{
		{"promote --mirror m --topics t,/u.*/ --max-loss 5", "MIRRORING", "STOPPED",
			&admin.StopRequest{Mirror: "m", Topics: []string{"t", "/u.*/"}, Drain: true, MaxLoss: 5}, nil},
		{"failover --mirror m --all --force", "STOPPING", "STOPPED", &admin.StopRequest{Mirror: "m", All: true, MaxLoss: -1, Force: true}, nil},
		{"stop --mirror m --topics t", "FAILED", "STOPPED", &admin.StopRequest{Mirror: "m", Topics: []string{"t"}, MaxLoss: -1}, nil},
		{"pause --mirror m --topics t", "PAUSING", "PAUSED", nil, &admin.TopicsRequest{Mirror: "m", Topics: []string{"t"}}},
		{"resume --mirror m --topics /.*/", "PAUSED", "MIRRORING", nil, &admin.TopicsRequest{Mirror: "m", Topics: []string{"/.*/"}}},
		{"recover --mirror m --topics t", "FAILED", "MIRRORING", nil, &admin.TopicsRequest{Mirror: "m", Topics: []string{"t"}}},
	} {
		t.Run(c.args, func(t *testing.T) {
			f := &lifeService{answer: accepted("t", "u")}
			f.look = func(n int) ([]admin.PartitionInfo, error) {
				if n == 1 {
					return in("t-0 "+c.from, "t-1 "+c.goal), nil // u does not show yet
				}
				return in("t-0 "+c.goal, "t-1 "+c.goal, "u-0 "+c.goal), nil
			}
			code, stdout, stderr := newHarness(t, f).run(strings.Fields(c.args)...)
			want := "TOPIC  PARTITION  STATE      LAG  ERROR\n" +
				"t      0          GOAL       -    -\nt      1          GOAL       -    -\nu      0          GOAL       -    -\n"
			want = strings.ReplaceAll(strings.ReplaceAll(want, "GOAL       ", c.goal+strings.Repeat(" ", max(7, len(c.goal)+2)-len(c.goal))),
				"STATE      ", "STATE"+strings.Repeat(" ", max(7, len(c.goal)+2)-5))
			if code != 0 || stdout != want || stderr != "" || f.looks != 2 {
				t.Errorf("exit %d after %d looks\n%s%s\nwant\n%s", code, f.looks, stdout, stderr, want)
			}
			if c.stop != nil && !reflect.DeepEqual(f.stops, []admin.StopRequest{*c.stop}) {
				t.Errorf("%+v", f.stops)
			}
			if c.topics != nil && !reflect.DeepEqual(f.topics, []admin.TopicsRequest{*c.topics}) {
				t.Errorf("%+v", f.topics)
			}
		})
	}
}

func TestAWaitThatRunsOutSaysWhatRemains(t *testing.T) {
	f := &lifeService{answer: accepted("t", "u")}
	f.look = func(int) ([]admin.PartitionInfo, error) {
		parts := in("t-0 STOPPED", "t-1 STOPPING", "t-2 MIRRORING", "t-3 STOPPING", "t-4 FAILED", "u-0 STOPPED")
		parts[2].Lag, parts[4].Error, parts[4].Hint = new(int64(12)), new("broker 3 is gone"), new("bring it back")
		return parts, nil
	}
	h := newHarness(t, f)
	code, stdout, stderr := h.run("promote", "--mirror", "m", "--all", "--wait", "1s")
	if code != admin.ExitIncomplete || f.looks < 2 || !strings.Contains(stdout, "t      2          MIRRORING  12   -\n") ||
		!strings.Contains(stdout, "t      4          FAILED     -    broker 3 is gone\n") {
		t.Errorf("exit %d after %d looks\n%s", code, f.looks, stdout)
	}
	want := "kmirror: 4 of 6 partitions are not STOPPED after 1s: t-1 is STOPPING, t-2 is MIRRORING, t-3 is STOPPING and 1 more\n" +
		"  what to do: kmirror serve goes on; the same command again attaches, kmirror describe --mirror m shows how far it is\n"
	if stderr != want {
		t.Errorf("got\n%swant\n%s", stderr, want)
	}
	code, stdout, stderr = h.run("promote", "--mirror", "m", "--all", "--wait", "0s", "-o", "json")
	var rows []map[string]any
	var e errorDocument
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil || code != admin.ExitIncomplete || len(rows) != 6 {
		t.Fatalf("exit %d, %v\n%s", code, err, stdout)
	}
	if err := json.Unmarshal([]byte(stderr), &e); err != nil || e.Error.Code != "REQUEST_TIMED_OUT" || e.Error.Hint == "" {
		t.Errorf("%v: %s", err, stderr)
	}
	wantRow := map[string]any{"mirror": "m", "topic": "t", "partition": 4.0, "state": "FAILED", "lag": nil, "lost": nil, "truncated": nil,
		"copied": nil, "done": false, "error": "broker 3 is gone", "hint": "bring it back"}
	if !reflect.DeepEqual(rows[4], wantRow) || rows[0]["done"] != true {
		t.Errorf("%v", rows)
	}
}

// A wait ends when what is missing has FAILED for good, not when that was so for a moment, and not where something else is still under way.
func TestAWaitEndsWhenNoRetryCanHelp(t *testing.T) {
	f := &lifeService{answer: accepted("t")}
	begin := time.Now()
	f.look = func(n int) ([]admin.PartitionInfo, error) {
		parts := in("t-0 MIRRORING", "t-1 FAILED", "t-2 FAILED")
		parts[1].Retry, parts[2].Retry = -1, -1
		if n == 3 {
			parts[1].Retry, begin = 1, time.Now()
		}
		return parts, nil
	}
	code, _, stderr := newHarness(t, f).run("recover", "--mirror", "m", "--topics", "t", "--wait", "30s")
	took := time.Since(begin)
	if code != admin.ExitIncomplete || took < hopelessAfter || took > 20*time.Second ||
		!strings.Contains(stderr, "2 of 3 partitions are not MIRRORING, PAUSED or STOPPED and no retry can help") ||
		!strings.Contains(stderr, "describe --mirror m --failed") {
		t.Errorf("exit %d after %s\n%s", code, took, stderr)
	}
}

func TestPartialRefusalsAreReportedAndTheRestWaitedFor(t *testing.T) {
	f := &lifeService{}
	f.answer = func(bool) []admin.TopicResult {
		return append(accepted("a")(false),
			admin.TopicResult{Topic: "b", Err: &admin.Error{Code: kip1279.PolicyViolation, Message: "would lose 312 records", Hint: "raise --max-loss",
				Exit: admin.ExitRefused}},
			admin.TopicResult{Topic: "c", Err: &admin.Error{Code: kip1279.InvalidClusterMirrorStates, Message: "is FAILED", Exit: admin.ExitFailed}},
			admin.TopicResult{Topic: "d", Err: &admin.Error{Code: kip1279.TopicNotInClusterMirror, Message: "is STOPPED", Exit: admin.ExitRefused}})
	}
	f.look = func(n int) ([]admin.PartitionInfo, error) {
		if n < 3 {
			return in("a-0 STOPPING", "b-0 MIRRORING", "c-0 FAILED", "d-0 STOPPED"), nil
		}
		return in("a-0 STOPPED", "b-0 MIRRORING", "c-0 FAILED", "d-0 STOPPED"), nil
	}
	h := newHarness(t, f)
	code, stdout, stderr := h.run("failover", "--mirror", "m", "--all", "--max-loss", "0")
	want := "TOPIC  PARTITION  STATE    LAG  ERROR\n" +
		"a      0          STOPPED  -    -\n" +
		"b      -          refused  -    would lose 312 records\n" +
		"c      -          refused  -    is FAILED\n" +
		"d      0          STOPPED  -    -\n" // a goal already reached is no refusal
	if code != admin.ExitRefused || stdout != want || f.looks != 3 ||
		stderr != "kmirror: 2 of 4 topics refused; the first: b: would lose 312 records\n  what to do: raise --max-loss\n" {
		t.Errorf("exit %d after %d looks\n%s%s", code, f.looks, stdout, stderr)
	}
	// Nothing accepted: nothing is waited for, and what is there already is exit 0.
	f.answer = func(bool) []admin.TopicResult {
		return []admin.TopicResult{{Topic: "p", Err: &admin.Error{Code: kip1279.MirrorTopicAlreadyPaused, Message: "paused", Exit: admin.ExitRefused}}}
	}
	f.looks, f.look = 0, func(int) ([]admin.PartitionInfo, error) { return in("p-0 PAUSED"), nil }
	if code, stdout, stderr := h.run("pause", "--mirror", "m", "--topics", "p"); code != 0 || f.looks != 1 || !strings.Contains(stdout, "PAUSED") {
		t.Errorf("exit %d after %d looks\n%s%s", code, f.looks, stdout, stderr)
	}
	f.looks, f.look = 0, func(int) ([]admin.PartitionInfo, error) { return in("p-0 MIRRORING"), nil }
	if code, _, _ := h.run("pause", "--mirror", "m", "--topics", "p"); code != admin.ExitRefused || f.looks != 1 {
		t.Errorf("exit %d after %d looks", code, f.looks)
	}
}

func TestAServeThatIsAwayForAMomentIsAskedAgain(t *testing.T) {
	f := &lifeService{answer: accepted("t")}
	away := &admin.Error{Code: kip1279.CoordinatorNotAvailable, Message: "being loaded", Hint: "wait", Exit: admin.ExitUnreachable}
	f.look = func(n int) ([]admin.PartitionInfo, error) {
		if n < 3 {
			return nil, away
		}
		return in("t-0 STOPPED"), nil
	}
	h := newHarness(t, f)
	if code, stdout, stderr := h.run("stop", "--mirror", "m", "--all"); code != 0 || f.looks != 3 {
		t.Errorf("exit %d after %d looks\n%s%s", code, f.looks, stdout, stderr)
	}
	f.look = func(int) ([]admin.PartitionInfo, error) { return nil, away }
	code, stdout, stderr := h.run("stop", "--mirror", "m", "--all", "--wait", "60ms")
	if code != admin.ExitIncomplete || !strings.Contains(stderr, "1 of 1 partitions") || !strings.Contains(stderr, "being loaded") ||
		!strings.Contains(stdout, "t      -") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	f.look = func(int) ([]admin.PartitionInfo, error) {
		return nil, &admin.Error{Code: kip1279.UnknownClusterMirror, Message: "no mirror m", Exit: admin.ExitUsage}
	}
	if code, _, stderr := h.run("stop", "--mirror", "m", "--all"); code != admin.ExitUsage || !strings.Contains(stderr, "no mirror m") {
		t.Errorf("a mirror that is deleted meanwhile: exit %d, %s", code, stderr)
	}
}

func TestRequestsThatAreRefusedAltogether(t *testing.T) {
	f := &lifeService{refused: &admin.Error{Code: kip1279.CoordinatorNotAvailable, Message: "the source does not answer",
		Hint: "failover does not ask it", Exit: admin.ExitUnreachable}}
	h := newHarness(t, f)
	code, stdout, stderr := h.run("promote", "--mirror", "m", "--all")
	if code != admin.ExitUnreachable || stdout != "" || !strings.Contains(stderr, "failover does not ask it") || f.looks != 0 {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	f.refused = nil
	if code, _, stderr := h.run("stop", "--mirror", "m", "--topics", "t"); code != admin.ExitUsage || !strings.Contains(stderr, "matches") {
		t.Errorf("nothing matches: exit %d %s", code, stderr)
	}
	if code, stdout, stderr := h.run("stop", "--mirror", "m", "--all", "-o", "json"); code != 0 || stdout != "[]\n" ||
		!strings.Contains(stderr, "no topics") {
		t.Errorf("a mirror without topics: exit %d %s%s", code, stdout, stderr)
	}
}

func stopPlan(bool) []admin.TopicResult {
	return []admin.TopicResult{
		{Topic: "a", Partitions: 2, Plan: &admin.TopicPlan{Requests: []string{"IncrementalAlterConfigs a: unlock", "AlterPartitionReassignments a"},
			Partitions: []admin.PartitionPlan{{Partition: 0, Lost: 312, Truncated: 0, Copied: 5, Lag: 317},
				{Partition: 1, Lost: -1, Truncated: -1, Copied: -1, Lag: -1}}}},
		{Topic: "b", Err: &admin.Error{Code: kip1279.PolicyViolation, Message: "is PREPARING", Hint: "--force", Exit: admin.ExitRefused}},
		{Topic: "c", Partitions: 1, Plan: &admin.TopicPlan{Requests: []string{"nothing"}}},
	}
}

// What a failover would lose is told by what the source said last: a dry run, and the question, say when that was long ago.
func TestADryRunSaysThatTheSourceIsSilent(t *testing.T) {
	parts := partitions()
	parts[0].SourceAgeSeconds = new(12.4)
	f := &lifeService{answer: stopPlan, look: func(int) ([]admin.PartitionInfo, error) { return parts, nil }}
	h := newHarness(t, f)
	const note = "the source of mirror m has not answered for 12 s"
	for verb, want := range map[string]bool{"failover": true, "stop": true, "promote": false} {
		_, stdout, stderr := h.run(verb, "--mirror", "m", "--all", "--dry-run")
		if strings.Contains(stderr, note) != want || strings.Contains(stdout, note) {
			t.Errorf("%s --dry-run: %s", verb, stderr)
		}
	}
	h.terminal = true
	if _, _, stderr := h.run("failover", "--mirror", "m", "--all"); !strings.Contains(stderr, note) {
		t.Errorf("failover at a terminal: %s", stderr)
	}
}

func TestADryRunShowsLossesAndRequests(t *testing.T) {
	f := &lifeService{answer: stopPlan}
	h := newHarness(t, f)
	h.terminal = true
	code, stdout, stderr := h.run("failover", "--mirror", "m", "--all", "--dry-run")
	want := "TOPIC  PARTITION  LAG  LOST  TRUNCATED  COPIED  ERROR\n" +
		"a      0          317  312   0          5       -\n" +
		"a      1          ?    ?     ?          ?       -\n" +
		"b      -          -    -     -          -       is PREPARING\n" +
		"c      -          -    -     -          -       -\n" +
		"would send: IncrementalAlterConfigs a: unlock\n" +
		"would send: AlterPartitionReassignments a\n" +
		"would send: nothing\n"
	if code != admin.ExitRefused || stdout != want || !strings.Contains(stderr, "--force") || !reflect.DeepEqual(f.asked, []string{"stop*"}) {
		t.Errorf("exit %d, asked %v\n%s%s", code, f.asked, stdout, stderr)
	}
	code, stdout, _ = h.run("pause", "--mirror", "m", "--topics", "a", "--dry-run", "-o", "json")
	var rows []partitionResult
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil || code != admin.ExitRefused || len(rows) != 4 || *rows[0].Lost != 312 ||
		len(rows[0].Requests) != 2 || rows[1].Lost != nil || rows[1].Requests != nil || *rows[2].Hint != "--force" || rows[2].Partition != nil {
		t.Errorf("exit %d %v\n%s", code, err, stdout)
	}
}

func TestFailoverDeleteAndRetireAreAskedAtATerminalOnly(t *testing.T) {
	lost := "a: an unknown number of records are lost\nb: would be refused: is PREPARING\n"
	for _, c := range []struct {
		name, args, input string
		terminal          bool
		code              int
		asked             string
		question          string
	}{
		{"failover in a script", "failover --mirror m --all", "", false, 0, "stop", ""},
		{"failover, yes", "failover --mirror m --all", "y\n", true, 0, "stop* stop",
			lost + "Fail over 2 topics of mirror m? Clients can write to them afterwards, and an unknown number of records are lost. [y/N] "},
		{"stop, no", "stop --mirror m --all", "n\n", true, admin.ExitRefused, "stop*", lost + "Fail over 2 topics"},
		{"failover --yes", "failover --mirror m --all --yes", "", true, 0, "stop", ""},
		{"promote is not asked", "promote --mirror m --all", "", true, 0, "stop", ""},
		{"pause is not asked", "pause --mirror m --topics a", "", true, 0, "pause", ""},
		{"delete in a script", "delete --mirror m", "", false, 0, "delete", ""},
		{"delete, yes", "delete --mirror m", "yes\n", true, 0, "delete* delete", "Delete mirror m and what is remembered of its 2 topics?"},
		{"delete, end of input", "delete --mirror m", "", true, admin.ExitRefused, "delete*", "Delete mirror m"},
		{"retire, no", "retire --node-ids 9001,9002", "n\n", true, admin.ExitRefused, "retire*",
			"Retire node ids [9001,9002]? 7 partitions are handed back, 1 topics stop being mirrored, and the process ends. [y/N] "},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &lifeService{result: admin.RetireResult{Partitions: 7, Stopped: []string{"a"}}}
			f.answer = func(dry bool) []admin.TopicResult {
				if dry {
					return stopPlan(dry)
				}
				return accepted("a", "c")(dry)
			}
			state := "STOPPED"
			if strings.HasPrefix(c.args, "pause") {
				state = "PAUSED"
			}
			f.look = func(int) ([]admin.PartitionInfo, error) { return in("a-0 "+state, "a-1 "+state, "c-0 "+state), nil }
			h := newHarness(t, f)
			h.terminal, h.input = c.terminal, c.input
			code, stdout, stderr := h.run(strings.Fields(c.args)...)
			if code != c.code || strings.Join(f.asked, " ") != c.asked || !strings.HasPrefix(stderr, c.question) || c.question == "" &&
				strings.Contains(stderr, "[y/N]") {
				t.Errorf("exit %d, asked %v\n%s%s", code, f.asked, stdout, stderr)
			}
		})
	}
}

// A plan that can't be made is no reason to keep a failover from happening.
func TestFailoverIsAskedWithoutAPlanToo(t *testing.T) {
	f := &lifeService{refused: &admin.Error{Code: kip1279.RequestTimedOut, Message: "replicas don't answer", Exit: admin.ExitIncomplete}}
	h := newHarness(t, f)
	h.terminal, h.input = true, "y\n"
	code, _, stderr := h.run("failover", "--mirror", "m", "--all")
	if code != admin.ExitIncomplete || !strings.HasPrefix(stderr, "can't tell what would be lost: replicas don't answer\n") ||
		strings.Join(f.asked, " ") != "stop* stop" {
		t.Errorf("exit %d, asked %v\n%s", code, f.asked, stderr)
	}
	f.asked, f.refused = nil, &admin.Error{Code: kip1279.UnknownClusterMirror, Message: "no mirror m", Exit: admin.ExitUsage}
	if code, _, _ := h.run("failover", "--mirror", "m", "--all"); code != admin.ExitUsage || len(f.asked) != 1 {
		t.Errorf("exit %d, asked %v", code, f.asked)
	}
}

func TestProgressShowsAtATerminal(t *testing.T) {
	f := &lifeService{answer: accepted("t")}
	f.look = func(n int) ([]admin.PartitionInfo, error) {
		if n == 1 {
			parts := in("t-0 STOPPED", "t-1 MIRRORING")
			parts[1].Lag = new(int64(42))
			return parts, nil
		}
		return in("t-0 STOPPED", "t-1 STOPPED"), nil
	}
	h := newHarness(t, f)
	h.terminal = true
	_, _, stderr := h.run("promote", "--mirror", "m", "--all")
	if want := "\r\x1b[Kpromote: 1 of 2 partitions STOPPED, lag 42\r\x1b[Kpromote: 2 of 2 partitions STOPPED, lag 0\r\x1b[K"; stderr != want {
		t.Errorf("got %q", stderr)
	}
}

func TestAnInterruptedWaitSaysThatServeGoesOn(t *testing.T) {
	f := &lifeService{answer: accepted("t")}
	ctx, cancel := context.WithCancel(t.Context())
	f.look = func(n int) ([]admin.PartitionInfo, error) {
		if n == 2 {
			cancel()
		}
		return in("t-0 STOPPING"), nil
	}
	code, _, stderr := newHarness(t, f).runContext(ctx, "promote", "--mirror", "m", "--all")
	if code != admin.ExitFailed || !strings.Contains(stderr, "interrupted") || !strings.Contains(stderr, "attaches") {
		t.Errorf("exit %d %s", code, stderr)
	}
}

func TestDelete(t *testing.T) {
	f := &lifeService{look: func(int) ([]admin.PartitionInfo, error) { return in("a-0 STOPPED", "a-1 STOPPED", "c-0 STOPPED"), nil }}
	h := newHarness(t, f)
	code, stdout, _ := h.run("delete", "--mirror", "m", "--dry-run")
	want := "would send: Produce __mirror_state: forget topic a of mirror m\nwould send: Produce __mirror_state: forget topic c of mirror m\n" +
		"would send: Produce __mirror_state: forget mirror m\n"
	if code != 0 || stdout != want || !reflect.DeepEqual(f.asked, []string{"delete*"}) {
		t.Errorf("exit %d, asked %v\n%s", code, f.asked, stdout)
	}
	if code, stdout, _ := h.run("delete", "--mirror", "m", "-o", "json"); code != 0 || stdout != "{\n  \"mirror\": \"m\",\n  \"deleted\": true\n}\n" {
		t.Errorf("exit %d\n%s", code, stdout)
	}
	f.refused = &admin.Error{Code: kip1279.ClusterMirrorNotEmpty, Message: "topic a is MIRRORING", Hint: "failover first", Exit: admin.ExitRefused}
	for _, args := range []string{"delete --mirror m", "delete --mirror m --dry-run"} {
		if code, _, stderr := h.run(strings.Fields(args)...); code != admin.ExitRefused || !strings.Contains(stderr, "failover first") {
			t.Errorf("%s: exit %d %s", args, code, stderr)
		}
	}
	f.refused = &admin.Error{Code: kip1279.UnknownClusterMirror, Message: "no mirror m", Exit: admin.ExitUsage}
	for _, args := range []string{"delete --mirror m -o json", "delete --mirror m -o json --dry-run"} {
		code, stdout, stderr := h.run(strings.Fields(args)...)
		if code != 0 || !strings.Contains(stdout, `"deleted": false`) || stderr != "no mirror of the name m: nothing to delete\n" {
			t.Errorf("%s: a goal already reached: exit %d %s%s", args, code, stdout, stderr)
		}
	}
}

func TestWhichAddressGoesWithAProcess(t *testing.T) {
	for process, want := range map[string]string{"": "a:1", "km1:9190": "km1:9190", "0.0.0.0:9190": "a:1", "[::]:9190": "a:1",
		":9190": "a:1", "nonsense": "a:1"} {
		if got := watched(process, "a:1"); got != want {
			t.Errorf("%q: %s", process, got)
		}
	}
}
