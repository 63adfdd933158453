package broker

import (
	"fmt"
	"strings"
	"testing"
	"time"
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
