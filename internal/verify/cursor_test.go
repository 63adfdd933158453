package verify

import (
	"reflect"
	"strings"
	"testing"

	"kmirror/protocol"
)

func FuzzCursor(f *testing.F) {
	id := protocol.UUID{1}.String()
	good := &cursor{TopicID: id, SourceID: id, Start: 3, Next: 5, End: 9, Brokers: []int32{1, 2}, cleaned: cleaned{GoneDest: 4}}
	text, err := good.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add("")
	f.Add("e30")
	f.Add("bnVsbA")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := decodeCursor(text)
		if err != nil {
			return
		}
		if c.Start < 0 || c.Next < c.Start {
			t.Fatalf("offsets of %+v run backwards", c)
		}
		again, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > maxCursor {
			return
		}
		back, err := decodeCursor(again)
		if err != nil || !reflect.DeepEqual(c, back) {
			t.Fatalf("%+v came back as %+v, %v", c, back, err)
		}
	})
}

func TestCursorRefuses(t *testing.T) {
	id := protocol.UUID{1}.String()
	for name, c := range map[string]cursor{
		"no topic id":    {SourceID: id},
		"no source id":   {TopicID: id},
		"negative start": {TopicID: id, SourceID: id, Start: -1},
		"runs backwards": {TopicID: id, SourceID: id, Start: 5, Next: 4},
		"negative end":   {TopicID: id, SourceID: id, End: -1},
	} {
		text, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeCursor(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := decodeCursor(strings.Repeat("A", maxCursor+1)); err == nil {
		t.Error("oversized cursor accepted")
	}
}
