package e2e

import (
	"syscall"
	"testing"
	"time"
)

// TestProcesses runs two kmirror processes in front of one destination and takes one of them away in every way: there is one
// leader at any time, the log never forks, and what the lost one had goes on at the other.
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	p := newCouple(t)
	p.try(t, "killed", p.killed)
	p.try(t, "stopped", p.stopped)
	p.try(t, "suspended", p.suspended)
	p.try(t, "cut from the controller", p.withoutController)
	p.try(t, "cut from the source", p.withoutSource)
	p.check(t, p.a, p.b)
}

const (
	// takeoverBar is how long mirroring may rest when a process is killed, where the machine has time for that.
	takeoverBar = 4 * time.Second
	// sightBar is how long it may rest when one loses sight of the source: two questions without an answer, and what it takes to be sure
	// that all processes know of it.
	sightBar = 30 * time.Second
)

// sessions returns after how long without a sign of life the destination's controllers hold a broker dead, and how long mirroring may rest
// at most, which is less: nothing is to wait for that. Both are long for make test, which also runs on machines with much else to do.
func sessions() (dead, bar time.Duration) {
	if inLong() {
		return 9 * time.Second, 8 * time.Second
	}
	return 15 * time.Second, 13 * time.Second
}

func (p *couple) killed(t *testing.T) {
	began := time.Now()
	p.a.kill()
	took := p.mirrors(t, began)
	t.Logf("mirroring again %s after the kill", took)
	bar := takeoverBar
	if !inLong() {
		_, bar = sessions()
	}
	if took > bar {
		t.Errorf("mirroring rested for %s, at most %s were to be", took, bar)
	}
	p.ledBy(t, 20*time.Second, p.b, p.topic)
	p.synced(t, 11)
	p.a.start()
	p.spread(t, time.Minute, p.topic)
}

func (p *couple) stopped(t *testing.T) {
	if err := p.b.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	p.ledBy(t, 20*time.Second, p.a, p.topic)
	p.synced(t, 12)
	p.consumer.reaches(t, p.src, 30*time.Second)
	p.b.start()
	p.spread(t, time.Minute, p.topic)
}

// synced: whichever process was the mirror's metadata coordinator, one that is there now is.
func (p *couple) synced(t *testing.T, at int64) {
	t.Helper()
	commitAt(t, p.src, "app", p.topic, at, -1)
	standsAt(t, p.dst, "app", p.topic, at)
}

func (p *couple) suspended(t *testing.T) {
	began := time.Now()
	p.a.cmd.Process.Signal(syscall.SIGSTOP)
	t.Logf("mirroring again %s after SIGSTOP", p.mirrors(t, began))
	p.ledBy(t, 30*time.Second, p.b, p.topic)
	polled(30*time.Second-time.Since(began), func() bool { return false })
	p.a.cmd.Process.Signal(syscall.SIGCONT)
	p.spread(t, time.Minute, p.topic)
	p.consumer.reaches(t, p.src, 30*time.Second)
}

// withoutController loses all that the first process and the controller say to each other; brokers, source and the other process reach
// it as ever.
func (p *couple) withoutController(t *testing.T) {
	began := time.Now()
	p.controller.cut(p.a)
	p.ledBy(t, 40*time.Second, p.b, p.topic)
	t.Logf("mirroring again %s after the cut", p.mirrors(t, began))
	if got := p.b.get(30*time.Second, "MIRRORING", p.topic); len(got) != int(p.partitions) {
		t.Errorf("%d partitions described", len(got))
	}
	if n := len(p.a.get(30*time.Second, "MIRRORING", p.topic)); n != int(p.partitions) {
		t.Errorf("%d partitions described by the one that was cut off", n)
	}
	p.controller.cut()
	p.spread(t, time.Minute, p.topic)
	p.consumer.reaches(t, p.src, 30*time.Second)
}

func (p *couple) withoutSource(t *testing.T) {
	began := time.Now()
	p.source.cut(p.a)
	p.ledBy(t, 40*time.Second, p.b, p.topic)
	took := p.mirrors(t, began)
	t.Logf("mirroring again %s after the cut", took)
	if took > sightBar {
		t.Errorf("mirroring rested for %s, at most %s were to be", took, sightBar)
	}
	p.source.cut()
	p.spread(t, time.Minute, p.topic)
	p.consumer.reaches(t, p.src, 30*time.Second)
}
