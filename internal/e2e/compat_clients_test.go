package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// otherClients are those that need no JVM, and Streams, in this order.
func otherClients() []compatClient {
	const trip = "creates topics, an idempotent or `acks=all` producer, a group, "
	return []compatClient{
		{name: "kcat", did: "cluster and topics, idempotent producer with headers, consumer, group, offsets: records, commit",
			run: (*compatBed).kcat},
		{name: "confluent-kafka (Python)", did: trip +
			"`classic` and KIP-848; transactions; configs, ACLs, offsets, groups by AdminClient", run: (*compatBed).python},
		{name: "franz-go", did: trip + "transactions, lag by kadm", run: func(b *compatBed, t *testing.T) error {
			return b.library(t,
				"franz-go")
		}},
		{name: "sarama", did: trip + "transactions, configs and offsets by ClusterAdmin", run: func(b *compatBed,
			t *testing.T) error {
			return b.library(t, "sarama")
		}},
		{name: "segmentio/kafka-go", did: trip + "offsets by Client (it has no transactions)", run: func(b *compatBed,
			t *testing.T) error {
			return b.library(t, "kafka-go")
		}},
		{name: "Kafka Streams, word count", did: "exactly once, with a repartition topic and a changelog: every count",
			run: (*compatBed).streams},
	}
}

// compatPrograms are the clients that were built for the run.
type compatPrograms struct{ golang, python string }

// buildCompatPrograms builds the Go clients, a module of their own, and the virtual environment of the Python one. Both need their
// registries, which clients can't reach from where they run.
func buildCompatPrograms(t *testing.T) (p compatPrograms) {
	t.Helper()
	dir := t.TempDir()
	p.golang, p.python = filepath.Join(dir, "clients"), filepath.Join(dir, "venv", "bin", "python3")
	build := exec.CommandContext(timeout(t, 5*time.Minute), "go", "build", "-o", p.golang, ".")
	build.Dir = "testdata/compat/go"
	for _, cmd := range []*exec.Cmd{build,
		exec.CommandContext(timeout(t, 2*time.Minute), "python3", "-m", "venv", filepath.Join(dir, "venv")),
		exec.CommandContext(timeout(t, 5*time.Minute), p.python, "-m", "pip", "install", "--quiet", "--requirement",
			"testdata/compat/requirements.txt"),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
		}
	}
	return p
}

// gatewayAt is where the gateway begins.
func (b *compatBed) gatewayAt() (host string, first int) {
	host, port, _ := net.SplitHostPort(b.addr)
	first, _ = strconv.Atoi(port)
	return host, first
}

// trip runs a program that makes a round trip, whose first line is its version.
func (b *compatBed) trip(t *testing.T, name string, cmd *exec.Cmd, topic string) error {
	sec := b.dst.Security()
	cmd.Env = append(os.Environ(), "BOOTSTRAP="+b.addr, "TOPIC="+topic, "GROUP="+topic, fmt.Sprint("COUNT=", compatCount),
		"CA="+sec.CA(),
		"APP="+compatUser, "APP_PASSWORD="+sec.Password(compatUser), "ADMIN="+testkafka.AdminUser,
		"ADMIN_PASSWORD="+sec.Password(testkafka.AdminUser))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := b.ns.inside(cmd).Run()
	version, _, _ := strings.Cut(out.String(), "\n")
	b.table.named(name, version)
	if err != nil {
		t.Logf("%s", errs.String())
		lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
		return fmt.Errorf("%s: %w", lines[len(lines)-1], err)
	}
	return errors.Join(b.ends(t, topic, compatCount), b.committed(t, topic, compatCount))
}

func (b *compatBed) python(t *testing.T) error {
	cmd := exec.CommandContext(timeout(t, 3*time.Minute), b.bins.python, "testdata/compat/clients.py")
	if err := b.trip(t, "confluent-kafka (Python)", cmd, "python"); err != nil {
		return err
	}
	return errors.Join(b.groupType(t, "python-848", "consumer"), b.visible(t, "python-tx", "committed", 10))
}

func (b *compatBed) library(t *testing.T, name string) error {
	cmd := exec.CommandContext(timeout(t, 3*time.Minute), b.bins.golang, name)
	rows := map[string]string{"kafka-go": "segmentio/kafka-go"}
	row := name
	if rows[name] != "" {
		row = rows[name]
	}
	err := b.trip(t, row, cmd, name)
	if err == nil && name != "kafka-go" {
		err = b.visible(t, name+"-tx", "committed", 10)
	}
	return err
}

// kcatLogin are the options with which kcat logs in. The librdkafka that Debian has fails with SCRAM at brokers of version 4, which
// look at the nonce, with or without a gateway.
func (b *compatBed) kcatLogin() []string {
	return []string{"-X", "security.protocol=SASL_SSL", "-X", "ssl.ca.location=" + b.dst.Security().CA(), "-X", "sasl.mechanism=PLAIN",
		"-X", "sasl.username=" + compatUser, "-X", "sasl.password=" + compatUser + "-plain"}
}

// kcatRun runs kcat through the gateway.
func (b *compatBed) kcatRun(t *testing.T, stdin string, args ...string) (string, error) {
	cmd := b.ns.inside(testkafka.Kcat(timeout(t, toolLimit), append(append(b.kcatLogin(), "-b", b.addr), args...)...))
	cmd.Stdin = strings.NewReader(stdin)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("kcat %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return string(out), nil
}

func (b *compatBed) kcat(t *testing.T) error {
	version, err := exec.Command("kcat", "-V").Output()
	if err == nil {
		_, rest, _ := strings.Cut(string(version), "Version ")
		number, rest, _ := strings.Cut(rest, " ")
		_, library, _ := strings.Cut(rest, "librdkafka ")
		b.table.named("kcat", fmt.Sprintf("%s (librdkafka %s)", number, strings.Fields(library)[0]))
	}
	createTopic(t, b.dst, "kcat", 3, nil)
	out, err := b.kcatRun(t, "", "-L", "-J")
	var told struct{ Brokers []struct{ Name string } }
	if err = errors.Join(err, json.Unmarshal([]byte(out), &told)); err != nil {
		return err
	}
	host, first := b.gatewayAt()
	for i, broker := range told.Brokers {
		if _, port, _ := net.SplitHostPort(broker.Name); !strings.HasPrefix(broker.Name, host+":") || port < strconv.Itoa(first) {
			return fmt.Errorf("told of %s as broker %d of %d", broker.Name, i, len(told.Brokers))
		}
	}
	if _, err := b.kcatRun(t, numberedLines(compatCount), "-P", "-t", "kcat", "-K", ":", "-H", "h=1", "-z", "lz4", "-X",
		"enable.idempotence=true"); err != nil {
		return err
	}
	if out, err = b.kcatRun(t, "", "-C", "-e", "-q", "-t", "kcat", "-o", "beginning", "-f", "%p %o %k=%s %h\n"); err != nil {
		return err
	}
	got := map[tpOffset]string{}
	for line := range strings.Lines(out) {
		var at tpOffset
		var record, headers string
		if _, err := fmt.Sscan(line, &at.partition, &at.offset, &record, &headers); err != nil || headers != "h=1" {
			return fmt.Errorf("kcat printed %q", line)
		}
		got[at] = record
	}
	if err := whole(got, compatCount); err != nil {
		return err
	}
	if out, err = b.kcatRun(t, "", "-G", "kcat", "-c", strconv.Itoa(compatCount), "-q", "-X", "auto.offset.reset=earliest",
		"kcat"); err != nil {
		return err
	}
	if n := strings.Count(out, "\n"); n != compatCount {
		return fmt.Errorf("a group got %d records of %d", n, compatCount)
	}
	if out, err = b.kcatRun(t, "", "-Q", "-t", "kcat:0:-1", "-t", "kcat:1:-1", "-t", "kcat:2:-1"); err != nil || strings.Count(out,
		"offset") != 3 {
		return fmt.Errorf("offsets: %w %q", err, out)
	}
	return errors.Join(b.ends(t, "kcat", compatCount), b.committed(t, "kcat", compatCount))
}

func (b *compatBed) streams(t *testing.T) error {
	createTopic(t, b.dst, "lines", 2, nil)
	createTopic(t, b.dst, "counts", 2, nil)
	var records []*kgo.Record
	for i := range 100 {
		records = append(records, &kgo.Record{Topic: "lines", Partition: int32(i % 2), Value: fmt.Appendf(nil,
			"All streams lead to word%d, all of them", i%10)})
	}
	if err := client(t, b.dst).ProduceSync(timeout(t, toolLimit), records...).FirstErr(); err != nil {
		return err
	}
	cmd := b.ns.inside(testkafka.Streams(timeout(t, 2*time.Minute), b.version, "testdata/compat/WordCount.java", b.addr, b.users,
		"lines", "counts", t.TempDir()))
	var errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &errs, &errs
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	err := b.counts(t, ended)
	cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(toolLimit / 2):
		cmd.Process.Kill()
		err = errors.Join(err, errors.New("does not end on SIGTERM"))
	}
	if err != nil {
		t.Logf("%.6000s", errs.String())
	}
	return err
}

// counts waits for the last counts of all words.
func (b *compatBed) counts(t *testing.T, ended chan error) error {
	want := map[string]int64{"all": 200, "streams": 100, "lead": 100, "to": 100, "of": 100, "them": 100}
	for i := range 10 {
		want[fmt.Sprint("word", i)] = 10
	}
	cl := client(t, b.dst, kgo.ConsumeTopics("counts"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	ctx, got := timeout(t, 90*time.Second), map[string]int64{}
	for left := len(want); left > 0; {
		fetches := cl.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) {
			var n int64
			for _, digit := range r.Value {
				n = n<<8 | int64(digit)
			}
			got[string(r.Key)] = n
		})
		left = 0
		for word, n := range want {
			if got[word] != n {
				left++
			}
		}
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("it ended by itself: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("counts %v, want %v", got, want)
		default:
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("counts %v, want %v", got, want)
	}
	topics, err := kadm.NewClient(client(t, b.dst)).ListTopics(timeout(t, toolLimit))
	inner := 0
	for name := range topics {
		if strings.HasPrefix(name, "counts-") {
			inner++
		}
	}
	if err == nil && inner != 2 {
		err = fmt.Errorf("%d topics for repartition and changelog", inner)
	}
	return err
}
