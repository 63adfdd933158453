package admin

import (
	"context"
	"encoding/json"
	"time"

	"kmirror/protocol"
)

// Service is what the admin listener serves. Errors that are an *Error reach the operator as they are; any other becomes
// UNKNOWN_SERVER_ERROR with its text. Implementations must be safe for concurrent use.
type Service interface {
	// CreateMirror stores a definition after its source has been reached. A definition equal to the stored one is no error.
	CreateMirror(ctx context.Context, name string, config map[string]string) error
	// AlterMirror gives a mirror other properties, or changes some. Where connections are to be made anew, the same source must answer
	// with them.
	AlterMirror(ctx context.Context, req AlterRequest) (AlterResult, error)
	// MirrorConfig returns a mirror's properties, with mirror.source.cluster.id among them.
	MirrorConfig(ctx context.Context, mirror string) (map[string]string, error)
	// SyncStatus tells how the sync of metadata stands, of the mirrors named (none: all); for each mirror in the order of a round.
	SyncStatus(ctx context.Context, mirrors []string) ([]SyncInfo, error)
	// StartTopics starts mirroring topics of the source. One result per topic that matched; the error is about the request.
	StartTopics(ctx context.Context, req StartRequest) ([]TopicResult, error)
	// StopTopics ends mirroring and makes topics writable (failover; with Drain promote). It returns once each topic is accepted or
	// refused; the work goes on in the background and shows in Describe. A topic that stops or is STOPPED already is accepted.
	StopTopics(ctx context.Context, req StopRequest) ([]TopicResult, error)
	// PauseTopics, ResumeTopics and RecoverTopics change what is wanted of topics, by the KIP's gates.
	PauseTopics(ctx context.Context, req TopicsRequest) ([]TopicResult, error)
	ResumeTopics(ctx context.Context, req TopicsRequest) ([]TopicResult, error)
	RecoverTopics(ctx context.Context, req TopicsRequest) ([]TopicResult, error)
	// DeleteMirror removes a definition whose topics are all STOPPED, and what is remembered of them. Topics stay as they are.
	DeleteMirror(ctx context.Context, req DeleteRequest) error
	// Retire hands back all partitions that name ids of the process, takes the ids out of every replica list, unregisters them
	// and ends the process. It returns once no replica list names them; the ids vanish with the process.
	Retire(ctx context.Context, req RetireRequest) (RetireResult, error)
	// BumpLeaderEpochs raises leader epochs of mirror partitions: new = max(minimum + 1, current). The result holds an error
	// for each that was not raised.
	BumpLeaderEpochs(ctx context.Context, minimum map[protocol.PartitionID]int32) (map[protocol.PartitionID]error, error)
	// LastMirrorEpochs answers another cluster's kmirror: the last mirrored epoch of partitions that were mirrored from the
	// cluster of that id, by the topic ids of that cluster; -1 where nothing is remembered.
	LastMirrorEpochs(ctx context.Context, sourceClusterID string, parts []protocol.PartitionID) (map[protocol.PartitionID]int32, error)
	// ListMirrors returns all mirrors; topic names, and properties, only when asked for.
	ListMirrors(ctx context.Context, withTopics bool) ([]MirrorInfo, error)
	// Describe returns partitions sorted by mirror, topic, partition.
	Describe(ctx context.Context, req DescribeRequest) ([]PartitionInfo, error)
	// Call runs a verb that KIP-1279 has no RPC for (verify steps); VerbRetire does not come this way.
	Call(ctx context.Context, verb string, payload json.RawMessage) (json.RawMessage, error)
}

// StartRequest asks for mirroring. Topics and Exclude hold literal names or /re/ (see Matcher).
type StartRequest struct {
	Mirror            string
	Topics, Exclude   []string
	Overwrite, DryRun bool
	// TopicIDs are ids that topics are expected to have at the source, by their names; those that are not named may have any.
	TopicIDs map[string]protocol.UUID
}

// TopicsRequest names topics of a mirror: literal names or /re/ (see Matcher), matched against those that it mirrors.
type TopicsRequest struct {
	Mirror string
	Topics []string
	DryRun bool
	// Strict refuses topics that are as wanted already, as KIP-1279 does; without it they are accepted, so that a request may be repeated.
	Strict bool
}

// StopRequest asks for the end of mirroring.
type StopRequest struct {
	Mirror string
	Topics []string
	// All stands for every topic of the mirror.
	All bool
	// Drain: the stop begins once the destination has all of the source, which must answer and rest (promote).
	Drain bool
	// MaxLoss refuses topics that would lose more records, -1 for no bound. The loss is what the source is known to have beyond
	// the replicas of the destination; where that is not known it counts as more than any bound.
	MaxLoss int64
	// Force stops partitions too whose copy is not complete (PREPARING).
	Force  bool
	DryRun bool
}

// DeleteRequest asks for a mirror's end.
type DeleteRequest struct {
	Mirror string
	DryRun bool
}

// RetireRequest asks the process to leave the destination for good. NodeIDs must be all of its own. With Failover mirrors that
// are active are stopped first, without it they are a reason to refuse.
type RetireRequest struct {
	NodeIDs  []int32 `json:"node_ids"`
	Failover bool    `json:"failover,omitempty"`
	DryRun   bool    `json:"dry_run,omitempty"`
}

// RetireResult says what was, or with DryRun would be, done.
type RetireResult struct {
	// Partitions were handed back; Stopped topics are those that had been active.
	Partitions int      `json:"partitions"`
	Stopped    []string `json:"stopped"`
	// Remains is what stays behind at the destination.
	Remains []string `json:"remains"`
	// Process is the advertised admin address of the process that leaves; it is closed once the ids are unregistered.
	Process string `json:"process"`
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

// TopicPlan says what a change of a topic would do.
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
	// Lag are records that the source is known to have beyond the destination, -1 when it does not answer.
	Lag int64 `json:"lag"`
}

// MirrorInfo is a line of list.
type MirrorInfo struct {
	Mirror          string `json:"mirror"`
	SourceBootstrap string `json:"source_bootstrap_server"`
	SourceClusterID string `json:"source_cluster_id"`
	// TopicCount leaves out paused and stopped topics; Topics holds paused ones too and is nil unless asked for.
	TopicCount int32    `json:"topics"`
	Topics     []string `json:"topic_names,omitempty"`
	// Properties are those of the mirror file, nil unless topics were asked for; secrets are references, which are not resolved.
	Properties map[string]string `json:"properties,omitempty"`
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
	// SourceAgeSeconds is how long ago the source last said where its log ends: SourceOffset and the lags are those of then.
	SourceAgeSeconds  *float64 `json:"source_age_seconds"`
	SourceEpoch       *int32   `json:"source_epoch"`
	DestinationEpoch  *int32   `json:"destination_epoch"`
	LastMirroredEpoch *int32   `json:"last_mirrored_epoch"`
	Locked            *bool    `json:"locked"`
	LeaderNode        *int32   `json:"leader_node"`
	Process           *string  `json:"process"`
	// ISRReal are the in-sync replicas that are real brokers.
	ISRReal []int32 `json:"isr_real"`
	Retry   int16   `json:"retry"`
	Error   *string `json:"error"`
	Hint    *string `json:"hint"`
	// Sync is how the sync of the mirror's metadata stands, by kind; it is the same for all partitions of a mirror.
	Sync map[string]SyncState `json:"sync"`
}

// VerbRetire is the private verb of Retire: RetireRequest and RetireResult are its payloads.
const VerbRetire = "retire"

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
