package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestAlerts: the alert rules of docs/monitoring.md are rules, and each is explained there. Where there is a promtool, Prometheus judges them
// too, by themselves and by what fires when.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := regexp.MustCompile("(?ms)^```yaml\n(groups:.*?)^```$").FindSubmatch(text)
	if rules == nil {
		t.Fatal("there are no rules")
	}
	var parsed struct {
		Groups []struct {
			Name  string
			Rules []struct{ Alert, Expr, For string }
		}
	}
	d := yaml.NewDecoder(bytes.NewReader(rules[1]))
	d.KnownFields(true)
	if err := d.Decode(&parsed); err != nil || len(parsed.Groups) != 2 {
		t.Fatalf("the rules can't be read: %v, %d groups", err, len(parsed.Groups))
	}
	for _, g := range parsed.Groups {
		for _, r := range g.Rules {
			if r.Expr == "" || !regexp.MustCompile("(?m)^\\|.*`"+r.Alert+"`.*\\|.*\\|.*\\|$").Match(text) {
				t.Errorf("%s has no expression, or is not in the table of alerts", r.Alert)
			}
		}
	}
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian: the package prometheus has it)")
	}
	tests, err := os.ReadFile("testdata/alerts.test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"alerts.yaml": rules[1], "test.yaml": tests} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), tool, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
		t.Logf("%s", out)
	}
}
