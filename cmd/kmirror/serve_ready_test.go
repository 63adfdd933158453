package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"kmirror/internal/admin"
	"kmirror/internal/lockbuf"
)

func TestTheLogSaysWhyAProcessIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lockbuf.Buffer
		var why atomic.Pointer[string]
		is := func(text string) { why.Store(&text) }
		is("no controller answers")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			tellReady(ctx, func() error {
				if text := *why.Load(); text != "" {
					return errors.New(text)
				}
				return nil
			}, slog.New(slog.NewTextHandler(&out, nil)))
		}()
		lines := func(d time.Duration) []string {
			before := len(out.String())
			time.Sleep(d)
			synctest.Wait()
			return strings.Split(strings.TrimSpace(out.String()[before:]), "\n")
		}
		if got := lines(9 * time.Second); got[0] != "" {
			t.Errorf("a start may take ten seconds: %q", got)
		}
		if got := lines(62 * time.Second); len(got) != 3 || !strings.Contains(got[2], `msg="not ready yet"`) ||
			!strings.Contains(got[2], `why="no controller answers"`) || !strings.Contains(got[2], "for=1m10s") {
			t.Errorf("not ready: %q", got)
		}
		is("")
		if got := lines(60 * time.Second); len(got) != 1 || !strings.Contains(got[0], "msg=ready") {
			t.Errorf("ready: %q", got)
		}
		is("fenced")
		if got := lines(2 * time.Second); len(got) != 1 || !strings.Contains(got[0], `msg="not ready any more" why=fenced`) {
			t.Errorf("not any more: %q", got)
		}
		cancel()
		<-done
	})
}

func TestServeErrorsSayWhatToDo(t *testing.T) {
	err := serveError(named("membership", fmt.Errorf("DescribeCluster: %w", kerr.MismatchedEndpointType)))
	e := operatorError(err)
	if e.Exit != admin.ExitUsage || !strings.Contains(e.Message, "destination.controllers") || !strings.Contains(e.Hint, "controller.quorum") {
		t.Errorf("%+v", e)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := ended(ctx, "part", errors.New("broken")); err.Error() != "part: broken" {
		t.Errorf("a part that says why: %v", err)
	}
	if err := ended(ctx, "part", nil); err == nil || err.Error() != "part: ended by itself" {
		t.Errorf("a part that does not say why: %v", err)
	}
	cancel()
	if err := ended(ctx, "part", nil); err != nil {
		t.Errorf("in order: %v", err)
	}
}

func TestAnAddressThatCannotBeOpenedIsNamedByItsKey(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = listen("http", l.Addr().String())
	if e := operatorError(err); e.Exit != admin.ExitUsage || !strings.HasPrefix(e.Message, "http: ") || !strings.Contains(e.Hint, "free the address") {
		t.Errorf("taken: %+v", e)
	}
	_, err = listen("admin", "192.0.2.1:0") // of no machine (RFC 5737)
	if e := operatorError(err); e.Exit != admin.ExitUsage || !strings.HasPrefix(e.Message, "admin: ") || strings.Contains(e.Hint, "free the address") {
		t.Errorf("not ours: %+v", e)
	}
}

// Two signals of one cause, as timeout(1) sends them, are one: were the second one heard by its own, it would end the process. That is another
// one than the test's, since it does end where the machine has no time for it before those signals are two: then it is tried again.
func TestASignalThatComesTwiceAtOnceIsOne(t *testing.T) {
	if os.Getenv("TEST_KMIRROR_SIGNALS") != "" {
		sendSignals(t)
		return
	}
	for range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "TEST_KMIRROR_SIGNALS=1")
		out, err := cmd.CombinedOutput()
		ended := time.Now()
		if err == nil {
			return
		}
		_, first, told := strings.Cut(string(out), "first at ")
		nanos, _ := strconv.ParseInt(strings.SplitN(first, "\n", 2)[0], 10, 64)
		if !told || ended.Sub(time.Unix(0, nanos)) < secondSignal {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	t.Skip("the machine has no time to send signals at once")
}

// sendSignals has this process get three of them.
func sendSignals(t *testing.T) {
	ctx := untilSignal(t.Context())
	fmt.Println("first at", time.Now().UnixNano())
	for range 3 {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
			t.Fatal("the signal is not heard")
		}
		<-time.After(secondSignal / 5) // what is done at a signal has been done
	}
}

func TestAFlagThatIsMissingPointsToTheCommandsHelp(t *testing.T) {
	h := newHarness(t, &fakeService{})
	code, _, stderr := h.run("preflight")
	if code != admin.ExitUsage || !strings.Contains(stderr, "see kmirror preflight --help") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
