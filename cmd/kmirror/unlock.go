package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/internal/unlock"
	"kmirror/protocol/kip1279"
)

// unlockFlags are the flags of unlock.
type unlockFlags struct {
	config, topics, nodeIDs, mirror string
	force                           bool
}

func newUnlockCommand(c *cli) *cobra.Command {
	var f unlockFlags
	cmd := &cobra.Command{
		Use: "unlock --config F --topics LIST", Short: "Break-glass: give topics back without kmirror serve and without the source",
		Long: `Give mirror topics back to the destination when kmirror is lost: takes the lock off and kmirror's ids out of the replica
lists. Needs neither kmirror serve nor the source, only the destination (destination.bootstrap_servers and destination.client of F).
While kmirror serve runs use failover, which loses less. LIST: literal names, /re/ (RE2 over the whole name) and @file.
May be run again at any moment; what is done is not done twice. Says at the end what was given up.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.unlock(cmd.Context(), f) },
	}
	cmd.Flags().StringVar(&f.config, "config", "", "kmirror.yaml")
	cmd.Flags().StringVar(&f.topics, "topics", "", "LIST of topics")
	cmd.Flags().StringVar(&f.nodeIDs, "node-ids", "", "ids of other kmirror processes, separated by commas (those of F are known)")
	cmd.Flags().BoolVar(&f.force, "force", false, "go on although a kmirror is alive and leads")
	cmd.Flags().StringVar(&f.mirror, "mirror", "", "accepted for likeness with failover; topics are what counts")
	mustRequire(cmd, "config", "topics")
	c.changeFlags(cmd)
	return cmd
}

func (c *cli) unlock(ctx context.Context, f unlockFlags) error {
	topics, err := admin.ParseList(f.topics)
	if err != nil {
		return err
	}
	cfg, err := loadConfig(f.config, c.environ())
	if err != nil {
		return err
	}
	if cfg.alone() {
		return usageError(f.config+" is of a gateway alone, which has no mirrors", "give the configuration of the kmirror that mirrored the topics")
	}
	ids, err := nodeIDs(f.nodeIDs)
	if err != nil {
		return err
	}
	l, err := cfg.legs(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	u, err := unlock.New(unlock.Config{Opts: l.bootstrap, Bootstrap: strings.Join(cfg.Destination.BootstrapServers, ","),
		ClusterID: cfg.ClusterID, NodeIDs: slices.Concat(cfg.NodeIDs, ids), Topics: topics,
		Force: f.force, DryRun: c.dryRun, Note: c.note})
	if err != nil {
		return err
	}
	defer u.Close()
	plans, err := u.Look(ctx)
	if err != nil {
		return unlockCut(ctx, err)
	}
	if len(plans) == 0 {
		c.note("no topic that matches carries the lock: nothing to do")
	}
	if c.dryRun {
		return c.emit(nonNil(plans), func(w io.Writer) { unlockPlan(w, plans) })
	}
	if len(plans) == 0 {
		return c.emit([]unlock.Result{}, func(io.Writer) {})
	}
	if err := c.confirmUnlock(ctx, plans); err != nil {
		return err
	}
	results, err := u.Do(ctx)
	if err != nil {
		c.noteOpen(plans)
		return unlockCut(ctx, err)
	}
	if err := c.emit(results, func(w io.Writer) { unlockTable(w, results) }); err != nil {
		return err
	}
	return unlockError(results)
}

// abortLine tells how a transaction of the source is aborted.
const abortLine = "%s, to abort the transaction of producer id %d: %s"

// noteOpen tells of open transactions when there is no table that would: the next run can't tell them from those of this cluster's clients.
func (c *cli) noteOpen(plans []*unlock.TopicPlan) {
	for _, p := range plans {
		for _, t := range p.OpenTransactions {
			c.note(abortLine, p.Topic, t.ProducerID, t.Abort)
		}
	}
}

// unlockCut is the error of an unlock that did not come to its end: whatever Ctrl-C made fail, it was that. interruption says what to do.
func unlockCut(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return &admin.Error{Code: kip1279.RequestTimedOut, Message: "interrupted", Exit: admin.ExitFailed}
}

// nodeIDs reads a list of broker ids.
func nodeIDs(list string) (out []int32, err error) {
	for field := range strings.SplitSeq(list, ",") {
		if field = strings.TrimSpace(field); field == "" {
			continue
		}
		id, err := strconv.ParseInt(field, 10, 32)
		if err != nil || id < 0 {
			return nil, usageError(fmt.Sprintf("--node-ids: %q is not a broker id", field), "write 9003,9004")
		}
		out = append(out, int32(id))
	}
	return out, nil
}

func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func (c *cli) confirmUnlock(ctx context.Context, plans []*unlock.TopicPlan) error {
	if c.yes || !c.terminal {
		return nil
	}
	open := 0
	for i, p := range plans {
		if i < 20 {
			c.note("%s: %d partitions, mirror %s", p.Topic, p.Partitions, orUnknown(p.Mirror))
		}
		open += len(p.OpenTransactions)
	}
	if len(plans) > 20 {
		c.note("and %d more", len(plans)-20)
	}
	c.note("%d topics become ordinary, writable topics; %d open transactions of the source stay open; mirroring them again needs "+
		"--overwrite. See --dry-run.", len(plans), open)
	return c.confirm(ctx, "Unlock?")
}

func orUnknown(mirror string) string {
	if mirror == "" {
		return "not known"
	}
	return mirror
}

func unlockPlan(w io.Writer, plans []*unlock.TopicPlan) {
	fmt.Fprintln(w, "TOPIC\tPARTITIONS\tMIRROR\tOPEN TRANSACTIONS")
	for _, p := range plans {
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\n", p.Topic, p.Partitions, orUnknown(p.Mirror), len(p.OpenTransactions))
	}
	for _, p := range plans {
		if p.Guessed != "" {
			fmt.Fprintf(w, "%s: true values not known, both configs would be removed: %s\n", p.Topic, p.Guessed)
		}
		for _, line := range p.Requests {
			fmt.Fprintf(w, "would send: %s\n", line)
		}
	}
}

func unlockTable(w io.Writer, results []unlock.Result) {
	fmt.Fprintln(w, "TOPIC\tPARTITIONS\tMIRROR\tRESULT")
	for _, r := range results {
		what := "unlocked"
		switch {
		case r.Error != "":
			what = "failed: " + r.Error
		case !r.Unlocked:
			what = "not unlocked yet"
		case r.MinISRLeft:
			what = "unlocked, min.insync.replicas is left"
		case len(r.Waiting) > 0:
			what = "unlocked, replicas are missing"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", r.Topic, r.Partitions, orUnknown(r.Mirror), what)
	}
	for _, r := range results {
		for _, line := range r.Waiting {
			fmt.Fprintf(w, "%s, to do: %s\n", r.Topic, line)
		}
		for _, line := range r.GivenUp {
			fmt.Fprintf(w, "%s, given up: %s\n", r.Topic, line)
		}
		for _, t := range r.OpenTransactions {
			fmt.Fprintf(w, abortLine+"\n", r.Topic, t.ProducerID, t.Abort)
		}
	}
}

// unlockError is nil when everything is as it was before kmirror came.
func unlockError(results []unlock.Result) error {
	failed, waiting := 0, 0
	first := ""
	for _, r := range results {
		switch {
		case r.Error != "":
			failed++
			first = r.Topic + ": " + r.Error
		case len(r.Waiting) > 0:
			waiting++
		}
	}
	switch {
	case failed > 0:
		return &admin.Error{Code: kip1279.UnknownServerError,
			Message: fmt.Sprintf("%d of %d topics failed: %s", failed, len(results), first),
			Hint:    "mend it and run the same command again", Exit: admin.ExitFailed}
	case waiting > 0:
		return &admin.Error{Code: kip1279.RequestTimedOut,
			Message: fmt.Sprintf("%d of %d topics are not as they should be yet", waiting, len(results)),
			Hint:    "see what is to do for each, then run the same command again", Exit: admin.ExitIncomplete}
	}
	return nil
}
