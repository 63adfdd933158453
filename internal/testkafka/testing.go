package testkafka

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// fetchLimit bounds a first download of the jars, on top of the start of the cluster itself.
const fetchLimit = 10 * time.Minute

// Start starts a cluster that ends with the test. Under -short the test is skipped. When the test has failed, the
// cluster's directory is kept and named; it fails, too, when Faults finds something at its end. The JVMs compile for a
// fast start rather than for throughput: measure with Launch.
func Start(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	if testing.Short() {
		tb.Skip("real brokers are not run under -short")
	}
	dir, err := os.MkdirTemp("", "kmirror-test-")
	if err != nil {
		tb.Fatal(err)
	}
	o.JVM = slices.Concat([]string{"-XX:TieredStopAtLevel=1"}, o.JVM)
	ctx, cancel := context.WithTimeout(tb.Context(), fetchLimit)
	defer cancel()
	c, err := Launch(ctx, dir, o, nil)
	if err != nil {
		tb.Fatalf("%v\nlogs are kept in %s", err, dir)
	}
	tb.Cleanup(func() { c.finish(tb) })
	return c
}

// passing is how long a follower may take to go on that has given a partition up because of an epoch that is yet to come.
const passing = 10 * time.Second

// lasting returns the faults that are there after a while: what a follower complains of in passing is none once it goes on, and a test may
// end in between.
func (c *Cluster) lasting() (faults []string) {
	ctx, cancel := context.WithTimeout(context.Background(), passing)
	defer cancel()
	_ = poll(ctx, func() (bool, error) { // what is there at the end tells
		faults = c.Faults()
		return !slices.ContainsFunc(faults, failedLine.MatchString), nil
	})
	return faults
}

// finish ends the cluster of a test and judges its logs.
func (c *Cluster) finish(tb testing.TB) {
	tb.Helper()
	faults := c.lasting()
	if err := c.Close(); err != nil {
		tb.Errorf("close cluster %q: %v", c.opts.Name, err)
	}
	if len(faults) > 0 {
		tb.Errorf("cluster %q logged faults:\n%s", c.opts.Name, strings.Join(faults, "\n"))
	}
	if tb.Failed() {
		tb.Logf("logs of cluster %q are kept in %s", c.opts.Name, c.dir)
		return
	}
	if err := os.RemoveAll(c.dir); err != nil {
		tb.Errorf("remove directory of cluster %q: %v", c.opts.Name, err)
	}
}
