package e2e

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
)

// TestPromoteBringsAll: what the source was given between the last round and a promote is at the destination after it, and a promote that
// waits for writers to rest leaves no group behind.
func TestPromoteBringsAll(t *testing.T) {
	t.Parallel()
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1})
	for _, name := range []string{"orders", "busy"} {
		createTopic(t, src, name, 2, nil)
		produce(t, client(t, src), name, 2, 100, 50)
	}
	s := newShim(t, dst, "")
	s.create(src) // the next round is half a minute away
	s.mirror("orders", "busy")
	s.caughtUp(src, 3, time.Minute, "orders", "busy")

	t.Run("internal topics", func(t *testing.T) { internalTopics(t, s, src) })
	t.Run("new partitions", func(t *testing.T) {
		grow(t, src, "orders", 4)
		setConfigs(t, src, "orders", map[string]string{"max.message.bytes": "3000000"})
		produce(t, client(t, src), "orders", 4, 100, 50)
		// The alter before asks for a round. If that round was under way just then it has found the new partitions, and is preparing them.
		eventually(t, time.Minute, "promoted", func() error {
			if _, errs, code := s.run("promote", "--mirror", "m", "--topics", "orders", "--wait", "60s"); code != 0 {
				if code != admin.ExitRefused || !strings.Contains(errs, "PREPARING") {
					t.Fatalf("exit %d: %s", code, errs)
				}
				return errors.New(errs)
			}
			return nil
		})
		want, got := endOffsets(t, src, "orders"), endOffsets(t, dst, "orders")
		if len(got) != 4 {
			t.Errorf("%d partitions", len(got))
		}
		for at, end := range want {
			if got[at] < end {
				t.Errorf("%v ends at %d, at the source at %d", at, got[at], end)
			}
		}
		has(t, dst, "orders", map[string]string{"max.message.bytes": "3000000"})
	})
	t.Run("a long drain", func(t *testing.T) {
		s.alter(src, brisk)
		stop := flow(t, src, "busy", 2, 50)
		defer stop()
		if _, errs, code := s.run("promote", "--mirror", "m", "--topics", "busy", "--wait", "1s"); code != admin.ExitIncomplete {
			t.Fatalf("exit %d while its source is written to: %s", code, errs)
		}
		k := groupKinds[0]
		k.work(t, src, "busy", 150)
		k.arrives(t, src, dst, "busy")
		s.get(time.Second, "MIRRORING", "busy")
		lastSync(t, s, src, dst, k, "busy", stop)
	})
}

// lastSync: of a topic that is promoted a group commits after the last round, while the promote waits for its source to rest. It is at the
// destination once the topic is its clients', though no other round has come.
func lastSync(t *testing.T, s *shim, src, dst *testkafka.Cluster, k groupKind, topic string, stop func() int) {
	t.Helper()
	s.alter(src, "mirror.metadata.refresh.interval.ms=3600000")
	eventually(t, time.Minute, "the round that the change asks for is over, and none follows", func() error {
		if age := s.total(`kmirror_sync_age_seconds{kind="acls",mirror="m"}`); age < 3 {
			return fmt.Errorf("the last round ended %d s ago", age)
		}
		return nil
	})
	k.worksAlone(t, src, dst, topic) // that round may have stood still for as long
	want := k.at(t, src, topic)
	stop()
	s.get(time.Minute, "STOPPED", topic)
	if got := k.at(t, dst, topic); !maps.Equal(got, want) {
		t.Errorf("promoted with its group at %v, at the source it is at %v", got, want)
	}
}

// internalTopics are not discovered either when all patterns let them pass, and can't be started by name.
func internalTopics(t *testing.T, s *shim, src *testkafka.Cluster) {
	commitAt(t, src, "app", "orders", 1, 0) // has __consumer_offsets made
	createTopic(t, src, "found", 1, nil)
	s.alter(src, brisk, "mirror.topics.include=.*", "mirror.topics.exclude=")
	s.caughtUp(src, 3, time.Minute, "found") // all others that match were looked at with it
	parts, err := s.describe("--mirror", "m")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if strings.HasPrefix(p.Topic, "__") {
			t.Errorf("%s is mirrored", p.Topic)
		}
		if why := p.Sync["topics"].Error; why != nil {
			t.Errorf("topics are not in step: %s", *why)
		}
	}
	s.refused(t, admin.ExitUsage, "it is internal", "start", "--mirror", "m", "--topics", "__consumer_offsets")
	s.alter(src)
}
