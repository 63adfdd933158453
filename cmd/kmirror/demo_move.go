package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// move has the group, which has read a part of the topic at A, read the rest at B.
func (d *demo) move(ctx context.Context) error {
	began := time.Now()
	want, err := d.committed(ctx, d.a)
	if err != nil {
		return err
	}
	if err := d.await(ctx, "move", time.Minute, func(ctx context.Context) (string, bool, error) {
		at, err := d.committed(ctx, d.b)
		if err != nil {
			return err.Error(), false, nil
		}
		stands := fmt.Sprintf("group %s is at %s at B, at %s at A", demoGroup, grouped(offsets(at)), grouped(offsets(want)))
		return stands, maps.Equal(at, want), nil
	}); err != nil {
		return err
	}
	repeated, read, err := d.resume(ctx, want)
	if err != nil {
		return err
	}
	skipped := demoRecords - demoRead - (read - repeated)
	if repeated != 0 || skipped != 0 {
		return fmt.Errorf("group %s repeated %d records and skipped %d", demoGroup, repeated, skipped)
	}
	d.line("move", fmt.Sprintf("group %s resumes on B at %s: 0 repeated, 0 skipped of %s left   %s", demoGroup, grouped(offsets(want)),
		grouped(int64(read)), seconds(time.Since(began))),
		fmt.Sprintf("%s --bootstrap-server %s --describe --group %s", d.tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"),
			d.servers(d.b), demoGroup))
	return nil
}

// committed returns where the group is at a cluster, by partition.
func (d *demo) committed(ctx context.Context, c *testkafka.Cluster) (map[int32]int64, error) {
	cl, err := d.kafka(c)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rs, err := kadm.NewClient(cl).FetchOffsetsForTopics(ctx, demoGroup, demoTopic)
	if err != nil {
		return nil, err
	}
	out := map[int32]int64{}
	rs.Each(func(o kadm.OffsetResponse) {
		if o.Err == nil && o.At >= 0 {
			out[o.Partition] = o.At
		}
	})
	return out, nil
}

// resume reads the rest of the topic at B as a member of the group. It counts the records that were read, and those among them that
// were committed or had been read before.
func (d *demo) resume(ctx context.Context, from map[int32]int64) (repeated, read int, err error) {
	cl, err := d.kafka(d.b, kgo.ConsumerGroup(demoGroup), kgo.ConsumeTopics(demoTopic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RecheckPreferredReplicaInterval(time.Second))
	if err != nil {
		return 0, 0, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	next := maps.Clone(from)
	for read < demoRecords-demoRead {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return 0, 0, errors.Join(fmt.Errorf("%s records read", grouped(int64(read))), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			read++
			if r.Offset < next[r.Partition] {
				repeated++
			}
			next[r.Partition] = r.Offset + 1
		})
		d.progress(fmt.Sprintf("move      group %s has read %s at B", demoGroup, grouped(int64(read))))
	}
	return repeated, read, cl.CommitUncommittedOffsets(ctx)
}
