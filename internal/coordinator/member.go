package coordinator

import (
	"context"
	"errors"

	"kmirror/protocol"
)

// Member is a kmirror process.
type Member struct {
	// ProcessID names one run of a process: whoever starts anew has another.
	ProcessID string
	// Admin is the advertised address (host:port) of its admin listener.
	Admin string
	// NodeIDs are its broker ids at the destination.
	NodeIDs []int32
	// Self: it is this process.
	Self bool
}

var (
	// ErrNotCoordinator: the process that was asked does not own the partition of __mirror_state (NOT_COORDINATOR). Another does,
	// or will in a moment.
	ErrNotCoordinator = errors.New("another process owns the state")
	// ErrLoading: the owner has not read its partition to the end yet (COORDINATOR_LOAD_IN_PROGRESS).
	ErrLoading = errors.New("the owner of the state is loading it")
	// ErrFencedLeaderEpoch: a state was written for a newer leader epoch than the writer's (FENCED_LEADER_EPOCH), who leads no more.
	ErrFencedLeaderEpoch = errors.New("another led the partition since")
	// ErrChanged: a mirror, topic or state was changed by another since it was read (INVALID_CLUSTER_MIRROR_STATES).
	ErrChanged = errors.New("another command or process changed it meanwhile")
)

// Outcome is what became of one record or state. Offset is where its newest record lies in its partition of __mirror_state,
// -1 where there is none.
type Outcome struct {
	Offset int64
	Err    error
}

// Record is a record of __mirror_state; a nil Value removes what Key stands for. With a Base it is stored only while the record that stands
// under Key lies at that offset, -1 for none.
type Record struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
	Base  *int64 `json:"base,omitempty"`
}

// Peer asks other processes, by the listener that Member.Admin names. Outcomes come in the order of what was asked; their errors
// are, or wrap, those of this package where one fits. An error for the whole means that the process did not answer.
type Peer interface {
	WriteStates(ctx context.Context, to Member, states []PartitionState) ([]Outcome, error)
	WriteRecords(ctx context.Context, to Member, records []Record) ([]Outcome, error)
	ReadStates(ctx context.Context, to Member, mirror string, ids []protocol.PartitionID) ([]ReadOutcome, error)
}

// ReadOutcome is a state as its owner has it; Known tells whether there is one.
type ReadOutcome struct {
	State PartitionState
	Known bool
	Err   error
}

// Liveness tells which processes answer. It is a hint: one wrongly held dead is fenced, and one wrongly held alive only costs
// time.
type Liveness interface {
	// Watch replaces the processes to look at.
	Watch(members []Member)
	// Alive is true for those that nothing is known of yet.
	Alive(m Member) bool
	// Changed returns a channel that is closed when Alive may give another answer.
	Changed() <-chan struct{}
}

// Standing tells whether this process is a member of the destination, and so may own partitions of the topic.
type Standing interface {
	Registered() bool
	// RegisteredChanged returns a channel that is closed when Registered gives another answer.
	RegisteredChanged() <-chan struct{}
}

// always is the Standing of a process that needs none.
type always struct{}

func (always) Registered() bool                   { return true }
func (always) RegisteredChanged() <-chan struct{} { return nil }

// everybody is the Liveness of a process that asks no one: all are alive until the group says otherwise.
type everybody struct{}

func (everybody) Watch([]Member)           {}
func (everybody) Alive(Member) bool        { return true }
func (everybody) Changed() <-chan struct{} { return nil }

// nobody is the Peer of a process that was given none.
type nobody struct{}

var errNoPeer = errors.New("other processes can't be asked")

func (nobody) WriteStates(context.Context, Member, []PartitionState) ([]Outcome, error) {
	return nil, errNoPeer
}

func (nobody) WriteRecords(context.Context, Member, []Record) ([]Outcome, error) {
	return nil, errNoPeer
}

func (nobody) ReadStates(context.Context, Member, string, []protocol.PartitionID) ([]ReadOutcome, error) {
	return nil, errNoPeer
}
