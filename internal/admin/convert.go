package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"kmirror/protocol/kip1279"
)

// errorExtra is kmirror's tagged field next to an error.
type errorExtra struct {
	Hint string `json:"hint,omitempty"`
	Exit int    `json:"exit,omitempty"`
}

// topicExtra is kmirror's tagged field of a topic's outcome.
type topicExtra struct {
	errorExtra
	Partitions int32      `json:"partitions,omitempty"`
	Plan       *TopicPlan `json:"plan,omitempty"`
}

// startOptions is kmirror's tagged field of StartMirrorTopics.
type startOptions struct {
	Overwrite bool     `json:"overwrite,omitempty"`
	DryRun    bool     `json:"dry_run,omitempty"`
	Exclude   []string `json:"exclude,omitempty"`
}

// stopOptions is kmirror's tagged field of StopMirrorTopics. Without MaxLoss there is no bound.
type stopOptions struct {
	Drain   bool   `json:"drain,omitempty"`
	Force   bool   `json:"force,omitempty"`
	DryRun  bool   `json:"dry_run,omitempty"`
	MaxLoss *int64 `json:"max_loss,omitempty"`
}

// topicsOptions is kmirror's tagged field of Pause-, Resume- and RecoverMirrorTopics, which have no field for patterns.
type topicsOptions struct {
	Patterns []string `json:"patterns,omitempty"`
	DryRun   bool     `json:"dry_run,omitempty"`
	Strict   bool     `json:"strict,omitempty"`
}

// createOptions is kmirror's tagged field of CreateClusterMirror.
type createOptions struct {
	Repeatable bool `json:"repeatable,omitempty"`
}

// deleteOptions is kmirror's tagged field of DeleteClusterMirror.
type deleteOptions struct {
	DryRun bool `json:"dry_run,omitempty"`
}

// describeOptions is kmirror's tagged field of DescribeClusterMirrors.
type describeOptions struct {
	Topics []string `json:"topics,omitempty"`
}

// listedExtra is kmirror's tagged field of a listed mirror.
type listedExtra struct {
	Properties map[string]string `json:"properties,omitempty"`
}

// partitionExtra is kmirror's tagged field of a described partition: what the KIP has no field for.
type partitionExtra struct {
	StateSince        *time.Time `json:"state_since"`
	SourceTopicID     *string    `json:"source_topic_id"`
	TopicID           *string    `json:"topic_id"`
	LagBytes          *int64     `json:"lag_bytes"`
	LagSeconds        *float64   `json:"lag_seconds"`
	SourceAgeSeconds  *float64   `json:"source_age_seconds"`
	SourceEpoch       *int32     `json:"source_epoch"`
	DestinationEpoch  *int32     `json:"destination_epoch"`
	LastMirroredEpoch *int32     `json:"last_mirrored_epoch"`
	Locked            *bool      `json:"locked"`
	LeaderNode        *int32     `json:"leader_node"`
	Process           *string    `json:"process"`
	ISRReal           []int32    `json:"isr_real"`
	Hint              *string    `json:"hint"`
}

// asError turns any error into what the operator is to see.
func asError(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		out := *e
		if out.Code == kip1279.None {
			out.Code = kip1279.UnknownServerError
		}
		return &out
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &Error{Code: kip1279.RequestTimedOut, Message: "kmirror gave up waiting: " + err.Error(),
			Hint: "the same command again attaches to what is under way", Exit: ExitIncomplete}
	}
	return &Error{Code: kip1279.UnknownServerError, Message: err.Error(), Hint: "the log of kmirror serve tells more"}
}

// setStatus writes an error into a response; extra is where its hint goes, nil where there is no place for one.
func setStatus(s *kip1279.Status, extra *[]byte, err error) {
	if err == nil {
		return
	}
	e := asError(err)
	s.ErrorCode, s.ErrorMessage = e.Code, &e.Message
	if extra != nil {
		*extra = mustJSON(errorExtra{Hint: e.Hint, Exit: e.Exit})
	}
}

// statusError reads an error out of a response, nil when there is none.
func statusError(s *kip1279.Status, extra []byte) error {
	var x errorExtra
	if err := readExtra(extra, &x); err != nil {
		return err
	}
	if e := outcomeError(s.ErrorCode, s.ErrorMessage, x); e != nil {
		return e
	}
	return nil
}

func outcomeError(code int16, message *string, x errorExtra) *Error {
	if code == kip1279.None {
		return nil
	}
	e := &Error{Code: code, Message: kip1279.ErrorName(code), Hint: x.Hint, Exit: x.Exit}
	if message != nil && *message != "" {
		e.Message = *message
	}
	return e
}

// outcomesTo encodes the results for topics and counts those that were refused.
func outcomesTo(results []TopicResult) (out []kip1279.TopicOutcome, refused int) {
	for _, r := range results {
		o := kip1279.TopicOutcome{Name: r.Topic}
		x := topicExtra{Partitions: r.Partitions, Plan: r.Plan}
		if r.Err != nil {
			e := asError(r.Err)
			o.ErrorCode, o.ErrorMessage = e.Code, &e.Message
			x.errorExtra = errorExtra{Hint: e.Hint, Exit: e.Exit}
			refused++
		}
		o.Extra = mustJSON(x)
		out = append(out, o)
	}
	return out, refused
}

// outcomesFrom decodes the results for topics.
func outcomesFrom(outcomes []kip1279.TopicOutcome) ([]TopicResult, error) {
	var out []TopicResult
	for _, t := range outcomes {
		var x topicExtra
		if err := readExtra(t.Extra, &x); err != nil {
			return nil, err
		}
		out = append(out, TopicResult{Topic: t.Name, Partitions: x.Partitions, Plan: x.Plan,
			Err: outcomeError(t.ErrorCode, t.ErrorMessage, x.errorExtra)})
	}
	return out, nil
}

// mustJSON encodes types of this file, which have nothing that can't be encoded except numbers that are not finite; those
// are kept out by partitionTo.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}

// readOptions reads kmirror's tagged field of a request.
func readOptions(b []byte, v any) error {
	if err := readExtra(b, v); err != nil {
		return usage(err.Error(), "use a kmirror command of this version")
	}
	return nil
}

func readExtra(b []byte, v any) error {
	if len(b) == 0 {
		return nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("tagged field %d is not readable: %w", kip1279.FirstOwnTag, err)
	}
	return nil
}

// partitionTo encodes a partition; the KIP's own fields say -1 for what is not known.
func partitionTo(p PartitionInfo) kip1279.DescribedPartition {
	if p.LagSeconds != nil && (math.IsNaN(*p.LagSeconds) || math.IsInf(*p.LagSeconds, 0)) {
		p.LagSeconds = nil
	}
	return kip1279.DescribedPartition{
		PartitionIndex: p.Partition, SourceOffset: orUnknown(p.SourceOffset), DestinationOffset: orUnknown(p.DestinationOffset),
		Lag: orUnknown(p.Lag), StateValue: p.State, RetryAttempt: p.Retry, ErrorMessage: p.Error,
		Extra: mustJSON(partitionExtra{
			StateSince: p.StateSince, SourceTopicID: p.SourceTopicID, TopicID: p.TopicID, LagBytes: p.LagBytes,
			LagSeconds: p.LagSeconds, SourceAgeSeconds: p.SourceAgeSeconds, SourceEpoch: p.SourceEpoch, DestinationEpoch: p.DestinationEpoch,
			LastMirroredEpoch: p.LastMirroredEpoch, Locked: p.Locked, LeaderNode: p.LeaderNode, Process: p.Process,
			ISRReal: p.ISRReal, Hint: p.Hint,
		}),
	}
}

func partitionFrom(mirror, topic string, d kip1279.DescribedPartition) (PartitionInfo, error) {
	var x partitionExtra
	if err := readExtra(d.Extra, &x); err != nil {
		return PartitionInfo{}, err
	}
	return PartitionInfo{
		Mirror: mirror, Topic: topic, Partition: d.PartitionIndex, State: d.StateValue, StateSince: x.StateSince,
		SourceTopicID: x.SourceTopicID, TopicID: x.TopicID, SourceOffset: known(d.SourceOffset),
		DestinationOffset: known(d.DestinationOffset), Lag: known(d.Lag), LagBytes: x.LagBytes, LagSeconds: x.LagSeconds,
		SourceAgeSeconds: x.SourceAgeSeconds,
		SourceEpoch:      x.SourceEpoch, DestinationEpoch: x.DestinationEpoch, LastMirroredEpoch: x.LastMirroredEpoch,
		Locked: x.Locked, LeaderNode: x.LeaderNode, Process: x.Process, ISRReal: x.ISRReal, Retry: d.RetryAttempt,
		Error: d.ErrorMessage, Hint: x.Hint,
	}, nil
}

func orUnknown(v *int64) int64 {
	if v == nil {
		return -1
	}
	return *v
}

func known(v int64) *int64 {
	if v < 0 {
		return nil
	}
	return &v
}
