package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/internal/testkafka"
	"kmirror/protocol/kip1279"
)

// couple is two processes that share a mirror. Each reaches source and controller through a wire.
type couple struct {
	a, b               *shim
	src, dst           *testkafka.Cluster
	source, controller *wire
	topic              string
	partitions         int32
	consumer           *tail
	reign              *reign
	marks              *marks
	stop               func() int
}

// newCouple mirrors a topic under load and watches it in every way.
func newCouple(t *testing.T) *couple {
	p := &couple{topic: "orders", partitions: 8}
	dead, _ := sessions()
	p.wire(t, testkafka.Options{Properties: map[string]string{"broker.session.timeout.ms": fmt.Sprint(dead.Milliseconds())}})
	p.a, p.b = p.wired(t, 9001), p.wired(t, 9003)
	p.a.start()
	p.a.createAt(p.source.addr(), "mirror.metadata.refresh.interval.ms=2000")
	p.a.mirror(p.topic)
	p.a.caughtUp(p.src, 3, time.Minute, p.topic)
	p.b.start()
	p.spread(t, time.Minute, p.topic)
	p.watched(t, 500)
	return p
}

// wire starts a source with the topic, and a destination of three brokers: the source's broker and the destination's controller are told of by
// wires. dst has what else is to be so at the destination.
func (p *couple) wire(t *testing.T, dst testkafka.Options) {
	t.Helper()
	p.source, p.controller = newWire(t), newWire(t)
	p.src = testkafka.Start(t, testkafka.Options{Name: "src",
		Advertised: map[int32]map[string]string{1: {testkafka.ClientListener: p.source.addr()}}})
	told := map[int32]map[string]string{101: {testkafka.ControllerListener: p.controller.addr()}}
	maps.Copy(told, dst.Advertised)
	dst.Name, dst.Brokers, dst.Controllers, dst.Advertised = "dst", 3, 1, told
	p.dst = testkafka.Start(t, dst)
	p.source.leads(p.src.Node(1).Addr(testkafka.ClientListener))
	p.controller.leads(p.dst.Node(101).Addr(testkafka.ControllerListener))
	createTopic(t, p.src, p.topic, p.partitions, nil)
}

// wired is a process that does not run yet, with two node ids from first on, and that reaches the controller through its wire.
func (p *couple) wired(t *testing.T, first int32) *shim {
	t.Helper()
	s := makeShim(t, p.dst, first, "")
	s.rewrite(p.dst.Controllers()[0], p.controller.addr())
	return s
}

// watched begins to write so many records a second to the source, and to watch all of it.
func (p *couple) watched(t *testing.T, perSecond int) {
	t.Helper()
	p.stop = flow(t, p.src, p.topic, p.partitions, perSecond)
	p.consumer = follow(t, p.dst, p.topic, p.partitions)
	p.consumer.reaches(t, p.src, time.Minute)
	p.reign = watchReign(t, p)
	p.marks = watchMarks(t, p.dst, p.topic, p.partitions)
}

// rewrite replaces something in the configuration.
func (s *shim) rewrite(from, to string) {
	s.tb.Helper()
	if err := os.WriteFile(s.config, []byte(strings.ReplaceAll(mustRead(s.tb, s.config), from, to)), 0o600); err != nil {
		s.tb.Fatal(err)
	}
}

// try runs a subtest unless an earlier one failed.
func (p *couple) try(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	if t.Failed() {
		return
	}
	t.Run(name, func(t *testing.T) {
		p.a.tb, p.b.tb = t, t
		f(t)
	})
	p.a.tb, p.b.tb = t, t
}

// ids are the node ids of a process.
func (p *couple) ids(s *shim) []int32 {
	if s == p.a {
		return []int32{9001, 9002}
	}
	return []int32{9003, 9004}
}

// spread waits until both lead a part of a topic, with one id of the other in sync, and all replicas.
func (p *couple) spread(t *testing.T, limit time.Duration, topic string) {
	t.Helper()
	var n int
	eventually(t, limit, "partitions spread over both processes", func() error {
		d, err := replicasOf(t, p.dst, topic)
		if err != nil {
			return err
		}
		n = len(d.Partitions)
		led := map[bool]int{}
		for _, q := range d.Partitions {
			first := slices.Contains(p.ids(p.a), q.Leader)
			if !first && !slices.Contains(p.ids(p.b), q.Leader) {
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
	for _, s := range []*shim{p.a, p.b} {
		// While a partition moves from one process to the other, for a moment neither describes it.
		eventually(t, limit, "all partitions described", func() error {
			if got := s.get(limit, "MIRRORING", topic); len(got) != n {
				return fmt.Errorf("%d of %d", len(got), n)
			}
			return nil
		})
	}
}

// ledBy waits until one process leads all of a topic.
func (p *couple) ledBy(t *testing.T, limit time.Duration, s *shim, topic string) {
	t.Helper()
	ids := p.ids(s)
	eventually(t, limit, fmt.Sprintf("all led by %v", ids), func() error {
		d, err := replicasOf(t, p.dst, topic)
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

// mirrors writes a record to every partition, waits until brokers of the destination show each to consumers, and returns how
// long that took from a moment on.
func (p *couple) mirrors(t *testing.T, since time.Time) time.Duration {
	t.Helper()
	var records []*kgo.Record
	for n := range p.partitions {
		records = append(records, &kgo.Record{Topic: p.topic, Partition: n, Value: []byte("after all")})
	}
	if err := client(t, p.src).ProduceSync(timeout(t, 30*time.Second), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 40*time.Second, "mirroring goes on", func() error {
		for _, r := range records {
			if hw := p.marks.highestTold(r.Partition); hw <= r.Offset {
				return fmt.Errorf("partition %d: up to %d of %d", r.Partition, hw, r.Offset+1)
			}
		}
		return nil
	})
	return time.Since(since).Round(10 * time.Millisecond)
}

// check ends the load and looks at all that was watched, and at what processes say of each other.
func (p *couple) check(t *testing.T, running ...*shim) {
	t.Helper()
	p.sound(t, running...)
	for _, s := range []*shim{p.a, p.b} {
		s.quiet(t)
	}
}

// sound ends the load and looks at all that was watched.
func (p *couple) sound(t *testing.T, running ...*shim) {
	t.Helper()
	t.Logf("%d records went through", p.stop())
	running[0].caughtUp(p.src, 3, time.Minute, p.topic)
	running[0].equal(p.src, p.topic, p.partitions, 3)
	p.consumer.check(t, p.src)
	p.reign.check(t)
	p.marks.never(t)
	oneOwner(t, p.dst)
	for _, s := range running {
		s.undisturbed(t)
	}
}

// undisturbed wants a process to have seen nothing that neither kmirror nor losing it may bring about.
func (s *shim) undisturbed(t *testing.T) {
	t.Helper()
	for _, name := range []string{"kmirror_foreign_reassignments_total", "kmirror_divergence_total", "kmirror_watermark_regressions_total"} {
		if n := s.total(name); n != 0 {
			t.Errorf("%s is %d at %s", name, n, s.admin)
		}
	}
}

// total adds up a metric over its labels.
func (s *shim) total(name string) (n int64) {
	s.tb.Helper()
	resp, err := http.Get("http://" + s.http + "/metrics")
	if err != nil {
		s.tb.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) == 2 && (f[0] == name || strings.HasPrefix(f[0], name+"{")) {
			v, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				s.tb.Fatal(err)
			}
			n += int64(v)
		}
	}
	return n
}

// quiet wants a process to have taken nothing of what the other did for a stranger's doing, and not to have filled its log.
func (s *shim) quiet(t *testing.T) {
	t.Helper()
	said := map[string]int{}
	for line := range strings.Lines(mustRead(t, s.log)) {
		if m := logged.FindStringSubmatch(line); m != nil {
			said[m[1]]++
			if strings.HasPrefix(m[1], "others changed") {
				t.Errorf("%s: %s", s.admin, line)
			}
		}
	}
	for _, what := range []string{"partitions of the state topic that this process owns",
		"another process owns partitions and does not answer; see admin.advertised of both"} {
		if n := said[what]; n > 20 { // there are 50 partitions, and each changed its owner several times
			t.Errorf("%s logged %d times: %s", s.admin, n, what)
		}
	}
}

var logged = regexp.MustCompile(`msg=(?:"([^"]*)"|\S+)`)

// reign watches who leads what, as the brokers tell it: each leader epoch has one leader, and no replica is cut back below what the
// consumer has seen.
type reign struct {
	p *couple

	mu      sync.Mutex
	leaders map[string]int32 // by partition and epoch
	wrong   []string
	seen    []position
	samples int
}

// position is what the consumer had seen at a moment.
type position struct {
	at      time.Time
	offsets []int64
}

// watchReign watches until the test ends.
func watchReign(t *testing.T, p *couple) *reign {
	t.Helper()
	r := &reign{p: p, leaders: map[string]int32{}}
	ctx, cancel := context.WithCancel(context.Background())
	var jobs sync.WaitGroup
	for _, addr := range p.dst.Bootstrap(testkafka.ClientListener) {
		cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
		if err != nil {
			t.Fatal(err)
		}
		jobs.Go(func() {
			defer cl.Close()
			polled(time.Hour, func() bool { r.sample(ctx, cl); return ctx.Err() != nil })
		})
	}
	t.Cleanup(func() { cancel(); jobs.Wait() })
	return r
}

func (r *reign) sample(ctx context.Context, cl *kgo.Client) {
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &r.p.topic
	req.Topics = append(req.Topics, topic)
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	resp, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return
	}
	at := r.p.consumer.at()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples++
	r.seen = append(r.seen, position{time.Now(), at})
	for _, q := range resp.(*kmsg.MetadataResponse).Topics[0].Partitions {
		if q.Leader < 0 {
			continue
		}
		key := fmt.Sprintf("partition %d in epoch %d", q.Partition, q.LeaderEpoch)
		if before, ok := r.leaders[key]; ok && before != q.Leader {
			r.wrong = append(r.wrong, fmt.Sprintf("%s was led by %d and by %d", key, before, q.Leader))
		}
		r.leaders[key] = q.Leader
	}
}

// truncated is how a broker says that it cuts a log.
var truncated = regexp.MustCompile(`^\[([^\]]+)\] INFO \[(?:UnifiedLog|Log|MergedLog) partition=(\S+)-(\d+), .*Truncating to offset (\d+)`)

// check looks at what was seen.
func (r *reign) check(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.wrong {
		t.Error(w)
	}
	cuts, real := 0, 0
	for _, id := range r.p.dst.Brokers() {
		for line := range strings.Lines(mustRead(t, r.p.dst.Node(id).Log())) {
			m := truncated.FindStringSubmatch(line)
			if m == nil || m[2] != r.p.topic {
				continue
			}
			cuts++
			at, err := time.ParseInLocation("2006-01-02 15:04:05,000", m[1], time.Local)
			if err != nil {
				t.Fatal(err)
			}
			n, _ := strconv.Atoi(m[3])
			to, _ := strconv.ParseInt(m[4], 10, 64)
			for _, s := range r.seen {
				if s.at.Before(at) && s.offsets[n] > to {
					t.Errorf("a consumer had seen %d records of partition %d when broker %d cut it: %s", s.offsets[n], n, id, line)
					break
				}
			}
		}
	}
	for _, leader := range r.leaders {
		if leader < 9000 {
			real++
		}
	}
	t.Logf("%d samples: %d leader epochs, %d of them of real brokers; %d times a log was cut", r.samples, len(r.leaders), real, cuts)
	if r.samples == 0 || len(r.leaders) < int(r.p.partitions) {
		t.Error("too few samples")
	}
}

// oneOwner reads __mirror_state and wants every record to be written by whoever had claimed its partition last before it.
func oneOwner(t *testing.T, c *testkafka.Cluster) {
	t.Helper()
	ends := endOffsets(t, c, coordinator.DefaultTopic)
	left := map[int32]bool{}
	for at, end := range ends {
		if end > 0 {
			left[at.partition] = true
		}
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...), kgo.ConsumeTopics(coordinator.DefaultTopic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	type owner struct {
		process string
		id      int64
		epoch   int16
	}
	owners, claims, total := map[int32]owner{}, map[string]int{}, 0
	for ctx := timeout(t, 20*time.Second); len(left) > 0; {
		if ctx.Err() != nil {
			t.Fatalf("%s can't be read: %d partitions left", coordinator.DefaultTopic, len(left))
		}
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			total++
			if r.Offset+1 >= ends[tp{coordinator.DefaultTopic, r.Partition}] {
				delete(left, r.Partition)
			}
			o := owners[r.Partition]
			if k, err := kip1279.DecodeStateKey(r.Key); err == nil && k.Type == kip1279.RecordOwner {
				v, err := kip1279.DecodeStateValue(k.Type, r.Value)
				if err != nil {
					t.Fatal(err)
				}
				var claim struct {
					Process string `json:"process_id"`
				}
				if err := json.Unmarshal(v.(*kip1279.JSONValue).JSON, &claim); err != nil {
					t.Fatal(err)
				}
				if o.process != "" && r.ProducerID == o.id && r.ProducerEpoch <= o.epoch {
					t.Errorf("partition %d offset %d: claimed with epoch %d after %d", r.Partition, r.Offset, r.ProducerEpoch, o.epoch)
				}
				o = owner{claim.Process, r.ProducerID, r.ProducerEpoch}
				owners[r.Partition] = o
				claims[o.process]++
			}
			if o.process == "" || o.id != r.ProducerID || o.epoch != r.ProducerEpoch {
				t.Errorf("partition %d offset %d: written with %d/%d, the owner %s has %d/%d", r.Partition, r.Offset, r.ProducerID,
					r.ProducerEpoch, o.process, o.id, o.epoch)
			}
		})
	}
	t.Logf("%s: %d records, claims by process: %v", coordinator.DefaultTopic, total, claims)
	if total == 0 {
		t.Error("nothing was read")
	}
}

// described is what processes say of a topic, by partition, without what changes all the time.
func described(parts []admin.PartitionInfo) map[int32]string {
	out := map[int32]string{}
	for _, p := range parts {
		out[p.Partition] = fmt.Sprintf("%s led by %v (%v) in epoch %v, in sync %v, error %v", p.State, deref(p.LeaderNode), deref(p.Process),
			deref(p.DestinationEpoch), p.ISRReal, deref(p.Error))
	}
	return out
}
