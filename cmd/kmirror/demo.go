package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/internal/testkafka"
	"kmirror/protocol/kip1279"
)

const (
	demoMirror     = "demo"
	demoTopic      = "orders"
	demoPartitions = 6
	demoGroup      = "app"
	// demoLimit ends a demo in which something hangs: five times what it takes on two cores.
	demoLimit = 10 * time.Minute
)

func newDemoCommand(c *cli) *cobra.Command {
	var exit bool
	cmd := &cobra.Command{
		Use: "demo", Short: "Show all of it on two real Kafka clusters on this machine",
		Long: `Start two real Kafka clusters on loopback, mirror a topic from one into the other, and check that every byte is equal
and that nobody can write to the mirror. Then lose the source, fail over, mirror back, and leave no trace.
Each line is followed by commands of stock tools that repeat it.
At a terminal the clusters stay up for playing until Ctrl-C. Needs a JDK, Maven (for the first run) and kcat.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := &demo{cli: c, began: time.Now()}
			return d.run(cmd.Context(), !exit && c.terminal && c.screen)
		},
	}
	cmd.Flags().BoolVar(&exit, "exit", false, "end when the checks are done, also at a terminal")
	return cmd
}

// demo is one run. What it starts is ended by end, in whatever way run returns.
type demo struct {
	*cli
	began time.Time
	dir   string

	a, b *testkafka.Cluster
	// shim mirrors A into B, back mirrors B into A.
	shim, back *demoShim

	// sums are the segments that every broker had when the mirror was complete.
	sums segmentSums
	// fork is where B took over from A.
	fork fork
}

// run shows the lines in order and stops at the first that fails.
func (d *demo) run(ctx context.Context, play bool) (err error) {
	if d.dir, err = os.MkdirTemp("", "kmirror-demo-"); err != nil {
		return err
	}
	defer d.end()
	limited, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	for _, line := range []struct {
		name string
		show func(context.Context) error
	}{
		{"clusters", d.clusters},
		{"load", d.load},
		{"mirror", d.mirror},
		{"identical", d.identical},
		{"locked", d.locked},
		{"restart", d.restart},
		{"move", d.move},
		{"disaster", d.disaster},
		{"failback", d.failback},
		{"retire", d.retire},
	} {
		if err := line.show(limited); err != nil {
			return d.failed(ctx, line.name, err)
		}
	}
	fmt.Fprintf(d.out, "ALL CHECKS PASSED in %s\n", seconds(time.Since(d.began)))
	if play {
		d.playground()
		<-ctx.Done()
		d.note("\nending the clusters")
	}
	return nil
}

// failed names the check; an interrupt is no failed check.
func (d *demo) failed(ctx context.Context, name string, err error) error {
	d.progress("")
	if ctx.Err() != nil {
		return &admin.Error{Code: kip1279.RequestTimedOut, Message: "demo interrupted",
			Hint: "its clusters and files are gone; run it again", Exit: admin.ExitFailed}
	}
	fmt.Fprintf(d.out, "FAILED %s: %v\n", name, err)
	for _, s := range []*demoShim{d.shim, d.back} {
		if s != nil {
			d.note("%s:\n%s", s.log, s.lastLog(15))
		}
	}
	return &admin.Error{Code: kip1279.UnknownServerError, Message: "demo: check " + name + " failed",
		Hint: "the last lines of kmirror's log are above", Exit: admin.ExitFailed}
}

// end stops every process and removes every file, whatever has been started.
func (d *demo) end() {
	d.progress("")
	var errs []error
	for _, s := range []*demoShim{d.shim, d.back} {
		if s != nil {
			errs = append(errs, s.stop())
		}
	}
	for _, c := range []*testkafka.Cluster{d.a, d.b} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	if err := errors.Join(append(errs, os.RemoveAll(d.dir))...); err != nil {
		d.note("demo: cleaning up: %v", err)
	}
}

// line prints a check's result, and the commands that repeat it.
func (d *demo) line(name, result string, commands ...string) {
	d.progress("")
	fmt.Fprintf(d.out, "%-9s %s\n", name, result)
	for _, c := range commands {
		fmt.Fprintf(d.out, "          $ %s\n", c)
	}
}

// await calls check every 200 ms until it is done, showing at a terminal what it says. The last thing it said is part of the
// error when the limit is over.
func (d *demo) await(ctx context.Context, name string, limit time.Duration, check func(context.Context) (string, bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	var says string
	for {
		now, done, err := check(ctx)
		if done || err != nil {
			return err
		}
		if ctx.Err() == nil { // else what it says is about the limit itself
			says = now
		}
		d.progress(fmt.Sprintf("%-9s %s (%s)", name, says, seconds(time.Since(began))))
		select {
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("after %s: %s", seconds(time.Since(began)), says)
			}
			return ctx.Err()
		}
	}
}

// clusters starts A and B at the same time.
func (d *demo) clusters(ctx context.Context) error {
	if cmd := testkafka.Kcat(ctx, "-V"); cmd.Err != nil {
		return cmd.Err
	}
	d.progress("clusters  fetching the jars of Kafka " + testkafka.Latest + " (the first run only; this can take minutes)")
	if err := testkafka.Fetch(ctx, testkafka.Latest); err != nil {
		return err
	}
	d.began = time.Now() // the download is not the demo's
	jars, err := testkafka.JarsUnmodified(testkafka.Latest)
	if err != nil {
		return err
	}
	type started struct {
		c   *testkafka.Cluster
		err error
	}
	launch := func(name string, brokers int) <-chan started {
		out := make(chan started, 1)
		dir := filepath.Join(d.dir, name)
		go func() {
			if err := os.Mkdir(dir, 0o755); err != nil {
				out <- started{err: err}
				return
			}
			c, err := testkafka.Launch(ctx, dir, testkafka.Options{Name: name, Brokers: brokers}, nil)
			out <- started{c, err}
		}()
		return out
	}
	as, bs := launch("A", 1), launch("B", 3)
	var a, b *started
	err = d.await(ctx, "clusters", 5*time.Minute, func(context.Context) (string, bool, error) {
		select {
		case s := <-as:
			a = &s
		case s := <-bs:
			b = &s
		default:
		}
		return "starting A (1 broker) and B (3 brokers)", a != nil && b != nil, nil
	})
	// Both are collected in any case, so that end can end them.
	if a == nil {
		s := <-as
		a = &s
	}
	if b == nil {
		s := <-bs
		b = &s
	}
	d.a, d.b = a.c, b.c
	if err := errors.Join(err, a.err, b.err); err != nil {
		return err
	}
	d.line("clusters", fmt.Sprintf("A 1 broker, B 3, Kafka %s, jars unmodified (sha512 of %d ok)   %s",
		d.b.Version(), jars, seconds(time.Since(d.began))),
		"kcat -L -b "+d.servers(d.a), "kcat -L -b "+d.servers(d.b))
	return nil
}

// playground tells what can be done with the clusters.
func (d *demo) playground() {
	fmt.Fprintf(d.out, `
The clusters stay up until Ctrl-C. kmirror has left both; each can be written to.
  A   %s
  B   %s
Mirror again, A into B:
  %s serve --config %s &
  %s
  %s
Then
  echo hello | kcat -P -b %[1]s -t %[7]s        write at the source
  kcat -C -b %[2]s -t %[7]s -o -3 -e   read it at the destination
  echo no | kcat -P -b %[2]s -t %[7]s  be refused
`, d.servers(d.a), d.servers(d.b), d.shim.binary, d.shim.config, d.shim.line("start", "--mirror", demoMirror, "--topics", demoTopic),
		d.shim.line("describe"), demoTopic)
}

// servers is a cluster's bootstrap list for clients.
func (d *demo) servers(c *testkafka.Cluster) string {
	return strings.Join(c.Bootstrap(testkafka.ClientListener), ",")
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

// grouped prints a number with commas between thousands.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
