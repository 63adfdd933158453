// Package coordinator keeps mirror definitions, topics and partition states in the compacted topic __mirror_state of the
// destination (the MirrorCoordinator of KIP-1279). The topic is an ordinary one, held by real brokers only: kmirror has no
// log. Every process reads all of it; what a process writes shows in its Store once all in-sync replicas have it.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// DefaultTopic is the KIP's name of the state topic.
const DefaultTopic = "__mirror_state"

// Config of a Store.
type Config struct {
	// Opts make a client of the destination: seed brokers, TLS, SASL.
	Opts []kgo.Opt
	// Topic is DefaultTopic when empty; Partitions (0: 50) and ReplicationFactor (0: 3) count only when the topic is created,
	// and the latter is cut down to the number of real brokers.
	Topic             string
	Partitions        int32
	ReplicationFactor int16
	// Exclude reports broker ids that may not hold the topic: ours, since we keep no log. nil excludes none.
	Exclude func(brokerID int32) bool
	// Self is this process; its ProcessID is required. Peer asks the others that share the topic (nil: they can't be asked), Liveness tells
	// which of them answer (nil: all do). It joins them, and owns partitions, only while it is registered by its Standing (nil: always).
	Self     Member
	Peer     Peer
	Liveness Liveness
	Standing Standing
	Log      *slog.Logger

	vanish bool // see cluster
}

// ErrClosed: Run has ended, so nothing can be written.
var ErrClosed = errors.New("the store of __mirror_state is closed")

// Store is the content of __mirror_state. All methods are safe for concurrent use; what they return is shared and must not
// be changed. Reads never block and hold what has been loaded so far; writes wait until all is loaded.
type Store struct {
	cfg    Config
	log    *slog.Logger
	table  *table
	loaded chan struct{}
	closed chan struct{}
	// acls is a lock, held while it is full, that keeps what a mirror creates from being remembered after the mirror was deleted.
	acls chan struct{}

	// client, partitions and cluster are set before loaded is closed.
	client     *kgo.Client
	partitions int32
	cluster    *cluster
}

// New validates c and starts nothing.
func New(c Config) (*Store, error) {
	if c.Topic == "" {
		c.Topic = DefaultTopic
	}
	if c.Partitions == 0 {
		c.Partitions = 50
	}
	if c.ReplicationFactor == 0 {
		c.ReplicationFactor = 3
	}
	if c.Exclude == nil {
		c.Exclude = func(int32) bool { return false }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Peer == nil {
		c.Peer = nobody{}
	}
	if c.Liveness == nil {
		c.Liveness = everybody{}
	}
	if c.Standing == nil {
		c.Standing = always{}
	}
	c.Self.Self = true
	switch {
	case c.Self.ProcessID == "":
		return nil, fmt.Errorf("%s: the process needs an id", c.Topic)
	case c.Partitions < 0 || c.Partitions > 10_000:
		return nil, fmt.Errorf("%s: %d partitions; give 1 to 10000", c.Topic, c.Partitions)
	case c.ReplicationFactor < 0:
		return nil, fmt.Errorf("%s: replication factor %d; give at least 1", c.Topic, c.ReplicationFactor)
	}
	s := &Store{
		cfg: c, log: c.Log.With("topic", c.Topic), table: newTable(c.Log.With("topic", c.Topic)),
		loaded: make(chan struct{}), closed: make(chan struct{}), acls: make(chan struct{}, 1),
	}
	if err := kgo.ValidateOpts(s.opts()...); err != nil {
		return nil, fmt.Errorf("%s: client of the destination: %w", c.Topic, err)
	}
	return s, nil
}

// Loaded is closed once the whole topic has been read.
func (s *Store) Loaded() <-chan struct{} { return s.loaded }

// Changed returns a channel that is closed at the next change: take it first, then read, then wait.
func (s *Store) Changed() <-chan struct{} { return s.table.wait() }

// Mirrors returns all definitions, sorted by name.
func (s *Store) Mirrors() []Mirror { return s.table.mirrorList() }

// Mirror returns a definition.
func (s *Store) Mirror(name string) (Mirror, bool) { return s.table.mirror(name) }

// Topics returns all topics, sorted by name.
func (s *Store) Topics() []Topic { return s.table.topicList() }

// TopicByName returns the newest topic of that name.
func (s *Store) TopicByName(name string) (Topic, bool) { return s.table.topicByName(name) }

// State returns the state of a partition, with the last mirrored epoch. Where only that epoch is stored the state is
// Unknown.
func (s *Store) State(id protocol.PartitionID) (PartitionState, bool) { return s.table.state(id) }

// Look is State for who is to store one of a mirror, with PutState: see PartitionState.Base, which is set also where there is no state.
func (s *Store) Look(mirror string, id protocol.PartitionID) (PartitionState, bool) {
	return s.table.look(mirror, id)
}

// PutMirror stores a definition: one that was read from here replaces what was read, any other is a new one. What somebody has stored since
// is not replaced (ErrChanged).
func (s *Store) PutMirror(ctx context.Context, m Mirror) error {
	if err := ValidateName(m.Name); err != nil {
		return err
	}
	return s.write(ctx, func(n int32) ([]record, error) {
		r, err := mirrorRecord(m, n)
		r.base = new(m.base - 1)
		return []record{r}, err
	})
}

// DeleteMirror removes the memory of the ACLs that a mirror created, which stay where they are, and then its definition, so that a
// removal cut short can be repeated. Its topics are not touched.
func (s *Store) DeleteMirror(ctx context.Context, name string) error {
	if err := s.lockACLs(ctx); err != nil {
		return err
	}
	defer s.unlockACLs()
	if err := s.DeleteACLs(ctx, name, s.ACLs(name)...); err != nil {
		return err
	}
	return s.write(ctx, func(n int32) ([]record, error) {
		return []record{newRecord(kip1279.StateKey{Type: kip1279.RecordMirror, Mirror: name}, nil, n)}, nil
	})
}

// PutTopic stores topics, together: those of one mirror lie in the same partition of the state topic. A topic that was read from here
// replaces what was read, any other what stands here now; one that somebody has changed since is refused (ErrChanged). Without that a
// process that was stopped in between would undo what was done by others meanwhile, once its write is passed on to the new owner.
func (s *Store) PutTopic(ctx context.Context, topics ...Topic) error {
	for _, t := range topics {
		if err := ValidateName(t.Mirror); err != nil {
			return err
		}
	}
	return s.write(ctx, func(n int32) ([]record, error) {
		var out []record
		for _, t := range topics {
			r, err := topicRecord(t, n)
			if err != nil {
				return nil, err
			}
			base := t.base - 1
			if t.base == 0 {
				base = s.table.live(r.keyBytes)
			}
			r.base = &base
			out = append(out, r)
		}
		return out, nil
	})
}

// DeleteTopic removes the states of a topic's partitions and then the topic, so that a removal cut short can be repeated.
func (s *Store) DeleteTopic(ctx context.Context, t Topic) error {
	err := s.write(ctx, func(n int32) ([]record, error) {
		var out []record
		for p := range t.Partitions {
			k := kip1279.StateKey{Mirror: t.Mirror, TopicID: t.TopicID, Partition: p}
			for _, k.Type = range []int16{kip1279.RecordLastMirrorEpochs, kip1279.RecordPartitionState} {
				out = append(out, newRecord(k, nil, n))
			}
		}
		return out, nil
	})
	if err != nil {
		return err
	}
	return s.write(ctx, func(n int32) ([]record, error) { return []record{newRecord(topicKey(t), nil, n)}, nil })
}

// PutState stores partition states, each in place of the one that its Base names, or not at all (ErrChanged). A LastMirrorEpoch of -1 leaves
// the stored one as it is, as in the KIP; ForgetEpoch removes it.
func (s *Store) PutState(ctx context.Context, states ...PartitionState) error {
	for _, st := range states {
		if err := ValidateName(st.Mirror); err != nil {
			return err
		}
	}
	if err := s.awaitLoaded(ctx); err != nil {
		return err
	}
	return s.cluster.put(ctx, s.cluster.stateChanges(states))
}

// PutStates is PutState for who can do with some of the states: it returns what became of each, in their order, nil for those that are stored.
func (s *Store) PutStates(ctx context.Context, states []PartitionState) []error {
	out := make([]error, len(states))
	err := s.awaitLoaded(ctx)
	for _, st := range states {
		if err == nil {
			err = ValidateName(st.Mirror)
		}
	}
	if err != nil {
		for i := range out {
			out[i] = err
		}
		return out
	}
	out, _ = s.cluster.each(ctx, s.cluster.stateChanges(states))
	return out
}

func (s *Store) awaitLoaded(ctx context.Context) error {
	select {
	case <-s.closed:
		return ErrClosed
	case <-s.loaded:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s is not loaded yet: %w", s.cfg.Topic, ctx.Err())
	}
}

// write sends records that say something new and waits until all in-sync replicas have them. When ctx ends first the
// outcome is not known; what was written after all shows as soon as it is acknowledged or read back.
func (s *Store) write(ctx context.Context, encode func(partitions int32) ([]record, error)) error {
	if err := s.awaitLoaded(ctx); err != nil {
		return err
	}
	records, err := encode(s.partitions)
	if err != nil {
		return err
	}
	changes := make([]change, 0, len(records))
	for _, r := range records {
		changes = append(changes, change{record: r})
	}
	return s.cluster.put(ctx, changes)
}
