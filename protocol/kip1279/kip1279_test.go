package kip1279

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"kmirror/protocol"
)

// unhex reads hex with spaces and line breaks.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var testID = protocol.UUID{0xe4, 0xbe, 0xa0, 0xde, 0x74, 0xa1, 0x4f, 0xe3, 0x02, 0xb4, 0xaf, 0xfe, 0x5f, 0xce, 0xac, 0xc3}

// golden bytes are written by hand from the field tables and Kafka's encoding rules.
var golden = []struct {
	name string
	msg  Message
	hex  string
}{
	{
		"create request",
		&CreateClusterMirrorRequest{
			MirrorName: "dc1",
			Config:     []ConfigEntry{{Name: "bootstrap.servers", Value: new("a:1")}, {Name: "x"}},
		},
		"04 646331  03  12 626f6f7473747261702e73657276657273 04 613a31 00  02 78 00 00  00",
	},
	{
		"create response refused",
		&CreateClusterMirrorResponse{Status: Status{ErrorCode: ClusterMirrorAlreadyExists, ErrorMessage: new("no")}},
		"00000000 0088 03 6e6f 00",
	},
	{
		"create response with a hint",
		&CreateClusterMirrorResponse{Extra: []byte("{}")},
		// 10000 = 0x2710, as a varint 90 4e
		"00000000 0000 00  01 904e 02 7b7d",
	},
	{
		"start request",
		&StartMirrorTopicsRequest{
			MirrorName:            "m",
			Topics:                []StartTopic{{TopicID: testID, TopicName: "orders", NumPartitions: 6}},
			StateValidationOffset: -1,
			IncludePatterns:       []string{"a.*"},
			ExcludePatterns:       []string{"b"},
			Options:               []byte(`{"overwrite":true}`),
		},
		`02 6d  02 e4bea0de74a14fe302b4affe5fceacc3 07 6f7264657273 00000006 00  ffffffffffffffff
		 03  00 05 02 04 612e2a   01 03 02 02 62   904e 12 7b226f7665727772697465223a747275657d`,
	},
	{
		"start response",
		&StartMirrorTopicsResponse{
			Topics: []TopicOutcome{{Name: "t", ErrorCode: InconsistentTopicID, ErrorMessage: new("e"), Extra: []byte("1")}},
		},
		"00000000 0000 00  02 02 74 0067 02 65  01 904e 01 31  00",
	},
	{
		"stop request", &StopMirrorTopicsRequest{MirrorName: "m", StateValidationOffset: 7, Patterns: []string{".*"}},
		"02 6d 01 0000000000000007 01 00 04 02 03 2e2a",
	},
	{
		"stop request with options", &StopMirrorTopicsRequest{MirrorName: "m", Topics: []NamedTopic{{TopicName: "t"}},
			StateValidationOffset: -1, Options: []byte(`{"drain":true}`)},
		"02 6d 02 02 74 00 ffffffffffffffff 01 904e 0e 7b22647261696e223a747275657d",
	},
	{
		"pause request with options", &PauseMirrorTopicsRequest{MirrorName: "m", Options: []byte("{}")},
		"02 6d 01 0000000000000000 01 904e 02 7b7d",
	},
	{
		"resume request with options", &ResumeMirrorTopicsRequest{MirrorName: "m", Options: []byte("{}")},
		"02 6d 01 0000000000000000 01 904e 02 7b7d",
	},
	{"recover request with options", &RecoverMirrorTopicsRequest{MirrorName: "m", Options: []byte("{}")}, "02 6d 01 01 904e 02 7b7d"},
	{
		"delete request with options", &DeleteClusterMirrorRequest{MirrorName: "m", StateValidationOffset: -1, Options: []byte("{}")},
		"02 6d ffffffffffffffff 01 904e 02 7b7d",
	},
	{
		"bump response refused",
		&BumpLeaderEpochsResponse{Topics: []PartitionOutcomes{{Name: "t", TopicID: testID,
			Partitions: []PartitionOutcome{{PartitionIndex: 2, ErrorCode: UnknownTopicOrPartition, Extra: []byte("{}")}}}}},
		`00000000 0000 00 02 02 74 02 00000002 0003 00 01 904e 02 7b7d  01 904e 10 e4bea0de74a14fe302b4affe5fceacc3 00`,
	},
	{
		"pause request", &PauseMirrorTopicsRequest{MirrorName: "m", Topics: []NamedTopic{{TopicName: "t"}}},
		"02 6d 02 02 74 00 0000000000000000 00",
	},
	{
		"recover request", &RecoverMirrorTopicsRequest{MirrorName: "m", Topics: []NamedTopic{{TopicName: "t"}}},
		"02 6d 02 02 74 00 00",
	},
	{"delete request", &DeleteClusterMirrorRequest{MirrorName: "m", StateValidationOffset: -1}, "02 6d ffffffffffffffff 00"},
	{"list request", &ListClusterMirrorsRequest{IncludeTopicNames: true}, "01 00"},
	{
		"list response",
		&ListClusterMirrorsResponse{Mirrors: []ListedMirror{
			{MirrorName: "m", SourceBootstrap: "b", SourceClusterID: "c", TopicCount: 2, TopicNames: []string{"t", "u"}},
		}},
		"00000000 0000 00  02 02 6d 02 62 02 63 00000002 03 02 74 02 75 00  00",
	},
	{
		"describe request",
		&DescribeClusterMirrorsRequest{
			MirrorNames: []string{"m"}, IncludeAuthorizedOperations: true, ClusterID: new("id"),
			Lookups: []EpochLookup{{TopicID: testID, Partitions: []int32{3}}},
		},
		"02 02 6d 01  02  00 03 03 6964  01 17 02 e4bea0de74a14fe302b4affe5fceacc3 02 00000003 00",
	},
	{
		"describe response",
		&DescribeClusterMirrorsResponse{
			Mirrors: []DescribedMirror{{MirrorName: "m", AuthorizedOperations: NoOperations, Topics: []DescribedTopic{{
				TopicName: "t", Partitions: []DescribedPartition{{
					PartitionIndex: 1, SourceOffset: 9, DestinationOffset: 8, Lag: 1, StateValue: "MIRRORING", RetryAttempt: 2,
				}},
			}}}},
			LookupResults: []EpochLookupResult{{
				TopicID: testID, Partitions: []LastMirrorEpochResult{{PartitionIndex: 3, LastMirrorEpoch: -1}},
			}},
		},
		`00000000 0000 00  02 0000 02 6d 80000000  02 02 74  02 00000001 0000000000000009 0000000000000008
		 0000000000000001 0a 4d4952524f52494e47 0002 00 00  00 00
		 01 00 1c 02 e4bea0de74a14fe302b4affe5fceacc3 02 00000003 ffffffff 00 00`,
	},
	{
		"read states request",
		&ReadMirrorStatesRequest{MirrorName: "m", Topics: []ReadStateTopic{
			{Name: "t", Partitions: []ReadStatePartition{{PartitionIndex: 5}}},
		}},
		"02 6d 02 02 74 02 00000005 00 00 00",
	},
	{
		"read states response",
		&ReadMirrorStatesResponse{Topics: []StateTopic{{Name: "t", Partitions: []StatePartition{
			{PartitionIndex: 5, LastMirrorEpoch: 4, State: 2, ErrorCode: 16, PreviousState: -1, RetryAttempt: 3},
		}}}},
		"00000000 0000 00 02 02 74 02 00000005 00000004 02 0010 ff 0003 00 00 00 00",
	},
	{
		"write states request",
		&WriteMirrorStatesRequest{MirrorName: "m", StoppedTopics: []string{"s"}, Topics: []WriteStateTopic{
			{Name: "t", Partitions: []WriteStatePartition{{PartitionIndex: 5, LastMirrorEpoch: -1, State: 6}}},
		}},
		"02 6d 02 02 74 02 00000005 ffffffff 06 00 00 02 02 73 00",
	},
	{
		"write states response",
		&WriteMirrorStatesResponse{Topics: []PartitionOutcomes{
			{Name: "t", Partitions: []PartitionOutcome{{PartitionIndex: 5, ErrorCode: FencedStateEpoch}}},
		}},
		"00000000 0000 00 02 02 74 02 00000005 007c 00 00 00 00",
	},
	{
		"bump request",
		&BumpLeaderEpochsRequest{Topics: []BumpTopic{
			{TopicID: testID, Partitions: []BumpPartition{{PartitionIndex: 1, MinLeaderEpoch: 19}}},
		}},
		"02 e4bea0de74a14fe302b4affe5fceacc3 02 00000001 00000013 00 00 00",
	},
	{
		"offsets request",
		&ReadMirrorOffsetsRequest{MirrorName: "m", Topics: []OffsetsTopic{{TopicName: "t", Partitions: []int32{3}}}},
		"02 6d 02 02 74 02 00000003 00 00",
	},
	{
		"offsets response",
		&ReadMirrorOffsetsResponse{Topics: []MirrorOffsetsTopic{{TopicName: "t", Partitions: []MirrorOffsets{
			{PartitionIndex: 3, SourceOffset: 9, DestinationOffset: -1},
		}}}},
		"00000000 0000 00 02 02 74 02 00000003 0000000000000009 ffffffffffffffff 00 00 00",
	},
	{
		"last mirrored epochs request",
		&LastMirroredEpochsRequest{MirrorName: "m", Topics: []ReadStateTopic{
			{Name: "t", Partitions: []ReadStatePartition{{PartitionIndex: 5}}},
		}},
		"02 6d 02 02 74 02 00000005 00 00 00",
	},
	{
		"last mirrored epochs response",
		&LastMirroredEpochsResponse{Topics: []LastMirroredTopic{{Name: "t", Partitions: []LastMirroredPartition{
			{PartitionIndex: 5, LastMirroredEpoch: -1, ErrorCode: UnknownTopicOrPartition},
		}}}},
		"00000000 0000 00 02 02 74 02 00000005 ffffffff 0003 00 00 00",
	},
	{"stop response", &StopMirrorTopicsResponse{Topics: []TopicOutcome{{Name: "t", ErrorCode: TopicNotInClusterMirror}}},
		"00000000 0000 00 02 02 74 008b 00 00 00"},
	{"pause response", &PauseMirrorTopicsResponse{Topics: []TopicOutcome{{Name: "t", ErrorCode: MirrorTopicAlreadyPaused}}},
		"00000000 0000 00 02 02 74 008c 00 00 00"},
	{"resume response", &ResumeMirrorTopicsResponse{Topics: []TopicOutcome{{Name: "t", ErrorCode: MirrorTopicNotPaused}}},
		"00000000 0000 00 02 02 74 008d 00 00 00"},
	{"recover response", &RecoverMirrorTopicsResponse{Topics: []TopicOutcome{{Name: "t"}}}, "00000000 0000 00 02 02 74 0000 00 00 00"},
	{"delete response", &DeleteClusterMirrorResponse{Status: Status{ErrorCode: ClusterMirrorNotEmpty}}, "00000000 008f 00 00"},
	{"resume request", &ResumeMirrorTopicsRequest{MirrorName: "m", StateValidationOffset: -1}, "02 6d 01 ffffffffffffffff 00"},
	{"create request that may be repeated", &CreateClusterMirrorRequest{MirrorName: "m", Options: []byte("{}")}, "02 6d 01 01 904e 02 7b7d"},
	{"call response", &KmirrorCallResponse{Payload: []byte("{}")}, "00000000 0000 00 03 7b7d 00"},
	{"call request", &KmirrorCallRequest{Verb: "verify", Payload: []byte("{}")}, "07 766572696679 03 7b7d 00"},
	{
		"a tag of somebody else between ours",
		&ListClusterMirrorsResponse{Extra: []byte("x"), Tags: Tags{{5, []byte{1}}, {20000, nil}}},
		"00000000 0000 00 01  03 05 01 01  904e 01 78  a09c01 00",
	},
}

// Every message has golden bytes.
func TestEveryMessageIsGolden(t *testing.T) {
	have := map[reflect.Type]bool{}
	for _, g := range golden {
		have[reflect.TypeOf(g.msg)] = true
	}
	for _, api := range APIs() {
		for _, m := range []Message{api.Request(), api.Response()} {
			if !have[reflect.TypeOf(m)] {
				t.Errorf("%T has none", m)
			}
		}
	}
}

func TestGolden(t *testing.T) {
	for _, g := range golden {
		t.Run(g.name, func(t *testing.T) {
			want := unhex(t, g.hex)
			if got := Append([]byte("kept"), g.msg); !bytes.Equal(got[4:], want) || string(got[:4]) != "kept" {
				t.Errorf("encoded\n%x, want\n%x", got[4:], want)
			}
			back := reflect.New(reflect.TypeOf(g.msg).Elem()).Interface().(Message)
			if err := Decode(want, back); err != nil {
				t.Fatal(err)
			}
			if again := Append(nil, back); !bytes.Equal(again, want) {
				t.Errorf("decoded and encoded again\n%x, want\n%x", again, want)
			}
		})
	}
}

// fill sets every field to something that is not its zero value.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n % 100))
	case reflect.Uint8:
		v.SetUint(uint64(*n % 100))
	case reflect.String:
		v.SetString(strings.Repeat("s", 1+*n%5))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[Tags]() {
			v.Set(reflect.ValueOf(Tags{{Number: 77, Value: []byte{byte(*n)}}, {Number: 30000, Value: []byte{2}}}))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	}
}

func TestEveryFieldOfEveryMessageSurvives(t *testing.T) {
	for _, api := range APIs() {
		for _, m := range []Message{api.Request(), api.Response()} {
			typ := reflect.TypeOf(m).Elem()
			t.Run(typ.Name(), func(t *testing.T) {
				if m.Key() != api.Key {
					t.Errorf("key %d registered as %d", m.Key(), api.Key)
				}
				n := 0
				fill(reflect.ValueOf(m).Elem(), &n)
				back := reflect.New(typ).Interface().(Message)
				if err := Decode(Append(nil, m), back); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(m, back) {
					t.Errorf("got  %+v\nwant %+v", back, m)
				}
			})
		}
	}
}

func TestTruncatedMessagesAreRefused(t *testing.T) {
	for _, g := range golden {
		b := Append(nil, g.msg)
		for i := range b {
			back := reflect.New(reflect.TypeOf(g.msg).Elem()).Interface().(Message)
			if err := Decode(b[:i], back); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%s cut to %d of %d bytes: %v", g.name, i, len(b), err)
			}
		}
		back := reflect.New(reflect.TypeOf(g.msg).Elem()).Interface().(Message)
		if err := Decode(append(b, 0), back); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s with a byte too many: %v", g.name, err)
		}
	}
}

func TestMalformed(t *testing.T) {
	for name, c := range map[string]struct {
		m   Message
		hex string
	}{
		"null name":                    {&DeleteClusterMirrorRequest{}, "00 ffffffffffffffff 00"},
		"null array":                   {&PauseMirrorTopicsRequest{}, "02 6d 00 ffffffffffffffff 00"},
		"array of 2^32-2 elements":     {&PauseMirrorTopicsRequest{}, "02 6d ffffffff0f 00"},
		"string of 2^32-2 bytes":       {&DeleteClusterMirrorRequest{}, "ffffffff0f 00"},
		"varint that never ends":       {&DeleteClusterMirrorRequest{}, "ffffffffffffffffffff"},
		"tags that descend":            {&ListClusterMirrorsRequest{}, "00 02 05 00 04 00"},
		"the same tag twice":           {&ListClusterMirrorsRequest{}, "00 02 05 00 05 00"},
		"tag longer than the frame":    {&ListClusterMirrorsRequest{}, "00 01 05 7f 00"},
		"2^32-1 tags":                  {&ListClusterMirrorsRequest{}, "00 ffffffff0f"},
		"rest inside a known tag":      {&StopMirrorTopicsRequest{}, "02 6d 01 0000000000000000 01 00 02 01 00"},
		"known tag that ends too soon": {&StopMirrorTopicsRequest{}, "02 6d 01 0000000000000000 01 00 01 02"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := Decode(unhex(t, c.hex), c.m); !errors.Is(err, ErrMalformed) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestNullMirrorNamesMeanAll(t *testing.T) {
	m := &DescribeClusterMirrorsRequest{MirrorNames: []string{"left over"}}
	if err := Decode(unhex(t, "00 00 00"), m); err != nil || m.MirrorNames != nil {
		t.Errorf("got %v, %v", m.MirrorNames, err)
	}
}

func TestDefaultsOfTheSchema(t *testing.T) {
	for _, key := range []int16{KeyStartMirrorTopics, KeyStopMirrorTopics, KeyDeleteClusterMirror} {
		api, _ := Lookup(key)
		f := reflect.ValueOf(api.Request()).Elem().FieldByName("StateValidationOffset")
		if f.Int() != -1 {
			t.Errorf("%s: StateValidationOffset is %d", api.Name, f.Int())
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, g := range golden {
		f.Add(g.msg.Key(), strings.HasSuffix(reflect.TypeOf(g.msg).Elem().Name(), "Request"), unhex(f, g.hex))
	}
	f.Fuzz(func(t *testing.T, key int16, request bool, src []byte) {
		api, ok := Lookup(key)
		if !ok {
			return
		}
		make := api.Response
		if request {
			make = api.Request
		}
		first, second := make(), make()
		if Decode(src, first) != nil {
			return
		}
		once := Append(nil, first)
		if err := Decode(once, second); err != nil {
			t.Fatalf("own encoding refused: %v", err)
		}
		if twice := Append(nil, second); !bytes.Equal(once, twice) {
			t.Fatalf("%x\n%x", once, twice)
		}
	})
}
