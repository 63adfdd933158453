package e2e

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

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

	t.Run("new partitions", func(t *testing.T) {
		if rs, err := kadm.NewClient(client(t, src)).UpdatePartitions(timeout(t, 20*time.Second), 4, "orders"); err != nil || rs.Error() != nil {
			t.Fatal(err, rs.Error())
		}
		setConfigs(t, src, "orders", map[string]string{"max.message.bytes": "3000000"})
		produce(t, client(t, src), "orders", 4, 100, 50)
		t.Logf("promoted in %v", s.verb("promote", "orders", "--wait", "60s"))
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
		stop()
		k.work(t, src, "busy", 20)
		s.get(time.Minute, "STOPPED", "busy")
		k.arrives(t, src, dst, "busy")
	})
}
