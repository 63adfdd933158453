package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/protocol/kip1279"
)

// retireFlags are the flags of retire.
type retireFlags struct {
	nodeIDs  string
	failover bool
	wait     time.Duration
}

func newRetireCommand(c *cli) *cobra.Command {
	var f retireFlags
	cmd := &cobra.Command{
		Use: "retire --node-ids LIST", Short: "Leave the destination for good: hand everything back, unregister, end",
		Long: `Leave the destination for good: every partition that names the node ids is handed back, the ids are unregistered and their
broker configs removed, and the process that has them ends. LIST: all node ids of that process, separated by commas.
Refused while mirrors are active, unless --failover is given, which stops them first. Asks at a terminal.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.retire(cmd.Context(), f) },
	}
	cmd.Flags().StringVar(&f.nodeIDs, "node-ids", "", "node ids of the process, separated by commas")
	cmd.Flags().BoolVar(&f.failover, "failover", false, "stop what is mirrored first")
	mustRequire(cmd, "node-ids")
	waitFlag(cmd, &f.wait)
	c.adminFlags(cmd)
	c.changeFlags(cmd)
	return cmd
}

// retireOutcome is what retire prints.
type retireOutcome struct {
	NodeIDs []int32 `json:"node_ids"`
	admin.RetireResult
	// Left: the ids are unregistered and the process has ended; false in a dry run.
	Left     bool     `json:"left"`
	Requests []string `json:"requests,omitempty"`
}

func (c *cli) retire(ctx context.Context, f retireFlags) error {
	if f.wait <= 0 {
		return usageError("--wait leaves no time to retire", "give a span such as 60s")
	}
	req := admin.RetireRequest{Failover: f.failover, DryRun: true}
	var err error
	if req.NodeIDs, err = nodeIDs(f.nodeIDs); err != nil {
		return err
	}
	if len(req.NodeIDs) == 0 {
		return usageError("--node-ids is empty", "give all node ids of the process, as node_ids in kmirror.yaml")
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	out := retireOutcome{NodeIDs: req.NodeIDs}
	if c.dryRun || c.terminal && !c.yes {
		limited, cancel := context.WithTimeout(ctx, callLimit)
		out.RetireResult, err = client.Retire(limited, req)
		cancel()
		if err != nil {
			return err
		}
	}
	if c.dryRun {
		out.Requests = retireRequests(out)
		return c.emit(out, func(w io.Writer) { retireTable(w, out) })
	}
	question := fmt.Sprintf("Retire node ids %s? %d partitions are handed back, %d topics stop being mirrored, and the process ends.",
		ids(req.NodeIDs), out.Partitions, len(out.Stopped))
	if err := c.confirm(ctx, question); err != nil {
		return err
	}
	req.DryRun = false
	limited, cancel := context.WithTimeout(ctx, f.wait)
	defer cancel()
	if out.RetireResult, err = client.Retire(limited, req); err != nil {
		return err
	}
	left := awaitGone(limited, watched(out.Process, client.Address()))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	out.Left = left == nil
	if err := c.emit(out, func(w io.Writer) { retireTable(w, out) }); err != nil {
		return err
	}
	return left
}

// watched is the address that goes when the process ends. Its own word counts, since another process may have passed the
// request on; an address that only means "this host" does not tell which, so there the one that answered is taken.
func watched(process, answered string) string {
	host, _, err := net.SplitHostPort(process)
	if err != nil {
		return answered
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return answered
	}
	return process
}

// awaitGone waits until nobody listens at an address: the admin listener is the last to go, after the node ids.
func awaitGone(ctx context.Context, address string) error {
	for pause := firstPoll; ; pause = min(2*pause, slowPoll) {
		dial, cancel := context.WithTimeout(ctx, pollLimit)
		conn, err := (&net.Dialer{}).DialContext(dial, "tcp", address)
		cancel()
		// Only a refusal says so: with the wait about to run out the attempt ends by its deadline a moment before the context does.
		var slow net.Error
		if err != nil && ctx.Err() == nil && !(errors.As(err, &slow) && slow.Timeout()) {
			return nil
		}
		if conn != nil {
			conn.Close()
		}
		next := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			next.Stop()
			return &admin.Error{Code: kip1279.RequestTimedOut, Exit: admin.ExitIncomplete,
				Message: "everything is handed back, but the process at " + address + " still runs",
				Hint:    "it goes on leaving; its log tells what it waits for, and the same command again attaches"}
		case <-next.C:
		}
	}
}

// retireRequests lists what the destination is sent at the end; what stopping a topic sends, failover --dry-run tells.
func retireRequests(o retireOutcome) []string {
	var out []string
	if o.Partitions > 0 {
		out = append(out, fmt.Sprintf("AlterPartitionReassignments: %d partitions to their real replicas", o.Partitions))
	}
	for _, id := range o.NodeIDs {
		out = append(out, fmt.Sprintf("IncrementalAlterConfigs broker %d: remove all", id), fmt.Sprintf("UnregisterBroker %d", id))
	}
	return out
}

func retireTable(w io.Writer, o retireOutcome) {
	did := "handed back"
	if len(o.Requests) > 0 {
		did = "would hand back"
	}
	fmt.Fprintf(w, "%s: %d partitions\n", did, o.Partitions)
	if len(o.Stopped) > 0 {
		fmt.Fprintf(w, "stopped: %s\n", strings.Join(o.Stopped, ", "))
	}
	requestLines(w, o.Requests)
	if o.Left {
		fmt.Fprintf(w, "left: node ids %s are unregistered, the process has ended\n", ids(o.NodeIDs))
	}
	if len(o.Remains) > 0 {
		fmt.Fprintf(w, "left behind: %s\n", strings.Join(o.Remains, ", "))
	}
}
