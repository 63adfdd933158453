package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"kmirror/internal/admin"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

// How often a command that waits looks: soon at first, since most is done in an instant, and never more than twice a second
// later.
const (
	firstPoll = 50 * time.Millisecond
	slowPoll  = 500 * time.Millisecond
	// pollLimit bounds one look, so that a process that hangs leaves time to ask another one.
	pollLimit = 5 * time.Second
	// hopelessAfter is how long partitions have to be FAILED for good before a wait for them ends: what an operator has just asked for
	// shows a moment later.
	hopelessAfter = 3 * time.Second
)

// waiter follows the topics of a change until all that were accepted are where they were to get, or the time is over.
type waiter struct {
	cli    *cli
	client *admin.Client
	change topicChange
	// results are what the request was answered; a refusal of what was there already is taken out.
	results []admin.TopicResult
	// parts is the newest description of each topic, failed why there is none that is newer.
	parts  map[string][]admin.PartitionInfo
	failed error
	// hopeless is since when nothing that is missing can get to the goal, zero when something can.
	hopeless time.Time
}

// run returns when nothing is left to wait for, the wait is over or ctx ended; the last is an error. A serve that is not to
// be reached for a moment is asked again.
func (w *waiter) run(ctx context.Context) error {
	if len(w.results) == 0 {
		return nil
	}
	defer w.cli.progress("")
	end := time.NewTimer(w.change.wait)
	defer end.Stop()
	for pause := firstPoll; ; pause = min(2*pause, slowPoll) {
		err := w.look(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if e := (*admin.Error)(nil); errors.As(err, &e) && e.Exit == admin.ExitUsage {
			return err // the mirror is no more
		}
		if w.failed = err; err == nil {
			w.forgive()
		}
		if len(w.missing(w.accepted())) == 0 || w.givenUp() {
			return nil
		}
		next := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			next.Stop()
			return ctx.Err()
		case <-end.C:
			next.Stop()
			return nil
		case <-next.C:
		}
	}
}

// givenUp reports whether nothing but an operator can bring what is missing to the goal, for longer than a moment.
func (w *waiter) givenUp() bool {
	switch {
	case w.failed != nil || !w.onlyHopeless():
		w.hopeless = time.Time{}
	case w.hopeless.IsZero():
		w.hopeless = time.Now()
	default:
		return time.Since(w.hopeless) > hopelessAfter
	}
	return false
}

// onlyHopeless reports whether all that is missing has FAILED so that no retry can help, where the goal is to mirror.
func (w *waiter) onlyHopeless() bool {
	if !w.change.goal.reached(statemachine.Mirroring.String()) {
		return false
	}
	for _, topic := range w.accepted() {
		if len(w.parts[topic]) == 0 {
			return false
		}
		for _, p := range w.parts[topic] {
			if !w.change.goal.reached(p.State) && (p.State != statemachine.Failed.String() || p.Retry >= 0) {
				return false
			}
		}
	}
	return true
}

// look takes one description of all topics of the change.
func (w *waiter) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pollLimit)
	defer cancel()
	req := admin.DescribeRequest{Mirrors: []string{w.change.mirror}}
	if !w.change.all { // thousands of names would say the same as none
		for _, r := range w.results {
			req.Topics = append(req.Topics, r.Topic)
		}
	}
	parts, err := w.client.Describe(ctx, req)
	if err != nil {
		return err
	}
	w.parts = map[string][]admin.PartitionInfo{}
	for _, p := range parts {
		w.parts[p.Topic] = append(w.parts[p.Topic], p)
	}
	accepted := w.accepted()
	total, lag := 0, int64(0)
	for _, topic := range accepted {
		total += len(w.parts[topic])
		for _, p := range w.parts[topic] {
			if p.Lag != nil {
				lag += *p.Lag
			}
		}
	}
	w.cli.progress(fmt.Sprintf("%s: %d of %d partitions %s, lag %d", w.change.verb, total-len(w.missing(accepted)), total,
		w.change.goal.name, lag))
	return nil
}

// accepted returns the topics that were not refused.
func (w *waiter) accepted() []string {
	var out []string
	for _, r := range w.results {
		if r.Err == nil {
			out = append(out, r.Topic)
		}
	}
	return out
}

// missing names the partitions of topics that are not at the goal; a topic that is not described at all counts as one.
func (w *waiter) missing(topics []string) []string {
	var out []string
	for _, topic := range topics {
		if len(w.parts[topic]) == 0 {
			out = append(out, topic+" is not described yet")
		}
		for _, p := range w.parts[topic] {
			if !w.change.goal.reached(p.State) {
				line := fmt.Sprintf("%s-%d is %s", topic, p.Partition, p.State)
				if p.Error != nil {
					line += " (" + *p.Error + ")"
				}
				out = append(out, line)
			}
		}
	}
	return out
}

// forgive takes the refusal off topics that are where they were to get: a goal already reached is no failure.
func (w *waiter) forgive() {
	w.results = slices.Clone(w.results)
	for i, r := range w.results {
		if r.Err != nil && len(w.missing([]string{r.Topic})) == 0 {
			w.results[i].Err = nil
		}
	}
}

// rows lists the partitions in the order of the results.
func (w *waiter) rows() []partitionResult {
	rows := []partitionResult{}
	for _, r := range w.results {
		if r.Err != nil {
			rows = append(rows, refusedRow(w.change.mirror, r))
			continue
		}
		lost := map[int32]int64{}
		if r.Plan != nil {
			for _, p := range r.Plan.Partitions {
				lost[p.Partition] = p.Lost
			}
		}
		for _, p := range w.parts[r.Topic] {
			row := partitionResult{Mirror: p.Mirror, Topic: p.Topic, Partition: new(p.Partition), State: new(p.State), Lag: p.Lag,
				Done: w.change.goal.reached(p.State), Error: p.Error, Hint: p.Hint}
			if n, ok := lost[p.Partition]; ok {
				row.Lost = known(n)
			}
			rows = append(rows, row)
		}
		if len(w.parts[r.Topic]) == 0 {
			rows = append(rows, partitionResult{Mirror: w.change.mirror, Topic: r.Topic})
		}
	}
	return rows
}

// incomplete is nil when all that was accepted is done, else it says what remains.
func (w *waiter) incomplete(rows []partitionResult) error {
	missing := w.missing(w.accepted())
	if len(missing) == 0 {
		return nil
	}
	total := 0
	for _, r := range rows {
		if r.Partition != nil || r.Error == nil {
			total++
		}
	}
	after, hint := "after "+w.change.wait.String(), fmt.Sprintf(
		"kmirror serve goes on; the same command again attaches, kmirror describe --mirror %s shows how far it is", w.change.mirror)
	if w.failed == nil && w.onlyHopeless() {
		after, hint = "and no retry can help", fmt.Sprintf("kmirror describe --mirror %s --failed says for each what to do", w.change.mirror)
	}
	message := fmt.Sprintf("%d of %d partitions are not %s %s: %s", len(missing), total, w.change.goal.name, after,
		strings.Join(missing[:min(3, len(missing))], ", "))
	if n := len(missing) - 3; n > 0 {
		message += fmt.Sprintf(" and %d more", n)
	}
	if w.failed != nil {
		message += fmt.Sprintf("; the newest look failed: %v", w.failed)
	}
	return &admin.Error{Code: kip1279.RequestTimedOut, Message: message, Exit: admin.ExitIncomplete, Hint: hint}
}
