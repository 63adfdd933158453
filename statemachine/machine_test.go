package statemachine

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write what the machine did into the scenario files")

// TestScenarios runs testdata/*.txt. A file is a list of blocks: one event a line, a line "----", then what the machine
// answered, up to an empty line. Each block goes on where the last one ended; "new" begins anew.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { runScenario(t, f) })
	}
}

func runScenario(t *testing.T, file string) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	m := New()
	for _, block := range strings.Split(strings.TrimSpace(string(raw)), "\n\n") {
		in, _, _ := strings.Cut(block+"\n", "----\n")
		out.WriteString(in)
		out.WriteString("----\n")
		for _, line := range strings.Split(strings.TrimSpace(in), "\n") {
			switch {
			case strings.HasPrefix(line, "#") || line == "":
			case line == "new":
				m = New()
			default:
				out.WriteString(stepLine(t, m, line))
			}
		}
		out.WriteString("\n")
	}
	got := strings.TrimSpace(out.String()) + "\n"
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != string(raw) {
		t.Errorf("%s differs; got:\n%s", file, got)
	}
}

// stepLine feeds one line and returns the state and the effects after it.
func stepLine(t *testing.T, m *Machine, line string) string {
	ev := parseEvent(t, line)
	effects, err := m.Step(ev)
	if err != nil {
		return fmt.Sprintf("%s: error: %v\n", m.State, err)
	}
	s := make([]string, len(effects))
	for i, e := range effects {
		s[i] = e.String()
	}
	extra := ""
	if m.State == Stopping {
		extra = " (" + m.Stop.String() + ")"
	}
	if m.Retry > 0 || m.Reason != "" {
		extra += fmt.Sprintf(" (retry %d, %q)", m.Retry, m.Reason)
	}
	return fmt.Sprintf("%s%s: %s\n", m.State, extra, strings.Join(s, ", "))
}

func parseEvent(t *testing.T, line string) Event {
	w := strings.Fields(line)
	switch w[0] {
	case "load":
		l := Load{State: parseState(t, w[1]), Previous: Unknown}
		for _, a := range w[2:] {
			k, v, _ := strings.Cut(a, "=")
			switch k {
			case "previous":
				l.Previous = parseState(t, v)
			case "retry":
				l.Retry, _ = strconv.Atoi(v)
			case "final":
				l.Final = true
			case "stop":
				n, _ := strconv.Atoi(v)
				l.Stop = StopStep(n)
			case "reason":
				l.Reason = v
			default:
				t.Fatalf("unknown word %q", a)
			}
		}
		return l
	case "start":
		return Start{Overwrite: len(w) > 1 && w[1] == "overwrite"}
	case "recover":
		return Recover{}
	case "marked":
		return Marked{}
	case "retry-due":
		return RetryDue{}
	case "fail":
		return Fail{Reason: w[1], Hint: "hint", Final: len(w) > 2 && w[2] == "final"}
	case "observe":
		return Observe{parseFacts(t, w[1:])}
	}
	t.Fatalf("unknown event %q", line)
	return nil
}

func parseFacts(t *testing.T, words []string) Facts {
	f := Facts{SLE: -1, LME: -1, Desired: Mirroring}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		n, _ := strconv.Atoi(v)
		switch k {
		case "leading":
			f.Leading = true
		case "locked":
			f.Locked = true
		case "open":
			f.Open = true
		case "aligned":
			f.Aligned = true
		case "blocked":
			f.Blocked = true
		case "flowing":
			f.Flowing = true
		case "pause":
			f.Desired = Paused
		case "stop":
			f.Desired = Stopped
		case "converged":
			f.Converged = true
		case "stuck":
			f.Stuck = true
		case "tailed":
			f.Tailed = true
		case "topic-tailed":
			f.TopicTailed = true
		case "free":
			f.Free = true
		case "handed-over":
			f.HandedOver = true
		case "lme":
			f.LME = int32(n)
		case "dle":
			f.DLE = int32(n)
		case "sle":
			f.SLE = int32(n)
		default:
			t.Fatalf("unknown fact %q", w)
		}
	}
	return f
}

func parseState(t *testing.T, name string) State {
	s, err := ParseState(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestForbidden tries every pair of states against a second, hand-written list.
func TestForbidden(t *testing.T) {
	allowed := map[string]bool{
		"UNKNOWN PREPARING": true, "PREPARING MIRRORING": true, "MIRRORING EPOCH_FENCING": true,
		"EPOCH_FENCING MIRRORING": true, "FAILED PREPARING": true, "FAILED MIRRORING": true, "FAILED STOPPING": true,
		"PREPARING STOPPING": true, "EPOCH_FENCING STOPPING": true, "MIRRORING STOPPING": true, "MIRRORING PAUSING": true,
		"PAUSING PAUSED": true, "PAUSING STOPPING": true, "PAUSED MIRRORING": true, "PAUSED STOPPING": true,
		"STOPPING STOPPED": true, "STOPPED PREPARING": true,
	}
	for _, from := range order {
		for _, to := range order {
			want := from == to || to == Failed || allowed[from.String()+" "+to.String()]
			if got := Allowed(from, to); got != want {
				t.Errorf("Allowed(%s, %s) = %v, want %v", from, to, got, want)
			}
		}
	}
}

// TestDiagram holds the picture in docs/architecture.md against the table.
func TestDiagram(t *testing.T) {
	raw, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), Diagram()) {
		t.Errorf("docs/architecture.md does not hold the diagram of the transition table; it is:\n%s", Diagram())
	}
}

func TestBumpTarget(t *testing.T) {
	for _, c := range []struct {
		name     string
		sle, dle int32
		target   int32
		due      bool
	}{
		{"source unknown", -1, 0, 0, false},
		{"enough headroom", 4, 7, 7, false},
		{"headroom used up", 5, 7, 15, true},
		{"equal", 7, 7, 10, true},
		{"first mirror of an old source", 300, 0, 303, true},
		{"leader epoch -1 at the source while it has none", -1, 12, 12, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			target, due := BumpTarget(c.sle, c.dle)
			if target != c.target || due != c.due {
				t.Errorf("BumpTarget(%d, %d) = %d, %v; want %d, %v", c.sle, c.dle, target, due, c.target, c.due)
			}
		})
	}
}
