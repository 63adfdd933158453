package records

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"iter"

	"github.com/twmb/franz-go/pkg/kbin"
)

// Record is one record of a batch. Slices are parts of the batch, or of the decompressed payload.
type Record struct {
	// Offset is absolute; Timestamp is in milliseconds since 1970, the batch's MaxTimestamp when it is log append time.
	Offset, Timestamp int64
	// Key and Value are nil for null.
	Key, Value []byte
	Headers    []Header
}

// Header is a record header; a nil Value is null.
type Header struct {
	Key   string
	Value []byte
}

const attrLogAppendTime = 0x08

// Records yields the records of a batch. A compressed payload is opened in memory, up to maxBytes of it, which bounds
// the iterator's memory; an uncompressed one is read in place. The last pair holds the error, if any: a
// *CorruptError, for a payload above maxBytes one that wraps ErrTooLarge. Everything is checked: lengths, the number
// of records, offset deltas ascending up to LastOffsetDelta. The CRC is not.
func Records(b Batch, maxBytes int) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		payload, err := Payload(b, maxBytes)
		if err != nil {
			yield(Record{}, err)
			return
		}
		r := kbin.Reader{Src: payload}
		last := int64(-1)
		for n := int32(0); n < b.NumRecords(); n++ {
			rec, delta, err := readRecord(b, &r)
			switch {
			case err != nil:
			case delta <= last || delta > int64(b.LastOffsetDelta()):
				err = fmt.Errorf("offset delta %d after %d, last is %d", delta, last, b.LastOffsetDelta())
			}
			if err != nil {
				yield(Record{}, corrupt(b, fmt.Sprintf("record %d of %d", n, b.NumRecords()), err))
				return
			}
			last = delta
			if !yield(rec, nil) {
				return
			}
		}
		if b.NumRecords() < 0 || len(r.Src) > 0 {
			err := fmt.Errorf("%d bytes follow the last of %d records", len(r.Src), b.NumRecords())
			yield(Record{}, corrupt(b, "payload", err))
		}
	}
}

// readRecord reads one record off r. Its own length must be used up exactly.
func readRecord(b Batch, r *kbin.Reader) (rec Record, delta int64, err error) {
	body := kbin.Reader{Src: r.Span(int(r.Varint()))}
	if !r.Ok() {
		return rec, 0, errShort
	}
	body.Int8()
	rec.Timestamp = b.BaseTimestamp() + body.Varlong()
	if b.Attributes()&attrLogAppendTime != 0 {
		rec.Timestamp = b.MaxTimestamp()
	}
	delta = int64(body.Varint())
	rec.Offset = b.BaseOffset() + delta
	rec.Key, rec.Value = body.VarintBytes(), body.VarintBytes()
	// A header takes two bytes at least, so the count can't make us allocate more than the record is worth.
	n := body.Varint()
	if n < 0 || int64(n)*2 > int64(len(body.Src)) {
		return rec, delta, errShort
	}
	for ; n > 0 && body.Ok(); n-- {
		key := body.Span(int(body.Varint()))
		rec.Headers = append(rec.Headers, Header{string(key), body.VarintBytes()})
	}
	if !body.Ok() {
		return rec, delta, errShort
	}
	if len(body.Src) > 0 {
		return rec, delta, fmt.Errorf("%d bytes left over", len(body.Src))
	}
	return rec, delta, nil
}

// Values returns the values of an uncompressed batch, those of the metadata log for one; null is nil. They are parts
// of b.
func Values(b Batch) ([][]byte, error) {
	if c := b.Codec(); c != None {
		return nil, corrupt(b, "compressed with "+c.String()+" where no compression is due", nil)
	}
	var out [][]byte
	for rec, err := range Records(b, len(b)) {
		if err != nil {
			return nil, err
		}
		out = append(out, rec.Value)
	}
	return out, nil
}

// Control record types (ControlRecordType). An unknown type is to be carried, not refused.
const (
	ControlAbort          int16 = 0
	ControlCommit         int16 = 1
	ControlLeaderChange   int16 = 2
	ControlSnapshotHeader int16 = 3
	ControlSnapshotFooter int16 = 4
	ControlKRaftVersion   int16 = 5
	ControlKRaftVoters    int16 = 6
	// ControlMirrorPidReset is KIP-1279's.
	ControlMirrorPidReset int16 = 7
)

// ControlType returns the type of a control batch's first record: its key is version (int16) and type (int16).
// Batches that are not control batches, or have no record (the cleaner keeps empty ones), are an error.
func ControlType(b Batch) (int16, error) {
	if !b.IsControl() {
		return 0, corrupt(b, "not a control batch", nil)
	}
	if c := b.Codec(); c != None {
		return 0, corrupt(b, "control batch compressed with "+c.String(), nil)
	}
	for rec, err := range Records(b, len(b)) {
		if err != nil {
			return 0, err
		}
		if len(rec.Key) < 4 {
			return 0, corrupt(b, fmt.Sprintf("control record's key has %d bytes", len(rec.Key)), nil)
		}
		return int16(binary.BigEndian.Uint16(rec.Key[2:])), nil
	}
	return 0, corrupt(b, "control batch without a record", nil)
}

// Control describes a control batch of one record, as a leader makes it up.
type Control struct {
	BaseOffset  int64
	LeaderEpoch int32
	// Timestamp in milliseconds since 1970.
	Timestamp     int64
	ProducerID    int64
	ProducerEpoch int16
	Type          int16
	Transactional bool
	// Value is the record's value: EndTxnValue for ABORT and COMMIT.
	Value []byte
}

// AppendControl appends a control batch as brokers write it: one record, no sequence, key version 0.
func AppendControl(dst []byte, c Control) []byte {
	key := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(c.Type))
	rec := []byte{0, 0, 0} // attributes, timestamp delta, offset delta
	rec = kbin.AppendVarintBytes(rec, key)
	rec = kbin.AppendVarintBytes(rec, c.Value)
	rec = append(rec, 0) // headers
	rec = append(kbin.AppendVarint(nil, int32(len(rec))), rec...)
	attrs := uint16(attrControl)
	if c.Transactional {
		attrs |= attrTransactional
	}
	at := len(dst)
	be := binary.BigEndian
	dst = be.AppendUint64(dst, uint64(c.BaseOffset))
	dst = be.AppendUint32(dst, uint32(HeaderSize-prefixSize+len(rec)))
	dst = be.AppendUint32(dst, uint32(c.LeaderEpoch))
	dst = append(dst, 2, 0, 0, 0, 0) // magic, room for the CRC
	dst = be.AppendUint16(dst, attrs)
	dst = be.AppendUint32(dst, 0) // last offset delta
	dst = be.AppendUint64(dst, uint64(c.Timestamp))
	dst = be.AppendUint64(dst, uint64(c.Timestamp))
	dst = be.AppendUint64(dst, uint64(c.ProducerID))
	dst = be.AppendUint16(dst, uint16(c.ProducerEpoch))
	dst = be.AppendUint32(dst, 0xffffffff) // base sequence -1
	dst = be.AppendUint32(dst, 1)
	dst = append(dst, rec...)
	be.PutUint32(dst[at+17:], crc32.Checksum(dst[at+21:], castagnoli))
	return dst
}

// EndTxnValue is the value of ABORT and COMMIT records: version 0 and the transaction coordinator's epoch.
func EndTxnValue(coordinatorEpoch int32) []byte {
	return binary.BigEndian.AppendUint32([]byte{0, 0}, uint32(coordinatorEpoch))
}

// PidResetValue is the value of a MIRROR_PID_RESET record: MirrorPidResetRecord version 0 of KIP-1279, a flexible message that
// names the cluster from which the log was mirrored.
func PidResetValue(sourceClusterID string) []byte {
	v := []byte{0, 0, 0, 0} // the message's version, its field Version
	return append(kbin.AppendCompactString(v, sourceClusterID), 0)
}

func corrupt(b Batch, reason string, err error) error {
	return &CorruptError{BaseOffset: b.BaseOffset(), Reason: reason, Err: err}
}
