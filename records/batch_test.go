package records

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// batches splits a segment and checks every CRC.
func batches(t testing.TB, segment []byte) []Batch {
	t.Helper()
	var out []Batch
	for rest := segment; ; {
		b, r, err := Split(rest)
		if err == io.EOF {
			return out
		}
		if err == nil {
			err = b.CheckCRC()
		}
		if err != nil {
			t.Fatal(err)
		}
		out, rest = append(out, b), r
	}
}

func recordsOf(t testing.TB, b Batch) []Record {
	t.Helper()
	var out []Record
	for r, err := range Records(b, 1<<20) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// The expectations are those of kafka-dump-log, see testdata/README.md.
func TestHeadersOfARealSegment(t *testing.T) {
	type header struct {
		base, last, next, pid int64
		epoch, seq, n         int32
		pepoch                int16
		txn, control          bool
		crc                   uint32
		size                  int
	}
	want := []header{
		{0, 0, 1, 0, 0, 0, 1, 0, true, false, 995761968, 76},
		{1, 1, 2, 0, 0, 1, 1, 0, true, false, 716593479, 76},
		{2, 2, 3, 0, 0, -1, 1, 1, true, true, 1836847236, 78},
		{3, 3, 4, 0, 0, 0, 1, 1, true, false, 2409100770, 76},
		{4, 4, 5, 0, 0, 1, 1, 1, true, false, 174796464, 76},
		{5, 5, 6, 0, 0, -1, 1, 2, true, true, 126175407, 78},
		{6, 6, 7, 1, 0, 0, 1, 0, false, false, 774786487, 78},
	}
	var got []header
	for _, b := range batches(t, golden(t, "txn.log")) {
		got = append(got, header{b.BaseOffset(), b.LastOffset(), b.NextOffset(), b.ProducerID(),
			b.PartitionLeaderEpoch(), b.BaseSequence(), b.NumRecords(), b.ProducerEpoch(),
			b.IsTransactional(), b.IsControl(), b.CRC(), b.Length()})
		if b.Length() != len(b) || b.Magic() != 2 || b.BaseTimestamp() != b.MaxTimestamp() {
			t.Errorf("offset %d: length %d of %d, magic %d", b.BaseOffset(), b.Length(), len(b), b.Magic())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestControlTypesOfARealSegment(t *testing.T) {
	got := map[int64]int16{}
	for _, b := range batches(t, golden(t, "txn.log")) {
		typ, err := ControlType(b)
		if b.IsControl() != (err == nil) {
			t.Errorf("offset %d: %v", b.BaseOffset(), err)
		}
		if err == nil {
			got[b.BaseOffset()] = typ
		}
	}
	if want := map[int64]int16{2: ControlCommit, 5: ControlAbort}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// franz-go PR #1431: markers that we make up are the bytes that a broker writes.
func TestAppendControlIsWhatABrokerWrites(t *testing.T) {
	for _, b := range batches(t, golden(t, "txn.log")) {
		if !b.IsControl() {
			continue
		}
		typ, err := ControlType(b)
		if err != nil {
			t.Fatal(err)
		}
		got := AppendControl([]byte("kept"), Control{BaseOffset: b.BaseOffset(), LeaderEpoch: b.PartitionLeaderEpoch(),
			Timestamp: b.BaseTimestamp(), ProducerID: b.ProducerID(), ProducerEpoch: b.ProducerEpoch(),
			Type: typ, Transactional: true, Value: EndTxnValue(0)})
		if !bytes.Equal(got[4:], b) || string(got[:4]) != "kept" {
			t.Errorf("offset %d: got %x\nwant %x", b.BaseOffset(), got[4:], []byte(b))
		}
	}
}

// sarama #1005: the batch ends where its header says, whatever is left of its records.
func TestCompactedBatchWithHoles(t *testing.T) {
	b := batches(t, golden(t, "compact.log"))[0]
	if b.BaseOffset() != 0 || b.NextOffset() != 10 || b.NumRecords() != 3 {
		t.Errorf("base %d, next %d, %d records; want 0, 10, 3", b.BaseOffset(), b.NextOffset(), b.NumRecords())
	}
	var got []string
	for _, r := range recordsOf(t, b) {
		got = append(got, fmt.Sprintf("%d %s=%s", r.Offset, r.Key, r.Value))
	}
	if want := []string{"6 k2=v6", "7 k3=v7", "9 k1=v9"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRecordsOfEveryCodecAndClient(t *testing.T) {
	all := batches(t, golden(t, "codecs.log"))
	codecs := []Codec{Gzip, Snappy, LZ4, Zstd, Gzip, Snappy, LZ4, Zstd}
	if len(all) != len(codecs) {
		t.Fatalf("%d batches, want %d", len(all), len(codecs))
	}
	for i, b := range all {
		t.Run(fmt.Sprintf("%d %s", i, codecs[i]), func(t *testing.T) {
			if b.Codec() != codecs[i] {
				t.Fatalf("codec is %s", b.Codec())
			}
			for n, r := range recordsOf(t, b) {
				key, value := fmt.Sprintf("k%d", n), strings.Repeat("abcdefgh", 20)
				if string(r.Key) != key || string(r.Value) != value || r.Offset != int64(4*i+n) {
					t.Errorf("record %d: offset %d, %q = %q", n, r.Offset, r.Key, r.Value)
				}
			}
			payload, err := Payload(b, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Payload(b, len(payload)); err != nil {
				t.Errorf("limit of just its size: %v", err)
			}
			if _, err := Payload(b, len(payload)-1); !errors.Is(err, ErrTooLarge) {
				t.Errorf("limit one below its size: got %v, want ErrTooLarge", err)
			}
			for n := range len(b) - HeaderSize {
				cut := rebuild(b, b[HeaderSize:HeaderSize+n])
				for _, err := range Records(cut, 1<<20) {
					if ce := new(CorruptError); err != nil && !errors.As(err, &ce) {
						t.Fatalf("payload cut to %d bytes: %v", n, err)
					}
				}
			}
		})
	}
	if xerial := all[5][HeaderSize:]; !bytes.HasPrefix(xerial, xerialMagic) {
		t.Error("the Java client's snappy batch does not show the framing this test is for")
	}
}

// rebuild returns b's header with another payload and a right length and CRC.
func rebuild(b Batch, payload []byte) Batch {
	out := append(slices.Clone([]byte(b[:HeaderSize])), payload...)
	binary.BigEndian.PutUint32(out[8:], uint32(len(out)-prefixSize))
	binary.BigEndian.PutUint32(out[17:], crc32.Checksum(out[21:], castagnoli))
	return out
}

// KAFKA-20723: a small payload that opens to much more than the limit costs the limit and the codec's fixed buffers (two blocks
// of 4 MiB for lz4, when its pool is empty), not what it opens to.
func TestPayloadBombsAreBounded(t *testing.T) {
	const opened, limit, bound = 32 << 20, 64 << 10, 12 << 20
	plain := make([]byte, opened)
	b := batches(t, golden(t, "headers.log"))[0]
	for codec, payload := range map[Codec][]byte{
		Gzip:   compress(t, plain, func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }),
		LZ4:    compress(t, plain, func(w io.Writer) io.WriteCloser { return lz4.NewWriter(w) }),
		Snappy: snappy.Encode(nil, plain),
		Zstd: compress(t, plain, func(w io.Writer) io.WriteCloser {
			e, err := zstd.NewWriter(w)
			if err != nil {
				t.Fatal(err)
			}
			return e
		}),
	} {
		bomb := rebuild(b, payload)
		bomb[22] = byte(codec)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Payload(bomb, limit)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: got %v, want ErrTooLarge", codec, err)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > bound {
			t.Errorf("%s: allocated %d bytes under a limit of %d", codec, got, limit)
		}
	}
}

func compress(t *testing.T, plain []byte, writer func(io.Writer) io.WriteCloser) []byte {
	t.Helper()
	var out bytes.Buffer
	w := writer(&out)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestHeadersAndNulls(t *testing.T) {
	first := recordsOf(t, batches(t, golden(t, "headers.log"))[0])
	want := []Header{{"h", []byte("1")}, {"n", nil}}
	if !reflect.DeepEqual(first[0].Headers, want) {
		t.Errorf("got %v, want %v", first[0].Headers, want)
	}
	if k := first[2].Key; k == nil || len(k) != 0 {
		t.Errorf("empty key reads as %v", k)
	}
	txn := batches(t, golden(t, "txn.log"))
	if r := recordsOf(t, txn[6])[0]; r.Key != nil || string(r.Value) != "idempotent" {
		t.Errorf("null key reads as %v", r.Key)
	}
}

func TestTimestamps(t *testing.T) {
	b := batches(t, golden(t, "logappendtime.log"))[0]
	if r := recordsOf(t, b)[0]; r.Timestamp != b.MaxTimestamp() || b.Attributes()&attrLogAppendTime == 0 {
		t.Errorf("log append time: record %d, batch %d", r.Timestamp, b.MaxTimestamp())
	}
	b = batches(t, golden(t, "headers.log"))[0]
	if r := recordsOf(t, b)[0]; r.Timestamp != 1795989413361 {
		t.Errorf("create time: got %d", r.Timestamp)
	}
}

func TestSplitPartialAndCorrupt(t *testing.T) {
	whole := golden(t, "txn.log")[:76]
	for n := 1; n < len(whole); n++ {
		b, rest, err := Split(whole[:n])
		if b != nil || len(rest) != n || !errors.Is(err, ErrPartial) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut to %d: batch %d bytes, rest %d, %v", n, len(b), len(rest), err)
		}
	}
	for name, c := range map[string]struct {
		at    int
		value []byte
		want  string
	}{
		"length 48":           {8, []byte{0, 0, 0, 48}, "below the header's"},
		"length negative":     {8, []byte{0xff, 0xff, 0xff, 0xff}, "below the header's"},
		"magic 0":             {16, []byte{0}, "before Kafka 0.11"},
		"magic 1":             {16, []byte{1}, "before Kafka 0.11"},
		"magic 3":             {16, []byte{3}, "magic 3"},
		"delta negative":      {23, []byte{0xff, 0xff, 0xff, 0xff}, "gives no offset"},
		"base negative":       {0, []byte{0x80}, "gives no offset"},
		"next offset too big": {0, []byte{0x7f, 255, 255, 255, 255, 255, 255, 255}, "gives no offset"},
	} {
		t.Run(name, func(t *testing.T) {
			in := slices.Clone(whole)
			copy(in[c.at:], c.value)
			_, rest, err := Split(in)
			var ce *CorruptError
			if !errors.As(err, &ce) || !strings.Contains(err.Error(), c.want) || len(rest) != len(in) {
				t.Errorf("got %v with rest %d", err, len(rest))
			}
		})
	}
	if _, _, err := Split(nil); err != io.EOF {
		t.Errorf("nothing left: got %v, want io.EOF", err)
	}
}

func TestCheckCRCSeesEveryByteItCovers(t *testing.T) {
	whole := golden(t, "txn.log")[:76]
	for i := range whole {
		in := slices.Clone(whole)
		in[i] ^= 1
		err := Batch(in).CheckCRC()
		if covered := i >= 17; (err != nil) != covered {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
}

func TestRecordsRefusesWhatTheHeaderContradicts(t *testing.T) {
	b := batches(t, golden(t, "headers.log"))[0]
	for name, change := range map[string]func(Batch){
		"one record more": func(b Batch) { b[60]++ },
		"one record less": func(b Batch) { b[60]-- },
		"negative count":  func(b Batch) { b[57] = 0xff },
		"huge count":      func(b Batch) { b[57] = 0x7f },
		"last delta less": func(b Batch) { b[26]-- },
		"unknown codec":   func(b Batch) { b[22] |= 7 },
		"first delta 9":   func(b Batch) { b[HeaderSize+3] = 18 },
	} {
		t.Run(name, func(t *testing.T) {
			in := Batch(slices.Clone([]byte(b)))
			change(in)
			var last error
			for _, err := range Records(in, 1<<20) {
				last = err
			}
			if ce := new(CorruptError); !errors.As(last, &ce) {
				t.Errorf("got %v, want a CorruptError", last)
			}
		})
	}
}

func TestRecordsStopsWhenAsked(t *testing.T) {
	n := 0
	for range Records(batches(t, golden(t, "headers.log"))[0], 1<<20) {
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d records after a break", n)
	}
}
