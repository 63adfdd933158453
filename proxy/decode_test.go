package proxy

import (
	"bytes"
	"crypto/tls"
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

// TestGatewayHugeLists: a request of some MB that names 1.5 million topics must not be decoded. It counts what the process allocates, so
// nothing runs beside it.
func TestGatewayHugeLists(t *testing.T) {
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

// TestNothingHugeIsDecoded: also what is not decoded as other requests are is bounded, before anybody has proved who he is.
func TestNothingHugeIsDecoded(t *testing.T) {
	const large = 12 << 20
	// Tagged fields that nobody knows, each with a number of its own.
	tags := func(dst []byte) []byte {
		n := large / 5
		dst = binary.AppendUvarint(dst, uint64(n))
		for i := range n {
			dst = append(binary.AppendUvarint(dst, uint64(1<<21+i)), 0)
		}
		return dst
	}
	mirrorFetch := fetchRequest(protocol.MirrorFetchVersion, "m", 20).AppendTo(nil)
	versions := kmsg.NewPtrApiVersionsRequest()
	versions.Version = 3
	apiVersions := versions.AppendTo(nil)
	topics := kmsg.NewPtrDeleteRecordsRequest()
	topics.Version = 2
	deleteRecords := binary.AppendUvarint(nil, large/3+1)
	deleteRecords = append(deleteRecords, bytes.Repeat([]byte{1, 1, 0}, large/3)...)
	deleteRecords = append(deleteRecords, 0, 0, 0, 0, 0)
	ca := authorityOf(t)
	peers := mutual(t, ca.cert, tls.RequireAndVerifyClientCert, false)
	for _, c := range []struct {
		name         string
		key, version int16
		body         []byte
		stranger     bool
	}{
		{"Fetch of KIP-1279", keyFetch, protocol.MirrorFetchVersion, tags(mirrorFetch[:len(mirrorFetch)-1]), false},
		{"ApiVersions", keyApiVersions, 3, tags(apiVersions[:len(apiVersions)-1]), false},
		{"a stranger", topics.Key(), 2, deleteRecords, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var change []func(*world, *Config)
			if c.stranger {
				change = append(change, peers)
			}
			w := newWorld(t, change...)
			p := w.dial
			if c.stranger {
				cert := ca.issue(t, "stranger")
				p = func() *client { return w.dialTLS(cert) }
			}
			from := p()
			head := protocol.AppendRequestHeader(nil, protocol.RequestHeader{Key: c.key, Version: c.version, CorrelationID: 1})
			frame := sizedFrame(append(head, c.body...))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			from.nc.SetDeadline(time.Now().Add(30 * time.Second))
			if _, err := from.nc.Write(frame); err != nil {
				t.Fatal(err)
			}
			if n, err := from.nc.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("%d bytes, %v: want the connection closed", n, err)
			}
			runtime.ReadMemStats(&after)
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 100 {
				t.Errorf("%d MiB were allocated", took)
			}
		})
	}
}
