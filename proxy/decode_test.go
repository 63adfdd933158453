package proxy

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

func TestRecordBytes(t *testing.T) {
	t.Parallel()
	for version := int16(0); version <= 13; version++ {
		req := produceRequest(version, -1, "m", "plain")
		want := 0
		for i := range req.Topics {
			for j, n := range []int{0, 200, 70_000} {
				p := kmsg.NewProduceRequestTopicPartition()
				p.Partition, p.Records = int32(j), make([]byte, n)
				req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
				want += n
			}
			req.Topics[i].Partitions[0].Records = nil
		}
		body := req.AppendTo(nil)
		if got := recordBytes(version, body); got != want {
			t.Errorf("v%d: %d bytes, want %d", version, got, want)
		}
		for n := range body[:400] { // whatever it is cut to, it is read to its end at most
			if got := recordBytes(version, body[:n]); got > n {
				t.Errorf("v%d: %d bytes of %d", version, got, n)
			}
		}
	}
}

// TestGatewayHugeLists: a request of some MB that names 1.5 million topics must not be decoded.
func TestGatewayHugeLists(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	// Null transactional id, acks 1, timeout; topics without name and partitions.
	body := []byte{0, 0, 1, 0, 0, 0, 0}
	body = binary.AppendUvarint(body, 3<<19+1)
	body = append(body, bytes.Repeat([]byte{1, 1, 0}, 3<<19)...)
	head := protocol.AppendRequestHeader(nil, protocol.RequestHeader{Key: keyProduce, Version: 9, CorrelationID: 1})
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(head)+len(body)))
	frame = append(append(frame, head...), body...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := g.to(1)
	c.write(frame)
	c.nc.SetReadDeadline(time.Now().Add(30 * time.Second))
	if n, err := c.nc.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%d bytes, %v: want the connection closed", n, err)
	}
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 60 {
		t.Errorf("%d MiB were allocated", took)
	}
}

func FuzzRecordBytes(f *testing.F) {
	for _, version := range []int16{2, 8, 9, 13} {
		f.Add(version, produceRequest(version, -1, "m", "plain").AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if n := recordBytes(version, body); n < 0 || n > len(body) {
			t.Errorf("%d bytes of %d", n, len(body))
		}
	})
}
