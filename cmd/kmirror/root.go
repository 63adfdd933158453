package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/internal/clientconf"
	"kmirror/protocol/kip1279"
)

// cli is what a command needs of the world around it.
type cli struct {
	out, err io.Writer
	in       io.Reader
	env      func(string) (string, bool)
	environ  func() []string
	// terminal: somebody is there to be asked; screen: stdout is one.
	terminal, screen bool

	bootstrap, commandConfig, output string
	dryRun, yes                      bool
}

// run executes one command line and returns the exit code.
func (c *cli) run(ctx context.Context, args []string) int {
	root := newRootCommand(c)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return admin.ExitOK
	}
	if strings.HasPrefix(err.Error(), "required flag") { // cobra's own, before the command runs
		err = usageError(err.Error(), "see "+cmd.CommandPath()+" --help")
	}
	e := operatorError(err)
	if ctx.Err() != nil {
		e = interruption(cmd.Name(), e)
	}
	c.printError(e)
	return exitCode(e)
}

func newRootCommand(c *cli) *cobra.Command {
	root := &cobra.Command{
		Use:   "kmirror",
		Short: "Mirror Kafka topics into an unmodified cluster, byte for byte",
		Long: `kmirror mirrors topics from one Kafka cluster into another, unmodified one, byte for byte.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 some partitions not there yet (serve goes on),
4 refused by a guard, 5 unreachable or not authorised, 6 verify found a difference.`,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return c.checkOutput() },
	}
	root.SetOut(c.out)
	root.SetErr(c.err)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(err.Error(), "see "+cmd.CommandPath()+" --help")
	})
	root.PersistentFlags().StringVarP(&c.output, "output", "o", "table",
		"table, json or yaml; results go to stdout, the rest to stderr")
	for _, cmd := range []*cobra.Command{
		newServeCommand(c), newDemoCommand(c), newCreateCommand(c), newAlterCommand(c), newStartCommand(c), newListCommand(c),
		newDescribeCommand(c), newVerifyCommand(c), newVersionCommand(c),
		newPromoteCommand(c), newFailoverCommand(c), newStopAlias(c), newPauseCommand(c), newResumeCommand(c), newRecoverCommand(c),
		newDeleteCommand(c), newRetireCommand(c),
		newUnlockCommand(c), newPreflightCommand(c), newTraceCommand(c),
	} {
		if cmd.Args == nil {
			cmd.Args = cobra.NoArgs
		}
		root.AddCommand(cmd)
	}
	return root
}

func (c *cli) checkOutput() error {
	switch c.output {
	case "table", "json", "yaml":
		return nil
	}
	bad := c.output
	c.output = "table"
	return usageError(fmt.Sprintf("-o %s is not known", bad), "use table, json or yaml")
}

// adminFlags adds the flags of commands that ask a running kmirror.
func (c *cli) adminFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.bootstrap, "bootstrap-server", "",
		"admin addresses of kmirror, host:port[,host:port] (env KMIRROR_BOOTSTRAP_SERVER)")
	cmd.Flags().StringVar(&c.commandConfig, "command-config", "",
		"properties file with the TLS settings of the admin connection")
}

// changeFlags adds the flags of commands that change something.
func (c *cli) changeFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "show what would be lost, truncated, copied and sent, and change nothing")
	cmd.Flags().BoolVar(&c.yes, "yes", false, "don't ask at a terminal; scripts are never asked")
}

// client makes a client of the admin addresses; it connects when it is first used.
func (c *cli) client() (*admin.Client, error) {
	list := c.bootstrap
	if list == "" {
		list, _ = c.env("KMIRROR_BOOTSTRAP_SERVER")
	}
	if strings.TrimSpace(list) == "" {
		return nil, usageError("no admin address given",
			"give --bootstrap-server HOST:PORT (admin in kmirror.yaml) or set KMIRROR_BOOTSTRAP_SERVER")
	}
	addresses, err := clientconf.Servers(list)
	if err != nil {
		return nil, usageError("--bootstrap-server: "+err.Error(), "write host:port[,host:port]")
	}
	conf := admin.ClientConfig{Addresses: addresses, ClientID: cliClientID}
	if c.commandConfig != "" {
		props, err := readProperties(c.commandConfig)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(strings.ToUpper(strings.TrimSpace(props["security.protocol"])), "SASL") {
			return nil, usageError("--command-config: the admin listener speaks no SASL",
				"use security.protocol PLAINTEXT or SSL")
		}
		if conf.TLS, err = clientconf.ClientTLS(props, nil); err != nil {
			return nil, usageError("--command-config: "+err.Error(), "correct "+c.commandConfig)
		}
	}
	conf.Waiting = c.waiting(conf.TLS)
	return admin.NewClient(conf)
}

// operatorError turns any error into what is printed. Errors of cobra itself are about usage.
func operatorError(err error) *admin.Error {
	var e *admin.Error
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, context.Canceled) {
		return &admin.Error{Code: kip1279.RequestTimedOut, Message: "interrupted", Exit: admin.ExitFailed}
	}
	for _, sign := range []string{"unknown command", "accepts ", "unknown flag", "requires "} {
		if strings.HasPrefix(err.Error(), sign) {
			return usageError(err.Error(), "see kmirror --help")
		}
	}
	return &admin.Error{Code: kip1279.UnknownServerError, Message: err.Error(), Hint: "see the log for what came before"}
}

// interruption is what is printed for e, with which Ctrl-C or SIGTERM has ended verb: that somebody did not answer is then no news.
func interruption(verb string, e *admin.Error) *admin.Error {
	if e.Code != kip1279.RequestTimedOut && e.Exit != admin.ExitUnreachable {
		return e
	}
	hint := "what was begun goes on in kmirror serve; the same command again attaches to it"
	switch verb {
	case "serve", "demo":
		return e
	case "list", "describe", "verify", "preflight":
		hint = "nothing was changed; the same command again begins anew"
	case "unlock":
		hint = "what was done stays done, and topics may be half way; the same command again goes on from there"
	}
	return &admin.Error{Code: kip1279.RequestTimedOut, Message: "interrupted", Hint: hint, Exit: admin.ExitFailed}
}

func exitCode(e *admin.Error) int {
	if e.Exit == 0 {
		return admin.ExitFailed
	}
	return e.Exit
}

func usageError(message, hint string) *admin.Error {
	return &admin.Error{Code: kip1279.InvalidRequest, Message: message, Hint: hint, Exit: admin.ExitUsage}
}
