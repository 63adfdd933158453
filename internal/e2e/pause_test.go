package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/kipclient"
)

// ends asks every broker for its log end of all partitions of topics.
func (b *bed) ends(t *testing.T, partitions int32, topics ...string) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, id := range b.dst.Brokers() {
		for _, topic := range topics {
			for p := range partitions {
				var v replicaView
				eventually(t, 30*time.Second, "view of a broker", func() (err error) { v, err = viewOf(t, b.dst.Node(id), topic, p); return err })
				out[fmt.Sprintf("%s-%d on broker %d", topic, p, id)] = v.end
			}
		}
	}
	return out
}

// pauses: topics of a mirror of their own, under load all the time, are paused, resumed, made to fail, recovered, stopped and deleted.
func (b *bed) pauses(t *testing.T) {
	topics := []string{"rest-a", "rest-b"}
	const all, partitions = "/rest-.*/", 2
	b.s.createAs("p", b.src)
	var readers []*tail
	for _, topic := range topics {
		createTopic(t, b.src, topic, partitions, nil)
		flow(t, b.src, topic, partitions, 200)
	}
	b.s.must("start", "--mirror", "p", "--topics", all)
	for _, topic := range topics {
		b.s.get(time.Minute, "MIRRORING", topic)
		readers = append(readers, follow(t, b.dst, topic, partitions))
	}
	read := func() {
		t.Helper()
		for _, r := range readers {
			r.reaches(t, b.src, 30*time.Second)
		}
	}
	read()
	verb := func(name, list string) time.Duration {
		t.Helper()
		begin := time.Now()
		b.s.must(name, "--mirror", "p", "--topics", list)
		return time.Since(begin).Round(10 * time.Millisecond)
	}
	verb("resume", all) // a goal already reached
	for round := range 3 {
		took := verb("pause", all)
		before := b.ends(t, partitions, topics...)
		samples := 0
		polled(2*time.Second, func() bool {
			samples++
			now := b.ends(t, partitions, topics...)
			if !maps.Equal(now, before) {
				t.Errorf("appended while PAUSED: %v, before %v", now, before)
			}
			return t.Failed()
		})
		for at, end := range before {
			if other := before[strings.Split(at, " on ")[0]+" on broker 1"]; end != other {
				t.Errorf("%s ends at %d, on broker 1 at %d", at, end, other)
			}
		}
		if round == 0 {
			verb("pause", all) // a goal already reached
			b.s.refusedAs(4, "CLUSTER_MIRROR_NOT_EMPTY", "delete", "--mirror", "p", "--yes")
			b.s.refusedAs(4, "TOPIC_NOT_IN_CLUSTER_MIRROR", "pause", "--mirror", "m", "--topics", "rest-a")
			b.s.refusedAs(2, "UNKNOWN_CLUSTER_MIRROR", "pause", "--mirror", "nobody", "--topics", "rest-a")
			b.s.refusedAs(2, "UNKNOWN_TOPIC_OR_PARTITION", "pause", "--mirror", "p", "--topics", "rest-z")
		}
		resumed := verb("resume", all)
		t.Logf("paused in %s, %d samples at rest, resumed in %s", took, samples, resumed)
		read()
	}
	b.fails(t, topics[0])
	read()
	t.Logf("stopped by pattern in %s", verb("failover", all))
	b.afterStop(t, topics, readers)
}

// fails takes our ids off a topic until kmirror gives it up, and has it recovered.
func (b *bed) fails(t *testing.T, topic string) {
	adm := kadm.NewClient(client(t, b.dst))
	eventually(t, 90*time.Second, "FAILED", func() error {
		parts, err := b.s.describe("--topics", topic)
		if err != nil {
			return err
		}
		for _, p := range parts {
			if p.State == "FAILED" && p.Hint != nil {
				return nil
			}
		}
		d, err := replicasOf(t, b.dst, topic)
		if err != nil {
			return err
		}
		if p := d.Partitions[0]; p.Leader > 9000 && len(p.ISR) == 5 {
			var req kadm.AlterPartitionAssignmentsReq
			req.Assign(topic, 0, slices.DeleteFunc(slices.Clone(p.Replicas), func(id int32) bool { return id > 9000 }))
			if _, err := adm.AlterPartitionAssignments(timeout(t, 10*time.Second), req); err != nil {
				return err
			}
		}
		return fmt.Errorf("%+v", parts)
	})
	b.failureStored(t, topic)
	b.s.refusedAs(4, "INVALID_CLUSTER_MIRROR_STATES", "pause", "--mirror", "p", "--topics", topic)
	b.s.must("recover", "--mirror", "p", "--topics", topic)
	b.s.get(30*time.Second, "MIRRORING", topic)
}

// failureStored waits until FAILED is stored of a partition of a topic: that is a moment after it is described, and what is stored counts.
func (b *bed) failureStored(t *testing.T, topic string) {
	t.Helper()
	c, err := kipclient.Dial(b.s.admin)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	parts := []any{kipclient.Object{"PartitionIndex": 0}, kipclient.Object{"PartitionIndex": 1}}
	req := kipclient.Object{"MirrorName": "p", "Topics": []any{kipclient.Object{"Name": topic, "Partitions": parts}}}
	eventually(t, 30*time.Second, "FAILED (7) stored", func() error {
		resp, err := c.Call("ReadMirrorStates", req)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(resp["Topics"]); !strings.Contains(got, " State:7]") {
			return fmt.Errorf("stored states %s", got)
		}
		return nil
	})
}

// afterStop: what is STOPPED can't be paused or resumed, and its mirror can be deleted.
func (b *bed) afterStop(t *testing.T, topics []string, readers []*tail) {
	for i, topic := range topics {
		for p, got := range readers[i].at() {
			t.Logf("%s-%d: a consumer read %d records", topic, p, got)
		}
		if wrong := readers[i].errors(); len(wrong) > 0 {
			t.Errorf("the consumer of %s: %d times wrong, first %q", topic, len(wrong), wrong[:min(3, len(wrong))])
		}
		leads(t, b.dst, topic, 3, 30*time.Second)
		for p := range int32(len(readers[i].seen)) {
			agree(t, topic, p, 3, b.dst)
			src, dst := valuesIn(t, b.src, topic, p, kgo.ReadUncommitted()), valuesIn(t, b.dst, topic, p, kgo.ReadUncommitted())
			if len(src) < len(dst) || !slices.Equal(src[:len(dst)], dst) {
				t.Errorf("%s-%d: the destination's %d records are not the beginning of the source's %d", topic, p, len(dst), len(src))
			}
		}
	}
	b.s.refusedAs(4, "MIRROR_TOPIC_BEING_STOPPED", "pause", "--mirror", "p", "--topics", topics[0])
	b.s.refusedAs(4, "MIRROR_TOPIC_NOT_PAUSED", "resume", "--mirror", "p", "--topics", topics[0])
	b.s.must("recover", "--mirror", "p", "--topics", "/rest-.*/")
	b.s.must("delete", "--mirror", "p", "--yes")
	if out := b.s.must("list"); strings.Contains(out, "\np ") {
		t.Errorf("list still shows the mirror:\n%s", out)
	}
	if parts, err := b.s.describe("--topics", "/rest-.*/"); err != nil || len(parts) > 0 {
		t.Errorf("describe still shows its topics: %v, %v", parts, err)
	}
	b.s.refusedAs(2, "UNKNOWN_CLUSTER_MIRROR", "start", "--mirror", "p", "--topics", topics[0])
	b.stopped = append(b.stopped, topics...)
}
