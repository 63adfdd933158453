package admin

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strings"
	"testing"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

func (f *fake) note(req any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.life = append(f.life, req)
}

func (f *fake) StopTopics(_ context.Context, req StopRequest) ([]TopicResult, error) {
	f.note(req)
	return f.results, f.err
}

// paused, resumed and recovered tell the three verbs of a TopicsRequest apart.
type (
	paused    TopicsRequest
	resumed   TopicsRequest
	recovered TopicsRequest
)

func (f *fake) PauseTopics(_ context.Context, req TopicsRequest) ([]TopicResult, error) {
	f.note(paused(req))
	return f.results, f.err
}

func (f *fake) ResumeTopics(_ context.Context, req TopicsRequest) ([]TopicResult, error) {
	f.note(resumed(req))
	return f.results, f.err
}

func (f *fake) RecoverTopics(_ context.Context, req TopicsRequest) ([]TopicResult, error) {
	f.note(recovered(req))
	return f.results, f.err
}

func (f *fake) DeleteMirror(_ context.Context, req DeleteRequest) error {
	f.note(req)
	return f.err
}

func (f *fake) Retire(_ context.Context, req RetireRequest) (RetireResult, error) {
	f.note(req)
	return f.retire, f.err
}

func (f *fake) BumpLeaderEpochs(_ context.Context, minimum map[protocol.PartitionID]int32) (map[protocol.PartitionID]error, error) {
	f.note(minimum)
	return f.unfit, f.err
}

// lookedUp is a request of LastMirrorEpochs.
type lookedUp struct {
	cluster string
	parts   []protocol.PartitionID
}

func (f *fake) LastMirrorEpochs(_ context.Context, cluster string, parts []protocol.PartitionID) (map[protocol.PartitionID]int32, error) {
	f.note(lookedUp{cluster, parts})
	return f.epochs, f.err
}

func TestEveryVerbOfALaterLifeArrivesAndComesBack(t *testing.T) {
	f := &fake{retire: RetireResult{Partitions: 7, Stopped: []string{"t"}, Remains: []string{"__mirror_state"}, Process: "km1:9190"}}
	f.results = []TopicResult{
		{Topic: "t", Partitions: 2, Plan: &TopicPlan{Partitions: []PartitionPlan{{Partition: 1, Lost: 312, Truncated: -1, Lag: 5}},
			Requests: []string{"AlterPartitionReassignments t"}}},
		{Topic: "u", Err: &Error{Code: kip1279.MirrorTopicNotPaused, Message: "not paused", Hint: "nothing to do", Exit: ExitRefused}},
	}
	address, lines, _ := serve(t, f)
	c, ctx := dial(t, address), t.Context()
	topics := TopicsRequest{Mirror: "m", Topics: []string{"t", "/a{1,2}|b/"}, DryRun: true}
	bare := TopicsRequest{Mirror: "m", Topics: []string{"t"}}
	stops := []StopRequest{
		{Mirror: "m", Topics: []string{"t", "/a,b/"}, Drain: true, MaxLoss: 0, Force: true, DryRun: true},
		{Mirror: "m", All: true, MaxLoss: -1}, {Mirror: "m", Topics: []string{"t"}, MaxLoss: 1000},
	}
	var want []any
	check := func(verb string, results []TopicResult, err error, req any) {
		t.Helper()
		want = append(want, req)
		if err != nil || !reflect.DeepEqual(results, f.results) {
			t.Errorf("%s: %v\n%+v", verb, err, results)
		}
	}
	for _, s := range stops {
		results, err := c.StopTopics(ctx, s)
		check("stop", results, err, s)
	}
	for _, r := range []TopicsRequest{topics, bare} {
		results, err := c.PauseTopics(ctx, r)
		check("pause", results, err, paused(r))
		results, err = c.ResumeTopics(ctx, r)
		check("resume", results, err, resumed(r))
		results, err = c.RecoverTopics(ctx, r)
		check("recover", results, err, recovered(r))
	}
	for _, d := range []DeleteRequest{{Mirror: "m", DryRun: true}, {Mirror: "m"}} {
		check("delete", f.results, c.DeleteMirror(ctx, d), d)
	}
	retire := RetireRequest{NodeIDs: []int32{9001, 9002}, Failover: true, DryRun: true}
	got, err := c.Retire(ctx, retire)
	check("retire", f.results, err, retire)
	if !reflect.DeepEqual(got, f.retire) {
		t.Errorf("retire: %+v", got)
	}
	if !reflect.DeepEqual(f.life, want) {
		t.Errorf("arrived\n%+v\nwant\n%+v", f.life, want)
	}
	for _, verb := range []string{"promote", "failover", "pause", "resume", "recover", "delete", "retire"} {
		if !strings.Contains(lines.String(), "verb="+verb+" ") {
			t.Errorf("no audit line for %s", verb)
		}
	}
	if n := strings.Count(lines.String(), "audit=true"); n != len(want) {
		t.Errorf("%d audit lines for %d actions", n, len(want))
	}
	if c.Address() != address {
		t.Errorf("answered by %s", c.Address())
	}
}

func TestErrorsOfALaterLifeReachTheOperatorWhole(t *testing.T) {
	f := &fake{err: &Error{Code: kip1279.CoordinatorNotAvailable, Message: "the source does not answer", Hint: "use failover", Exit: ExitUnreachable}}
	address, lines, _ := serve(t, f)
	c, ctx := dial(t, address), t.Context()
	topics := TopicsRequest{Mirror: "m", Topics: []string{"t"}}
	for name, err := range map[string]error{
		"stop":    second(c.StopTopics(ctx, StopRequest{Mirror: "m", All: true, Drain: true, MaxLoss: -1})),
		"pause":   second(c.PauseTopics(ctx, topics)),
		"resume":  second(c.ResumeTopics(ctx, topics)),
		"recover": second(c.RecoverTopics(ctx, topics)),
		"delete":  c.DeleteMirror(ctx, DeleteRequest{Mirror: "m"}),
		"retire":  second(c.Retire(ctx, RetireRequest{NodeIDs: []int32{1}})),
		"bump":    second(c.BumpLeaderEpochs(ctx, nil)),
		"lookup":  second(c.LastMirrorEpochs(ctx, "cid", nil)),
	} {
		var e *Error
		if !errors.As(err, &e) || *e != *f.err.(*Error) {
			t.Errorf("%s: %+v", name, err)
		}
	}
	if n := strings.Count(lines.String(), "COORDINATOR_NOT_AVAILABLE"); n != 8 {
		t.Errorf("%d audit lines hold the refusal, want one for each verb:\n%s", n, lines)
	}
}

func TestALaterLifeIsRefusedBeforeTheService(t *testing.T) {
	f := &fake{}
	address, lines, _ := serve(t, f)
	c, ctx := dial(t, address), t.Context()
	for name, c := range map[string]struct {
		err  error
		part string
	}{
		"stop nothing":     {second(c.StopTopics(ctx, StopRequest{Mirror: "m"})), "no topic"},
		"stop pattern":     {second(c.StopTopics(ctx, StopRequest{Mirror: "m", Topics: []string{"/(/"}})), "not a pattern"},
		"stop loss":        {second(c.StopTopics(ctx, StopRequest{Mirror: "m", All: true, MaxLoss: -2})), "-2"},
		"pause nothing":    {second(c.PauseTopics(ctx, TopicsRequest{Mirror: "m"})), "no topic"},
		"resume pattern":   {second(c.ResumeTopics(ctx, TopicsRequest{Mirror: "m", Topics: []string{"/(/"}})), "not a pattern"},
		"recover name":     {second(c.RecoverTopics(ctx, TopicsRequest{Mirror: "m", Topics: []string{"a b"}})), "not a topic name"},
		"retire no ids":    {second(c.Retire(ctx, RetireRequest{})), "no node ids"},
		"retire malformed": {second(c.Call(ctx, VerbRetire, []byte("["))), "not readable"},
	} {
		var e *Error
		if !errors.As(c.err, &e) || e.Exit != ExitUsage || !strings.Contains(e.Message, c.part) || e.Hint == "" {
			t.Errorf("%s: %+v", name, c.err)
		}
	}
	for _, m := range []kip1279.Message{
		&kip1279.StopMirrorTopicsRequest{Patterns: []string{".*"}, Options: []byte("{")},
		&kip1279.PauseMirrorTopicsRequest{Topics: named([]string{"t"}), Options: []byte("1")},
		&kip1279.DeleteClusterMirrorRequest{Options: []byte("x")},
		&kip1279.StartMirrorTopicsRequest{Options: []byte("x")},
		&kip1279.DescribeClusterMirrorsRequest{Options: []byte("x")},
	} {
		api, _ := kip1279.Lookup(m.Key())
		resp := api.Response().(kip1279.Response)
		if err := c.call(ctx, m, resp); err != nil || resp.Head().ErrorCode != kip1279.InvalidRequest {
			t.Errorf("%T with options that are no JSON: %v, code %d", m, err, resp.Head().ErrorCode)
		}
	}
	if len(f.life) != 0 {
		t.Errorf("the service was asked: %+v", f.life)
	}
	if !strings.Contains(lines.String(), "INVALID_REQUEST") {
		t.Error("what was refused is not in the audit")
	}
}

// A client that knows only the KIP names a pattern for all topics and reads errors a topic.
func TestTheKIPsOwnClientInALaterLife(t *testing.T) {
	f := &fake{results: []TopicResult{{Topic: "t", Partitions: 1},
		{Topic: "u", Err: &Error{Code: kip1279.MirrorTopicAlreadyPaused, Message: "paused", Hint: "h", Exit: ExitRefused}}}}
	address, _, _ := serve(t, f)
	c := dial(t, address)
	call := func(req kip1279.Message, topics func(resp kip1279.Response) []kip1279.TopicOutcome) {
		t.Helper()
		api, _ := kip1279.Lookup(req.Key())
		resp := api.Response().(kip1279.Response)
		if err := c.call(t.Context(), req, resp); err != nil || resp.Head().ErrorCode != kip1279.None {
			t.Fatalf("%T: %v, code %d", req, err, resp.Head().ErrorCode)
		}
		if topics == nil {
			return
		}
		got := topics(resp)
		if len(got) != 2 || got[0].ErrorCode != kip1279.None || got[0].Name != "t" || got[1].Name != "u" ||
			got[1].ErrorCode != kip1279.MirrorTopicAlreadyPaused || *got[1].ErrorMessage != "paused" {
			t.Errorf("%T: %+v", req, got)
		}
	}
	one := []kip1279.NamedTopic{{TopicName: "t"}}
	call(&kip1279.StopMirrorTopicsRequest{MirrorName: "m", Patterns: []string{".*"}, StateValidationOffset: 8},
		func(r kip1279.Response) []kip1279.TopicOutcome { return r.(*kip1279.StopMirrorTopicsResponse).Topics })
	call(&kip1279.StopMirrorTopicsRequest{MirrorName: "m", Topics: one, Patterns: []string{"o.*"}},
		func(r kip1279.Response) []kip1279.TopicOutcome { return r.(*kip1279.StopMirrorTopicsResponse).Topics })
	call(&kip1279.PauseMirrorTopicsRequest{MirrorName: "m", Topics: one},
		func(r kip1279.Response) []kip1279.TopicOutcome { return r.(*kip1279.PauseMirrorTopicsResponse).Topics })
	call(&kip1279.ResumeMirrorTopicsRequest{MirrorName: "m", Topics: one},
		func(r kip1279.Response) []kip1279.TopicOutcome { return r.(*kip1279.ResumeMirrorTopicsResponse).Topics })
	call(&kip1279.RecoverMirrorTopicsRequest{MirrorName: "m", Topics: one},
		func(r kip1279.Response) []kip1279.TopicOutcome {
			return r.(*kip1279.RecoverMirrorTopicsResponse).Topics
		})
	call(&kip1279.DeleteClusterMirrorRequest{MirrorName: "m", StateValidationOffset: 3}, nil)
	want := []any{StopRequest{Mirror: "m", All: true, MaxLoss: -1}, StopRequest{Mirror: "m", Topics: []string{"t", "/o.*/"}, MaxLoss: -1},
		paused{Mirror: "m", Topics: []string{"t"}, Strict: true}, resumed{Mirror: "m", Topics: []string{"t"}, Strict: true},
		recovered{Mirror: "m", Topics: []string{"t"}, Strict: true}, DeleteRequest{Mirror: "m"}}
	if !reflect.DeepEqual(f.life, want) {
		t.Errorf("arrived\n%+v\nwant\n%+v", f.life, want)
	}
}

func TestBumpLeaderEpochs(t *testing.T) {
	id := func(topic byte, p int32) protocol.PartitionID {
		return protocol.PartitionID{Topic: [16]byte{15: topic}, Partition: p}
	}
	f := &fake{parts: []PartitionInfo{{Mirror: "m", Topic: "t", TopicID: new(protocol.UUID{15: 1}.String())}}}
	address, lines, _ := serve(t, f)
	c := dial(t, address)
	minimum := map[protocol.PartitionID]int32{id(2, 0): 4, id(1, 7): 19, id(1, 3): 20}
	if failed, err := c.BumpLeaderEpochs(t.Context(), minimum); err != nil || len(failed) != 0 {
		t.Errorf("%v, %v", failed, err)
	}
	f.unfit = map[protocol.PartitionID]error{
		id(1, 3): &Error{Code: kip1279.UnknownTopicOrPartition, Message: "no such partition", Hint: "ask for less", Exit: ExitRefused},
		id(2, 0): errors.New("boom"), id(1, 7): nil,
	}
	failed, err := c.BumpLeaderEpochs(t.Context(), minimum)
	var e *Error
	if err != nil || len(failed) != 2 || !errors.As(failed[id(1, 3)], &e) || e.Hint != "ask for less" || !errors.As(failed[id(2, 0)], &e) ||
		e.Code != kip1279.UnknownServerError || e.Message != "boom" {
		t.Errorf("%v, %v", failed, err)
	}
	if !reflect.DeepEqual(f.life, []any{minimum, minimum}) {
		t.Errorf("arrived %+v", f.life)
	}
	resp := &kip1279.BumpLeaderEpochsResponse{}
	if err := c.call(t.Context(), &kip1279.BumpLeaderEpochsRequest{}, resp); err != nil || len(resp.Topics) != 2 ||
		resp.Topics[0].Name != "t" || resp.Topics[1].Name != (protocol.UUID{15: 2}).String() || len(resp.Topics[0].Partitions) != 1 {
		t.Errorf("a client that knows only the KIP: %+v, %v", resp, err)
	}
	if n := strings.Count(lines.String(), "verb=bump "); n != 3 {
		t.Errorf("%d audit lines", n)
	}
}

func TestLookupOfLastMirroredEpochs(t *testing.T) {
	a, b := protocol.PartitionID{Topic: [16]byte{15: 2}, Partition: 3}, protocol.PartitionID{Topic: [16]byte{15: 2}, Partition: 4}
	other := protocol.PartitionID{Topic: [16]byte{9}, Partition: 3}
	f := &fake{epochs: map[protocol.PartitionID]int32{a: 2, b: 0}}
	address, _, _ := serve(t, f)
	c := dial(t, address)
	got, err := c.LastMirrorEpochs(t.Context(), "cid", []protocol.PartitionID{other, b, a})
	if want := map[protocol.PartitionID]int32{a: 2, b: 0, other: -1}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if want := []any{lookedUp{"cid", []protocol.PartitionID{a, b, other}}}; !reflect.DeepEqual(f.life, want) {
		t.Errorf("asked %+v", f.life)
	}
	req := &kip1279.DescribeClusterMirrorsRequest{ClusterID: new("cid"), Lookups: []kip1279.EpochLookup{{TopicID: a.Topic, Partitions: []int32{3, 9}}}}
	resp := &kip1279.DescribeClusterMirrorsResponse{}
	if err := c.call(t.Context(), req, resp); err != nil || len(resp.Mirrors) != 0 || len(resp.LookupResults) != 1 ||
		resp.LookupResults[0].Partitions[0].LastMirrorEpoch != 2 || resp.LookupResults[0].Partitions[1].LastMirrorEpoch != -1 {
		t.Errorf("%+v, %v", resp, err)
	}
	if len(f.asked) != 0 {
		t.Errorf("a lookup described %+v", f.asked)
	}
}

// A process that hangs takes connections and says nothing: the next call asks another one.
func TestAProcessThatHangsIsLeftForAnother(t *testing.T) {
	hanging := &fake{hold: make(chan struct{}), entered: make(chan struct{}), cancelled: make(chan struct{})}
	address, _, _ := serve(t, hanging)
	well, _, _ := serve(t, &fake{mirrors: []MirrorInfo{{Mirror: "m"}}})
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	c := dial(t, gone.Addr().String(), address, well)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-hanging.entered; cancel() }()
	if _, err := c.Call(ctx, "v", []byte("{}")); err == nil {
		t.Fatal("an answer")
	}
	<-hanging.cancelled
	if got, err := c.ListMirrors(t.Context(), false); err != nil || len(got) != 1 || c.Address() != well {
		t.Errorf("%v, %v from %s", got, err, c.Address())
	}
}
