package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// conversation is a SCRAM-SHA-512 login, which sarama leaves to others.
type conversation struct{ *scram.ClientConversation }

func (c *conversation) Begin(user, password, authzID string) error {
	cl, err := scram.SHA512.NewClient(user, password, authzID)
	if err == nil {
		c.ClientConversation = cl.NewConversation()
	}
	return err
}

func (j job) sarama(user, password string) *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.Net.TLS.Enable, c.Net.TLS.Config = true, j.tls
	c.Net.SASL.Enable, c.Net.SASL.User, c.Net.SASL.Password = true, user, password
	c.Net.SASL.Mechanism = sarama.SASLTypeSCRAMSHA512
	c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{} }
	c.Producer.RequiredAcks, c.Producer.Idempotent, c.Net.MaxOpenRequests = sarama.WaitForAll, true, 1
	c.Producer.Return.Successes, c.Producer.Return.Errors = true, true
	c.Producer.Compression = sarama.CompressionGZIP
	c.Consumer.Offsets.Initial, c.Consumer.IsolationLevel = sarama.OffsetOldest, sarama.ReadCommitted
	c.Consumer.Return.Errors = false
	return c
}

func saramaTrip(j job) error {
	adm, err := sarama.NewClusterAdmin([]string{j.bootstrap}, j.sarama(j.admin, j.adminPassword))
	if err != nil {
		return err
	}
	defer adm.Close()
	if err := saramaAdmin(adm, j); err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	written, err := saramaWrite(j)
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	read, err := saramaRead(j, j.topic, j.group, j.count)
	if err == nil {
		err = same(written, read)
	}
	if err != nil {
		return fmt.Errorf("group: %w", err)
	}
	if err := saramaTransact(j); err != nil {
		return fmt.Errorf("transactions: %w", err)
	}
	offsets, err := adm.ListConsumerGroupOffsets(j.group, nil)
	if err != nil {
		return err
	}
	var sum int64
	for _, p := range offsets.Blocks[j.topic] {
		sum += max(p.Offset, 0)
	}
	if sum != int64(j.count) {
		return fmt.Errorf("committed %d, want %d", sum, j.count)
	}
	return nil
}

func saramaAdmin(adm sarama.ClusterAdmin, j job) error {
	for _, topic := range []string{j.topic, j.topic + "-tx"} {
		if err := adm.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 2}, false); err != nil {
			return err
		}
	}
	brokers, _, err := adm.DescribeCluster()
	if err != nil {
		return err
	}
	var hosts []string
	for _, b := range brokers {
		host, _, err := net.SplitHostPort(b.Addr())
		if err != nil {
			return err
		}
		hosts = append(hosts, host)
	}
	if err := j.onlyGateway(hosts...); err != nil {
		return err
	}
	if err := adm.CreatePartitions(j.topic, 4, nil, false); err != nil {
		return err
	}
	configs, err := adm.DescribeConfigs([]*sarama.ConfigResource{{Type: sarama.TopicResource, Name: j.topic}}, sarama.DescribeConfigsOptions{})
	if err == nil && len(configs) == 0 {
		err = errors.New("no configs")
	}
	return err
}

func saramaWrite(j job) (log, error) {
	p, err := sarama.NewSyncProducer([]string{j.bootstrap}, j.sarama(j.app, j.appPassword))
	if err != nil {
		return nil, err
	}
	defer p.Close()
	var ms []*sarama.ProducerMessage
	for i := range j.count {
		ms = append(ms, &sarama.ProducerMessage{Topic: j.topic, Key: sarama.StringEncoder(fmt.Sprint("k", i)),
			Value: sarama.StringEncoder(fmt.Sprint("v", i))})
	}
	if err := p.SendMessages(ms); err != nil {
		return nil, err
	}
	written := log{}
	for i, m := range ms {
		written[at{int64(m.Partition), m.Offset}] = kv{fmt.Sprint("k", i), fmt.Sprint("v", i)}
	}
	return written, nil
}

// reader collects what the members' claims bring, until there is enough.
type reader struct {
	mu   sync.Mutex
	read log
	want int
	done context.CancelFunc
}

func (r *reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r *reader) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	for {
		select {
		case m, open := <-c.Messages():
			if !open {
				return nil
			}
			s.MarkMessage(m, "")
			r.mu.Lock()
			r.read[at{int64(m.Partition), m.Offset}] = kv{string(m.Key), string(m.Value)}
			if len(r.read) == r.want {
				s.Commit()
				r.done()
			}
			r.mu.Unlock()
		case <-s.Context().Done():
			return nil
		}
	}
}

func saramaRead(j job, topic, group string, n int) (log, error) {
	g, err := sarama.NewConsumerGroup([]string{j.bootstrap}, group, j.sarama(j.app, j.appPassword))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r := &reader{read: log{}, want: n, done: cancel}
	for ctx.Err() == nil {
		if err := g.Consume(ctx, []string{topic}, r); err != nil {
			return r.read, errors.Join(err, g.Close())
		}
	}
	return r.read, g.Close()
}

func saramaTransact(j job) error {
	c := j.sarama(j.app, j.appPassword)
	c.Producer.Transaction.ID = j.group + "-tx"
	p, err := sarama.NewSyncProducer([]string{j.bootstrap}, c)
	if err != nil {
		return err
	}
	defer p.Close()
	for _, end := range []string{"aborted", "committed"} {
		if err := p.BeginTxn(); err != nil {
			return err
		}
		for i := range 10 {
			if _, _, err := p.SendMessage(&sarama.ProducerMessage{Topic: j.topic + "-tx", Key: sarama.StringEncoder(fmt.Sprint(i)),
				Value: sarama.StringEncoder(end)}); err != nil {
				return err
			}
		}
		finish := p.AbortTxn
		if end == "committed" {
			finish = p.CommitTxn
		}
		if err := finish(); err != nil {
			return err
		}
	}
	time.Sleep(time.Second) // the markers are written by then
	read, err := saramaRead(j, j.topic+"-tx", j.group+"-tx", 10)
	return errors.Join(err, committed(read))
}
