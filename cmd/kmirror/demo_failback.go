package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"kmirror/internal/admin"
)

const (
	demoBackMirror = "back"
	// demoNew is how many records B is given while A is away.
	demoNew = 1000
)

// failback mirrors A, which is back with what B never saw, from B. Nobody says --overwrite: B remembers up to where both are alike.
func (d *demo) failback(ctx context.Context) (err error) {
	if err := d.writeAtB(ctx); err != nil {
		return err
	}
	if d.back, err = newDemoShim(filepath.Join(d.dir, "kmirror-A"), d.a, 9101, 9102); err != nil {
		return err
	}
	if err := d.serve(ctx, "failback", d.back); err != nil {
		return err
	}
	if err := d.back.define(ctx, demoBackMirror, d.servers(d.b)); err != nil {
		return err
	}
	ends, err := d.ends(ctx, d.b)
	if err != nil {
		return err
	}
	news := offsets(ends) - offsets(d.fork.ends)
	if err := d.planBack(ctx, news); err != nil {
		return err
	}
	if _, err := d.back.command(ctx, "start", "--mirror", demoBackMirror, "--topics", demoTopic); err != nil {
		return err
	}
	if err := d.await(ctx, "failback", time.Minute, func(ctx context.Context) (string, bool, error) {
		return settled(ctx, d.back, demoBackMirror)
	}); err != nil {
		return err
	}
	if err := d.sameAgain(); err != nil {
		return err
	}
	bytes, err := d.back.fetched(ctx)
	if err != nil {
		return err
	}
	// What is read twice, because it came while A's log was still being cut, is little.
	if grown := d.logBytes(d.b, 1) - d.fork.bytes; bytes < grown || bytes > 2*grown {
		return fmt.Errorf("kmirror read %d bytes of B to copy %d", bytes, grown)
	}
	d.line("failback", fmt.Sprintf("A had %s alone: truncated; copied %s records (%s KB), not %s; sha256 equal", grouped(d.fork.lost),
		grouped(news), grouped(bytes/1000), grouped(offsets(ends))),
		d.back.line("start", "--mirror", demoBackMirror, "--topics", demoTopic),
		"curl -s http://"+d.back.http+"/metrics | grep fetched_bytes_total",
		fmt.Sprintf("sha256sum %s/{A,B}/node-*/data/%s-*/*.log | sort", d.dir, demoTopic))
	return nil
}

// writeAtB is what clients do after a failover.
func (d *demo) writeAtB(ctx context.Context) error {
	cl, err := d.kafka(d.b)
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	d.progress(fmt.Sprintf("failback  writing %s records at B", grouped(demoNew)))
	for n := 0; n < demoNew; n++ {
		cl.Produce(ctx, order(3*demoRecords+n), nil)
	}
	return cl.Flush(ctx)
}

// planBack wants start --dry-run to tell beforehand what A loses and what is copied.
func (d *demo) planBack(ctx context.Context, news int64) error {
	text, err := d.back.command(ctx, "start", "--mirror", demoBackMirror, "--topics", demoTopic, "--dry-run", "-o", "json")
	if err != nil {
		return err
	}
	var results []admin.TopicResult
	if err := json.Unmarshal([]byte(text), &results); err != nil {
		return fmt.Errorf("kmirror start --dry-run: %w", err)
	}
	var truncated, copied int64
	for _, r := range results {
		if r.Plan == nil {
			continue
		}
		for _, p := range r.Plan.Partitions {
			truncated, copied = truncated+p.Truncated, copied+p.Copied
		}
	}
	if truncated != d.fork.lost || copied != news {
		return fmt.Errorf("kmirror start --dry-run would truncate %d and copy %d, want %d and %d: %s", truncated, copied, d.fork.lost, news, text)
	}
	return nil
}

// sameAgain compares every segment file of A and B.
func (d *demo) sameAgain() error {
	d.progress("failback  comparing segment files")
	sums := segmentSums{}
	if err := d.segments(d.a, "A", sums); err != nil {
		return err
	}
	if err := d.segments(d.b, "B", sums); err != nil {
		return err
	}
	return sums.same(sums["B1"])
}

// fetched returns the bytes that the process has read from its sources and accepted.
func (s *demoShim) fetched(ctx context.Context) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.http+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	sum := 0.0
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "} ")
		if strings.HasPrefix(name, "kmirror_fetched_bytes_total{") {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, fmt.Errorf("metric %q: %w", lines.Text(), err)
			}
			sum += n
		}
	}
	return int64(sum), lines.Err()
}
