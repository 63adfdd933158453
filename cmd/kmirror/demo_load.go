package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// What the source is given.
const (
	demoRecords = 200_000
	demoCommits = 40
	demoAborts  = 5
	// demoTxn is the number of records of each transaction, the one that is left open included.
	demoTxn = 200
	// demoRead is how far the group reads.
	demoRead = 61_204
	// demoValue is the length of a value in bytes.
	demoValue = 400
)

func (d *demo) kafka(c *testkafka.Cluster, opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...)}, opts...)...)
}

// load fills the source: records without transactions, transactions of every end, a group that has read some of it.
func (d *demo) load(ctx context.Context) error {
	began := time.Now()
	if err := d.createOrders(ctx); err != nil {
		return err
	}
	if err := d.bulk(ctx, demoRecords-(demoCommits+demoAborts+1)*demoTxn); err != nil {
		return err
	}
	if err := d.transactions(ctx); err != nil {
		return err
	}
	read, err := d.consume(ctx)
	if err != nil {
		return err
	}
	kafka := d.tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand")
	d.line("load", fmt.Sprintf("%s %dx, %s records, %d commits, %d aborts, 1 open; group %s at %s   %s", demoTopic, demoPartitions,
		grouped(demoRecords), demoCommits, demoAborts, demoGroup, grouped(read), seconds(time.Since(began))),
		fmt.Sprintf("kcat -C -b %s -t %s -X isolation.level=read_uncommitted -e -q -f '%%p %%o\\n' | wc -l", d.servers(d.a), demoTopic),
		fmt.Sprintf("%s --bootstrap-server %s --describe --group %s", kafka, d.servers(d.a), demoGroup))
	return nil
}

func (d *demo) createOrders(ctx context.Context) error {
	cl, err := d.kafka(d.a)
	if err != nil {
		return err
	}
	defer cl.Close()
	_, err = kadm.NewClient(cl).CreateTopic(ctx, demoPartitions, 1, nil, demoTopic)
	return err
}

// order makes the record of a number. Its bytes are not random, but no two records are alike.
func order(n int) *kgo.Record {
	value := make([]byte, 0, demoValue)
	value = fmt.Appendf(value, `{"order":%d,"pad":"`, n)
	for x := uint64(n)*0x9e3779b97f4a7c15 + 1; len(value) < demoValue-2; {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		value = fmt.Appendf(value, "%016x", binary.BigEndian.Uint64(binary.LittleEndian.AppendUint64(nil, x)))
	}
	return &kgo.Record{Topic: demoTopic, Key: fmt.Appendf(nil, "order-%d", n), Value: append(value, '"', '}')}
}

func (d *demo) bulk(ctx context.Context, n int) error {
	cl, err := d.kafka(d.a, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	var failed atomic.Pointer[error]
	for i := range n {
		cl.Produce(ctx, order(i), func(_ *kgo.Record, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		})
		if i%10_000 == 0 {
			d.progress(fmt.Sprintf("load      %s of %s records", grouped(int64(i)), grouped(demoRecords)))
		}
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// transactions runs one after the other; every ninth is aborted, the last one left open when its client goes away.
func (d *demo) transactions(ctx context.Context) error {
	cl, err := d.kafka(d.a, kgo.TransactionalID("orders-writer"), kgo.TransactionTimeout(15*time.Minute))
	if err != nil {
		return err
	}
	defer cl.Close()
	next := demoRecords - (demoCommits+demoAborts+1)*demoTxn
	for i := range demoCommits + demoAborts + 1 {
		if err := cl.BeginTransaction(); err != nil {
			return err
		}
		batch := make([]*kgo.Record, demoTxn)
		for j := range batch {
			batch[j] = order(next)
			next++
		}
		if err := cl.ProduceSync(ctx, batch...).FirstErr(); err != nil {
			return err
		}
		d.progress(fmt.Sprintf("load      transaction %d of %d", i+1, demoCommits+demoAborts+1))
		if i == demoCommits+demoAborts {
			return nil
		}
		if err := cl.EndTransaction(ctx, kgo.TransactionEndTry(i%9 != 8)); err != nil {
			return err
		}
	}
	return nil
}

// consume reads a part of the topic as a group and commits it.
func (d *demo) consume(ctx context.Context) (int64, error) {
	cl, err := d.kafka(d.a, kgo.ConsumerGroup(demoGroup), kgo.ConsumeTopics(demoTopic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for n := 0; n < demoRead; {
		fetches := cl.PollRecords(ctx, min(10_000, demoRead-n))
		if err := fetches.Err0(); err != nil {
			return 0, err
		}
		n += fetches.NumRecords()
		d.progress(fmt.Sprintf("load      group %s has read %s", demoGroup, grouped(int64(n))))
	}
	if err := cl.CommitUncommittedOffsets(ctx); err != nil {
		return 0, err
	}
	committed, err := kadm.NewClient(cl).FetchOffsetsForTopics(ctx, demoGroup, demoTopic)
	if err != nil {
		return 0, err
	}
	// The sum of the positions: what the group read, and the markers that it stepped over.
	var sum int64
	committed.Each(func(o kadm.OffsetResponse) { sum += max(0, o.At) })
	if sum < demoRead {
		return 0, errors.New("the group has committed less than it read")
	}
	return sum, nil
}
