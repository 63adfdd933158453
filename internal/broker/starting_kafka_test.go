package broker

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// After a loss of power kmirror may be there before the controllers' quorum is: one that listens meanwhile, and knows nothing, is waited for.
func TestKafkaWithoutAQuorumIsWaitedFor(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{Brokers: 2, Combined: 2})
	c.AllowFaults("no finalized MetadataVersion")
	for _, n := range c.Nodes() {
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	one, other := c.Node(1), c.Node(2)
	if err := one.Spawn(); err != nil {
		t.Fatal(err)
	}
	cfg := kafkaConfig(t, c, 9001)
	cfg.Controllers = []string{one.Addr(testkafka.ControllerListener)}
	eventually(t, 90*time.Second, "a controller that listens", func() error {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", cfg.Controllers[0])
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	b := startKafka(t, cfg)
	eventually(t, 90*time.Second, "its reason", func() error {
		if err := b.Ready(); err == nil || !strings.Contains(err.Error(), "no finalized MetadataVersion") {
			return fmt.Errorf("not ready because of: %w", err)
		}
		return nil
	})
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := one.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	b.ready(90 * time.Second)
}
