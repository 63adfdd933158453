package main

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"kmirror/internal/clientconf"
	"kmirror/internal/filters"
)

// TestEveryKeyIsDocumented: docs/operations.md names every key of kmirror.yaml.
func TestEveryKeyIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## All keys of kmirror.yaml\n")
	var walk func(v reflect.Type, prefix string)
	walk = func(v reflect.Type, prefix string) {
		for i := range v.NumField() {
			f := v.Field(i)
			key := prefix + f.Tag.Get("yaml")
			whole := f.Type.Kind() != reflect.Struct || f.Type == reflect.TypeFor[AdminConfig]() || f.Type == reflect.TypeFor[time.Duration]()
			if !whole {
				walk(f.Type, key+".")
			} else if !strings.Contains(section, "`"+key+"`") {
				t.Errorf("%s is not documented", key)
			}
		}
	}
	walk(reflect.TypeFor[Config](), "")
}

// TestMirrorKeysAreKnown: a property of a mirror that has an effect is not warned of, one with a typo is.
func TestMirrorKeysAreKnown(t *testing.T) {
	props := map[string]string{"mirror.source.admin.bootstrap.servers": "a:1"}
	for _, key := range append([]string{"mirror.source.cluster.id", "mirror.num.replica.fetchers", "mirror.fetch.wait.max.ms",
		"mirror.fetch.min.bytes",
		"mirror.fetch.response.max.bytes", "mirror.fetch.max.bytes", "mirror.throttle.bytes.per.second"}, filters.Keys...) {
		props[key] = "1"
	}
	if got := clientconf.Warnings(props); len(got) > 0 {
		t.Errorf("warned of %v", got)
	}
	if got := clientconf.Warnings(map[string]string{"mirror.topics.includes": "x"}); len(got) != 1 ||
		!strings.Contains(got[0], "mirror.topics.includes") {
		t.Errorf("a typo: %v", got)
	}
}
