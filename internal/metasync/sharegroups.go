package metasync

import (
	"context"
	"errors"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// shareGroups brings the start offsets of share groups (KIP-932) to where they are at the source. Records that were acknowledged above
// the start offset are handed out again: no API tells them.
func (j *job) shareGroups(ctx context.Context) error {
	return j.syncOffsets(ctx, flavor{kind: ShareGroups, share: true, read: (*offsetSync).fetchStarts, write: (*offsetSync).alterStarts,
		leaderEpoch: func(protocol.TopicPartition) int32 { return -1 }})
}

// fetchStarts reads the start offsets of share groups. A group that is not there has none; a cluster that knows no share groups is no
// error.
func (o *offsetSync) fetchStarts(ctx context.Context, side side, groups []string, flow flow, a *answers) {
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	for _, g := range groups {
		rg := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
		rg.GroupID = g
		req.Groups = append(req.Groups, rg)
	}
	fail := func(group string, err error) {
		if !unsupported(err) {
			a.fail(group, err)
			return
		}
		o.count(func() { o.unsupported = true })
		a.put(group, commits{})
	}
	o.ask(ctx, side.client, req, func(r kmsg.Response) {
		for _, g := range r.(*kmsg.DescribeShareGroupOffsetsResponse).Groups {
			err := kerr.ErrorForCode(g.ErrorCode)
			if err != nil && err != kerr.GroupIDNotFound {
				fail(g.GroupID, err)
				continue
			}
			c := commits{}
			for _, t := range g.Topics {
				for _, p := range t.Partitions {
					tp := protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}
					if !flow.has(tp, side, t.TopicID) {
						continue
					}
					if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
						fail(g.GroupID, err)
					} else if p.StartOffset >= 0 {
						c[tp] = commit{p.StartOffset, -1, ""}
					}
				}
			}
			a.put(g.GroupID, c)
		}
	}, func(part kmsg.Request, _ int32, err error) {
		for _, g := range part.(*kmsg.DescribeShareGroupOffsetsRequest).Groups {
			fail(g.GroupID, err)
		}
	})
}

// unsupported reports whether a cluster has no share groups, or not the API (Kafka before 4.1), for which the client has no error
// value of its own.
func unsupported(err error) bool {
	return errors.Is(err, kerr.UnsupportedVersion) || strings.Contains(err.Error(), "request key is unknown") ||
		strings.Contains(err.Error(), "broker is too old")
}

// alterStarts sets start offsets; the coordinator refuses it while the group has members, and makes the group where it is not there.
func (o *offsetSync) alterStarts(
	ctx context.Context, coordinator *kgo.Broker, group string, put commits, _ flow,
) (map[protocol.TopicPartition]int16, error) {
	req := kmsg.NewPtrAlterShareGroupOffsetsRequest()
	req.GroupID = group
	for topic, partitions := range byTopic(put) {
		rt := kmsg.NewAlterShareGroupOffsetsRequestTopic()
		rt.Topic = topic
		for _, p := range partitions {
			rp := kmsg.NewAlterShareGroupOffsetsRequestTopicPartition()
			rp.Partition, rp.StartOffset = p, put[protocol.TopicPartition{Topic: topic, Partition: p}].offset
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
	}
	r, err := coordinator.Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := r.(*kmsg.AlterShareGroupOffsetsResponse)
	codes := map[protocol.TopicPartition]int16{}
	if resp.ErrorCode != 0 {
		for tp := range put {
			codes[tp] = resp.ErrorCode
		}
		return codes, nil
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			codes[protocol.TopicPartition{Topic: t.Topic, Partition: p.Partition}] = p.ErrorCode
		}
	}
	return codes, nil
}
