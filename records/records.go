package records

import "iter"

// Record is one record of a batch. Slices are parts of the batch, or of the decompressed payload.
type Record struct {
	// Offset is absolute; Timestamp in milliseconds since 1970, the batch's MaxTimestamp when it is log append time.
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

// Records soon.
func Records(b Batch, maxBytes int) iter.Seq2[Record, error] { panic("soon") }

// ControlType soon.
func ControlType(b Batch) (int16, error) { panic("soon") }

// Values soon.
func Values(b Batch) ([][]byte, error) { panic("soon") }

// AppendControl soon.
func AppendControl(dst []byte, base int64, epoch int32, pid int64, pepoch int16, typ int16, txn bool, value []byte) []byte {
	panic("soon")
}
