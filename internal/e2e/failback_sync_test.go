package e2e

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
)

// commitAt has a group without members stand somewhere in partition 0 of a topic.
func commitAt(t *testing.T, c *testkafka.Cluster, group, topic string, at int64, epoch int32) {
	t.Helper()
	os := kadm.Offsets{}
	os.Add(kadm.Offset{Topic: topic, At: at, LeaderEpoch: epoch})
	if err := kadm.NewClient(client(t, c)).CommitAllOffsets(timeout(t, 20*time.Second), group, os); err != nil {
		t.Fatal(err)
	}
}

// standsAt waits until a group stands somewhere in partition 0 of a topic.
func standsAt(t *testing.T, c *testkafka.Cluster, group, topic string, want int64) {
	t.Helper()
	eventually(t, time.Minute, "group "+group, func() error {
		if got := (groupKind{name: group}).at(t, c, topic)[0]; got.At != want {
			return fmt.Errorf("at %d (epoch %d), want %d", got.At, got.LeaderEpoch, want)
		}
		return nil
	})
}

// groups: after a failback no group stands in what was truncated. Those that B knows are where they are at B, also where that is further
// back; those that B has never heard of, and that stood in what it never saw, are where both logs parted.
func (p *pair) groups(t *testing.T) {
	const topic = "read"
	createTopic(t, p.a, topic, 1, nil)
	writable(t, p.a, topic, numbered(100, "both")...)
	epoch := epochOf(t, p.a, topic)
	commitAt(t, p.a, "known", topic, 60, epoch)
	p.atA.alter(p.b, brisk)
	p.atB.alter(p.a, brisk)
	p.atB.mirror(topic)
	p.atB.healed(p.a, time.Minute, topic, 3)
	standsAt(t, p.b, "known", topic, 60)
	p.atB.verb("failover", topic)
	writable(t, p.a, topic, numbered(20, "A alone")...)
	commitAt(t, p.a, "known", topic, 118, epoch)
	commitAt(t, p.a, "strange", topic, 119, epoch)
	commitAt(t, p.a, "further back", topic, 50, epoch)
	common := parted(t, p.b, topic)
	if common != 100 {
		t.Fatalf("both logs part at %d", common)
	}
	writable(t, p.b, topic, numbered(40, "B")...)
	commitAt(t, p.b, "known", topic, 110, epochOf(t, p.b, topic))
	p.atA.mirror(topic)
	p.atA.healed(p.b, time.Minute, topic, 3)
	standsAt(t, p.a, "known", topic, 110)
	standsAt(t, p.a, "strange", topic, common)
	standsAt(t, p.a, "further back", topic, 50)
	eventually(t, 30*time.Second, "the group that was set back in the log", func() error { // once its commit was answered
		if log := mustRead(t, p.atA.log); !strings.Contains(log, "set back") || !strings.Contains(log, "from=119") {
			return errors.New("nothing")
		}
		return nil
	})
	p.atA.verb("failover", topic)
}

// loops: what B mirrors from A is not mirrored back while it does. Where two starts at the same time did not see each other, both sides
// say so, and one that is stopped lets the other go on.
func (p *pair) loops(t *testing.T) {
	const topic = "circle"
	createTopic(t, p.a, topic, 1, nil)
	writable(t, p.a, topic, numbered(10, "A")...)
	p.atB.mirror(topic)
	p.atB.healed(p.a, time.Minute, topic, 3)
	for _, flags := range [][]string{nil, {"--overwrite", "--yes"}} {
		p.atA.refusedAs(admin.ExitRefused, "INVALID_REQUEST", append([]string{"start", "--mirror", "m", "--topics", topic}, flags...)...)
	}
	if got := endOffsets(t, p.a, topic)[tp{topic, 0}]; got != 10 {
		t.Errorf("A's topic ends at %d after starts that were refused", got)
	}
	p.atB.verb("failover", topic)

	const twins, n = "twin-", 6
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint(twins, i))
		createTopic(t, p.a, names[i], 1, nil)
		createTopic(t, p.b, names[i], 1, nil)
	}
	var both sync.WaitGroup
	for _, s := range []*shim{p.atA, p.atB} {
		both.Go(func() { s.run("start", "--mirror", "m", "--topics", strings.Join(names, ",")) })
	}
	both.Wait()
	active := map[string]int{}
	for _, s := range []*shim{p.atA, p.atB} {
		parts, err := s.describe("--topics", strings.Join(names, ","))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			if active[part.Topic]++; active[part.Topic] == 2 {
				p.circling(t, part.Topic)
				return
			}
		}
	}
	t.Logf("the two starts saw each other: %v", active)
}

// circling: both sides mirror a topic from each other.
func (p *pair) circling(t *testing.T, topic string) {
	told := func(s *shim) error {
		parts, err := s.describe("--topics", topic)
		if err != nil {
			return err
		}
		if why := parts[0].Sync["topics"].Error; why == nil || !strings.Contains(*why, "goes round in a loop") {
			return fmt.Errorf("%s: %v", parts[0].State, deref(why))
		}
		return nil
	}
	eventually(t, time.Minute, "both say that it is a loop", func() error { return errors.Join(told(p.atA), told(p.atB)) })
	p.atA.verb("failover", "/twin-.*/", "--force") // not all of them were started here, and none is MIRRORING
	writable(t, p.a, topic, numbered(5, "A")...)
	p.atB.healed(p.a, 2*time.Minute, topic, 3)
	eventually(t, time.Minute, "the loop is over", func() error {
		if err := told(p.atB); err == nil {
			return errors.New("B still says that it is one")
		}
		return nil
	})
}
