package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
)

// mirror starts kmirror and mirrors the topic.
func (d *demo) mirror(ctx context.Context) (err error) {
	if d.shim, err = newDemoShim(filepath.Join(d.dir, "kmirror-B"), d.b, 9001, 9002); err != nil {
		return err
	}
	if err := d.serve(ctx, "mirror", d.shim); err != nil {
		return err
	}
	if err := d.shim.define(ctx, demoMirror, d.servers(d.a)); err != nil {
		return err
	}
	lag, err := d.lag(ctx)
	if err != nil {
		return err
	}
	if _, err := d.shim.command(ctx, "start", "--mirror", demoMirror, "--topics", demoTopic); err != nil {
		return err
	}
	rate, took, err := d.catchUp(ctx)
	if err != nil {
		return err
	}
	d.line("mirror", fmt.Sprintf("lag %s -> 0, %.0f MB/s   %s", grouped(lag), rate/1e6, seconds(took)),
		fmt.Sprintf("%s --bootstrap-server %s --topic %s", d.tool("org.apache.kafka.tools.GetOffsetShell"), d.servers(d.b), demoTopic),
		fmt.Sprintf("kcat -C -b %s -t %s -X isolation.level=read_uncommitted -e -q -f '%%p %%o\\n' | wc -l", d.servers(d.b), demoTopic))
	return nil
}

// serve starts the process and waits until it is ready.
func (d *demo) serve(ctx context.Context, line string, s *demoShim) error {
	if err := s.start(); err != nil {
		return err
	}
	return d.await(ctx, line, time.Minute, s.ready)
}

// catchUp waits until every broker of B has what A has and all partitions are settled. The rate is over the time in which
// bytes flowed to the first broker.
func (d *demo) catchUp(ctx context.Context) (bytesPerSecond float64, took time.Duration, err error) {
	began := time.Now()
	total := d.logBytes(d.a, 1)
	var first time.Time
	err = d.await(ctx, "mirror", 2*time.Minute, func(ctx context.Context) (string, bool, error) {
		have := total
		for _, id := range d.b.Brokers() {
			have = min(have, d.logBytes(d.b, id))
		}
		now := time.Now()
		if first.IsZero() && have > 0 {
			first = now
		}
		if have == total && bytesPerSecond == 0 {
			bytesPerSecond = float64(total) / max(now.Sub(first), 200*time.Millisecond).Seconds()
		}
		if have < total {
			rate := 0.0
			if s := now.Sub(first).Seconds(); !first.IsZero() && s > 0 {
				rate = float64(have) / s
			}
			lag, err := d.lag(ctx)
			if err != nil {
				return "asking for the lag: " + err.Error(), false, nil
			}
			return fmt.Sprintf("lag %s, %.0f MB/s", grouped(lag), rate/1e6), false, nil
		}
		return settled(ctx, d.shim, demoMirror)
	})
	return bytesPerSecond, time.Since(began), err
}

// settled reports whether describe shows every partition of a mirror mirroring, with all real brokers in sync and no lag.
func settled(ctx context.Context, s *demoShim, mirror string) (string, bool, error) {
	parts, err := s.client.Describe(ctx, admin.DescribeRequest{Mirrors: []string{mirror}, Topics: []string{demoTopic}})
	if err != nil {
		return err.Error(), false, nil
	}
	n := 0
	says := ""
	for _, p := range parts {
		if p.State == "MIRRORING" && len(p.ISRReal) == len(s.cluster.Brokers()) && p.Lag != nil && *p.Lag == 0 {
			n++
		} else {
			says = fmt.Sprintf("; %s-%d is %s, lag %s, in sync %v %s", p.Topic, p.Partition, p.State, cell(p.Lag), p.ISRReal, cell(p.Error))
		}
	}
	return fmt.Sprintf("%d of %d partitions settled%s", n, demoPartitions, says), n == demoPartitions, nil
}

// logBytes is the size of the topic on a broker.
func (d *demo) logBytes(c *testkafka.Cluster, broker int32) (n int64) {
	for p := range int32(demoPartitions) {
		n += testkafka.LogBytes(c.Node(broker), demoTopic, p)
	}
	return n
}

// lag is how many offsets B's high watermarks are behind A's; all of A's while the topic is not there.
func (d *demo) lag(ctx context.Context) (int64, error) {
	source, err := d.ends(ctx, d.a)
	if err != nil {
		return 0, err
	}
	dest, err := d.ends(ctx, d.b)
	if err != nil {
		return 0, err
	}
	var n int64
	for p, end := range source {
		n += end - dest[p]
	}
	return n, nil
}

// ends returns the topic's high watermarks by partition; what is not known counts as 0.
func (d *demo) ends(ctx context.Context, c *testkafka.Cluster) (map[int32]int64, error) {
	cl, err := d.kafka(c)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	offsets, err := kadm.NewClient(cl).ListEndOffsets(ctx, demoTopic)
	if err != nil {
		return nil, err
	}
	out := map[int32]int64{}
	offsets.Each(func(o kadm.ListedOffset) {
		if o.Err == nil {
			out[o.Partition] = o.Offset
		}
	})
	return out, nil
}

// segmentSums holds the SHA-256 of segment files by broker and partition-file name.
type segmentSums map[string]map[string]string

func (d *demo) segments(c *testkafka.Cluster, name string, into segmentSums) error {
	for _, id := range c.Brokers() {
		who := name
		if len(c.Brokers()) > 1 {
			who = fmt.Sprintf("%s%d", name, id)
		}
		into[who] = map[string]string{}
		for p := range int32(demoPartitions) {
			sums, err := testkafka.SegmentSums(c.Node(id), demoTopic, p)
			if err != nil {
				return err
			}
			for file, sum := range sums {
				into[who][fmt.Sprintf("%s-%d/%s", demoTopic, p, file)] = sum
			}
		}
	}
	return nil
}

// same names the first file that differs.
func (s segmentSums) same(want map[string]string) error {
	for who, have := range s {
		for file, sum := range want {
			if have[file] != sum {
				return fmt.Errorf("%s of %s is %s, want %s", file, who, orNothing(have[file]), sum)
			}
		}
		if len(have) != len(want) {
			return fmt.Errorf("%s has %d segment files, want %d", who, len(have), len(want))
		}
	}
	return nil
}

// identical compares every segment file, and has kmirror verify compare what brokers answer.
func (d *demo) identical(ctx context.Context) error {
	d.progress("identical comparing segment files")
	d.sums = segmentSums{}
	if err := errors.Join(d.segments(d.a, "A", d.sums), d.segments(d.b, "B", d.sums)); err != nil {
		return err
	}
	if err := d.sums.same(d.sums["A"]); err != nil {
		return err
	}
	d.progress("identical kmirror verify")
	out, err := d.shim.command(ctx, "verify", "--mirror", demoMirror, "-o", "json")
	if err != nil {
		return err
	}
	var r verifyResult
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return fmt.Errorf("kmirror verify: %w", err)
	}
	if r.Differ != 0 || r.Batches == 0 || r.Partitions != demoPartitions || len(r.Notes) > 0 {
		return fmt.Errorf("kmirror verify: %s", strings.TrimSpace(out))
	}
	d.line("identical", fmt.Sprintf("segment sha256 A = B1 = B2 = B3, %d/%d; verify: %d of %s batches differ", demoPartitions, demoPartitions,
		r.Differ, grouped(r.Batches)),
		fmt.Sprintf("sha256sum %s/{A,B}/node-*/data/%s-*/*.log | sort", d.dir, demoTopic),
		fmt.Sprintf("%s verify --mirror %s --bootstrap-server %s", d.shim.binary, demoMirror, d.shim.admin))
	return nil
}

// unchanged compares B's segment files with what they were when the mirror was complete.
func (d *demo) unchanged() error {
	now := segmentSums{}
	if err := d.segments(d.b, "B", now); err != nil {
		return err
	}
	return now.same(d.sums["A"])
}
