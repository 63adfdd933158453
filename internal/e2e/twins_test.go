package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// TestTwins starts a second process with the node ids of one that lives. The controller refuses it, so it takes no part in the state: verbs
// at the first go on at once, those at the second say whom to ask, and so does its log. Once the first is killed it takes over.
func TestTwins(t *testing.T) {
	const topic = "orders"
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 1, Controllers: 1})
	createTopic(t, src, topic, 4, nil)
	a, b := makeShim(t, dst, 9001, ""), makeShim(t, dst, 9001, "")
	a.start()
	a.create(src)
	a.mirror(topic)
	a.get(time.Minute, "MIRRORING", topic)
	b.spawn()
	eventually(t, time.Minute, "the second says whose ids it has", func() error {
		if log := mustRead(t, b.log); !strings.Contains(log, "alive at "+a.admin) {
			return fmt.Errorf("%d bytes of log", len(log))
		}
		return nil
	})
	// A group that takes a member in does so within three seconds, and claims follow at once.
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); {
		if log := mustRead(t, a.log); strings.Contains(log, "members=2") {
			t.Fatal("the second is a member of the group")
		}
		a.describe()
		time.Sleep(200 * time.Millisecond)
	}
	b.refused(t, 4, "ask "+a.admin, "describe", "--mirror", "m")
	b.refused(t, 4, "ask "+a.admin, "pause", "--mirror", "m", "--topics", topic, "--yes")
	for range 3 {
		a.must("pause", "--mirror", "m", "--topics", topic, "--yes")
		a.get(20*time.Second, "PAUSED", topic)
		a.must("resume", "--mirror", "m", "--topics", topic)
		a.get(20*time.Second, "MIRRORING", topic)
	}
	a.kill()
	b.ready(time.Minute)
	b.get(time.Minute, "MIRRORING", topic)
}
