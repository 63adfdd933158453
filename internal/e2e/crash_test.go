package e2e

import (
	"fmt"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// TestCrash kills kmirror in full flow, restarts it at once and after real brokers have taken the lead, and wants it to go on
// as if nothing had been.
func TestCrash(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	const topic, partitions = "orders", 3
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1})
	createTopic(t, src, topic, partitions, nil)
	s := newShim(t, dst, "")
	s.create(src)
	s.mirror(topic)
	s.caughtUp(src, 3, time.Minute, topic)
	stop := flow(t, src, topic, partitions, 1000)
	consumer, hw := follow(t, dst, topic, partitions), watchMarks(t, dst, topic, partitions)
	consumer.reaches(t, src, time.Minute)

	for _, elected := range []bool{false, true, false} {
		hw.unled()
		s.kill()
		if elected {
			eventually(t, 30*time.Second, "real brokers lead", func() error { return ledByRealBrokers(t, dst, topic) })
		}
		s.start()
		s.healed(src, time.Minute, topic, 3)
		hw.led()
		consumer.reaches(t, src, time.Minute)
	}
	n := stop()
	t.Logf("%d records went through", n)
	s.healed(src, time.Minute, topic, 3)
	s.equal(src, topic, partitions, 3)
	consumer.check(t, src)
	hw.never(t)
}

func ledByRealBrokers(tb testing.TB, c *testkafka.Cluster, topic string) error {
	tb.Helper()
	d, err := replicasOf(tb, c, topic)
	if err != nil {
		return err
	}
	for _, p := range d.Partitions {
		if p.Leader < 0 || p.Leader > 9000 {
			return fmt.Errorf("partition %d is led by %d", p.Partition, p.Leader)
		}
	}
	return nil
}
