package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/internal/clientconf"
	"kmirror/internal/filters"
	"kmirror/internal/preflight"
	"kmirror/protocol/kip1279"
	"kmirror/protocol/kraft"
	"kmirror/proxy"
)

// preflightFlags are the flags of preflight.
type preflightFlags struct{ config, mirrorConfig, kafkaVersion string }

func newPreflightCommand(c *cli) *cobra.Command {
	var f preflightFlags
	cmd := &cobra.Command{
		Use: "preflight --config F [--mirror-config F]", Short: "Tell what stands in the way, before anything is registered",
		Long: `Look at the destination as kmirror serve would use it, and with --mirror-config at the source: who answers, versions and
feature levels, listeners, rights, node ids, who else manages topics. Nothing is registered and nothing is changed.
Each line is ok, warn (a part does not work, or wants to be known) or FAIL, with what to do. Exit codes: 0 nothing FAILs,
4 something does, 5 a cluster is not reached.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.preflight(cmd.Context(), f) },
	}
	cmd.Flags().StringVar(&f.config, "config", "", "kmirror.yaml")
	cmd.Flags().StringVar(&f.mirrorConfig, "mirror-config", "", "properties file of a mirror, to look at its source")
	cmd.Flags().StringVar(&f.kafkaVersion, "kafka-version", "", "version that the destination has or is to have, such as 4.4.0")
	mustRequire(cmd, "config")
	return cmd
}

func (c *cli) preflight(ctx context.Context, f preflightFlags) error {
	cfg, err := loadConfig(f.config, c.environ())
	if err != nil {
		return err
	}
	if cfg.alone() {
		return c.preflightAlone(ctx, cfg, f)
	}
	quiet := slog.New(slog.DiscardHandler)
	l, err := cfg.legs(quiet)
	if err != nil {
		return err
	}
	look := preflight.Config{
		ClusterID: cfg.ClusterID, NodeIDs: cfg.NodeIDs, Controllers: cfg.Destination.Controllers, Opts: l.bootstrap, Controller: l.controller,
		Replication: l.replication, InterBrokerListener: cfg.Destination.InterBrokerListener, KafkaVersion: f.kafkaVersion,
		CheckListeners: func(img *kraft.Image) error { return missingListeners(cfg, img) },
	}
	if look.UpstreamTLS, err = cfg.upstreamTLS(quiet); err != nil {
		return err
	}
	look.Listeners = cfg.looked()
	var props map[string]string
	if f.mirrorConfig != "" {
		if props, err = c.mirrorFile("preflight", f.mirrorConfig); err != nil {
			return err
		}
		if look.Source, _, err = clientconf.Options(props, nil); err != nil {
			return usageError(f.mirrorConfig+": "+err.Error(), "correct the file")
		}
		if look.SourceFilters, err = filters.Parse(props); err != nil {
			return usageError(f.mirrorConfig+": "+err.Error(), "correct the file")
		}
	}
	if look.Certificates, err = cfg.lookedCertificates(props); err != nil {
		return usageError(err.Error(), "correct the configuration")
	}
	report, err := preflight.Run(ctx, look)
	if err != nil {
		return err
	}
	return c.found(ctx, report)
}

// preflightAlone is preflight for a gateway alone.
func (c *cli) preflightAlone(ctx context.Context, cfg *Config, f preflightFlags) error {
	if f.mirrorConfig != "" {
		return usageError("--mirror-config: there are no mirrors in "+f.config+", which is of a gateway alone",
			"give destination.controllers there, or leave the flag out")
	}
	quiet := slog.New(slog.DiscardHandler)
	l, err := cfg.legs(quiet)
	if err != nil {
		return err
	}
	look := preflight.Gateway{ClusterID: cfg.ClusterID, Opts: l.bootstrap, Listener: cfg.looked()[0], KafkaVersion: f.kafkaVersion,
		Fronts:           func(id int32) bool { return cfg.Gateway[0].fronts(id) },
		SecurityProtocol: securityProtocols[cfg.Destination.protocol()], Understood: proxy.Understood}
	if look.UpstreamTLS, err = cfg.upstreamTLS(quiet); err != nil {
		return err
	}
	if look.Certificates, err = cfg.lookedCertificates(nil); err != nil {
		return usageError(err.Error(), "correct the configuration")
	}
	report, err := preflight.RunGateway(ctx, look)
	if err != nil {
		return err
	}
	return c.found(ctx, report)
}

// found prints a report, unless it is of a look that was cut short.
func (c *cli) found(ctx context.Context, report *preflight.Report) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := c.emit(report.Findings, func(w io.Writer) { preflightTable(w, report.Findings) }); err != nil {
		return err
	}
	return preflightError(report)
}

func preflightTable(w io.Writer, findings []preflight.Finding) {
	for _, f := range findings {
		line := strings.ReplaceAll(f.Detail, "\n", "; ")
		if f.Hint != "" {
			line += " (" + f.Hint + ")"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.Check, line)
	}
}

// preflightError gives a report its exit code.
func preflightError(r *preflight.Report) error {
	failed := 0
	for _, f := range r.Findings {
		if f.Level == preflight.Fail {
			failed++
		}
	}
	switch {
	case r.Unreachable:
		return &admin.Error{Code: kip1279.CoordinatorNotAvailable, Message: "a cluster was not reached, so not all could be looked at",
			Hint: "see the lines that say FAIL", Exit: admin.ExitUnreachable}
	case failed > 0:
		return &admin.Error{Code: kip1279.PolicyViolation, Message: fmt.Sprintf("lines that say FAIL: %d; kmirror would not work there", failed),
			Hint: "do what the lines say, and ask again; nothing was changed", Exit: admin.ExitRefused}
	}
	return nil
}
