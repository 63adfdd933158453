package unlock

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// lists are replica lists by partition, nil for "cancel".
type lists map[protocol.TopicPartition][]int32

// assign sends replica lists and returns what was refused. That there was nothing to cancel is no error.
func (u *Unlocker) assign(ctx context.Context, l lists) (map[protocol.TopicPartition]error, error) {
	if len(l) == 0 {
		return nil, nil
	}
	var req kadm.AlterPartitionAssignmentsReq
	for tp, list := range l {
		req.Assign(tp.Topic, tp.Partition, list)
	}
	resp, err := u.adm.AlterPartitionAssignments(ctx, req)
	if err != nil {
		return nil, unreachable("reassignment", err)
	}
	out := map[protocol.TopicPartition]error{}
	resp.Each(func(r kadm.AlterPartitionAssignmentsResponse) {
		if r.Err != nil && r.Err != kerr.NoReassignmentInProgress {
			out[protocol.TopicPartition{Topic: r.Topic, Partition: r.Partition}] = fmt.Errorf("%w: %s", r.Err, r.ErrMessage)
		}
	})
	return out, nil
}

// configure gives one config of topics its value, "" to remove it, and returns what was refused.
func (u *Unlocker) configure(ctx context.Context, key string, values map[string]string) (map[string]error, error) {
	if len(values) == 0 {
		return nil, nil
	}
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, name
		c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		c.Name, c.Op = key, kmsg.IncrementalAlterConfigOpDelete
		if v := values[name]; v != "" {
			c.Op, c.Value = kmsg.IncrementalAlterConfigOpSet, &v
		}
		r.Configs = append(r.Configs, c)
		req.Resources = append(req.Resources, r)
	}
	resp, err := req.RequestWith(ctx, u.client)
	if err != nil {
		return nil, unreachable("change of configs", err)
	}
	out := map[string]error{}
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			text := ""
			if r.ErrorMessage != nil {
				text = *r.ErrorMessage
			}
			out[r.ResourceName] = fmt.Errorf("%w: %s", err, text)
		}
	}
	return out, nil
}
