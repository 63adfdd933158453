package trace

import (
	"errors"
	"fmt"

	"kmirror/records"
)

// Batch is what a record batch's header says, and the records if they were asked for.
type Batch struct {
	Topic     string
	Partition int32
	// Bytes is the length of the batch, or of what is no batch.
	Bytes int
	// Reason tells why there is nothing but Bytes: an old format, or a batch that is cut off, as the last one of a Fetch may be.
	Reason string

	BaseOffset, LastOffset      int64
	Records, LeaderEpoch        int32
	ProducerID                  int64
	ProducerEpoch               int16
	BaseSequence                int32
	BaseTimestamp, MaxTimestamp int64
	Codec                       string
	Transactional, BadCRC       bool
	// Control is the type of a control batch.
	Control string
	// Payload are the records, up to the limit; PayloadReason tells why there are fewer than Records.
	Payload       []Record
	PayloadReason string
}

// Record is a record as it is shown.
type Record struct {
	Offset, Timestamp int64
	// Key and Value are cut to maxShown bytes; nil is null.
	Key, Value []byte
	// KeySize and ValueSize are the true sizes in bytes.
	KeySize, ValueSize int
	Headers            []records.Header
}

const (
	// maxBatches bounds the batches of one message that are kept.
	maxBatches = 1000
	// maxShown bounds what is shown of one key, value or header.
	maxShown = 4 << 10
)

// batches adds what stands in a records field. left is what payloads may still open to.
func (d *Decoder) batches(e *Event, topic string, partition int32, b []byte, left *int) {
	for len(b) > 0 {
		e.BatchCount++
		batch, rest, err := records.Split(b)
		if err != nil {
			rest = nil
		}
		if len(e.Batches) >= maxBatches {
			b = rest
			continue
		}
		info := Batch{Topic: topic, Partition: partition, Bytes: len(b)}
		if err != nil {
			var corrupt *records.CorruptError
			if info.Reason = "partial batch"; errors.As(err, &corrupt) {
				info.Reason = corrupt.Reason
			}
		} else {
			info.describe(batch)
			if d.cfg.Payload && !batch.IsControl() {
				d.open(&info, batch, left)
			}
		}
		e.Batches = append(e.Batches, info)
		b = rest
	}
}

func (i *Batch) describe(b records.Batch) {
	i.Bytes = b.Length()
	i.BaseOffset, i.LastOffset, i.Records = b.BaseOffset(), b.LastOffset(), b.NumRecords()
	i.LeaderEpoch = b.PartitionLeaderEpoch()
	i.ProducerID, i.ProducerEpoch, i.BaseSequence = b.ProducerID(), b.ProducerEpoch(), b.BaseSequence()
	i.BaseTimestamp, i.MaxTimestamp = b.BaseTimestamp(), b.MaxTimestamp()
	i.Codec, i.Transactional = b.Codec().String(), b.IsTransactional()
	i.BadCRC = b.CheckCRC() != nil
	if !b.IsControl() {
		return
	}
	t, err := records.ControlType(b)
	if err != nil {
		i.Control = "unknown"
		return
	}
	i.Control = controlName(t)
}

func controlName(t int16) string {
	names := map[int16]string{
		records.ControlAbort: "ABORT", records.ControlCommit: "COMMIT", records.ControlLeaderChange: "LEADER_CHANGE",
		records.ControlSnapshotHeader: "SNAPSHOT_HEADER", records.ControlSnapshotFooter: "SNAPSHOT_FOOTER",
		records.ControlKRaftVersion: "KRAFT_VERSION", records.ControlKRaftVoters: "KRAFT_VOTERS",
		records.ControlMirrorPidReset: "MIRROR_PID_RESET",
	}
	if n, ok := names[t]; ok {
		return n
	}
	return fmt.Sprintf("type %d", t)
}

// open reads the records of a batch. Those of the cluster's metadata log hold credentials.
func (d *Decoder) open(i *Batch, b records.Batch, left *int) {
	if i.Topic == metadataTopic || i.Topic == metadataTopicID.String() {
		i.PayloadReason = "hidden: the metadata log holds credentials"
		return
	}
	if *left <= 0 {
		i.PayloadReason = "limit for payloads reached"
		return
	}
	for r, err := range records.Records(b, *left) {
		if err != nil {
			i.PayloadReason = err.Error()
			if errors.Is(err, records.ErrTooLarge) {
				i.PayloadReason = "larger than the limit for payloads"
				*left = 0 // it took that much memory to see
			}
			return
		}
		// What a record costs here beyond its bytes counts too: a batch can hold a million empty ones.
		const overhead = 128
		if *left -= len(r.Key) + len(r.Value) + overhead; *left < 0 {
			i.PayloadReason = "limit for payloads reached"
			return
		}
		shown := Record{Offset: r.Offset, Timestamp: r.Timestamp, Key: cut(r.Key), Value: cut(r.Value),
			KeySize: len(r.Key), ValueSize: len(r.Value)}
		for _, h := range r.Headers {
			if *left -= len(h.Key) + len(h.Value) + overhead; *left < 0 {
				i.PayloadReason = "limit for payloads reached"
				break
			}
			shown.Headers = append(shown.Headers, records.Header{Key: string(cut([]byte(h.Key))), Value: cut(h.Value)})
		}
		i.Payload = append(i.Payload, shown)
	}
}

func cut(b []byte) []byte { return b[:min(len(b), maxShown)] }
