package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
)

// Bounds of the wait between attempts to create, find or load the topic.
const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
	// attemptLimit bounds one attempt.
	attemptLimit = 30 * time.Second
	// freshness is how old metadata may be when it is asked for again; franz-go's 5 s would delay creation by as much.
	freshness = 200 * time.Millisecond
	// answerLimit is how long a broker may keep an answer to itself, on top of what a request says of waiting: any broker is asked who
	// coordinates what, and one may be another kmirror process that hangs.
	answerLimit = 3 * time.Second
)

var (
	// errFinal marks errors that no retry can mend.
	errFinal = errors.New("an operator is needed")
	// errPending marks what is usual for a moment.
	errPending = errors.New("the topic is coming up")
)

// opts are those of the client that reads. Control records are kept because the last record of a partition may be one, and loading waits
// for the last record.
func (s *Store) opts() []kgo.Opt {
	return append(slices.Clone(s.cfg.Opts),
		kgo.ConsumeTopics(s.cfg.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.KeepControlRecords(),
		kgo.MetadataMinAge(freshness),
		kgo.RequestTimeoutOverhead(answerLimit),
	)
}

// Run loads the topic, creating it first where needed, and follows it until ctx ends. It goes on trying while the
// destination is away and returns an error only for what needs an operator. It can be called once.
func (s *Store) Run(ctx context.Context) error {
	defer close(s.closed)
	admin, err := kgo.NewClient(append(slices.Clone(s.cfg.Opts), kgo.MetadataMinAge(freshness), kgo.RequestTimeoutOverhead(answerLimit))...)
	if err != nil {
		return fmt.Errorf("%s: client of the destination: %w", s.cfg.Topic, err)
	}
	defer admin.Close()
	var goal map[int32]int64
	err = s.retry(ctx, "prepare", func(ctx context.Context) error {
		n, err := s.prepare(ctx, admin)
		if err != nil {
			return err
		}
		s.partitions = n
		goal, err = s.ends(ctx, admin)
		return err
	})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if s.client, err = kgo.NewClient(s.opts()...); err != nil {
		return fmt.Errorf("%s: client of the destination: %w", s.cfg.Topic, err)
	}
	defer s.client.Close()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	s.cluster = newCluster(s, admin, life)
	defer func() { end(); s.cluster.sender.close() }()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.follow(ctx, goal) })
	g.Go(func() error { return s.cluster.own(ctx) })
	g.Go(func() error { return s.cluster.membership(ctx) })
	return g.Wait()
}

// follow takes in records until ctx ends. goal holds, for each partition that has records, the offset up to which it must
// be read before the store counts as loaded.
func (s *Store) follow(ctx context.Context, goal map[int32]int64) error {
	started, loaded := time.Now(), false
	for {
		if !loaded && len(goal) == 0 {
			loaded = true
			s.cluster.load()
			close(s.loaded)
			s.log.Info("state loaded", "mirrors", len(s.Mirrors()), "topics", len(s.Topics()), "partitions", s.partitions,
				"seconds", time.Since(started).Seconds())
		}
		fetches := s.client.PollFetches(ctx)
		if ctx.Err() != nil || fetches.IsClientClosed() {
			return nil
		}
		fetches.EachError(func(_ string, p int32, err error) {
			s.log.Warn("reading is held up", "partition", p, "err", err)
		})
		read := map[int32]int64{}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				s.table.apply(r.Key, r.Value, r.Offset)
				s.cluster.took(r)
			}
			read[r.Partition] = r.Offset + 1
			if end, ok := goal[r.Partition]; ok && r.Offset+1 >= end {
				delete(goal, r.Partition)
			}
		})
		s.cluster.progress(read)
	}
}

// retry calls do until it succeeds, ctx ends or the error is final, with jittered exponential back-off.
func (s *Store) retry(ctx context.Context, what string, do func(ctx context.Context) error) error {
	for wait := retryFirst; ; wait = min(2*wait, retryMost) {
		attempt, cancel := context.WithTimeout(ctx, attemptLimit)
		err := do(attempt)
		cancel()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, errFinal) {
			return err
		}
		level := slog.LevelWarn
		if errors.Is(err, errPending) {
			level = slog.LevelDebug
		}
		s.log.Log(ctx, level, "destination does not answer as needed, trying again", "step", what, "err", err)
		timer := time.NewTimer(jitter(wait))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// jitter is between half of d and d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

// prepare makes sure that the topic is there, compacted, and has a leader for every partition. It returns the partition
// count, which the KIP's hash needs.
func (s *Store) prepare(ctx context.Context, cl *kgo.Client) (int32, error) {
	adm := kadm.NewClient(cl)
	meta, err := adm.Metadata(ctx, s.cfg.Topic)
	if err != nil {
		return 0, err
	}
	t := meta.Topics[s.cfg.Topic]
	if errors.Is(t.Err, kerr.UnknownTopicOrPartition) {
		if err := s.create(ctx, cl, meta.Brokers.NodeIDs()); err != nil {
			return 0, err
		}
		return 0, errPending
	}
	if t.Err != nil {
		return 0, denied(t.Err, s.cfg.Topic)
	}
	for _, p := range t.Partitions {
		if p.Leader < 0 {
			return 0, fmt.Errorf("partition %d has no leader: %w", p.Partition, errPending)
		}
	}
	if err := s.checkCompacted(ctx, adm); err != nil {
		return 0, err
	}
	return int32(len(t.Partitions)), nil
}

// create makes the topic on real brokers only, spread evenly.
func (s *Store) create(ctx context.Context, cl *kgo.Client, live []int32) error {
	brokers := slices.DeleteFunc(slices.Clone(live), s.cfg.Exclude)
	if len(brokers) == 0 {
		return errors.New("no real broker is up to hold it")
	}
	slices.Sort(brokers)
	factor := min(int(s.cfg.ReplicationFactor), len(brokers))
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = s.cfg.Topic, -1, -1
	for p, replicas := range assign(brokers, int(s.cfg.Partitions), factor) {
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition, a.Replicas = int32(p), replicas
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, a)
	}
	for _, kv := range [][2]string{{"cleanup.policy", "compact"}, {"compression.type", "producer"}, {"retention.ms", "-1"}} {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = kv[0], &kv[1]
		topic.Configs = append(topic.Configs, c)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), int32(attemptLimit.Milliseconds())
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		err := kerr.ErrorForCode(t.ErrorCode)
		if err == nil {
			s.log.Info("created", "partitions", s.cfg.Partitions, "replication_factor", factor, "brokers", brokers)
		}
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			if t.ErrorMessage != nil {
				err = fmt.Errorf("%w: %s", err, *t.ErrorMessage)
			}
			return denied(err, s.cfg.Topic)
		}
	}
	return nil
}

// assign gives partition p the brokers that follow each other in the ring from p on.
func assign(brokers []int32, partitions, factor int) [][]int32 {
	out := make([][]int32, partitions)
	for p := range out {
		for r := range factor {
			out[p] = append(out[p], brokers[(p+r)%len(brokers)])
		}
	}
	return out
}

// checkCompacted refuses a topic of that name that forgets: state would vanish after its retention time.
func (s *Store) checkCompacted(ctx context.Context, adm *kadm.Client) error {
	configs, err := adm.DescribeTopicConfigs(ctx, s.cfg.Topic)
	if err != nil {
		return err
	}
	c, err := configs.On(s.cfg.Topic, nil)
	if err != nil {
		return err
	}
	if c.Err != nil {
		s.log.Warn("can't see whether the topic is compacted; grant DESCRIBE_CONFIGS on it", "err", c.Err)
		return nil
	}
	for _, kv := range c.Configs {
		if kv.Key == "cleanup.policy" && strings.TrimSpace(kv.MaybeValue()) != "compact" {
			return fmt.Errorf("%w: topic %s has cleanup.policy=%s and would lose the state of mirrors: "+
				"set it to compact with kafka-configs", errFinal, s.cfg.Topic, kv.MaybeValue())
		}
	}
	return nil
}

// ends returns the end offset of every partition that holds records.
func (s *Store) ends(ctx context.Context, cl *kgo.Client) (map[int32]int64, error) {
	adm := kadm.NewClient(cl)
	starts, err := adm.ListStartOffsets(ctx, s.cfg.Topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, denied(err, s.cfg.Topic)
	}
	ends, err := adm.ListEndOffsets(ctx, s.cfg.Topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	goal := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if start, ok := starts.Lookup(o.Topic, o.Partition); ok && start.Offset < o.Offset {
			goal[o.Partition] = o.Offset
		}
	})
	return goal, nil
}

// denied makes missing rights final: waiting does not bring them.
func denied(err error, topic string) error {
	if errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) {
		return fmt.Errorf("%w: %w: grant CREATE, DESCRIBE, READ and WRITE on topic %s to kmirror's principal",
			errFinal, err, topic)
	}
	return err
}
