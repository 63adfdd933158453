package fetch

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/records"
)

// answered takes the source's answer for a partition. The answer is judged by what its request said: when the
// partition's position or source epoch changed meanwhile it is dropped as a whole (KAFKA-18723), and so is a late error
// (KAFKA-7786). r is the response that rp is a part of, refresh asks for metadata.
func (p *partition) answered(
	t *target, rp *kmsg.FetchResponseTopicPartition, version int16, r *response, catch bool, now time.Time,
) (n int, refresh bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.src
	if p.closed || s.gen != t.gen || s.epoch != t.epoch || !catch && s.next != t.offset {
		return 0, false
	}
	if rp.ErrorCode != 0 {
		return 0, p.sourceError(rp, version, now)
	}
	if rp.DivergingEpoch.EndOffset >= 0 {
		p.logger().Warn("source reports divergence", "epoch", rp.DivergingEpoch.Epoch, "end", rp.DivergingEpoch.EndOffset,
			"at", t.offset, "last_epoch", t.last)
		p.reload()
		return 0, false
	}
	c, err := parseChunk(rp.RecordBatches, t.offset, t.epoch, t.last)
	if err != nil {
		p.badBatch(err, now)
		return 0, false
	}
	p.recovered()
	s.lastFetch = now
	p.sourceOffsets(rp, now)
	if c == nil {
		return 0, false
	}
	if first := c.marks[0].base; first < t.offset && t.offset > s.start {
		// Logs end where batches end, and the source had one that ended here.
		p.setBack(t.offset, first)
		return 0, false
	}
	c.own(r, p.l.memory.Load() > p.l.memoryLimit.Load()/2)
	n = len(c.data)
	s.fetched += int64(n)
	p.l.cfg.Observer.Fetched(p.assign.Mirror, p.topic, p.id.Partition, n)
	if catch {
		p.pushCatchUp(c)
		return n, false
	}
	p.append(c)
	return n, false
}

// append puts a chunk at the end of the window.
func (p *partition) append(c *chunk) {
	s := &p.src
	for _, m := range c.marks {
		s.hist = s.hist.record(m.epoch, m.base)
	}
	s.next, s.prevEpoch = c.next, c.lastEpoch
	p.l.memory.Add(int64(p.win.push(c)))
	p.setBlocked()
	p.wakeAll()
}

// sourceOffsets takes log start and high watermark from an answer.
func (p *partition) sourceOffsets(rp *kmsg.FetchResponseTopicPartition, now time.Time) {
	s := &p.src
	if rp.HighWatermark >= 0 {
		s.end, s.endAt = rp.HighWatermark, now
	}
	if rp.LogStartOffset > s.start {
		s.start = rp.LogStartOffset
		p.wakeSoon()
	}
}

// badBatch: format errors of the log itself are for good, anything else may have been damaged on the way.
func (p *partition) badBatch(err error, now time.Time) {
	if c, ok := err.(*records.CorruptError); ok && c.Err == nil {
		p.failForGood(fmt.Errorf("%w: %w", ErrSourceUnsupported, err))
		return
	}
	p.fail(fmt.Errorf("source sent a bad batch: %w", err), now)
}

// sourceError is the one place that decides what an error of the source means.
func (p *partition) sourceError(rp *kmsg.FetchResponseTopicPartition, version int16, now time.Time) (refresh bool) {
	err := fmt.Errorf("source answers the fetch with %w", kerr.ErrorForCode(rp.ErrorCode))
	switch rp.ErrorCode {
	case kerr.OffsetOutOfRange.Code:
		// Below the log start, or above the end after a truncation: only a fresh look tells which.
		p.reload()
		p.fail(err, now)
		return false
	case kerr.UnsupportedCompressionType.Code:
		p.failForGood(fmt.Errorf("%w: codec zstd needs Fetch version 10, the source was asked in version %d: %w",
			ErrSourceUnsupported, version, kerr.UnsupportedCompressionType))
		return false
	case kerr.NotLeaderForPartition.Code, kerr.FencedLeaderEpoch.Code, kerr.UnknownLeaderEpoch.Code:
		if cl := rp.CurrentLeader; cl.LeaderEpoch > p.src.epoch && p.learnLeader(cl.LeaderID, cl.LeaderEpoch) {
			p.src.mir.assignFetcher(p)
			return true // its address may be new to us
		}
	}
	p.fail(err, now)
	return true
}
