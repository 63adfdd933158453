package mirror

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

func TestAlignTo(t *testing.T) {
	topic := coordinator.Topic{Align: []int32{7, -1, 0, -9}}
	for p, want := range []replica.Divergence{{Epoch: 7, EndOffset: math.MaxInt64}, {}, {EndOffset: math.MaxInt64}, {}, {}} {
		if got := alignTo(topic, int32(p)); got != want {
			t.Errorf("partition %d: %+v", p, got)
		}
	}
	if got := alignTo(coordinator.Topic{}, 0); got != (replica.Divergence{}) {
		t.Errorf("of a first mirror: %+v", got)
	}
}

// TestFailback: what the source remembers of a topic that was mirrored there from here is what it is aligned to, without
// --overwrite. States come first, with that epoch.
func TestFailback(t *testing.T) {
	f := newFailback(t, admin.StartRequest{})
	f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5)
	got, topic := f.begin(t)
	if got != "ok" || !slices.Equal(topic.Align, []int32{4, 5}) || topic.Desired != statemachine.Mirroring || topic.Overwrite {
		t.Fatalf("%s, %+v", got, topic)
	}
	if want := []string{"put state PREPARING of m", "put state PREPARING of m", "put topic orders of m"}; !slices.Equal(f.w.stored, want) {
		t.Errorf("wrote %v", f.w.stored)
	}
	for p, id := range ordersParts {
		if st := f.w.states[id]; st.State != statemachine.Preparing || st.LastMirrorEpoch != topic.Align[p] {
			t.Errorf("partition %d: %+v", p, st)
		}
	}
	rounds(t, f.m, 3)
	if a := f.w.roles[ordersParts[0]]; a.Role != replica.RoleTruncate || a.TruncateTo != (replica.Divergence{Epoch: 4, EndOffset: math.MaxInt64}) {
		t.Errorf("assigned %+v", a)
	}
}

// TestIdentity: only what the source remembers of this very topic counts.
func TestIdentity(t *testing.T) {
	remember := func(edit func(r *fakeRemote, t *coordinator.Topic)) func(*failback) {
		return func(f *failback) {
			f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5)
			edit(f.remote, &f.remote.topics[0])
		}
	}
	for _, tt := range []struct {
		name  string
		setup func(*failback)
		want  string
	}{
		{"the same", remember(func(*fakeRemote, *coordinator.Topic) {}), "ok"},
		{"nothing remembered", func(*failback) {}, "103/4"},
		{"no state topic", func(f *failback) { f.readErr = coordinator.ErrNoState }, "103/4"},
		{"another name", remember(func(_ *fakeRemote, t *coordinator.Topic) { t.Name = "orders2" }), "103/4"},
		{"made anew here", remember(func(_ *fakeRemote, t *coordinator.Topic) { t.SourceTopicID = idOf("before") }), "103/4"},
		{"made anew there", remember(func(_ *fakeRemote, t *coordinator.Topic) { t.TopicID = idOf("before") }), "103/4"},
		{"mirrored from another cluster", remember(func(r *fakeRemote, _ *coordinator.Topic) { r.mirrors[0].SourceClusterID = "third" }), "103/4"},
		{"taken over from another cluster", remember(func(r *fakeRemote, t *coordinator.Topic) {
			now := *t
			now.Mirror, now.Started = "third", time.Unix(1, 0)
			r.topics = append(r.topics, now)
		}), "103/4"},
		{"one partition never mirrored", func(f *failback) { f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, -1) }, "103/4"},
		{"one empty here, never mirrored", func(f *failback) {
			f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, -1)
			f.here.(fakeLogs).extents["orders"][1] = extent{}
		}, "ok"},
		{"empty here", func(f *failback) { f.here.(fakeLogs).extents["orders"] = []extent{{}, {}} }, "ok"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFailback(t, admin.StartRequest{})
			tt.setup(f)
			if got, _ := f.begin(t); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if tt.want != "ok" && len(f.w.stored) > 0 {
				t.Errorf("wrote %v", f.w.stored)
			}
		})
	}
}

// TestOverwrite: --overwrite permits what has nothing in common to go, and keeps what has.
func TestOverwrite(t *testing.T) {
	f := newFailback(t, admin.StartRequest{Overwrite: true})
	if got, topic := f.begin(t); got != "ok" || topic.Align != nil || !topic.Overwrite {
		t.Errorf("%s, %+v", got, topic)
	}
	f = newFailback(t, admin.StartRequest{Overwrite: true})
	f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, -1)
	if got, topic := f.begin(t); got != "ok" || !slices.Equal(topic.Align, []int32{4, -1}) {
		t.Errorf("%s, %+v", got, topic)
	}
}

// TestLoop: what the source mirrors from here is not mirrored back while that is active, whatever is given.
func TestLoop(t *testing.T) {
	for _, tt := range []struct {
		desired, state statemachine.State
	}{
		{statemachine.Mirroring, statemachine.Mirroring}, {statemachine.Paused, statemachine.Paused}, {statemachine.Mirroring, statemachine.Stopped},
		{statemachine.Stopped, statemachine.Stopping}, {statemachine.Stopped, statemachine.Failed}, {statemachine.Stopped, statemachine.Unknown},
	} {
		f := newFailback(t, admin.StartRequest{Overwrite: true})
		f.remote.put("orders", tt.desired, tt.state, 4, 5)
		if got, _ := f.begin(t); got != "42/4" || len(f.w.stored) > 0 {
			t.Errorf("%s, partitions %s: %s, wrote %v", tt.desired, tt.state, got, f.w.stored)
		}
	}
	f := newFailback(t, admin.StartRequest{})
	f.remote.put("orders", statemachine.Mirroring, statemachine.Mirroring, 4, 5)
	f.w.edit(func(i *kraft.Image) { delete(i.Topics, idOf("orders")); delete(i.Names, "orders") })
	if got, _ := f.begin(t); got != "42/4" {
		t.Errorf("of a topic that is not here yet: %s", got)
	}
	f = newFailback(t, admin.StartRequest{Overwrite: true})
	f.dial, f.readErr = true, errors.New("not authorized")
	f.remote.put("orders", statemachine.Stopped, statemachine.Stopping, 4, 5)
	if got, _ := f.begin(t); got != "42/4" {
		t.Errorf("by the source's kmirror: %s", got)
	}
}

// TestLookup: where the source's state can't be read its kmirror is asked, and where that is not possible the start is refused
// with what to do.
func TestLookup(t *testing.T) {
	f := newFailback(t, admin.StartRequest{})
	f.dial, f.readErr = true, errors.New("not authorized")
	f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5)
	if got, topic := f.begin(t); got != "ok" || !slices.Equal(topic.Align, []int32{4, 5}) {
		t.Errorf("%s, %+v", got, topic)
	}
	if want := []string{"list", "describe back", "epochs for destination"}; !slices.Equal(f.remote.asked, want) || !f.remote.closed {
		t.Errorf("asked %v, closed %v", f.remote.asked, f.remote.closed)
	}
	for _, dial := range []bool{false, true} {
		f = newFailback(t, admin.StartRequest{})
		f.dial, f.readErr, f.remote.err = dial, errors.New("not authorized"), errors.New("connection refused")
		f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5)
		_, err := f.topic(t.Context(), "orders")
		if outcome(err) != "103/4" || !strings.Contains(err.Error(), "not authorized") || strings.Contains(err.Error(), "connection refused") != dial ||
			!strings.Contains(asError(err).Hint, "__mirror_state") || !strings.Contains(asError(err).Hint, "--overwrite") {
			t.Errorf("%v: %s", err, asError(err).Hint)
		}
		f.req.Overwrite = true
		if got, topic := f.begin(t); got != "ok" || topic.Align != nil {
			t.Errorf("with --overwrite: %s, %+v", got, topic)
		}
	}
}

// TestDialRemote: how the source's kmirror is reached follows the mirror's properties.
func TestDialRemote(t *testing.T) {
	for text, want := range map[string]string{
		"bootstrap.servers=a:1": "none", "mirror.source.admin.bootstrap.servers=a:1,b:2": "client", "mirror.source.admin.bootstrap.servers=a": "error",
		"mirror.source.admin.security.protocol=SSL": "error",
	} {
		key, value, _ := strings.Cut(text, "=")
		cl, err := dialRemote(coordinator.Mirror{Config: map[string]string{key: value}})
		got := map[bool]string{true: "none", false: "client"}[cl == nil]
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
}

// TestOneRead: the source's state is read once for all topics of a start.
func TestOneRead(t *testing.T) {
	f := newFailback(t, admin.StartRequest{})
	f.has("clicks", extent{0, 5})
	f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5)
	f.remote.put("clicks", statemachine.Stopped, statemachine.Stopped, 9)
	for _, name := range f.names {
		if _, err := f.topic(t.Context(), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if topic, _ := (store{f.w}).TopicByName("clicks"); f.reads != 1 || !slices.Equal(topic.Align, []int32{9}) {
		t.Errorf("read %d times, %+v", f.reads, topic)
	}
}

// TestStartAgain: a topic that was mirrored here and is STOPPED starts like any other that exists.
func TestStartAgain(t *testing.T) {
	stopped := "orders STOPPED STOPPED STOPPED"
	f := newFailback(t, admin.StartRequest{}, stopped)
	f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5)
	rounds(t, f.m, 1)
	f.w.topics[0].Started = time.Now().Add(time.Hour) // by a clock that is ahead
	got, topic := f.begin(t)
	if got != "ok" || len(f.w.topics) != 1 || !slices.Equal(topic.Align, []int32{4, 5}) || topic.TopicID != idOf("orders") ||
		topic.Started.Before(time.Now()) {
		t.Fatalf("%s, %+v", got, f.w.topics)
	}
	rounds(t, f.m, 1)
	for _, id := range ordersParts {
		if st := f.w.states[id]; st.State != statemachine.Preparing || f.m.parts[id].machine.State != statemachine.Preparing {
			t.Errorf("%v: stored %s, held %s", id, st.State, f.m.parts[id].machine.State)
		}
	}

	// From scratch: what is stored of an earlier stop is forgotten.
	f = newFailback(t, admin.StartRequest{Overwrite: true}, stopped)
	if got, topic = f.begin(t); got != "ok" || f.w.states[ordersParts[0]].LastMirrorEpoch != -1 {
		t.Errorf("%s, %+v", got, f.w.states)
	}

	// Nobody there mirrored it back: what was written here since would go.
	f = newFailback(t, admin.StartRequest{}, stopped)
	if got, _ = f.begin(t); got != "103/4" {
		t.Errorf("%s", got)
	}

	// It was filled from elsewhere since: the source's memory is of what it held before.
	f = newFailback(t, admin.StartRequest{}, stopped)
	f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5)
	f.w.topics[0].SourceTopicID = idOf("elsewhere")
	if got, _ = f.begin(t); got != "103/4" {
		t.Errorf("filled from elsewhere: %s", got)
	}
}

// TestStartUnderAnotherMirror: the old mirror's record goes, once the new one is stored.
func TestStartUnderAnotherMirror(t *testing.T) {
	f := newFailback(t, admin.StartRequest{}, "orders STOPPED STOPPED STOPPED")
	f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5)
	f.w.topics[0].Mirror = "other"
	for _, id := range ordersParts {
		st := f.w.states[id]
		st.Mirror = "other"
		f.w.states[id] = st
	}
	got, topic := f.begin(t)
	want := []string{"put state PREPARING of m", "put state PREPARING of m", "put topic orders of m", "delete topic orders of other"}
	if got != "ok" || topic.Mirror != "m" || len(f.w.topics) != 1 || !slices.Equal(f.w.stored, want) {
		t.Errorf("%s, %+v, wrote %v", got, f.w.topics, f.w.stored)
	}
}

// TestTakenOver: while two mirrors remember a topic, what the old one wants of it does not count.
func TestTakenOver(t *testing.T) {
	f := newFailback(t, admin.StartRequest{}, "orders MIRRORING PREPARING PREPARING")
	old := f.w.topics[0]
	old.Mirror, old.Desired, old.Started = "other", statemachine.Stopped, old.Started.Add(-time.Hour)
	f.w.topics = append(f.w.topics, old)
	rounds(t, f.m, 2)
	if st := f.w.states[ordersParts[0]]; st.State != statemachine.Preparing || f.m.parts[ordersParts[0]].topic.Mirror != "m" {
		t.Errorf("%+v", st)
	}
	if st := f.m.stored(old, 0); st.State != statemachine.Unknown || st.LastMirrorEpoch != -1 {
		t.Errorf("the old mirror's state is said to be %+v", st)
	}
}

// TestConfigsSinceStopped: what was set on a topic while it was writable is what a later unlock puts back.
func TestConfigsSinceStopped(t *testing.T) {
	for _, locked := range []bool{false, true} {
		f := newFailback(t, admin.StartRequest{}, "orders STOPPED STOPPED STOPPED")
		f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5)
		f.w.topics[0].TrueConfigs, f.w.topics[0].Replicas, f.w.topics[0].Regrow = map[string]string{sizeConfig: "9"}, 5, locked
		now, want, replicas := map[string]string{sizeConfig: "5000"}, "5000", int16(3)
		if locked {
			now, want, replicas = lockOn, "9", 5
		}
		f.w.edit(func(i *kraft.Image) { i.Configs[kraft.ConfigResource{Type: kraft.ConfigTopic, Name: "orders"}] = now })
		if got, topic := f.begin(t); got != "ok" || topic.TrueConfigs[sizeConfig] != want || topic.Replicas != replicas {
			t.Errorf("locked %v: %s, %+v", locked, got, topic)
		}
	}
}

// TestStartGates: what is not over is not started anew.
func TestStartGates(t *testing.T) {
	for _, tt := range []struct{ line, mirror, want string }{
		{"orders STOPPED STOPPED STOPPING", "m", "146/4"},
		{"orders STOPPED FAILED STOPPED", "m", "146/4"},
		{"orders STOPPED STOPPED", "m", "ok"}, // UNKNOWN is as good, by the KIP
		{"orders PAUSED PAUSED PAUSED", "m", "146/4"},
		{"orders MIRRORING MIRRORING MIRRORING", "m", "ok"},
		{"orders MIRRORING MIRRORING MIRRORING", "other", "138/4"},
	} {
		f := newFailback(t, admin.StartRequest{}, tt.line)
		f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5)
		f.req.Mirror = tt.mirror
		if got, _ := f.begin(t); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.line, got, tt.want)
		}
	}
	// A start that was cut short left PREPARING behind; this process saw the topic STOPPED.
	f := newFailback(t, admin.StartRequest{}, "orders STOPPED STOPPED STOPPED")
	f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5)
	rounds(t, f.m, 1)
	for _, id := range ordersParts {
		f.w.states[id] = coordinator.PartitionState{Mirror: "m", ID: id, State: statemachine.Preparing, LastMirrorEpoch: -1}
	}
	if got, _ := f.begin(t); got != "ok" {
		t.Errorf("after one that was cut short: %s", got)
	}
}

// TestStartMeanwhile: a topic that another command changed while it was judged is left to that.
func TestStartMeanwhile(t *testing.T) {
	f := newFailback(t, admin.StartRequest{}, "orders STOPPED STOPPED STOPPED")
	f.m.cfg.ReadRemote = func(context.Context, coordinator.Mirror) (RemoteState, error) {
		f.w.topics[0].Started = time.Now()
		f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5)
		return f.remote, nil
	}
	if got, _ := f.begin(t); got != "145/4" || len(f.w.stored) > 0 {
		t.Errorf("%s, wrote %v", got, f.w.stored)
	}
}

// TestFailedFromScratch: start --overwrite of what is FAILED forgets what the topic was aligned to.
func TestFailedFromScratch(t *testing.T) {
	f := newFailback(t, admin.StartRequest{Overwrite: true}, "orders MIRRORING FAILED MIRRORING")
	f.w.topics[0].Align = []int32{4, 5}
	got, topic := f.begin(t)
	if got != "ok" || topic.Align != nil || !topic.Overwrite {
		t.Errorf("%s, %+v", got, topic)
	}
	if failed, other := f.w.states[ordersParts[0]], f.w.states[ordersParts[1]]; failed.State != statemachine.Preparing ||
		failed.LastMirrorEpoch != -1 || other.LastMirrorEpoch != 6 {
		t.Errorf("%+v, %+v", failed, other)
	}
	f = newFailback(t, admin.StartRequest{}, "orders MIRRORING FAILED MIRRORING")
	f.w.topics[0].Align = []int32{4, 5}
	if got, topic = f.begin(t); got != "ok" || topic.Align == nil || f.w.states[ordersParts[0]].State == statemachine.Failed {
		t.Errorf("where it was: %s, %+v, %+v", got, topic, f.w.states[ordersParts[0]])
	}
}

// TestPlan: a dry run counts what goes and what is copied, and changes nothing.
func TestPlan(t *testing.T) {
	remember := func(f *failback) { f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 4, 5) }
	for _, tt := range []struct {
		name  string
		setup func(*failback)
		want  [2]admin.PartitionPlan
	}{
		{"failback", remember, [2]admin.PartitionPlan{{Lost: 40, Truncated: 40, Copied: 90, Lag: 50},
			{Partition: 1, Lost: 25, Truncated: 25, Copied: 75, Lag: 50}}},
		{"from scratch", func(*failback) {}, [2]admin.PartitionPlan{{Lost: 90, Truncated: 90, Copied: 130, Lag: 50},
			{Partition: 1, Lost: 100, Truncated: 100, Copied: 130, Lag: 50}}},
		{"epoch unknown", func(f *failback) { f.remote.put("orders", statemachine.Stopped, statemachine.Stopped, 3, 5) },
			[2]admin.PartitionPlan{{Lost: -1, Truncated: -1, Copied: -1, Lag: 50}, {Partition: 1, Lost: 25, Truncated: 25, Copied: 75, Lag: 50}}},
		{"source silent", func(f *failback) { remember(f); f.there = fakeLogs{err: errors.New("timeout")} },
			[2]admin.PartitionPlan{{Lost: -1, Truncated: -1, Copied: -1, Lag: -1}, {Partition: 1, Lost: -1, Truncated: -1, Copied: -1, Lag: -1}}},
		{"created", func(f *failback) {
			f.w.edit(func(i *kraft.Image) {
				delete(i.Topics, idOf("orders"))
				delete(i.Names, "orders")
				i.Brokers = map[int32]*kraft.Broker{1: {ID: 1}}
			})
		}, [2]admin.PartitionPlan{{Copied: 130, Lag: 130}, {Partition: 1, Copied: 130, Lag: 130}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFailback(t, admin.StartRequest{DryRun: true, Overwrite: true})
			tt.setup(f)
			plan, err := f.topic(t.Context(), "orders")
			if err != nil || !slices.Equal(plan.Partitions, tt.want[:]) || len(plan.Requests) == 0 {
				t.Errorf("%+v, %v", plan, err)
			}
			if len(f.w.stored)+len(f.w.asked) > 0 {
				t.Errorf("a dry run wrote %v, asked %v", f.w.stored, f.w.asked)
			}
		})
	}
}
