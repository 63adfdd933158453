package e2e

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// trio is three processes that share a mirror, watched as a couple is.
type trio struct {
	couple
	all []*shim
}

// TestThreeProcesses starts three processes in the same moment at a destination that has no state yet, and then loses two of three
// in every way that two can be lost.
func TestThreeProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	onlyInLong(t)
	p := newTrio(t)
	p.step(t, "two killed at once", p.twoKilled)
	p.step(t, "one stands still while another is killed", p.stoodStill)
	p.step(t, "rolling restart", p.rolling)
	p.step(t, "two stand still, the third is killed, and they go on", p.allButTheDead)
	p.step(t, "all killed and started at once", p.allAtOnce)
	p.settled(t)
}

// newTrio starts all at once, and has one define what another starts.
func newTrio(t *testing.T) *trio {
	p := &trio{couple: couple{topic: "orders", partitions: 12}}
	p.wire(t, testkafka.Options{})
	for _, first := range []int32{9001, 9003, 9005} {
		p.all = append(p.all, p.wired(t, first))
	}
	for _, s := range p.all {
		s.spawn()
	}
	p.a, p.b = p.all[0], p.all[1]
	for _, s := range p.all {
		s.ready(time.Minute)
	}
	p.all[1].createAt(p.source.addr(), "mirror.metadata.refresh.interval.ms=2000")
	p.all[2].mirror(p.topic)
	p.apart(t, time.Minute)
	p.watched(t, 500)
	return p
}

// step is try for three.
func (p *trio) step(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	if t.Failed() {
		return
	}
	t.Run(name, func(t *testing.T) {
		for _, s := range p.all {
			s.tb = t
		}
		f(t)
	})
	for _, s := range p.all {
		s.tb = t
	}
}

// number is which process a node id belongs to, or -1.
func number(id int32) int {
	if id < 9000 {
		return -1
	}
	return int(id-9001) / 2
}

// apart waits until all lead a part of the topic, each partition has one id of another process in sync besides its leader's two, and all replicas.
func (p *trio) apart(t *testing.T, limit time.Duration) {
	t.Helper()
	p.among(t, limit, p.all...)
}

// among waits until some of the processes lead the topic.
func (p *trio) among(t *testing.T, limit time.Duration, live ...*shim) {
	t.Helper()
	began := time.Now()
	led := map[int]int{}
	eventually(t, limit, "partitions spread", func() error {
		d, err := replicasOf(t, p.dst, p.topic)
		if err != nil {
			return err
		}
		clear(led)
		if len(d.Partitions) != int(p.partitions) {
			return fmt.Errorf("%d partitions", len(d.Partitions))
		}
		for _, q := range d.Partitions {
			n := number(q.Leader)
			if n < 0 || !slices.Contains(live, p.all[n]) {
				return fmt.Errorf("partition %d is led by %d, replicas %v, in sync %v", q.Partition, q.Leader, q.Replicas, q.ISR)
			}
			led[n]++
			ids := 5
			if len(live) > 1 {
				ids = 6
			}
			standby := len(live) == 1 || slices.ContainsFunc(q.ISR, func(id int32) bool {
				return number(id) >= 0 && number(id) != n && slices.Contains(live, p.all[number(id)])
			})
			if !standby || len(q.ISR) != ids || len(q.Replicas) != ids {
				return fmt.Errorf("partition %d: leader %d, replicas %v, in sync %v", q.Partition, q.Leader, q.Replicas, q.ISR)
			}
		}
		if len(led) != len(live) {
			return fmt.Errorf("led by %v", led)
		}
		for n := int32(0); n < p.partitions; n += 2 {
			if a, b := d.Partitions[n].Leader, d.Partitions[n+1].Leader; len(live) > 1 && number(a) == number(b) {
				return fmt.Errorf("partitions %d and %d are led by %d and %d, of one process", n, n+1, a, b)
			}
		}
		return nil
	})
	t.Logf("led by %v after %s", led, time.Since(began).Round(10*time.Millisecond))
	for _, s := range live {
		eventually(t, limit, "all partitions described", func() error {
			if got := s.get(limit, "MIRRORING", p.topic); len(got) != int(p.partitions) {
				return fmt.Errorf("%d of %d", len(got), p.partitions)
			}
			return nil
		})
	}
}

func (p *trio) twoKilled(t *testing.T) {
	for i := range p.all {
		p.marks.unled() // where both were its leader and its standby, a real broker leads a partition meanwhile; so it is below
		began := time.Now()
		p.all[i].cmd.Process.Kill()
		p.all[(i+1)%3].cmd.Process.Kill()
		t.Logf("mirroring again %s after two were killed", p.mirrors(t, began))
		p.all[i].kill()
		p.all[(i+1)%3].kill()
		p.among(t, 30*time.Second, p.all[(i+2)%3])
		p.synced(t, int64(100+i))
		p.all[i].spawn()
		p.all[(i+1)%3].spawn()
		p.all[i].ready(time.Minute)
		p.all[(i+1)%3].ready(time.Minute)
		p.apart(t, time.Minute)
		p.marks.led()
	}
}

func (p *trio) stoodStill(t *testing.T) {
	p.marks.unled()
	began := time.Now()
	p.all[0].cmd.Process.Signal(syscall.SIGSTOP)
	polled(time.Second, func() bool { return false })
	p.all[1].kill()
	t.Logf("mirroring again %s after a SIGSTOP and a kill", p.mirrors(t, began))
	p.among(t, 30*time.Second, p.all[2])
	p.synced(t, 110)
	polled(60*time.Second-time.Since(began), func() bool { return false })
	p.all[1].spawn()
	p.all[0].cmd.Process.Signal(syscall.SIGCONT)
	p.all[1].ready(time.Minute)
	p.apart(t, time.Minute)
	p.marks.led()
	p.consumer.reaches(t, p.src, 30*time.Second)
}

func (p *trio) rolling(t *testing.T) {
	for i, s := range p.all {
		began := time.Now()
		if err := s.stop(); err != nil {
			t.Errorf("SIGTERM: %v", err)
		}
		t.Logf("mirroring %s after a SIGTERM was sent", p.mirrors(t, began))
		s.start()
		t.Logf("ready after %s", time.Since(began).Round(10*time.Millisecond))
		if i == 0 {
			continue // the next one goes while the partitions of this one are still on their way
		}
		p.consumer.reaches(t, p.src, 30*time.Second)
	}
	p.apart(t, time.Minute)
	p.synced(t, 120)
}

// togetherBar is how long mirroring may rest when a leader and the process that stands by are lost in the same moment: until a controller sees
// it, after 9 s, nobody who is in sync leads. A process that asks one of them for help meanwhile must not wait for longer than that.
const togetherBar = 16 * time.Second

func (p *trio) allButTheDead(t *testing.T) {
	p.marks.unled()
	stopped := time.Now()
	p.all[0].cmd.Process.Signal(syscall.SIGSTOP)
	p.all[1].cmd.Process.Signal(syscall.SIGSTOP)
	took := p.mirrors(t, stopped)
	t.Logf("mirroring again %s after two were stopped", took)
	if took > togetherBar {
		t.Errorf("mirroring rested for %s, at most %s were to be", took, togetherBar)
	}
	p.among(t, 30*time.Second, p.all[2])
	polled(12*time.Second-time.Since(stopped), func() bool { return false }) // their sessions are over
	p.all[2].kill()
	began := time.Now()
	p.all[1].cmd.Process.Signal(syscall.SIGCONT)
	p.all[0].cmd.Process.Signal(syscall.SIGCONT)
	t.Logf("mirroring again %s after two went on", p.mirrors(t, began))
	p.among(t, time.Minute, p.all[0], p.all[1])
	p.synced(t, 130)
	p.all[2].start()
	p.apart(t, time.Minute)
	p.marks.led()
}

func (p *trio) allAtOnce(t *testing.T) {
	p.marks.unled()
	for _, s := range p.all {
		s.cmd.Process.Kill()
	}
	for _, s := range p.all {
		s.kill()
	}
	began := time.Now()
	for _, s := range p.all {
		s.spawn()
	}
	for _, s := range p.all {
		s.ready(time.Minute)
	}
	t.Logf("all ready after %s", time.Since(began).Round(10*time.Millisecond))
	// Each takes all at first, since it knows nobody yet, and what another takes meanwhile is not to be waited for (20 s).
	took := p.mirrors(t, began)
	t.Logf("mirroring again %s after all were killed", took)
	if took > 25*time.Second {
		t.Errorf("mirroring rested for %s", took)
	}
	p.apart(t, time.Minute)
	p.marks.led()
	p.synced(t, 140)
}

// settled ends the load and looks at all that was watched.
func (p *trio) settled(t *testing.T) {
	t.Helper()
	p.sound(t, p.all...)
	for _, s := range p.all {
		s.must("verify", "--mirror", "m")
	}
}
