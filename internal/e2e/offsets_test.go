package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"kmirror/internal/testkafka"
)

// atBroker asks one broker's client listener itself, without going by leaders.
func atBroker(tb testing.TB, n *testkafka.Node, req kmsg.Request) (kmsg.Response, error) {
	tb.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(n.Addr("CLIENT")))
	if err != nil {
		tb.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience(10*time.Second))
	defer cancel()
	return cl.SeedBrokers()[0].Request(ctx, req)
}

// replicaView is what a broker itself says of its replica of a partition: as a follower, to a consumer that was sent to it.
type replicaView struct{ start, end, watermark int64 }

// viewOf asks a broker for its own log start, log end (ListOffsets with the debugging replica id -2) and high watermark (Fetch).
func viewOf(tb testing.TB, n *testkafka.Node, topic string, partition int32) (v replicaView, err error) {
	tb.Helper()
	for _, q := range []struct {
		at   int64
		into *int64
	}{{-2, &v.start}, {-1, &v.end}} {
		req := kmsg.NewPtrListOffsetsRequest()
		req.ReplicaID = -2
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = topic
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp, p.CurrentLeaderEpoch = partition, q.at, -1
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
		resp, err := atBroker(tb, n, req)
		if err != nil {
			return v, err
		}
		rp := resp.(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
		if rp.ErrorCode != 0 {
			return v, fmt.Errorf("broker %d, ListOffsets %d of %s-%d: error %d", n.ID, q.at, topic, partition, rp.ErrorCode)
		}
		*q.into = rp.Offset
	}
	v.watermark, err = watermarkAt(tb, n, topic, partition, v.start)
	return v, err
}

// watermarkAt fetches from a follower as a consumer and returns the high watermark that it names.
func watermarkAt(tb testing.TB, n *testkafka.Node, topic string, partition int32, offset int64) (int64, error) {
	tb.Helper()
	req := kmsg.NewPtrFetchRequest()
	req.SetVersion(11)
	req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = -1, 0, 0, 1, -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic = topic
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.CurrentLeaderEpoch, p.PartitionMaxBytes = partition, offset, -1, 1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(n.Addr("CLIENT")), kgo.MaxVersions(fetchEleven()))
	if err != nil {
		tb.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience(10*time.Second))
	defer cancel()
	resp, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return -1, err
	}
	rp := resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]
	if rp.ErrorCode != 0 {
		return -1, fmt.Errorf("broker %d, Fetch of %s-%d: error %d", n.ID, topic, partition, rp.ErrorCode)
	}
	return rp.HighWatermark, nil
}

// startsAt wants every broker's replica of partition 0 to start at an offset.
func startsAt(tb testing.TB, c *testkafka.Cluster, topic string, want int64) error {
	for _, n := range c.Nodes() {
		if !n.Broker {
			continue
		}
		v, err := viewOf(tb, n, topic, 0)
		if err != nil {
			return err
		}
		if v.start != want {
			return fmt.Errorf("broker %d starts at %d", n.ID, v.start)
		}
	}
	return nil
}

// fetchEleven pins Fetch to version 11, the first that followers serve and the last that names topics without ids in most
// clients.
func fetchEleven() *kversion.Versions {
	v := kversion.Stable()
	v.SetMaxKeyVersion(1, 11)
	return v
}

// topicConfigs are the configs set on a topic itself.
func topicConfigs(tb testing.TB, c *testkafka.Cluster, topic string) map[string]string {
	tb.Helper()
	rs, err := kadm.NewClient(client(tb, c)).DescribeTopicConfigs(timeout(tb, 20*time.Second), topic)
	if err == nil {
		err = rs[0].Err
	}
	if err != nil {
		tb.Fatalf("configs of %s: %v", topic, err)
	}
	out := map[string]string{}
	for _, e := range rs[0].Configs {
		if e.Source == kmsg.ConfigSourceDynamicTopicConfig {
			out[e.Key] = e.MaybeValue()
		}
	}
	return out
}
