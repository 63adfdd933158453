package main

import (
	"context"
	"strings"
	"sync"
	"testing"

	"kmirror/internal/admin"
	"kmirror/internal/peers"
)

// slowService answers nothing before it may.
type slowService struct {
	*fakeService
	may chan struct{}
}

func (s *slowService) StartTopics(ctx context.Context, req admin.StartRequest) ([]admin.TopicResult, error) {
	select {
	case <-s.may:
		return s.fakeService.StartTopics(ctx, req)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A command that waits for a process which is not ready says so, once a reason, and goes on by itself.
func TestCommandSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	running := []admin.PartitionInfo{{Mirror: "m", Topic: "t", State: "MIRRORING"}}
	for _, tt := range []struct {
		name  string
		pongs []peers.Pong
		notes []string
	}{
		{"joins again", []peers.Pong{{Why: "node id 9001 is registering"}, {Why: "node id 9001 is registering"}, {Why: "states are loaded"}, {Ready: true}},
			[]string{"which is not ready: node id 9001 is registering", "which is not ready: states are loaded"}},
		{"is ready and takes its time", []peers.Pong{{Ready: true}, {Ready: true}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := &slowService{fakeService: &fakeService{results: []admin.TopicResult{{Topic: "t"}}, parts: running}, may: make(chan struct{})}
			var mu sync.Mutex
			var answer sync.Once
			h := newHarness(t, s, func(c *admin.Config) {
				c.Pong = func() peers.Pong {
					mu.Lock()
					defer mu.Unlock()
					pong := tt.pongs[0]
					if tt.pongs = tt.pongs[1:]; len(tt.pongs) == 0 {
						tt.pongs = []peers.Pong{pong}
						answer.Do(func() { close(s.may) })
					}
					return pong
				}
			})
			code, out, errs := h.run("start", "--mirror", "m", "--topics", "t", "--bootstrap-server", h.address)
			if code != 0 || !strings.Contains(out, "started") {
				t.Errorf("exit %d, %s%s", code, out, errs)
			}
			for _, note := range tt.notes {
				if strings.Count(errs, "waiting for the kmirror at "+h.address+", "+note) != 1 {
					t.Errorf("no line %q, or several:\n%s", note, errs)
				}
			}
			if n := strings.Count(errs, "waiting for"); n != len(tt.notes) || min(n, 1) != strings.Count(errs, "  what to do: ") {
				t.Errorf("%d lines: %s", n, errs)
			}
		})
	}
}

// Topics that are misspelt look like topics that are not mirrored: describe says that nothing matches.
func TestDescribeSaysThatNothingMatches(t *testing.T) {
	h := newHarness(t, &fakeService{parts: partitions()})
	if code, _, stderr := h.run("describe", "--topics", "none"); code != 0 || !strings.Contains(stderr, "no mirrored topic matches --topics") {
		t.Errorf("exit %d %s", code, stderr)
	}
	if _, _, stderr := h.run("describe", "--topics", "t"); strings.Contains(stderr, "matches") {
		t.Error(stderr)
	}
}

// A watch clears the screen first, and then tells so.
func TestAWatchThatNothingMatches(t *testing.T) {
	h := newHarness(t, &fakeService{})
	ctx, cancel := context.WithCancel(t.Context())
	out := &ends{so: "matches --topics\n", cancel: cancel}
	c := &cli{out: out, err: out, screen: true, environ: func() []string { return nil },
		env: func(name string) (string, bool) { return h.address, name == "KMIRROR_BOOTSTRAP_SERVER" }}
	code := c.run(ctx, []string{"describe", "--watch", "--topics", "none"})
	if code != 0 || !strings.Contains(out.String(), "\x1b[2Jno mirrored topic") {
		t.Errorf("exit %d %q", code, out.String())
	}
}
