package fetch

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// Defaults of Config and MirrorConfig.
const (
	DefaultMemoryBytes      = 256 << 20
	DefaultWindowBytes      = 8 << 20
	DefaultReplicaLag       = 30 * time.Second
	DefaultWaitMax          = 500 * time.Millisecond
	DefaultMaxBytes         = 1 << 20
	DefaultResponseMaxBytes = 10 << 20
)

// Observer is told what metrics need. Calls come from hot paths with locks held: they must not block or call back.
type Observer interface {
	// Fetched: n bytes of batches of a partition came from the source and were accepted.
	Fetched(mirror, topic string, partition int32, n int)
	// Diverged: the source reported that it no longer has what it gave us.
	Diverged(mirror, topic string, partition int32)
}

type nopObserver struct{}

func (nopObserver) Fetched(string, string, int32, int) {}
func (nopObserver) Diverged(string, string, int32)     {}

// Config of a Leader. Images and Controller are required, all else has defaults.
type Config struct {
	Images     kraft.ImageSource
	Controller Controller
	Log        *slog.Logger
	// MemoryBytes bounds record bytes held in all windows together, WindowBytes those of one partition.
	MemoryBytes int64
	WindowBytes int
	// ReplicaLag is how long an ISR member may go without having caught up (replica.lag.time.max.ms).
	ReplicaLag time.Duration
	Observer   Observer
}

// MirrorConfig says how to read one source cluster.
type MirrorConfig struct {
	Name string
	// Opts reach the source: seeds, TLS, SASL, client id.
	Opts []kgo.Opt
	// Fetchers is the number of connections per source broker (num.mirror.fetchers), 1 by default.
	Fetchers int
	WaitMax  time.Duration
	MinBytes int32
	// ResponseMaxBytes bounds a response, MaxBytes one partition in it; a first batch that is larger still comes.
	ResponseMaxBytes, MaxBytes int32
	// BytesPerSecond throttles reading from the source, 0 is no limit.
	BytesPerSecond int64
}

// Leader serves the partitions that our node ids lead.
type Leader struct{}

// NewLeader validates the configuration and starts nothing.
func NewLeader(cfg Config) (*Leader, error) { return nil, errors.New("not there yet") }

// Run leads until ctx ends.
func (l *Leader) Run(ctx context.Context) error { return nil }

// AddMirror makes a source known. Connections are made when the first partition needs them.
func (l *Leader) AddMirror(MirrorConfig) error { return nil }

// RemoveMirror forgets a source; partitions of it stand still.
func (l *Leader) RemoveMirror(name string) {}

// Assign tells what partitions are. A new assignment replaces the old one.
func (l *Leader) Assign(...Assignment) {}

// Unassign makes partitions RoleWait again.
func (l *Leader) Unassign(...protocol.PartitionID) {}

// Status returns a snapshot of a partition that we lead.
func (l *Leader) Status(protocol.PartitionID) (Status, bool) { return Status{}, false }

// Statuses returns snapshots of all partitions that we lead.
func (l *Leader) Statuses() map[protocol.PartitionID]Status { return nil }

// Changed returns a channel that is closed at the next change that a manager acts on.
func (l *Leader) Changed() <-chan struct{} { return nil }

// Fetch answers a follower's fetch.
func (l *Leader) Fetch(ctx context.Context, req *kmsg.FetchRequest, nodeID int32) (*Reply, error) {
	return nil, nil
}

// EpochEnd answers OffsetForLeaderEpoch as leader: the largest epoch at or below the asked one and where it ends.
func (l *Leader) EpochEnd(id protocol.PartitionID, epoch int32) (e int32, end int64, ok bool) {
	return -1, -1, false
}

// HighWatermark returns the high watermark; false while it is not known.
func (l *Leader) HighWatermark(id protocol.PartitionID) (int64, bool) { return -1, false }

// Reply is a Fetch answer whose record bytes are slices of the windows.
type Reply struct{}

// Buffers returns the whole answer, size prefix and response header included, to be written at once.
func (r *Reply) Buffers(corr int32) net.Buffers { return nil }
