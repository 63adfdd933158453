package trace

import (
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// TestHugeTokenIsNotDecoded: a client without a login may send what it likes; while traffic waits, no more of it is decoded than a token needs.
func TestHugeTokenIsNotDecoded(t *testing.T) {
	req := kmsg.NewPtrSASLAuthenticateRequest()
	req.Version = 2
	frame := protocol.AppendRequestHeader(make([]byte, 4), protocol.RequestHeader{Key: req.Key(), Version: 2, CorrelationID: 1})
	frame = append(frame, req.AppendTo(nil)...)
	decodesLittle(t, nil, frame, 2<<20)
	bare := append(binary.BigEndian.AppendUint32(nil, 8<<20), make([]byte, 8<<20)...)
	decodesLittle(t, ask(1, handshake("PLAIN"), 0), bare, 0)
}

// decodesLittle feeds a frame, with so many tagged fields at its end, that follows another one.
func decodesLittle(t *testing.T, first, frame []byte, tags int) {
	t.Helper()
	if tags > 0 {
		frame = binary.AppendUvarint(frame[:len(frame)-1], uint64(tags))
		for i := range tags {
			frame = append(binary.AppendUvarint(frame, uint64(1<<21+i)), 0)
		}
		binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	}
	s := NewStream(Conn{ID: 1}, time.Now(), 0, nil, func(*Message) {})
	s.Feed(ToServer, time.Now(), first)
	s.Feed(ToServer, time.Now(), frame[:len(frame)-1])
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s.Feed(ToServer, time.Now(), frame[len(frame)-1:])
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 20 {
		t.Errorf("%d MiB were allocated", took)
	}
}
