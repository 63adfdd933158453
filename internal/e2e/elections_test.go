package e2e

import (
	"bufio"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// TestElections moves the source's leaders all the time, one by one and faster than kmirror can follow, and mirrors a topic that has
// seen three hundred elections before.
func TestElections(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	onlyInLong(t)
	const topic, old, partitions = "orders", "old", 3
	src := testkafka.Start(t, testkafka.Options{Name: "src", Brokers: 3})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1})
	createTopic(t, src, topic, partitions, nil)
	createTopic(t, src, old, 1, nil)
	for range 3 {
		writable(t, src, old, numbered(10, "old")...)
		raiseEpochs(t, src, old, 1, 100)
	}
	writable(t, src, old, numbered(10, "new")...)
	s := newShim(t, dst, "")
	s.create(src)
	s.mirror(topic)
	s.healed(src, time.Minute, topic, 3)
	stop := flow(t, src, topic, partitions, 500)
	consumer, group, java := follow(t, dst, topic, partitions), commits(t, dst, topic, partitions, "franz"), console(t, dst, topic, partitions)
	consumer.reaches(t, src, 30*time.Second)

	t.Run("30 elections", func(t *testing.T) {
		late := delays(t, src, consumer)
		before := s.epochs()
		for i := range 12 {
			if i%3 == 2 {
				overtake(t, s, src, consumer)
			} else {
				moveLeaders(t, src, topic)
			}
		}
		s.healed(src, time.Minute, topic, 3)
		consumer.reaches(t, src, time.Minute)
		now := s.epochs()
		t.Logf("source and destination were at epochs %v, and are at %v; a record took %s at most to the consumer", before, now, late())
		if late() > 10*time.Second {
			t.Errorf("a record took %s to the consumer", late())
		}
		for p := range int32(partitions) {
			if now[p].source < before[p].source+30 {
				t.Errorf("partition %d of the source was at epoch %d and is at %d", p, before[p].source, now[p].source)
			}
		}
		if !strings.Contains(mustRead(t, s.log), "to=EPOCH_FENCING") {
			t.Error("the source never overtook: this shows little")
		}
	})
	t.Run("a source at epoch 300", func(t *testing.T) {
		late, begin := delays(t, src, consumer), time.Now()
		s.mirror(old)
		s.caughtUp(src, 3, 2*time.Minute, old)
		p := imageOf(t, dst).TopicByName(old).Partitions[0]
		t.Logf("mirrored for the first time after %s, at leader epoch %d, with %d metadata records of that partition; a record of another topic "+
			"took %s at most to the consumer", time.Since(begin).Round(100*time.Millisecond), p.LeaderEpoch, p.PartitionEpoch+1, late())
		if late() > 5*time.Second {
			t.Errorf("a record of another topic took %s to the consumer meanwhile", late())
		}
		handedOut(t, dst, old, 0)
		agree(t, old, 0, 3, src, dst)
	})
	n := stop()
	t.Logf("%d records under load", n)
	s.healed(src, time.Minute, topic, 3)
	for p := range int32(partitions) {
		handedOut(t, dst, topic, p)
		agree(t, topic, p, 3, src, dst)
	}
	consumer.check(t, src)
	group.check(t, src)
	java.check(t, src)
}

// overtake lets the source's epochs rise above the destination's, under load, while the destination's controller stands still: what is
// of a newer epoch has to wait all that time.
func overtake(t *testing.T, s *shim, src *testkafka.Cluster, consumer *tail) {
	t.Helper()
	consumer.reaches(t, src, 30*time.Second)
	ahead := int32(0)
	for _, e := range s.epochs() {
		ahead = max(ahead, e.destination-e.source)
	}
	controller := s.dst.Node(101)
	if err := controller.Pause(); err != nil {
		t.Fatal(err)
	}
	defer controller.Resume()
	raiseEpochs(t, src, consumer.topic, int32(len(consumer.seen)), int(ahead)+3)
	produce(t, client(t, src), consumer.topic, int32(len(consumer.seen)), 5, 50)
	polled(time.Second, func() bool { return false })
}

// startsAtEpoch is what a broker logs when it learns of a leader epoch.
var startsAtEpoch = regexp.MustCompile(`Follower (\S+)-(\d+) starts at leader epoch (\d+) from offset (\d+) `)

// handedOut wants no batch of a mirror partition to have come to a broker while the leader epoch that it knew was below the batch's own:
// the broker logs where its log ended when it learned of each leader epoch. Nothing of the log may have been truncated. Brokers drop
// such batches by themselves by now; that none is handed out, TestEpochBlockedUntilBumped of package fetch shows.
func handedOut(t *testing.T, c *testkafka.Cluster, topic string, partition int32) {
	t.Helper()
	for _, id := range c.Brokers() {
		n := c.Node(id)
		var starts []testkafka.EpochStart
		for line := range strings.Lines(mustRead(t, n.Log())) {
			m := startsAtEpoch.FindStringSubmatch(line)
			if m == nil || m[1] != topic || m[2] != strconv.Itoa(int(partition)) {
				continue
			}
			epoch, err := strconv.ParseInt(m[3], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			offset, err := strconv.ParseInt(m[4], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			starts = append(starts, testkafka.EpochStart{Epoch: int32(epoch), Offset: offset})
		}
		if len(starts) < 2 || !slices.IsSortedFunc(starts, func(a, b testkafka.EpochStart) int { return int(a.Offset - b.Offset) }) {
			t.Fatalf("%v learned of these leader epochs of %s-%d: %v", n, topic, partition, starts)
		}
		known := 0
		for _, b := range batchesOf(t, n, topic, partition) {
			for known+1 < len(starts) && starts[known+1].Offset <= b.BaseOffset() {
				known++
			}
			if at := starts[known]; b.PartitionLeaderEpoch() > at.Epoch {
				t.Fatalf("%v was given the batch at offset %d of %s-%d, of epoch %d, while it knew of leader epoch %d", n, b.BaseOffset(), topic,
					partition, b.PartitionLeaderEpoch(), at.Epoch)
			}
		}
		t.Logf("%v went through %d leader epochs of %s-%d, up to %d", n, len(starts), topic, partition, starts[len(starts)-1].Epoch)
	}
}

// delays watches a consumer from now on; the function returned says how long at most a record that the source had shown was not seen by it.
func delays(tb testing.TB, src *testkafka.Cluster, f *tail) func() time.Duration {
	tb.Helper()
	type mark struct {
		end int64
		at  time.Time
	}
	adm := kadm.NewClient(client(tb, src))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var longest time.Duration
	due := make([][]mark, len(f.at()))
	sample := func() bool {
		ask, end := context.WithTimeout(ctx, time.Second)
		defer end()
		ends, err := adm.ListEndOffsets(ask, f.topic)
		now, at := time.Now(), f.at()
		for p := range due {
			if o, ok := ends.Lookup(f.topic, int32(p)); err == nil && ok && o.Err == nil {
				due[p] = append(due[p], mark{o.Offset, now})
			}
			for len(due[p]) > 0 && due[p][0].end <= at[p] {
				due[p] = due[p][1:]
			}
			if len(due[p]) > 0 {
				longest = max(longest, now.Sub(due[p][0].at))
			}
		}
		return ctx.Err() != nil
	}
	wg.Go(func() { polled(time.Hour, sample) })
	stop := sync.OnceFunc(func() { cancel(); wg.Wait() })
	tb.Cleanup(stop)
	return func() time.Duration { stop(); return longest.Round(10 * time.Millisecond) }
}

// commits is follow as a member of a group that commits all that it has read, with its epochs, and begins anew from there every few
// seconds.
func commits(tb testing.TB, c *testkafka.Cluster, topic string, partitions int32, group string) *tail {
	tb.Helper()
	f := &tail{topic: topic, seen: make([][]string, partitions)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			life, end := context.WithCancel(ctx)
			time.AfterFunc(3*time.Second, end)
			if err := f.member(life, tb, c, group); err != nil && ctx.Err() == nil {
				f.mu.Lock()
				f.wrong = append(f.wrong, "group "+group+": "+err.Error())
				f.mu.Unlock()
			}
			end()
		}
	})
	tb.Cleanup(func() { cancel(); wg.Wait() })
	return f
}

// member is one life of a member.
func (f *tail) member(ctx context.Context, tb testing.TB, c *testkafka.Cluster, group string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap("CLIENT")...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(f.topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(200*time.Millisecond), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	for ctx.Err() == nil {
		f.take(cl.PollFetches(ctx))
		commit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		err := cl.CommitUncommittedOffsets(commit)
		cancel()
		if err != nil {
			return err
		}
	}
	d, err := replicasOf(tb, c, f.topic)
	if err != nil {
		return err
	}
	for p, at := range cl.CommittedOffsets()[f.topic] {
		if known := d.Partitions[p].LeaderEpoch; at.Epoch > known {
			return fmt.Errorf("offset %d of partition %d was committed with epoch %d, the leader epoch is %d", at.Offset, p, at.Epoch, known)
		}
	}
	return nil
}

// javaReader is Kafka's console consumer, a member of a group of its own.
type javaReader struct {
	tail
	c   *testkafka.Cluster
	end func()
}

// console starts one.
func console(tb testing.TB, c *testkafka.Cluster, topic string, partitions int32) *javaReader {
	tb.Helper()
	j := &javaReader{tail: tail{topic: topic, seen: make([][]string, partitions)}, c: c}
	j.start(tb)
	return j
}

func (j *javaReader) start(tb testing.TB) {
	tb.Helper()
	args := []string{"--bootstrap-server", strings.Join(j.c.Bootstrap("CLIENT"), ","), "--topic", j.topic, "--group", "java",
		"--command-property", "auto.offset.reset=earliest"}
	for _, p := range []string{"print.partition=true", "print.offset=true"} {
		args = append(args, "--formatter-property", p)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := testkafka.Tool(ctx, "", "org.apache.kafka.tools.consumer.ConsoleConsumer", args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		tb.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			j.line(s.Text())
		}
	}()
	j.end = sync.OnceFunc(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-read
		cmd.Wait()
		cancel()
		if tb.Failed() {
			tb.Logf("console consumer: %.3000s", errs.String())
		}
	})
	tb.Cleanup(j.end)
}

// line takes what is printed of a record.
func (j *javaReader) line(text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var p int
	var offset int64
	f := strings.SplitN(text, "\t", 3)
	if len(f) == 3 {
		fmt.Sscanf(f[0], "Partition:%d", &p)
		fmt.Sscanf(f[1], "Offset:%d", &offset)
	}
	if len(f) != 3 || p >= len(j.seen) || offset != int64(len(j.seen[p])) {
		j.wrong = append(j.wrong, fmt.Sprintf("%.200q came where offsets %v were due", text, j.due()))
		return
	}
	j.seen[p] = append(j.seen[p], f[2])
}

// due are the offsets that come next. Called with j.mu held.
func (j *javaReader) due() (out []int) {
	for _, s := range j.seen {
		out = append(out, len(s))
	}
	return out
}

// check is that of the tail, of two members one after the other: the second goes on where the first has committed.
func (j *javaReader) check(tb testing.TB, src *testkafka.Cluster) {
	tb.Helper()
	j.reaches(tb, src, 30*time.Second)
	j.end()
	for p := range int32(len(j.seen)) {
		r := &kgo.Record{Topic: j.topic, Partition: p, Value: []byte("for the second one")}
		if err := client(tb, src).ProduceSync(timeout(tb, 20*time.Second), r).FirstErr(); err != nil {
			tb.Fatal(err)
		}
	}
	j.start(tb)
	j.tail.check(tb, src)
	j.end()
}

// raiseEpochs moves leadership of all partitions of a topic from replica to replica, so that each leader epoch rises by times or more: two
// requests for each, and no wait for brokers to learn of it.
func raiseEpochs(t *testing.T, c *testkafka.Cluster, topic string, partitions int32, times int) {
	t.Helper()
	d, err := replicasOf(t, c, topic)
	if err != nil {
		t.Fatal(err)
	}
	cl, ctx := client(t, c), timeout(t, 2*time.Minute)
	list := map[int32][]int32{}
	for _, p := range d.Partitions {
		at := slices.Index(p.Replicas, p.Leader)
		list[p.Partition] = slices.Concat(p.Replicas[at:], p.Replicas[:at])
	}
	for left := times; left > 0; left-- {
		order := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		ot := kmsg.NewAlterPartitionAssignmentsRequestTopic()
		ot.Topic = topic
		elect := kmsg.NewPtrElectLeadersRequest()
		et := kmsg.NewElectLeadersRequestTopic()
		et.Topic = topic
		for p := range partitions {
			list[p] = append(slices.Clone(list[p][1:]), list[p][0])
			op := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
			op.Partition, op.Replicas = p, list[p]
			ot.Partitions, et.Partitions = append(ot.Partitions, op), append(et.Partitions, p)
		}
		order.Topics, elect.Topics = append(order.Topics, ot), append(elect.Topics, et)
		or, err := order.RequestWith(ctx, cl)
		if err == nil {
			for _, p := range or.Topics[0].Partitions {
				err = cmpErr(err, p.ErrorCode)
			}
		}
		if err != nil {
			t.Fatalf("reassign %s: %v", topic, err)
		}
		er, err := elect.RequestWith(ctx, cl)
		if err == nil {
			for _, p := range er.Topics[0].Partitions {
				if p.ErrorCode == kerr.ElectionNotNeeded.Code { // the broker that was asked did not know the leader yet
					left++
					break
				}
				err = cmpErr(err, p.ErrorCode)
			}
		}
		if err != nil {
			t.Fatalf("elect leaders of %s: %v", topic, err)
		}
	}
	eventually(t, 30*time.Second, "the last leaders known", func() error {
		now, err := replicasOf(t, c, topic)
		if err != nil {
			return err
		}
		for i, p := range d.Partitions {
			if got := now.Partitions[i].LeaderEpoch; got < p.LeaderEpoch+int32(times) {
				return fmt.Errorf("partition %d is at epoch %d, it was at %d before %d elections", i, got, p.LeaderEpoch, times)
			}
		}
		return nil
	})
}

// cmpErr is the first of an error and that of a code.
func cmpErr(err error, code int16) error {
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(code)
}
