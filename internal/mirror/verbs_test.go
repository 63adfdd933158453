package mirror

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// fleet is a world with the mirrors m and other, and a topic of two partitions for each line of "name desired state state". Topics
// whose name begins with "other" belong to the other mirror. Last mirrored epochs are 5 and 6.
func fleet(t *testing.T, lines ...string) (*world, *Manager) {
	t.Helper()
	w := newWorld()
	w.mirrors = []coordinator.Mirror{{Name: "m", SourceClusterID: "source"}, {Name: "other", SourceClusterID: "elsewhere"}}
	var list []coordinator.Topic
	for _, line := range lines {
		f := strings.Fields(line)
		topic := mirrorTopic(f[0], idOf(f[0]))
		topic.SourceTopicID, topic.Partitions, topic.Desired = idOf("source "+f[0]), 2, stateOf(t, f[1])
		if strings.HasPrefix(f[0], "other") {
			topic.Mirror = "other"
		}
		w.topic(f[0], topic.TopicID, kraft.Partition{}, nil)
		for p, s := range f[2:] {
			pid := protocol.PartitionID{Topic: topic.TopicID, Partition: int32(p)}
			w.states[pid] = coordinator.PartitionState{Mirror: topic.Mirror, ID: pid, State: stateOf(t, s), Previous: statemachine.Unknown,
				LastMirrorEpoch: int32(5 + p)}
		}
		list = append(list, topic)
	}
	return w, newManager(t, w, list...)
}

// idOf is a topic id made of a text.
func idOf(text string) (id protocol.UUID) {
	copy(id[:], text)
	return id
}

func stateOf(t *testing.T, name string) statemachine.State {
	t.Helper()
	s, err := statemachine.ParseState(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// outcome is a result in short: ok, or code and exit code.
func outcome(err error) string {
	var e *admin.Error
	switch {
	case err == nil:
		return "ok"
	case !errors.As(err, &e):
		return err.Error()
	case e.Hint == "":
		return fmt.Sprintf("%d without a hint", e.Code)
	}
	return fmt.Sprintf("%d/%d", e.Code, e.Exit)
}

func outcomes(results []admin.TopicResult) string {
	var out []string
	for _, r := range results {
		err := error(nil)
		if r.Err != nil {
			err = r.Err
		}
		out = append(out, r.Topic+" "+outcome(err))
	}
	return strings.Join(out, ", ")
}

// desired returns what is stored to be wanted of a topic.
func (w *world) desired(name string) string {
	t, _ := store{w}.TopicByName(name)
	return t.Desired.String()
}

// TestGates: pause and resume by the KIP's gates, with its codes.
func TestGates(t *testing.T) {
	for _, tt := range []struct{ topic, pause, resume string }{
		{"MIRRORING MIRRORING MIRRORING", "ok PAUSED", "ok MIRRORING"},
		{"MIRRORING MIRRORING EPOCH_FENCING", "ok PAUSED", "ok MIRRORING"},
		{"MIRRORING MIRRORING PREPARING", "145/4 MIRRORING", "ok MIRRORING"},
		{"MIRRORING FAILED MIRRORING", "145/4 MIRRORING", "ok MIRRORING"},
		{"MIRRORING MIRRORING", "145/4 MIRRORING", "ok MIRRORING"}, // nothing is stored of one
		{"PAUSED PAUSED PAUSED", "ok PAUSED", "ok MIRRORING"},
		{"PAUSED PAUSING PAUSED", "ok PAUSED", "145/4 PAUSED"},
		{"PAUSED MIRRORING PAUSED", "ok PAUSED", "145/4 PAUSED"},
		{"PAUSED FAILED PAUSED", "ok PAUSED", "145/4 PAUSED"},
		{"STOPPED STOPPING STOPPED", "142/4 STOPPED", "141/4 STOPPED"},
		{"STOPPED STOPPED STOPPED", "142/4 STOPPED", "141/4 STOPPED"},
	} {
		t.Run(tt.topic, func(t *testing.T) {
			req := admin.TopicsRequest{Mirror: "m", Topics: []string{"a"}}
			w, m := fleet(t, "a "+tt.topic)
			results, err := m.PauseTopics(t.Context(), req)
			if got := outcomes(results) + " " + w.desired("a"); err != nil || got != "a "+tt.pause {
				t.Errorf("pause: %s, %v, want %s", got, err, tt.pause)
			}
			w, m = fleet(t, "a "+tt.topic)
			results, err = m.ResumeTopics(t.Context(), req)
			if got := outcomes(results) + " " + w.desired("a"); err != nil || got != "a "+tt.resume {
				t.Errorf("resume: %s, %v, want %s", got, err, tt.resume)
			}
		})
	}
}

// TestStrict: who knows the KIP alone is told that a topic is as wanted already; who may repeat a request is not.
func TestStrict(t *testing.T) {
	_, m := fleet(t, "a MIRRORING MIRRORING MIRRORING", "b PAUSED PAUSED PAUSED")
	req := admin.TopicsRequest{Mirror: "m", Topics: []string{"a", "b"}, DryRun: true, Strict: true}
	if got, err := m.PauseTopics(t.Context(), req); err != nil || outcomes(got) != "a ok, b 140/4" {
		t.Errorf("pause: %s, %v", outcomes(got), err)
	}
	if got, err := m.ResumeTopics(t.Context(), req); err != nil || outcomes(got) != "a 141/4, b ok" {
		t.Errorf("resume: %s, %v", outcomes(got), err)
	}
}

// TestTopicIDsOfAStart: a topic that has another id at the source than the client looked up is not started.
func TestTopicIDsOfAStart(t *testing.T) {
	_, m := mirrored(t)
	run := &startRun{m: m, mirror: coordinator.Mirror{Name: "m"}, source: kadm.TopicDetails{"new": {Topic: "new", ID: kadm.TopicID{1}}},
		req: admin.StartRequest{Mirror: "m", Topics: []string{"new"}, TopicIDs: map[string]protocol.UUID{"new": {2}}}}
	if _, err := run.topic(t.Context(), "new"); outcome(err) != "103/4" {
		t.Errorf("%v", err)
	}
}

// TestPlanOfAStop: of a topic that is stopped already nothing would be sent.
func TestPlanOfAStop(t *testing.T) {
	_, m := fleet(t, "done STOPPED STOPPED STOPPED", "half STOPPED STOPPED STOPPING", "on MIRRORING MIRRORING MIRRORING")
	for topic, want := range map[string]int{"done": 0, "half": 3, "on": 3} {
		known, _ := m.cfg.Store.TopicByName(topic)
		if plan := m.stopPlan(known, admin.StopRequest{}, nil, nil); len(plan.Requests) != want {
			t.Errorf("%s: %q", topic, plan.Requests)
		}
	}
}

// TestGateNamesThePartition: who is refused is told where to look.
func TestGateNamesThePartition(t *testing.T) {
	_, m := fleet(t, "a MIRRORING MIRRORING FAILED")
	results, err := m.PauseTopics(t.Context(), admin.TopicsRequest{Mirror: "m", Topics: []string{"a"}})
	if err != nil || len(results) != 1 || results[0].Err == nil {
		t.Fatalf("%+v, %v", results, err)
	}
	if e := results[0].Err; !strings.Contains(e.Message, "partition 1 is FAILED") || !strings.Contains(e.Hint, "recover") {
		t.Errorf("%s; %s", e.Message, e.Hint)
	}
}

// TestSelection: names and patterns against the topics of a mirror.
func TestSelection(t *testing.T) {
	w, m := fleet(t, "a MIRRORING MIRRORING MIRRORING", "ab MIRRORING MIRRORING MIRRORING", "b PAUSED PAUSED PAUSED",
		"old STOPPED STOPPED STOPPED", "other1 MIRRORING MIRRORING MIRRORING")
	w.topic("plain", idOf("plain"), kraft.Partition{}, nil)
	for _, tt := range []struct {
		mirror string
		topics []string
		want   string
	}{
		{"m", []string{"/.*/"}, "a ok, ab ok, b ok"}, // what was stopped is passed over
		{"m", []string{"/a.*/"}, "a ok, ab ok"},
		{"m", []string{"a", "/a/", "a"}, "a ok"},
		{"m", []string{"/o.*/", "old"}, "old 142/4"},
		{"m", []string{"a", "nowhere", "plain", "other1"}, "a ok, nowhere 3/2, other1 139/4, plain 137/4"},
		{"m", []string{"/x.*/"}, "3/2"},
		{"m", []string{"/(/"}, "42/2"},
		{"nobody", []string{"a"}, "137/2"},
	} {
		got, err := m.PauseTopics(t.Context(), admin.TopicsRequest{Mirror: tt.mirror, Topics: tt.topics, DryRun: true})
		text := outcomes(got)
		if err != nil {
			text = outcome(err)
		}
		if text != tt.want {
			t.Errorf("%s %v: %s, want %s", tt.mirror, tt.topics, text, tt.want)
		}
	}
	if len(w.stored) > 0 {
		t.Errorf("dry runs wrote %v", w.stored)
	}
}

// TestPauseIsStored: a dry run says what would be written, a failure to write is that topic's.
func TestPauseIsStored(t *testing.T) {
	w, m := fleet(t, "a MIRRORING MIRRORING MIRRORING", "b PAUSED PAUSED PAUSED")
	req := admin.TopicsRequest{Mirror: "m", Topics: []string{"a", "b"}, DryRun: true}
	got, err := m.PauseTopics(t.Context(), req)
	if err != nil || len(got) != 2 || got[0].Plan == nil || len(got[0].Plan.Requests) != 1 || len(got[1].Plan.Requests) != 0 {
		t.Errorf("dry run: %+v, %v", got, err)
	}
	req.DryRun = false
	w.putErr = errors.New("no brokers")
	if got, err = m.PauseTopics(t.Context(), req); err != nil || outcomes(got) != "a -1/1, b ok" {
		t.Errorf("%s, %v", outcomes(got), err)
	}
	w.putErr = nil
	if got, err = m.PauseTopics(t.Context(), req); err != nil || outcomes(got) != "a ok, b ok" ||
		!slices.Equal(w.stored, []string{"put topic a of m"}) {
		t.Errorf("%s, %v, wrote %v", outcomes(got), err, w.stored)
	}
	select {
	case <-m.kick:
	default:
		t.Error("the loop was not told")
	}
}

// TestRecover: what is FAILED goes on where it was, the rest is left alone.
func TestRecover(t *testing.T) {
	w, m := fleet(t, "a MIRRORING FAILED MIRRORING", "b MIRRORING MIRRORING MIRRORING", "c STOPPED FAILED STOPPED")
	req := admin.TopicsRequest{Mirror: "m", Topics: []string{"/.*/"}, DryRun: true}
	got, err := m.RecoverTopics(t.Context(), req)
	if err != nil || outcomes(got) != "a ok, b ok, c ok" || len(got[0].Plan.Requests) != 1 || len(got[1].Plan.Requests) != 0 || len(w.stored) != 0 {
		t.Fatalf("dry run: %s, %v, %v", outcomes(got), err, w.stored)
	}
	req.DryRun = false
	if got, err = m.RecoverTopics(t.Context(), req); err != nil || outcomes(got) != "a ok, b ok, c ok" {
		t.Fatalf("%s, %v", outcomes(got), err)
	}
	if len(w.stored) != 2 || slices.ContainsFunc(w.stored, func(s string) bool { return strings.Contains(s, "FAILED") }) {
		t.Errorf("wrote %v", w.stored)
	}
	// A partition that FAILED for good while mirroring mirrors again.
	w.topic("orders", ordersID, kraft.Partition{Replicas: []int32{9001, 9002, 1}, ISR: []int32{9001, 9002, 1}, Leader: 9001, LeaderEpoch: 20}, lockOn)
	w.states[orders0] = coordinator.PartitionState{Mirror: "m", ID: orders0, State: statemachine.Failed, Previous: statemachine.Mirroring,
		Retry: -1, Error: "x", LastMirrorEpoch: -1}
	w.topics = []coordinator.Topic{mirrorTopic("orders", ordersID)}
	rounds(t, m, 2)
	if s := w.states[orders0]; s.State != statemachine.Failed {
		t.Fatalf("state %s before anybody asked", s.State)
	}
	if _, err := m.RecoverTopics(t.Context(), admin.TopicsRequest{Mirror: "m", Topics: []string{"orders"}}); err != nil {
		t.Fatal(err)
	}
	rounds(t, m, 2)
	if s := w.states[orders0]; s.State != statemachine.Mirroring || s.Retry != 0 || s.Error != "" {
		t.Errorf("%+v", s)
	}
}

// TestDeleteMirror: only when all topics are STOPPED; then states and topics go, and the definition last.
func TestDeleteMirror(t *testing.T) {
	for _, tt := range []struct {
		topic string
		edit  func(*world)
		want  string
	}{
		{topic: "a STOPPED STOPPED STOPPED", want: "ok"},
		{topic: "a STOPPED STOPPED STOPPING", want: "143/4"},
		{topic: "a STOPPED STOPPED FAILED", want: "143/4"},
		{topic: "a STOPPED STOPPED", want: "143/4"},
		{topic: "a MIRRORING STOPPED STOPPED", want: "143/4"},
		{topic: "a PAUSED PAUSED PAUSED", want: "143/4"},
		{topic: "a STOPPED FAILED FAILED", edit: func(w *world) {
			w.edit(func(i *kraft.Image) { delete(i.Topics, idOf("a")); delete(i.Names, "a") })
		}, want: "ok"},
		{topic: "a STOPPED STOPPED STOPPED", edit: func(w *world) { // taken over by the other mirror, which is at work
			now := w.topics[0]
			now.Mirror, now.Desired, now.Started = "other", statemachine.Mirroring, now.Started.Add(1)
			w.topics = append(w.topics, now)
			w.states[protocol.PartitionID{Topic: now.TopicID}] = coordinator.PartitionState{Mirror: "other", State: statemachine.Mirroring}
		}, want: "ok"},
	} {
		t.Run(tt.topic, func(t *testing.T) {
			w, m := fleet(t, tt.topic, "other1 MIRRORING MIRRORING MIRRORING")
			if tt.edit != nil {
				tt.edit(w)
			}
			if got := outcome(m.DeleteMirror(t.Context(), admin.DeleteRequest{Mirror: "m", DryRun: true})); got != tt.want || len(w.stored) > 0 {
				t.Errorf("dry run: %s, wrote %v", got, w.stored)
			}
			if got := outcome(m.DeleteMirror(t.Context(), admin.DeleteRequest{Mirror: "m"})); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if want := []string{"delete topic a of m", "delete mirror m"}; tt.want == "ok" && !slices.Equal(w.stored, want) ||
				tt.want != "ok" && len(w.stored) > 0 {
				t.Errorf("wrote %v", w.stored)
			}
		})
	}
	_, m := fleet(t)
	if got := outcome(m.DeleteMirror(t.Context(), admin.DeleteRequest{Mirror: "nobody"})); got != "137/2" {
		t.Errorf("an unknown one: %s", got)
	}
}

// TestLastMirrorEpochs: told of partitions that are STOPPED, to the cluster that they came from.
func TestLastMirrorEpochs(t *testing.T) {
	w, m := fleet(t, "a STOPPED STOPPED STOPPING", "b MIRRORING STOPPED STOPPED", "other1 STOPPED STOPPED STOPPED", "gone STOPPED STOPPED STOPPED")
	w.edit(func(i *kraft.Image) { delete(i.Topics, idOf("gone")); delete(i.Names, "gone") })
	var parts []protocol.PartitionID
	for _, name := range []string{"a", "b", "other1", "gone", "strange"} {
		for p := range int32(2) {
			parts = append(parts, protocol.PartitionID{Topic: idOf("source " + name), Partition: p})
		}
	}
	parts = append(parts, protocol.PartitionID{Topic: idOf("source a"), Partition: 7})
	for cluster, known := range map[string]map[protocol.PartitionID]int32{
		"source": {parts[0]: 5}, "elsewhere": {parts[4]: 5, parts[5]: 6}, "nobody": {},
	} {
		got, err := m.LastMirrorEpochs(t.Context(), cluster, parts)
		if err != nil || len(got) != len(parts) {
			t.Fatalf("%v, %v", got, err)
		}
		for _, id := range parts {
			want := int32(-1)
			if e, ok := known[id]; ok {
				want = e
			}
			if got[id] != want {
				t.Errorf("to %s, %v: %d, want %d", cluster, id, got[id], want)
			}
		}
	}
}

// TestNote: what the loop has found out does not undo what an operator asked for since.
func TestNote(t *testing.T) {
	w, m := fleet(t, "a STOPPED STOPPED STOPPED")
	w.topics[0].Regrow, w.topics[0].Drain = true, true
	seen := w.topics[0]
	seen.Regrow = false
	if err := m.note(t.Context(), seen); err != nil || w.topics[0].Regrow || !w.topics[0].Drain {
		t.Errorf("%v, %+v", err, w.topics[0])
	}
	w.topics[0].Desired = statemachine.Mirroring
	if err := m.note(t.Context(), seen); err != nil || w.topics[0].Desired != statemachine.Mirroring {
		t.Errorf("%v, %+v", err, w.topics[0])
	}
}

func TestUnreachableOrForbidden(t *testing.T) {
	for _, c := range []struct {
		err        error
		text, hint string
	}{
		{errors.New("dial"), "does not answer", "bootstrap.servers"},
		{fmt.Errorf("x: %w", kerr.NotLeaderForPartition), "can't do it now", "try again in a few seconds"},
		{fmt.Errorf("x: %w", kerr.TopicAuthorizationFailed), "lacks a right at the source", "docs/operations.md"},
	} {
		var e *admin.Error
		if err := unreachable("source", c.err); !errors.As(err, &e) || !strings.Contains(e.Message, c.text) || !strings.Contains(e.Hint, c.hint) {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}
