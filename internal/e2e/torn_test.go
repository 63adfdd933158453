package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestProcessesTorn asks one of two processes for everything, kills or stops it in the middle, and asks the other for the same.
func TestProcessesTorn(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	onlyInLong(t)
	p := newCouple(t)
	p.try(t, "killed", func(t *testing.T) { p.tornVerbs(t, syscall.SIGKILL, "torn-killed") })
	p.try(t, "stopped", func(t *testing.T) { p.tornVerbs(t, syscall.SIGSTOP, "torn-stopped") })
	p.try(t, "the source grows", p.grows)
	p.try(t, "made anew while paused", p.anewWhilePaused)
	p.try(t, "made anew while one is down", p.anewWhileDown)
	p.sound(t, p.a, p.b)
}

// torn asks one for something, ends or stops it after a while, and has the other asked meanwhile.
func (p *couple) torn(t *testing.T, dies *shim, sig syscall.Signal, after time.Duration, args []string, other func()) {
	t.Helper()
	answer := make(chan string, 1)
	go func() {
		out, errs, code := dies.run(args...)
		answer <- fmt.Sprintf("exit %d: %s%s", code, out, errs)
	}()
	polled(after, func() bool { return false })
	if sig == syscall.SIGKILL {
		dies.kill()
	} else {
		dies.cmd.Process.Signal(sig)
	}
	other()
	if sig == syscall.SIGKILL {
		dies.start()
	} else {
		dies.cmd.Process.Signal(syscall.SIGCONT)
	}
	t.Logf("the one that was asked first: %.300s", <-answer)
}

func (p *couple) tornVerbs(t *testing.T, sig syscall.Signal, topic string) {
	define := func(s *shim) {
		s.define("m2", "bootstrap.servers="+p.source.addr(), "mirror.metadata.refresh.interval.ms=2000")
	}
	define(p.b)
	createTopic(t, p.src, topic, p.partitions, nil)
	produce(t, client(t, p.src), topic, p.partitions, 50, 100)
	both := [2]*shim{p.a, p.b}
	for i, step := range []struct{ verb, state string }{
		{"start", "MIRRORING"}, {"pause", "PAUSED"}, {"resume", "MIRRORING"}, {"pause", "PAUSED"}, {"resume", "MIRRORING"}, {"promote", "STOPPED"},
		{"start", "MIRRORING"}, {"failover", "STOPPED"}, {"start", "MIRRORING"}, {"failover", "STOPPED"},
	} {
		dies, stays := both[i%2], both[(i+1)%2]
		args := []string{step.verb, "--mirror", "m2", "--topics", topic}
		if step.verb == "start" && i > 0 {
			args = append(args, "--overwrite", "--yes")
		}
		p.torn(t, dies, sig, time.Duration(15+i*20)*time.Millisecond, args, func() { stays.again(t, args...) })
		for _, s := range both {
			s.get(time.Minute, step.state, topic)
		}
		switch step.state {
		case "STOPPED":
			leads(t, p.dst, topic, 3, time.Minute)
			for n := range p.partitions {
				agree(t, topic, n, 3, p.dst)
			}
			writable(t, p.dst, topic, "here")
		case "MIRRORING":
			produce(t, client(t, p.src), topic, p.partitions, 10, 100)
			stays.caughtUp(p.src, 3, time.Minute, topic)
			stays.must("verify", "--mirror", "m2")
		}
		p.spread(t, time.Minute, p.topic)
	}
	for i, victim := range both {
		p.tornDelete(t, sig, victim, both[1-i], time.Duration(5+i*15)*time.Millisecond)
		if i == 0 {
			define(p.a)
		}
	}
}

func (p *couple) tornDelete(t *testing.T, sig syscall.Signal, dies, stays *shim, after time.Duration) {
	t.Helper()
	args := []string{"delete", "--mirror", "m2", "--yes"}
	p.torn(t, dies, sig, after, args, func() {
		eventually(t, time.Minute, "deleted", func() error {
			out, errs, code := stays.run(args...)
			t.Logf("delete: exit %d: %s%s", code, out, errs)
			if code == 0 || code == 2 && strings.Contains(errs, "there is no mirror") {
				return nil
			}
			return fmt.Errorf("exit %d", code)
		})
	})
	for _, s := range []*shim{dies, stays} {
		eventually(t, time.Minute, "it is not listed", func() error {
			if out, _, _ := s.run("list"); strings.Contains(out, "m2") {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
	}
	p.spread(t, time.Minute, p.topic)
}

// grows adds partitions at the source and kills one process and then the other in that moment.
func (p *couple) grows(t *testing.T) {
	createTopic(t, p.src, "growing", 2, nil)
	p.a.mirror("growing")
	p.a.caughtUp(p.src, 3, time.Minute, "growing")
	for i, s := range []*shim{p.a, p.b, p.a, p.b} {
		n := 4 + 2*i
		grow(t, p.src, "growing", n)
		produce(t, client(t, p.src), "growing", int32(n), 20, 50)
		polled(time.Duration(i)*700*time.Millisecond, func() bool { return false })
		began := time.Now()
		s.kill()
		other := p.a
		if s == p.a {
			other = p.b
		}
		other.caughtUp(p.src, 3, time.Minute, "growing")
		t.Logf("%d partitions mirrored %s after a kill", n, time.Since(began).Round(10*time.Millisecond))
		s.start()
		p.spread(t, time.Minute, "growing")
	}
	p.a.equal(p.src, "growing", 10, 3)
	p.spread(t, time.Minute, p.topic)
}

// anew deletes a topic of the source and makes it again, with other records.
func (p *couple) anew(t *testing.T, topic string) {
	t.Helper()
	adm := kadm.NewClient(client(t, p.src))
	if _, err := adm.DeleteTopic(timeout(t, 20*time.Second), topic); err != nil {
		t.Fatal(err)
	}
	createTopic(t, p.src, topic, 2, nil)
	cl := client(t, p.src)
	for n := range int32(2) {
		r := &kgo.Record{Topic: topic, Partition: n, Value: []byte("another life")}
		if err := cl.ProduceSync(timeout(t, 20*time.Second), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// keptOld wants a topic to be stopped as it was, with advice.
func (p *couple) keptOld(t *testing.T, topic string) {
	t.Helper()
	eventually(t, 90*time.Second, topic+" stopped or failed", func() error {
		parts, err := p.a.describe("--topics", topic)
		if err != nil || len(parts) == 0 {
			return fmt.Errorf("%v %v", parts, err)
		}
		for _, q := range parts {
			if q.State != "STOPPED" && q.State != "FAILED" {
				return fmt.Errorf("partition %d is %s (%v; %v)", q.Partition, q.State, deref(q.Error), deref(q.Hint))
			}
		}
		return nil
	})
	out, errs, _ := p.b.run("describe", "--topics", topic)
	t.Logf("%s%s", out, errs)
	for n := range int32(2) {
		if got := valuesIn(t, p.dst, topic, n, kgo.ReadUncommitted()); slices.Contains(got, "another life") || len(got) != 50 {
			t.Errorf("partition %d holds %d records", n, len(got))
		}
	}
}

func (p *couple) old(t *testing.T, topic string) {
	t.Helper()
	createTopic(t, p.src, topic, 2, nil)
	produce(t, client(t, p.src), topic, 2, 50, 50)
	p.a.mirror(topic)
	p.a.caughtUp(p.src, 3, time.Minute, topic)
}

func (p *couple) anewWhilePaused(t *testing.T) {
	const topic = "anew-paused"
	p.old(t, topic)
	p.a.verb("pause", topic)
	p.anew(t, topic)
	polled(8*time.Second, func() bool { return false })
	out, errs, code := p.b.run("describe", "--topics", topic)
	t.Logf("while paused: exit %d %s%s", code, out, errs)
	out, errs, code = p.b.run("resume", "--mirror", "m", "--topics", topic)
	t.Logf("resume: exit %d %s%s", code, out, errs)
	p.keptOld(t, topic)
}

func (p *couple) anewWhileDown(t *testing.T) {
	for i, s := range []*shim{p.a, p.b} {
		topic := fmt.Sprintf("anew-down-%d", i)
		p.old(t, topic)
		s.kill()
		p.anew(t, topic)
		s.start()
		p.keptOld(t, topic)
	}
	topic := "anew-both-down"
	p.old(t, topic)
	p.marks.unled() // real brokers lead until both are back
	p.a.kill()
	p.b.kill()
	p.anew(t, topic)
	p.a.spawn()
	p.b.spawn()
	p.a.ready(time.Minute)
	p.b.ready(time.Minute)
	p.keptOld(t, topic)
	p.spread(t, time.Minute, p.topic)
	p.marks.led()
}
