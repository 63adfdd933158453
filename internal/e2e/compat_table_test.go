package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// compatCell is what came of one client at one Kafka version.
type compatCell struct {
	missing string        // why it was not tried
	err     error         // what failed
	took    time.Duration // of all its steps
}

func (c compatCell) String() string {
	switch {
	case c.missing != "":
		return "n/a: " + c.missing
	case c.err != nil:
		line, _, _ := strings.Cut(c.err.Error(), "\n")
		return fmt.Sprintf("**failed**: %.150s", strings.ReplaceAll(line, "|", `\|`))
	}
	return fmt.Sprintf("ok, %.1f s", c.took.Seconds())
}

// compatTable is what a run has found. Its methods may be called by several goroutines.
type compatTable struct {
	versions []string       // columns
	clients  []compatClient // rows
	network  string         // where the clients were

	mu    sync.Mutex
	names map[string]string // of clients, with their versions, where they have one of their own
	cells map[string]map[string]compatCell
}

// named notes a client's version.
func (c *compatTable) named(client, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names[client] = client + " " + version
}

func (c *compatTable) put(client, kafka string, cell compatCell) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cells[client] == nil {
		c.cells[client] = map[string]compatCell{}
	}
	c.cells[client][kafka] = cell
}

// complete reports whether every client was tried, or is known to be missing, at every version.
func (c *compatTable) complete() bool {
	return !slices.ContainsFunc(c.clients, func(cl compatClient) bool { return len(c.cells[cl.name]) != len(c.versions) })
}

// render is the document.
func (c *compatTable) render(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Compatibility

Made by %s on %s; don't edit.

Real clients do a round trip through kmirror's [gateway](gateway.md), in front of real clusters of three brokers with SASL_SSL
(SCRAM-SHA-512; kcat logs in by PLAIN) and StandardAuthorizer. What came of it is compared with the cluster itself, past kmirror.
%s
Kafka's own tools are those of the cluster's version. Seconds are of this run, with two clients at work at a time.

| client | what is done and checked |`, "`make compat`", now.UTC().Format(time.DateOnly), c.network)
	for _, v := range c.versions {
		fmt.Fprintf(&b, " Kafka %s |", v)
	}
	fmt.Fprintf(&b, "\n|---|---|%s\n", strings.Repeat("---|", len(c.versions)))
	for _, cl := range c.clients {
		name := cl.name
		if c.names[name] != "" {
			name = c.names[name]
		}
		fmt.Fprintf(&b, "| %s | %s |", name, cl.did)
		for _, v := range c.versions {
			fmt.Fprintf(&b, " %s |", c.cells[cl.name][v])
		}
		b.WriteString("\n")
	}
	return b.String()
}

// write replaces the document, if nothing is missing in it.
func (c *compatTable) write(t *testing.T, path string) {
	t.Helper()
	if !c.complete() {
		t.Logf("%s is left alone: not every client was run", path)
		return
	}
	if err := os.WriteFile(path, []byte(c.render(time.Now())), 0o644); err != nil {
		t.Error(err)
	}
}

func TestCompatibilityTable(t *testing.T) {
	c := &compatTable{versions: []string{"2", "1"}, clients: []compatClient{{name: "a", did: "all"}, {name: "b", did: "some"}},
		names: map[string]string{}, cells: map[string]map[string]compatCell{}}
	c.named("a", "7.1")
	c.put("a", "2", compatCell{took: 1240 * time.Millisecond})
	c.put("a", "1", compatCell{err: fmt.Errorf("x|y\nmore")})
	c.put("b", "1", compatCell{missing: "too new"})
	if c.complete() {
		t.Error("complete without b at 2")
	}
	c.put("b", "2", compatCell{})
	if !c.complete() {
		t.Error("not complete")
	}
	got := c.render(time.Unix(0, 0))
	want := `| client | what is done and checked | Kafka 2 | Kafka 1 |
|---|---|---|---|
| a 7.1 | all | ok, 1.2 s | **failed**: x\|y |
| b | some | ok, 0.0 s | n/a: too new |
`
	if !strings.HasSuffix(got, want) || !strings.Contains(got, "on 1970-01-01") {
		t.Errorf("got\n%s", got)
	}
}
