// Command bench measures kmirror beside the brokers' own replication, in one run on one machine, and prints ratios. Absolute
// figures say more about the machine than about kmirror: processes share its cores. What carries over is CPU time per GB.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
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
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bed is the two clusters and the kmirror process between them.
type bed struct {
	settings
	src, dst *testkafka.Cluster
	shim     *shim
}

func run(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp("", "kmirror-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	props := map[string]string{"log.segment.delete.delay.ms": "1000", "log.retention.check.interval.ms": "600000"}
	fmt.Println("starting clusters: source of 1 node, destination of 1 controller and 3 brokers, Kafka", testkafka.Latest)
	b := &bed{settings: s}
	if b.src, err = testkafka.Launch(ctx, filepath.Join(dir, "src"), testkafka.Options{Name: "source", Properties: props}, os.Stderr); err != nil {
		return err
	}
	defer b.src.Close()
	if b.dst, err = testkafka.Launch(ctx, filepath.Join(dir, "dst"), testkafka.Options{Name: "destination", Brokers: 3, Controllers: 1, Properties: props}, os.Stderr); err != nil {
		return err
	}
	defer b.dst.Close()
	if b.shim, err = startShim(ctx, s, filepath.Join(dir, "shim"), b.src, b.dst); err != nil {
		return err
	}
	defer b.shim.stop()
	if err := b.catchUp(ctx); err != nil {
		return err
	}
	if s.latency > 0 {
		return b.steady(ctx)
	}
	return nil
}
