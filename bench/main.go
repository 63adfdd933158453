// Command bench measures kmirror beside the brokers' own replication, and its gateway beside the broker itself, in one run on one
// machine, and prints ratios. Absolute figures say more about the machine than about kmirror: processes share its cores. What carries
// over is CPU time per GB.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"kmirror/internal/testkafka"
)

// settings of a run.
type settings struct {
	binary, profile  string
	records, size    int
	partitions, runs int
	latency          time.Duration
	// failing partitions in topics are failed over; phases prints where the time goes also of runs that are fast enough.
	failing, topics int
	phases          bool
	// proxied is how many records each run of the proxy's part moves, kafkaProxy the binary that it is held against; none: it is left out.
	// loads names the ones that are measured, with commas; empty: all, and then latency.
	proxied           int
	kafkaProxy, loads string
	// realtime gives what is measured for its latency the processor before all others.
	realtime bool
	// ownCore gives proxies a core that broker and clients don't have.
	ownCore bool
	only    string
}

// part is one thing that is measured, between two clusters; alone is a part that has a cluster of its own instead.
type part struct {
	name    string
	measure func(*bed, context.Context) error
	alone   func(settings, context.Context) error
}

// parts of a run, in their order; -only names one.
var parts = []part{
	{name: "catchup", measure: (*bed).catchUp},
	{name: "latency", measure: (*bed).steady},
	{name: "failover", measure: (*bed).failover},
	{name: "takeover", measure: (*bed).takeover},
	{name: "sync", measure: (*bed).metadata},
	{name: "proxy", alone: settings.proxy},
}

func main() {
	var s settings
	flag.StringVar(&s.binary, "kmirror", "bin/kmirror", "the kmirror binary to measure")
	flag.StringVar(&s.profile, "cpu-profile", "", "write a CPU profile of kmirror to this file")
	flag.IntVar(&s.records, "records", 1_000_000, "records per catch-up run")
	flag.IntVar(&s.size, "size", 1000, "bytes per record")
	flag.IntVar(&s.partitions, "partitions", 4, "partitions")
	flag.IntVar(&s.runs, "runs", 3, "measured pairs of runs, after one warm-up pair")
	flag.DurationVar(&s.latency, "latency", 15*time.Second, "how long each steady stream runs, 3 s of it unmeasured; 0 leaves it out")
	flag.IntVar(&s.failing, "failover-partitions", 500, "partitions that fail over; 0 leaves it out")
	flag.IntVar(&s.topics, "failover-topics", 50, "topics that they are in")
	flag.BoolVar(&s.phases, "failover-phases", false, "print where the time of a failover goes, also when it is short enough")
	flag.IntVar(&s.proxied, "proxy-records", 500_000, "records per run through the gateway; 0 leaves it out")
	flag.StringVar(&s.kafkaProxy, "kafka-proxy", os.Getenv("KAFKA_PROXY"),
		"a binary of grepplabs/kafka-proxy to hold the gateway against; default $KAFKA_PROXY, none: left out")
	flag.StringVar(&s.loads, "proxy-loads", "", "measure these loads through the gateway only, with commas, and no latency: "+loadNames())
	flag.BoolVar(&s.ownCore, "proxy-own-core", false, "give the last core to the proxies alone, the others to broker and clients (needs taskset)")
	flag.BoolVar(&s.realtime, "realtime", false, "measure the gateway's latency at real-time priority, for machines with other work (needs root and chrt)")
	flag.StringVar(&s.only, "only", "", "measure one part only: "+partNames())
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s.check(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func partNames() string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

// check refuses settings that measure nothing.
func (s settings) check() error {
	switch {
	case s.only != "" && !slices.ContainsFunc(parts, func(p part) bool { return p.name == s.only }):
		return fmt.Errorf("-only %s is not known: give one of %s", s.only, partNames())
	case s.topics < 1 || s.failing > 0 && s.failing < s.topics:
		return fmt.Errorf("%d partitions can't be in %d topics", s.failing, s.topics)
	case s.proxied < 0:
		return fmt.Errorf("-proxy-records %d is negative", s.proxied)
	case s.runs < 1:
		return fmt.Errorf("-runs %d measures nothing", s.runs)
	}
	_, err := s.chosen()
	return err
}

// wants reports whether a part is to be measured.
func (s settings) wants(name string) bool {
	switch {
	case s.only != "":
		return s.only == name
	case name == "latency":
		return s.latency > 0
	case name == "failover":
		return s.failing > 0
	case name == "proxy":
		return s.proxied > 0
	}
	return true
}

// props of all brokers: what is deleted makes room soon, and nothing else is.
var props = map[string]string{"log.segment.delete.delay.ms": "1000", "log.retention.check.interval.ms": "600000"}

// bed is the two clusters and the kmirror process between them.
type bed struct {
	settings
	src, dst *testkafka.Cluster
	shim     *shim
	// rounds is how many rounds of the sync of metadata were asked for.
	rounds int
}

func run(ctx context.Context, s settings) error {
	if slices.ContainsFunc(parts, func(p part) bool { return p.measure != nil && s.wants(p.name) }) {
		if err := between(ctx, s); err != nil {
			return err
		}
	}
	for _, p := range parts {
		if p.alone == nil || !s.wants(p.name) {
			continue
		}
		if err := p.alone(s, ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// between measures what needs two clusters.
func between(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp("", "kmirror-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Println("starting clusters: source of 1 node, destination of 1 controller and 3 brokers, Kafka", testkafka.Latest)
	b := &bed{settings: s}
	if b.src, err = testkafka.Launch(ctx, filepath.Join(dir, "src"), testkafka.Options{Name: "source", Properties: props}, os.Stderr); err != nil {
		return err
	}
	defer b.src.Close()
	if b.dst, err = testkafka.Launch(ctx, filepath.Join(dir, "dst"),
		testkafka.Options{Name: "destination", Brokers: 3, Controllers: 1, Properties: props}, os.Stderr); err != nil {
		return err
	}
	defer b.dst.Close()
	if b.shim, err = startShim(ctx, s, filepath.Join(dir, "shim"), 9001, b.dst); err != nil {
		return err
	}
	defer b.shim.stop()
	if err := b.shim.create(b.src); err != nil {
		return err
	}
	for _, p := range parts {
		if p.measure == nil || !s.wants(p.name) {
			continue
		}
		if err := p.measure(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}
