package verify

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"slices"

	"kmirror/records"
)

// attrDeleteHorizon is set by the cleaner when it has seen a tombstone or a marker (KIP-534); the base timestamp then holds
// the horizon.
const attrDeleteHorizon = 0x40

const attrCodec = 0x07

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// rules tell what the two sides may do to batches after they were written.
type rules struct {
	// sourceCompacts and destCompacts: a log cleaner works there, so records and whole batches may be gone.
	sourceCompacts, destCompacts bool
	// maxOpen bounds the memory for one opened payload, in bytes.
	maxOpen int
}

func (r rules) compacts() bool { return r.sourceCompacts || r.destCompacts }

// difference is a field of the batch at Offset that the sides don't have alike. An empty side has no such batch or record.
type difference struct {
	Offset       int64
	Field        string
	Source, Dest string
}

// comparison is what comparing two sequences of batches gave.
type comparison struct {
	// offsets holds the base offset of each batch that differs, ascending.
	offsets []int64
	first   *difference
	cleaned
}

// cleaned counts what was let pass.
type cleaned struct {
	// GoneSource and GoneDest are records that one side no longer has; GoneDest counts each replica's.
	GoneSource int64 `json:"gs,omitempty"`
	GoneDest   int64 `json:"gd,omitempty"`
	// Unopened are batches written anew by a cleaner whose payload could not be opened within the bound.
	Unopened int64 `json:"u,omitempty"`
	// Damaged are batches that both sides have alike, with a CRC that does not match.
	Damaged int64 `json:"d,omitempty"`
}

// merge joins what two replicas gave that were compared with the same source batches: each has been cleaned by itself, all
// the rest is told once.
func (c *cleaned) merge(o cleaned) {
	c.GoneSource = max(c.GoneSource, o.GoneSource)
	c.GoneDest += o.GoneDest
	c.Unopened = max(c.Unopened, o.Unopened)
	c.Damaged = max(c.Damaged, o.Damaged)
}

func (c *cleaned) add(o cleaned) {
	c.GoneSource += o.GoneSource
	c.GoneDest += o.GoneDest
	c.Unopened += o.Unopened
	c.Damaged += o.Damaged
}

// compare walks two sequences that cover the same offsets, both ascending by base offset.
func compare(source, dest []records.Batch, r rules) comparison {
	var c comparison
	for len(source) > 0 || len(dest) > 0 {
		switch {
		case len(dest) == 0 || len(source) > 0 && source[0].BaseOffset() < dest[0].BaseOffset():
			c.onlySource(source[0], r)
			source = source[1:]
		case len(source) == 0 || dest[0].BaseOffset() < source[0].BaseOffset():
			c.onlyDest(dest[0], r)
			dest = dest[1:]
		default:
			c.both(source[0], dest[0], r)
			source, dest = source[1:], dest[1:]
		}
	}
	return c
}

func (c *comparison) differs(batch int64, d difference) {
	if n := len(c.offsets); n == 0 || c.offsets[n-1] != batch {
		c.offsets = append(c.offsets, batch)
	}
	if c.first == nil {
		c.first = &d
	}
}

func (c *comparison) onlySource(b records.Batch, r rules) {
	if r.destCompacts {
		c.GoneDest += int64(max(0, b.NumRecords()))
		return
	}
	c.differs(b.BaseOffset(), difference{Offset: b.BaseOffset(), Field: "batch", Source: describe(b)})
}

func (c *comparison) onlyDest(b records.Batch, r rules) {
	if r.sourceCompacts {
		c.GoneSource += int64(max(0, b.NumRecords()))
		return
	}
	c.differs(b.BaseOffset(), difference{Offset: b.BaseOffset(), Field: "batch", Dest: describe(b)})
}

func describe(b records.Batch) string {
	kind := ""
	if b.IsControl() {
		kind = "control "
	}
	return fmt.Sprintf("%sbatch %d-%d, epoch %d, %d records, %d bytes",
		kind, b.BaseOffset(), b.LastOffset(), b.PartitionLeaderEpoch(), b.NumRecords(), len(b))
}

// field is a part of the 61-byte header.
type field struct {
	name string
	from int
	text func(records.Batch) string
	// kept: a cleaner that writes the batch anew leaves it as it was.
	kept bool
}

// fields lists the header without gaps, in the order of its bytes.
var fields = []field{
	{"base_offset", 0, func(b records.Batch) string { return fmt.Sprint(b.BaseOffset()) }, true},
	{"length", 8, func(b records.Batch) string { return fmt.Sprint(b.Length()) }, false},
	{"leader_epoch", 12, func(b records.Batch) string { return fmt.Sprint(b.PartitionLeaderEpoch()) }, true},
	{"magic", 16, func(b records.Batch) string { return fmt.Sprint(b.Magic()) }, true},
	{"crc", 17, func(b records.Batch) string { return fmt.Sprintf("%08x", b.CRC()) }, false},
	{"attributes", 21, attributes, true},
	{"last_offset_delta", 23, func(b records.Batch) string { return fmt.Sprint(b.LastOffsetDelta()) }, true},
	{"base_timestamp", 27, func(b records.Batch) string { return fmt.Sprint(b.BaseTimestamp()) }, false},
	{"max_timestamp", 35, func(b records.Batch) string { return fmt.Sprint(b.MaxTimestamp()) }, false},
	{"producer_id", 43, func(b records.Batch) string { return fmt.Sprint(b.ProducerID()) }, true},
	{"producer_epoch", 51, func(b records.Batch) string { return fmt.Sprint(b.ProducerEpoch()) }, true},
	{"base_sequence", 53, func(b records.Batch) string { return fmt.Sprint(b.BaseSequence()) }, true},
	{"record_count", 57, func(b records.Batch) string { return fmt.Sprint(b.NumRecords()) }, false},
}

// cleanerMay returns the attribute bits that a cleaner changes. A batch that it has emptied, and keeps for the producer's
// last sequence, is written without compression.
func cleanerMay(s, d records.Batch) int16 {
	if s.NumRecords() == 0 || d.NumRecords() == 0 {
		return attrDeleteHorizon | attrCodec
	}
	return attrDeleteHorizon
}

func attributes(b records.Batch) string {
	s := fmt.Sprintf("%#x (%s", b.Attributes(), b.Codec())
	if b.IsTransactional() {
		s += ", transactional"
	}
	if b.IsControl() {
		s += ", control"
	}
	return s + ")"
}

// headerDifference returns the first field that differs. The CRC comes before what it covers, so a difference of it alone
// is told only when all that follows in the header is equal.
func headerDifference(s, d records.Batch, keptOnly bool) *difference {
	var crc *difference
	for i, f := range fields {
		to := records.HeaderSize
		if i+1 < len(fields) {
			to = fields[i+1].from
		}
		equal := bytes.Equal(s[f.from:to], d[f.from:to])
		if keptOnly && f.name == "attributes" {
			equal = (s.Attributes()^d.Attributes())&^cleanerMay(s, d) == 0
		}
		if equal || keptOnly && !f.kept {
			continue
		}
		diff := &difference{s.BaseOffset(), f.name, f.text(s), f.text(d)}
		if f.name != "crc" {
			return diff
		}
		crc = diff
	}
	return crc
}

// both compares two batches of one base offset. Header fields first, then the CRC computed over what each side sent: equal
// CRC fields say nothing about bytes that were damaged on a disk.
func (c *comparison) both(s, d records.Batch, r rules) {
	base := s.BaseOffset()
	if !bytes.Equal(s[:records.HeaderSize], d[:records.HeaderSize]) {
		if !r.compacts() {
			c.differs(base, *headerDifference(s, d, false))
			return
		}
		c.rewritten(s, d, r)
		return
	}
	if bytes.Equal(s, d) {
		if s.CheckCRC() != nil {
			c.Damaged++
		}
		return
	}
	c.differs(base, payloadDifference(s, d))
}

// payloadDifference tells two payloads apart by their CRCs, or where CRC-32C collides by their first byte that differs.
func payloadDifference(s, d records.Batch) difference {
	base := s.BaseOffset()
	if sum, dum := crc32.Checksum(s[21:], castagnoli), crc32.Checksum(d[21:], castagnoli); sum != dum {
		return difference{base, "payload_crc32c", payloadText(s, sum), payloadText(d, dum)}
	}
	i := records.HeaderSize
	for i+1 < len(s) && s[i] == d[i] {
		i++
	}
	return difference{base, fmt.Sprintf("payload byte %d", i), fmt.Sprintf("%#x", s[i]), fmt.Sprintf("%#x", d[i])}
}

func payloadText(b records.Batch, sum uint32) string {
	if sum == b.CRC() {
		return fmt.Sprintf("%08x", sum)
	}
	return fmt.Sprintf("%08x computed, header says %08x: damaged", sum, b.CRC())
}

// rewritten compares two batches of which a cleaner has written one anew: the header fields that it keeps, then records at
// equal offsets.
func (c *comparison) rewritten(s, d records.Batch, r rules) {
	base := s.BaseOffset()
	if diff := headerDifference(s, d, true); diff != nil {
		c.differs(base, *diff)
		return
	}
	if s.CheckCRC() != nil || d.CheckCRC() != nil {
		c.differs(base, payloadDifference(s, d))
		return
	}
	nextS, stopS := iter.Pull2(records.Records(s, r.maxOpen))
	defer stopS()
	nextD, stopD := iter.Pull2(records.Records(d, r.maxOpen))
	defer stopD()
	var gone cleaned
	rs, rd := cursorOf(nextS), cursorOf(nextD)
	for rs.ok || rd.ok {
		if errors.Join(rs.err, rd.err) != nil {
			c.Unopened++
			return
		}
		switch {
		case !rd.ok || rs.ok && rs.rec.Offset < rd.rec.Offset:
			if !r.destCompacts {
				c.differs(base, difference{rs.rec.Offset, "record", recordText(rs.rec), ""})
				return
			}
			gone.GoneDest++
			rs = cursorOf(nextS)
		case !rs.ok || rd.rec.Offset < rs.rec.Offset:
			if !r.sourceCompacts {
				c.differs(base, difference{rd.rec.Offset, "record", "", recordText(rd.rec)})
				return
			}
			gone.GoneSource++
			rd = cursorOf(nextD)
		default:
			if diff := recordDifference(rs.rec, rd.rec); diff != nil {
				c.differs(base, *diff)
				return
			}
			rs, rd = cursorOf(nextS), cursorOf(nextD)
		}
	}
	c.cleaned.add(gone)
}

// pulled is the head of a sequence of records; ok is false at its end.
type pulled struct {
	rec records.Record
	err error
	ok  bool
}

func cursorOf(next func() (records.Record, error, bool)) pulled {
	rec, err, ok := next()
	return pulled{rec, err, ok}
}

func recordText(r records.Record) string {
	return fmt.Sprintf("key of %d bytes, value of %d bytes, %d headers", len(r.Key), len(r.Value), len(r.Headers))
}

func recordDifference(s, d records.Record) *difference {
	differ := func(name string, sv, dv any) *difference {
		return &difference{s.Offset, name, fmt.Sprint(sv), fmt.Sprint(dv)}
	}
	switch {
	case s.Timestamp != d.Timestamp:
		return differ("record_timestamp", s.Timestamp, d.Timestamp)
	case !sameBytes(s.Key, d.Key):
		return differ("record_key", digest(s.Key), digest(d.Key))
	case !sameBytes(s.Value, d.Value):
		return differ("record_value", digest(s.Value), digest(d.Value))
	case !slices.EqualFunc(s.Headers, d.Headers, func(a, b records.Header) bool {
		return a.Key == b.Key && sameBytes(a.Value, b.Value)
	}):
		return differ("record_headers", len(s.Headers), len(d.Headers))
	}
	return nil
}

// sameBytes tells null from empty: a null value is a tombstone.
func sameBytes(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// digest describes contents without showing them: what records hold is not for an operator's terminal.
func digest(b []byte) string {
	if b == nil {
		return "null"
	}
	return fmt.Sprintf("%d bytes, crc32c %08x", len(b), crc32.Checksum(b, castagnoli))
}
