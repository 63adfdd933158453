package admin

import (
	"context"
	"encoding/json"
	"fmt"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// StopTopics implements Service.
func (c *Client) StopTopics(ctx context.Context, stop StopRequest) ([]TopicResult, error) {
	names, patterns := splitPatterns(stop.Topics)
	if stop.All {
		patterns = append(patterns, everyTopic)
	}
	opts := stopOptions{Drain: stop.Drain, Force: stop.Force, DryRun: stop.DryRun}
	if stop.MaxLoss != -1 {
		opts.MaxLoss = &stop.MaxLoss
	}
	req := &kip1279.StopMirrorTopicsRequest{MirrorName: stop.Mirror, Topics: named(names), StateValidationOffset: -1,
		Patterns: patterns, Options: mustJSON(opts)}
	resp := &kip1279.StopMirrorTopicsResponse{}
	if err := c.call(ctx, req, resp); err != nil {
		return nil, err
	}
	return topicAnswer(resp.Topics, &resp.Status, resp.Extra)
}

func named(names []string) []kip1279.NamedTopic {
	out := make([]kip1279.NamedTopic, 0, len(names))
	for _, n := range names {
		out = append(out, kip1279.NamedTopic{TopicName: n})
	}
	return out
}

// topicsFields are the parts of a TopicsRequest as the messages have them.
func topicsFields(req TopicsRequest) (topics []kip1279.NamedTopic, options []byte) {
	names, patterns := splitPatterns(req.Topics)
	return named(names), mustJSON(topicsOptions{Patterns: patterns, DryRun: req.DryRun, Strict: req.Strict})
}

// PauseTopics implements Service.
func (c *Client) PauseTopics(ctx context.Context, pause TopicsRequest) ([]TopicResult, error) {
	topics, options := topicsFields(pause)
	resp := &kip1279.PauseMirrorTopicsResponse{}
	if err := c.call(ctx, &kip1279.PauseMirrorTopicsRequest{MirrorName: pause.Mirror, Topics: topics, StateValidationOffset: -1,
		Options: options}, resp); err != nil {
		return nil, err
	}
	return topicAnswer(resp.Topics, &resp.Status, resp.Extra)
}

// ResumeTopics implements Service.
func (c *Client) ResumeTopics(ctx context.Context, resume TopicsRequest) ([]TopicResult, error) {
	topics, options := topicsFields(resume)
	resp := &kip1279.ResumeMirrorTopicsResponse{}
	if err := c.call(ctx, &kip1279.ResumeMirrorTopicsRequest{MirrorName: resume.Mirror, Topics: topics, StateValidationOffset: -1,
		Options: options}, resp); err != nil {
		return nil, err
	}
	return topicAnswer(resp.Topics, &resp.Status, resp.Extra)
}

// RecoverTopics implements Service.
func (c *Client) RecoverTopics(ctx context.Context, again TopicsRequest) ([]TopicResult, error) {
	topics, options := topicsFields(again)
	resp := &kip1279.RecoverMirrorTopicsResponse{}
	if err := c.call(ctx, &kip1279.RecoverMirrorTopicsRequest{MirrorName: again.Mirror, Topics: topics, Options: options},
		resp); err != nil {
		return nil, err
	}
	return topicAnswer(resp.Topics, &resp.Status, resp.Extra)
}

// DeleteMirror implements Service.
func (c *Client) DeleteMirror(ctx context.Context, del DeleteRequest) error {
	req := &kip1279.DeleteClusterMirrorRequest{MirrorName: del.Mirror, StateValidationOffset: -1,
		Options: mustJSON(deleteOptions{DryRun: del.DryRun})}
	resp := &kip1279.DeleteClusterMirrorResponse{}
	if err := c.call(ctx, req, resp); err != nil {
		return err
	}
	return statusError(&resp.Status, resp.Extra)
}

// Retire implements Service.
func (c *Client) Retire(ctx context.Context, req RetireRequest) (RetireResult, error) {
	var out RetireResult
	answer, err := c.Call(ctx, VerbRetire, mustJSON(req))
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return out, fmt.Errorf("the answer to retire is not readable: %w", err)
	}
	return out, nil
}

// BumpLeaderEpochs implements Service.
func (c *Client) BumpLeaderEpochs(
	ctx context.Context, minimum map[protocol.PartitionID]int32,
) (map[protocol.PartitionID]error, error) {
	req := &kip1279.BumpLeaderEpochsRequest{}
	for _, id := range sortedIDs(minimum) {
		if n := len(req.Topics); n == 0 || req.Topics[n-1].TopicID != id.Topic {
			req.Topics = append(req.Topics, kip1279.BumpTopic{TopicID: id.Topic})
		}
		t := &req.Topics[len(req.Topics)-1]
		t.Partitions = append(t.Partitions, kip1279.BumpPartition{PartitionIndex: id.Partition, MinLeaderEpoch: minimum[id]})
	}
	resp := &kip1279.BumpLeaderEpochsResponse{}
	if err := c.call(ctx, req, resp); err != nil {
		return nil, err
	}
	out := map[protocol.PartitionID]error{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			var x errorExtra
			if err := readExtra(p.Extra, &x); err != nil {
				return nil, err
			}
			if e := outcomeError(p.ErrorCode, p.ErrorMessage, x); e != nil {
				out[protocol.PartitionID{Topic: t.TopicID, Partition: p.PartitionIndex}] = e
			}
		}
	}
	return out, statusError(&resp.Status, resp.Extra)
}

// LastMirrorEpochs implements Service. Partitions that the answer leaves out are -1: nothing is remembered there.
func (c *Client) LastMirrorEpochs(
	ctx context.Context, sourceClusterID string, parts []protocol.PartitionID,
) (map[protocol.PartitionID]int32, error) {
	out := map[protocol.PartitionID]int32{}
	for _, id := range parts {
		out[id] = -1
	}
	req := &kip1279.DescribeClusterMirrorsRequest{ClusterID: &sourceClusterID}
	for _, id := range sortedIDs(out) {
		if n := len(req.Lookups); n == 0 || req.Lookups[n-1].TopicID != id.Topic {
			req.Lookups = append(req.Lookups, kip1279.EpochLookup{TopicID: id.Topic})
		}
		l := &req.Lookups[len(req.Lookups)-1]
		l.Partitions = append(l.Partitions, id.Partition)
	}
	resp := &kip1279.DescribeClusterMirrorsResponse{}
	if err := c.call(ctx, req, resp); err != nil {
		return nil, err
	}
	for _, l := range resp.LookupResults {
		for _, p := range l.Partitions {
			id := protocol.PartitionID{Topic: l.TopicID, Partition: p.PartitionIndex}
			if _, asked := out[id]; asked {
				out[id] = max(out[id], p.LastMirrorEpoch)
			}
		}
	}
	return out, statusError(&resp.Status, resp.Extra)
}
