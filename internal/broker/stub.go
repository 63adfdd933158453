package broker

import (
	"context"
	"errors"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

type Broker struct{}

var errStub = errors.New("stub")

// NewTopic is a topic to be created with an assignment of ours.
type NewTopic struct {
	Name       string
	Assignment [][]int32
	Configs    map[string]string
}

func New(Config) (*Broker, error)                { return nil, errStub }
func (*Broker) Run(ctx context.Context) error    { return errStub }
func (*Broker) Image() *kraft.Image              { return nil }
func (*Broker) Changed() <-chan struct{}         { return nil }
func (*Broker) ClusterID() string                { return "" }
func (*Broker) Nodes() []NodeStatus              { return nil }
func (*Broker) Ready() error                     { return errStub }
func (*Broker) Owns(id int32) bool               { return false }
func (*Broker) WantFence(reason string)          {}
func (*Broker) ClearFence()                      {}
func (*Broker) SetStrayCheck(func(t *kraft.Topic) bool) {}
func (*Broker) AlterISR(ctx context.Context, p []kraft.ISRProposal) ([]kraft.ISROutcome, error) {
	return nil, errStub
}
func (*Broker) CreateTopic(ctx context.Context, t NewTopic) (protocol.UUID, error) {
	return protocol.UUID{}, errStub
}
func (*Broker) Reassign(ctx context.Context, m map[protocol.TopicPartition][]int32) map[protocol.TopicPartition]error {
	return nil
}
func (*Broker) CancelReassign(ctx context.Context, p []protocol.TopicPartition) map[protocol.TopicPartition]error {
	return nil
}
func (*Broker) ElectPreferred(ctx context.Context, p []protocol.TopicPartition) map[protocol.TopicPartition]error {
	return nil
}
func (*Broker) JoinISR(ctx context.Context, nodeID int32, p []protocol.PartitionID) map[protocol.PartitionID]error {
	return nil
}
func (*Broker) SetTopicConfigs(ctx context.Context, topic string, set map[string]string, remove []string) error {
	return errStub
}
