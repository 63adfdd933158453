// Package coordinator keeps mirror definitions, topics and partition states in the compacted topic __mirror_state of the
// destination (the MirrorCoordinator of KIP-1279).
package coordinator

import (
	"context"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/protocol"
)

// Config of a Store.
type Config struct {
	// Opts make a client of the destination: seed brokers, TLS, SASL.
	Opts []kgo.Opt
	// Topic is __mirror_state when empty; Partitions (50) and ReplicationFactor (3) count only when the topic is created.
	Topic             string
	Partitions        int32
	ReplicationFactor int16
	// Exclude reports broker ids that may not hold the topic: ours, since we keep no log. nil excludes none.
	Exclude func(brokerID int32) bool
	Log     *slog.Logger
}

// Store is the content of __mirror_state. All methods are safe for concurrent use.
type Store struct{}

// New validates c and starts nothing.
func New(c Config) (*Store, error) { return nil, nil }

// Run loads the topic, creating it first where needed, and follows it until ctx ends.
func (s *Store) Run(ctx context.Context) error { return nil }

// Loaded is closed once the whole topic has been read.
func (s *Store) Loaded() <-chan struct{} { return nil }

// Changed returns a channel that is closed at the next change: take it first, then read, then wait.
func (s *Store) Changed() <-chan struct{} { return nil }

// Mirrors returns all definitions, sorted by name.
func (s *Store) Mirrors() []Mirror { return nil }

// Mirror returns a definition.
func (s *Store) Mirror(name string) (Mirror, bool) { return Mirror{}, false }

// PutMirror stores a definition; it is acknowledged by all in-sync replicas before it shows.
func (s *Store) PutMirror(ctx context.Context, m Mirror) error { return nil }

// DeleteMirror removes a definition. Topics are not touched.
func (s *Store) DeleteMirror(ctx context.Context, name string) error { return nil }

// Topics returns all topics, sorted by name.
func (s *Store) Topics() []Topic { return nil }

// TopicByName returns the newest topic of that name.
func (s *Store) TopicByName(name string) (Topic, bool) { return Topic{}, false }

// PutTopic stores a topic.
func (s *Store) PutTopic(ctx context.Context, t Topic) error { return nil }

// DeleteTopic removes a topic and the states of its partitions.
func (s *Store) DeleteTopic(ctx context.Context, t Topic) error { return nil }

// State returns the state of a partition.
func (s *Store) State(id protocol.PartitionID) (PartitionState, bool) { return PartitionState{}, false }

// PutState stores partition states; unchanged ones are not written.
func (s *Store) PutState(ctx context.Context, states ...PartitionState) error { return nil }
