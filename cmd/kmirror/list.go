package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
)

func newListCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List mirrors",
		RunE: func(cmd *cobra.Command, _ []string) error { return c.list(cmd.Context()) },
	}
	c.adminFlags(cmd)
	return cmd
}

func (c *cli) list(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	mirrors, err := client.ListMirrors(ctx, c.output != "table")
	if err != nil {
		return err
	}
	if mirrors == nil {
		mirrors = []admin.MirrorInfo{}
	}
	return c.emit(mirrors, func(w io.Writer) {
		fmt.Fprintln(w, "MIRROR\tTOPICS\tSOURCE-CLUSTER-ID\tSOURCE-BOOTSTRAP-SERVER")
		for _, m := range mirrors {
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", m.Mirror, m.TopicCount, m.SourceClusterID, m.SourceBootstrap)
		}
	})
}
