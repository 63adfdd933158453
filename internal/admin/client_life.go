package admin

import (
	"context"

	"kmirror/protocol"
)

func (c *Client) StopTopics(ctx context.Context, req StopRequest) ([]TopicResult, error) {
	return nil, nil
}
func (c *Client) PauseTopics(ctx context.Context, req TopicsRequest) ([]TopicResult, error) {
	return nil, nil
}
func (c *Client) ResumeTopics(ctx context.Context, req TopicsRequest) ([]TopicResult, error) {
	return nil, nil
}
func (c *Client) RecoverTopics(ctx context.Context, req TopicsRequest) ([]TopicResult, error) {
	return nil, nil
}
func (c *Client) DeleteMirror(ctx context.Context, req DeleteRequest) error { return nil }
func (c *Client) Retire(ctx context.Context, req RetireRequest) (RetireResult, error) {
	return RetireResult{}, nil
}
func (c *Client) BumpLeaderEpochs(ctx context.Context, minimum map[protocol.PartitionID]int32) (map[protocol.PartitionID]error, error) {
	return nil, nil
}
func (c *Client) LastMirrorEpochs(ctx context.Context, sourceClusterID string, parts []protocol.PartitionID) (map[protocol.PartitionID]int32, error) {
	return nil, nil
}
