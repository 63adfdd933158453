package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

// defaultWait is how long commands wait for their goal.
const defaultWait = 60 * time.Second

// goal is where partitions are to get.
type goal struct {
	// name stands in messages: "12 of 500 partitions are not STOPPED".
	name   string
	states []statemachine.State
}

func (g goal) reached(state string) bool {
	return slices.ContainsFunc(g.states, func(s statemachine.State) bool { return s.String() == state })
}

// topicChange is one run of promote, failover, pause, resume or recover.
type topicChange struct {
	verb, mirror string
	goal         goal
	wait         time.Duration
	// all: every topic was asked for, so that none at all is no mistake.
	all bool
	// send asks for the change, or for its plan.
	send func(ctx context.Context, client *admin.Client, dryRun bool) ([]admin.TopicResult, error)
	// question is put at a terminal, after the plan; nil where nothing is asked.
	question func(plan []admin.TopicResult) string
	// loses: what the source has beyond the destination is lost, so it is said when that is known from before only.
	loses bool
}

// partitionResult is an element of what these commands print: one partition, or with Partition nil a topic that was refused.
// What is not known is nil.
type partitionResult struct {
	Mirror    string  `json:"mirror"`
	Topic     string  `json:"topic"`
	Partition *int32  `json:"partition"`
	State     *string `json:"state"`
	Lag       *int64  `json:"lag"`
	// Lost, Truncated and Copied are counts of records, known of plans only.
	Lost      *int64 `json:"lost"`
	Truncated *int64 `json:"truncated"`
	Copied    *int64 `json:"copied"`
	// Done: the partition is where it was to get.
	Done  bool    `json:"done"`
	Error *string `json:"error"`
	Hint  *string `json:"hint"`
	// Requests are those of the whole topic, with its first partition only, in a dry run.
	Requests []string `json:"requests,omitempty"`
}

// waitFlag adds --wait.
func waitFlag(cmd *cobra.Command, wait *time.Duration) {
	cmd.Flags().DurationVar(wait, "wait", defaultWait, "how long to wait until it is done; serve goes on after that")
}

// change runs a topicChange from the question to the exit code.
func (c *cli) change(ctx context.Context, ch topicChange) error {
	if ch.wait < 0 {
		return usageError("--wait is negative", "give a span such as 60s")
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if c.dryRun {
		plan, err := ch.ask(ctx, client, true)
		if err != nil {
			return err
		}
		rows := planRows(ch.mirror, plan)
		if err := c.emit(rows, func(w io.Writer) { planTable(w, rows) }); err != nil {
			return err
		}
		c.noteSilence(ctx, client, ch)
		return c.refusal(ch, plan)
	}
	if err := c.askFirst(ctx, client, ch); err != nil {
		return err
	}
	results, err := ch.ask(ctx, client, false)
	if err != nil {
		return err
	}
	w := &waiter{cli: c, client: client, change: ch, results: results}
	if err := w.run(ctx); err != nil {
		return err
	}
	rows := w.rows()
	if err := c.emit(rows, func(out io.Writer) { resultTable(out, rows) }); err != nil {
		return err
	}
	if err := c.refusal(ch, w.results); err != nil {
		return err
	}
	return w.incomplete(rows)
}

// ask sends the request within the time that one may take.
func (ch topicChange) ask(ctx context.Context, client *admin.Client, dryRun bool) ([]admin.TopicResult, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return ch.send(ctx, client, dryRun)
}

// askFirst puts the question, where there is one and somebody to answer it. That nobody can tell what would be lost is no
// reason to keep a disaster's only way out shut.
func (c *cli) askFirst(ctx context.Context, client *admin.Client, ch topicChange) error {
	if ch.question == nil || c.yes || !c.terminal {
		return nil
	}
	plan, err := ch.ask(ctx, client, true)
	if e := (*admin.Error)(nil); errors.As(err, &e) && e.Exit == admin.ExitUsage {
		return err
	} else if err != nil {
		c.note("can't tell what would be lost: %v", err)
	}
	for _, r := range plan {
		if r.Err != nil {
			c.note("%s: would be refused: %s", r.Topic, r.Err.Message)
		} else if lost := lostOf(r); lost != 0 {
			c.note("%s: %s records are lost", r.Topic, count(lost))
		}
	}
	c.noteSilence(ctx, client, ch)
	return c.confirm(ctx, ch.question(plan))
}

// noteSilence says, of a change that loses what the destination lacks, for how long the source has not told what it has. Where that can't
// be asked nothing is said: the plan is what it is.
func (c *cli) noteSilence(ctx context.Context, client *admin.Client, ch topicChange) {
	if !ch.loses {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	parts, err := client.Describe(ctx, admin.DescribeRequest{Mirrors: []string{ch.mirror}})
	if err != nil {
		return
	}
	for _, s := range summarize(parts) {
		if silent(s.SourceAgeSeconds) {
			c.note("the source of mirror %s has not answered for %.0f s, for some partitions at least: what is lost is what was known then, or more",
				ch.mirror, *s.SourceAgeSeconds)
		}
	}
}

// lostOf sums up what a plan loses of a topic, -1 when that is not known of every partition.
func lostOf(r admin.TopicResult) int64 {
	if r.Plan == nil {
		return -1
	}
	sum := int64(0)
	for _, p := range r.Plan.Partitions {
		if p.Lost < 0 {
			return -1
		}
		sum += p.Lost
	}
	return sum
}

// refusal is nil when every topic was accepted; otherwise it carries the exit code of the first refusal.
func (c *cli) refusal(ch topicChange, results []admin.TopicResult) error {
	if len(results) == 0 && ch.all {
		c.note("mirror %s has no topics", ch.mirror)
		return nil
	}
	if len(results) == 0 {
		return &admin.Error{Code: kip1279.UnknownTopicOrPartition, Message: "no topic of mirror " + ch.mirror + " matches",
			Hint: "see kmirror describe --mirror " + ch.mirror, Exit: admin.ExitUsage}
	}
	return refused(results)
}

// refused makes one error of the refusals among the results, nil when there are none.
func refused(results []admin.TopicResult) error {
	var first *admin.Error
	n := 0
	for _, r := range results {
		if r.Err == nil {
			continue
		}
		if n++; first == nil {
			refusal := *r.Err
			refusal.Message = r.Topic + ": " + refusal.Message
			first = &refusal
		}
	}
	if first == nil {
		return nil
	}
	if n > 1 {
		first.Message = fmt.Sprintf("%d of %d topics refused; the first: %s", n, len(results), first.Message)
	}
	return first
}

// planRows lists what a dry run found.
func planRows(mirror string, results []admin.TopicResult) []partitionResult {
	rows := []partitionResult{}
	for _, r := range results {
		if r.Err != nil {
			rows = append(rows, refusedRow(mirror, r))
			continue
		}
		if r.Plan == nil {
			continue
		}
		first := len(rows)
		for _, p := range r.Plan.Partitions {
			rows = append(rows, partitionResult{Mirror: mirror, Topic: r.Topic, Partition: new(p.Partition), Lag: known(p.Lag),
				Lost: known(p.Lost), Truncated: known(p.Truncated), Copied: known(p.Copied)})
		}
		if len(rows) == first { // a plan without a partition still has its requests
			rows = append(rows, partitionResult{Mirror: mirror, Topic: r.Topic})
		}
		rows[first].Requests = r.Plan.Requests
	}
	return rows
}

func refusedRow(mirror string, r admin.TopicResult) partitionResult {
	return partitionResult{Mirror: mirror, Topic: r.Topic, Error: &r.Err.Message, Hint: &r.Err.Hint}
}

func known(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

func planTable(w io.Writer, rows []partitionResult) {
	fmt.Fprintln(w, "TOPIC\tPARTITION\tLAG\tLOST\tTRUNCATED\tCOPIED\tERROR")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s", r.Topic, cell(r.Partition))
		for _, n := range []*int64{r.Lag, r.Lost, r.Truncated, r.Copied} {
			if r.Partition != nil && n == nil {
				fmt.Fprint(w, "\t?") // it counts, and nobody knows it
			} else {
				fmt.Fprint(w, "\t", cell(n))
			}
		}
		fmt.Fprintf(w, "\t%s\n", cell(r.Error))
	}
	for _, r := range rows {
		requestLines(w, r.Requests)
	}
}

func resultTable(w io.Writer, rows []partitionResult) {
	fmt.Fprintln(w, "TOPIC\tPARTITION\tSTATE\tLAG\tERROR")
	for _, r := range rows {
		if r.Partition == nil && r.Error != nil {
			fmt.Fprintf(w, "%s\t-\trefused\t-\t%s\n", r.Topic, *r.Error)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.Topic, cell(r.Partition), cell(r.State), cell(r.Lag), cell(r.Error))
	}
}
