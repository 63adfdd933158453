package main

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kmirror/internal/admin"
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

// metricLabels is every metric of kmirror's own with its labels, sorted.
func metricLabels() map[string][]string {
	m := newMetrics("v", true)
	m.watch(func() []admin.PartitionInfo { return nil }, func() map[string]time.Time { return nil })
	m.registry.MustRegister(newSyncCollector(func(context.Context, []string) ([]admin.SyncInfo, error) { return nil, nil }))
	m.registry.MustRegister(newCertificateCollector(func() []shownCertificate { return nil }))
	descriptions := make(chan *prometheus.Desc)
	go func() {
		m.registry.Describe(descriptions)
		close(descriptions)
	}()
	parts := regexp.MustCompile(`fqName: "(kmirror_[a-z_]+)".*variableLabels: \{([a-z_,]*)\}`)
	known := make(map[string][]string)
	for d := range descriptions {
		if found := parts.FindStringSubmatch(d.String()); found != nil {
			labels := strings.FieldsFunc(found[2], func(r rune) bool { return r == ',' })
			slices.Sort(labels)
			known[found[1]] = append([]string{}, labels...)
		}
	}
	return known
}

// TestEveryMetricIsDocumented: docs/monitoring.md has every metric with its labels in a table.
func TestEveryMetricIsDocumented(t *testing.T) {
	raw, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(raw), "\n## All metrics\n")
	known := metricLabels()
	for name, want := range known {
		var row string
		for line := range strings.Lines(section) {
			if strings.HasPrefix(line, "|") && strings.Contains(line, "`"+name+"`") {
				row = line
			}
		}
		if row == "" {
			t.Errorf("%s is not documented", name)
			continue
		}
		var labels []string
		for _, l := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(strings.Split(row, "|")[2], -1) {
			labels = append(labels, l[1])
		}
		if slices.Sort(labels); !slices.Equal(labels, want) {
			t.Errorf("%s has labels %v, documented are %v", name, want, labels)
		}
	}
	if len(known) < 25 {
		t.Errorf("only %d metrics were found", len(known))
	}
}

// TestDocuments: what links within the documents lead to is there, and README.md names every document and every target of the Makefile.
func TestDocuments(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	const readme = "../../README.md"
	var (
		link    = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
		heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
		dropped = regexp.MustCompile(`[^a-z0-9 -]`)
		phony   = regexp.MustCompile(`(?m)^\.PHONY: (.*)$`)
	)
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	for _, file := range append(files, readme) {
		for _, m := range link.FindAllStringSubmatch(read(file), -1) {
			target := file
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(file), m[1])
			}
			var anchors []string
			for _, h := range heading.FindAllStringSubmatch(read(target), -1) {
				anchors = append(anchors, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
			}
			if m[2] != "" && !slices.Contains(anchors, m[2]) {
				t.Errorf("%s: %s has no heading #%s", file, target, m[2])
			}
		}
	}
	front := read(readme)
	for _, file := range files {
		if !strings.Contains(front, "](docs/"+filepath.Base(file)+")") {
			t.Errorf("%s does not name %s", readme, file)
		}
	}
	for _, target := range strings.Fields(phony.FindStringSubmatch(read("../../Makefile"))[1]) {
		if !strings.Contains(front, "`"+target+"`") {
			t.Errorf("%s does not name make %s", readme, target)
		}
	}
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

// TestMetricsInDocumentsExist: an alert on a metric that there is not never fires.
func TestMetricsInDocumentsExist(t *testing.T) {
	known := metricLabels()
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	seen := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range regexp.MustCompile(`kmirror_[a-z_]+`).FindAllString(string(text), -1) {
			if seen++; known[n] == nil {
				t.Errorf("%s: there is no metric %s", file, n)
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d metrics are named", seen)
	}
}
