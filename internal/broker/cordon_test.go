package broker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// Whose standby stands still is not to wait for it, and is told that it is for want of that one.
func TestPeersThatDoNotAnswerAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Broker{cfg: Config{LiftPeers: func(ctx context.Context, _ []int32) error { <-ctx.Done(); return ctx.Err() }}}
		b.cordon = newCordon(b)
		b.image.Store(&kraft.Image{Features: map[string]int16{metadataVersion: cordonLevel}})
		b.guests.Store(&map[int32]struct{}{9003: {}})
		began := time.Now()
		if failed := b.Reassign(t.Context(), map[protocol.TopicPartition][]int32{{Topic: "orders"}: {9003, 1}}); !errors.Is(
			failed[protocol.TopicPartition{Topic: "orders"}], ErrPeer) {
			t.Errorf("%v", failed)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("after %s", took)
		}
	})
}
