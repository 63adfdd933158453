package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// traced is the configuration of a trace of all listeners, the inter-broker one too, and the file that it goes to.
func traced(tb testing.TB) (yaml, file string) {
	tb.Helper()
	file = filepath.Join(tb.TempDir(), "trace.json")
	return fmt.Sprintf("trace: {file: %q, format: json, payload: true, listeners: [CLIENT, REPL]}", file), file
}

// traceLine is what tests read of a line.
type traceLine struct {
	Kind, API, Server, Principal string
	Topics                       []struct{ Topic string }
	Errors                       []struct{ Error, About string }
	Batches                      []struct{ Payload []struct{ Value string } }
	APIs                         []struct{ API string }
}

// traceLines reads what has been written by now.
func traceLines(t *testing.T, file string) (lines []traceLine) {
	t.Helper()
	text := mustRead(t, file)
	for line := range strings.Lines(text[:strings.LastIndex(text, "\n")+1]) {
		var l traceLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v: %.300s", err, line)
		}
		lines = append(lines, l)
	}
	return lines
}

// about reports whether a line is of a kind, an API and a principal, and names the topic.
func (l traceLine) about(kind, api, principal, topic string) bool {
	return l.Kind == kind && l.API == api && l.Principal == principal &&
		slices.ContainsFunc(l.Topics, func(t struct{ Topic string }) bool { return t.Topic == topic })
}

// traced: what clients and followers said to kmirror's listeners before is in the trace, decoded, and no secret of theirs. Taken out of
// the configuration, the trace ends.
func (b *secureBed) traced(t *testing.T) {
	want := map[string]func(traceLine) bool{
		"a producer's records": func(l traceLine) bool {
			return l.about("request", "Produce", "User:writer", "orders") && strings.HasPrefix(l.Server, "CLIENT/900") &&
				len(l.Batches) == 1 && len(l.Batches[0].Payload) == 1 && l.Batches[0].Payload[0].Value == "no"
		},
		"their refusal": func(l traceLine) bool {
			return l.about("response", "Produce", "User:writer", "orders") && len(l.Errors) == 1 && l.Errors[0].Error == "POLICY_VIOLATION"
		},
		"a consumer's fetch": func(l traceLine) bool { return l.about("request", "Fetch", "User:reader", "orders") },
		"where it is sent":   func(l traceLine) bool { return l.about("response", "Fetch", "User:reader", "orders") },
		// Followers name topics by ids, which the trace has not heard the names of when they begin.
		"a follower's fetch": func(l traceLine) bool {
			return l.Kind == "request" && l.API == "Fetch" && l.Principal == "User:"+testkafka.AdminUser && strings.HasPrefix(l.Server, "REPL/900")
		},
		"the records for it": func(l traceLine) bool {
			return l.Kind == "response" && l.API == "Fetch" && l.Principal == "User:"+testkafka.AdminUser && len(l.Batches) > 0
		},
		"a login by SCRAM": func(l traceLine) bool {
			return l.API == "SaslAuthenticate" && strings.HasPrefix(l.Server, "CLIENT/900")
		},
		"a login with passwords": func(l traceLine) bool { return l.API == "SaslAuthenticate" && strings.HasPrefix(l.Server, "REPL/900") },
	}
	eventually(t, 30*time.Second, "all that is to be traced", func() error {
		lines := traceLines(t, b.trace)
		for what, is := range want {
			if !slices.ContainsFunc(lines, is) {
				return fmt.Errorf("%s is not among %d lines", what, len(lines))
			}
		}
		return nil
	})
	b.noSecrets(t)

	text := mustRead(t, b.s.config)
	yaml, _, _ := strings.Cut(text, "trace: ")
	if err := os.WriteFile(b.s.config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the summary", func() error {
		lines := traceLines(t, b.trace)
		if last := lines[len(lines)-1]; last.Kind != "summary" || len(last.APIs) < 5 {
			return fmt.Errorf("the last line is %+v", last)
		}
		return nil
	})
	size := len(mustRead(t, b.trace))
	err := as(t, b.dst, "writer", b.s.client).ProduceSync(timeout(t, 20*time.Second), &kgo.Record{Topic: "orders", Value: []byte("no")}).FirstErr()
	if !errors.Is(err, kerr.PolicyViolation) {
		t.Errorf("produce to the mirror topic: %v", err)
	}
	if more := mustRead(t, b.trace)[size:]; more != "" {
		t.Errorf("traced after the end: %.500s", more)
	}
}

// noSecrets: neither passwords nor what SCRAM proves them by.
func (b *secureBed) noSecrets(t *testing.T) {
	text := mustRead(t, b.trace)
	for _, user := range []string{"reader", "writer", testkafka.FollowerUser, testkafka.GuestUser, testkafka.AdminUser} {
		if strings.Contains(text, b.dst.Security().Password(user)) {
			t.Errorf("the password of %s is in the trace", user)
		}
	}
	for _, token := range []string{",p=", ",r=", "n,,n="} {
		if strings.Contains(text, token) {
			t.Errorf("a token of SCRAM is in the trace: %q", token)
		}
	}
	if !strings.Contains(text, `"SASLAuthBytes":"****"`) {
		t.Error("no token is hidden: where were they?")
	}
}

// tracedGateway: produces and fetches to topic "rw" through a gateway are in a trace for that topic, nothing else is, and its last part
// is the summary of all that passed.
func tracedGateway(t *testing.T, file string) {
	t.Helper()
	text, summary, _ := strings.Cut(mustRead(t, file), "\n\n")
	for _, part := range []string{"> Produce v", "< Produce v", "> Fetch v", "< Fetch v", " topics=rw["} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in the trace", part)
		}
	}
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "rw[") && !strings.Contains(line, " < ") && !strings.Contains(line, " note: ") {
			t.Errorf("not asked for: %s", line)
		}
	}
	for _, api := range []string{"  Produce\n", "  Fetch\n", "  Metadata\n", "  ApiVersions\n"} {
		if !strings.Contains(summary, api) {
			t.Errorf("%q is not in the summary:\n%.2000s", api, summary)
		}
	}
}
