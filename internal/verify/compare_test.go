package verify

import (
	"slices"
	"strings"
	"testing"

	"kmirror/records"
)

const opening = 1 << 20

var (
	exact      = rules{maxOpen: opening}
	bothClean  = rules{sourceCompacts: true, destCompacts: true, maxOpen: opening}
	destCleans = rules{destCompacts: true, maxOpen: opening}
)

// base is what both sides hold in the tests: offsets 100-103, 110-111 (a gap before it), 112.
func base() []spec {
	return []spec{
		{base: 100, epoch: 3, recs: recordsAt(0, 1, 2, 3), lastDelta: 9},
		{base: 110, epoch: 4, recs: recordsAt(0, 1), pid: 7, attributes: 0x10},
		{base: 112, epoch: 4, recs: recordsAt(0), pid: 7, attributes: 0x30},
	}
}

func TestCompareEqual(t *testing.T) {
	for _, r := range []rules{exact, bothClean} {
		c := compare(sequence(base()...), sequence(base()...), r)
		if c.first != nil || len(c.offsets) != 0 || c.cleaned != (cleaned{}) {
			t.Errorf("equal sequences: %+v %+v", c, c.first)
		}
	}
}

// Each kind of difference is found, alone, at its batch, under the name of its field, with both values; where cleaners work
// too, unless a cleaner may have made it.
func TestCompareDifference(t *testing.T) {
	headerOf := func(i int, at int) func([]records.Batch) {
		return func(b []records.Batch) { b[i][at] ^= 1 }
	}
	tests := []struct {
		name   string
		change func(dest []records.Batch)
		want   difference
		// cleaner: with compaction on both sides it is no difference.
		cleaner bool
	}{
		{"leader epoch", headerOf(1, 15), difference{110, "leader_epoch", "4", "5"}, false},
		{"magic", headerOf(1, 16), difference{110, "magic", "2", "3"}, false},
		{"transactional bit", headerOf(1, 22), difference{110, "attributes", "0x10 (none, transactional)", "0x11 (gzip, transactional)"}, false},
		{"last offset delta", headerOf(0, 26), difference{100, "last_offset_delta", "9", "8"}, false},
		{"producer id", headerOf(1, 50), difference{110, "producer_id", "7", "6"}, false},
		{"producer epoch", headerOf(1, 52), difference{110, "producer_epoch", "-1", "-2"}, false},
		{"base sequence", headerOf(1, 56), difference{110, "base_sequence", "-1", "-2"}, false},
		{"base timestamp", headerOf(1, 34), difference{110, "base_timestamp", "0", "1"}, false},
		{"max timestamp", headerOf(1, 42), difference{110, "max_timestamp", "0", "1"}, false},
		{"record count", headerOf(1, 60), difference{110, "record_count", "2", "3"}, false},
		{"payload", func(b []records.Batch) { b[1][len(b[1])-2] ^= 0x20 }, difference{110, "payload_crc32c", "", ""}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			src, dst := sequence(base()...), sequence(base()...)
			tt.change(dst)
			c := compare(src, dst, exact)
			if c.first == nil || !slices.Equal(c.offsets, []int64{tt.want.Offset}) {
				t.Fatalf("offsets %v, first %+v", c.offsets, c.first)
			}
			got := *c.first
			if tt.want.Field == "payload_crc32c" {
				if !strings.Contains(got.Dest, "damaged") || strings.Contains(got.Source, "damaged") {
					t.Errorf("damaged side not named: %+v", got)
				}
				got.Source, got.Dest = "", ""
			}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			// Nothing but a cleaner may write a batch anew, and it computes the CRC: here the CRC no longer matches.
			if c := compare(src, dst, bothClean); c.first == nil {
				t.Error("not found where cleaners work")
			}
		})
	}
}

func TestCompareCRCField(t *testing.T) {
	other := base()
	other[1].brokenCRC = true
	c := compare(sequence(base()...), sequence(other...), exact)
	if c.first == nil || c.first.Field != "crc" || c.first.Offset != 110 {
		t.Errorf("got %+v", c.first)
	}
}

func TestCompareControlBit(t *testing.T) {
	other := base()
	other[2].attributes = 0x10
	for _, r := range []rules{exact, bothClean} {
		c := compare(sequence(base()...), sequence(other...), r)
		want := difference{112, "attributes", "0x30 (none, transactional, control)", "0x10 (none, transactional)"}
		if c.first == nil || *c.first != want {
			t.Errorf("got %+v, want %+v", c.first, want)
		}
	}
}

func TestCompareLength(t *testing.T) {
	other := base()
	other[1].recs[1].value = []byte("values")
	c := compare(sequence(base()...), sequence(other...), exact)
	if c.first == nil || c.first.Field != "length" || c.first.Offset != 110 {
		t.Errorf("got %+v", c.first)
	}
}

func TestCompareMissingBatches(t *testing.T) {
	all := sequence(base()...)
	c := compare(all, all[1:], exact)
	want := difference{100, "batch", "batch 100-109, epoch 3, 4 records, " + "121 bytes", ""}
	want.Source = describe(all[0])
	if c.first == nil || *c.first != want || len(c.offsets) != 1 {
		t.Errorf("missing at the destination: %v %+v", c.offsets, c.first)
	}
	c = compare(all[:1], all, exact)
	if c.first == nil || c.first.Offset != 110 || c.first.Source != "" || c.first.Dest != describe(all[1]) ||
		!slices.Equal(c.offsets, []int64{110, 112}) {
		t.Errorf("missing at the source: %v %+v", c.offsets, c.first)
	}
	if !strings.HasPrefix(describe(all[2]), "control batch 112-112, epoch 4, 1 records") {
		t.Errorf("describe: %s", describe(all[2]))
	}
}

// A batch cut in two is a difference even if the records are the same (kroxylicious #855: batches merged under one header).
func TestCompareOtherBoundaries(t *testing.T) {
	split := []spec{{base: 100, recs: recordsAt(0)}, {base: 101, recs: recordsAt(0)}}
	whole := []spec{{base: 100, recs: recordsAt(0, 1)}}
	c := compare(sequence(split...), sequence(whole...), exact)
	if !slices.Equal(c.offsets, []int64{100, 101}) {
		t.Errorf("offsets %v", c.offsets)
	}
}

func TestCompareDamagedAlike(t *testing.T) {
	s := base()
	s[0].brokenBytes = true
	c := compare(sequence(s...), sequence(s...), exact)
	if c.first != nil || c.Damaged != 1 {
		t.Errorf("got %+v, %+v", c.first, c.cleaned)
	}
}

func TestCompareCleaned(t *testing.T) {
	fewer := base()
	fewer[0].recs = recordsAt(0, 3)
	fewer[0].attributes = attrDeleteHorizon
	none := base()
	none[0].recs, none[0].lastDelta = nil, 9
	gzipped := base()
	gzipped[0].gzip = true
	compressed := sequence(gzipped...)
	full, less, empty := sequence(base()...), sequence(fewer...), sequence(none...)
	tests := []struct {
		name         string
		source, dest []records.Batch
		r            rules
		want         cleaned
		field        string
	}{
		{"records gone at the destination", full, less, bothClean, cleaned{GoneDest: 2}, ""},
		{"records gone at the source", less, full, bothClean, cleaned{GoneSource: 2}, ""},
		{"all records gone", full, empty, bothClean, cleaned{GoneDest: 4}, ""},
		{"all of a compressed batch gone", compressed, empty, bothClean, cleaned{GoneDest: 4}, ""},
		{"other codec", compressed, full, bothClean, cleaned{}, "attributes"},
		{"batch gone at the destination", full, full[1:], bothClean, cleaned{GoneDest: 4}, ""},
		{"batch gone at the source", full[2:], full, bothClean, cleaned{GoneSource: 6}, ""},
		{"no cleaner at the source", less, full, destCleans, cleaned{}, "record"},
		{"batch gone without a cleaner", full[1:], full, destCleans, cleaned{}, "batch"},
		{"cleaner at the destination only", full, less, destCleans, cleaned{GoneDest: 2}, ""},
		{"no cleaner at all", full, less, exact, cleaned{}, "length"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := compare(tt.source, tt.dest, tt.r)
			field := ""
			if c.first != nil {
				field = c.first.Field
			}
			if field != tt.field || c.cleaned != tt.want {
				t.Errorf("field %q %+v, want %q %+v; first %+v", field, c.cleaned, tt.field, tt.want, c.first)
			}
		})
	}
}

// What a cleaner keeps must agree record by record.
func TestCompareCleanedContents(t *testing.T) {
	change := func(f func(*rec)) []records.Batch {
		s := base()
		s[0].recs = recordsAt(0, 3)
		f(&s[0].recs[1])
		return sequence(s...)
	}
	for field, f := range map[string]func(*rec){
		"record_key":       func(r *rec) { r.key = []byte("other") },
		"record_value":     func(r *rec) { r.value = nil },
		"record_timestamp": func(r *rec) { r.time = 5 },
		"record_headers":   func(r *rec) { r.headers = []records.Header{{Key: "h"}} },
	} {
		c := compare(sequence(base()...), change(f), bothClean)
		if c.first == nil || c.first.Field != field || c.first.Offset != 103 || c.first.Source == c.first.Dest {
			t.Errorf("%s: %+v", field, c.first)
		}
		if c.cleaned != (cleaned{}) {
			t.Errorf("%s: counted %+v although the batch differs", field, c.cleaned)
		}
	}
	empty := base()
	empty[0].recs = []rec{{value: []byte{}}, {delta: 1}}
	tomb := base()
	tomb[0].recs = []rec{{value: nil}}
	if c := compare(sequence(empty...), sequence(tomb...), bothClean); c.first == nil || c.first.Field != "record_value" {
		t.Errorf("an empty value taken for a tombstone: %+v", c.first)
	}
}

// A payload that opens to more than the bound is not opened and not called different.
func TestCompareUnopened(t *testing.T) {
	s := spec{base: 5, attributes: 2, recs: recordsAt(0), lastDelta: 3} // "snappy" that is none
	d := spec{base: 5, attributes: 2, recs: recordsAt(0, 1), lastDelta: 3}
	c := compare(sequence(s), sequence(d), bothClean)
	if c.first != nil || c.Unopened != 1 {
		t.Errorf("got %+v %+v", c.first, c.cleaned)
	}
}
