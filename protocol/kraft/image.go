package kraft

import "kmirror/protocol"

// Image is what the destination's metadata log says up to Offset. A published Image and all that it points to is
// immutable: Apply returns a new one that shares what did not change.
type Image struct {
	// Offset is that of the last record applied, -1 when there is none; Epoch is the leader epoch of its batch.
	Offset int64
	Epoch  int32

	Topics   map[protocol.UUID]*Topic
	Names    map[string]protocol.UUID
	Brokers  map[int32]*Broker
	Configs  map[ConfigResource]map[string]string
	Features map[string]int16

	// open: a metadata transaction has begun; pending is what it holds back. Never written to in place.
	open    bool
	pending []Record
}

// ConfigResource names what a ConfigRecord belongs to; Type is 2 for topics, 4 for brokers (ConfigResource.Type).
type ConfigResource struct {
	Type int8
	Name string
}

// ConfigResource types.
const (
	ConfigTopic  int8 = 2
	ConfigBroker int8 = 4
)

// Topic is a topic of the destination. Partitions is indexed by partition number; every entry is non-nil.
type Topic struct {
	ID         protocol.UUID
	Name       string
	Partitions []*Partition

	// early holds partitions whose predecessors have not come yet, while a snapshot is read.
	early map[int32]*Partition
}

// Partition is the newest PartitionRecord with the PartitionChangeRecords after it.
type Partition struct {
	Replicas, ISR, Adding, Removing, ELR, LastKnownELR []int32
	// Leader is -1 while there is none.
	Leader, LeaderEpoch, PartitionEpoch int32
	// LeaderRecoveryState is 0 RECOVERED, 1 RECOVERING (after an unclean election).
	LeaderRecoveryState int8
	Directories         []protocol.UUID
}

// Broker is a registration. Fenced and InControlledShutdown brokers may not be proposed for an ISR.
type Broker struct {
	ID                           int32
	Epoch                        int64
	Incarnation                  protocol.UUID
	Fenced, InControlledShutdown bool
	Rack                         string
	Endpoints                    []Endpoint
	LogDirs, CordonedLogDirs     []protocol.UUID
}

// Endpoint is one advertised listener; SecurityProtocol is Kafka's id (0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3
// SASL_SSL).
type Endpoint struct {
	Name, Host       string
	Port             uint16
	SecurityProtocol int16
}

// TLS reports whether the endpoint's protocol has it.
func (e Endpoint) TLS() bool { return e.SecurityProtocol == 1 || e.SecurityProtocol == 3 }

// SASL reports whether the endpoint's protocol has it.
func (e Endpoint) SASL() bool { return e.SecurityProtocol == 2 || e.SecurityProtocol == 3 }

// TopicByName returns the topic of that name, or nil.
func (i *Image) TopicByName(name string) *Topic {
	id, ok := i.Names[name]
	if !ok {
		return nil
	}
	return i.Topics[id]
}

// Partition returns the partition, or nil when the topic or the partition is not there.
func (i *Image) Partition(p protocol.PartitionID) *Partition {
	t := i.Topics[p.Topic]
	if t == nil || p.Partition < 0 || int(p.Partition) >= len(t.Partitions) {
		return nil
	}
	return t.Partitions[p.Partition]
}

// TopicConfig returns a dynamic topic config and whether it is set.
func (i *Image) TopicConfig(topic, name string) (string, bool) {
	v, ok := i.Configs[ConfigResource{ConfigTopic, topic}][name]
	return v, ok
}

// ISRMember is a broker proposed for an ISR together with the broker epoch that came with its last Fetch, -1 when it
// has not fetched in this leader epoch (KAFKA-15221).
type ISRMember struct {
	ID    int32
	Epoch int64
}

// ISRProposal is one partition of an AlterPartition request (v3), fenced by LeaderEpoch and PartitionEpoch.
type ISRProposal struct {
	ID          protocol.PartitionID
	Leader      int32
	LeaderEpoch int32
	// PartitionEpoch the proposal was computed from; the controller refuses any other (INVALID_UPDATE_VERSION).
	PartitionEpoch int32
	ISR            []ISRMember
	// RecoveryState is 0 (RECOVERED) in all proposals with more than one member.
	RecoveryState int8
}

// ISROutcome is the controller's answer to one proposal. ErrorCode is Kafka's; on 0 the other fields are the new state.
type ISROutcome struct {
	ErrorCode                           int16
	Leader, LeaderEpoch, PartitionEpoch int32
	ISR                                 []int32
}

// ImageSource hands out the newest image. Changed returns a channel that is closed when the next image is published:
// take the channel first, then the image, then wait.
type ImageSource interface {
	Image() *Image
	Changed() <-chan struct{}
}
