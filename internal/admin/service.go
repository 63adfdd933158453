package admin

import (
	"context"
	"encoding/json"
	"time"
)

// Service is what the admin listener serves. Errors that are an *Error reach the operator as they are; any other becomes
// UNKNOWN_SERVER_ERROR with its text. Implementations must be safe for concurrent use.
type Service interface {
	// CreateMirror stores a definition after its source has been reached. A definition equal to the stored one is no error.
	CreateMirror(ctx context.Context, name string, config map[string]string) error
	// StartTopics starts mirroring topics of the source. One result per topic that matched; the error is about the request.
	StartTopics(ctx context.Context, req StartRequest) ([]TopicResult, error)
	// ListMirrors returns all mirrors; topic names only when asked for.
	ListMirrors(ctx context.Context, withTopics bool) ([]MirrorInfo, error)
	// Describe returns partitions sorted by mirror, topic, partition.
	Describe(ctx context.Context, req DescribeRequest) ([]PartitionInfo, error)
	// Call runs a verb that KIP-1279 has no RPC for (verify steps).
	Call(ctx context.Context, verb string, payload json.RawMessage) (json.RawMessage, error)
}

// StartRequest asks for mirroring. Topics and Exclude hold literal names or /re/ (see Matcher).
type StartRequest struct {
	Mirror            string
	Topics, Exclude   []string
	Overwrite, DryRun bool
}

// TopicResult is the outcome, or with DryRun the plan, for one topic. Err is nil when it went well.
type TopicResult struct {
	Topic string `json:"topic"`
	// Partitions is the partition count at the source, 0 when unknown.
	Partitions int32 `json:"partitions"`
	// Plan is set by DryRun only.
	Plan *TopicPlan `json:"plan,omitempty"`
	Err  *Error     `json:"error,omitempty"`
}

// TopicPlan says what starting a topic would do.
type TopicPlan struct {
	// Create: the topic does not exist at the destination yet.
	Create     bool            `json:"create"`
	Partitions []PartitionPlan `json:"partitions"`
	// Requests are the requests that would be sent, one line each, in order.
	Requests []string `json:"requests"`
}

// PartitionPlan counts records (by offsets) of one partition; unknown = -1.
type PartitionPlan struct {
	Partition int32 `json:"partition"`
	// Lost are records that exist nowhere else afterwards, Truncated all those removed from the destination, Copied those
	// fetched from the source.
	Lost      int64 `json:"lost"`
	Truncated int64 `json:"truncated"`
	Copied    int64 `json:"copied"`
}

// MirrorInfo is a line of list.
type MirrorInfo struct {
	Mirror          string `json:"mirror"`
	SourceBootstrap string `json:"source_bootstrap_server"`
	SourceClusterID string `json:"source_cluster_id"`
	// TopicCount leaves out paused and stopped topics; Topics holds paused ones too and is nil unless asked for.
	TopicCount int32    `json:"topics"`
	Topics     []string `json:"topic_names,omitempty"`
}

// DescribeRequest selects partitions: of the named mirrors (none: all), of topics that match (none: all).
type DescribeRequest struct {
	Mirrors []string
	Topics  []string
}

// PartitionInfo is an element of describe -o json. A nil pointer is a value that is not known.
type PartitionInfo struct {
	Mirror            string     `json:"mirror"`
	Topic             string     `json:"topic"`
	Partition         int32      `json:"partition"`
	State             string     `json:"state"`
	StateSince        *time.Time `json:"state_since"`
	SourceTopicID     *string    `json:"source_topic_id"`
	TopicID           *string    `json:"topic_id"`
	SourceOffset      *int64     `json:"source_offset"`
	DestinationOffset *int64     `json:"destination_offset"`
	Lag               *int64     `json:"lag"`
	LagBytes          *int64     `json:"lag_bytes"`
	LagSeconds        *float64   `json:"lag_seconds"`
	SourceEpoch       *int32     `json:"source_epoch"`
	DestinationEpoch  *int32     `json:"destination_epoch"`
	LastMirroredEpoch *int32     `json:"last_mirrored_epoch"`
	Locked            *bool      `json:"locked"`
	LeaderNode        *int32     `json:"leader_node"`
	Process           *string    `json:"process"`
	// ISRReal are the in-sync replicas that are real brokers.
	ISRReal []int32 `json:"isr_real"`
	Retry   int16   `json:"retry"`
	Error   *string `json:"error"`
	Hint    *string `json:"hint"`
}

// Verb and payloads of verify. The client asks partition by partition with the cursor of the last answer until Done.
const VerbVerify = "verify"

// VerifyRequest is one step of a verification.
type VerifyRequest struct {
	Mirror    string `json:"mirror"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	// Cursor is empty in the first step, later what the last answer held; it is opaque to the client.
	Cursor string `json:"cursor,omitempty"`
	// SinceMS is the Unix time in milliseconds from which batches are compared, 0 for all.
	SinceMS int64 `json:"since_ms,omitempty"`
	// MaxRate is a bound in bytes per second for both sides together, 0 for none.
	MaxRate int64 `json:"max_rate,omitempty"`
}

// VerifyResponse is the outcome of one step. Batches, Differ and Bytes count this step only.
type VerifyResponse struct {
	Cursor  string      `json:"cursor"`
	Done    bool        `json:"done"`
	Batches int64       `json:"batches"`
	Differ  int64       `json:"differ"`
	Bytes   int64       `json:"bytes"`
	First   *Difference `json:"first,omitempty"`
	// Note tells why less than everything was compared (cleaner at work, log start moved), empty when all was.
	Note string `json:"note,omitempty"`
}

// Difference is where the two sides differ: Source and Destination describe the same batch, empty where it is missing.
type Difference struct {
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	Offset      int64  `json:"offset"`
	Field       string `json:"field"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
}
