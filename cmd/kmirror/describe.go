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
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

type describeFlags struct {
	mirrors, topics        string
	failed, summary, watch bool
	interval               time.Duration
}

func newDescribeCommand(c *cli) *cobra.Command {
	var f describeFlags
	cmd := &cobra.Command{
		Use: "describe", Short: "Show states, positions and lags of partitions",
		Long: `Show states, positions and lags of partitions. -o json prints an array.
A value that is not known is null there and - in the table.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.describe(cmd.Context(), f) },
	}
	cmd.Flags().StringVar(&f.mirrors, "mirror", "", "mirrors, separated by commas (default: all)")
	cmd.Flags().StringVar(&f.topics, "topics", "", "LIST of topics (default: all)")
	cmd.Flags().BoolVar(&f.failed, "failed", false, "only FAILED partitions, with error and hint")
	cmd.Flags().BoolVar(&f.summary, "summary", false, "one line a mirror")
	cmd.Flags().BoolVar(&f.watch, "watch", false, "again and again until interrupted")
	cmd.Flags().DurationVar(&f.interval, "interval", 2*time.Second, "how often with --watch")
	c.adminFlags(cmd)
	return cmd
}

func (c *cli) describe(ctx context.Context, f describeFlags) error {
	var req admin.DescribeRequest
	for m := range strings.SplitSeq(f.mirrors, ",") {
		if m = strings.TrimSpace(m); m != "" {
			req.Mirrors = append(req.Mirrors, m)
		}
	}
	if f.topics != "" {
		var err error
		if req.Topics, err = admin.ParseList(f.topics); err != nil {
			return err
		}
	}
	if f.interval < 100*time.Millisecond {
		return usageError("--interval is too short", "give 100ms or more")
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if !f.watch {
		return c.describeOnce(ctx, client, req, f)
	}
	ticker := time.NewTicker(f.interval)
	defer ticker.Stop()
	for {
		if err := c.describeOnce(ctx, client, req, f); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil // being interrupted is how a watch ends
		}
	}
}

func (c *cli) describeOnce(ctx context.Context, client *admin.Client, req admin.DescribeRequest, f describeFlags) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	parts, err := client.Describe(ctx, req)
	if err != nil {
		return err
	}
	none := len(parts) == 0 && len(req.Topics) > 0
	sync := c.syncStatus(ctx, client, req, parts)
	if f.failed {
		parts = slices.DeleteFunc(parts, func(p admin.PartitionInfo) bool { return p.State != statemachine.Failed.String() })
	}
	if parts == nil {
		parts = []admin.PartitionInfo{}
	}
	if f.watch && c.screen && c.output == "table" {
		fmt.Fprint(c.out, "\x1b[H\x1b[2J")
	}
	if none {
		c.note("no mirrored topic matches --topics")
	}
	switch {
	case f.summary:
		s := summarize(parts)
		return c.emit(s, func(w io.Writer) { summaryTable(w, s); silentSources(w, s) })
	case f.failed:
		return c.emit(parts, func(w io.Writer) { failedTable(w, parts) })
	}
	return c.emit(parts, func(w io.Writer) { partitionTable(w, parts); syncTable(w, sync); silentSources(w, summarize(parts)) })
}

// syncStatus asks how the sync of metadata stands, and puts it to the partitions. A kmirror of an earlier version does not know.
func (c *cli) syncStatus(
	ctx context.Context, client *admin.Client, req admin.DescribeRequest, parts []admin.PartitionInfo,
) []admin.SyncInfo {
	infos, err := client.SyncStatus(ctx, req.Mirrors)
	if err != nil {
		if operatorError(err).Code != kip1279.UnsupportedVersion {
			c.note("how the sync of metadata stands is not known: %v", err)
		}
		return nil
	}
	by := map[string]map[string]admin.SyncState{}
	for _, s := range infos {
		if by[s.Mirror] == nil {
			by[s.Mirror] = map[string]admin.SyncState{}
		}
		by[s.Mirror][s.Kind] = s.SyncState
	}
	for i := range parts {
		parts[i].Sync = by[parts[i].Mirror]
	}
	return infos
}

// syncTable says how long ago each kind of metadata was in step, and what is wrong with it.
func syncTable(w io.Writer, infos []admin.SyncInfo) {
	if len(infos) == 0 {
		return
	}
	fmt.Fprintln(w, "\nMIRROR\tSYNC\tLAST-GOOD\tERROR")
	for _, s := range infos {
		age, reason := "-", "-"
		if s.AgeSeconds != nil {
			age = fmt.Sprintf("%.0fs ago", *s.AgeSeconds)
		}
		if s.Error != nil {
			reason = strings.ReplaceAll(*s.Error, "\n", "; ")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Mirror, s.Kind, age, reason)
	}
}

func partitionTable(w io.Writer, parts []admin.PartitionInfo) {
	fmt.Fprintln(w, "MIRROR\tTOPIC\tPARTITION\tSOURCE-OFFSET\tDESTINATION-OFFSET\tLAG\tSTATE\tLOCKED\tLEADER\tISR-REAL")
	for _, p := range parts {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Mirror, p.Topic, p.Partition, cell(p.SourceOffset),
			cell(p.DestinationOffset), lagCell(p.Lag, p.SourceAgeSeconds), p.State, yesNo(p.Locked), cell(p.LeaderNode), ids(p.ISRReal))
	}
}

// sourceSilent is the age from which on a lag is shown as what it was: a source that lives answers about every second.
const sourceSilent = 5 * time.Second

// silent reports whether what is known of a source is old.
func silent(age *float64) bool { return age != nil && *age > sourceSilent.Seconds() }

// lagCell shows a lag; one of a source that is silent is the least that it can be.
func lagCell(lag *int64, age *float64) string {
	if lag != nil && silent(age) {
		return fmt.Sprintf(">=%d", *lag)
	}
	return cell(lag)
}

// silentSources says which mirrors mirror from a source that is silent, wholly or with some of its brokers.
func silentSources(w io.Writer, mirrors []mirrorSummary) {
	for _, s := range mirrors {
		if silent(s.SourceAgeSeconds) {
			fmt.Fprintf(w, "\nThe source of mirror %s has not answered for %.0f s, for some partitions at least: lags are what was known then, or more.\n",
				s.Mirror, *s.SourceAgeSeconds)
		}
	}
}

func failedTable(w io.Writer, parts []admin.PartitionInfo) {
	fmt.Fprintln(w, "MIRROR\tTOPIC\tPARTITION\tRETRY\tERROR\tWHAT TO DO")
	for _, p := range parts {
		retry := fmt.Sprint(p.Retry)
		if p.Retry < 0 {
			retry = "NonRetryable"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", p.Mirror, p.Topic, p.Partition, retry, cell(p.Error), cell(p.Hint))
	}
}

func yesNo(b *bool) string {
	switch {
	case b == nil:
		return "-"
	case *b:
		return "yes"
	}
	return "NO"
}

func ids(list []int32) string {
	if list == nil {
		return "-"
	}
	var out []string
	for _, id := range list {
		out = append(out, fmt.Sprint(id))
	}
	return "[" + strings.Join(out, ",") + "]"
}

// mirrorSummary is one line of describe --summary. Lags are sums and maxima over what is known.
type mirrorSummary struct {
	Mirror     string         `json:"mirror"`
	Topics     int            `json:"topics"`
	Partitions int            `json:"partitions"`
	States     map[string]int `json:"states"`
	Lag        int64          `json:"lag"`
	// MaxLag is the largest lag of any partition in records, null where none is known.
	MaxLag     *int64   `json:"max_lag"`
	LagSeconds *float64 `json:"lag_seconds"`
	// SourceAgeSeconds is how long the source has been silent for any partition that is MIRRORING, null where none is.
	SourceAgeSeconds *float64 `json:"source_age_seconds"`
	// Unlocked counts partitions of topics that are not locked and not STOPPED: clients can write to them.
	Unlocked int `json:"unlocked"`
	// MinISRReal is the least number of real in-sync replicas of any partition, null where none is known.
	MinISRReal *int `json:"min_isr_real"`
}

func summarize(parts []admin.PartitionInfo) []mirrorSummary {
	out := []mirrorSummary{}
	topic := ""
	for _, p := range parts {
		if n := len(out); n == 0 || out[n-1].Mirror != p.Mirror {
			out = append(out, mirrorSummary{Mirror: p.Mirror, States: map[string]int{}})
			topic = ""
		}
		s := &out[len(out)-1]
		if p.Topic != topic {
			s.Topics++
			topic = p.Topic
		}
		s.Partitions++
		s.States[p.State]++
		if p.Lag != nil {
			s.Lag += *p.Lag
			if s.MaxLag == nil || *p.Lag > *s.MaxLag {
				s.MaxLag = new(*p.Lag)
			}
		}
		if p.LagSeconds != nil && (s.LagSeconds == nil || *p.LagSeconds > *s.LagSeconds) {
			s.LagSeconds = new(*p.LagSeconds)
		}
		if age := p.SourceAgeSeconds; age != nil && p.State == statemachine.Mirroring.String() &&
			(s.SourceAgeSeconds == nil || *age > *s.SourceAgeSeconds) {
			s.SourceAgeSeconds = new(*age)
		}
		if p.Locked != nil && !*p.Locked && p.State != statemachine.Stopped.String() {
			s.Unlocked++
		}
		if p.ISRReal != nil && (s.MinISRReal == nil || len(p.ISRReal) < *s.MinISRReal) {
			s.MinISRReal = new(len(p.ISRReal))
		}
	}
	return out
}

// summaryStates have a column each in the table; all others share one.
var summaryStates = []statemachine.State{statemachine.Mirroring, statemachine.Paused, statemachine.Stopped, statemachine.Failed}

func summaryTable(w io.Writer, mirrors []mirrorSummary) {
	fmt.Fprintln(w, "MIRROR\tTOPICS\tPARTITIONS\tMIRRORING\tPAUSED\tSTOPPED\tFAILED\tOTHER\tLAG\tMAX-LAG\tLAG-SECONDS\tUNLOCKED\tMIN-ISR-REAL")
	for _, s := range mirrors {
		fmt.Fprintf(w, "%s\t%d\t%d", s.Mirror, s.Topics, s.Partitions)
		others := s.Partitions
		for _, state := range summaryStates {
			fmt.Fprintf(w, "\t%d", s.States[state.String()])
			others -= s.States[state.String()]
		}
		lag := "-"
		if s.LagSeconds != nil {
			lag = fmt.Sprintf("%.1f", *s.LagSeconds)
		}
		fmt.Fprintf(w, "\t%d\t%s\t%s\t%s\t%d\t%s\n", others, lagCell(&s.Lag, s.SourceAgeSeconds), lagCell(s.MaxLag, s.SourceAgeSeconds), lag, s.Unlocked,
			cell(s.MinISRReal))
	}
}
