package e2e

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// TestProcesses runs two kmirror processes in front of one destination and takes one of them away in every way: there is one
// leader at any time, the log never forks, and what the lost one had goes on at the other.
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	const topic, partitions = "orders", 8
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1})
	createTopic(t, src, topic, partitions, nil)
	a, b := newShim(t, dst, ""), makeShim(t, dst, 9003, "")
	a.create(src)
	a.mirror(topic)
	a.caughtUp(src, 3, time.Minute, topic)
	b.start()
	pair := &couple{a, b, topic, partitions}
	pair.spread(t, time.Minute)
	stop := flow(t, src, topic, partitions, 500)
	consumer := follow(t, dst, topic, partitions)
	consumer.reaches(t, src, time.Minute)

	t.Run("killed", func(t *testing.T) {
		pair.on(t)
		began := time.Now()
		a.kill()
		pair.ledBy(t, 20*time.Second, b)
		consumer.reaches(t, src, 20*time.Second)
		took := time.Since(began)
		t.Logf("mirroring again %s after the kill", took.Round(time.Millisecond))
		a.start()
		pair.spread(t, time.Minute)
	})
	t.Run("stopped", func(t *testing.T) {
		pair.on(t)
		if err := b.stop(); err != nil {
			t.Errorf("SIGTERM: %v", err)
		}
		pair.ledBy(t, 20*time.Second, a)
		consumer.reaches(t, src, 20*time.Second)
		b.start()
		pair.spread(t, time.Minute)
	})
	t.Run("suspended", func(t *testing.T) {
		pair.on(t)
		a.cmd.Process.Signal(syscall.SIGSTOP)
		pair.ledBy(t, 30*time.Second, b)
		consumer.reaches(t, src, 20*time.Second)
		polled(20*time.Second, func() bool { return false })
		a.cmd.Process.Signal(syscall.SIGCONT)
		pair.spread(t, time.Minute)
		consumer.reaches(t, src, 20*time.Second)
	})
	n := stop()
	t.Logf("%d records went through", n)
	a.caughtUp(src, 3, time.Minute, topic)
	a.equal(src, topic, partitions, 3)
	consumer.check(t, src)
}

// couple is two processes that share a mirror.
type couple struct {
	a, b       *shim
	topic      string
	partitions int32
}

func (p *couple) on(t *testing.T) { p.a.tb, p.b.tb = t, t }

// spread waits until both lead a part, with one id of the other in sync, and all replicas.
func (p *couple) spread(t *testing.T, limit time.Duration) {
	t.Helper()
	eventually(t, limit, "partitions spread over both processes", func() error {
		d, err := replicasOf(t, p.a.dst, p.topic)
		if err != nil {
			return err
		}
		led := map[bool]int{}
		for _, q := range d.Partitions {
			first := q.Leader == 9001 || q.Leader == 9002
			if !first && q.Leader != 9003 && q.Leader != 9004 {
				return fmt.Errorf("partition %d is led by %d", q.Partition, q.Leader)
			}
			led[first]++
			standby := slices.ContainsFunc(q.ISR, func(id int32) bool { return id > 9000 && (id < 9003) != first })
			if !standby || len(q.ISR) != 6 || len(q.Replicas) != 6 {
				return fmt.Errorf("partition %d: leader %d, replicas %v, in sync %v", q.Partition, q.Leader, q.Replicas, q.ISR)
			}
		}
		if led[true] == 0 || led[false] == 0 {
			return fmt.Errorf("one process leads all: %v", led)
		}
		return nil
	})
	eventually(t, limit, "both describe all", func() error {
		for _, s := range []*shim{p.a, p.b} {
			parts, err := s.describe("--topics", p.topic)
			if err != nil {
				return err
			}
			if len(parts) != int(p.partitions) {
				return fmt.Errorf("%d partitions described", len(parts))
			}
			for _, q := range parts {
				if q.State != "MIRRORING" {
					return fmt.Errorf("partition %d is %s", q.Partition, q.State)
				}
			}
		}
		return nil
	})
}

// ledBy waits until one process leads everything.
func (p *couple) ledBy(t *testing.T, limit time.Duration, s *shim) {
	t.Helper()
	ids := []int32{9001, 9002}
	if s == p.b {
		ids = []int32{9003, 9004}
	}
	eventually(t, limit, fmt.Sprintf("all led by %v", ids), func() error {
		d, err := replicasOf(t, p.a.dst, p.topic)
		if err != nil {
			return err
		}
		for _, q := range d.Partitions {
			if !slices.Contains(ids, q.Leader) {
				return fmt.Errorf("partition %d is led by %d, replicas %v, in sync %v", q.Partition, q.Leader, q.Replicas, q.ISR)
			}
		}
		return nil
	})
}
