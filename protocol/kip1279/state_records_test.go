package kip1279

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"

	"kmirror/protocol"
)

func TestStateRecordsGolden(t *testing.T) {
	const id = "e4bea0de74a14fe302b4affe5fceacc3"
	for _, c := range []struct {
		name       string
		key        StateKey
		value      StateValue
		keyX, valX string
	}{
		{
			"last mirror epoch", StateKey{Type: 1, Mirror: "dc1", TopicID: testID, Partition: 11},
			&LastMirrorEpochsValue{LastMirrorEpoch: 42},
			"0001 0003 646331 " + id + " 0000000b", "0000 0000002a 00",
		},
		{
			"partition state", StateKey{Type: 2, Mirror: "dc1", TopicID: testID, Partition: 11},
			&PartitionStateValue{State: 7, PreviousState: 2, RetryAttempt: 3, ErrorMessage: new("gone")},
			"0002 0003 646331 " + id + " 0000000b", "0000 07 02 0003 05 676f6e65 00",
		},
		{
			"partition state with ours", StateKey{Type: 2, Mirror: "m", TopicID: testID, Partition: 0},
			&PartitionStateValue{State: 2, PreviousState: -1, Extra: []byte("{}")},
			"0002 0001 6d " + id + " 00000000", "0000 02 ff 0000 00 01 904e 02 7b7d",
		},
		{
			"mirror", StateKey{Type: 64, Mirror: "m"}, &JSONValue{JSON: []byte("{}")},
			"0040 0001 6d", "0000 03 7b7d 00",
		},
		{
			"mirror topic", StateKey{Type: 65, Mirror: "m", TopicID: testID},
			&JSONValue{JSON: []byte("{}"), Tags: Tags{{3, []byte{9}}}},
			"0041 0001 6d " + id, "0000 03 7b7d 01 03 01 09",
		},
		{
			"owner", StateKey{Type: 66}, &JSONValue{JSON: []byte("{}")},
			"0042 0000", "0000 03 7b7d 00",
		},
		{
			"mirror acl", StateKey{Type: 67, Mirror: "m", TopicID: testID}, &JSONValue{JSON: []byte("{}")},
			"0043 0001 6d " + id, "0000 03 7b7d 00",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := AppendStateKey(nil, c.key); !bytes.Equal(got, unhex(t, c.keyX)) {
				t.Errorf("key %x, want %s", got, c.keyX)
			}
			if got := AppendStateValue(nil, c.value); !bytes.Equal(got, unhex(t, c.valX)) {
				t.Errorf("value %x, want %s", got, c.valX)
			}
			if k, err := DecodeStateKey(unhex(t, c.keyX)); err != nil || k != c.key {
				t.Errorf("key %+v, %v", k, err)
			}
			if v, err := DecodeStateValue(c.key.Type, unhex(t, c.valX)); err != nil || !reflect.DeepEqual(v, c.value) {
				t.Errorf("value %+v, %v", v, err)
			}
		})
	}
}

func TestStateRecordsRefused(t *testing.T) {
	for _, c := range []struct {
		name, hex string
		want      error
	}{
		{"empty", "", ErrMalformed},
		{"unknown type", "0003 0001 6d", ErrUnknownRecord},
		{"cut", "0040 0005 6d", ErrMalformed},
		{"too long", "0040 0001 6d 00", ErrMalformed},
		{"negative name length", "0040 ffff", ErrMalformed},
		{"acl without its identity", "0043 0001 6d", ErrMalformed},
		{"type that nobody has yet", "0044 0001 6d", ErrUnknownRecord},
	} {
		if _, err := DecodeStateKey(unhex(t, c.hex)); !errors.Is(err, c.want) {
			t.Errorf("key %s: %v", c.name, err)
		}
	}
	for _, c := range []struct {
		name, hex string
		typ       int16
		want      error
	}{
		{"empty", "", 1, ErrMalformed},
		{"newer version", "0001 00", 2, ErrUnknownRecord},
		{"unknown type", "0000 00", 3, ErrUnknownRecord},
		{"cut", "0000 07", 2, ErrMalformed},
	} {
		if _, err := DecodeStateValue(c.typ, unhex(t, c.hex)); !errors.Is(err, c.want) {
			t.Errorf("value %s: %v", c.name, err)
		}
	}
}

// The numbers come from java.lang.String.hashCode of OpenJDK.
func TestStatePartitionIsTheKIPs(t *testing.T) {
	for _, c := range []struct {
		mirror    string
		id        string
		partition int32
		of50, of7 int32
	}{
		{"dc1", "5L6g3nShT-eMCtK--X86sw", 0, 1, 1},
		{"dc1", "5L6g3nShT-eMCtK--X86sw", 1, 2, 2},
		{"dc1", "5L6g3nShT-eMCtK--X86sw", 11, 47, 5},
		{"a-very.long_mirror-name", "AAAAAAAAAAAAAAAAAAAAAA", math.MaxInt32, 18, 6},
		{"m", "AAAAAAAAAAAAAAAAAAAAAQ", 3, 22, 5},
	} {
		id, err := protocol.ParseUUID(c.id)
		if err != nil {
			t.Fatal(err)
		}
		if got := StatePartitionOf(c.mirror, id, c.partition, 50); got != c.of50 {
			t.Errorf("%s:%s:%d of 50: %d, want %d", c.mirror, c.id, c.partition, got, c.of50)
		}
		if got := StatePartitionOf(c.mirror, id, c.partition, 7); got != c.of7 {
			t.Errorf("%s:%s:%d of 7: %d, want %d", c.mirror, c.id, c.partition, got, c.of7)
		}
	}
	if a, b := MirrorPartitionOf("dc1", 50), MirrorPartitionOf("a-very.long_mirror-name", 50); a != 18 || b != 32 {
		t.Errorf("got %d and %d, want 18 and 32", a, b)
	}
	if h := javaHash("spiegelü😀"); h != -893292854 {
		t.Errorf("hash over UTF-16 is %d", h)
	}
}

func FuzzStateRecord(f *testing.F) {
	f.Add(unhex(f, "0040 0001 6d"), unhex(f, "0000 03 7b7d 00"))
	f.Add(unhex(f, "0043 0001 6d e4bea0de74a14fe302b4affe5fceacc3"), unhex(f, "0000 03 7b7d 00"))
	f.Add(unhex(f, "0002 0001 6d e4bea0de74a14fe302b4affe5fceacc3 00000000"), unhex(f, "0000 02 ff 0000 00 01 904e 02 7b7d"))
	f.Add(unhex(f, "0001 0001 6d e4bea0de74a14fe302b4affe5fceacc3 00000000"), unhex(f, "0000 00000001 00"))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		k, err := DecodeStateKey(key)
		if err != nil {
			return
		}
		if again := AppendStateKey(nil, k); !bytes.Equal(again, key) {
			t.Fatalf("key %x, again %x", key, again)
		}
		v, err := DecodeStateValue(k.Type, value)
		if err != nil {
			return
		}
		once := AppendStateValue(nil, v)
		back, err := DecodeStateValue(k.Type, once)
		if err != nil {
			t.Fatal(err)
		}
		if twice := AppendStateValue(nil, back); !bytes.Equal(once, twice) {
			t.Fatalf("%x\n%x", once, twice)
		}
	})
}
