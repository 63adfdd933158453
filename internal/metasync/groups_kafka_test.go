package metasync

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/internal/testkafka"
	"kmirror/protocol"
	"kmirror/statemachine"
)

// TestGroupsOnKafka runs rounds of groups and share groups between two clusters.
func TestGroupsOnKafka(t *testing.T) {
	b := newBed(t, testkafka.Latest)
	for _, c := range []struct {
		name string
		run  func(*testing.T, *bed)
	}{
		{"truncated", testTruncatedSuffix}, // restarts the destination
		{"classic", testClassicGroup},
		{"consumer", testConsumerGroup},
		{"clamp", testClampedGroup},
		{"long_metadata", testLongMetadata},
		{"active", testActiveGroup},
		{"turns_active", testGroupTurnsActive},
		{"stopped", testTopicStopped},
		{"another_cluster", testAnotherCluster},
		{"last", testLastSync},
		{"moved", testMovedCoordinator},
		{"refused", testRefusedGroup},
		{"old_source", testOldSource},
		{"many", testManyGroups},
		{"share", testShareGroup},
		{"share_clamp", testClampedShareGroup},
		{"share_active", testActiveShareGroup},
		{"types", testGroupTypes},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.w.groups = groupMemory{}
			b.lines("")
			c.run(t, b)
		})
	}
}

// classic and next join a group by the old protocol and by that of KIP-848.
func classic(group string) []kgo.Opt {
	return []kgo.Opt{kgo.ConsumerGroup(group), kgo.DisableAutoCommit()}
}

func next(group string) []kgo.Opt {
	return append(classic(group), kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
}

func testClassicGroup(t *testing.T, b *bed) {
	b.topic(t, "classic", 2, 20, 20)
	r := b.member(t, b.src, "classic", classic("classic-app")...)
	r.read(t, 5)
	r.leave()
	b.commit(t, b.srcAdm, "classic-app", "classic", 0, commit{7, 0, "left by host 3"})
	b.commit(t, b.srcAdm, "classic-app", "classic", 1, commit{4, 9, ""}) // an epoch that the destination does not have
	b.commit(t, b.srcAdm, "classic-none", "classic", 0, commit{-1, -1, ""})
	b.commit(t, b.srcAdm, "other", "classic", 0, commit{3, 0, ""})

	expectCounts(t, b.sync(t, "classic"), map[string]int{"changed groups": 2})
	expect(t, "with epoch and metadata", at(t, b.dstAdm, "classic-app", "classic", 0), commit{7, 0, "left by host 3"})
	expect(t, "epoch above the destination's", at(t, b.dstAdm, "classic-app", "classic", 1), commit{4, -1, ""})
	expect(t, "group that the filter leaves out", at(t, b.dstAdm, "other", "classic", 0), commit{-1, -1, ""})
	expect(t, "group without offsets", at(t, b.dstAdm, "classic-none", "classic", 0), commit{-1, -1, ""})
	expectCounts(t, b.sync(t, "classic"), map[string]int{})

	b.commit(t, b.srcAdm, "classic-app", "classic", 0, commit{2, 0, "reset"})
	expectCounts(t, b.sync(t, "classic"), map[string]int{"changed groups": 1})
	expect(t, "backwards", at(t, b.dstAdm, "classic-app", "classic", 0), commit{2, 0, "reset"})

	_, err := b.srcAdm.DeleteGroups(t.Context(), "classic-app")
	check(t, err)
	expectCounts(t, b.sync(t, "classic"), map[string]int{})
	expect(t, "deleted at the source", at(t, b.dstAdm, "classic-app", "classic", 0), commit{2, 0, "reset"})

	r = b.member(t, b.dst, "classic", classic("classic-app")...)
	for _, rec := range r.read(t, 20-2+20-4) {
		if rec.Offset < map[int32]int64{0: 2, 1: 4}[rec.Partition] {
			t.Errorf("read again: %d of %d", rec.Offset, rec.Partition)
		}
	}
	r.leave()
}

// testConsumerGroup moves a KIP-848 group.
func testConsumerGroup(t *testing.T, b *bed) {
	b.topic(t, "next", 1, 20, 20)
	r := b.member(t, b.src, "next", next("next-app")...)
	first := r.read(t, 8)
	check(t, r.cl.CommitRecords(t.Context(), first...))
	expectCounts(t, b.sync(t, "next"), map[string]int{"changed groups": 1}) // active at the source is no matter
	r.leave()
	r = b.member(t, b.dst, "next", next("next-app")...)
	expect(t, "goes on at", r.read(t, 1)[0].Offset, 8)
	r.leave()
	b.commit(t, b.srcAdm, "next-app", "next", 0, commit{3, 0, ""})
	expectCounts(t, b.sync(t, "next"), map[string]int{"changed groups": 1})
	expect(t, "into an empty KIP-848 group", at(t, b.dstAdm, "next-app", "next", 0), commit{3, 0, ""})
}

func testClampedGroup(t *testing.T, b *bed) {
	b.topic(t, "clamp", 2, 20, 10)
	b.commit(t, b.srcAdm, "clamp-app", "clamp", 0, commit{15, 0, "m"})
	b.commit(t, b.srcAdm, "clamp-app", "clamp", 1, commit{2, 0, "m"})
	os := kadm.Offsets{}
	os.AddOffset("clamp", 1, 5, -1)
	_, err := b.dstAdm.DeleteRecords(t.Context(), os)
	check(t, err)
	expectCounts(t, b.sync(t, "clamp"), map[string]int{"changed groups": 2})
	expect(t, "above the end", at(t, b.dstAdm, "clamp-app", "clamp", 0), commit{10, 0, "m"})
	expect(t, "below the start", at(t, b.dstAdm, "clamp-app", "clamp", 1), commit{5, 0, "m"})
	expectCounts(t, b.sync(t, "clamp"), map[string]int{})
	produce(t, b.dstCl, "clamp", 0, 3)
	b.sync(t, "clamp")
	expect(t, "rises with the log", at(t, b.dstAdm, "clamp-app", "clamp", 0), commit{13, 0, "m"})
	produce(t, b.dstCl, "clamp", 0, 7)
	b.sync(t, "clamp")
	expect(t, "reached", at(t, b.dstAdm, "clamp-app", "clamp", 0), commit{15, 0, "m"})
}

// testLongMetadata: what the destination's brokers find too long for them does not keep the offset from being synced.
func testLongMetadata(t *testing.T, b *bed) {
	b.topic(t, "talk", 2, 20, 20)
	b.commit(t, b.srcAdm, "talk-app", "talk", 0, commit{7, 0, strings.Repeat("m", 5000)})
	b.commit(t, b.srcAdm, "talk-app", "talk", 1, commit{8, 0, "short"})
	expectCounts(t, b.sync(t, "talk"), map[string]int{"changed groups": 2, "skipped groups metadata": 1})
	expect(t, "too long", at(t, b.dstAdm, "talk-app", "talk", 0), commit{7, 0, ""})
	expect(t, "beside it", at(t, b.dstAdm, "talk-app", "talk", 1), commit{8, 0, "short"})
	expectCounts(t, b.sync(t, "talk"), map[string]int{})
	b.commit(t, b.srcAdm, "talk-app", "talk", 0, commit{9, 0, strings.Repeat("m", 6000)})
	expectCounts(t, b.sync(t, "talk"), map[string]int{"changed groups": 1})
	expect(t, "moved on", at(t, b.dstAdm, "talk-app", "talk", 0), commit{9, 0, ""})
}

func testActiveGroup(t *testing.T, b *bed) {
	b.topic(t, "active", 1, 20, 20)
	for i, opts := range []func(string) []kgo.Opt{classic, next} {
		group := fmt.Sprintf("active-%d", i)
		b.commit(t, b.srcAdm, group, "active", 0, commit{3, 0, ""})
		r := b.member(t, b.dst, "active", opts(group)...)
		check(t, r.cl.CommitRecords(t.Context(), r.read(t, 9)...))
		for i := range 3 {
			expectCounts(t, b.sync(t, group), map[string]int{"skipped groups active": 1})
			expect(t, "lines of the skip", b.lines("has members at the destination"), max(0, 1-i))
		}
		expect(t, "own offset", at(t, b.dstAdm, group, "active", 0).offset, 9)
		r.leave()
		expectCounts(t, b.sync(t, group), map[string]int{"changed groups": 1})
		expect(t, "once it has left", at(t, b.dstAdm, group, "active", 0).offset, 3)
	}
}

// testGroupTurnsActive: a group joins between our look and our commit.
func testGroupTurnsActive(t *testing.T, b *bed) {
	b.topic(t, "turns", 1, 20, 20)
	for i, opts := range []func(string) []kgo.Opt{classic, next} {
		group := fmt.Sprintf("turns-%d", i)
		b.commit(t, b.srcAdm, group, "turns", 0, commit{3, 0, ""})
		b.commit(t, b.dstAdm, group, "turns", 0, commit{5, 0, ""})
		var r *reader
		b.w.groups.beforeWrite = func(string) {
			r = b.member(t, b.dst, "turns", opts(group)...)
			expect(t, "reads from", r.read(t, 1)[0].Offset, 5)
		}
		expectCounts(t, b.sync(t, group), map[string]int{"skipped groups active": 1})
		expect(t, "own offset", at(t, b.dstAdm, group, "turns", 0), commit{5, 0, ""})
		r.leave()
		b.w.groups.beforeWrite = nil
	}
}

// testTopicStopped: a topic is stopped or paused between our look and our commit, while its groups are empty (Redpanda Connect #3503).
func testTopicStopped(t *testing.T, b *bed) {
	b.topic(t, "stopped", 1, 20, 20)
	b.topic(t, "stays", 1, 20, 20)
	for _, desired := range []statemachine.State{statemachine.Stopped, statemachine.Paused} {
		b.only(t, "stopped", "stays")
		group := fmt.Sprintf("stopped-%s", strings.ToLower(desired.String()))
		b.commit(t, b.srcAdm, group, "stopped", 0, commit{3, 0, ""})
		b.commit(t, b.srcAdm, group, "stays", 0, commit{4, 0, ""})
		b.w.groups.beforeWrite = func(string) {
			b.edit("stopped", func(t *coordinator.Topic) { t.Desired = desired })
		}
		expectCounts(t, b.sync(t, group), map[string]int{"changed groups": 1, "skipped groups stopped": 1})
		expect(t, desired.String(), at(t, b.dstAdm, group, "stopped", 0), commit{-1, -1, ""})
		expect(t, "the other topic", at(t, b.dstAdm, group, "stays", 0), commit{4, 0, ""})
		b.w.groups.beforeWrite = nil
		b.commit(t, b.srcAdm, group, "stopped", 0, commit{6, 0, ""})
		b.dstSent.take()
		expectCounts(t, b.sync(t, group), map[string]int{})
		expect(t, "commits", b.dstSent.take()["OffsetCommit"], 0)
	}
	b.only(t, "stopped")
	b.edit("stopped", func(t *coordinator.Topic) { t.Desired = statemachine.Stopped })
	b.dstSent.take()
	b.sync(t, "stopped")
	if got := b.dstSent.take(); len(got) > 0 {
		t.Errorf("nothing flows, but the destination was asked: %v", got)
	}
}

// testAnotherCluster: the source's client comes to another cluster after the round has begun. Nothing that was read is written.
func testAnotherCluster(t *testing.T, b *bed) {
	b.topic(t, "another", 1, 20, 20)
	b.only(t, "another")
	b.commit(t, b.srcAdm, "another-app", "another", 0, commit{3, 0, ""})
	b.dstSent.take()
	_, err := b.round(t, "another", func(j *job, ctx context.Context) error {
		b.w.groups.beforeWrite = func(string) { j.def.SourceClusterID = "another" }
		return j.groups(ctx)
	})
	b.w.groups.beforeWrite = nil
	if !errors.Is(err, errWrongCluster) {
		t.Errorf("got %v", err)
	}
	expect(t, "commits", b.dstSent.take()["OffsetCommit"], 0)
	expectCounts(t, b.sync(t, "another"), map[string]int{"changed groups": 1})

	retention := "7000000"
	_, err = b.srcAdm.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "retention.ms", Value: &retention}}, "another")
	check(t, err)
	for kind, do := range map[string]func(*job, context.Context) error{Topics: (*job).topics, Configs: (*job).configs} {
		if counts, err := b.round(t, "another", func(j *job, ctx context.Context) error { // whatever it did would panic
			j.def.SourceClusterID = "another"
			return do(j, ctx)
		}); !errors.Is(err, errWrongCluster) || len(counts) > 0 {
			t.Errorf("%s: %v, %v", kind, counts, err)
		}
	}
}

// testMovedCoordinator: a write that has to be tried again looks at what flows first.
func testMovedCoordinator(t *testing.T, b *bed) {
	b.topic(t, "moved", 1, 20, 20)
	b.commit(t, b.srcAdm, "moved-app", "moved", 0, commit{3, 0, ""})
	// first is called instead of the first write, which is answered as by a broker that was the coordinator.
	round := func(first func()) map[string]int {
		counts, err := b.round(t, "moved", func(j *job, ctx context.Context) error {
			f := j.consumers()
			write := f.write
			f.write = func(o *offsetSync, ctx context.Context, coordinator *kgo.Broker, group string, put commits, flow flow) (
				map[protocol.TopicPartition]int16, error) {
				if first == nil {
					return write(o, ctx, coordinator, group, put, flow)
				}
				first()
				first = nil
				return map[protocol.TopicPartition]int16{part("moved", 0): kerr.NotCoordinator.Code}, nil
			}
			return j.syncOffsets(ctx, f)
		})
		check(t, err)
		return counts
	}
	b.dstSent.take()
	expectCounts(t, round(func() { b.edit("moved", func(t *coordinator.Topic) { t.Desired = statemachine.Paused }) }),
		map[string]int{"skipped groups stopped": 1})
	expect(t, "commits", b.dstSent.take()["OffsetCommit"], 0)
	b.only(t, "moved")
	expectCounts(t, round(func() {}), map[string]int{"changed groups": 1})
	expect(t, "tried again", at(t, b.dstAdm, "moved-app", "moved", 0), commit{3, 0, ""})
}

// testOldSource: brokers before Kafka 3.0 take one group a request, and don't know types of groups or ids of topics.
func testOldSource(t *testing.T, b *bed) {
	b.topic(t, "old", 1, 20, 20)
	for i := range 10 {
		b.commit(t, b.srcAdm, fmt.Sprintf("old-%d", i), "old", 0, commit{int64(i), 0, "m"})
	}
	var s *sent
	b.oldCl, s = b.connect(t, b.src, kgo.MaxVersions(kversion.V2_1_0()))
	defer func() { b.oldCl = nil }()
	expectCounts(t, b.sync(t, "old"), map[string]int{"changed groups": 10})
	sent := s.take()
	t.Logf("source %v", sent)
	expect(t, "OffsetFetch", sent["OffsetFetch"], 10)
	expect(t, "offset", at(t, b.dstAdm, "old-7", "old", 0), commit{7, 0, "m"})
	expectCounts(t, b.shares(t, "old"), map[string]int{})
}

// testLastSync: the last round of a promote touches only its topics.
func testLastSync(t *testing.T, b *bed) {
	b.topic(t, "last", 1, 20, 20)
	b.topic(t, "lasting", 1, 20, 20)
	b.only(t, "last", "lasting")
	b.edit("last", func(t *coordinator.Topic) { t.Desired, t.Drain = statemachine.Stopped, true })
	b.commit(t, b.srcAdm, "last-app", "last", 0, commit{20, 0, ""})
	b.commit(t, b.srcAdm, "last-app", "lasting", 0, commit{20, 0, ""})
	topic, _ := b.TopicByName("last")
	b.size = ""
	counts, err := b.round(t, "last-", (*job).groups, topic)
	check(t, err)
	expectCounts(t, counts, map[string]int{})
	expect(t, "unlocked, so its consumers may be at work", at(t, b.dstAdm, "last-app", "last", 0).offset, -1)
	b.size = "0"
	counts, err = b.round(t, "last-", (*job).groups, topic)
	check(t, err)
	expectCounts(t, counts, map[string]int{"changed groups": 1})
	expect(t, "promoted", at(t, b.dstAdm, "last-app", "last", 0).offset, 20)
	expect(t, "not promoted", at(t, b.dstAdm, "last-app", "lasting", 0).offset, -1)
}

// testRefusedGroup: a group that may not be read is an error of its own.
func testRefusedGroup(t *testing.T, b *bed) {
	b.topic(t, "refused", 1, 20, 20)
	for _, g := range []string{"refused-a", "refused-b", "refused-c"} {
		b.commit(t, b.srcAdm, g, "refused", 0, commit{3, 0, ""})
	}
	b.commit(t, b.dstAdm, "refused-b", "refused", 0, commit{90, -1, ""}) // not to be taken for one without a source's
	acl := kadm.NewACLs().Deny("User:ANONYMOUS").DenyHosts("*").Operations(kadm.OpDescribe).ResourcePatternType(kadm.ACLPatternLiteral).
		Groups("refused-b")
	_, err := b.srcAdm.CreateACLs(t.Context(), acl)
	check(t, err)
	eventually(t, "the ACL holds", func() bool {
		_, err := b.srcAdm.FetchOffsets(t.Context(), "refused-b")
		return errors.Is(err, kerr.GroupAuthorizationFailed)
	})
	counts, err := b.round(t, "refused", (*job).groups)
	if !errors.Is(err, kerr.GroupAuthorizationFailed) || !strings.Contains(err.Error(), "refused-b") {
		t.Errorf("error: %v", err)
	}
	expectCounts(t, counts, map[string]int{"changed groups": 2})
	expect(t, "the others", at(t, b.dstAdm, "refused-c", "refused", 0), commit{3, 0, ""})
	expect(t, "the one", at(t, b.dstAdm, "refused-b", "refused", 0), commit{90, -1, ""})

	// A promote does without it; share groups are no worse off for that.
	b.alter(t, b.srcAdm, "refused-queue", "refused", 2)
	b.edit("refused", func(t *coordinator.Topic) { t.Desired, t.Drain = statemachine.Stopped, true })
	topic, _ := b.TopicByName("refused")
	def := coordinator.Mirror{Name: "m", SourceClusterID: b.src.ID(), Config: map[string]string{filters.GroupsInclude: "refused.*"}}
	if err := b.w.trySync(t.Context(), def, []coordinator.Topic{topic}); !errors.Is(err, kerr.GroupAuthorizationFailed) {
		t.Errorf("last sync: %v", err)
	}
	expect(t, "a share group", b.start(t, b.dstAdm, "refused-queue", "refused"), 2)
}

// testManyGroups counts requests.
func testManyGroups(t *testing.T, b *bed) {
	const groups = 250
	b.topic(t, "many", 4, 5, 5)
	type requests struct{ sourceFetch, fetch, list, commit int }
	var sent requests
	want := requests{3, 3, 2, groups}
	for offset := int64(1); offset <= 3 && sent != want; offset++ { // what takes too long, as on a machine that stands still, is sent again
		for i := range groups {
			os := kadm.Offsets{}
			for p := range int32(4) {
				os.AddOffset("many", p, offset, 0)
			}
			check(t, b.srcAdm.CommitAllOffsets(t.Context(), fmt.Sprintf("many-%d", i), os))
		}
		b.srcSent.take()
		b.dstSent.take()
		start := time.Now()
		expectCounts(t, b.sync(t, "many"), map[string]int{"changed groups": 4 * groups})
		src, dst := b.srcSent.take(), b.dstSent.take()
		t.Logf("a round in %v: source %v, destination %v", time.Since(start), src, dst)
		sent = requests{src["OffsetFetch"], dst["OffsetFetch"], dst["ListOffsets"], dst["OffsetCommit"]}
	}
	expect(t, "requests", sent, want)
	start := time.Now()
	expectCounts(t, b.sync(t, "many"), map[string]int{})
	src, dst := b.srcSent.take(), b.dstSent.take()
	t.Logf("a second round in %v: source %v, destination %v", time.Since(start), src, dst)
	expect(t, "OffsetCommit when nothing differs", dst["OffsetCommit"], 0)
}

// testTruncatedSuffix: groups without a source's offset that stand where the log was cut, or beyond its end, are set back.
func testTruncatedSuffix(t *testing.T, b *bed) {
	b.topic(t, "cut", 1, 20, 10)
	check(t, b.dst.Node(1).Stop()) // a new leader epoch
	check(t, b.dst.Node(1).Start())
	produce(t, b.dstCl, "cut", 0, 10)
	ends, err := b.dstAdm.ListEndOffsets(t.Context(), "cut")
	check(t, err)
	end, _ := ends.Lookup("cut", 0)
	expect(t, "end", end.Offset, 20)
	if end.LeaderEpoch == 0 {
		t.Fatal("the restart made no new leader epoch")
	}
	for group, c := range map[string]commit{
		"cut-old-epoch": {15, 0, "m"}, "cut-new-epoch": {15, end.LeaderEpoch, ""}, "cut-at-end": {10, 0, ""},
		"cut-beyond": {30, -1, "m"}, "cut-within": {15, -1, ""}, "cut-backed": {15, 0, ""}, "spare": {15, 0, ""},
	} {
		b.commit(t, b.dstAdm, group, "cut", 0, c)
	}
	b.commit(t, b.srcAdm, "cut-backed", "cut", 0, commit{16, 0, ""})
	expectCounts(t, b.sync(t, "cut"), map[string]int{"changed groups": 3})
	expect(t, "lines", b.lines("does not reach any more"), 2)
	for group, c := range map[string]commit{
		"cut-old-epoch": {10, 0, "m"}, "cut-new-epoch": {15, end.LeaderEpoch, ""}, "cut-at-end": {10, 0, ""},
		"cut-beyond": {20, end.LeaderEpoch, "m"}, "cut-within": {15, -1, ""}, "cut-backed": {16, 0, ""}, "spare": {15, 0, ""},
	} {
		expect(t, group, at(t, b.dstAdm, group, "cut", 0), c)
	}
	expectCounts(t, b.sync(t, "cut"), map[string]int{})
}

// testGroupTypes: an id that belongs to a group of another type at the destination is left alone.
func testGroupTypes(t *testing.T, b *bed) {
	b.topic(t, "types", 1, 20, 20)
	b.commit(t, b.srcAdm, "types-app", "types", 0, commit{3, 0, ""})
	share := func(string) { b.alter(t, b.dstAdm, "types-app", "types", 5) }
	b.w.groups.beforeWrite = share
	expectCounts(t, b.sync(t, "types"), map[string]int{"skipped groups type": 1}) // found by the coordinator
	b.w.groups.beforeWrite = nil
	expectCounts(t, b.sync(t, "types"), map[string]int{"skipped groups type": 1}) // found in the list
	expect(t, "share group", b.start(t, b.dstAdm, "types-app", "types"), 5)

	b.alter(t, b.srcAdm, "types-share", "types", 7)
	b.w.groups.beforeWrite = func(string) { b.commit(t, b.dstAdm, "types-share", "types", 0, commit{2, 0, ""}) }
	for range 2 {
		counts, err := b.round(t, "types-share", (*job).shareGroups)
		check(t, err)
		expectCounts(t, counts, map[string]int{"skipped share_groups type": 1})
		b.w.groups.beforeWrite = nil
	}
	expect(t, "consumer group", at(t, b.dstAdm, "types-share", "types", 0), commit{2, 0, ""})
}

// TestShareGroupsUnsupported: to a destination that has none they are left out, without an error. Kafka 4.1 has them switched off.
func TestShareGroupsUnsupported(t *testing.T) {
	b := newBed(t, testkafka.Previous)
	b.topic(t, "older", 1, 20, 20)
	b.alter(t, b.srcAdm, "older-share", "older", 7)
	b.commit(t, b.srcAdm, "older-app", "older", 0, commit{7, 0, "m"})
	expectCounts(t, b.shares(t, "older"), map[string]int{"skipped share_groups unsupported": 1})
	expectCounts(t, b.sync(t, "older"), map[string]int{"changed groups": 1})
	expect(t, "offset", at(t, b.dstAdm, "older-app", "older", 0), commit{7, 0, "m"})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > 90*time.Second {
			t.Fatal("not in 90 s: " + what)
		}
	}
}
