package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/protocol/kip1279"
)

func newDeleteCommand(c *cli) *cobra.Command {
	var mirror string
	cmd := &cobra.Command{
		Use: "delete --mirror M", Short: "Remove the definition of a mirror whose topics are all STOPPED",
		Long: `Remove the definition of a mirror whose topics are all STOPPED, and what is remembered of them. The topics stay as they
are. What is remembered is what failback needs: a source that mirrors back from here afterwards copies everything.
Asks at a terminal.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.deleteMirror(cmd.Context(), mirror) },
	}
	cmd.Flags().StringVar(&mirror, "mirror", "", "name of the mirror")
	mustRequire(cmd, "mirror")
	c.adminFlags(cmd)
	c.changeFlags(cmd)
	return cmd
}

// deleteResult is what delete prints.
type deleteResult struct {
	Mirror string `json:"mirror"`
	// Deleted is false for a dry run, and where there was no such mirror.
	Deleted bool `json:"deleted"`
	// Topics are forgotten, not deleted; known of a dry run only.
	Topics   []string `json:"topics,omitempty"`
	Requests []string `json:"requests,omitempty"`
}

func (c *cli) deleteMirror(ctx context.Context, mirror string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	result := deleteResult{Mirror: mirror}
	ask := !c.yes && c.terminal
	if c.dryRun || ask {
		err := c.deletePlan(ctx, client, &result)
		if isUnknownMirror(err) {
			return c.nothingToDelete(result)
		}
		if err != nil {
			return err
		}
		if c.dryRun {
			return c.emit(result, func(w io.Writer) { requestLines(w, result.Requests) })
		}
		question := fmt.Sprintf("Delete mirror %s and what is remembered of its %d topics? The topics stay as they are.",
			mirror, len(result.Topics))
		if err := c.confirm(ctx, question); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := client.DeleteMirror(ctx, admin.DeleteRequest{Mirror: mirror}); isUnknownMirror(err) {
		return c.nothingToDelete(result)
	} else if err != nil {
		return err
	}
	result.Deleted, result.Topics, result.Requests = true, nil, nil
	return c.emit(result, func(w io.Writer) { fmt.Fprintf(w, "mirror %s is deleted; its topics stay as they are\n", mirror) })
}

// deletePlan finds out whether the mirror can be deleted, and which topics are forgotten with it.
func (c *cli) deletePlan(ctx context.Context, client *admin.Client, result *deleteResult) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := client.DeleteMirror(ctx, admin.DeleteRequest{Mirror: result.Mirror, DryRun: true}); err != nil {
		return err
	}
	parts, err := client.Describe(ctx, admin.DescribeRequest{Mirrors: []string{result.Mirror}})
	if err != nil {
		return err
	}
	for _, p := range parts {
		if n := len(result.Topics); n == 0 || result.Topics[n-1] != p.Topic {
			result.Topics = append(result.Topics, p.Topic)
		}
	}
	for _, t := range result.Topics {
		line := fmt.Sprintf("Produce __mirror_state: forget topic %s of mirror %s", t, result.Mirror)
		result.Requests = append(result.Requests, line)
	}
	result.Requests = append(result.Requests, "Produce __mirror_state: forget mirror "+result.Mirror)
	return nil
}

// nothingToDelete: a goal already reached is no failure, but a name that was mistyped must not go unseen.
func (c *cli) nothingToDelete(result deleteResult) error {
	c.note("no mirror of the name %s: nothing to delete", result.Mirror)
	return c.emit(result, func(io.Writer) {})
}

func isUnknownMirror(err error) bool {
	var e *admin.Error
	return errors.As(err, &e) && e.Code == kip1279.UnknownClusterMirror
}

func requestLines(w io.Writer, requests []string) {
	for _, r := range requests {
		fmt.Fprintf(w, "would send: %s\n", r)
	}
}
