package e2e

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"kmirror/records"
)

// mirrorsWell wants a topic to be mirrored, whole and equal.
func (b *faultBed) mirrorsWell(t *testing.T, topic string) {
	t.Helper()
	b.s.healed(b.src, time.Minute, topic, 3)
	for p := range int32(faultParts) {
		agree(t, topic, p, 2, b.src, b.dst)
	}
	cfg := topicConfigs(t, b.dst, topic)
	if cfg["max.message.bytes"] != "0" || cfg["min.insync.replicas"] != "4" {
		t.Errorf("not locked: %v", cfg)
	}
}

// stoppedWell wants a topic to be STOPPED and writable: on all brokers the source's log, after it one marker for each producer id and
// one reset, and nothing else.
func (b *faultBed) stoppedWell(t *testing.T, topic string) {
	t.Helper()
	parts := b.s.get(30*time.Second, "STOPPED", topic)
	leads(t, b.dst, topic, 3, time.Minute)
	if cfg := topicConfigs(t, b.dst, topic); cfg["max.message.bytes"] != "" || cfg["min.insync.replicas"] != "" {
		t.Errorf("still locked: %v", cfg)
	}
	ends := endOffsets(t, b.src, topic)
	for p := range int32(faultParts) {
		agree(t, topic, p, 3, b.dst)
		log := batchesOf(t, b.dst.Node(1), topic, p)
		end, aborted := tailOf(t, log)
		if end != ends[tp{topic, p}] {
			t.Errorf("partition %d is mirrored up to %d, the source ends at %d", p, end, ends[tp{topic, p}])
		}
		if got, want := prefix(log, end), prefix(batchesOf(t, b.src.Node(1), topic, p), end); got != want {
			t.Errorf("partition %d differs from the source below %d: %s, want %s", p, end, got, want)
		}
		if ids := mirroredIDs(log, end); !slices.Equal(aborted, ids) {
			t.Errorf("partition %d has markers for the producer ids %v, want %v", p, aborted, ids)
		}
		added := slices.DeleteFunc(log, func(b records.Batch) bool { return b.BaseOffset() < end })
		if len(added) != len(aborted)+1 {
			t.Errorf("partition %d has %d batches beyond %d, want %d markers and a reset", p, len(added), end, len(aborted))
		}
		stableEnds(t, b.dst, topic, p, added[len(added)-1].NextOffset())
		if lme := parts[p].LastMirroredEpoch; lme == nil || *lme != lastEpoch(batchesOf(t, b.src.Node(1), topic, p), end) {
			t.Errorf("partition %d: last mirrored epoch %v", p, deref(lme))
		}
	}
	before := digests(t, b.dst, topic)
	b.s.verb("failover", topic)
	for id, now := range digests(t, b.dst, topic) {
		if now != before[id] {
			t.Errorf("another failover changed the log of broker %d: %s, before %s", id, now, before[id])
		}
	}
	writable(t, b.dst, topic, "after the failover")
}

// prefix is a digest of a log below an offset.
func prefix(log []records.Batch, end int64) string {
	h, n := sha256.New(), 0
	for _, b := range log {
		if b.BaseOffset() < end {
			h.Write(b)
			n++
		}
	}
	return fmt.Sprintf("%d batches %x", n, h.Sum(nil)[:8])
}

// lastEpoch is that of the last batch below an offset.
func lastEpoch(log []records.Batch, end int64) (epoch int32) {
	for _, b := range log {
		if b.BaseOffset() < end {
			epoch = b.PartitionLeaderEpoch()
		}
	}
	return epoch
}

// verified wants verify to find all equal that is still mirrored.
func (b *faultBed) verified(t *testing.T) {
	var topics []string
	for _, c := range b.done {
		if c.life != stopping {
			topics = append(topics, c.topic())
			b.mirrorsWell(t, c.topic())
		}
	}
	if out := b.s.must("verify", "--mirror", "m", "--topics", strings.Join(topics, ",")); !strings.Contains(out, " 0 of ") {
		t.Errorf("verify: %s", out)
	}
}

// failback mirrors what was failed over to where it came from: what was written there since goes, what was written here comes, and
// nothing else is copied.
func (b *faultBed) failback(t *testing.T) {
	back := newShim(t, b.src, "")
	back.create(b.dst)
	var topics []string
	for _, c := range b.done {
		if c.life == stopping {
			topics = append(topics, c.topic())
			writable(t, b.src, c.topic(), numbered(3, "here alone")...)
		}
	}
	back.mirror(topics...)
	for _, topic := range topics {
		back.healed(b.dst, time.Minute, topic, 2)
		want := int64(0)
		for p := range int32(faultParts) {
			agree(t, topic, p, 2, b.src, b.dst)
			log := batchesOf(t, b.dst.Node(1), topic, p)
			end, _ := tailOf(t, log)
			want += bytesFrom(log, end)
		}
		if got := back.fetched(topic); got != want {
			t.Errorf("%d bytes of %s were copied back, its log grew by %d since the failover", got, topic, want)
		}
	}
}
