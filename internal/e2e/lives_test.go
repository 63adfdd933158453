package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
	"kmirror/records"
)

// planned is what promote, failover, pause, resume and recover print of a partition with -o json.
type planned struct {
	Topic     string  `json:"topic"`
	Partition *int32  `json:"partition"`
	State     *string `json:"state"`
	Lag       *int64  `json:"lag"`
	Lost      *int64  `json:"lost"`
	Error     *string `json:"error"`
}

// verb runs promote, failover, pause, resume or recover on topics of mirror "m", which has to succeed, and returns how long it took.
func (s *shim) verb(name, topics string, flags ...string) time.Duration {
	s.tb.Helper()
	begin := time.Now()
	s.must(append([]string{name, "--mirror", "m", "--topics", topics}, flags...)...)
	return time.Since(begin).Round(10 * time.Millisecond)
}

// plan asks what a verb would do to topics of a mirror.
func (s *shim) plan(name, mirror, topics string) (out []planned) {
	s.tb.Helper()
	text := s.must(name, "--mirror", mirror, "--topics", topics, "--dry-run", "-o", "json")
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		s.tb.Fatalf("%s --dry-run: %v in %s", name, err, text)
	}
	return out
}

// createAs defines a mirror of a source with further properties. It logs in as mirror where the source is secure.
func (s *shim) createAs(name string, src *testkafka.Cluster, properties ...string) {
	s.tb.Helper()
	first := append([]string{"bootstrap.servers=" + strings.Join(src.Bootstrap("CLIENT"), ",")}, loginLines(s.tb, src)...)
	s.define(name, append(first, properties...)...)
}

// get waits until a topic's partitions are in a state and returns them.
func (s *shim) get(limit time.Duration, state, topic string) (out []admin.PartitionInfo) {
	s.tb.Helper()
	eventually(s.tb, limit, topic+" "+state, func() error {
		parts, err := s.describe("--topics", topic)
		if err != nil {
			return err
		}
		if len(parts) == 0 {
			return errors.New("not described")
		}
		for _, p := range parts {
			if p.State != state {
				return fmt.Errorf("partition %d is %s, error %v, hint %v", p.Partition, p.State, deref(p.Error), deref(p.Hint))
			}
		}
		out = parts
		return nil
	})
	return out
}

// refusedAs wants a command to be refused with an exit code and the name of an error code.
func (s *shim) refusedAs(code int, name string, args ...string) {
	s.tb.Helper()
	out, errs, got := s.run(append(args, "-o", "json")...)
	var doc struct {
		Error struct{ Code, Message, Hint string }
	}
	err := json.Unmarshal([]byte(errs), &doc)
	if err != nil || got != code || doc.Error.Code != name || doc.Error.Hint == "" {
		s.tb.Errorf("kmirror %s: exit %d, want %d with %s and a hint:\n%s%s", strings.Join(args, " "), got, code, name, out, errs)
	}
}

// batchesOf reads a partition's log off a broker's disk.
func batchesOf(tb testing.TB, n *testkafka.Node, topic string, partition int32) (out []records.Batch) {
	tb.Helper()
	for _, f := range testkafka.SegmentFiles(n, topic, partition) {
		rest, err := os.ReadFile(f)
		if err != nil {
			tb.Fatal(err)
		}
		for len(rest) > 0 {
			var b records.Batch
			if b, rest, err = records.Split(rest); errors.Is(err, records.ErrPartial) {
				break
			} else if err != nil {
				tb.Fatalf("%s: %v", f, err)
			}
			out = append(out, b)
		}
	}
	return out
}

// bytesFrom counts the bytes of a log from an offset on.
func bytesFrom(batches []records.Batch, offset int64) (n int64) {
	for _, b := range batches {
		if b.BaseOffset() >= offset {
			n += int64(len(b))
		}
	}
	return n
}

// tailOf splits a log that was failed over into where the mirrored part ends and the control batches that follow it, up to and
// with MIRROR_PID_RESET. It takes the last such reset.
func tailOf(tb testing.TB, batches []records.Batch) (end int64, aborted []int64) {
	tb.Helper()
	reset := -1
	for i, b := range batches {
		if !b.IsControl() {
			continue
		}
		if kind, err := records.ControlType(b); err == nil && kind == records.ControlMirrorPidReset {
			reset = i
		}
	}
	if reset < 0 {
		tb.Fatal("the log holds no MIRROR_PID_RESET")
	}
	end = batches[reset].BaseOffset()
	for i := reset - 1; i >= 0; i-- {
		b := batches[i]
		kind, err := records.ControlType(b)
		if !b.IsControl() || err != nil || kind != records.ControlAbort || b.ProducerEpoch() != -1 {
			break
		}
		end, aborted = b.BaseOffset(), append(aborted, b.ProducerID())
	}
	slices.Sort(aborted)
	return end, aborted
}

// leads waits until real brokers lead all partitions of a topic with so many real replicas in sync, and no id of kmirror is listed.
func leads(tb testing.TB, c *testkafka.Cluster, topic string, replicas int, limit time.Duration) {
	tb.Helper()
	eventually(tb, limit, fmt.Sprintf("%s on %d real brokers", topic, replicas), func() error {
		d, err := replicasOf(tb, c, topic)
		if err != nil {
			return err
		}
		for _, p := range d.Partitions {
			guest := func(id int32) bool { return id > 9000 }
			if p.Leader < 0 || slices.ContainsFunc(p.Replicas, guest) || len(p.ISR) != replicas || len(p.Replicas) != replicas {
				return fmt.Errorf("partition %d: leader %d, replicas %v, in sync %v", p.Partition, p.Leader, p.Replicas, p.ISR)
			}
		}
		return nil
	})
}

// agree wants a partition's log to be the same, batch by batch, on all brokers of the clusters that hold it: at least replicas of
// them in each.
func agree(tb testing.TB, topic string, partition int32, replicas int, clusters ...*testkafka.Cluster) {
	tb.Helper()
	eventually(tb, 30*time.Second, fmt.Sprintf("equal logs of %s-%d", topic, partition), func() error {
		found := map[string][]string{}
		for _, c := range clusters {
			n := 0
			for _, id := range c.Brokers() {
				if len(testkafka.SegmentFiles(c.Node(id), topic, partition)) == 0 {
					continue
				}
				sum, end, err := logDigest(c.Node(id), topic, partition, 0)
				if err != nil {
					return err
				}
				key := fmt.Sprintf("%s up to %d", sum, end)
				found[key], n = append(found[key], c.Node(id).String()), n+1
			}
			if n < replicas {
				return fmt.Errorf("on %d brokers, want %d", n, replicas)
			}
		}
		if len(found) != 1 {
			return fmt.Errorf("%v", found)
		}
		return nil
	})
}

// stableEnds asks each broker that runs for high watermark and last stable offset of a partition and wants both at end.
func stableEnds(tb testing.TB, c *testkafka.Cluster, topic string, partition int32, end int64) {
	tb.Helper()
	for _, id := range c.Brokers() {
		n := c.Node(id)
		eventually(tb, 30*time.Second, fmt.Sprintf("last stable offset of %s-%d on %v", topic, partition, n), func() error {
			req := kmsg.NewPtrFetchRequest()
			req.ReplicaID, req.MaxBytes, req.SessionEpoch, req.IsolationLevel = -1, 1, -1, 1
			t := kmsg.NewFetchRequestTopic()
			t.Topic = topic
			p := kmsg.NewFetchRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.PartitionMaxBytes = partition, -1, 1
			t.Partitions = append(t.Partitions, p)
			req.Topics = append(req.Topics, t)
			cl, err := kgo.NewClient(kgo.SeedBrokers(n.Addr("CLIENT")), kgo.MaxVersions(fetchEleven()))
			if err != nil {
				tb.Fatal(err)
			}
			defer cl.Close()
			resp, err := cl.SeedBrokers()[0].Request(timeout(tb, 5*time.Second), req)
			if err != nil {
				return err
			}
			rp := resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]
			if rp.ErrorCode != 0 || rp.HighWatermark != end || rp.LastStableOffset != end {
				return fmt.Errorf("error %d, high watermark %d, last stable offset %d, the log ends at %d", rp.ErrorCode, rp.HighWatermark,
					rp.LastStableOffset, end)
			}
			return nil
		})
	}
}

// valuesIn reads a partition from its start to its end, or to its last stable offset, and returns the values.
func valuesIn(tb testing.TB, c *testkafka.Cluster, topic string, partition int32, level kgo.IsolationLevel) (values []string) {
	tb.Helper()
	adm := kadm.NewClient(client(tb, c))
	list := adm.ListEndOffsets
	if level == kgo.ReadCommitted() {
		list = adm.ListCommittedOffsets
	}
	var end int64
	eventually(tb, 30*time.Second, "end of "+topic, func() error {
		offs, err := list(timeout(tb, 10*time.Second), topic)
		if err == nil {
			err = offs.Error()
		}
		o, _ := offs.Lookup(topic, partition)
		end = o.Offset
		return err
	})
	cl := client(tb, c, kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(), kgo.FetchMaxWait(200*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	ctx := timeout(tb, time.Minute)
	for next := int64(0); next < end; {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			tb.Fatalf("read %s-%d at %d of %d: %v", topic, partition, next, end, err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() {
				values = append(values, string(r.Value))
			}
		})
	}
	return values
}

// noneHangs wants every transaction of a cluster that was to end to have ended.
func noneHangs(tb testing.TB, c *testkafka.Cluster) {
	tb.Helper()
	eventually(tb, 40*time.Second, "an end of all transactions", func() error {
		states := txnStates(tb, c)
		maps.DeleteFunc(states, func(_, state string) bool { return !strings.HasPrefix(state, "Prepare") })
		if len(states) > 0 {
			return fmt.Errorf("%v", states)
		}
		return nil
	})
}

// writable produces records until they are acknowledged and returns the first one's offset.
func writable(tb testing.TB, c *testkafka.Cluster, topic string, values ...string) (offset int64) {
	tb.Helper()
	rs := make([]*kgo.Record, len(values))
	for i, v := range values {
		rs[i] = &kgo.Record{Topic: topic, Value: []byte(v)}
	}
	if err := client(tb, c).ProduceSync(timeout(tb, 30*time.Second), rs...).FirstErr(); err != nil {
		tb.Fatalf("produce to %s: %v", topic, err)
	}
	return rs[0].Offset
}
