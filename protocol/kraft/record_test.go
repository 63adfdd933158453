package kraft

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"kmirror/protocol"
)

// uuid is the id that testdata/records.txt uses: a fixed first half and n.
func uuid(n byte) protocol.UUID {
	return protocol.UUID{1, 2, 3, 4, 5, 6, 7, 8, 15: n}
}

func text(s string) *string { return &s }

// wanted are the records of testdata/records.txt line by line; nil where the image needs none.
func wanted() []Record {
	register := func(v int) *RegisterBrokerRecord {
		r := &RegisterBrokerRecord{Version: v, BrokerID: 9001, Incarnation: uuid(1), Epoch: 77,
			Endpoints: []Endpoint{{"REPL", "h1", 65535, 3}}, Features: []FeatureRange{{"metadata.version", 7, 33}},
			Rack: text("r1"), Fenced: true, InControlledShutdown: v >= 1, MigratingZk: v >= 2}
		if v >= 3 {
			r.LogDirs = []protocol.UUID{uuid(2)}
		}
		if v >= 4 {
			r.CordonedLogDirs = []protocol.UUID{uuid(2), uuid(3)}
		}
		return r
	}
	partition := func(v int) *PartitionRecord {
		r := &PartitionRecord{Version: v, PartitionID: 1, TopicID: uuid(5), Partition: Partition{
			Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2}, Removing: []int32{3}, Adding: []int32{2},
			Leader: 1, LeaderEpoch: 4, PartitionEpoch: 6, LeaderRecoveryState: 1}}
		if v >= 1 {
			r.Directories = []protocol.UUID{uuid(1), uuid(2), uuid(3)}
		}
		if v >= 2 {
			r.ELR, r.LastKnownELR = []int32{3}, []int32{2, 3}
		}
		return r
	}
	change := func(v int) *PartitionChangeRecord {
		r := &PartitionChangeRecord{Version: v, PartitionID: 1, TopicID: uuid(5), ISR: []int32{2}, Leader: 2,
			Replicas: []int32{2, 3}, Removing: []int32{}, Adding: []int32{3}}
		if v >= 1 {
			r.Directories = []protocol.UUID{uuid(7), uuid(8)}
		}
		if v >= 2 {
			r.ELR, r.LastKnownELR = []int32{3}, []int32{}
		}
		return r
	}
	registration := func(v int) *BrokerRegistrationChangeRecord {
		r := &BrokerRegistrationChangeRecord{Version: v, BrokerID: 9001, Epoch: 77, Fenced: -1}
		if v >= 1 {
			r.InControlledShutdown = 1
		}
		if v >= 2 {
			r.LogDirs = []protocol.UUID{uuid(4)}
		}
		if v >= 3 {
			r.CordonedLogDirs = []protocol.UUID{}
		}
		return r
	}
	return []Record{
		register(0), register(1), register(2), register(3), register(4),
		&UnregisterBrokerRecord{9001, 77},
		&TopicRecord{"orders", uuid(5)},
		partition(0), partition(1), partition(2),
		&ConfigRecord{ConfigResource{ConfigTopic, "orders"}, "max.message.bytes", text("0")},
		&ConfigRecord{ConfigResource{ConfigBroker, "1"}, "x", nil},
		change(0), change(1), change(2),
		&PartitionChangeRecord{PartitionID: 1, TopicID: uuid(5), Leader: -1, LeaderRecoveryState: -1},
		&PartitionChangeRecord{PartitionID: 1, TopicID: uuid(5), Leader: NoLeaderChange, LeaderRecoveryState: -1,
			ISR: []int32{1, 2, 3}},
		&FenceBrokerRecord{9001, 77},
		&UnfenceBrokerRecord{9001, 77},
		&RemoveTopicRecord{uuid(5)},
		&FeatureLevelRecord{"metadata.version", 33},
		registration(0), registration(1), registration(2), registration(3),
		&NoOpRecord{},
		&BeginTransactionRecord{text("tx")}, &BeginTransactionRecord{},
		&EndTransactionRecord{}, &AbortTransactionRecord{text("why")},
		&ClearElrRecord{"orders"}, &ClearElrRecord{},
		nil, nil,
	}
}

// written returns the bytes that Kafka's own serde made of the records above.
func written(t testing.TB) (names []string, values [][]byte) {
	t.Helper()
	b, err := os.ReadFile("testdata/records.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		v, err := hex.DecodeString(f[2])
		if err != nil {
			t.Fatal(err)
		}
		names, values = append(names, f[0]+" v"+f[1]), append(values, v)
	}
	return names, values
}

func TestRecordsAsKafkaWritesThem(t *testing.T) {
	names, values := written(t)
	want := wanted()
	if len(values) != len(want) {
		t.Fatalf("%d records written, %d wanted", len(values), len(want))
	}
	for i, v := range values {
		t.Run(names[i], func(t *testing.T) {
			got, err := DecodeRecord(v)
			if err != nil || !reflect.DeepEqual(got, want[i]) {
				t.Fatalf("got  %+v, %v\nwant %+v", got, err, want[i])
			}
			if got == nil {
				return
			}
			if back := AppendRecord(nil, got); !bytes.Equal(back, v) {
				t.Errorf("appended %x, want %x", back, v)
			}
			for n := range v {
				if rec, err := DecodeRecord(v[:n]); !errors.Is(err, ErrRecord) {
					t.Errorf("cut to %d bytes: %+v, %v; want ErrRecord", n, rec, err)
				}
			}
			if _, err := DecodeRecord(append(v[:len(v):len(v)], 0)); !errors.Is(err, ErrRecord) {
				t.Errorf("one byte more: %v, want ErrRecord", err)
			}
		})
	}
}

func TestUnknownTagsAndTypesAreSkipped(t *testing.T) {
	value := AppendRecord(nil, &TopicRecord{"orders", uuid(5)})
	value = append(value[:len(value)-1], 2, 0, 1, 9, 100, 2, 8, 8)
	rec, err := DecodeRecord(value)
	if err != nil || !reflect.DeepEqual(rec, &TopicRecord{"orders", uuid(5)}) {
		t.Errorf("unknown tags: %+v, %v", rec, err)
	}
	// Tag 6 came with version 2 of the record; in a version 0 it is none of ours.
	value = AppendRecord(nil, &PartitionChangeRecord{TopicID: uuid(5), Leader: NoLeaderChange, LeaderRecoveryState: -1})
	value = append(value[:len(value)-1], 1, 6, 1, 1)
	if rec, err = DecodeRecord(value); err != nil || rec.(*PartitionChangeRecord).ELR != nil {
		t.Errorf("tag of a later version: %+v, %v", rec, err)
	}
	for _, typ := range []byte{6, 10, 27, 29, 100} {
		if rec, err := DecodeRecord([]byte{1, typ, 0, 0xff}); rec != nil || err != nil {
			t.Errorf("type %d: %+v, %v", typ, rec, err)
		}
	}
}

func TestWhatCannotBeReadIsAnError(t *testing.T) {
	for name, value := range map[string][]byte{
		"nothing":              nil,
		"frame version 0":      {0, 20, 0, 0},
		"frame version 2":      {2, 20, 0, 0},
		"later version":        {1, TypeNoOp, 1, 0},
		"version overflows":    {1, TypeNoOp, 0xff, 0xff, 0xff, 0xff, 0x0f, 0},
		"array beyond the end": append(append([]byte{1, TypePartition, 0, 0, 0, 0, 1}, make([]byte, 16)...), 0xff, 0xff, 0xff, 0xff, 0x0f),
		"tag count":            {1, TypeNoOp, 0, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"tag size":             {1, TypeNoOp, 0, 1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"known tag too long":   {1, TypeBeginTransaction, 0, 1, 0, 2, 0, 0},
		"known tag too short":  {1, TypeBeginTransaction, 0, 1, 0, 0},
	} {
		if rec, err := DecodeRecord(value); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: got %+v, %v; want ErrRecord", name, rec, err)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	_, values := written(f)
	for _, v := range values {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		rec, err := DecodeRecord(value)
		if err != nil && (rec != nil || !errors.Is(err, ErrRecord)) {
			t.Fatalf("record %+v with error %v", rec, err)
		}
		if rec == nil {
			return
		}
		once := AppendRecord(nil, rec)
		again, err := DecodeRecord(once)
		if err != nil || !bytes.Equal(AppendRecord(nil, again), once) {
			t.Fatalf("%+v is written as %x and reads back as %+v, %v", rec, once, again, err)
		}
	})
}
