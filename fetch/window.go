package fetch

import (
	"errors"
	"fmt"
	"io"
	"sort"
	"sync/atomic"

	"kmirror/records"
)

// markEvery is the distance in bytes between two entries of a chunk's index.
const markEvery = 16 << 10

// mark is an entry of a chunk's index: a batch that starts at pos. Every change of epoch has one.
type mark struct {
	base  int64
	pos   int
	epoch int32
}

// response is the buffer of a source response, which lives as a whole until the last chunk that is a slice of it is gone.
// What windows of all partitions hold of it is accounted once, as all of it.
type response struct {
	// size is that of the records in it; what stands between them is some tens of bytes a partition.
	size int
	// held counts the chunks of it in windows.
	held atomic.Int32
}

// chunk is what one source response held of a partition: whole batches in one piece, a slice of the response's buffer or a
// copy. It is immutable and lives as long as somebody refers to it, also after a window forgot it.
type chunk struct {
	// from is the offset that was asked for: nothing exists between it and the first batch. next is where the log goes on.
	from, next int64
	data       []byte
	marks      []mark
	// lastEpoch is that of the last batch; epochs don't fall within a log.
	lastEpoch int32
	// of is the response that data is a slice of, nil when it is a copy.
	of *response
}

// parseChunk reads headers only. It skips batches that end at or below from, and stops before the first batch whose epoch
// is above maxEpoch: that one was written by a leader that the request did not mean, and may follow a truncation that we
// have not seen (KAFKA-18723). A maxEpoch of -1 admits all. A chunk without batches is nil.
func parseChunk(b []byte, from int64, maxEpoch, lastEpoch int32) (*chunk, error) {
	c := &chunk{from: from, next: from, lastEpoch: lastEpoch}
	var kept, marked int
	start := b
	for {
		batch, rest, err := records.Split(b)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, records.ErrPartial) {
				break
			}
			return nil, err
		}
		b = rest
		if kept == 0 && batch.NextOffset() <= from {
			start = rest
			continue
		}
		epoch := batch.PartitionLeaderEpoch()
		if maxEpoch >= 0 && epoch > maxEpoch {
			break
		}
		if kept > 0 && batch.BaseOffset() < c.next {
			return nil, fmt.Errorf("batch at offset %d where %d is due", batch.BaseOffset(), c.next)
		}
		if epoch < c.lastEpoch {
			return nil, fmt.Errorf("batch at offset %d has leader epoch %d after %d", batch.BaseOffset(), epoch, c.lastEpoch)
		}
		if kept == 0 || epoch > c.lastEpoch || kept-marked >= markEvery {
			c.marks = append(c.marks, mark{batch.BaseOffset(), kept, epoch})
			marked = kept
		}
		kept += len(batch)
		c.next, c.lastEpoch = batch.NextOffset(), epoch
	}
	if kept == 0 {
		return nil, nil
	}
	c.data = start[:kept:kept]
	return c, nil
}

// copySmall is the size up to which a small part of a response is always copied.
const copySmall = 128 << 10

// own moves a chunk that is less than a quarter of its response into memory of its own: a small one always, a large one,
// whose copy costs as much as all else that is done with it, only when memory is tight. Then no chunk keeps more than four
// times its size alive, and a response that up to four partitions share evenly is not copied.
func (c *chunk) own(r *response, tight bool) {
	if len(c.data) < r.size/4 && (tight || len(c.data) <= copySmall) {
		c.data = append(make([]byte, 0, len(c.data)), c.data...)
		return
	}
	c.of = r
}

// hold says that a window keeps the chunk, and returns by how many bytes that raises what is kept alive: of the chunks of
// one response the first to come brings all of it.
func (c *chunk) hold() int {
	switch {
	case c.of == nil:
		return len(c.data)
	case c.of.held.Add(1) == 1:
		return c.of.size
	}
	return 0
}

// release takes hold back and returns the bytes that are free now: the last chunk of a response frees all of it.
func (c *chunk) release() int {
	switch {
	case c.of == nil:
		return len(c.data)
	case c.of.held.Add(-1) == 0:
		return c.of.size
	}
	return 0
}

// seek returns the position of the first batch that ends above offset.
func (c *chunk) seek(offset int64) int {
	i := sort.Search(len(c.marks), func(i int) bool { return c.marks[i].base > offset })
	pos := 0
	if i > 0 {
		pos = c.marks[i-1].pos
	}
	for pos < len(c.data) {
		batch := records.Batch(c.data[pos:])
		if batch.NextOffset() > offset {
			break
		}
		pos += batch.Length()
	}
	return pos
}

// cut returns where a read from pos ends that may take limit bytes, no epoch above maxEpoch and no batch that ends above upTo;
// with one it takes at least one batch where these allow.
func (c *chunk) cut(pos, limit int, maxEpoch int32, upTo int64, one bool) int {
	end := len(c.data)
	if c.next > upTo {
		end = max(pos, c.seek(upTo))
	}
	if maxEpoch >= 0 && c.lastEpoch > maxEpoch {
		i := sort.Search(len(c.marks), func(i int) bool { return c.marks[i].epoch > maxEpoch })
		end = min(end, max(pos, c.marks[i].pos))
	}
	if end-pos <= limit {
		return end
	}
	i := sort.Search(len(c.marks), func(i int) bool { return c.marks[i].pos > pos+limit })
	at := pos
	if i > 0 {
		at = max(pos, c.marks[i-1].pos)
	}
	for at < end {
		n := records.Batch(c.data[at:]).Length()
		if at+n-pos > limit && !(one && at == pos) {
			break
		}
		at += n
	}
	return min(at, end)
}

// chunks is a run of chunks without a gap: each one's from is the next of the one before.
type chunks []*chunk

// find returns the index of the chunk that a read at offset starts in, or -1.
func (cs chunks) find(offset int64) int {
	i := sort.Search(len(cs), func(i int) bool { return cs[i].next > offset })
	if i == len(cs) || cs[i].from > offset {
		return -1
	}
	return i
}

// read appends slices of batches from offset on to bufs: at most limit bytes, none of an epoch above maxEpoch, none that ends
// above upTo. With one a first batch above the limit still comes, as in Kafka. n is the bytes read, last the epoch of the last
// batch or -1.
func (cs chunks) read(
	bufs [][]byte, offset int64, limit int, maxEpoch int32, upTo int64, one bool,
) (_ [][]byte, n int, last int32) {
	last = -1
	for i := cs.find(offset); i >= 0 && i < len(cs); i++ {
		c := cs[i]
		pos := 0
		if n == 0 {
			pos = c.seek(offset)
		}
		end := c.cut(pos, limit-n, maxEpoch, upTo, one && n == 0)
		if end > pos {
			bufs = append(bufs, c.data[pos:end:end])
			n += end - pos
			last = c.epochBefore(end)
		}
		if end < len(c.data) {
			break
		}
	}
	return bufs, n, last
}

// epochBefore returns the epoch of the batch that ends at end.
func (c *chunk) epochBefore(end int) int32 {
	i := sort.Search(len(c.marks), func(i int) bool { return c.marks[i].pos >= end })
	return c.marks[i-1].epoch
}

// window is the part of a partition's log that is kept for all followers. bytes is the size of its chunks; what they keep
// alive, which others may share, is what its methods return when it changes.
type window struct {
	chunks chunks
	bytes  int
}

// push adds the newest chunk and returns the bytes that are kept alive in addition.
func (w *window) push(c *chunk) (held int) {
	w.chunks = append(w.chunks, c)
	w.bytes += len(c.data)
	return c.hold()
}

// evict drops the oldest chunk and returns the bytes freed.
func (w *window) evict() (freed int) {
	c := w.chunks[0]
	w.chunks[0] = nil
	w.chunks = w.chunks[1:]
	w.bytes -= len(c.data)
	return c.release()
}

// from is the offset at which the window begins, or next when it holds nothing.
func (w *window) from(next int64) int64 {
	if len(w.chunks) > 0 {
		return w.chunks[0].from
	}
	return next
}

// truncate drops what is at or above offset and returns the bytes freed. Batches are never cut: where offset lies within
// one, the window ends below it and the caller reads on from there.
func (w *window) truncate(offset int64) (freed int) {
	for n := len(w.chunks); n > 0 && w.chunks[n-1].next > offset; n-- {
		c := w.chunks[n-1]
		w.chunks[n-1] = nil
		w.chunks = w.chunks[:n-1]
		w.bytes -= len(c.data)
		head := c.head(offset)
		if head != nil {
			freed -= w.push(head)
		}
		if freed += c.release(); head != nil {
			break
		}
	}
	return freed
}

// head returns the part of a chunk below offset, nil when no batch lies there.
func (c *chunk) head(offset int64) *chunk {
	pos := c.seek(offset)
	if pos == 0 {
		return nil
	}
	n := sort.Search(len(c.marks), func(i int) bool { return c.marks[i].pos >= pos })
	next := min(offset, records.Batch(c.data[pos:]).BaseOffset())
	data := c.data[:pos:pos]
	if c.of == nil { // else more stays alive than what it says
		data = append(make([]byte, 0, pos), data...)
	}
	return &chunk{from: c.from, next: next, data: data, marks: c.marks[:n:n], lastEpoch: c.marks[n-1].epoch, of: c.of}
}

// clear drops all and returns the bytes freed.
func (w *window) clear() (freed int) {
	for _, c := range w.chunks {
		freed += c.release()
	}
	*w = window{}
	return freed
}
