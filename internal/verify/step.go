package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"kmirror/internal/admin"
	"kmirror/protocol"
	"kmirror/records"
)

// step is one Step while it runs.
type step struct {
	v            *Verifier
	req          admin.VerifyRequest
	source, dest *kgo.Client
	want         protocol.UUID // source topic that is mirrored
	deadline     time.Time

	cur    *cursor // nil until the end is pinned
	idled  int     // steps before this one in which it was not
	leader int32   // at the source, -1 when to be asked for
	id     protocol.UUID

	out admin.VerifyResponse
}

// run goes round by round until the deadline, the end, or an error that no retry mends.
func (s *step) run(ctx context.Context) error {
	s.leader = -1
	backoff := 20 * time.Millisecond
	var last error
	progress := false
	for !s.done() && s.out.Bytes < stepBytes {
		if !s.waitUntil(ctx, s.notBefore()) {
			break
		}
		err := s.once(ctx)
		if err == nil {
			progress, backoff = true, 20*time.Millisecond
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !passing(err) {
			return final(err)
		}
		last = err
		s.v.log.Debug("verify retries", "topic", s.req.Topic, "partition", s.req.Partition, "err", err)
		s.leader = -1
		s.waitUntil(ctx, time.Now().Add(backoff+rand.N(backoff)))
		backoff = min(2*backoff, 500*time.Millisecond)
		if !time.Now().Before(s.deadline) {
			break
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.idle(progress, last)
}

// final gives an error that is not retried an exit code.
func final(err error) error {
	if _, ok := errors.AsType[*admin.Error](err); ok {
		return err
	}
	return unreachable(err)
}

// idle decides what a step without progress means.
func (s *step) idle(progress bool, last error) error {
	switch {
	case s.cur == nil:
		if s.idled++; s.idled >= maxIdle {
			return unreachable(last)
		}
	case progress || last == nil:
		s.cur.Idle = 0
	default:
		if s.cur.Idle++; s.cur.Idle >= maxIdle {
			return unreachable(last)
		}
	}
	return nil
}

func unreachable(err error) error {
	if err == nil {
		err = errors.New("no time left")
	}
	e := &admin.Error{Code: kerr.RequestTimedOut.Code, Message: "verify got no further: " + err.Error(), Exit: admin.ExitUnreachable,
		Hint: "it asks the source and every in-sync broker of the destination: bring back the one that does not answer, or wait until the " +
			"controller has taken it out of sync; then the same command again, which begins anew"}
	if k, ok := errors.AsType[*kerr.Error](err); ok {
		e.Code = k.Code
	}
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		e.Hint = "grant what docs/operations.md lists under Rights; kmirror preflight says which one is missing"
	}
	return e
}

func (s *step) done() bool { return s.cur != nil && !s.cur.Unpinned && s.cur.Next >= s.cur.End }

func (s *step) notBefore() time.Time {
	if s.cur == nil || s.req.MaxRate <= 0 {
		return time.Time{}
	}
	// A cursor from elsewhere, or a clock that was set, must not put a step to sleep for ever.
	return time.UnixMilli(min(s.cur.NotBefore, time.Now().Add(time.Minute).UnixMilli()))
}

// waitUntil returns false when t is not before the deadline, or ctx ended.
func (s *step) waitUntil(ctx context.Context, t time.Time) bool {
	ok := t.Before(s.deadline)
	if !ok {
		t = s.deadline
	}
	if d := time.Until(t); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
	}
	return ok && time.Now().Before(s.deadline)
}

// once pins the end if that is still to be done, and compares one chunk otherwise.
func (s *step) once(ctx context.Context) error {
	src, replicas, err := s.sides(ctx)
	if err != nil {
		return err
	}
	if s.cur == nil {
		return s.pin(ctx, src, replicas)
	}
	return s.round(ctx, src, replicas)
}

// sides returns the source's leader and the destination's in-sync real replicas.
func (s *step) sides(ctx context.Context) (side, []side, error) {
	img := s.v.cfg.Images.Image()
	topic := img.TopicByName(s.req.Topic)
	if topic == nil {
		return side{}, nil, &admin.Error{Code: codeUnknownTopic, Message: "no topic " + s.req.Topic + " at the destination"}
	}
	part := img.Partition(protocol.PartitionID{Topic: topic.ID, Partition: s.req.Partition})
	if part == nil {
		return side{}, nil, &admin.Error{Code: codeUnknownTopic,
			Message: fmt.Sprintf("topic %s has no partition %d at the destination", s.req.Topic, s.req.Partition)}
	}
	if s.leader < 0 {
		leader, id, err := leaderOf(ctx, s.source, s.req.Topic, s.req.Partition)
		if err != nil {
			return side{}, nil, fmt.Errorf("source: %w", err)
		}
		s.leader, s.id = leader, id
	}
	if err := s.sameTopics(topic.ID); err != nil {
		return side{}, nil, err
	}
	src := side{cl: s.source, broker: s.leader, source: true, topic: s.req.Topic, id: s.id, partition: s.req.Partition}
	var replicas []side
	for _, id := range part.ISR {
		if !s.v.cfg.Owns(id) {
			replicas = append(replicas, side{cl: s.dest, broker: id, topic: s.req.Topic, id: topic.ID, partition: s.req.Partition})
		}
	}
	if len(replicas) == 0 {
		return side{}, nil, fmt.Errorf("destination: %w: no real replica is in sync", kerr.ReplicaNotAvailable)
	}
	slices.SortFunc(replicas, func(a, b side) int { return int(a.broker) - int(b.broker) })
	return src, replicas, nil
}

// sameTopics refuses topics that were made anew under the name (KAFKA-12257).
func (s *step) sameTopics(dest protocol.UUID) error {
	refuse := func(where string, is, want protocol.UUID) error {
		return &admin.Error{Code: codeInconsistentID,
			Message: fmt.Sprintf("topic %s at the %s has id %s, not %s: it was made anew", s.req.Topic, where, is, want)}
	}
	if !s.want.IsZero() && !s.id.IsZero() && s.id != s.want {
		return refuse("source", s.id, s.want)
	}
	if s.cur == nil {
		return nil
	}
	if id, err := protocol.ParseUUID(s.cur.TopicID); err != nil || id != dest {
		return refuse("destination", dest, id)
	}
	if id, err := protocol.ParseUUID(s.cur.SourceID); err != nil || id != s.id {
		return refuse("source", s.id, id)
	}
	return nil
}

// round reads a chunk from every side and compares what all of them cover.
func (s *step) round(ctx context.Context, src side, replicas []side) error {
	ids := make([]int32, len(replicas))
	for i, r := range replicas {
		ids[i] = r.broker
	}
	s.cur.members(ids)
	all := append([]side{src}, replicas...)
	chunks := make([]chunk, len(all))
	limit := s.chunk(len(all))
	g, gctx := errgroup.WithContext(ctx)
	for i, sd := range all {
		g.Go(func() (err error) {
			chunks[i], err = sd.fetch(gctx, s.cur.Next, limit)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		if e, ok := errors.AsType[*sideError](err); ok && errors.Is(err, kerr.OffsetOutOfRange) {
			return s.outOfRange(ctx, e)
		}
		return err
	}
	var read int64
	until := s.cur.End
	for _, c := range chunks {
		read += c.bytes
		until = min(until, c.until)
	}
	s.out.Bytes += read
	if s.req.MaxRate > 0 {
		pause := time.Duration(float64(read) / float64(s.req.MaxRate) * float64(time.Second))
		s.cur.NotBefore = time.Now().Add(pause).UnixMilli()
	}
	if until <= s.cur.Next {
		return s.pastCorrupt(all, chunks)
	}
	s.compare(all, chunks, until)
	s.cur.Next = until
	return nil
}

// chunk shrinks what is read at once when the rate is low, so that a step does not overdraw by much.
func (s *step) chunk(sides int) int32 {
	if s.req.MaxRate <= 0 {
		return chunkBytes
	}
	return int32(min(chunkBytes, max(minChunk, s.req.MaxRate/int64(4*sides))))
}

// compare compares the source's chunk with each replica's below until.
func (s *step) compare(all []side, chunks []chunk, until int64) {
	source := s.within(chunks[0].batches, until)
	differ := map[int64]bool{}
	batches := int64(len(source))
	var passed cleaned
	for i, sd := range all[1:] {
		dest := s.within(chunks[i+1].batches, until)
		c := compare(source, dest, s.cur.rules())
		passed.merge(c.cleaned)
		for _, o := range c.offsets {
			differ[o] = true
		}
		s.first(sd, c.first)
	}
	s.cur.add(passed)
	s.out.Batches += batches
	s.out.Differ += int64(len(differ))
}

// within keeps the batches that begin below until and that no earlier round has seen. The very first round may begin within
// a batch: log starts and timestamps do.
func (s *step) within(b []records.Batch, until int64) []records.Batch {
	for len(b) > 0 && b[0].BaseOffset() < s.cur.Next && s.cur.Next > s.cur.Start {
		b = b[1:]
	}
	n := 0
	for n < len(b) && b[n].BaseOffset() < until {
		n++
	}
	return b[:n]
}

// first keeps the difference at the lowest offset.
func (s *step) first(sd side, d *difference) {
	if d == nil || s.out.First != nil && s.out.First.Offset <= d.Offset {
		return
	}
	missing := func(text string) string {
		if text == "" {
			return "missing"
		}
		return text
	}
	s.out.First = &admin.Difference{
		Topic: s.req.Topic, Partition: s.req.Partition, Offset: d.Offset, Field: d.Field,
		Source:      missing(d.Source),
		Destination: fmt.Sprintf("%s (broker %d)", missing(d.Dest), sd.broker),
	}
}

// pastCorrupt reports bytes that are no batch and goes on behind the batch that another side has in their place.
func (s *step) pastCorrupt(all []side, chunks []chunk) error {
	next := int64(-1)
	for _, c := range chunks {
		if len(c.batches) > 0 && (next < 0 || c.batches[0].NextOffset() < next) {
			next = c.batches[0].NextOffset()
		}
	}
	for i, c := range chunks {
		if c.corrupt == nil || len(c.batches) > 0 {
			continue
		}
		if next < 0 {
			return &sideError{all[i], c.corrupt}
		}
		d := difference{s.cur.Next, "batch", "readable", c.corrupt.Error()}
		if i == 0 {
			d.Source, d.Dest = c.corrupt.Error(), "see source"
		}
		s.first(all[max(i, 1)], &d)
	}
	if next < 0 {
		return fmt.Errorf("no side has anything at offset %d", s.cur.Next)
	}
	s.out.Batches++
	s.out.Differ++
	s.cur.Next = next
	return nil
}

// outOfRange goes on at a side's new log start: retention went over the offset. The end stays where it was pinned.
func (s *step) outOfRange(ctx context.Context, e *sideError) error {
	start, err := e.side.listOffset(ctx, earliest)
	if err != nil {
		return err
	}
	if start <= s.cur.Next {
		return e // truncated, or a follower that has yet to learn of its new end
	}
	s.cur.Skipped += min(start, s.cur.End) - s.cur.Next
	s.cur.Next = start
	return nil
}

// passing reports errors that time may mend.
func passing(err error) bool {
	if _, ok := errors.AsType[*admin.Error](err); ok {
		return false
	}
	if k, ok := errors.AsType[*kerr.Error](err); ok {
		switch k {
		case kerr.OffsetOutOfRange, kerr.OffsetNotAvailable, kerr.UnknownTopicID, kerr.InconsistentTopicID,
			kerr.ThrottlingQuotaExceeded, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch:
			return true
		}
		return k.Retriable
	}
	if _, ok := errors.AsType[*records.CorruptError](err); ok {
		return false
	}
	return true
}

// answer closes the step.
func (s *step) answer() (admin.VerifyResponse, error) {
	if s.cur == nil {
		s.cur = &cursor{Unpinned: true, Idle: s.idled}
	}
	s.out.Done = s.done()
	if s.out.Done {
		s.out.Note = s.cur.note()
	}
	text, err := s.cur.encode()
	s.out.Cursor = text
	return s.out, err
}

// compacts reports whether a topic's cleanup.policy, defaults included, has compact in it.
func compacts(ctx context.Context, cl *kgo.Client, topic string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	configs, err := kadm.NewClient(cl).DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return false, err
	}
	rc, err := configs.On(topic, nil)
	if err == nil {
		err = rc.Err
	}
	if err != nil {
		return false, err
	}
	for _, c := range rc.Configs {
		if c.Key == "cleanup.policy" {
			return strings.Contains(c.MaybeValue(), "compact"), nil
		}
	}
	return false, nil
}
