package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/mirror"
	"kmirror/internal/testkafka"
)

// allFaults asks for every fault point; without it those run that have most to lose. make faults sets it.
const allFaults = "KMIRROR_ALL_FAULTS"

// What a topic goes through while kmirror is killed.
const (
	anew     = "a new topic is started"
	over     = "a topic with records of its own is started"
	fencing  = "the source's leader epochs overtake"
	pausing  = "a topic is paused"
	stopping = "a topic is failed over"
)

// What else is out of order meanwhile.
const (
	sourceDead  = "source dead"      // from kmirror's death until the topic is STOPPED, or for a while
	brokerDead  = "a broker dies"    // with kmirror, until the topic is STOPPED
	brokerGone  = "a broker is gone" // from before until kmirror is started again
	brokerLate  = "a broker is late" // stands still from shortly before until kmirror's death
	brokersGone = "one broker is left"
)

// faultCase is a moment at which kmirror is killed.
type faultCase struct {
	point, life, with string
	// often: in every run.
	often bool
}

// faultCases are all of mirror.FaultPoints, some of them with more than kmirror dead.
var faultCases = []faultCase{
	{point: "created", life: anew},
	{point: "stored PREPARING", life: anew},
	{point: "started", life: anew},
	{point: "reordered", life: anew},
	{point: "raised", life: anew, often: true},
	{point: "stored MIRRORING", life: anew},
	{point: "listed", life: over},
	{point: "joined", life: over, often: true},
	{point: "led", life: over, often: true},
	{point: "led", life: over, with: sourceDead},
	{point: "locked", life: over},
	{point: "aligning", life: over, with: brokerLate},
	{point: "dropped", life: over, with: brokerGone, often: true},
	{point: "aligned", life: over, often: true},
	{point: "reordered", life: over, often: true},
	{point: "stored EPOCH_FENCING", life: fencing},
	{point: "reordered", life: fencing},
	{point: "raised", life: fencing},
	{point: "stored PAUSING", life: pausing},
	{point: "stored PAUSED", life: pausing},
	{point: "stop wanted", life: stopping},
	{point: "stored STOPPING freeze", life: stopping},
	{point: "stored STOPPING freeze", life: stopping, with: sourceDead},
	{point: "converged", life: stopping},
	{point: "converged", life: stopping, with: brokerDead},
	{point: "stored STOPPING mark", life: stopping, often: true},
	{point: "stored STOPPING mark", life: stopping, with: sourceDead},
	{point: "tails made", life: stopping},
	{point: "tail begun", life: stopping, with: brokerLate, often: true},
	{point: "tail served", life: stopping},
	{point: "tail served", life: stopping, with: sourceDead, often: true}, // nobody else tells replicas to truncate the tail
	{point: "tail served", life: stopping, with: brokerDead},
	{point: "stored STOPPING hand over", life: stopping, often: true},
	{point: "size unlocked", life: stopping, with: brokersGone},
	{point: "unlocked", life: stopping, often: true},
	{point: "unlocked", life: stopping, with: sourceDead},
	{point: "handed over", life: stopping, often: true},
	{point: "stored STOPPED", life: stopping},
	{point: "grown back", life: stopping, with: brokerGone},
}

// TestFaultTable wants a case for every fault point.
func TestFaultTable(t *testing.T) {
	for _, point := range mirror.FaultPoints {
		if !slices.ContainsFunc(faultCases, func(c faultCase) bool { return c.point == point }) {
			t.Errorf("no case for fault point %q", point)
		}
	}
	for _, c := range faultCases {
		if !slices.Contains(mirror.FaultPoints, c.point) {
			t.Errorf("there is no fault point %q", c.point)
		}
	}
}

// topic of a case: a name of its own for each.
func (c faultCase) topic() string {
	return fmt.Sprintf("case-%02d-%s", slices.Index(faultCases, c), strings.ReplaceAll(strings.ToLower(c.point), " ", "-"))
}

func (c faultCase) String() string {
	s := c.life + ": " + c.point
	if c.with != "" {
		s += ", " + c.with
	}
	return s
}

// faultParts is how many partitions the topics have.
const faultParts = 2

// faultBed is two clusters with a kmirror that can be given a point to end at.
type faultBed struct {
	*bed
	point string      // the file with that point
	done  []faultCase // those that were tried, with the topics that they left
}

// newFaultBed starts a kmirror that has no point yet, with a mirror of src.
func newFaultBed(t *testing.T, src, dst *testkafka.Cluster) *faultBed {
	t.Helper()
	s := makeShim(t, dst, 9001, "")
	b := &faultBed{bed: &bed{t: t, src: src, dst: dst, s: s}, point: filepath.Join(s.dir, "fault")}
	s.env = []string{"TEST_KMIRROR_FAULT_POINT=@" + b.point}
	s.start()
	s.create(src)
	return b
}

// shortSessions save time: dead node ids can come back only once their session is over, by default after nine seconds. And kmirror is
// to start with one broker left: to write states it needs a transaction coordinator.
var shortSessions = map[string]string{"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "1000",
	"transaction.state.log.min.isr": "1"}

// TestFaultPoints kills kmirror at named points, starts it again, and wants what was begun to end as if nothing had been.
func TestFaultPoints(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	onlyInLong(t)
	src := testkafka.Start(t, testkafka.Options{Name: "src", Brokers: 2})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1, Properties: shortSessions})
	elrOn(t, dst)
	// Broker 3 stands still in some cases, and is not to hold up what is stored meanwhile.
	createAt(t, dst, "__mirror_state", [][]int32{{1, 2}, {2, 1}, {1, 2}}, map[string]string{"cleanup.policy": "compact"})
	b := newFaultBed(t, src, dst)
	var cases []faultCase
	for _, c := range faultCases {
		if c.often || os.Getenv(allFaults) != "" {
			cases = append(cases, c)
		}
	}
	b.fill(t, cases)
	for _, c := range cases {
		b.try(c.String(), func(t *testing.T) { b.kills(t, c) })
	}
	b.try("all that mirrors is equal", b.verified)
	b.try("failback", b.failback)
	noneHangs(t, src)
	noneHangs(t, dst)
}

// fill makes the topics of all cases, with records of an idempotent producer, of a transaction that was committed and of one that
// stays open, and mirrors those that are to be mirrored before.
func (b *faultBed) fill(t *testing.T, cases []faultCase) {
	t.Helper()
	var all, mirrored []string
	for _, c := range cases {
		createTopic(t, b.src, c.topic(), faultParts, nil)
		all = append(all, c.topic())
		switch c.life {
		case over:
			createAt(t, b.dst, c.topic(), [][]int32{{1, 2, 3}, {2, 1, 3}}, nil)
			produce(t, client(t, b.dst), c.topic(), faultParts, 60, 30)
		case fencing, pausing, stopping:
			mirrored = append(mirrored, c.topic())
		}
	}
	values := func(end byte) (rs []*kgo.Record) {
		for _, topic := range all {
			for p := range int32(faultParts) {
				for i := range 10 {
					rs = append(rs, &kgo.Record{Topic: topic, Partition: p, Value: fmt.Appendf(nil, "%c %d", end, i)})
				}
			}
		}
		return rs
	}
	if err := client(t, b.src).ProduceSync(timeout(t, time.Minute), values('-')...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for _, end := range []byte("co") {
		cl := client(t, b.src, kgo.TransactionalID(string(end)), kgo.TransactionTimeout(14*time.Minute))
		err := cl.BeginTransaction()
		if err == nil {
			err = cl.ProduceSync(timeout(t, time.Minute), values(end)...).FirstErr()
		}
		if err == nil && end == 'c' {
			err = cl.EndTransaction(timeout(t, time.Minute), kgo.TryCommit)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b.s.mirror(mirrored...)
	for _, topic := range mirrored {
		b.s.healed(b.src, time.Minute, topic, 3)
	}
}

// kills runs one case.
func (b *faultBed) kills(t *testing.T, c faultCase) {
	topic := c.topic()
	begin := time.Now()
	undo := b.harm(t, c)
	b.dies(t, c.point, func() { b.does(t, c) })
	fell := time.Since(begin)
	revive := undo(t)
	b.s.start()
	up := time.Since(begin)
	switch c.life {
	case stopping:
		if c.point == "stop wanted" {
			b.s.get(time.Minute, "STOPPED", topic) // it was stored: nobody has to ask again
		}
		b.s.verb("failover", topic)
		revive(t)
		b.stoppedWell(t, topic)
	case pausing:
		b.s.get(time.Minute, "PAUSED", topic)
		b.s.verb("resume", topic)
		b.mirrorsWell(t, topic)
	default:
		if c.point == "created" || c.point == "stored PREPARING" {
			b.s.mirror(topic) // nobody knows yet that it was asked for
		}
		revive(t)
		b.mirrorsWell(t, topic)
	}
	b.done = append(b.done, c)
	t.Logf("dead after %s, up again after %s, as it should be after %s", fell.Round(10*time.Millisecond), up.Round(10*time.Millisecond),
		time.Since(begin).Round(10*time.Millisecond))
}

// harm puts the clusters out of order before a case. The function returned is called once kmirror is dead, and what that returns
// once kmirror has come as far as it can without what is missing.
func (b *faultBed) harm(t *testing.T, c faultCase) (dead func(*testing.T) func(*testing.T)) {
	t.Helper()
	nothing := func(*testing.T) {}
	each := func(t *testing.T, what func(*testkafka.Node) error, nodes ...*testkafka.Node) {
		t.Helper()
		for _, n := range nodes {
			if err := what(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	spawn := func(t *testing.T, nodes ...*testkafka.Node) {
		t.Helper()
		each(t, (*testkafka.Node).Spawn, nodes...)
		each(t, func(n *testkafka.Node) error { return n.Wait(timeout(t, time.Minute)) }, nodes...)
	}
	third := b.dst.Node(3)
	switch c.with {
	case sourceDead:
		return func(t *testing.T) func(*testing.T) {
			each(t, (*testkafka.Node).Kill, b.src.Nodes()...)
			return func(t *testing.T) {
				if c.life != stopping {
					polled(2*time.Second, func() bool { return false })
					if parts := b.s.get(30*time.Second, "PREPARING", c.topic()); len(parts) != faultParts {
						t.Errorf("%d partitions", len(parts))
					}
				}
				spawn(t, b.src.Nodes()...)
			}
		}
	case brokerDead:
		return func(t *testing.T) func(*testing.T) {
			each(t, (*testkafka.Node).Kill, third)
			return func(t *testing.T) { spawn(t, third) }
		}
	case brokerGone:
		stopBroker(t, b.dst, 3)
		if c.point == "grown back" {
			// It comes by itself once the broker is back.
			return func(*testing.T) func(*testing.T) { return nothing }
		}
		return func(t *testing.T) func(*testing.T) { spawn(t, third); return nothing }
	case brokerLate: // from when it has been asked all that it is asked
		at := map[string]string{over: "locked", stopping: "tails made"}[c.life]
		b.stops(t, at, func() { b.does(t, c) })
		each(t, (*testkafka.Node).Pause, third)
		t.Cleanup(func() { third.Resume() })
		return func(t *testing.T) func(*testing.T) { each(t, (*testkafka.Node).Resume, third); return nothing }
	case brokersGone: // and kmirror a first time, so that there are eligible leader replicas when it unlocks
		b.dies(t, "stored STOPPING hand over", func() { b.does(t, c) })
		each(t, (*testkafka.Node).Kill, b.dst.Node(2), third)
		return func(t *testing.T) func(*testing.T) {
			return func(t *testing.T) { spawn(t, b.dst.Node(2), third) }
		}
	}
	return func(*testing.T) func(*testing.T) { return nothing }
}

// does what leads to the fault point.
func (b *faultBed) does(t *testing.T, c faultCase) {
	topic := c.topic()
	switch {
	case b.s.cmd == nil: // it was killed half way there, and goes on by itself
		b.s.spawn()
		return
	case b.s.stands(t):
		b.s.cmd.Process.Signal(syscall.SIGCONT)
		return
	}
	switch c.life {
	case anew:
		b.s.run("start", "--mirror", "m", "--topics", topic)
	case over:
		b.s.run("start", "--mirror", "m", "--topics", topic, "--overwrite", "--yes")
	case pausing:
		b.s.run("pause", "--mirror", "m", "--topics", topic, "--wait", "50ms")
	case stopping:
		b.s.run("failover", "--mirror", "m", "--topics", topic, "--wait", "50ms")
		if c.point == "grown back" {
			startBroker(t, b.dst, 3)
		}
	case fencing:
		parts, err := b.s.describe("--topics", topic)
		if err != nil {
			t.Fatal(err)
		}
		ahead := int32(0)
		for _, p := range parts {
			ahead = max(ahead, *p.DestinationEpoch-*p.SourceEpoch)
		}
		// While it stands still it can't keep ahead of the source.
		b.s.cmd.Process.Signal(syscall.SIGSTOP)
		raiseEpochs(t, b.src, topic, faultParts, int(ahead)+3)
		produce(t, client(t, b.src), topic, faultParts, 5, 30)
		b.s.cmd.Process.Signal(syscall.SIGCONT)
	}
}

// dies gives kmirror a point to end at, does what leads there, and waits for its death.
func (b *faultBed) dies(t *testing.T, point string, do func()) {
	t.Helper()
	if err := os.WriteFile(b.point, []byte(point), 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(b.point)
	do()
	select {
	case err := <-b.s.done:
		b.s.cmd = nil
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("kmirror ended by itself: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("kmirror did not come to %q", point)
	}
}

// stops lets kmirror stand still at a point.
func (b *faultBed) stops(t *testing.T, point string, do func()) {
	t.Helper()
	if err := os.WriteFile(b.point, []byte("stop at "+point), 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(b.point)
	do()
	eventually(t, 30*time.Second, "kmirror at "+point, func() error {
		if !b.s.stands(t) {
			return errors.New("it goes on")
		}
		return nil
	})
}

// stands reports whether the process was stopped by a signal.
func (s *shim) stands(t *testing.T) bool {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "T")
}
