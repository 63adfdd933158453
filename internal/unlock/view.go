package unlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/filters"
	"kmirror/protocol"
)

// The two configs of the lock (facts 10 and 11 of docs/kafka-facts.md).
const (
	sizeConfig   = filters.SizeConfig
	minISRConfig = filters.MinISRConfig
)

// askLimit bounds a question to brokers of which some may be dead or hang.
const askLimit = 5 * time.Second

// topic is a topic as the destination shows it.
type topic struct {
	id    protocol.UUID
	parts []partition
	// size and minISR are the topic's own values of the locked configs, "" for none.
	size, minISR string
}

// brokers reads which brokers are alive. kadm would answer from what the client heard minutes ago.
func (u *Unlocker) brokers(ctx context.Context) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
	resp, err := req.RequestWith(ctx, u.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return unreachable("the destination's brokers", err)
	}
	u.cluster.live, u.cluster.addrs = map[int32]bool{}, map[int32]string{}
	if resp.ClusterID != nil {
		u.cluster.id = *resp.ClusterID
	}
	for _, b := range resp.Brokers {
		u.cluster.live[b.NodeID] = true
		u.cluster.addrs[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
	return nil
}

// findGuests asks all live brokers who they are: a kmirror answers DescribeConfigs for its ids itself and says so. One that does
// not answer is a guest only when its id was given.
func (u *Unlocker) findGuests(ctx context.Context) error {
	var live []int32
	for id := range u.cluster.live {
		live = append(live, id)
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	// Who does not answer is a shard error; what the others said counts.
	answers, _ := u.adm.DescribeBrokerConfigs(ctx, live...)
	for _, a := range answers {
		id, err := strconv.ParseInt(a.Name, 10, 32)
		if err != nil || a.Err != nil {
			continue
		}
		guest := slices.ContainsFunc(a.Configs, func(c kadm.Config) bool { return c.Key == "kmirror.version" })
		if guest {
			u.cluster.guests[int32(id)] = true
		} else if len(a.Configs) > 0 && u.cluster.guests[int32(id)] {
			return refused(fmt.Sprintf("broker %d is a real broker, but it is given as an id of kmirror", id),
				"correct node_ids in the configuration or --node-ids; nothing was changed")
		}
	}
	return nil
}

// topics reads topics: partitions with reassignments under way, and the two configs.
func (u *Unlocker) topics(ctx context.Context, names []string) (map[string]*topic, error) {
	out, err := u.partitions(ctx, names)
	if err != nil {
		return nil, err
	}
	set := kadm.TopicsSet{}
	for name, t := range out {
		for n := range t.parts {
			set.Add(name, int32(n))
		}
	}
	moving, err := u.adm.ListPartitionReassignments(ctx, set)
	if err != nil {
		return nil, unreachable("reassignments under way", err)
	}
	moving.Each(func(r kadm.ListPartitionReassignmentsResponse) {
		if t := out[r.Topic]; t != nil && int(r.Partition) < len(t.parts) {
			p := &t.parts[r.Partition]
			p.replicas, p.adding, p.removing = r.Replicas, r.AddingReplicas, r.RemovingReplicas
		}
	})
	configs, err := u.adm.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return nil, unreachable("configs of topics", err)
	}
	for _, r := range configs {
		t := out[r.Name]
		if t == nil {
			continue
		}
		if r.Err != nil {
			return nil, unreachable("configs of topic "+r.Name, r.Err)
		}
		t.size, t.minISR = own(r.Configs, sizeConfig), own(r.Configs, minISRConfig)
	}
	return out, nil
}

// own is the value that a topic itself has for a config.
func own(configs []kadm.Config, key string) string {
	for _, c := range configs {
		if c.Key == key && c.Source == kmsg.ConfigSourceDynamicTopicConfig {
			return c.MaybeValue()
		}
	}
	return ""
}

// partitions asks DescribeTopicPartitions, which alone among the ordinary APIs shows eligible leader replicas. A topic that is
// gone is left out.
func (u *Unlocker) partitions(ctx context.Context, names []string) (map[string]*topic, error) {
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	for _, name := range slices.Sorted(slices.Values(names)) {
		t := kmsg.NewDescribeTopicPartitionsRequestTopic()
		t.Topic = name
		req.Topics = append(req.Topics, t)
	}
	out := map[string]*topic{}
	for {
		resp, err := req.RequestWith(ctx, u.client)
		if err != nil {
			return nil, unreachable("partitions of topics", err)
		}
		for _, rt := range resp.Topics {
			if err := take(out, rt); err != nil {
				return nil, err
			}
		}
		next := resp.NextCursor
		if next == nil {
			return out, nil
		}
		if req.Cursor != nil && req.Cursor.Topic == next.Topic && req.Cursor.Partition == next.Partition {
			return nil, fmt.Errorf("partitions of topics: the answer does not get beyond %s-%d", next.Topic, next.Partition)
		}
		c := kmsg.NewDescribeTopicPartitionsRequestCursor()
		c.Topic, c.Partition = next.Topic, next.Partition
		req.Cursor = &c
	}
}

// take adds one topic of an answer, of which other answers may hold the other partitions.
func take(out map[string]*topic, rt kmsg.DescribeTopicPartitionsResponseTopic) error {
	if rt.Topic == nil {
		return nil
	}
	if err := kerr.ErrorForCode(rt.ErrorCode); errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil
	} else if err != nil {
		return unreachable("topic "+*rt.Topic, err)
	}
	t := out[*rt.Topic]
	if t == nil {
		t = &topic{id: protocol.UUID(rt.TopicID)}
		out[*rt.Topic] = t
	}
	for _, p := range rt.Partitions {
		if p.Partition < 0 || int(p.Partition) != len(t.parts) {
			return fmt.Errorf("topic %s: partition %d comes where %d was due", *rt.Topic, p.Partition, len(t.parts))
		}
		t.parts = append(t.parts, partition{leader: p.LeaderID, replicas: p.Replicas, isr: p.ISR, elr: p.EligibleLeaderReplicas})
	}
	return nil
}
