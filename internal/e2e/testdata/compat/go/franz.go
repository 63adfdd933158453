package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func (j job) franz(user, password string, opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(opts, kgo.SeedBrokers(j.bootstrap), kgo.DialTLSConfig(j.tls),
		kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))...)
}

func franz(j job) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	defer cancel()
	cl, err := j.franz(j.admin, j.adminPassword)
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	if err := franzAdmin(ctx, adm, j); err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	written, err := franzWrite(ctx, j)
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	read, err := franzRead(ctx, j, j.topic, j.group, j.count)
	if err == nil {
		err = same(written, read)
	}
	if err != nil {
		return fmt.Errorf("group: %w", err)
	}
	if err := franzTransact(ctx, j); err != nil {
		return fmt.Errorf("transactions: %w", err)
	}
	lag, err := adm.Lag(ctx, j.group)
	if err == nil {
		err = lag.Error()
	}
	if l := lag[j.group]; err == nil && l.Lag.Total() != 0 {
		err = fmt.Errorf("lag %d", l.Lag.Total())
	}
	return err
}

func franzAdmin(ctx context.Context, adm *kadm.Client, j job) error {
	made, err := adm.CreateTopics(ctx, 3, 2, nil, j.topic, j.topic+"-tx")
	if err == nil {
		err = made.Error()
	}
	if err != nil {
		return err
	}
	told, err := adm.BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	var hosts []string
	for _, b := range told.Brokers {
		hosts = append(hosts, b.Host)
	}
	grown, err := adm.CreatePartitions(ctx, 1, j.topic)
	if err == nil {
		err = grown.Error()
	}
	return errors.Join(err, j.onlyGateway(hosts...))
}

func franzWrite(ctx context.Context, j job) (log, error) {
	cl, err := j.franz(j.app, j.appPassword, kgo.ProducerBatchCompression(kgo.SnappyCompression()))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var records []*kgo.Record
	for i := range j.count {
		records = append(records, &kgo.Record{Topic: j.topic, Key: fmt.Append(nil, "k", i), Value: fmt.Append(nil, "v", i)})
	}
	written := log{}
	for _, r := range cl.ProduceSync(ctx, records...) {
		if r.Err != nil {
			return nil, r.Err
		}
		written[at{int64(r.Record.Partition), r.Record.Offset}] = kv{string(r.Record.Key), string(r.Record.Value)}
	}
	return written, nil
}

func franzRead(ctx context.Context, j job, topic, group string, n int) (log, error) {
	cl, err := j.franz(j.app, j.appPassword, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	read := log{}
	for len(read) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return read, fmt.Errorf("%d of %d read: %w", len(read), n, err)
		}
		fetches.EachRecord(func(r *kgo.Record) { read[at{int64(r.Partition), r.Offset}] = kv{string(r.Key), string(r.Value)} })
	}
	return read, cl.CommitUncommittedOffsets(ctx)
}

func franzTransact(ctx context.Context, j job) error {
	cl, err := j.franz(j.app, j.appPassword, kgo.TransactionalID(j.group+"-tx"))
	if err != nil {
		return err
	}
	defer cl.Close()
	for _, end := range []string{"aborted", "committed"} {
		if err := cl.BeginTransaction(); err != nil {
			return err
		}
		for i := range 10 {
			if err := cl.ProduceSync(ctx, &kgo.Record{Topic: j.topic + "-tx", Key: fmt.Append(nil, i),
				Value: []byte(end)}).FirstErr(); err != nil {
				return err
			}
		}
		if err := cl.EndTransaction(ctx, kgo.TransactionEndTry(end == "committed")); err != nil {
			return err
		}
	}
	read, err := franzRead(ctx, j, j.topic+"-tx", j.group+"-tx", 10)
	return errors.Join(err, committed(read))
}
