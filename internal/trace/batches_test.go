package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/records"
)

// makeBatch makes a batch as producers do; values are its records.
func makeBatch(t testing.TB, codec records.Codec, values ...[]byte) []byte {
	t.Helper()
	var payload []byte
	for i, v := range values {
		body := []byte{0}
		body = kbin.AppendVarint(kbin.AppendVarlong(body, 0), int32(i))
		body = kbin.AppendVarintBytes(kbin.AppendVarintBytes(body, []byte("key")), v)
		body = kbin.AppendVarint(body, 1)
		body = kbin.AppendVarintBytes(kbin.AppendVarintString(body, "h"), []byte{0xff})
		payload = append(kbin.AppendVarint(payload, int32(len(body))), body...)
	}
	if codec == records.Gzip {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write(payload); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		payload = b.Bytes()
	}
	b := make([]byte, records.HeaderSize, records.HeaderSize+len(payload))
	b = append(b, payload...)
	binary.BigEndian.PutUint64(b, 100)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[12:], 7)
	b[16] = 2
	binary.BigEndian.PutUint16(b[21:], uint16(codec))
	binary.BigEndian.PutUint32(b[23:], uint32(max(0, len(values)-1)))
	binary.BigEndian.PutUint64(b[43:], 55)
	binary.BigEndian.PutUint16(b[51:], 2)
	binary.BigEndian.PutUint32(b[53:], 9)
	binary.BigEndian.PutUint32(b[57:], uint32(len(values)))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// fetched decodes a fetch response with one partition's records.
func fetched(t testing.TB, cfg DecoderConfig, topic string, recordBytes []byte) *Event {
	t.Helper()
	resp := kmsg.NewPtrFetchResponse()
	resp.Topics = []kmsg.FetchResponseTopic{{Topic: topic,
		Partitions: []kmsg.FetchResponseTopicPartition{{Partition: 3, RecordBatches: recordBytes}}}}
	frame := answer(1, resp, 11)[4:]
	return NewDecoder(cfg).Decode(&Message{Kind: Response, Frame: frame,
		Header: protocol.RequestHeader{Key: 1, Version: 11, CorrelationID: 1}})
}

func batchLines(e *Event) string {
	var b []byte
	for _, batch := range e.Batches {
		b = append(appendBatch(b, batch), '\n')
		b = appendPayload(b, "  ", batch)
	}
	return string(b)
}

func TestBatchesAreSummarised(t *testing.T) {
	plain := makeBatch(t, records.None, []byte("a"), nil)
	broken := bytes.Clone(plain)
	broken[len(broken)-1] ^= 1
	control := func(typ int16) []byte {
		return records.AppendControl(nil, records.Control{BaseOffset: 5, LeaderEpoch: 1, ProducerID: 55, ProducerEpoch: 2, Type: typ,
			Transactional: true, Value: records.EndTxnValue(1)})
	}
	old := make([]byte, 40)
	old[16] = 1
	zipped := makeBatch(t, records.Gzip, []byte("zipped"))
	log := bytes.Join([][]byte{plain, broken, zipped, control(0), control(1), control(7),
		control(99), plain[:70]}, nil)
	got := batchLines(fetched(t, DecoderConfig{}, "orders", log))
	want := fmt.Sprintf(`orders-3 100..101 n=2 90B epoch=7 pid=55/2 seq=9
orders-3 100..101 n=2 90B epoch=7 pid=55/2 seq=9 BAD-CRC
orders-3 100..100 n=1 %dB epoch=7 pid=55/2 seq=9 gzip
orders-3 5..5 n=1 78B epoch=1 pid=55/2 txn ABORT
orders-3 5..5 n=1 78B epoch=1 pid=55/2 txn COMMIT
orders-3 5..5 n=1 78B epoch=1 pid=55/2 txn MIRROR_PID_RESET
orders-3 5..5 n=1 78B epoch=1 pid=55/2 txn type 99
orders-3 70B: partial batch
`, len(zipped))
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	got = batchLines(fetched(t, DecoderConfig{}, "orders", old))
	if !strings.Contains(got, "40B: message format of before Kafka 0.11") {
		t.Error(got)
	}
}

func TestPayload(t *testing.T) {
	log := append(makeBatch(t, records.Gzip, []byte("zipped"), nil, []byte{0, 1}, bytes.Repeat([]byte("v"), 5000)),
		makeBatch(t, records.None, []byte("plain"))...)
	got := batchLines(fetched(t, DecoderConfig{Payload: true}, "orders", log))
	for _, want := range []string{
		`  orders-3@100 "key": "zipped" h=0xff` + "\n", `orders-3@101 "key": null`, `orders-3@102 "key": 0x0001`, `v"... (5000 bytes)`,
		`orders-3@100 "key": "plain"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
}

// TestBombs: what a batch opens to is bounded, for each and for all of a message.
func TestBombs(t *testing.T) {
	bomb := makeBatch(t, records.Gzip, make([]byte, 4<<20))
	if len(bomb) > 100<<10 {
		t.Fatalf("the bomb has %d bytes", len(bomb))
	}
	e := fetched(t, DecoderConfig{Payload: true}, "orders", append(bytes.Clone(bomb), bomb...))
	if len(e.Batches) != 2 || e.Batches[0].PayloadReason != "larger than the limit for payloads" ||
		e.Batches[1].PayloadReason != "limit for payloads reached" || e.Batches[0].Payload != nil {
		t.Errorf("%+v", e.Batches)
	}
	many := makeBatch(t, records.None, make([][]byte, 10_000)...)
	e = fetched(t, DecoderConfig{Payload: true, PayloadBytes: 10_000}, "orders", many)
	if n := len(e.Batches[0].Payload); n == 0 || n > 100 || e.Batches[0].PayloadReason != "limit for payloads reached" {
		t.Errorf("%d records, %s", n, e.Batches[0].PayloadReason)
	}
	e = fetched(t, DecoderConfig{}, "orders", bytes.Repeat(makeBatch(t, records.None, nil), 3*maxBatches))
	if len(e.Batches) != maxBatches || e.BatchCount != 3*maxBatches {
		t.Errorf("%d of %d batches", len(e.Batches), e.BatchCount)
	}
}

// TestMetadataLogIsHidden: its records hold SCRAM credentials and configs.
func TestMetadataLogIsHidden(t *testing.T) {
	for _, topic := range []string{"__cluster_metadata", metadataTopicID.String()} {
		e := fetched(t, DecoderConfig{Payload: true}, topic, makeBatch(t, records.None, []byte(secret)))
		if b := e.Batches[0]; b.Payload != nil || b.PayloadReason == "" || strings.Contains(batchLines(e), secret) {
			t.Errorf("%s: %+v", topic, b)
		}
	}
}

// TestTopicIDsGetNames once a message told both.
func TestTopicIDsGetNames(t *testing.T) {
	d := NewDecoder(DecoderConfig{})
	id := [16]byte{1, 2}
	name := "orders"
	meta := kmsg.NewPtrMetadataResponse()
	meta.Topics = []kmsg.MetadataResponseTopic{{Topic: &name, TopicID: id}}
	fetch := kmsg.NewPtrFetchRequest()
	fetch.Topics = []kmsg.FetchRequestTopic{{TopicID: id, Partitions: []kmsg.FetchRequestTopicPartition{{Partition: 4}}}}
	topics := func() string {
		e := &Event{Message: &Message{}, Body: fetch}
		d.collect(e)
		return string(appendTopics(nil, e.Topics))
	}
	if got := topics(); got != " topics="+protocol.UUID(id).String()+"[4]" {
		t.Error(got)
	}
	d.collect(&Event{Message: &Message{Kind: Response}, Body: meta})
	if got := topics(); got != " topics=orders[4]" {
		t.Error(got)
	}
}
