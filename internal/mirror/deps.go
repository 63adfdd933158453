package mirror

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/broker"
	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// Destination is our membership of the destination and what it lets us do there; *broker.Broker.
type Destination interface {
	kraft.ImageSource
	ClusterID() string
	Owns(id int32) bool
	// Guest reports ids of any kmirror process, ours included: they hold no log.
	Guest(id int32) bool
	Ready() error
	CreateTopic(ctx context.Context, t broker.NewTopic) (protocol.UUID, error)
	CreatePartitions(ctx context.Context, topic string, total int32, assignment [][]int32) error
	Reassign(ctx context.Context, lists map[protocol.TopicPartition][]int32) map[protocol.TopicPartition]error
	ElectPreferred(ctx context.Context, parts []protocol.TopicPartition) map[protocol.TopicPartition]error
	JoinISR(ctx context.Context, node int32, parts []protocol.PartitionID) map[protocol.PartitionID]error
	SetTopicConfigs(ctx context.Context, topic string, set map[string]string, remove []string) error
	SetStrayCheck(func(t *kraft.Topic) bool)
}

// Data is the data path; an adapter around *fetch.Leader.
type Data interface {
	// CheckMirror reports what AddMirror would refuse.
	CheckMirror(config map[string]string) error
	// AddMirror makes a source known; connections are made when its first partition needs them.
	AddMirror(name string, opts []kgo.Opt, config map[string]string) error
	RemoveMirror(name string)
	Assign(a ...replica.Assignment)
	Unassign(ids ...protocol.PartitionID)
	Statuses() map[protocol.PartitionID]replica.Status
	Changed() <-chan struct{}
}

// Store is __mirror_state; *coordinator.Store.
type Store interface {
	Loaded() <-chan struct{}
	Changed() <-chan struct{}
	Mirrors() []coordinator.Mirror
	Mirror(name string) (coordinator.Mirror, bool)
	PutMirror(ctx context.Context, m coordinator.Mirror) error
	DeleteMirror(ctx context.Context, name string) error
	Topics() []coordinator.Topic
	TopicByName(name string) (coordinator.Topic, bool)
	PutTopic(ctx context.Context, topics ...coordinator.Topic) error
	Fresh(ctx context.Context, mirror string) error
	DeleteTopic(ctx context.Context, t coordinator.Topic) error
	State(id protocol.PartitionID) (coordinator.PartitionState, bool)
	Look(mirror string, id protocol.PartitionID) (coordinator.PartitionState, bool)
	PutState(ctx context.Context, states ...coordinator.PartitionState) error
	PutStates(ctx context.Context, states []coordinator.PartitionState) []error
}
