package metasync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/internal/lockbuf"
	"kmirror/internal/testkafka"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/statemachine"
)

// bed is a source and a destination without kmirror: the same topics with the same records are made at both, and what is stored says
// that they flow. It stands in for everything that a Syncer needs.
type bed struct {
	*memory
	counts
	src, dst         *testkafka.Cluster
	srcAdm, dstAdm   *kadm.Client
	srcCl, dstCl     *kgo.Client
	oldCl            *kgo.Client // of the source, where it is set
	srcSent, dstSent *sent
	w                *worker
	// size is what max.message.bytes says of all topics of the destination: "0" is the lock.
	size string

	logged lockbuf.Buffer
}

// sent counts requests by their name.
type sent struct {
	mu    sync.Mutex
	names map[string]int
}

func (s *sent) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[kmsg.NameForKey(key)]++
}

func (s *sent) take() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.names
	s.names = map[string]int{}
	return out
}

// newBed starts the clusters, the destination with a version of its own.
func newBed(t *testing.T, destination string) *bed {
	everyone := map[string]string{
		"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"allow.everyone.if.no.acl.found": "true",
	}
	b := &bed{size: "0", memory: &memory{topics: map[string]coordinator.Topic{}, states: map[protocol.PartitionID]coordinator.PartitionState{}}}
	talkative := maps.Clone(everyone)
	talkative["offset.metadata.max.bytes"] = "10000"
	b.src = testkafka.Start(t, testkafka.Options{Name: "src", Properties: talkative})
	b.dst = testkafka.Start(t, testkafka.Options{Name: "dst", Version: destination, Properties: everyone})
	b.srcCl, b.srcSent = b.connect(t, b.src)
	b.dstCl, b.dstSent = b.connect(t, b.dst)
	b.srcAdm, b.dstAdm = kadm.NewClient(b.srcCl), kadm.NewClient(b.dstCl)
	b.topic(t, "first", 1, 1, 1)
	for _, adm := range []*kadm.Client{b.srcAdm, b.dstAdm} { // has the internal topics made
		eventually(t, "groups work", func() bool {
			os := kadm.Offsets{}
			os.AddOffset("first", 0, 1, 0)
			err := adm.CommitAllOffsets(t.Context(), "first", os)
			r, errShare := adm.AlterShareGroupOffsets(t.Context(), "first-share", os)
			return err == nil && (errShare == nil && r.Ok() || errors.Is(errShare, kerr.UnsupportedVersion))
		})
	}
	log := slog.New(slog.NewTextHandler(&b.logged, nil))
	s, err := New(Config{Store: b.memory, Destination: bedDestination{b: b}, Mirrors: bedMirrors{b: b}, Observer: &b.counts, Log: log,
		Coordinates: func(string) bool { return true }})
	check(t, err)
	b.w = &worker{s: s, name: "m"}
	return b
}

// lines returns how many lines with a text were logged since lines was called last, and forgets them.
func (b *bed) lines(text string) int { return strings.Count(b.logged.Take(), text) }

func (b *bed) connect(t *testing.T, c *testkafka.Cluster, opts ...kgo.Opt) (*kgo.Client, *sent) {
	t.Helper()
	s := &sent{names: map[string]int{}}
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...), kgo.WithHooks(s))...)
	check(t, err)
	t.Cleanup(cl.Close)
	return cl, s
}

// bedDestination is a Destination whose image holds no more than names, ids and leader epochs.
type bedDestination struct {
	Destination
	b *bed
}

func (d bedDestination) ClusterID() string { return d.b.dst.ID() }

func (d bedDestination) Image() *kraft.Image {
	img := &kraft.Image{Topics: map[protocol.UUID]*kraft.Topic{}, Names: map[string]protocol.UUID{},
		Configs: map[kraft.ConfigResource]map[string]string{}}
	meta, err := d.b.dstAdm.Metadata(context.Background())
	if err != nil {
		return img
	}
	for name, t := range meta.Topics {
		k := &kraft.Topic{ID: protocol.UUID(t.ID), Name: name}
		for _, p := range t.Partitions.Sorted() {
			k.Partitions = append(k.Partitions, &kraft.Partition{LeaderEpoch: p.LeaderEpoch})
		}
		img.Topics[k.ID], img.Names[name] = k, k.ID
		img.Configs[kraft.ConfigResource{Type: kraft.ConfigTopic, Name: name}] = map[string]string{filters.SizeConfig: d.b.size}
	}
	return img
}

// bedMirrors are Mirrors that only have clients.
type bedMirrors struct {
	Mirrors
	b *bed
}

func (m bedMirrors) SourceClient(string) (*kgo.Client, error) {
	if m.b.oldCl != nil {
		return m.b.oldCl, nil
	}
	return m.b.srcCl, nil
}

func (m bedMirrors) DestinationClient() (*kgo.Client, error)               { return m.b.dstCl, nil }
func (m bedMirrors) SourceCluster(context.Context, string) (string, error) { return m.b.src.ID(), nil }

// edit changes a topic as it is stored.
func (b *bed) edit(topic string, f func(*coordinator.Topic)) {
	b.memory.mu.Lock()
	defer b.memory.mu.Unlock()
	t := b.topics[topic]
	f(&t)
	b.topics[topic] = t
}

// only makes some topics the mirror's, so that tests don't see each other's groups.
func (b *bed) only(t *testing.T, topics ...string) {
	t.Helper()
	src, err := b.srcAdm.ListTopics(t.Context(), topics...)
	check(t, err)
	dst, err := b.dstAdm.ListTopics(t.Context(), topics...)
	check(t, err)
	b.memory.mu.Lock()
	defer b.memory.mu.Unlock()
	clear(b.topics)
	for _, name := range topics {
		check(t, src[name].Err)
		check(t, dst[name].Err)
		b.topics[name] = coordinator.Topic{Mirror: "m", Name: name, SourceTopicID: protocol.UUID(src[name].ID),
			TopicID: protocol.UUID(dst[name].ID), Partitions: int32(len(dst[name].Partitions)), Desired: statemachine.Mirroring}
		for p := range b.topics[name].Partitions {
			id := protocol.PartitionID{Topic: b.topics[name].TopicID, Partition: p}
			b.states[id] = coordinator.PartitionState{Mirror: "m", ID: id, State: statemachine.Mirroring}
		}
	}
}

// topic makes a topic at both clusters with so many records in each partition, and has it mirrored.
func (b *bed) topic(t *testing.T, name string, partitions, srcRecords, dstRecords int) {
	t.Helper()
	for adm, records := range map[*kadm.Client]int{b.srcAdm: srcRecords, b.dstAdm: dstRecords} {
		_, err := adm.CreateTopic(t.Context(), int32(partitions), 1, nil, name)
		check(t, err)
		cl := b.srcCl
		if adm == b.dstAdm {
			cl = b.dstCl
		}
		for p := range partitions {
			produce(t, cl, name, int32(p), records)
		}
	}
	b.only(t, name)
}

// produce writes records one a batch, so that offsets are batch bounds.
func produce(t *testing.T, cl *kgo.Client, topic string, partition int32, n int) {
	t.Helper()
	var c []kgo.Opt
	for _, seed := range cl.OptValue(kgo.SeedBrokers).([]string) {
		c = append(c, kgo.SeedBrokers(seed))
	}
	p, err := kgo.NewClient(append(c, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableIdempotentWrite(),
		kgo.RequiredAcks(kgo.LeaderAck()))...)
	check(t, err)
	defer p.Close()
	for i := range n {
		check(t, p.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: partition, Value: fmt.Appendf(nil, "%d", i)}).FirstErr())
	}
}

// round runs one kind once, with a filter that lets pass what begins with a prefix, and returns what was counted.
func (b *bed) round(
	t *testing.T, prefix string, do func(*job, context.Context) error, last ...coordinator.Topic,
) (map[string]int, error) {
	t.Helper()
	b.take()
	config := map[string]string{filters.GroupsInclude: prefix + ".*"}
	f, err := filters.Parse(config)
	check(t, err)
	j, err := b.w.job(t.Context(), coordinator.Mirror{Name: "m", SourceClusterID: b.src.ID(), Config: config}, f)
	check(t, err)
	j.last = last
	ctx, cancel := context.WithTimeout(t.Context(), stepLimit)
	defer cancel()
	err = do(j, ctx)
	b.counts.mu.Lock()
	defer b.counts.mu.Unlock()
	return maps.Clone(b.n), err
}

// sync is a round of consumer groups without an error.
func (b *bed) sync(t *testing.T, prefix string) map[string]int {
	t.Helper()
	counts, err := b.round(t, prefix, (*job).groups)
	check(t, err)
	return counts
}

// commit writes offsets as an admin client.
func (b *bed) commit(t *testing.T, adm *kadm.Client, group, topic string, partition int32, c commit) {
	t.Helper()
	os := kadm.Offsets{}
	os.Add(kadm.Offset{Topic: topic, Partition: partition, At: c.offset, LeaderEpoch: c.epoch, Metadata: c.metadata})
	check(t, adm.CommitAllOffsets(t.Context(), group, os))
}

// at returns what a group has committed, offset -1 when it has not.
func at(t *testing.T, adm *kadm.Client, group, topic string, partition int32) commit {
	t.Helper()
	os, err := adm.FetchOffsets(t.Context(), group)
	check(t, err)
	o, ok := os.Lookup(topic, partition)
	if !ok {
		return commit{-1, -1, ""}
	}
	check(t, o.Err)
	return commit{o.At, o.LeaderEpoch, o.Metadata}
}

func expect[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %+v, want %+v", what, got, want)
	}
}

func expectCounts(t *testing.T, got, want map[string]int) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// reader is a member of a group.
type reader struct{ cl *kgo.Client }

// member makes a client that joins a group by its options once it reads a topic.
func (b *bed) member(t *testing.T, c *testkafka.Cluster, topic string, opts ...kgo.Opt) *reader {
	t.Helper()
	cl, _ := b.connect(t, c, append([]kgo.Opt{kgo.ConsumeTopics(topic), kgo.FetchMaxWait(100 * time.Millisecond)}, opts...)...)
	return &reader{cl}
}

// read returns the next n records.
func (r *reader) read(t *testing.T, n int) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out []*kgo.Record
	for len(out) < n {
		fs := r.cl.PollRecords(ctx, n-len(out))
		check(t, ctx.Err())
		check(t, fs.Err0())
		out = append(out, fs.Records()...)
	}
	return out
}

// leave ends the membership.
func (r *reader) leave() { r.cl.LeaveGroup(); r.cl.Close() }
