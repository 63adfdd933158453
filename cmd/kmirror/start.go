package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/protocol/kip1279"
)

func newStartCommand(c *cli) *cobra.Command {
	var mirror, topics, exclude string
	var overwrite bool
	cmd := &cobra.Command{
		Use: "start --mirror M --topics LIST", Short: "Begin to mirror topics",
		Long: `Begin to mirror topics of the source: they are created at the destination, or taken over where they are this mirror's.
LIST: literal names, /re/ (RE2 over the whole name) and @file, separated by commas.
A topic that exists at the destination, holds data and is not known as this mirror's is refused unless --overwrite is given.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req := admin.StartRequest{Mirror: mirror, Overwrite: overwrite, DryRun: c.dryRun}
			var err error
			if req.Topics, err = admin.ParseList(topics); err != nil {
				return err
			}
			if exclude != "" {
				if req.Exclude, err = admin.ParseList(exclude); err != nil {
					return err
				}
			}
			return c.start(cmd.Context(), req)
		},
	}
	cmd.Flags().StringVar(&mirror, "mirror", "", "name of the mirror")
	cmd.Flags().StringVar(&topics, "topics", "", "LIST of topics")
	cmd.Flags().StringVar(&exclude, "exclude", "", "LIST of topics to leave out")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "truncate what the destination has and the source has not")
	mustRequire(cmd, "mirror", "topics")
	c.adminFlags(cmd)
	c.changeFlags(cmd)
	return cmd
}

func (c *cli) start(ctx context.Context, req admin.StartRequest) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if req.Overwrite && !req.DryRun {
		if err := c.askTruncation(ctx, client, req); err != nil {
			return err
		}
	}
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	results, err := client.StartTopics(limited, req)
	if err != nil {
		return err
	}
	if err := c.emit(results, func(w io.Writer) { startTable(w, results, req.DryRun) }); err != nil {
		return err
	}
	return startError(results)
}

// askTruncation shows at a terminal what a start with --overwrite removes from the destination, and asks.
func (c *cli) askTruncation(ctx context.Context, client *admin.Client, req admin.StartRequest) error {
	if c.yes || !c.terminal {
		return nil
	}
	req.DryRun = true
	limited, cancel := context.WithTimeout(ctx, callLimit)
	results, err := client.StartTopics(limited, req)
	cancel()
	if err != nil {
		return err
	}
	truncates := false
	for _, r := range results {
		if r.Plan == nil {
			continue
		}
		for _, p := range r.Plan.Partitions {
			if p.Truncated != 0 {
				truncates = true
				c.note("%s-%d: %s records of the destination are truncated, %s of them are nowhere else", r.Topic, p.Partition,
					count(p.Truncated), count(p.Lost))
			}
		}
	}
	if !truncates {
		return nil
	}
	return c.confirm(ctx, "Truncate?")
}

// count prints a number of records, -1 being unknown.
func count(n int64) string {
	if n < 0 {
		return "an unknown number of"
	}
	return fmt.Sprint(n)
}

func startTable(w io.Writer, results []admin.TopicResult, dryRun bool) {
	if !dryRun {
		fmt.Fprintln(w, "TOPIC\tPARTITIONS\tRESULT")
	} else {
		fmt.Fprintln(w, "TOPIC\tPARTITION\tLOST\tTRUNCATED\tCOPIED")
	}
	for _, r := range results {
		switch {
		case r.Err != nil && dryRun:
			fmt.Fprintf(w, "%s\t-\trefused: %s\n", r.Topic, r.Err.Message)
		case r.Err != nil:
			fmt.Fprintf(w, "%s\t%d\trefused: %s\n", r.Topic, r.Partitions, r.Err.Message)
		case !dryRun:
			fmt.Fprintf(w, "%s\t%d\tstarted\n", r.Topic, r.Partitions)
		case r.Plan != nil:
			for _, p := range r.Plan.Partitions {
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", r.Topic, p.Partition, number(p.Lost), number(p.Truncated),
					number(p.Copied))
			}
		}
	}
	for _, r := range results {
		if r.Plan != nil {
			requestLines(w, r.Plan.Requests)
		}
	}
}

func number(n int64) string {
	if n < 0 {
		return "?"
	}
	return fmt.Sprint(n)
}

// startError is nil when every topic was accepted; otherwise it carries the exit code of the first refusal.
func startError(results []admin.TopicResult) error {
	if len(results) == 0 {
		return &admin.Error{Code: kip1279.UnknownTopicOrPartition, Message: "no topic of the source matches",
			Hint: "compare --topics and --exclude with the topics of the source", Exit: admin.ExitUsage}
	}
	return refused(results)
}
