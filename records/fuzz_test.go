package records

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// seed gives a fuzz target the batches of all captured segments.
func seed(f *testing.F) {
	for _, name := range []string{"codecs.log", "txn.log", "compact.log", "headers.log", "logappendtime.log"} {
		segment := golden(f, name)
		f.Add(segment)
		for _, b := range batches(f, segment) {
			f.Add([]byte(b))
		}
	}
	f.Add(AppendControl(nil, Control{ProducerID: -1, ProducerEpoch: -1, Type: ControlMirrorPidReset}))
}

func FuzzSplit(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		var cut []byte
		next := int64(0)
		for rest := in; ; {
			b, r, err := Split(rest)
			if err != nil {
				if ce := new(CorruptError); err != io.EOF && !errors.Is(err, ErrPartial) && !errors.As(err, &ce) {
					t.Fatalf("unknown error %v", err)
				}
				if !bytes.Equal(append(cut, rest...), in) {
					t.Fatal("batches and rest are not the input")
				}
				return
			}
			if len(b) < HeaderSize || b.Length() != len(b) || b.NextOffset() <= b.BaseOffset() || b.NextOffset() <= 0 {
				t.Fatalf("batch of %d bytes says %d, offsets %d to %d", len(b), b.Length(), b.BaseOffset(), next)
			}
			cut, rest = append(cut, b...), r
		}
	})
}

func FuzzRecords(f *testing.F) {
	seed(f)
	const limit = 1 << 16
	f.Fuzz(func(t *testing.T, in []byte) {
		b, _, err := Split(in)
		if err != nil {
			return
		}
		_ = b.CheckCRC()
		last, n := b.BaseOffset()-1, int32(0)
		for r, err := range Records(b, limit) {
			if err != nil {
				if ce := new(CorruptError); !errors.As(err, &ce) || err.Error() == "" {
					t.Fatalf("unknown error %v", err)
				}
				return
			}
			if r.Offset <= last || r.Offset > b.LastOffset() {
				t.Fatalf("offset %d after %d in a batch up to %d", r.Offset, last, b.LastOffset())
			}
			if len(r.Key)+len(r.Value) > max(limit, len(b)) {
				t.Fatalf("record of %d bytes", len(r.Key)+len(r.Value))
			}
			last, n = r.Offset, n+1
		}
		if n != b.NumRecords() {
			t.Fatalf("%d records without an error, header says %d", n, b.NumRecords())
		}
	})
}

func FuzzControlType(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		b, _, err := Split(in)
		if err != nil {
			return
		}
		typ, err := ControlType(b)
		if err == nil && !b.IsControl() {
			t.Fatal("a data batch has a control type")
		}
		values, verr := Values(b)
		if err != nil || verr != nil || len(values) != 1 {
			return
		}
		// What we make up from what was read reads the same.
		c := Control{BaseOffset: b.BaseOffset(), LeaderEpoch: b.PartitionLeaderEpoch(), Timestamp: b.BaseTimestamp(),
			ProducerID: b.ProducerID(), ProducerEpoch: b.ProducerEpoch(), Type: typ,
			Transactional: b.IsTransactional(), Value: values[0]}
		made, rest, err := Split(AppendControl(nil, c))
		if err != nil || len(rest) > 0 || made.CheckCRC() != nil {
			t.Fatalf("made up batch: %v", err)
		}
		typ2, err := ControlType(made)
		values2, verr := Values(made)
		if err != nil || verr != nil || typ2 != typ || len(values2) != 1 || !bytes.Equal(values2[0], values[0]) {
			t.Fatalf("type %d reads back as %d, %v, %v", typ, typ2, err, verr)
		}
	})
}
