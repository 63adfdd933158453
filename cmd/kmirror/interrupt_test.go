package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"kmirror/internal/admin"
)

// interruptedService is one whose operator presses Ctrl-C while it compares.
type interruptedService struct {
	*fakeService
	interrupt func()
}

func (s *interruptedService) Call(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, error) {
	s.interrupt()
	<-ctx.Done()
	return nil, ctx.Err()
}

// Who presses Ctrl-C is told that this is what ended the command, not that a process did not answer.
func TestAnInterruptedQuestionIsNobodysFault(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &interruptedService{&fakeService{parts: []admin.PartitionInfo{{Mirror: "m", Topic: "t", State: "MIRRORING"}}}, cancel}
	code, stdout, stderr := newHarness(t, s).runContext(ctx, "verify", "--mirror", "m")
	if code != admin.ExitFailed || stdout != "" || !strings.HasPrefix(stderr, "kmirror: interrupted\n") || strings.Contains(stderr, "attaches") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

// ends cancels once something that ends so is written.
type ends struct {
	bytes.Buffer
	so     string
	cancel func()
}

func (e *ends) Write(p []byte) (int, error) {
	if strings.HasSuffix(string(p), e.so) {
		e.cancel()
	}
	return e.Buffer.Write(p)
}

// Ctrl-C at a question is a no, without anything typed after it.
func TestInterruptedAtAQuestion(t *testing.T) {
	f := &lifeService{answer: accepted("t"), look: func(int) ([]admin.PartitionInfo, error) { return in("t-0 STOPPED"), nil }}
	h := newHarness(t, f)
	keyboard, typed := io.Pipe()
	t.Cleanup(func() { typed.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	q := &ends{so: "[y/N] ", cancel: cancel}
	c := &cli{out: io.Discard, err: q, in: keyboard, terminal: true, environ: func() []string { return nil },
		env: func(name string) (string, bool) { return h.address, name == "KMIRROR_BOOTSTRAP_SERVER" }}
	code := c.run(ctx, []string{"failover", "--mirror", "m", "--all"})
	if code != admin.ExitRefused || strings.Join(f.asked, " ") != "stop*" || !strings.Contains(q.String(), "not confirmed, nothing was changed") {
		t.Errorf("exit %d, asked %v\n%s", code, f.asked, q.String())
	}
}

// keyboard is a terminal at which nobody types but Ctrl-C.
type keyboard struct {
	interrupt func()
	gone      chan struct{}
}

func (k keyboard) Read([]byte) (int, error) {
	k.interrupt()
	<-k.gone
	return 0, io.EOF
}

// A capture that is to come from a terminal or a pipe, and does not, is not waited for after Ctrl-C: the summary ends it.
func TestInterruptedCapture(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	k := keyboard{cancel, make(chan struct{})}
	t.Cleanup(func() { close(k.gone) })
	var out bytes.Buffer
	c := &cli{out: &out, err: io.Discard, in: k, environ: func() []string { return nil }, env: func(string) (string, bool) { return "", false }}
	if code := c.run(ctx, []string{"trace", "--pcap", "-"}); code != 0 || !strings.Contains(out.String(), "requests") {
		t.Errorf("exit %d\n%s", code, out.String())
	}
}
