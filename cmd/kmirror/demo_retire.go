package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/coordinator"
	"kmirror/internal/testkafka"
)

// retire takes kmirror out of both clusters and looks for what is left of it.
func (d *demo) retire(ctx context.Context) error {
	lines := []string{d.shim.line("retire", "--node-ids", d.shim.nodeIDs()), d.back.line("retire", "--node-ids", d.back.nodeIDs(), "--failover")}
	d.progress("retire    kmirror leaves B")
	if err := d.shim.leave(ctx); err != nil {
		return err
	}
	d.progress("retire    kmirror stops mirroring into A and leaves")
	if err := d.back.leave(ctx, "--failover"); err != nil {
		return err
	}
	var behind []string
	for _, c := range []*testkafka.Cluster{d.a, d.b} {
		left, err := d.traces(ctx, c)
		if err != nil {
			return err
		}
		behind = append(behind, left...)
		if faults := c.Faults(); len(faults) > 0 {
			return fmt.Errorf("%d faults in the brokers' logs, first %s", len(faults), faults[0])
		}
		lines = append(lines, "kcat -L -b "+d.servers(c))
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err := testkafka.AwaitWritable(ctx, d.a, map[string]int32{demoTopic: demoPartitions}, 50*time.Millisecond); err != nil {
		return fmt.Errorf("cluster A after kmirror: %w", err)
	}
	d.line("retire", fmt.Sprintf("A's brokers: %s, B's: %s; left behind: %s", plain(d.a.Brokers()), plain(d.b.Brokers()),
		strings.Join(slices.Compact(slices.Sorted(slices.Values(behind))), ", ")), lines...)
	return nil
}

func plain(list []int32) string { return strings.Trim(ids(list), "[]") }

// leave retires the process's node ids and waits for its end.
func (s *demoShim) leave(ctx context.Context, flags ...string) error {
	if _, err := s.command(ctx, append([]string{"retire", "--node-ids", s.nodeIDs()}, flags...)...); err != nil {
		return err
	}
	limit := time.NewTimer(10 * time.Second)
	defer limit.Stop()
	select {
	case <-s.done:
	case <-limit.C:
		return fmt.Errorf("kmirror is retired, and process %d still runs", s.pid())
	}
	if !s.cmd.ProcessState.Success() {
		return fmt.Errorf("kmirror is retired, and its process ended with %s", s.cmd.ProcessState)
	}
	return nil
}

// traces wants a cluster to know its own brokers only, in no state and in no replica list, and the topic to be unlocked. It returns
// the topics that kmirror leaves behind.
func (d *demo) traces(ctx context.Context, c *testkafka.Cluster) (behind []string, err error) {
	cl, err := d.kafka(c)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeFencedBrokers = true
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	own := c.Brokers()
	for _, b := range resp.Brokers {
		if !slices.Contains(own, b.NodeID) {
			return nil, fmt.Errorf("node id %d is still registered at cluster %s", b.NodeID, c.ID())
		}
	}
	adm := kadm.NewClient(cl)
	topics, err := adm.ListTopicsWithInternal(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range topics.Sorted() {
		if t.Topic == coordinator.DefaultTopic {
			behind = append(behind, t.Topic)
		}
		for _, p := range t.Partitions {
			for _, id := range slices.Concat([]int32{p.Leader}, p.Replicas, p.ISR, p.OfflineReplicas) {
				if !slices.Contains(own, id) {
					return nil, fmt.Errorf("%s-%d still names %d: leader %d, replicas %v", t.Topic, p.Partition, id, p.Leader, p.Replicas)
				}
			}
		}
	}
	configs, err := adm.DescribeTopicConfigs(ctx, demoTopic)
	if err != nil {
		return nil, err
	}
	for _, r := range configs {
		for _, k := range r.Configs {
			if k.Source == kmsg.ConfigSourceDynamicTopicConfig {
				return nil, fmt.Errorf("%s=%s is still set on %s", k.Key, k.MaybeValue(), demoTopic)
			}
		}
	}
	return behind, nil
}
