package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// pair is two clusters with a kmirror before each: atA mirrors from B, atB from A.
type pair struct {
	t        *testing.T
	a, b     *testkafka.Cluster
	atA, atB *shim
}

// try runs a subtest.
func (p *pair) try(name string, f func(t *testing.T)) {
	p.t.Run(name, func(t *testing.T) {
		p.atA.tb, p.atB.tb = t, t
		defer func() { p.atA.tb, p.atB.tb = p.t, p.t }()
		f(t)
	})
}

// TestFailback moves topics to the other cluster and back, and wants each side to keep what both have and to copy the rest.
func TestFailback(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	p := &pair{t: t, a: testkafka.Start(t, testkafka.Options{Name: "a", Brokers: 3}), b: testkafka.Start(t, testkafka.Options{Name: "b", Brokers: 3})}
	p.atA, p.atB = newShim(t, p.a, ""), newShim(t, p.b, "")
	p.atA.create(p.b)
	p.atB.create(p.a)
	p.try("ten rounds", p.rounds)
	p.try("transactions", p.transactions)
	p.try("another history", p.otherHistory)
	p.try("scenario A", p.scenarioA)
	p.try("scenario B", p.scenarioB)
	p.try("unclean elections", p.unclean)
	p.try("groups", p.groups)
	p.try("loops", p.loops)
	noneHangs(t, p.a)
	noneHangs(t, p.b)
}

// fetched is how much a kmirror has read of a topic at its source.
func (s *shim) fetched(topic string) (n int64) {
	return s.counted("kmirror_fetched_bytes_total", topic)
}

// counted sums up a counter over the partitions of a topic.
func (s *shim) counted(name, topic string) (n int64) {
	s.tb.Helper()
	resp, err := http.Get("http://" + s.http + "/metrics")
	if err != nil {
		s.tb.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) == 2 && strings.HasPrefix(f[0], name+"{") && strings.Contains(f[0], `topic="`+topic+`"`) {
			v, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				s.tb.Fatal(err)
			}
			n += int64(v)
		}
	}
	return n
}

// numbered are values with a common beginning.
func numbered(n int, format string, args ...any) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format+" %d", append(slices.Clone(args), i)...)
	}
	return out
}

// back starts mirroring of a topic that was failed over to the source: what the source never saw goes, what it got since is copied,
// and nothing else.
func (s *shim) back(src *testkafka.Cluster, topic string, common int64) {
	s.tb.Helper()
	want := bytesFrom(batchesOf(s.tb, src.Node(1), topic, 0), common)
	before := s.fetched(topic)
	s.mirror(topic)
	s.healed(src, time.Minute, topic, 3)
	agree(s.tb, topic, 0, 3, src, s.dst)
	if got := s.fetched(topic) - before; got != want {
		s.tb.Errorf("%d bytes of %s were copied, its log grew by %d beyond offset %d", got, topic, want, common)
	}
}

// parted is where a topic that was failed over goes on without its source. It returns once broker 1 has all of it: one that was fenced for
// want of time was left out of the hand-over, and gets its replica back later.
func parted(t *testing.T, c *testkafka.Cluster, topic string) int64 {
	t.Helper()
	leads(t, c, topic, 3, time.Minute)
	at, _ := tailOf(t, batchesOf(t, c.Node(1), topic, 0))
	return at
}

// rounds: A fails and B takes over, A comes back with records that B never saw and is brought in line, A takes over again and B
// follows; ten times.
func (p *pair) rounds(t *testing.T) {
	const topic, rounds = "round", 10
	createTopic(t, p.a, topic, 1, nil)
	want := numbered(1000, "%s", strings.Repeat("before ", 20))
	writable(t, p.a, topic, want...)
	p.atB.mirror(topic)
	p.atB.healed(p.a, time.Minute, topic, 3)
	begin := time.Now()
	for i := range rounds {
		took := []time.Duration{p.atB.verb("failover", topic)}
		writable(t, p.a, topic, numbered(5, "round %d, A alone", i)...)
		onB := numbered(7, "round %d, B", i)
		writable(t, p.b, topic, onB...)
		common := parted(t, p.b, topic)
		step := time.Now()
		p.atA.back(p.b, topic, common)
		took = append(took, time.Since(step).Round(10*time.Millisecond), p.atA.verb("promote", topic))
		onA := numbered(3, "round %d, A", i)
		writable(t, p.a, topic, onA...)
		common = parted(t, p.a, topic)
		step = time.Now()
		p.atB.back(p.a, topic, common)
		took = append(took, time.Since(step).Round(10*time.Millisecond))
		want = slices.Concat(want, onB, onA)
		t.Logf("round %d: failover to B, A follows, promote A, B follows: %v", i, took)
		if t.Failed() {
			break
		}
	}
	t.Logf("%d rounds in %s", rounds, time.Since(begin).Round(time.Second))
	for name, c := range map[string]*testkafka.Cluster{"A": p.a, "B": p.b} {
		if got := valuesIn(t, c, topic, 0, kgo.ReadUncommitted()); !slices.Equal(got, want) {
			t.Errorf("%s has %d records, want %d", name, len(got), len(want))
		}
	}
	if out := p.atB.must("verify", "--mirror", "m", "--topics", topic); !strings.Contains(out, " 0 of ") {
		t.Errorf("verify: %s", out)
	}
}

// transactions of a cluster's own coordinator that are open on the topic while kmirror takes it over, and while it gives it back,
// all end.
func (p *pair) transactions(t *testing.T) {
	const topic, n = "across", 8
	createTopic(t, p.a, topic, 1, nil)
	writable(t, p.a, topic, numbered(50, "before")...)
	p.atB.mirror(topic)
	p.atB.healed(p.a, time.Minute, topic, 3)
	p.atB.verb("failover", topic)
	writable(t, p.b, topic, numbered(5, "B")...)

	// endOneByOne ends transactions at A while something is done to the topic there.
	endOneByOne := func(what string, do func()) {
		t.Helper()
		var ends []func(commit bool)
		for i := range n {
			ends = append(ends, openTxn(t, p.a, fmt.Sprintf("%s-%d", what, i), topic))
		}
		var wg sync.WaitGroup
		for i, end := range ends {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 300 * time.Millisecond)
				end(i%2 == 0)
			})
		}
		begin := time.Now()
		do()
		t.Logf("%s: %s", what, time.Since(begin).Round(10*time.Millisecond))
		wg.Wait()
		noneHangs(t, p.a)
	}
	transact(t, p.a, "with-data", topic, 0, 10, "o")
	endOneByOne("preparing", func() {
		p.atA.mirror(topic)
		p.atA.healed(p.b, time.Minute, topic, 3)
	})
	agree(t, topic, 0, 3, p.a, p.b)
	endOneByOne("stopping", func() { p.atA.verb("promote", topic) })
	transact(t, p.a, "with-data", topic, 0, 2, "ca") // its producer comes back
	noneHangs(t, p.a)
	stableEnds(t, p.a, topic, 0, endOffsets(t, p.a, topic)[tp{topic, 0}])
	want := slices.Concat(numbered(50, "before"), numbered(5, "B"), []string{"with-data/0/c/0", "with-data/0/c/1"})
	if got := valuesIn(t, p.a, topic, 0, kgo.ReadCommitted()); !slices.Equal(got, want) {
		t.Errorf("A has %d committed records, want %d: %.300q", len(got), len(want), got)
	}
}

// otherHistory: a topic of the same name is not the same topic.
func (p *pair) otherHistory(t *testing.T) {
	const both, anew = "both", "anew"
	for _, c := range []*testkafka.Cluster{p.a, p.b} {
		createTopic(t, c, both, 1, nil)
		writable(t, c, both, numbered(10, "own")...)
	}
	createTopic(t, p.a, anew, 1, nil)
	writable(t, p.a, anew, numbered(10, "A")...)
	p.atB.mirror(anew)
	p.atB.healed(p.a, time.Minute, anew, 3)
	p.atB.verb("failover", anew)
	if _, err := kadm.NewClient(client(t, p.b)).DeleteTopics(timeout(t, 20*time.Second), anew); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "made anew", func() error {
		rs, err := kadm.NewClient(client(t, p.b)).CreateTopics(timeout(t, 20*time.Second), 1, 3, nil, anew)
		if err == nil {
			err = rs.Error()
		}
		return err
	})
	epochOf(t, p.b, anew) // by now all brokers know of the new one, which kmirror asks for
	writable(t, p.b, anew, numbered(20, "another B")...)
	for _, topic := range []string{both, anew} {
		agree(t, topic, 0, 3, p.a)
		before := digests(t, p.a, topic)
		p.atA.refusedAs(4, "INCONSISTENT_TOPIC_ID", "start", "--mirror", "m", "--topics", topic)
		for id, now := range digests(t, p.a, topic) {
			if now != before[id] {
				t.Errorf("a refused start changed %s on broker %d: %s, before %s", topic, id, now, before[id])
			}
		}
	}
}
