package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// fetched is the topic that all fetches read.
const fetched = "fetched"

// load is one kind of traffic. run moves all records by one way and returns the rate in MB/s, and the client's CPU time.
type load struct {
	name string
	bar  float64 // of the rate as a part of the direct one, 0 for none
	run  func(r *road, ctx context.Context, addr, topic string) (float64, time.Duration, error)
}

// loads in the order of a round. The bars hold for Kafka's perf tools and for kcat as they are used. kcat with batches of 64 KiB costs so
// little itself that the price of a single request shows: it has none.
var loads = []load{
	{"produce", produceBar, (*road).javaProduce},
	{"fetch", fetchBar, (*road).javaFetch},
	{"kcat produce", produceBar, (*road).kcatProduce},
	{"kcat fetch", fetchBar, (*road).kcatFetch},
	{"kcat 64 KiB", 0, (*road).kcatSmall},
}

func loadNames() string {
	var names []string
	for _, l := range loads {
		names = append(names, l.name)
	}
	return strings.Join(names, ",")
}

// chosen returns the loads that are to be measured, and an error where one of them is not known.
func (s settings) chosen() ([]load, error) {
	if s.loads == "" {
		return loads, nil
	}
	var list []load
	for _, name := range strings.Split(s.loads, ",") {
		i := slices.IndexFunc(loads, func(l load) bool { return l.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-proxy-loads %s is not known: give some of %s", name, loadNames())
		}
		list = append(list, loads[i])
	}
	return list, nil
}

// moved is what one run came to.
type moved struct {
	rate  float64 // MB/s
	perGB float64 // CPU-s of the proxy
	all   float64 // CPU-s of the client, the proxy and the broker together
}

// throughput has each load go each way, in rounds that begin with another way each, after one that warms up.
func (r *road) throughput(ctx context.Context) error {
	if err := r.writeLines(); err != nil {
		return err
	}
	if err := r.withTopic(ctx, fetched, func() error {
		if _, _, err := r.javaProduce(ctx, r.ways[0].addr, fetched); err != nil {
			return err
		}
		return r.rounds(ctx)
	}); err != nil {
		return err
	}
	return nil
}

func (r *road) rounds(ctx context.Context) error {
	fmt.Printf("Through the gateway, %d records of %d bytes a run, %d partitions, acks=1; MB/s, and the proxy's CPU-s per GB:\n",
		r.proxied, r.size, r.partitions)
	loads, err := r.chosen()
	if err != nil {
		return err
	}
	all := make([][][]moved, len(loads)) // by load, way and round
	for i := range loads {
		all[i] = make([][]moved, len(r.ways))
	}
	for round := range r.runs + 1 {
		for i, l := range loads {
			line := ""
			got := make([]moved, len(r.ways))
			for n := range r.ways {
				at := (n + round) % len(r.ways)
				m, err := r.measure(ctx, l, r.ways[at])
				if err != nil {
					return fmt.Errorf("%s, %s: %w", l.name, r.ways[at].name, err)
				}
				got[at] = m
			}
			for at, w := range r.ways {
				line += fmt.Sprintf("  %s %.0f", w.name, got[at].rate)
				if w.pid != 0 {
					line += fmt.Sprintf(" (%.2f)", got[at].perGB)
				}
				if round > 0 {
					all[i][at] = append(all[i][at], got[at])
				}
			}
			what := fmt.Sprintf("run %d", round)
			if round == 0 {
				what = "warm-up"
			}
			fmt.Printf("  %-8s %-13s%s\n", what, l.name, line)
		}
	}
	r.verdicts(loads, all)
	return nil
}

// verdicts prints medians: of each round's ratio to the direct way, which load from elsewhere disturbs least, and of CPU time. Where that
// load is heavy the ratio of the CPU that everybody needs says more: it is what the rate would be on cores of one's own, all in use.
func (r *road) verdicts(loads []load, all [][][]moved) {
	fmt.Printf("Medians of %d rounds:\n", r.runs)
	cpu := func(ms []moved) float64 { return median(ms, func(m moved) float64 { return m.perGB }) }
	for i, l := range loads {
		for at := 1; at < len(r.ways); at++ {
			var rates, costs []float64
			for n, m := range all[i][at] {
				rates = append(rates, m.rate/all[i][0][n].rate)
				costs = append(costs, all[i][0][n].all/m.all)
			}
			what := fmt.Sprintf("%s, %s / direct", l.name, r.ways[at].name)
			if got := middle(rates); l.bar > 0 && at == 1 {
				bar(what, got, ">=", l.bar)
			} else {
				figure(what, got)
			}
			figure("  by the CPU that all of it takes", middle(costs))
		}
		what := l.name + ", kmirror's CPU, s per GB"
		if len(r.ways) > 2 {
			bar(what, cpu(all[i][1]), "<", cpu(all[i][2]))
		} else {
			figure(what, cpu(all[i][1]))
		}
	}
}

func middle(v []float64) float64 { return median(v, func(f float64) float64 { return f }) }

// figure prints what has no bar.
func figure(what string, got float64) { fmt.Printf("  %-40s %8.2f\n", what, got) }

func (r *road) gigabytes() float64 { return float64(r.proxied) * float64(r.size) / 1e9 }

// measure does one run. Each writes to a topic of its own, which is gone before the next.
func (r *road) measure(ctx context.Context, l load, w way) (m moved, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cpu := func(pid int) time.Duration {
		if pid == 0 {
			return 0
		}
		d, _, usageErr := testkafka.Usage(pid)
		err = errors.Join(err, usageErr)
		return d
	}
	err = r.withTopic(ctx, "produced", func() error {
		proxy, broker := cpu(w.pid), cpu(r.c.Node(1).PID())
		rate, client, err := l.run(r, ctx, w.addr, "produced")
		proxy, broker = cpu(w.pid)-proxy, cpu(r.c.Node(1).PID())-broker
		m = moved{rate: rate, perGB: proxy.Seconds() / r.gigabytes(), all: (proxy + broker + client).Seconds()}
		return err
	})
	return m, err
}

// withTopic runs f while there is a topic.
func (r *road) withTopic(ctx context.Context, topic string, f func() error) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.c.Bootstrap("CLIENT")...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	if _, err := adm.CreateTopic(ctx, int32(r.partitions), 1, map[string]*string{"segment.bytes": new("134217728")}, topic); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	if _, err := adm.DeleteTopic(ctx, topic); err != nil {
		return err
	}
	return until(ctx, 30*time.Second, func() (bool, error) {
		ts, err := adm.ListTopics(ctx, topic)
		return err == nil && !ts.Has(topic), nil
	})
}

func (r *road) javaProduce(ctx context.Context, addr, topic string) (float64, time.Duration, error) {
	config := filepath.Join(r.c.Dir(), "producer.properties")
	if err := os.WriteFile(config, []byte("batch.size=65536\nlinger.ms=5\nacks=1\n"), 0o600); err != nil {
		return 0, 0, err
	}
	out, cpu, err := output(testkafka.Tool(ctx, "", "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", addr, "--topic", topic,
		"--num-records", strconv.Itoa(r.proxied), "--record-size", strconv.Itoa(r.size), "--throughput", "-1", "--command-config", config))
	if err != nil {
		return 0, 0, err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := lines[len(lines)-1]
	sent, rest, _ := strings.Cut(last, " records sent, ")
	var perSecond float64
	if _, err := fmt.Sscanf(rest, "%f records/sec", &perSecond); err != nil || sent != strconv.Itoa(r.proxied) {
		return 0, 0, fmt.Errorf("the last line of the producer is %q", last)
	}
	return perSecond * float64(r.size) / 1e6, cpu, nil
}

// javaFetch returns the rate of fetching alone, without the time that the group takes to form.
func (r *road) javaFetch(ctx context.Context, addr, _ string) (float64, time.Duration, error) {
	out, cpu, err := output(testkafka.Tool(ctx, "", "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", addr, "--topic", fetched,
		"--num-records", strconv.Itoa(r.proxied), "--hide-header"))
	if err != nil {
		return 0, 0, err
	}
	f := strings.Split(strings.TrimSpace(out), ", ")
	// start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
	if len(f) != 10 || f[4] != strconv.Itoa(r.proxied) {
		return 0, 0, fmt.Errorf("the consumer says %q", out)
	}
	rate, err := strconv.ParseFloat(f[8], 64)
	return rate * (1 << 20) / 1e6, cpu, err
}

// lines is the file that kcat produces: a record a line.
func (r *road) lines() string { return filepath.Join(r.c.Dir(), "lines") }

func (r *road) writeLines() error {
	f, err := os.Create(r.lines())
	if err != nil {
		return err
	}
	line := append(bytes.Repeat([]byte("k"), r.size), '\n')
	block := bytes.Repeat(line, 1000)
	for n := r.proxied; n > 0 && err == nil; n -= 1000 {
		_, err = f.Write(block[:min(n, 1000)*len(line)])
	}
	return errors.Join(err, f.Close())
}

// kcatProduce has librdkafka make its batches as it does by default: of up to 1 MB.
func (r *road) kcatProduce(ctx context.Context, addr, topic string) (float64, time.Duration, error) {
	return r.kcat(ctx, addr, topic)
}

func (r *road) kcatSmall(ctx context.Context, addr, topic string) (float64, time.Duration, error) {
	return r.kcat(ctx, addr, topic, "-X", "batch.size=65536")
}

func (r *road) kcat(ctx context.Context, addr, topic string, more ...string) (float64, time.Duration, error) {
	return r.timed(testkafka.Kcat(ctx, append([]string{"-P", "-b", addr, "-t", topic, "-X", "acks=1", "-l", r.lines()}, more...)...))
}

// kcatFetch shortens the time that a broker waits for more: kcat learns that it is at the end from fetches that bring nothing, and half a
// second of that, the default, is about as long as all records take.
func (r *road) kcatFetch(ctx context.Context, addr, _ string) (float64, time.Duration, error) {
	return r.timed(testkafka.Kcat(ctx, "-C", "-b", addr, "-t", fetched, "-o", "beginning", "-e", "-q", "-X", "fetch.wait.max.ms=20"))
}

// timed is the rate of a command that moves all records. What it writes is dropped.
func (r *road) timed(cmd *exec.Cmd) (float64, time.Duration, error) {
	var failed bytes.Buffer
	cmd.Stderr = &failed
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, 0, fmt.Errorf("%w\n%.2000s", err, failed.Bytes())
	}
	return r.gigabytes() * 1000 / time.Since(begin).Seconds(), used(cmd), nil
}

func output(cmd *exec.Cmd) (string, time.Duration, error) {
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		return "", 0, fmt.Errorf("%w\n%.2000s%.2000s", err, out, failed.Bytes())
	}
	return string(out), used(cmd), nil
}

func used(cmd *exec.Cmd) time.Duration {
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}
