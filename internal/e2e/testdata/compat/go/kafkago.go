package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/scram"
)

func (j job) mechanism(user, password string) (sasl.Mechanism, error) {
	return scram.Mechanism(scram.SHA512, user, password)
}

// kafkaGo has no transactions to show: the library can only read what others commit.
func kafkaGo(j job) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	defer cancel()
	adminLogin, err := j.mechanism(j.admin, j.adminPassword)
	if err != nil {
		return err
	}
	appLogin, err := j.mechanism(j.app, j.appPassword)
	if err != nil {
		return err
	}
	cl := &kafka.Client{Addr: kafka.TCP(j.bootstrap), Timeout: limit, Transport: &kafka.Transport{TLS: j.tls, SASL: adminLogin}}
	if err := kafkaGoAdmin(ctx, cl, j); err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	written, err := kafkaGoWrite(ctx, j, appLogin)
	if err != nil {
		return fmt.Errorf("writer: %w", err)
	}
	read, err := kafkaGoRead(ctx, j, appLogin)
	if err == nil {
		err = same(written, read)
	}
	if err != nil {
		return fmt.Errorf("group: %w", err)
	}
	return kafkaGoOffsets(ctx, cl, j)
}

func kafkaGoAdmin(ctx context.Context, cl *kafka.Client, j job) error {
	made, err := cl.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: j.topic, NumPartitions: 4,
		ReplicationFactor: 2}}})
	if err != nil {
		return err
	}
	if err := made.Errors[j.topic]; err != nil {
		return err
	}
	// Metadata of a new topic may come a moment later.
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		told, err := cl.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{j.topic}})
		if err == nil && len(told.Topics) == 1 && told.Topics[0].Error == nil && len(told.Topics[0].Partitions) == 4 {
			var hosts []string
			for _, b := range told.Brokers {
				hosts = append(hosts, b.Host)
			}
			return j.onlyGateway(hosts...)
		}
		if time.Now().After(end) {
			return fmt.Errorf("metadata: %+v, %w", told, err)
		}
	}
}

func kafkaGoWrite(ctx context.Context, j job, login sasl.Mechanism) (log, error) {
	var mu sync.Mutex
	written := log{}
	w := &kafka.Writer{Addr: kafka.TCP(j.bootstrap), Topic: j.topic, Balancer: &kafka.RoundRobin{}, RequiredAcks: kafka.RequireAll,
		Compression: kafka.Lz4, BatchTimeout: 10 * time.Millisecond, Transport: &kafka.Transport{TLS: j.tls, SASL: login},
		Completion: func(ms []kafka.Message, err error) {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range ms {
				written[at{int64(m.Partition), m.Offset}] = kv{string(m.Key), string(m.Value)}
			}
		}}
	var ms []kafka.Message
	for i := range j.count {
		ms = append(ms, kafka.Message{Key: fmt.Append(nil, "k", i), Value: fmt.Append(nil, "v", i)})
	}
	err := w.WriteMessages(ctx, ms...)
	return written, errors.Join(err, w.Close()) // Close waits for all completions
}

func kafkaGoRead(ctx context.Context, j job, login sasl.Mechanism) (log, error) {
	r := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{j.bootstrap}, GroupID: j.group, Topic: j.topic,
		StartOffset:    kafka.FirstOffset,
		IsolationLevel: kafka.ReadCommitted, MaxWait: 200 * time.Millisecond,
		Dialer: &kafka.Dialer{Timeout: 10 * time.Second, TLS: j.tls, SASLMechanism: login}})
	read := log{}
	for len(read) < j.count {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			return read, errors.Join(fmt.Errorf("%d of %d read: %w", len(read), j.count, err), r.Close())
		}
		read[at{int64(m.Partition), m.Offset}] = kv{string(m.Key), string(m.Value)}
		if err := r.CommitMessages(ctx, m); err != nil {
			return read, errors.Join(err, r.Close())
		}
	}
	return read, r.Close()
}

// kafkaGoOffsets wants the library to see the end of the log and what the group has committed.
func kafkaGoOffsets(ctx context.Context, cl *kafka.Client, j job) error {
	partitions := []int{0, 1, 2, 3}
	got, err := cl.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: j.group, Topics: map[string][]int{j.topic: partitions}})
	if err != nil {
		return err
	}
	var ask []kafka.OffsetRequest
	for _, p := range partitions {
		ask = append(ask, kafka.LastOffsetOf(p))
	}
	ends, err := cl.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{j.topic: ask}})
	if err != nil {
		return err
	}
	var sum, end int64
	for _, p := range got.Topics[j.topic] {
		sum += max(p.CommittedOffset, 0)
	}
	for _, p := range ends.Topics[j.topic] {
		end += p.LastOffset
	}
	if sum != int64(j.count) || end != int64(j.count) {
		return fmt.Errorf("committed %d, written %d, want %d", sum, end, j.count)
	}
	return nil
}
