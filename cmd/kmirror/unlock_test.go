package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kmirror/internal/admin"
	"kmirror/internal/unlock"
)

// unlockConfig writes a configuration whose destination is one address.
func unlockConfig(t *testing.T, destination string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "kmirror.yaml")
	text := fmt.Sprintf(`node_ids: [9001, 9002]
admin: 127.0.0.1:9190
destination: {bootstrap_servers: ["%[1]s"], controllers: ["%[1]s"], inter_broker_listener: REPL}
listeners:
  - {name: REPL, bind: "127.0.0.1:9000", advertised: "127.0.0.1:9000", protocol: PLAINTEXT}
`, destination)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestUnlockRefusesBadInput(t *testing.T) {
	config := unlockConfig(t, "127.0.0.1:9092")
	h := &harness{t: t}
	for _, tt := range []struct{ args, text string }{
		{"--topics orders", "config"},
		{"--config " + config, "topics"},
		{"--config " + config + " --topics /[/", "is not a pattern"},
		{"--config " + config + " --topics a/b", "is not a topic name"},
		{"--config no-such-file --topics orders", "readable file"},
		{"--config " + config + " --topics orders --node-ids 9003,x", `"x" is not a broker id`},
		{"--config " + config + " --topics orders --node-ids -1", `"-1" is not a broker id`},
	} {
		code, _, stderr := h.run(append([]string{"unlock"}, strings.Fields(tt.args)...)...)
		if code != admin.ExitUsage || !strings.Contains(stderr, tt.text) {
			t.Errorf("unlock %s: exit %d, %q; want %d and %q", tt.args, code, stderr, admin.ExitUsage, tt.text)
		}
	}
}

// TestUnlockInterrupted: nobody goes on with what it has begun, and an error of the connection that it gave up says nothing.
func TestUnlockInterrupted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		if c, err := l.Accept(); err == nil {
			defer c.Close()
		}
	}()
	code, _, stderr := (&harness{t: t}).runContext(ctx, "unlock", "--config", unlockConfig(t, l.Addr().String()), "--topics", "orders")
	if code != admin.ExitFailed || !strings.Contains(stderr, "interrupted") || !strings.Contains(stderr, "the same command again goes on") ||
		strings.Contains(stderr, "attaches") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

// TestUnlockFailsWithTheTransactions: what is open is told also where there is no table.
func TestUnlockFailsWithTheTransactions(t *testing.T) {
	var out strings.Builder
	c := &cli{err: &out}
	open := []unlock.OpenTransaction{{ProducerID: 7, Abort: "kafka-transactions.sh abort"}}
	c.noteOpen([]*unlock.TopicPlan{{Topic: "orders", OpenTransactions: open}})
	if want := "orders, to abort the transaction of producer id 7: kafka-transactions.sh abort\n"; out.String() != want {
		t.Errorf("%q", out.String())
	}
}

func TestUnlockTellsThatNobodyAnswers(t *testing.T) {
	const nobody = "127.0.0.1:1" // a port that was free a moment ago may be another test's by now
	code, _, stderr := (&harness{t: t}).run("unlock", "--config", unlockConfig(t, nobody), "--topics", "orders")
	if code != admin.ExitUnreachable || !strings.Contains(stderr, "destination's brokers") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

func TestUnlockError(t *testing.T) {
	plan := &unlock.TopicPlan{Topic: "orders"}
	for _, tt := range []struct {
		name string
		r    unlock.Result
		exit int
	}{
		{"done", unlock.Result{TopicPlan: plan, Unlocked: true}, admin.ExitOK},
		{"a replica is missing", unlock.Result{TopicPlan: plan, Unlocked: true, Waiting: []string{"broker 3 is down"}}, admin.ExitIncomplete},
		{"failed", unlock.Result{TopicPlan: plan, Error: "no rights", Waiting: []string{"x"}}, admin.ExitFailed},
	} {
		got := admin.ExitOK
		if err := unlockError([]unlock.Result{tt.r}); err != nil {
			got = exitCode(operatorError(err))
		}
		if got != tt.exit {
			t.Errorf("%s: exit %d, want %d", tt.name, got, tt.exit)
		}
	}
}
