// Package layering holds the test that imports point down.
package layering

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "kmirror/"

// rules name what the packages of a folder may import of this module; the longest matching folder counts. Folders
// include what lies below them. A package without a rule is an error, so that new folders get one.
var rules = map[string][]string{
	"protocol":           {"protocol"},
	"statemachine":       nil,
	"records":            {"protocol"},
	"internal/replica":   {"protocol"}, // the types that fetch and internal/mirror, which must not know each other, share
	"fetch":              {"records", "protocol", "internal/replica", "internal/wait"},
	"internal/quiet":     nil, // a logger
	"internal/wait":      nil, // a timer
	"internal/lockbuf":   nil, // a buffer
	"internal/fakepeer":  {"protocol"},
	"proxy":              {"fetch", "records", "protocol", "internal/replica", "internal/quiet"},
	"internal":           {"protocol", "records", "statemachine", "internal"},
	"internal/trace":     {"protocol", "records", "internal/trace", "internal/quiet", "internal/wait"},
	"internal/testkafka": {"protocol"},
	"internal/kipclient": {}, // shares no code with what it checks
	"cmd":                {"cmd", "proxy", "fetch", "records", "protocol", "statemachine", "internal"},
	"bench":              {"proxy", "fetch", "records", "protocol", "statemachine", "internal"},
}

// testOnly folders start programs, or are the other side of a wire, and must not reach the server by way of another package.
var testOnly = map[string][]string{
	"internal/testkafka":       {"cmd", "bench", "internal/e2e"},
	"internal/lockbuf":         nil,
	"internal/fakepeer":        nil,
	"internal/kipclient":       {"internal/e2e"},
	"internal/trace/tracetest": nil,
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range list(t) {
		for _, e := range violations(p) {
			t.Error(e)
		}
	}
}

func TestViolationsAreFound(t *testing.T) {
	tests := []struct {
		importer, imported string
		bad                bool
	}{
		{"kmirror/proxy", "kmirror/fetch", false},
		{"kmirror/fetch", "kmirror/proxy", true},
		{"kmirror/fetch", "kmirror/statemachine", true},
		{"kmirror/protocol/kraft", "kmirror/protocol", false},
		{"kmirror/protocol/kraft", "kmirror/records", true},
		{"kmirror/statemachine", "kmirror/protocol", true},
		{"kmirror/statemachine", "net/http", false},
		{"kmirror/internal/mirror", "kmirror/internal/broker", false},
		{"kmirror/internal/mirror", "kmirror/fetch", true},
		{"kmirror/internal/replica", "kmirror/internal/mirror", true},
		{"kmirror/internal/mirror", "kmirror/internal/testkafka", true},
		{"kmirror/internal/trace/tap", "kmirror/internal/trace/tracetest", true},
		{"kmirror/cmd/kmirror", "kmirror/internal/testkafka", false},
		{"kmirror/fetcher", "fmt", true},
	}
	for _, tt := range tests {
		got := violations(pkg{tt.importer, []string{tt.imported}})
		if (len(got) > 0) != tt.bad {
			t.Errorf("%s imports %s: %q, want a violation: %v", tt.importer, tt.imported, got, tt.bad)
		}
	}
}

func violations(p pkg) []string {
	name := strings.TrimPrefix(p.ImportPath, module)
	allowed, ok := rule(name)
	if !ok {
		return []string{p.ImportPath + " has no layering rule"}
	}
	var v []string
	for _, path := range p.Imports {
		imported, own := strings.CutPrefix(path, module)
		if !own {
			continue
		}
		if !withinAny(imported, allowed) {
			v = append(v, p.ImportPath+" must not import "+path)
		}
		for folder, users := range testOnly {
			if within(imported, folder) && !within(name, folder) && !withinAny(name, users) {
				v = append(v, p.ImportPath+" must not import "+path+" outside its tests")
			}
		}
	}
	return v
}

func rule(name string) (allowed []string, ok bool) {
	longest := ""
	for folder := range rules {
		if within(name, folder) && len(folder) > len(longest) {
			longest = folder
		}
	}
	return rules[longest], longest != ""
}

func within(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }

func withinAny(name string, folders []string) bool {
	for _, f := range folders {
		if within(name, f) {
			return true
		}
	}
	return false
}

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", module+"...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 5 {
		t.Fatalf("go list found only %d packages", len(pkgs))
	}
	return pkgs
}
