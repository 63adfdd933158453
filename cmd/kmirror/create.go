package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/internal/clientconf"
)

// callLimit bounds one request of a short command, and is what its source may take to answer.
const callLimit = 60 * time.Second

func newCreateCommand(c *cli) *cobra.Command {
	var mirror, file string
	cmd := &cobra.Command{
		Use: "create --mirror M --mirror-config FILE", Short: "Define a mirror: where the source is and how it is reached",
		Long: `Define a mirror. FILE holds Java properties as in KIP-1279: bootstrap.servers, security.protocol, sasl.*, ssl.*,
mirror.*.
Secrets are references that kmirror serve resolves when it uses them: ${file:PATH}, ${file:PATH:KEY} or ${env:NAME}.
Nothing is mirrored until kmirror start.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.create(cmd.Context(), mirror, file) },
	}
	cmd.Flags().StringVar(&mirror, "mirror", "", "name of the mirror")
	cmd.Flags().StringVar(&file, "mirror-config", "", "properties file of the mirror")
	mustRequire(cmd, "mirror", "mirror-config")
	c.adminFlags(cmd)
	c.changeFlags(cmd)
	return cmd
}

// mustRequire marks flags of cmd as required; the names are of this program's own making.
func mustRequire(cmd *cobra.Command, flags ...string) {
	for _, f := range flags {
		if err := cmd.MarkFlagRequired(f); err != nil {
			panic(err)
		}
	}
}

// createResult is what create prints.
type createResult struct {
	Mirror string `json:"mirror"`
	// Created is false for a dry run.
	Created  bool     `json:"created"`
	Requests []string `json:"requests,omitempty"`
}

func (c *cli) create(ctx context.Context, mirror, file string) error {
	props, err := c.mirrorFile(mirror, file)
	if err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	result := createResult{Mirror: mirror}
	if c.dryRun {
		if result.Requests, err = createPlan(ctx, client, mirror, props); err != nil {
			return err
		}
	} else {
		if err := client.CreateMirror(ctx, mirror, props); err != nil {
			return err
		}
		result.Created = true
	}
	return c.emit(result, func(w io.Writer) {
		for _, r := range result.Requests {
			fmt.Fprintf(w, "would send: %s\n", r)
		}
		if result.Created {
			fmt.Fprintf(w, "mirror %s is there. Next: kmirror start --mirror %s --topics LIST\n", mirror, mirror)
		}
	})
}

// mirrorFile reads the properties of a mirror, checks what can be checked without the source, and warns of what has no effect.
func (c *cli) mirrorFile(mirror, file string) (map[string]string, error) {
	props, err := readProperties(file)
	if err != nil {
		return nil, err
	}
	for _, w := range clientconf.Warnings(props) { // a misspelt key explains what is missing below
		c.note("warning: %s: %s", file, w)
	}
	return props, admin.CheckMirror(mirror, props)
}

// createPlan tells what create would send. It asks for the mirrors that exist and changes nothing.
func createPlan(ctx context.Context, client *admin.Client, mirror string, props map[string]string) ([]string, error) {
	mirrors, err := client.ListMirrors(ctx, false)
	if err != nil {
		return nil, err
	}
	for _, m := range mirrors {
		if m.Mirror == mirror {
			return []string{fmt.Sprintf("CreateClusterMirror %s: it exists (source %s at %s); refused unless it is the same",
				mirror, m.SourceClusterID, m.SourceBootstrap)}, nil
		}
	}
	keys := make([]string, 0, len(props))
	for k := range props {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, " %s=%s", k, props[k])
	}
	return []string{fmt.Sprintf("CreateClusterMirror %s:%s", mirror, b.String())}, nil
}
