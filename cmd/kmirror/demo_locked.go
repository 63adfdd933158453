package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
)

// attempt tries to write one record to the mirror. It returns nil when the client was refused, or could not know.
type attempt struct {
	name string
	try  func(ctx context.Context) error
}

// attemptLimit bounds one attempt: a JVM's start on a busy machine, and the delivery timeout.
const attemptLimit = 60 * time.Second

var errAccepted = errors.New("was not refused")

// attempts are the five ways to write that are tried; round makes transactional ids new.
func (d *demo) attempts(round string) []attempt {
	out := []attempt{{"kcat", d.tryKcat}}
	for _, acks := range []string{"0", "1", "all"} {
		out = append(out, attempt{"Java acks=" + acks, func(ctx context.Context) error { return d.tryJava(ctx, acks) }})
	}
	return append(out, attempt{"transaction", func(ctx context.Context) error { return d.tryTransaction(ctx, "demo-"+round) }})
}

func (d *demo) kcatLine() string {
	return fmt.Sprintf("echo no | kcat -P -b %s -t %s -X message.timeout.ms=4000", d.servers(d.b), demoTopic)
}

func (d *demo) tryKcat(ctx context.Context) error {
	cmd := testkafka.Kcat(ctx, "-P", "-b", d.servers(d.b), "-t", demoTopic, "-X", "message.timeout.ms=4000")
	cmd.Stdin = strings.NewReader("no\n")
	out, err := cmd.CombinedOutput()
	return refusedBy(string(out), err, "Delivery failed")
}

func (d *demo) javaArgs(acks string) []string {
	return []string{"--topic", demoTopic, "--num-records", "1", "--record-size", "100", "--throughput", "-1", "--producer-props",
		"bootstrap.servers=" + d.servers(d.b), "acks=" + acks, "delivery.timeout.ms=4000", "request.timeout.ms=3000", "linger.ms=0",
		"enable.idempotence=false"}
}

const performanceClass = "org.apache.kafka.tools.ProducerPerformance"

func (d *demo) tryJava(ctx context.Context, acks string) error {
	out, err := testkafka.Tool(ctx, testkafka.Latest, performanceClass, d.javaArgs(acks)...).CombinedOutput()
	if acks == "0" {
		// No answer exists, so this client can't be told; that nothing was written is checked in the logs.
		return nil
	}
	return refusedBy(string(out), err, "Exception")
}

// refusedBy wants a tool to have reported the refusal, in its text or by its end.
func refusedBy(out string, err error, sign string) error {
	if strings.Contains(out, sign) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(out))
	}
	return errAccepted
}

// tryTransaction writes within a transaction, and aborts it as a client must.
func (d *demo) tryTransaction(ctx context.Context, id string) error {
	cl, err := d.kafka(d.b, kgo.TransactionalID(id), kgo.RecordRetries(4),
		kgo.RecordDeliveryTimeout(4*time.Second))
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		return err
	}
	produce, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	refusal := cl.ProduceSync(produce, order(0)).FirstErr()
	// With kmirror dead the abort is taken down and its marker waits for kmirror: that is checked after the restart.
	if err := cl.EndTransaction(produce, kgo.TryAbort); refusal == nil && err == nil {
		return errAccepted
	}
	return nil
}

// writes runs all attempts at once and looks at B's logs afterwards.
func (d *demo) writes(ctx context.Context, round string) (refused int, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	attempts := d.attempts(round)
	d.progress(fmt.Sprintf("locked    %d producers try to write (%s)", len(attempts), round))
	var g errgroup.Group
	for _, a := range attempts {
		g.Go(func() error {
			if err := a.try(ctx); err != nil {
				return fmt.Errorf("%s, %s: %w", a.name, round, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	if err := d.unchanged(); err != nil {
		return 0, fmt.Errorf("%s: something was written: %w", round, err)
	}
	return len(attempts), nil
}

// locked tries to write while kmirror leads, and again when it was killed and real brokers lead.
func (d *demo) locked(ctx context.Context) error {
	alive, err := d.writes(ctx, "kmirror alive")
	if err != nil {
		return err
	}
	pid := d.shim.pid()
	if err := d.shim.kill(); err != nil {
		return err
	}
	if err := d.await(ctx, "locked", time.Minute, d.realLeaders); err != nil {
		return err
	}
	dead, err := d.writes(ctx, "kmirror killed")
	if err != nil {
		return err
	}
	d.line("locked", fmt.Sprintf("kcat, Java acks 0/1/all, txn: refused %d/%[1]d; kill -9 kmirror: refused %d/%[2]d; sha256 same", alive, dead),
		d.kcatLine(),
		d.tool(performanceClass)+" "+strings.Join(d.javaArgs("1"), " "),
		fmt.Sprintf("kill -9 %d", pid))
	return nil
}

// realLeaders waits for the controller to notice that kmirror is dead: from then on real brokers lead, and only the lock
// keeps writers out.
func (d *demo) realLeaders(ctx context.Context) (string, bool, error) {
	cl, err := d.kafka(d.b)
	if err != nil {
		return "", false, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	topics, err := kadm.NewClient(cl).ListTopics(ctx, demoTopic)
	if err != nil {
		return err.Error(), false, nil
	}
	n := 0
	for _, p := range topics[demoTopic].Partitions {
		if p.Leader > 0 && p.Leader < 9001 {
			n++
		}
	}
	return fmt.Sprintf("kmirror killed; real brokers lead %d of %d partitions", n, demoPartitions), n == demoPartitions, nil
}

// restart shows that kmirror goes on where it was killed, and that no transaction of those who were refused is left hanging.
func (d *demo) restart(ctx context.Context) error {
	began := time.Now()
	if err := d.shim.limit(demoLineRate); err != nil { // the disaster is to find the mirror behind
		return err
	}
	if err := d.serve(ctx, "restart", d.shim); err != nil {
		return err
	}
	if err := d.await(ctx, "restart", time.Minute, func(ctx context.Context) (string, bool, error) {
		return settled(ctx, d.shim, demoMirror)
	}); err != nil {
		return err
	}
	if err := d.await(ctx, "restart", 30*time.Second, d.noPending); err != nil {
		return err
	}
	if err := d.unchanged(); err != nil {
		return err
	}
	parts, err := d.shim.client.Describe(ctx, admin.DescribeRequest{Mirrors: []string{demoMirror}})
	if err != nil {
		return err
	}
	d.line("restart", fmt.Sprintf("kmirror leads %d/%d again, lag 0, no transaction left pending, sha256 same   %s", len(parts), demoPartitions,
		seconds(time.Since(began))),
		d.shim.line("describe"))
	return nil
}

// noPending looks for transactions at B whose end waits for a marker.
func (d *demo) noPending(ctx context.Context) (string, bool, error) {
	cl, err := d.kafka(d.b)
	if err != nil {
		return "", false, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	pending, err := kadm.NewClient(cl).ListTransactions(ctx, nil, []string{"PrepareAbort", "PrepareCommit"})
	if shards, ok := errors.AsType[*kadm.ShardErrors](err); ok && len(shards.Errs) > 0 {
		return fmt.Sprintf("ListTransactions at broker %d: %v", shards.Errs[0].Broker.NodeID, shards.Errs[0].Err), false, nil
	}
	if err != nil {
		return err.Error(), false, nil
	}
	return fmt.Sprintf("%d transactions wait for their markers", len(pending)), len(pending) == 0, nil
}

// tool is how a class of Kafka's is run from the jars in the cache, as a command line.
func (d *demo) tool(class string) string {
	args := testkafka.Tool(context.Background(), testkafka.Latest, class).Args
	for i, a := range args[:len(args)-1] {
		if a == "-cp" || a == "-classpath" || a == "--class-path" {
			first, _, _ := strings.Cut(args[i+1], ":")
			return fmt.Sprintf("java -cp '%s/*' %s", filepath.Dir(first), class)
		}
	}
	return strings.Join(args, " ")
}
