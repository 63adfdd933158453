package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"kmirror/internal/testkafka"
)

// outcome is what came of one way to produce: "acked", or "final ..." or "retriable ..." with the client's own words.
type outcome struct {
	way, what, text string
	took            time.Duration
}

func (o outcome) String() string {
	return fmt.Sprintf("%s after %s: %s %q", o.way, o.took, o.what, o.text)
}

// probeJava starts testdata/Probe.java; the function returned waits for it.
func probeJava(tb testing.TB, bootstrap, topic, other string, delivery time.Duration, ways ...string) func() []outcome {
	tb.Helper()
	args := append([]string{bootstrap, fmt.Sprint(delivery.Milliseconds()), topic, other}, ways...)
	cmd := testkafka.Tool(timeout(tb, 2*time.Minute), "", "testdata/Probe.java", args...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tb.Cleanup(func() { cmd.Process.Kill() })
	return func() (os []outcome) {
		tb.Helper()
		if err := <-done; err != nil {
			tb.Fatalf("Probe.java: %v\n%s\n%.3000s", err, out.String(), errs.String())
		}
		for line := range strings.Lines(out.String()) {
			f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
			if len(f) != 4 {
				tb.Fatalf("Probe.java: %q", line)
			}
			ms, err := strconv.Atoi(f[1])
			if err != nil {
				tb.Fatalf("Probe.java: %q", line)
			}
			os = append(os, outcome{"java " + f[0], f[2], f[3], time.Duration(ms) * time.Millisecond})
		}
		return os
	}
}

// probeKcat produces one record. librdkafka says in words what a broker answered.
func probeKcat(tb testing.TB, bootstrap, topic string, delivery time.Duration, settings ...string) outcome {
	tb.Helper()
	args := []string{"-P", "-b", bootstrap, "-t", topic, "-p", "0", "-X", fmt.Sprint("message.timeout.ms=", delivery.Milliseconds())}
	for _, s := range settings {
		args = append(args, "-X", s)
	}
	cmd := testkafka.Kcat(timeout(tb, time.Minute), args...)
	cmd.Stdin = strings.NewReader("probe\n")
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	o := outcome{"kcat " + strings.Join(settings, " "), "acked", string(out), time.Since(begin)}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		o.what = "final"
	case err != nil:
		tb.Fatal(err)
	}
	return o
}

// probeFranz produces one record.
func probeFranz(tb testing.TB, c *testkafka.Cluster, topic, way string, delivery time.Duration, opts ...kgo.Opt) outcome {
	tb.Helper()
	cl := client(tb, c, append([]kgo.Opt{kgo.RecordDeliveryTimeout(delivery), kgo.RetryTimeout(delivery)}, opts...)...)
	ctx, cancel := context.WithTimeout(context.Background(), 2*delivery)
	defer cancel()
	begin := time.Now()
	err := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("probe")}).FirstErr()
	o := outcome{"franz-go " + way, "acked", "", time.Since(begin)}
	if err != nil {
		o.what, o.text = "final", err.Error()
	}
	return o
}

// franzWays are the producers of franz-go by acks and idempotence.
func franzWays() map[string][]kgo.Opt {
	return map[string][]kgo.Opt{
		"acks=1": {kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()}, "acks=all": {kgo.DisableIdempotentWrite()}, "idempotent": nil,
		"acks=0": {kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite()},
	}
}

// rawProduce sends one Produce request of one record to an address and returns the error code and text of the answer.
// With acks=0 it wants no answer and the end of the connection.
func rawProduce(tb testing.TB, addr, topic string, acks int16) (code int16, text string) {
	tb.Helper()
	p, req := dialPeer(tb, addr), produceOf(topic, 0, acks, []byte("probe"))
	defer p.nc.Close()
	req.TimeoutMillis = 5000
	if err := p.send(req); err != nil {
		tb.Fatal(err)
	}
	if acks == 0 {
		p.nc.SetReadDeadline(time.Now().Add(patience(20 * time.Second)))
		if _, err := p.nc.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			tb.Errorf("acks=0 at %s: %v, want the end of the connection", addr, err)
		}
		return 0, ""
	}
	resp, err := p.next()
	if err != nil {
		tb.Fatalf("Produce at %s: %v", addr, err)
	}
	rp := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	if rp.ErrorMessage != nil {
		text = *rp.ErrorMessage
	}
	return rp.ErrorCode, text
}

// oldClient speaks to transaction coordinators as producers before transaction.version 2 do: partitions are added by request.
func oldClient(tb testing.TB, c *testkafka.Cluster) *kgo.Client {
	tb.Helper()
	v := kversion.Stable()
	v.SetMaxKeyVersion(int16(kmsg.AddPartitionsToTxn), 3)
	v.SetMaxKeyVersion(int16(kmsg.EndTxn), 4)
	return client(tb, c, kgo.MaxVersions(v), kgo.RetryTimeout(20*time.Second))
}

// openTxn begins a transaction with one partition of each topic and writes nothing; the function returned asks for its end.
func openTxn(tb testing.TB, c *testkafka.Cluster, id string, topics ...string) (end func(commit bool)) {
	tb.Helper()
	cl := oldClient(tb, c)
	var pid int64
	var epoch int16
	eventually(tb, 30*time.Second, "transaction "+id+" opened", func() error {
		init := kmsg.NewPtrInitProducerIDRequest()
		init.TransactionalID, init.TransactionTimeoutMillis = &id, 600000
		ir, err := init.RequestWith(timeout(tb, 10*time.Second), cl)
		if err == nil {
			err = kerr.ErrorForCode(ir.ErrorCode)
		}
		if err != nil {
			return fmt.Errorf("InitProducerID: %w", err)
		}
		pid, epoch = ir.ProducerID, ir.ProducerEpoch
		add := kmsg.NewPtrAddPartitionsToTxnRequest()
		add.TransactionalID, add.ProducerID, add.ProducerEpoch = id, pid, epoch
		for _, t := range topics {
			at := kmsg.NewAddPartitionsToTxnRequestTopic()
			at.Topic, at.Partitions = t, []int32{0}
			add.Topics = append(add.Topics, at)
		}
		ar, err := add.RequestWith(timeout(tb, 10*time.Second), cl)
		if err != nil {
			return err
		}
		for _, t := range ar.Topics {
			if code := t.Partitions[0].ErrorCode; code != 0 {
				return fmt.Errorf("AddPartitionsToTxn %s: code %d", t.Topic, code)
			}
		}
		return nil
	})
	return func(commit bool) {
		tb.Helper()
		eventually(tb, 30*time.Second, "end of "+id+" accepted", func() error {
			req := kmsg.NewPtrEndTxnRequest()
			req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = id, pid, epoch, commit
			r, err := req.RequestWith(timeout(tb, 10*time.Second), cl)
			if err == nil {
				err = kerr.ErrorForCode(r.ErrorCode)
			}
			if err != nil && !errors.Is(err, kerr.ConcurrentTransactions) { // an earlier try got through
				return fmt.Errorf("EndTxn: %w", err)
			}
			return nil
		})
	}
}

// txnStates are the states of all transactional ids of a cluster, whose coordinators have all loaded what they know.
func txnStates(tb testing.TB, c *testkafka.Cluster) (out map[string]string) {
	tb.Helper()
	eventually(tb, 30*time.Second, "transactions of all brokers", func() (err error) {
		out, err = listTxns(tb, c)
		return err
	})
	return out
}

func listTxns(tb testing.TB, c *testkafka.Cluster) (map[string]string, error) {
	tb.Helper()
	out := map[string]string{}
	for _, id := range c.Brokers() {
		resp, err := atBroker(tb, c.Node(id), kmsg.NewPtrListTransactionsRequest())
		if err == nil {
			err = kerr.ErrorForCode(resp.(*kmsg.ListTransactionsResponse).ErrorCode)
		}
		if err != nil {
			return nil, fmt.Errorf("transactions at broker %d: %w", id, err)
		}
		for _, t := range resp.(*kmsg.ListTransactionsResponse).TransactionStates {
			if !strings.HasPrefix(t.TransactionalID, "kmirror-") { // fences of __mirror_state, which have no transactions
				out[t.TransactionalID] = t.TransactionState
			}
		}
	}
	return out, nil
}

// placeOf asks one broker for leader and ISR of partition 0.
func placeOf(tb testing.TB, n *testkafka.Node, topic string) (leader int32, isr []int32, err error) {
	tb.Helper()
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req.Topics = append(req.Topics, t)
	resp, err := atBroker(tb, n, req)
	if err != nil {
		return -1, nil, err
	}
	p := resp.(*kmsg.MetadataResponse).Topics[0].Partitions
	if len(p) != 1 {
		return -1, nil, fmt.Errorf("%s has %d partitions", topic, len(p))
	}
	return p[0].Leader, p[0].ISR, nil
}

// committedIn lists the values under a key that a consumer of committed records sees in partition 0 of a topic, once all transactions that
// are to end have ended: who ends one is answered before its markers are written, and nothing behind them is stable until then.
func committedIn(tb testing.TB, c *testkafka.Cluster, topic, key string) (values []string) {
	tb.Helper()
	noneHangs(tb, c)
	var end kadm.ListedOffset
	eventually(tb, 30*time.Second, "last stable offset of "+topic, func() error {
		offs, err := kadm.NewClient(client(tb, c)).ListCommittedOffsets(timeout(tb, 10*time.Second), topic)
		if err == nil {
			err = offs.Error()
		}
		end, _ = offs.Lookup(topic, 0)
		return err
	})
	cl := client(tb, c, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	ctx := timeout(tb, 30*time.Second)
	for next := int64(0); next < end.Offset; {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			tb.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if string(r.Key) == key && !r.Attrs.IsControl() {
				values = append(values, string(r.Value))
			}
		})
	}
	return values
}
