package mirror

import (
	"context"

	"kmirror/internal/admin"
	"kmirror/protocol"
)

func (m *Manager) StopTopics(ctx context.Context, req admin.StopRequest) ([]admin.TopicResult, error) {
	return nil, nil
}
func (m *Manager) PauseTopics(ctx context.Context, req admin.TopicsRequest) ([]admin.TopicResult, error) {
	return nil, nil
}
func (m *Manager) ResumeTopics(ctx context.Context, req admin.TopicsRequest) ([]admin.TopicResult, error) {
	return nil, nil
}
func (m *Manager) RecoverTopics(ctx context.Context, req admin.TopicsRequest) ([]admin.TopicResult, error) {
	return nil, nil
}
func (m *Manager) DeleteMirror(ctx context.Context, req admin.DeleteRequest) error { return nil }
func (m *Manager) Retire(ctx context.Context, req admin.RetireRequest) (admin.RetireResult, error) {
	return admin.RetireResult{}, nil
}
func (m *Manager) BumpLeaderEpochs(ctx context.Context, minimum map[protocol.PartitionID]int32) (map[protocol.PartitionID]error, error) {
	return nil, nil
}
func (m *Manager) LastMirrorEpochs(ctx context.Context, sourceClusterID string, parts []protocol.PartitionID) (map[protocol.PartitionID]int32, error) {
	return nil, nil
}
