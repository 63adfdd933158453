package kraft

import (
	"errors"

	"kmirror/protocol"
)

// ErrRecord: a metadata record, or a change it makes, is not what its schema or the image before it allows.
var ErrRecord = errors.New("bad metadata record")

// Metadata record types (apiKey of common/metadata/*.json in Kafka).
const (
	TypeRegisterBroker           = 0
	TypeUnregisterBroker         = 1
	TypeTopic                    = 2
	TypePartition                = 3
	TypeConfig                   = 4
	TypePartitionChange          = 5
	TypeFenceBroker              = 7
	TypeUnfenceBroker            = 8
	TypeRemoveTopic              = 9
	TypeFeatureLevel             = 12
	TypeBrokerRegistrationChange = 17
	TypeNoOp                     = 20
	TypeBeginTransaction         = 23
	TypeEndTransaction           = 24
	TypeAbortTransaction         = 25
	TypeClearElr                 = 28
)

// Record is a decoded metadata record: a pointer to one of this package's ...Record types.
type Record interface {
	// Type is the record's type number, Ver the schema version it was, or is to be, written in.
	Type() int
	Ver() int
}

// RegisterBrokerRecord (0-4): version 1 has InControlledShutdown, 2 MigratingZk, 3 LogDirs, 4 CordonedLogDirs.
type RegisterBrokerRecord struct {
	Version              int
	BrokerID             int32
	MigratingZk          bool
	Incarnation          protocol.UUID
	Epoch                int64
	Endpoints            []Endpoint
	Features             []FeatureRange
	Rack                 *string
	Fenced               bool
	InControlledShutdown bool
	LogDirs              []protocol.UUID
	// CordonedLogDirs is null where the broker said nothing (KIP-1066).
	CordonedLogDirs []protocol.UUID
}

// FeatureRange is what a broker supports of a feature.
type FeatureRange struct {
	Name     string
	Min, Max int16
}

// UnregisterBrokerRecord (0).
type UnregisterBrokerRecord struct {
	BrokerID int32
	Epoch    int64
}

// TopicRecord (0).
type TopicRecord struct {
	Name string
	ID   protocol.UUID
}

// PartitionRecord (0-2): version 1 has Directories, version 2 ELR and LastKnownELR.
type PartitionRecord struct {
	Version     int
	PartitionID int32
	TopicID     protocol.UUID
	Partition
}

// ConfigRecord (0); a null Value removes the config.
type ConfigRecord struct {
	Resource ConfigResource
	Name     string
	Value    *string
}

// NoLeaderChange is PartitionChangeRecord's Leader where the leader, and with it the leader epoch, stays.
const NoLeaderChange int32 = -2

// PartitionChangeRecord (0-2); null slices mean "unchanged", empty ones "now empty". LeaderRecoveryState is -1 for
// unchanged.
type PartitionChangeRecord struct {
	Version             int
	PartitionID         int32
	TopicID             protocol.UUID
	ISR                 []int32
	Leader              int32
	Replicas            []int32
	Removing, Adding    []int32
	LeaderRecoveryState int8
	ELR, LastKnownELR   []int32
	Directories         []protocol.UUID
}

// FenceBrokerRecord (0) is written by old metadata versions only.
type FenceBrokerRecord struct {
	BrokerID int32
	Epoch    int64
}

// UnfenceBrokerRecord (0) is written by old metadata versions only.
type UnfenceBrokerRecord struct {
	BrokerID int32
	Epoch    int64
}

// RemoveTopicRecord (0).
type RemoveTopicRecord struct{ ID protocol.UUID }

// FeatureLevelRecord (0); level 0 removes the feature.
type FeatureLevelRecord struct {
	Name  string
	Level int16
}

// BrokerRegistrationChangeRecord (0-3): Fenced is 1 fence, -1 unfence, 0 unchanged; InControlledShutdown is 1 or
// unchanged 0. An empty LogDirs (version 2) and a null CordonedLogDirs (version 3) mean unchanged.
type BrokerRegistrationChangeRecord struct {
	Version              int
	BrokerID             int32
	Epoch                int64
	Fenced               int8
	InControlledShutdown int8
	LogDirs              []protocol.UUID
	CordonedLogDirs      []protocol.UUID
}

// NoOpRecord (0) only moves the log's end.
type NoOpRecord struct{}

// BeginTransactionRecord (0) holds back all that follows until the end record (KIP-868).
type BeginTransactionRecord struct{ Name *string }

// EndTransactionRecord (0).
type EndTransactionRecord struct{}

// AbortTransactionRecord (0).
type AbortTransactionRecord struct{ Reason *string }

// ClearElrRecord (0) empties ELR and LastKnownELR of a topic, of all topics when Topic is empty.
type ClearElrRecord struct{ Topic string }

// Type implements Record.
func (*RegisterBrokerRecord) Type() int { return TypeRegisterBroker }

// Type implements Record.
func (*UnregisterBrokerRecord) Type() int { return TypeUnregisterBroker }

// Type implements Record.
func (*TopicRecord) Type() int { return TypeTopic }

// Type implements Record.
func (*PartitionRecord) Type() int { return TypePartition }

// Type implements Record.
func (*ConfigRecord) Type() int { return TypeConfig }

// Type implements Record.
func (*PartitionChangeRecord) Type() int { return TypePartitionChange }

// Type implements Record.
func (*FenceBrokerRecord) Type() int { return TypeFenceBroker }

// Type implements Record.
func (*UnfenceBrokerRecord) Type() int { return TypeUnfenceBroker }

// Type implements Record.
func (*RemoveTopicRecord) Type() int { return TypeRemoveTopic }

// Type implements Record.
func (*FeatureLevelRecord) Type() int { return TypeFeatureLevel }

// Type implements Record.
func (*BrokerRegistrationChangeRecord) Type() int { return TypeBrokerRegistrationChange }

// Type implements Record.
func (*NoOpRecord) Type() int { return TypeNoOp }

// Type implements Record.
func (*BeginTransactionRecord) Type() int { return TypeBeginTransaction }

// Type implements Record.
func (*EndTransactionRecord) Type() int { return TypeEndTransaction }

// Type implements Record.
func (*AbortTransactionRecord) Type() int { return TypeAbortTransaction }

// Type implements Record.
func (*ClearElrRecord) Type() int { return TypeClearElr }

// Ver implements Record.
func (r *RegisterBrokerRecord) Ver() int { return r.Version }

// Ver implements Record.
func (*UnregisterBrokerRecord) Ver() int { return 0 }

// Ver implements Record.
func (*TopicRecord) Ver() int { return 0 }

// Ver implements Record.
func (r *PartitionRecord) Ver() int { return r.Version }

// Ver implements Record.
func (*ConfigRecord) Ver() int { return 0 }

// Ver implements Record.
func (r *PartitionChangeRecord) Ver() int { return r.Version }

// Ver implements Record.
func (*FenceBrokerRecord) Ver() int { return 0 }

// Ver implements Record.
func (*UnfenceBrokerRecord) Ver() int { return 0 }

// Ver implements Record.
func (*RemoveTopicRecord) Ver() int { return 0 }

// Ver implements Record.
func (*FeatureLevelRecord) Ver() int { return 0 }

// Ver implements Record.
func (r *BrokerRegistrationChangeRecord) Ver() int { return r.Version }

// Ver implements Record.
func (*NoOpRecord) Ver() int { return 0 }

// Ver implements Record.
func (*BeginTransactionRecord) Ver() int { return 0 }

// Ver implements Record.
func (*EndTransactionRecord) Ver() int { return 0 }

// Ver implements Record.
func (*AbortTransactionRecord) Ver() int { return 0 }

// Ver implements Record.
func (*ClearElrRecord) Ver() int { return 0 }
