// Package records views record batches of Kafka's log format (magic 2) as the bytes they are. Nothing is copied and no
// payload is opened on the way of the mirror; Records and Values do so for checks and for the metadata log.
package records

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// Codec is a batch's compression (attributes bits 0-2).
type Codec int8

// Codecs.
const (
	None Codec = iota
	Gzip
	Snappy
	LZ4
	Zstd
)

// String returns Kafka's name of the codec.
func (c Codec) String() string {
	if names := [...]string{"none", "gzip", "snappy", "lz4", "zstd"}; c >= 0 && int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("codec %d", int8(c))
}

// HeaderSize is the length in bytes of a batch without records.
const HeaderSize = 61

// prefixSize is base offset and length, which the length does not count.
const prefixSize = 12

const (
	attrCodec         = 0x07
	attrTransactional = 0x10
	attrControl       = 0x20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrPartial: the bytes end within a batch, as the last one of a Fetch answer may. It wraps io.ErrUnexpectedEOF.
var ErrPartial = fmt.Errorf("partial batch: %w", io.ErrUnexpectedEOF)

// errChecksum is wrapped by the CorruptError of CheckCRC.
var errChecksum = errors.New("CRC-32C differs")

// CorruptError reports bytes that are no batch of magic 2.
type CorruptError struct {
	// BaseOffset is what stands where the base offset should be.
	BaseOffset int64
	Reason     string
	Err        error
}

// Error names the batch and what is wrong with it.
func (e *CorruptError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("batch at offset %d: %s: %v", e.BaseOffset, e.Reason, e.Err)
	}
	return fmt.Sprintf("batch at offset %d: %s", e.BaseOffset, e.Reason)
}

// Unwrap returns the cause, which may be nil.
func (e *CorruptError) Unwrap() error { return e.Err }

// Batch is a view of one complete batch of magic 2, as Split cuts it: at least HeaderSize bytes, as long as its length
// field says. It shares its array with what it was cut from and lives no longer. The methods don't check again.
type Batch []byte

// BaseOffset is the offset that record deltas count from.
func (b Batch) BaseOffset() int64 { return int64(binary.BigEndian.Uint64(b)) }

// Length is the batch's length in bytes, prefix included.
func (b Batch) Length() int { return prefixSize + int(int32(binary.BigEndian.Uint32(b[8:]))) }

// PartitionLeaderEpoch is the epoch of the leader that appended the batch. The CRC does not cover it.
func (b Batch) PartitionLeaderEpoch() int32 { return int32(binary.BigEndian.Uint32(b[12:])) }

// SetPartitionLeaderEpoch writes to the batch in place, which its owner alone may do.
func (b Batch) SetPartitionLeaderEpoch(epoch int32) {
	binary.BigEndian.PutUint32(b[12:], uint32(epoch))
}

// Magic is 2.
func (b Batch) Magic() int8 { return int8(b[16]) }

// CRC is the CRC-32C that the batch carries.
func (b Batch) CRC() uint32 { return binary.BigEndian.Uint32(b[17:]) }

// Attributes holds codec, timestamp type, transactional, control and delete horizon bits.
func (b Batch) Attributes() int16 { return int16(binary.BigEndian.Uint16(b[21:])) }

// LastOffsetDelta may be above the number of records: the cleaner takes records away and leaves it.
func (b Batch) LastOffsetDelta() int32 { return int32(binary.BigEndian.Uint32(b[23:])) }

// LastOffset is BaseOffset + LastOffsetDelta.
func (b Batch) LastOffset() int64 { return b.BaseOffset() + int64(b.LastOffsetDelta()) }

// NextOffset is where the log goes on after the batch; not the last record's offset + 1 (sarama #1005).
func (b Batch) NextOffset() int64 { return b.LastOffset() + 1 }

// BaseTimestamp is in milliseconds since 1970, as MaxTimestamp; it is the delete horizon where that bit is set.
func (b Batch) BaseTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[27:])) }

// MaxTimestamp is the largest timestamp of the batch's records, -1 when there is none.
func (b Batch) MaxTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[35:])) }

// ProducerID is -1 for producers that are not idempotent.
func (b Batch) ProducerID() int64 { return int64(binary.BigEndian.Uint64(b[43:])) }

// ProducerEpoch is -1 where there is no producer id.
func (b Batch) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(b[51:])) }

// BaseSequence is -1 where there is no producer id, and in control batches.
func (b Batch) BaseSequence() int32 { return int32(binary.BigEndian.Uint32(b[53:])) }

// NumRecords is the header's count of records; Records checks it.
func (b Batch) NumRecords() int32 { return int32(binary.BigEndian.Uint32(b[57:])) }

// Codec is the compression of what follows the header.
func (b Batch) Codec() Codec { return Codec(b.Attributes() & attrCodec) }

// IsTransactional reports the transactional bit.
func (b Batch) IsTransactional() bool { return b.Attributes()&attrTransactional != 0 }

// IsControl reports the control bit: the batch holds markers and is not shown to consumers.
func (b Batch) IsControl() bool { return b.Attributes()&attrControl != 0 }

// CheckCRC compares the CRC with the bytes it covers: attributes to end. The error is a *CorruptError.
func (b Batch) CheckCRC() error {
	if got, want := crc32.Checksum(b[21:], castagnoli), b.CRC(); got != want {
		return &CorruptError{b.BaseOffset(), fmt.Sprintf("computed %08x, batch says %08x", got, want), errChecksum}
	}
	return nil
}

// Split cuts the first batch off b; both results are parts of b. No batch left is io.EOF, the beginning of one
// ErrPartial (with rest = b), anything else a *CorruptError. Header fields that would make offsets run backwards are
// refused; the CRC is not looked at.
func Split(b []byte) (batch Batch, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, io.EOF
	}
	if len(b) < prefixSize+5 {
		return nil, b, ErrPartial
	}
	base := int64(binary.BigEndian.Uint64(b))
	size := prefixSize + int64(int32(binary.BigEndian.Uint32(b[8:])))
	if magic := int8(b[16]); magic != 2 {
		reason := fmt.Sprintf("magic %d is not known", magic)
		if magic == 0 || magic == 1 {
			reason = fmt.Sprintf("message format of before Kafka 0.11 (magic %d) is not supported", magic)
		}
		return nil, b, &CorruptError{BaseOffset: base, Reason: reason}
	}
	if size < HeaderSize {
		return nil, b, &CorruptError{BaseOffset: base, Reason: fmt.Sprintf("length of %d bytes is below the header's", size)}
	}
	if size > int64(len(b)) {
		return nil, b, ErrPartial
	}
	batch = Batch(b[:size:size])
	if d := batch.LastOffsetDelta(); base < 0 || d < 0 || batch.NextOffset() <= 0 {
		return nil, b, &CorruptError{BaseOffset: base, Reason: fmt.Sprintf("last offset delta %d gives no offset", d)}
	}
	return batch, b[size:], nil
}
