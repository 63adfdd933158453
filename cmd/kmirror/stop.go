package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/statemachine"
)

var stoppedGoal = goal{"STOPPED", []statemachine.State{statemachine.Stopped}}

// stopFlags are the flags of promote, failover and stop.
type stopFlags struct {
	mirror, topics string
	all, force     bool
	maxLoss        int64
	wait           time.Duration
}

func newPromoteCommand(c *cli) *cobra.Command {
	return newStopCommand(c, "promote", true, "Make mirrored topics writable once the destination has all of the source",
		`Make mirrored topics writable without loss: waits until the destination has all that the source has, then ends mirroring.
The source must answer, and nothing may be written there any more. With a source that is lost use failover.`)
}

func newFailoverCommand(c *cli) *cobra.Command {
	return newStopCommand(c, "failover", false, "Make mirrored topics writable now, without the source",
		`Make mirrored topics writable at once, whether the source answers or not. What the destination does not have yet is lost to
it; --dry-run says how much. Asks at a terminal.`)
}

// newStopAlias is the KIP's word for failover.
func newStopAlias(c *cli) *cobra.Command {
	return newStopCommand(c, "stop", false, "Same as failover", `Same as failover: it is KIP-1279's word for it.`)
}

func newStopCommand(c *cli, verb string, drain bool, short, long string) *cobra.Command {
	var f stopFlags
	cmd := &cobra.Command{
		Use: verb + " --mirror M --topics LIST|--all", Short: short,
		Long: long + `
LIST: literal names, /re/ (RE2 over the whole name) and @file, separated by commas.
Waits until every partition is STOPPED, for --wait at most; then exits 3 and says what remains, while serve goes on. The same
command again attaches.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.stopTopics(cmd.Context(), verb, drain, f) },
	}
	cmd.Flags().StringVar(&f.mirror, "mirror", "", "name of the mirror")
	cmd.Flags().StringVar(&f.topics, "topics", "", "LIST of topics")
	cmd.Flags().BoolVar(&f.all, "all", false, "all topics of the mirror")
	cmd.Flags().Int64Var(&f.maxLoss, "max-loss", -1, "refuse topics that would lose more records than this, as far as is known; -1 is no bound")
	cmd.Flags().BoolVar(&f.force, "force", false, "also topics whose copy is not complete yet (PREPARING)")
	mustRequire(cmd, "mirror")
	waitFlag(cmd, &f.wait)
	c.adminFlags(cmd)
	c.changeFlags(cmd)
	return cmd
}

func (c *cli) stopTopics(ctx context.Context, verb string, drain bool, f stopFlags) error {
	if f.all == (f.topics != "") {
		return usageError("which topics is not clear", "give either --topics LIST or --all")
	}
	if f.maxLoss < -1 {
		return usageError("--max-loss is negative", "give a number of records, 0 for none")
	}
	req := admin.StopRequest{Mirror: f.mirror, All: f.all, Drain: drain, MaxLoss: f.maxLoss, Force: f.force}
	if !f.all {
		var err error
		if req.Topics, err = admin.ParseList(f.topics); err != nil {
			return err
		}
	}
	ch := topicChange{verb: verb, mirror: f.mirror, goal: stoppedGoal, wait: f.wait, all: f.all, loses: !drain}
	ch.send = func(ctx context.Context, client *admin.Client, dryRun bool) ([]admin.TopicResult, error) {
		req := req
		req.DryRun = dryRun
		return client.StopTopics(ctx, req)
	}
	if !drain {
		ch.question = func(plan []admin.TopicResult) string { return failoverQuestion(f.mirror, plan) }
	}
	return c.change(ctx, ch)
}

// failoverQuestion says what answering it with yes does.
func failoverQuestion(mirror string, plan []admin.TopicResult) string {
	topics, lost := 0, int64(0)
	for _, r := range plan {
		if r.Err != nil {
			continue
		}
		topics++
		if n := lostOf(r); n < 0 || lost < 0 {
			lost = -1
		} else {
			lost += n
		}
	}
	if topics == 0 {
		lost = -1
	}
	return fmt.Sprintf("Fail over %d topics of mirror %s? Clients can write to them afterwards, and %s records are lost.",
		topics, mirror, count(lost))
}
