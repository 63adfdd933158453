package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// TestTwins starts a second process with the node ids of one that lives. The controller refuses it, so it takes no part in the state: verbs
// at the first go on at once, those at the second say whom to ask, and so does its log. Once the first stands still (SIGSTOP) it takes over,
// and then it is the first that takes no part when it goes on: verbs at the second do what they are to, and when that one dies in the middle
// of a failover the first ends it as it was stored, not as it remembers the topic.
func TestTwins(t *testing.T) {
	const topic = "orders"
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 1, Controllers: 1, Properties: shortSessions})
	createTopic(t, src, topic, 4, nil)
	produce(t, client(t, src), topic, 4, 50, 100)
	a, b := makeShim(t, dst, 9001, ""), makeShim(t, dst, 9001, "")
	b.env = []string{"TEST_KMIRROR_FAULT_POINT=@" + filepath.Join(b.dir, "fault")}
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
	a.cmd.Process.Signal(syscall.SIGSTOP)
	b.ready(time.Minute)
	b.caughtUp(src, 1, time.Minute, topic)
	a.cmd.Process.Signal(syscall.SIGCONT)
	eventually(t, time.Minute, "the first says whose ids it has now", func() error {
		if log := mustRead(t, a.log); !strings.Contains(log, "alive at "+b.admin) {
			return fmt.Errorf("%d bytes of log", len(log))
		}
		return nil
	})
	a.refused(t, 4, "ask "+b.admin, "describe", "--mirror", "m")
	createTopic(t, src, "later", 1, nil)
	b.mirror("later")
	b.get(20*time.Second, "MIRRORING", "later")
	produce(t, client(t, src), topic, 4, 50, 100)
	b.caughtUp(src, 1, time.Minute, topic)
	takenOver(t, src, a, b, topic)
}

// takenOver kills b in the middle of a failover, of which a has to find all in what is stored.
func takenOver(t *testing.T, src *testkafka.Cluster, a, b *shim, topic string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, "fault"), []byte("tail served"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := b.run("failover", "--mirror", "m", "--topics", topic, "--wait", "1ms"); code != 0 && code != 3 && code != 5 {
		t.Fatalf("failover: exit %d\n%s", code, errs)
	}
	select {
	case <-b.done:
		b.cmd = nil
	case <-time.After(time.Minute):
		t.Fatal("the second still lives")
	}
	a.ready(time.Minute)
	a.get(time.Minute, "STOPPED", topic)
	leads(t, a.dst, topic, 1, time.Minute)
	want := endOffsets(t, src, topic)
	for id := range want {
		want[id] += 3 // one tail: a marker for each of the two producers, and the one that says so
	}
	eventually(t, 20*time.Second, "one tail", func() error {
		if ends := endOffsets(t, a.dst, topic); !maps.Equal(ends, want) {
			return fmt.Errorf("logs end at %v, want %v", ends, want)
		}
		return nil
	})
	a.get(time.Minute, "MIRRORING", "later")
	pausesOnceItIsBack(t, a, "later")
}

// pausesOnceItIsBack kills the only process: brokers hold it alive for nine seconds, and a verb that it is asked meanwhile waits and says so.
func pausesOnceItIsBack(t *testing.T, s *shim, topic string) {
	s.kill()
	s.spawn()
	eventually(t, time.Minute, "it answers", func() error {
		_, err := s.describe()
		return err
	})
	began := time.Now()
	_, errs, code := s.run("pause", "--mirror", "m", "--topics", topic, "--yes")
	took := time.Since(began)
	if code != 0 {
		t.Errorf("exit %d: %s", code, errs)
	}
	// On a busy machine the nine seconds may be over by then.
	if said := strings.Contains(errs, "waiting for the kmirror at "+s.admin+", which is not ready: "); !said && took > 4*time.Second {
		t.Errorf("it took %v in silence: %s", took, errs)
	}
	t.Logf("%v: %s", took, errs)
	s.get(20*time.Second, "PAUSED", topic)
}
