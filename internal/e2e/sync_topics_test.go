package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
)

// brisk are properties of a mirror whose metadata is looked at twice a second.
const brisk = "mirror.metadata.refresh.interval.ms=500"

// alter gives the mirror "m" other properties than those of create.
func (s *shim) alter(src *testkafka.Cluster, properties ...string) string {
	s.tb.Helper()
	return s.must("alter", "--mirror", "m", "--mirror-config", s.properties(src, properties...))
}

// properties writes a mirror file and returns its name.
func (s *shim) properties(src *testkafka.Cluster, properties ...string) string {
	s.tb.Helper()
	f := filepath.Join(s.dir, "altered.properties")
	lines := slices.Concat([]string{"bootstrap.servers=" + strings.Join(src.Bootstrap("CLIENT"), ",")}, loginLines(s.tb, src), properties)
	if err := os.WriteFile(f, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		s.tb.Fatal(err)
	}
	return f
}

// setConfigs sets configs of a topic, and removes those whose value is empty.
func setConfigs(tb testing.TB, c *testkafka.Cluster, topic string, configs map[string]string) {
	tb.Helper()
	var list []kadm.AlterConfig
	for k, v := range configs {
		a := kadm.AlterConfig{Op: kadm.SetConfig, Name: k, Value: &v}
		if v == "" {
			a = kadm.AlterConfig{Op: kadm.DeleteConfig, Name: k}
		}
		list = append(list, a)
	}
	rs, err := kadm.NewClient(client(tb, c)).AlterTopicConfigs(timeout(tb, 20*time.Second), list, topic)
	if err == nil {
		err = rs[0].Err
	}
	if err != nil {
		tb.Fatalf("configs of %s: %v", topic, err)
	}
}

// has wants configs of a topic at the destination; an empty value stands for none of its own.
func has(tb testing.TB, c *testkafka.Cluster, topic string, want map[string]string) {
	tb.Helper()
	eventually(tb, 30*time.Second, "configs of "+topic, func() error {
		got := topicConfigs(tb, c, topic)
		for k, v := range want {
			if got[k] != v {
				return fmt.Errorf("%s is %q, want %q (all: %v)", k, got[k], v, got)
			}
		}
		return nil
	})
}

func deleteTopic(tb testing.TB, c *testkafka.Cluster, topic string) {
	tb.Helper()
	rs, err := kadm.NewClient(client(tb, c)).DeleteTopics(timeout(tb, 20*time.Second), topic)
	if err == nil {
		err = rs[topic].Err
	}
	if err != nil {
		tb.Fatalf("delete %s: %v", topic, err)
	}
	eventually(tb, 30*time.Second, topic+" is gone", func() error {
		d, err := kadm.NewClient(client(tb, c)).ListTopics(timeout(tb, 5*time.Second), topic)
		if err != nil || errors.Is(d[topic].Err, kerr.UnknownTopicOrPartition) {
			return err
		}
		return errors.New("is still there")
	})
}

// exists are the topics of a cluster that are not the clusters' own.
func exists(tb testing.TB, c *testkafka.Cluster) []string {
	tb.Helper()
	d, err := kadm.NewClient(client(tb, c)).ListTopics(timeout(tb, 20*time.Second))
	if err != nil {
		tb.Fatal(err)
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(d)), func(n string) bool { return strings.HasPrefix(n, "__") })
}

// noted waits until a topic is STOPPED with an error that holds a text.
func (s *shim) noted(topic, text string) {
	s.tb.Helper()
	for _, p := range s.get(time.Minute, "STOPPED", topic) {
		if p.Error == nil || !strings.Contains(*p.Error, text) || p.Hint == nil {
			s.tb.Errorf("%s-%d says %v, hint %v, want %q", topic, p.Partition, deref(p.Error), deref(p.Hint), text)
		}
	}
}

// TestTopicsInStep: topics are discovered, grow, follow the configs of their source, and end with it, and ACLs are those of the source;
// between clusters with TLS, SASL and an authorizer, with just the rights that are documented.
func TestTopicsInStep(t *testing.T) {
	t.Parallel()
	src, dst := securePair(t, nil)
	createTopic(t, src, "app.orders", 2, map[string]string{"retention.ms": "7000000", "cleanup.policy": "compact",
		"max.message.bytes": "2000000"})
	for _, name := range []string{"app.gone", "app.anew", "app.extra", "app.tmp.x", "other", "__app"} {
		createTopic(t, src, name, 1, nil)
	}
	s := newShim(t, dst, "")
	properties := []string{brisk, `mirror.topics.include=app\..*,__app`, `mirror.topics.exclude=__.*,app\.tmp\..*`}
	s.create(src, properties...)
	produce(t, client(t, src), "app.orders", 2, 300, 100)
	for _, name := range []string{"app.gone", "app.anew", "app.extra"} {
		produce(t, client(t, src), name, 1, 50, 100)
	}
	s.caughtUp(src, 3, time.Minute, "app.orders", "app.gone", "app.anew", "app.extra")
	if got := exists(t, dst); !slices.Equal(got, []string{"app.anew", "app.extra", "app.gone", "app.orders"}) {
		t.Errorf("the destination has %v", got)
	}
	t.Run("configs at once", func(t *testing.T) { configsAtOnce(t, s, dst) })
	t.Run("configs", func(t *testing.T) { configsFollow(t, s, src, dst) })
	t.Run("growth", func(t *testing.T) { partitionsFollow(t, s, src, dst) })
	t.Run("ACLs", func(t *testing.T) { aclsFollow(t, src, dst) })
	t.Run("rights are lost", func(t *testing.T) { rightsAreLost(t, s, src, dst) })
	t.Run("ends", func(t *testing.T) { endsFollow(t, s, src, dst) })
	t.Run("another mirror", func(t *testing.T) { anotherMirror(t, s, src, dst) })
	t.Run("alter", func(t *testing.T) { altered(t, s, src, properties) })
	t.Run("other configs", func(t *testing.T) { otherConfigs(t, s, src, dst) })
	t.Run("sync is shown", func(t *testing.T) { syncIsShown(t, s) })
	t.Run("promote", func(t *testing.T) {
		s.verb("promote", "app.orders", "--wait", "60s")
		has(t, dst, "app.orders", map[string]string{"max.message.bytes": "3000000", "min.insync.replicas": "1", "retention.ms": "8000000",
			"segment.ms": "234567"})
		if want, got := endOffsets(t, src, "app.orders"), endOffsets(t, dst, "app.orders"); got[tp{"app.orders", 3}] < want[tp{"app.orders", 3}] {
			t.Errorf("ends at %v, the source at %v", got, want)
		}
		writable(t, dst, "app.orders", "first")
		setConfigs(t, dst, "app.orders", map[string]string{"retention.ms": "9000000"})
		time.Sleep(2 * time.Second) // four rounds
		has(t, dst, "app.orders", map[string]string{"retention.ms": "9000000"})
	})
}

// configsAtOnce: configs came with the topic and not after it, when retention may have deleted what compaction keeps (KAFKA-12254).
func configsAtOnce(t *testing.T, s *shim, dst *testkafka.Cluster) {
	has(t, dst, "app.orders", map[string]string{"retention.ms": "7000000", "cleanup.policy": "compact", "max.message.bytes": "0"})
	eventually(t, 30*time.Second, "a round has compared configs", func() error {
		parts, err := s.describe("--topics", "app.orders")
		if err == nil && parts[0].Sync["configs"].AgeSeconds == nil {
			err = errors.New("none yet")
		}
		return err
	})
	if n := s.total(`kmirror_sync_changes_total{kind="configs",mirror="m"}`); n != 0 {
		t.Errorf("configs of %d topics were set after the topics were created", n)
	}
}

// configsFollow: what is set and removed at the source is at the destination, what is changed there is changed back, and the lock stays.
func configsFollow(t *testing.T, s *shim, src, dst *testkafka.Cluster) {
	lock := topicConfigs(t, dst, "app.orders")["min.insync.replicas"]
	setConfigs(t, dst, "app.orders", map[string]string{"segment.ms": "123456", "retention.ms": "5"})
	setConfigs(t, src, "app.orders", map[string]string{"retention.ms": "8000000", "cleanup.policy": "", "max.message.bytes": "3000000",
		"unclean.leader.election.enable": "true", "min.insync.replicas": "1", "message.timestamp.type": "LogAppendTime",
		"segment.bytes": "1500000"})
	has(t, dst, "app.orders", map[string]string{"retention.ms": "8000000", "cleanup.policy": "", "segment.ms": "", "segment.bytes": "1500000",
		"unclean.leader.election.enable": "", "message.timestamp.type": "", "max.message.bytes": "0", "min.insync.replicas": lock})
	setConfigs(t, src, "app.orders", map[string]string{"message.timestamp.type": "", "segment.bytes": ""})
	has(t, dst, "app.orders", map[string]string{"segment.bytes": ""})
	s.caughtUp(src, 3, 30*time.Second, "app.orders")
}

// grow gives a topic more partitions and returns when all of them have leaders: a client that is told of fewer can't write to them.
func grow(t *testing.T, c *testkafka.Cluster, topic string, partitions int) {
	t.Helper()
	rs, err := kadm.NewClient(client(t, c)).UpdatePartitions(timeout(t, 20*time.Second), partitions, topic)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		t.Fatalf("partitions of %s: %v", topic, err)
	}
	eventually(t, 30*time.Second, fmt.Sprintf("%d partitions of %s", partitions, topic), func() error {
		if n := len(endOffsets(t, c, topic)); n != partitions {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}

// partitionsFollow: partitions that the source gains are mirrored from their first record on, placed like those of a new topic.
func partitionsFollow(t *testing.T, s *shim, src, dst *testkafka.Cluster) {
	grow(t, src, "app.orders", 4)
	produce(t, client(t, src), "app.orders", 4, 200, 100)
	s.caughtUp(src, 3, time.Minute, "app.orders")
	sameSegments(t, src, dst, "app.orders", 4, 3)
	d, err := kadm.NewClient(client(t, dst)).ListTopics(timeout(t, 20*time.Second), "app.orders")
	if err != nil {
		t.Fatal(err)
	}
	followers := map[int32]bool{}
	for _, p := range d["app.orders"].Partitions {
		if len(p.Replicas) != 5 || p.Replicas[0] < 9001 || p.Replicas[1] < 9001 {
			t.Errorf("partition %d is on %v", p.Partition, p.Replicas)
			continue
		}
		followers[p.Replicas[2]] = true
	}
	if len(followers) < 2 {
		t.Errorf("all partitions would go to the same broker: %v", followers)
	}
}

// endsFollow: topics that the source deletes, or makes anew, are STOPPED with what they have, and nothing of a new one is appended.
func endsFollow(t *testing.T, s *shim, src, dst *testkafka.Cluster) {
	deleteTopic(t, src, "app.gone")
	deleteTopic(t, src, "app.anew")
	createTopic(t, src, "app.anew", 1, nil)
	produce(t, client(t, src), "app.anew", 1, 500, 10)
	s.noted("app.gone", "deleted")
	s.noted("app.anew", "deleted") // and made anew, if no round came in between
	createTopic(t, src, "app.gone", 1, nil)
	produce(t, client(t, src), "app.gone", 1, 500, 10)
	time.Sleep(2 * time.Second) // four rounds
	for _, name := range []string{"app.gone", "app.anew"} {
		s.get(time.Second, "STOPPED", name)
		// The tail of a stop is markers and the reset; 500 records would be the new topic's.
		if end := endOffsets(t, dst, name)[tp{name, 0}]; end < 50 || end > 100 {
			t.Errorf("%s ends at %d, had 50 records", name, end)
		}
		writable(t, dst, name, "mine")
	}
}

// altered: properties of a running mirror change, by a command that says what it does.
func altered(t *testing.T, s *shim, src *testkafka.Cluster, properties []string) {
	s.refusedAs(admin.ExitRefused, "CLUSTER_MIRROR_ALREADY_EXISTS", "create", "--mirror", "m", "--mirror-config", s.properties(src, brisk))
	plain := strings.Join(s.dst.Bootstrap("CLIENT"), ",")
	if _, errs, code := s.run("alter", "--mirror", "m", "--mirror-config", s.properties(src, "bootstrap.servers="+plain)); code == 0 {
		t.Errorf("altered to the destination as its source: %s", errs)
	}
	if out := s.must("alter", "--mirror", "m", "--mirror-config", s.properties(src, properties...)); !strings.Contains(out, "already") {
		t.Errorf("unchanged: %s", out)
	}
	out := s.alter(src, append(slices.Clone(fewer), "mirror.fetch.wait.max.ms=200")...)
	if !strings.Contains(out, "made anew") || !strings.Contains(out, "mirror.fetch.wait.max.ms") {
		t.Errorf("altered: %s", out)
	}
	s.noted("app.extra", "mirror.topics.exclude")
	s.refused(t, admin.ExitRefused, "mirror.topics.exclude", "start", "--mirror", "m", "--topics", "app.extra")
	produce(t, client(t, src), "app.orders", 4, 100, 100)
	s.caughtUp(src, 3, time.Minute, "app.orders", "app.tmp.x")
}

// fewer are the properties of "m" without app.extra.
var fewer = []string{brisk, `mirror.topics.include=app\..*`, `mirror.topics.exclude=__.*,app\.extra`}

// otherConfigs: mirror.topic.properties.exclude says which configs are left alone. A min.insync.replicas that follows the source is
// remembered behind the lock.
func otherConfigs(t *testing.T, s *shim, src, dst *testkafka.Cluster) {
	lock := topicConfigs(t, dst, "app.orders")["min.insync.replicas"]
	setConfigs(t, src, "app.orders", map[string]string{"unclean.leader.election.enable": "false", "segment.ms": "99999"})
	has(t, dst, "app.orders", map[string]string{"segment.ms": "99999"})
	s.alter(src, append(slices.Clone(fewer), "mirror.topic.properties.exclude=segment.ms")...)
	has(t, dst, "app.orders", map[string]string{"unclean.leader.election.enable": "false", "segment.ms": "99999",
		"min.insync.replicas": lock, "max.message.bytes": "0"})
	setConfigs(t, dst, "app.orders", map[string]string{"segment.ms": "234567", "retention.ms": "5"})
	has(t, dst, "app.orders", map[string]string{"segment.ms": "234567", "retention.ms": "8000000"})
}

// syncIsShown: describe and metrics say how long ago each kind was in step.
func syncIsShown(t *testing.T, s *shim) {
	eventually(t, 30*time.Second, "ages of all kinds", func() error {
		parts, err := s.describe("--topics", "app.orders")
		if err != nil {
			return err
		}
		for _, kind := range []string{"cluster", "topics", "configs", "groups", "share_groups", "acls"} {
			st := parts[0].Sync[kind]
			if st.AgeSeconds == nil || *st.AgeSeconds > 10 || st.Error != nil {
				return fmt.Errorf("%s: %v %v", kind, deref(st.AgeSeconds), deref(st.Error))
			}
		}
		return nil
	})
	if out := s.must("describe", "--mirror", "m"); !strings.Contains(out, "share_groups") || !strings.Contains(out, "LAST-GOOD") {
		t.Errorf("described as\n%s", out)
	}
	eventually(t, 30*time.Second, "changes and ages in the metrics", func() error {
		if n, age := s.total("kmirror_sync_changes_total"), s.total("kmirror_sync_age_seconds"); n < 5 || age > 60 {
			return fmt.Errorf("%d changes, %d s", n, age)
		}
		return nil
	})
}
