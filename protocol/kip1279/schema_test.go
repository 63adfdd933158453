package kip1279_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"kmirror/internal/kipclient"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// full makes a value of a field that is not its default.
func full(f kipclient.Field, n *int) any {
	*n++
	if inner := f; len(f.Type) > 2 && f.Type[:2] == "[]" {
		inner.Type = f.Type[2:]
		return []any{full(inner, n), full(inner, n)}
	}
	switch f.Type {
	case "string":
		return string(rune('a' + *n%26))
	case "bool":
		return true
	case "uuid":
		return [16]byte{byte(*n), 15: 1}
	case "int8", "int16", "int32", "int64":
		return int64(*n%100 + 1)
	}
	o := kipclient.Object{}
	for _, inner := range f.Fields {
		o[inner.Name] = full(inner, n)
	}
	return o
}

// renamed are fields that this package names otherwise than the KIP.
var renamed = map[string][]string{"ThrottleTimeMs": {"ThrottleMillis"}, "LastMirrorEpochLookups": {"Lookups"}, "TopicName": {"TopicName", "Name"}}

// same compares what was decoded with what was encoded, field by field: fields that change places would be encoded again to the same bytes.
func same(t *testing.T, at string, got reflect.Value, want any) {
	t.Helper()
	if got.Kind() == reflect.Pointer {
		got = got.Elem()
	}
	switch want := want.(type) {
	case kipclient.Object:
		for name, v := range want {
			f := got.FieldByNameFunc(func(have string) bool {
				return strings.EqualFold(have, name) || slices.Contains(renamed[name], have)
			})
			if !f.IsValid() {
				t.Errorf("%s has no %s", at, name)
				continue
			}
			same(t, at+"."+name, f, v)
		}
	case []any:
		for i := range want {
			same(t, fmt.Sprintf("%s[%d]", at, i), got.Index(i), want[i])
		}
	case [16]byte:
		if got.Interface() != protocol.UUID(want) {
			t.Errorf("%s is %v, want %v", at, got, want)
		}
	default:
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", at, got, want)
		}
	}
}

// What a client encodes by the KIP's field tables is decoded by this package, encoded again to the same bytes, and read back by the
// tables as what it was.
func TestTheKIPsSchemas(t *testing.T) {
	schemas, err := kipclient.Schemas()
	if err != nil {
		t.Fatal(err)
	}
	for _, api := range kip1279.APIs() {
		if api.Key == kip1279.KeyKmirrorCall {
			continue
		}
		for suffix, m := range map[string]kip1279.Message{"Request": api.Request(), "Response": api.Response()} {
			s, ok := schemas[api.Name+suffix]
			if !ok || s.Key != api.Key || s.Version != "0" || api.Min != 0 || api.Max != 0 {
				t.Fatalf("%s%s: schema %+v of key %d, versions %d to %d", api.Name, suffix, s.Name, s.Key, api.Min, api.Max)
			}
			n := 0
			want := full(kipclient.Field{Fields: s.Fields}, &n).(kipclient.Object)
			b, err := kipclient.Encode(nil, s.Fields, want)
			if err != nil {
				t.Fatal(err)
			}
			if err := kip1279.Decode(b, m); err != nil {
				t.Errorf("%s: %v", s.Name, err)
				continue
			}
			same(t, s.Name, reflect.ValueOf(m), want)
			if again := kip1279.Append(nil, m); !bytes.Equal(again, b) {
				t.Errorf("%s:\n%x, by the schema\n%x", s.Name, again, b)
			}
			if got, err := kipclient.Decode(b, s.Fields); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v, %v, want %v", s.Name, got, err, want)
			}
		}
	}
}
