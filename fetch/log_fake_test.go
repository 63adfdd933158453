package fetch

import (
	"encoding/binary"
	"hash/crc32"

	"kmirror/records"
)

// batch makes a batch of n records' worth of offsets with size bytes of payload that nobody opens.
func batch(base int64, n int, epoch int32, size int) []byte {
	b := make([]byte, records.HeaderSize+size)
	binary.BigEndian.PutUint64(b, uint64(base))
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[12:], uint32(epoch))
	b[16] = 2
	binary.BigEndian.PutUint32(b[23:], uint32(n-1))
	binary.BigEndian.PutUint64(b[43:], ^uint64(0))
	binary.BigEndian.PutUint16(b[51:], ^uint16(0))
	binary.BigEndian.PutUint32(b[53:], ^uint32(0))
	binary.BigEndian.PutUint32(b[57:], uint32(n))
	for i := records.HeaderSize; i < len(b); i++ {
		b[i] = byte(int(base) + i*7)
	}
	binary.BigEndian.PutUint32(b[17:], crcOf(b))
	return b
}

func crcOf(b []byte) uint32 { return crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)) }

// fakeLog is one partition of the fake source; it behaves as a Kafka leader's log does.
type fakeLog struct {
	leader, epoch int32
	start, hw     int64
	batches       []records.Batch
	epochs        history
}

func (g *fakeLog) end() int64 {
	if n := len(g.batches); n > 0 {
		return g.batches[n-1].NextOffset()
	}
	return g.start
}

// lead begins a leader epoch, as a Kafka leader notes it in its epoch cache.
func (g *fakeLog) lead(broker, epoch int32) {
	g.leader, g.epoch = broker, epoch
	g.epochs = g.epochs.record(epoch, g.end())
}

func (g *fakeLog) add(b []byte) {
	x := records.Batch(b)
	g.batches = append(g.batches, x)
	g.epochs = g.epochs.record(x.PartitionLeaderEpoch(), x.BaseOffset())
	g.hw = g.end()
}

func (g *fakeLog) truncate(to int64) {
	for n := len(g.batches); n > 0 && g.batches[n-1].NextOffset() > to; n-- {
		g.batches = g.batches[:n-1]
	}
	g.epochs = g.epochs.truncated(to)
	g.hw = min(g.hw, to)
}

func (g *fakeLog) deleteTo(start int64) {
	g.start = start
	for len(g.batches) > 0 && g.batches[0].NextOffset() <= start {
		g.batches = g.batches[1:]
	}
	var kept history
	for i, e := range g.epochs {
		if i+1 < len(g.epochs) && g.epochs[i+1].start <= start {
			continue
		}
		kept = append(kept, epochStart{e.epoch, max(e.start, start)})
	}
	g.epochs = kept
}

func (g *fakeLog) bytes() []byte {
	var all []byte
	for _, b := range g.batches {
		all = append(all, b...)
	}
	return all
}

// endFor is Kafka's answer to OffsetForLeaderEpoch, undefined included.
func (g *fakeLog) endFor(epoch int32) (int32, int64) {
	if epoch < 0 || len(g.epochs) == 0 || epoch > g.epochs.newest() {
		return -1, -1
	}
	return g.epochs.endOffsetFor(epoch, g.end())
}
