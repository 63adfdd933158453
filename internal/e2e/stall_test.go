package e2e

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// stalled is a process alone with a mirror under load, every connection of which goes through wires: to the source, to the controller, to
// broker 2 of the destination, and from that broker to it.
type stalled struct {
	couple
	broker, from []*wire
	commits      int64
}

// TestStalls lets bytes stop, on connections that stay open, between kmirror and everybody else in turn, and then go on.
func TestStalls(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	onlyInLong(t)
	p := newStalled(t)
	p.try(t, "the source", p.sourceStalls)
	p.try(t, "the source, again and again", p.sourceStutters)
	p.try(t, "one broker", p.brokerStalls)
	p.try(t, "one broker to kmirror only", p.followerStalls)
	p.try(t, "kmirror to one broker only", p.toBrokerStalls)
	p.try(t, "the controller", p.controllerStalls)
	p.try(t, "everything", p.allStalls)
	p.try(t, "failed over while source and one broker stall", p.failsOver)
}

func newStalled(t *testing.T) *stalled {
	p := &stalled{couple: couple{topic: "orders", partitions: 4}, broker: []*wire{newWire(t), newWire(t)}}
	p.wire(t, testkafka.Options{Advertised: map[int32]map[string]string{
		2: {testkafka.ClientListener: p.broker[0].addr(), testkafka.ReplListener: p.broker[1].addr()}}})
	p.broker[0].leads(p.dst.Node(2).Addr(testkafka.ClientListener))
	p.broker[1].leads(p.dst.Node(2).Addr(testkafka.ReplListener))
	p.a = p.wired(t, 9001)
	p.b = p.a
	pair := portPair(t)
	p.from = []*wire{newWireAt(t, pair), newWireAt(t, pair+1)}
	_, port, _ := net.SplitHostPort(p.a.repl)
	repl, _ := strconv.Atoi(port)
	p.from[0].leads(p.a.repl)
	p.from[1].leads(fmt.Sprintf("127.0.0.1:%d", repl+1))
	p.a.rewrite(fmt.Sprintf(`advertised: "%s"`, p.a.repl), fmt.Sprintf(`advertised: "127.0.0.1:%d"`, pair))
	p.a.start()
	p.a.createAt(p.source.addr(), "mirror.metadata.refresh.interval.ms=2000")
	p.a.mirror(p.topic)
	p.a.caughtUp(p.src, 3, time.Minute, p.topic)
	p.watched(t, 500)
	return p
}

// well wants everything to be as it was before a stall.
func (p *stalled) well(t *testing.T, since time.Time) {
	t.Helper()
	t.Logf("mirroring again %s after it was over", p.mirrors(t, since))
	p.a.healed(p.src, time.Minute, p.topic, 3)
	p.consumer.reaches(t, p.src, 30*time.Second)
	p.commits++
	p.synced(t, p.commits)
	p.a.undisturbed(t)
}

func (p *stalled) tells(t *testing.T) {
	t.Helper()
	out, errs, code := p.a.run("describe", "--topics", p.topic)
	t.Logf("describe: exit %d\n%s%s", code, out, errs)
}

func (p *stalled) sourceStalls(t *testing.T) {
	p.source.cut(p.a)
	polled(25*time.Second, func() bool { return false })
	p.tells(t)
	p.source.cut()
	p.well(t, time.Now())
}

func (p *stalled) sourceStutters(t *testing.T) {
	for range 6 {
		p.source.cut(p.a)
		polled(2500*time.Millisecond, func() bool { return false })
		p.source.cut()
		polled(700*time.Millisecond, func() bool { return false })
	}
	p.well(t, time.Now())
}

func (p *stalled) cutBroker(to, from bool) {
	for _, w := range p.broker {
		if to {
			w.cut(p.a)
		} else {
			w.cut()
		}
	}
	for _, w := range p.from {
		if from {
			w.cutOff(p.dst.Node(2).PID())
		} else {
			w.cutOff()
		}
	}
}

// without wants mirroring to go on without broker 2 while it stalls, and it to be out of sync if it follows no more.
func (p *stalled) without(t *testing.T, out bool) {
	t.Helper()
	eventually(t, time.Minute, "broker 2 out of sync", func() error {
		d, err := replicasOf(t, p.dst, p.topic)
		if err != nil {
			return err
		}
		for _, q := range d.Partitions {
			if slices.Contains(q.ISR, 2) == out {
				return fmt.Errorf("partition %d: in sync %v", q.Partition, q.ISR)
			}
		}
		return nil
	})
}

func (p *stalled) brokerStalls(t *testing.T) {
	began := time.Now()
	p.cutBroker(true, true)
	p.without(t, true)
	t.Logf("out of sync after %s", time.Since(began))
	const topic = "with-broker-2-stalled"
	createTopic(t, p.src, topic, 2, nil)
	produce(t, client(t, p.src), topic, 2, 50, 100)
	p.advised(t, "start", "--topics", topic)
	p.tells(t)
	p.cutBroker(false, false)
	p.well(t, time.Now())
	p.a.again(t, "start", "--mirror", "m", "--topics", topic)
	p.a.caughtUp(p.src, 3, time.Minute, topic)
}

func (p *stalled) followerStalls(t *testing.T) {
	p.cutBroker(false, true)
	p.without(t, true)
	p.cutBroker(false, false)
	p.well(t, time.Now())
}

func (p *stalled) toBrokerStalls(t *testing.T) {
	p.cutBroker(true, false)
	polled(20*time.Second, func() bool { return false })
	p.tells(t)
	for _, verb := range []string{"pause", "resume"} {
		p.advised(t, verb, "--topics", p.topic)
	}
	p.cutBroker(false, false)
	eventually(t, time.Minute, "not paused", func() error {
		if out, errs, code := p.a.run("resume", "--mirror", "m", "--topics", p.topic); code != 0 {
			return fmt.Errorf("%s%s", out, errs)
		}
		return nil
	})
	p.well(t, time.Now())
}

// advised asks for something while somebody stalls: it may not be possible, but then what to do is said.
func (p *stalled) advised(t *testing.T, args ...string) {
	t.Helper()
	began := time.Now()
	out, errs, code := p.a.run(append(args, "--mirror", "m")...)
	t.Logf("%s: exit %d after %s\n%s%s", strings.Join(args, " "), code, time.Since(began).Round(10*time.Millisecond), out, errs)
	if code != 0 && (code < 3 || code > 5 || !strings.Contains(out+errs, "what to do")) {
		t.Errorf("%s: exit %d, no advice", args, code)
	}
}

func (p *stalled) controllerStalls(t *testing.T) {
	p.marks.unled() // the controller has a real broker lead meanwhile
	p.controller.cut(p.a)
	polled(20*time.Second, func() bool { return false })
	p.tells(t)
	p.controller.cut()
	p.well(t, time.Now())
	p.marks.led()
}

func (p *stalled) allStalls(t *testing.T) {
	p.marks.unled()
	p.source.cut(p.a)
	p.controller.cut(p.a)
	p.cutBroker(true, true)
	polled(25*time.Second, func() bool { return false })
	p.controller.cut()
	p.cutBroker(false, false)
	polled(3*time.Second, func() bool { return false })
	p.source.cut()
	p.well(t, time.Now())
	p.marks.led()
}

func (p *stalled) failsOver(t *testing.T) {
	t.Logf("%d records went through", p.stop())
	p.a.caughtUp(p.src, 3, time.Minute, p.topic)
	p.a.equal(p.src, p.topic, p.partitions, 3)
	p.consumer.check(t, p.src)
	p.reign.check(t)
	p.marks.never(t)
	p.a.must("verify", "--mirror", "m")
	p.source.cut(p.a)
	p.cutBroker(true, true)
	began := time.Now()
	out, errs, code := p.a.run("failover", "--mirror", "m", "--topics", p.topic, "--wait", "100s")
	t.Logf("failover: exit %d after %s\n%s%s", code, time.Since(began), out, errs)
	if code != 0 && (code != 3 || !strings.Contains(errs, "the same command again")) { // what it has to store may be for broker 2 to take
		t.Errorf("exit %d", code)
	}
	p.source.cut()
	p.cutBroker(false, false)
	p.a.get(time.Minute, "STOPPED", p.topic)
	leads(t, p.dst, p.topic, 3, time.Minute)
	for n := range p.partitions {
		agree(t, p.topic, n, 3, p.dst)
	}
}
