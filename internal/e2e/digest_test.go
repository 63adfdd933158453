package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"kmirror/internal/testkafka"
	"kmirror/records"
)

// logDigest hashes the batches of a partition on a node, from the one that holds offset from on, whatever segments they lie
// in: brokers roll segments at their own moments. It returns the digest and the next offset after the last batch.
func logDigest(n *testkafka.Node, topic string, partition int32, from int64) (string, int64, error) {
	h := sha256.New()
	next := from
	for _, f := range testkafka.SegmentFiles(n, topic, partition) {
		rest, err := os.ReadFile(f)
		if err != nil {
			return "", 0, err
		}
		for len(rest) > 0 {
			var b records.Batch
			b, rest, err = records.Split(rest)
			if errors.Is(err, records.ErrPartial) {
				break
			}
			if err != nil {
				return "", 0, fmt.Errorf("%s: %w", f, err)
			}
			if b.NextOffset() <= from {
				continue
			}
			h.Write(b)
			next = b.NextOffset()
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:12]), next, nil
}

// sameLogs wants a topic's batches from its log start on to be the same bytes on the source's leader and on at least replicas
// brokers of the destination.
func sameLogs(tb testing.TB, src, dst *testkafka.Cluster, topic string, partition int32, from int64, replicas int) {
	tb.Helper()
	eventually(tb, 30*time.Second, fmt.Sprintf("equal logs of %s-%d", topic, partition), func() error {
		var want string
		var wantEnd int64
		for _, n := range src.Nodes() {
			if n.Broker && len(testkafka.SegmentFiles(n, topic, partition)) > 0 {
				var err error
				if want, wantEnd, err = logDigest(n, topic, partition, from); err != nil {
					return err
				}
			}
		}
		found := 0
		for _, n := range dst.Nodes() {
			if !n.Broker || len(testkafka.SegmentFiles(n, topic, partition)) == 0 {
				continue
			}
			got, end, err := logDigest(n, topic, partition, from)
			if err != nil {
				return err
			}
			if got != want {
				return fmt.Errorf("broker %d: %s up to %d, source %s up to %d", n.ID, got, end, want, wantEnd)
			}
			found++
		}
		if found < replicas {
			return fmt.Errorf("on %d brokers, want %d", found, replicas)
		}
		return nil
	})
}
