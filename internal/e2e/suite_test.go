package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// suitePackage is the package whose own tests TestFranzSuite runs.
const suitePackage = "github.com/twmb/franz-go/pkg/kgo"

// onlyWith leaves a test to the make target that sets a variable.
func onlyWith(t *testing.T, variable, target string) {
	t.Helper()
	if os.Getenv(variable) == "" {
		t.Skipf("takes minutes; make %s runs it", target)
	}
}

// TestFranzSuite runs those of franz-go's own tests that need a cluster, first at the brokers, then through a gateway in front of the same
// brokers: each test must end the same way. What ends otherwise is run three times more each way. KMIRROR_SUITE_RECORDS is how many
// records the tests of groups, share groups and transactions move (franz-go: 500,000), KMIRROR_SUITE_RUN a pattern that picks some
// tests only.
func TestFranzSuite(t *testing.T) {
	onlyWith(t, "KMIRROR_SUITE", "suite")
	s := newSuite(t)
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1, Heap: "512m"})
	brokers := strings.Join(dst.Bootstrap(testkafka.ClientListener), ",")
	direct := s.run("direct", brokers, s.names)
	yaml, first := gatewayYAML(t, "127.0.0.1")
	gateway := newShim(t, dst, yaml)
	front := fmt.Sprintf("127.0.0.1:%d", first)
	through := s.run("gateway", front, s.names)
	passed, differ := 0, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(merged(direct, through))) {
		d, g := cmp.Or(direct[name], "not run"), cmp.Or(through[name], "not run")
		t.Logf("%-60s %-8s %s", name, d, g)
		if d != g {
			top, _, _ := strings.Cut(name, "/")
			differ[top] = true
		}
		if d == "pass" && g == "pass" {
			passed++
		}
	}
	t.Logf("%d of %d passed both ways", passed, len(direct))
	if passed < 20 && os.Getenv("KMIRROR_SUITE_RUN") == "" {
		t.Errorf("only %d tests passed: the comparison says nothing", passed)
	}
	for name := range differ {
		d, g := map[string]bool{direct[name]: true}, map[string]bool{through[name]: true}
		for range 3 { // some tests fail now and then at brokers too
			d[s.run("direct", brokers, "^"+name+"$")[name]] = true
			g[s.run("gateway", front, "^"+name+"$")[name]] = true
		}
		if differs(d, g) {
			t.Errorf("%s ends otherwise through the gateway: %v, at the brokers %v", name, keys(g), keys(d))
		} else {
			t.Logf("%s wavers: %v through the gateway, %v at the brokers", name, keys(g), keys(d))
		}
	}
	if err := gateway.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

// differs tells a gateway that makes a difference from a test that wavers: nothing may fail through it that never fails at the brokers, and
// they must have one way to end in common.
func differs(direct, gateway map[string]bool) bool {
	common := false
	for ended := range gateway {
		common = common || direct[ended]
	}
	return !common || gateway["fail"] && !direct["fail"]
}

func keys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }

func merged[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// suite is franz-go's tests, built.
type suite struct {
	t               *testing.T
	dir, bin, names string
}

func newSuite(t *testing.T) *suite {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", suitePackage).Output()
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{t: t, dir: strings.TrimSpace(string(dir)), bin: filepath.Join(t.TempDir(), "kgo.test")}
	if out, err := exec.Command("go", "test", "-c", "-o", s.bin, suitePackage).CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	names := clusterTests(t, s.dir)
	if len(names) < 20 {
		t.Fatalf("only %v need a cluster", names)
	}
	s.names = cmp.Or(os.Getenv("KMIRROR_SUITE_RUN"), "^("+strings.Join(names, "|")+")$")
	return s
}

// clusterTests are the tests of a package that come, by whatever way through its test files, to the function that names the cluster.
func clusterTests(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	uses := map[string][]string{} // by function, or method whatever its receiver
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					uses[fn.Name.Name] = append(uses[fn.Name.Name], id.Name)
				}
				return true
			})
		}
	}
	reach := map[string]bool{"getSeedBrokers": true}
	for grown := true; grown; {
		grown = false
		for name, used := range uses {
			if !reach[name] && slices.ContainsFunc(used, func(u string) bool { return reach[u] }) {
				reach[name], grown = true, true
			}
		}
	}
	for name := range reach {
		if strings.HasPrefix(name, "Test") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// run runs the tests on the cluster behind seeds and returns how each ended, subtests included.
func (s *suite) run(where, seeds, names string) map[string]string {
	s.t.Helper()
	begin := time.Now()
	cmd := exec.CommandContext(timeout(s.t, 20*time.Minute), "go", "tool", "test2json", "-t", s.bin, "-test.v=test2json", "-test.run", names,
		"-test.timeout", "15m")
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "KGO_SEEDS="+seeds, "KGO_TEST_RF=3", "KGO_LOG_LEVEL=none",
		"KGO_TEST_RECORDS="+cmp.Or(os.Getenv("KMIRROR_SUITE_RECORDS"), "50000"))
	out, err := cmd.Output()
	ended, said := map[string]string{}, map[string]*bytes.Buffer{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		switch e.Action {
		case "pass", "fail", "skip":
			if e.Test != "" {
				ended[e.Test] = e.Action
			}
			if e.Test != "" && said[e.Test] != nil && e.Action == "fail" {
				text := said[e.Test].Bytes()
				s.t.Logf("%s: %s:\n%s", where, e.Test, text[max(0, len(text)-3000):])
			}
		case "output":
			if said[e.Test] == nil {
				said[e.Test] = new(bytes.Buffer)
			}
			said[e.Test].WriteString(e.Output)
		}
	}
	s.t.Logf("%s: %d tests in %s (%v)", where, len(ended), time.Since(begin).Round(time.Second), err)
	return ended
}
