package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kmirror/internal/admin"
)

// TestAlter says what is changed, and asks at a terminal before topics are stopped by it.
func TestAlter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "m.properties")
	if err := os.WriteFile(file, []byte("bootstrap.servers=a:1\nmirror.groups.include=x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"alter", "--mirror", "m", "--mirror-config", file}
	f := &fakeService{}
	h := newHarness(t, f)
	if code, stdout, _ := h.run(args...); code != 0 || !strings.Contains(stdout, "changed mirror.groups.include of mirror m: takes effect at once") ||
		len(f.altered) != 1 || f.altered[0].DryRun || f.altered[0].Config["mirror.groups.include"] != "x" {
		t.Errorf("exit %d, asked %+v\n%s", code, f.altered, stdout)
	}
	if code, stdout, _ := h.run(append(args, "--dry-run", "-o", "json")...); code != 0 || !strings.Contains(stdout, `"altered": false`) ||
		!f.altered[1].DryRun {
		t.Errorf("dry run: exit %d, asked %+v\n%s", code, f.altered, stdout)
	}
	f.stops, f.altered = []string{"orders"}, nil
	h.terminal, h.input = true, "n\n"
	if code, _, stderr := h.run(args...); code != admin.ExitRefused || !strings.Contains(stderr, "orders") || len(f.altered) != 1 ||
		!f.altered[0].DryRun {
		t.Errorf("not confirmed: exit %d, asked %+v\n%s", code, f.altered, stderr)
	}
	h.input = "y\n"
	if code, stdout, _ := h.run(args...); code != 0 || !strings.Contains(stdout, "topic orders") || len(f.altered) != 3 || f.altered[2].DryRun {
		t.Errorf("confirmed: exit %d, asked %+v\n%s", code, f.altered, stdout)
	}
	// A typo would leave out less, or more, than was meant.
	typo := filepath.Join(t.TempDir(), "typo.properties")
	if err := os.WriteFile(typo, []byte("bootstrap.servers=a:1\nmirror.topics.exlude=secret.*\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"alter", "create"} {
		code, _, stderr := h.run(verb, "--mirror", "m", "--mirror-config", typo)
		if code != admin.ExitUsage || !strings.Contains(stderr, "mirror.topics.exlude is no property of a mirror; is mirror.topics.exclude meant?") ||
			len(f.altered) != 3 || f.created != nil {
			t.Errorf("%s with a typo: exit %d, asked %+v\n%s", verb, code, f.altered, stderr)
		}
	}
	missing := filepath.Join(t.TempDir(), "missing.properties")
	if err := os.WriteFile(missing, []byte("bootstrap.server=a:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := h.run("create", "--mirror", "m", "--mirror-config", missing); code != admin.ExitUsage ||
		!strings.Contains(stderr, "bootstrap.server is not known here") || !strings.Contains(stderr, "bootstrap.servers: no host:port given") {
		t.Errorf("the one key that is needed is misspelt: exit %d %s", code, stderr)
	}
	if code, _, stderr := h.run("alter", "--mirror", "m", "--mirror-config", "/none"); code != admin.ExitUsage || !strings.Contains(stderr, "/none") {
		t.Errorf("no file: exit %d %s", code, stderr)
	}
}
