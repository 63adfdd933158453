package broker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestWhoIsNotReadyNamesTheControllerThatDoesNotAnswer(t *testing.T) {
	q := newFakeQuorum(t, 1)
	cfg := fakeConfig(q, 9001)
	cfg.Controllers = []string{"127.0.0.1:1"}
	b, _ := startFake(t, cfg)
	eventually(t, 30*time.Second, "a reason", func() error {
		if err := b.Ready(); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
			return fmt.Errorf("not ready because of: %w", err)
		}
		return nil
	})
}

// A controller that listens and has not read its log yet refuses in its way; kmirror, which may start before it, waits for it.
func TestControllersThatAreStillStartingAreWaitedFor(t *testing.T) {
	for _, code := range []int16{kerr.UnsupportedVersion.Code, kerr.UnknownServerError.Code} {
		q := newFakeQuorum(t, 1)
		starting := true
		q.hook = func(_ int, req kmsg.Request) kmsg.Response {
			r, ok := req.(*kmsg.DescribeClusterRequest)
			q.mu.Lock()
			defer q.mu.Unlock()
			if !ok || !starting {
				return nil
			}
			resp := r.ResponseKind().(*kmsg.DescribeClusterResponse)
			resp.ErrorCode, resp.ErrorMessage = code, kmsg.StringPtr("there is no finalized MetadataVersion")
			return resp
		}
		b, _ := startFake(t, fakeConfig(q, 9001))
		eventually(t, 30*time.Second, "a reason", func() error {
			if err := b.Ready(); err == nil || !strings.Contains(err.Error(), "no finalized MetadataVersion") {
				return fmt.Errorf("not ready because of: %w", err)
			}
			return nil
		})
		q.do(func() { starting = false })
		eventually(t, 30*time.Second, "ready", b.Ready)
	}
}
