package e2e

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// groupKind is a kind of group whose members are franz-go clients.
type groupKind struct {
	name string
	opts []kgo.Opt
	// share: the members acknowledge records instead of committing offsets.
	share bool
}

var groupKinds = []groupKind{
	{"classic", []kgo.Opt{kgo.ConsumerGroup("classic"), kgo.DisableAutoCommit()}, false},
	{"kip848", []kgo.Opt{kgo.ConsumerGroup("kip848"), kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()),
		kgo.DisableAutoCommit()}, false},
	{"share", []kgo.Opt{kgo.ShareGroup("share")}, true},
}

// work has a member of a group take about n records of a topic, say so to its group, and leave. It returns the offsets that it was
// given, in order, by partition. n < 0: -n records, and what comes within two seconds after them.
func (k groupKind) work(t *testing.T, c *testkafka.Cluster, topic string, n int) map[int32][]int64 {
	t.Helper()
	cl := client(t, c, append([]kgo.Opt{kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxPartitionBytes(4000), kgo.RecheckPreferredReplicaInterval(time.Second)}, k.opts...)...)
	defer cl.Close()
	out, taken := map[int32][]int64{}, 0
	for deadline := time.Now().Add(patience(time.Minute)); n < 0 || taken < n; {
		idle := 30 * time.Second
		if n < 0 && taken >= -n {
			idle = 2 * time.Second
		}
		ctx, cancel := context.WithTimeout(context.Background(), idle)
		fs := cl.PollRecords(ctx, 50)
		cancel()
		if n < 0 && taken >= -n && fs.NumRecords() == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %d records in time: %v", k.name, taken, fs.Err())
		}
		fs.EachRecord(func(r *kgo.Record) {
			out[r.Partition] = append(out[r.Partition], r.Offset)
			taken++
		})
		if k.share {
			cl.MarkAcks(kgo.AckAccept, fs.Records()...)
			if err := cl.FlushAcks(timeout(t, 20*time.Second)); err != nil {
				t.Fatalf("%s acknowledges: %v", k.name, err)
			}
			continue
		}
		if err := cl.CommitRecords(timeout(t, 20*time.Second), fs.Records()...); err != nil {
			t.Fatalf("%s commits: %v", k.name, err)
		}
	}
	return out
}

// at returns where a group is at a cluster, by partition.
func (k groupKind) at(t *testing.T, c *testkafka.Cluster, topic string) map[int32]kadm.Offset {
	t.Helper()
	adm, out := kadm.NewClient(client(t, c)), map[int32]kadm.Offset{}
	if k.share {
		rs, err := adm.DescribeShareGroupOffsets(timeout(t, 20*time.Second), k.name)
		if err != nil {
			t.Fatal(err)
		}
		for p, o := range rs[k.name].Offsets[topic] {
			if o.StartOffset >= 0 {
				out[p] = kadm.Offset{Partition: p, At: o.StartOffset, LeaderEpoch: -1}
			}
		}
		return out
	}
	rs, err := adm.FetchOffsets(timeout(t, 20*time.Second), k.name)
	if err != nil {
		return out
	}
	rs.Each(func(o kadm.OffsetResponse) {
		if o.Topic == topic && o.Err == nil && o.At >= 0 {
			o.Topic, o.TopicID = "", kadm.TopicID{}
			out[o.Partition] = o.Offset
		}
	})
	return out
}

// arrives waits until a group is at the destination where it is at the source.
func (k groupKind) arrives(t *testing.T, src, dst *testkafka.Cluster, topic string) map[int32]kadm.Offset {
	t.Helper()
	want := k.at(t, src, topic)
	eventually(t, 30*time.Second, "group "+k.name+" at the destination", func() error {
		got := k.at(t, dst, topic)
		for p, o := range want {
			if got[p] != o {
				return fmt.Errorf("partition %d: %+v, at the source %+v", p, got[p], o)
			}
		}
		return nil
	})
	return want
}

// recordsEach is how many records each partition has.
const recordsEach = 1000

// TestGroupsMove: applications of every kind of group are moved in the middle of their work, by a promote and by a failover from a dead
// source, and go on where they had said that they were: nothing is lost, and nothing that was committed comes again.
func TestGroupsMove(t *testing.T) {
	t.Parallel()
	src, dst := securePair(t, nil)
	const topic, partitions, each = "orders", 2, recordsEach
	for _, name := range []string{topic, "payments"} {
		createTopic(t, src, name, partitions, nil)
		produce(t, client(t, src), name, partitions, each, 50)
	}
	earliest(t, src, "share")
	s := newShim(t, dst, "")
	s.create(src, brisk)
	s.mirror(topic, "payments")
	s.caughtUp(src, 3, time.Minute, topic, "payments")
	for _, k := range groupKinds {
		k.work(t, src, topic, each/2)
		k.work(t, src, "payments", each/2)
		k.arrives(t, src, dst, topic)
		k.arrives(t, src, dst, "payments")
	}
	t.Run("backwards", func(t *testing.T) {
		reset := kadm.Offsets{}
		reset.Add(kadm.Offset{Topic: topic, Partition: 0, At: 17, LeaderEpoch: 0, Metadata: "reset"})
		if err := kadm.NewClient(client(t, src)).CommitAllOffsets(timeout(t, 20*time.Second), "classic", reset); err != nil {
			t.Fatal(err)
		}
		if got := groupKinds[0].arrives(t, src, dst, topic); got[0].At != 17 || got[0].Metadata != "reset" {
			t.Errorf("at %+v", got)
		}
	})
	t.Run("active", func(t *testing.T) { activeKeeps(t, s, src, dst, topic) })
	t.Run("promote", func(t *testing.T) {
		for _, k := range groupKinds {
			k.arrives(t, src, dst, topic)
		}
		s.alter(src, "mirror.metadata.refresh.interval.ms=3600000")
		for _, k := range groupKinds {
			k.worksAlone(t, src, dst, topic)
		}
		s.verb("promote", topic, "--wait", "60s")
		goesOn(t, src, dst, topic)
		s.alter(src, brisk)
		commitAt(t, src, "classic", topic, 3, 0)
		before := groupKinds[0].at(t, dst, topic)
		time.Sleep(2 * time.Second) // four rounds
		if after := groupKinds[0].at(t, dst, topic); !maps.Equal(before, after) {
			t.Errorf("a group of a STOPPED topic was moved from %v to %v", before, after)
		}
	})
	t.Run("failover", func(t *testing.T) {
		was := map[string]map[int32]kadm.Offset{}
		for _, k := range groupKinds {
			was[k.name] = k.arrives(t, src, dst, "payments")
		}
		for _, n := range src.Nodes() {
			n.Kill()
		}
		s.verb("failover", "payments", "--wait", "60s")
		for _, k := range groupKinds {
			first(t, k, k.work(t, dst, "payments", rest(was[k.name])), was[k.name], endOffsets(t, dst, "payments"), "payments")
		}
	})
}

// worksAlone has a group work at the source while no round brings that to the destination, after the last one: a change of the mirror asks for
// that, and it may still be under way.
func (k groupKind) worksAlone(t *testing.T, src, dst *testkafka.Cluster, topic string) {
	t.Helper()
	for range 3 {
		before, there := k.at(t, src, topic), k.at(t, dst, topic)
		k.work(t, src, topic, recordsEach/10)
		if maps.Equal(before, k.at(t, src, topic)) {
			t.Fatalf("%s has not worked: %v", k.name, before)
		}
		if maps.Equal(there, k.at(t, dst, topic)) {
			return
		}
	}
	t.Fatalf("%s is synced without a round", k.name)
}

// goesOn wants all groups to be at the destination where they are at the source, and their members to be given what comes from there on.
func goesOn(t *testing.T, src, dst *testkafka.Cluster, topic string) {
	t.Helper()
	for _, k := range groupKinds {
		want, got := k.at(t, src, topic), k.at(t, dst, topic)
		if !maps.Equal(want, got) || len(want) == 0 {
			t.Errorf("%s is at %v, at the source %v", k.name, got, want)
			continue
		}
		first(t, k, k.work(t, dst, topic, rest(want)), want, endOffsets(t, dst, topic), topic)
	}
}

// rest has work take all records from offsets on, of the thousand in each partition.
func rest(from map[int32]kadm.Offset) (n int) {
	for _, o := range from {
		n -= int(max(0, recordsEach-o.At))
	}
	return n
}

// first wants what members were given to begin where the group was, and to go on without gaps to the end of the log, each record once.
// A share group's records come in any order.
func first(t *testing.T, k groupKind, given map[int32][]int64, from map[int32]kadm.Offset, ends map[tp]int64, topic string) {
	t.Helper()
	for p, o := range from {
		seen := map[int64]int{}
		least := int64(1 << 62)
		for _, off := range given[p] {
			seen[off]++
			least = min(least, off)
		}
		if least != o.At && o.At < ends[tp{topic, p}] {
			t.Errorf("%s partition %d: goes on at %d, was at %d", k.name, p, least, o.At)
		}
		for off := o.At; off < recordsEach; off++ { // later ones are the markers of the stop
			if seen[off] != 1 {
				t.Errorf("%s partition %d: record %d came %d times", k.name, p, off, seen[off])
				break
			}
		}
	}
}

// activeKeeps: a group that works at the destination keeps its own offsets, until it has left.
func activeKeeps(t *testing.T, s *shim, src, dst *testkafka.Cluster, topic string) {
	k := groupKind{"busy", []kgo.Opt{kgo.ConsumerGroup("busy"), kgo.DisableAutoCommit()}, false}
	member := client(t, dst, append(k.opts, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	defer member.Close()
	var fs kgo.Fetches
	for ctx := timeout(t, time.Minute); fs.NumRecords() == 0 && ctx.Err() == nil; { // it may tell first of trouble with the group
		fs = member.PollRecords(ctx, 10)
	}
	if err := member.CommitRecords(timeout(t, 20*time.Second), fs.Records()...); err != nil {
		t.Fatal(err)
	}
	mine := k.at(t, dst, topic)
	skipped := s.total(`kmirror_sync_skips_total{kind="groups",mirror="m",reason="active"}`)
	k.work(t, src, topic, 300)
	time.Sleep(2 * time.Second) // four rounds
	if now := k.at(t, dst, topic); !maps.Equal(mine, now) || len(mine) == 0 {
		t.Errorf("an active group was moved from %v to %v", mine, now)
	}
	eventually(t, 30*time.Second, "that it was left alone counted", func() error {
		if n := s.total(`kmirror_sync_skips_total{kind="groups",mirror="m",reason="active"}`); n <= skipped {
			return fmt.Errorf("%d, as before", n)
		}
		return nil
	})
	member.Close()
	k.arrives(t, src, dst, topic)
}

// earliest has a share group that is new begin with the first record.
func earliest(t *testing.T, c *testkafka.Cluster, group string) {
	t.Helper()
	req, res, set := kmsg.NewPtrIncrementalAlterConfigsRequest(), kmsg.NewIncrementalAlterConfigsRequestResource(),
		kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	set.Name, set.Op, set.Value = "share.auto.offset.reset", kmsg.IncrementalAlterConfigOpSet, kmsg.StringPtr("earliest")
	res.ResourceType, res.ResourceName, res.Configs = kmsg.ConfigResourceTypeGroupConfig, group, append(res.Configs, set)
	req.Resources = append(req.Resources, res)
	resp, err := req.RequestWith(timeout(t, 20*time.Second), client(t, c))
	if err == nil {
		err = kerr.ErrorForCode(resp.Resources[0].ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
}
