package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/protocol/kip1279"
)

// stepLimit bounds one step of a verification, which serve keeps to a few seconds.
const stepLimit = 2 * time.Minute

func newVerifyCommand(c *cli) *cobra.Command {
	var mirror, topics string
	var since time.Duration
	var rate byteSize
	cmd := &cobra.Command{
		Use: "verify --mirror M", Short: "Compare both sides batch by batch",
		Long: `Compare header, CRC and leader epoch of every batch at the source with every in-sync replica at the destination.
Prints the first difference and exits 6 when there is one.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			step := admin.VerifyRequest{Mirror: mirror, MaxRate: int64(rate)}
			if since < 0 {
				return usageError("--since is negative", "give a span such as 1h")
			}
			if since > 0 {
				step.SinceMS = time.Now().Add(-since).UnixMilli()
			}
			return c.verify(cmd.Context(), topics, step)
		},
	}
	cmd.Flags().StringVar(&mirror, "mirror", "", "name of the mirror")
	cmd.Flags().StringVar(&topics, "topics", "", "LIST of topics (default: all of the mirror)")
	cmd.Flags().DurationVar(&since, "since", 0, "only batches of the last span of time, such as 1h (default: all)")
	cmd.Flags().Var(&rate, "max-rate", "bytes per second for both sides together, such as 10MiB (default: no bound)")
	mustRequire(cmd, "mirror")
	c.adminFlags(cmd)
	return cmd
}

// verifyResult is what verify prints.
type verifyResult struct {
	Partitions int               `json:"partitions"`
	Batches    int64             `json:"batches"`
	Differ     int64             `json:"differ"`
	Bytes      int64             `json:"bytes"`
	First      *admin.Difference `json:"first_difference"`
	// Notes tell where less than everything was compared.
	Notes []string `json:"notes"`
}

func (c *cli) verify(ctx context.Context, topics string, step admin.VerifyRequest) error {
	req := admin.DescribeRequest{Mirrors: []string{step.Mirror}}
	if topics != "" {
		var err error
		if req.Topics, err = admin.ParseList(topics); err != nil {
			return err
		}
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	limited, cancel := context.WithTimeout(ctx, callLimit)
	parts, err := client.Describe(limited, req)
	cancel()
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return &admin.Error{Code: kip1279.UnknownTopicOrPartition, Message: "no partition to verify: nothing of mirror " +
			step.Mirror + " matches", Hint: "see kmirror describe --mirror " + step.Mirror, Exit: admin.ExitUsage}
	}
	result := verifyResult{Partitions: len(parts), Notes: []string{}}
	for i, p := range parts {
		step.Topic, step.Partition = p.Topic, p.Partition
		if err := c.verifyPartition(ctx, client, step, &result, fmt.Sprintf("%d of %d", i+1, len(parts))); err != nil {
			c.progress("") // else the error goes on in that line
			return err
		}
	}
	c.progress("")
	if err := c.emit(result, func(w io.Writer) { verifyTable(w, result) }); err != nil {
		return err
	}
	if result.Differ == 0 {
		return nil
	}
	return &admin.Error{Code: kip1279.UnknownServerError,
		Message: fmt.Sprintf("%d of %d batches differ", result.Differ, result.Batches),
		Hint:    "don't fail over to the topics that differ; keep both sides' logs, and see what README.md guarantees",
		Exit:    admin.ExitDiffers}
}

// verifyPartition takes steps until the partition is done and adds them up in result.
func (c *cli) verifyPartition(
	ctx context.Context, client *admin.Client, step admin.VerifyRequest, result *verifyResult, position string,
) error {
	for step.Cursor = ""; ; {
		payload, err := json.Marshal(step)
		if err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, stepLimit)
		answer, err := client.Call(limited, admin.VerbVerify, payload)
		cancel()
		if err != nil {
			return err
		}
		var r admin.VerifyResponse
		if err := json.Unmarshal(answer, &r); err != nil {
			return fmt.Errorf("answer to verify is not readable: %w", err)
		}
		result.Batches, result.Differ, result.Bytes = result.Batches+r.Batches, result.Differ+r.Differ, result.Bytes+r.Bytes
		if result.First == nil {
			result.First = r.First
		}
		if r.Note != "" {
			result.Notes = append(result.Notes, fmt.Sprintf("%s-%d: %s", step.Topic, step.Partition, r.Note))
		}
		c.progress(fmt.Sprintf("verify: partition %s, %d batches, %d differ", position, result.Batches, result.Differ))
		if r.Done {
			return nil
		}
		if r.Cursor == "" {
			return fmt.Errorf("verify of %s-%d does not go on: serve gave no cursor", step.Topic, step.Partition)
		}
		step.Cursor = r.Cursor
	}
}

// progress replaces the last line of a terminal.
func (c *cli) progress(line string) {
	if c.terminal {
		fmt.Fprintf(c.err, "\r\x1b[K%s", line)
	}
}

func verifyTable(w io.Writer, r verifyResult) {
	if d := r.First; d != nil {
		fmt.Fprintf(w, "first difference: %s-%d at offset %d, %s: source %s, destination %s\n", d.Topic, d.Partition, d.Offset,
			d.Field, orNothing(d.Source), orNothing(d.Destination))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	fmt.Fprintf(w, "verify: %d of %d batches differ\n", r.Differ, r.Batches)
}

func orNothing(s string) string {
	if s == "" {
		return "has none"
	}
	return s
}
