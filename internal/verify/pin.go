package verify

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// pin fixes what is compared: from the largest log start (or the first offset since the time asked for) to the lowest high
// watermark. On success there is a cursor.
func (s *step) pin(ctx context.Context, src side, replicas []side) error {
	c := &cursor{TopicID: replicas[0].id.String(), SourceID: src.id.String()}
	var err error
	if c.SourceCompacts, err = compacts(ctx, s.source, s.req.Topic); err != nil {
		return fmt.Errorf("source: topic configs: %w", err)
	}
	if c.DestCompacts, err = compacts(ctx, s.dest, s.req.Topic); err != nil {
		return fmt.Errorf("destination: topic configs: %w", err)
	}
	all := append([]side{src}, replicas...)
	starts := make([]int64, len(all))
	for i, sd := range all {
		if starts[i], err = sd.listOffset(ctx, earliest); err != nil {
			return err
		}
		c.Start = max(c.Start, starts[i])
		if i > 0 {
			c.Brokers = append(c.Brokers, sd.broker)
		}
	}
	c.Starts = differing(all, starts)
	sourceEnd, err := src.highWatermark(ctx, starts[0])
	if err != nil {
		return err
	}
	if c.End, err = s.lowestWatermark(ctx, replicas, starts[1:], sourceEnd); err != nil {
		return err
	}
	c.Behind = sourceEnd - c.End
	if s.req.SinceMS > 0 {
		since, err := src.listOffset(ctx, s.req.SinceMS)
		if err != nil {
			return err
		}
		if since < 0 {
			since = c.End
		}
		c.Start = max(c.Start, since)
	}
	// An end below the start is nothing to compare, as with a log start that followers have yet to follow.
	c.Next = c.Start
	s.cur = c
	return nil
}

// lowestWatermark returns the lowest high watermark of the replicas, at most limit. One below limit is asked again for a
// while, since a follower learns of a new one with its next fetch, up to half a second later; where brokers are so slow that
// no time is left for that, what they said has to do.
func (s *step) lowestWatermark(ctx context.Context, replicas []side, starts []int64, limit int64) (int64, error) {
	lowest := limit
	until := time.Now().Add(s.v.stepTime / 2)
	for i, sd := range replicas {
		for {
			hw, err := sd.highWatermark(ctx, starts[i])
			if err != nil {
				return 0, err
			}
			if hw < limit && time.Now().Before(until) && s.waitUntil(ctx, time.Now().Add(50*time.Millisecond)) {
				continue
			}
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			lowest = min(lowest, hw)
			break
		}
	}
	return lowest, nil
}

// differing lists the log starts when they are not all the same.
func differing(all []side, starts []int64) string {
	same := true
	parts := make([]string, len(all))
	for i, sd := range all {
		same = same && starts[i] == starts[0]
		parts[i] = fmt.Sprintf("%s %d", sd, starts[i])
	}
	if same {
		return ""
	}
	return strings.Join(parts, ", ")
}
