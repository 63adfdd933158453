package kip1279_test

import (
	"bytes"
	"reflect"
	"testing"

	"kmirror/internal/kipclient"
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
			if again := kip1279.Append(nil, m); !bytes.Equal(again, b) {
				t.Errorf("%s:\n%x, by the schema\n%x", s.Name, again, b)
			}
			if got, err := kipclient.Decode(b, s.Fields); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v, %v, want %v", s.Name, got, err, want)
			}
		}
	}
}
