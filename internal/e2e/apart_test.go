package e2e

import (
	"fmt"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// TestProcessesApart has two processes lose sight of each other, and of nothing else, as where a firewall drops what they send to each
// other's admin listener: neither may take everything from the other again and again.
func TestProcessesApart(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	onlyInLong(t)
	p := &couple{topic: "orders", partitions: 4}
	p.src = testkafka.Start(t, testkafka.Options{Name: "src"})
	p.dst = testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 1, Controllers: 1})
	createTopic(t, p.src, p.topic, p.partitions, nil)
	p.a, p.b = makeShim(t, p.dst, 9001, ""), makeShim(t, p.dst, 9003, "")
	var admins []*wire
	for _, s := range []*shim{p.a, p.b} {
		w := newWire(t)
		w.leads(s.admin)
		s.rewrite("admin: "+s.admin, fmt.Sprintf("admin: {bind: %q, advertised: %q}", s.admin, w.addr()))
		admins = append(admins, w)
		s.start()
	}
	p.a.create(p.src)
	p.a.mirror(p.topic)
	p.apart(t, time.Minute)
	p.watched(t, 200)
	admins[0].cut(p.b)
	admins[1].cut(p.a)
	began, before := time.Now(), p.epochs(t)
	// At first each holds the other dead. What was true of epochs for ten seconds stays so.
	eventually(t, time.Minute, "an end of the fight", func() error {
		polled(10*time.Second, func() bool { return false })
		now := p.epochs(t)
		rose := now - before
		before = now
		if rose > p.partitions {
			return fmt.Errorf("leader epochs rose by %d in ten seconds; led by %v", rose, p.leaders(t))
		}
		return nil
	})
	t.Logf("at rest after %s", time.Since(began).Round(time.Second))
	p.apart(t, 10*time.Second)
	t.Logf("a record takes %s", p.mirrors(t, time.Now()))
	admins[0].cut()
	admins[1].cut()
	p.apart(t, time.Minute)
	p.stop()
	p.a.caughtUp(p.src, 1, time.Minute, p.topic)
	p.a.equal(p.src, p.topic, p.partitions, 1)
	p.consumer.check(t, p.src)
	p.reign.check(t)
	p.marks.never(t)
	oneOwner(t, p.dst)
}

// epochs adds the leader epochs up.
func (p *couple) epochs(t *testing.T) (sum int32) {
	t.Helper()
	eventually(t, 30*time.Second, "leader epochs", func() error {
		d, err := replicasOf(t, p.dst, p.topic)
		sum = 0
		for _, q := range d.Partitions {
			sum += q.LeaderEpoch
		}
		return err
	})
	return sum
}

// leaders are those of all partitions.
func (p *couple) leaders(t *testing.T) (out []int32) {
	t.Helper()
	d, err := replicasOf(t, p.dst, p.topic)
	if err != nil {
		t.Log(err)
	}
	for n := range p.partitions {
		out = append(out, d.Partitions[n].Leader)
	}
	return out
}

// apart waits until neighbouring partitions are led by different processes.
func (p *couple) apart(t *testing.T, limit time.Duration) {
	t.Helper()
	eventually(t, limit, "partitions spread over both processes", func() error {
		at := p.leaders(t)
		for n := 0; n < len(at); n += 2 {
			if at[n] < 9000 || at[n+1] < 9000 || (at[n] < 9003) == (at[n+1] < 9003) {
				return fmt.Errorf("led by %v", at)
			}
		}
		return nil
	})
}
