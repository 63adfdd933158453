package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// anotherMirror: a second mirror of the same source logs in as somebody else, who may do less. What that one may not is told of this
// mirror alone, and what is allowed goes on. When it is given another login, the first may be gone.
func anotherMirror(t *testing.T, s *shim, src, dst *testkafka.Cluster) {
	const user, topic = "narrow", "other"
	addUsers(t, src, user)
	grant(t, src, user, acl{"TOPIC", topic, "READ"}, acl{"TOPIC", topic, "DESCRIBE_CONFIGS"})
	login, err := src.Security().References(user)
	if err != nil {
		t.Fatal(err)
	}
	narrow := []string{brisk, "bootstrap.servers=" + strings.Join(src.Bootstrap("CLIENT"), ",")}
	for k, v := range login {
		narrow = append(narrow, k+"="+v)
	}
	setConfigs(t, src, topic, map[string]string{"min.insync.replicas": "1", "max.message.bytes": "3000000"})
	s.define("n", append(narrow, "mirror.topic.properties.exclude=segment.ms")...)
	s.refused(t, 2, "app.gone", "start", "--mirror", "n", "--topics", "app.gone") // the source does not show it to this user
	s.must("start", "--mirror", "n", "--topics", topic)
	produce(t, client(t, src), topic, 1, 50, 100)
	commitAt(t, src, "elsewhere", topic, 20, 0)
	s.caughtUp(src, 3, time.Minute, topic)
	tells := func(topic, kind, text string) {
		t.Helper()
		eventually(t, 30*time.Second, kind+" of "+topic, func() error {
			parts, err := s.describe("--topics", topic)
			if err != nil {
				return err
			}
			st := parts[0].Sync[kind]
			if text == "" && (st.Error != nil || st.AgeSeconds == nil) || text != "" && (st.Error == nil || !strings.Contains(*st.Error, text)) {
				return fmt.Errorf("%v, %v", deref(st.AgeSeconds), deref(st.Error))
			}
			return nil
		})
	}
	tells(topic, "acls", "grant DESCRIBE on CLUSTER")
	tells(topic, "configs", "")
	tells("app.orders", "acls", "")
	if n := s.total(`kmirror_sync_changes_total{kind="configs",mirror="n"}`); n != 0 {
		t.Error("true values of the lock's configs were not remembered when the topic was created")
	}
	tells(topic, "groups", "") // nobody is told of groups that the source does not list
	if got := (groupKind{name: "elsewhere"}).at(t, dst, topic); len(got) > 0 {
		t.Errorf("a group that may not be described was synced: %v", got)
	}

	out := s.must("alter", "--mirror", "n", "--mirror-config", s.properties(src, brisk))
	if !strings.Contains(out, "made anew") {
		t.Errorf("altered: %s", out)
	}
	revoke(t, src, user, "TOPIC")
	awaitACLs(t, src, user, 0) // the broker knows it too
	for range 2 {              // the first may be the answer to a fetch from before
		produce(t, client(t, src), topic, 1, 50, 100)
		s.caughtUp(src, 3, time.Minute, topic)
	}
	tells(topic, "acls", "")
	standsAt(t, dst, "elsewhere", topic, 20)
}
