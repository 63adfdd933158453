package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
)

func newAlterCommand(c *cli) *cobra.Command {
	var mirror, file string
	cmd := &cobra.Command{
		Use: "alter --mirror M --mirror-config FILE", Short: "Give a mirror other properties while it runs",
		Long: `Give a mirror other properties while it runs. FILE holds all of them, as for create: what it does not name is back at its
default. Where connections to the source are to be made anew, the same source must answer with the new properties; the mirror
goes on with the old ones until then. What is synced (mirror.topics.*, mirror.groups.*, mirror.acls.*) changes with the next round,
which is at once.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.alter(cmd.Context(), mirror, file) },
	}
	cmd.Flags().StringVar(&mirror, "mirror", "", "name of the mirror")
	cmd.Flags().StringVar(&file, "mirror-config", "", "properties file of the mirror")
	mustRequire(cmd, "mirror", "mirror-config")
	c.adminFlags(cmd)
	c.changeFlags(cmd)
	return cmd
}

// alterResult is what alter prints.
type alterResult struct {
	Mirror string `json:"mirror"`
	// Altered is false for a dry run, and where nothing was to be changed.
	Altered bool `json:"altered"`
	admin.AlterResult
}

func (c *cli) alter(ctx context.Context, mirror, file string) error {
	props, err := c.mirrorFile(mirror, file)
	if err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	req := admin.AlterRequest{Mirror: mirror, Config: props, DryRun: true}
	if !c.yes && c.terminal && !c.dryRun {
		limited, cancel := context.WithTimeout(ctx, callLimit)
		plan, err := client.AlterMirror(limited, req)
		cancel()
		if err != nil {
			return err
		}
		if len(plan.Stops) > 0 {
			question := fmt.Sprintf("Stop mirroring of %d topics that mirror.topics.exclude names now, which makes them writable: %s?", len(plan.Stops),
				strings.Join(plan.Stops, ", "))
			if err := c.confirm(ctx, question); err != nil {
				return err
			}
		}
	}
	req.DryRun = c.dryRun
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	changed, err := client.AlterMirror(limited, req)
	if err != nil {
		return err
	}
	if changed.Changed == nil {
		changed.Changed = []string{}
	}
	r := alterResult{Mirror: mirror, Altered: !c.dryRun && len(changed.Changed) > 0, AlterResult: changed}
	return c.emit(r, func(w io.Writer) {
		how := "takes effect at once"
		if r.Reconnects {
			how = "connections to the source are made anew"
		}
		switch keys := strings.Join(r.Changed, ", "); {
		case len(r.Changed) == 0:
			fmt.Fprintf(w, "mirror %s has these properties already\n", mirror)
		case c.dryRun:
			fmt.Fprintf(w, "would change %s of mirror %s: %s\n", keys, mirror, how)
		default:
			fmt.Fprintf(w, "changed %s of mirror %s: %s\n", keys, mirror, how)
		}
		for _, t := range r.Stops {
			fmt.Fprintf(w, "topic %s is left out by mirror.topics.exclude: it is stopped and becomes writable\n", t)
		}
	})
}
