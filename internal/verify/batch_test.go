package verify

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kbin"

	"kmirror/records"
)

// spec describes a batch for tests; zero values give a plain batch of one producer without id.
type spec struct {
	base        int64
	epoch       int32
	attributes  int16
	lastDelta   int32 // default: that of the last record
	maxTime     int64
	pid         int64 // default -1
	recs        []rec
	gzip        bool
	brokenCRC   bool
	brokenBytes bool // the payload is altered after the CRC was computed
}

type rec struct {
	delta      int32
	time       int64
	key, value []byte
	headers    []records.Header
}

func (s spec) build() records.Batch {
	var payload []byte
	for _, r := range s.recs {
		body := []byte{0}
		body = kbin.AppendVarlong(body, r.time)
		body = kbin.AppendVarint(body, r.delta)
		body = kbin.AppendVarintBytes(body, r.key)
		body = kbin.AppendVarintBytes(body, r.value)
		body = kbin.AppendVarint(body, int32(len(r.headers)))
		for _, h := range r.headers {
			body = kbin.AppendVarintString(body, h.Key)
			body = kbin.AppendVarintBytes(body, h.Value)
		}
		payload = kbin.AppendVarint(payload, int32(len(body)))
		payload = append(payload, body...)
	}
	if s.gzip {
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		w.Write(payload)
		w.Close()
		payload = z.Bytes()
		s.attributes |= int16(records.Gzip)
	}
	last := s.lastDelta
	if last == 0 && len(s.recs) > 0 {
		last = s.recs[len(s.recs)-1].delta
	}
	pid := s.pid
	if pid == 0 {
		pid = -1
	}
	be := binary.BigEndian
	b := be.AppendUint64(nil, uint64(s.base))
	b = be.AppendUint32(b, uint32(records.HeaderSize-12+len(payload)))
	b = be.AppendUint32(b, uint32(s.epoch))
	b = append(b, 2)
	b = be.AppendUint32(b, 0)
	b = be.AppendUint16(b, uint16(s.attributes))
	b = be.AppendUint32(b, uint32(last))
	b = be.AppendUint64(b, 0)
	b = be.AppendUint64(b, uint64(s.maxTime))
	b = be.AppendUint64(b, uint64(pid))
	b = be.AppendUint16(b, 0xffff)
	b = be.AppendUint32(b, 0xffffffff)
	b = be.AppendUint32(b, uint32(len(s.recs)))
	b = append(b, payload...)
	be.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli))
	if s.brokenCRC {
		b[17] ^= 1
	}
	if s.brokenBytes {
		b[len(b)-1] ^= 1
	}
	return b
}

func recordsAt(deltas ...int32) []rec {
	out := make([]rec, len(deltas))
	for i, d := range deltas {
		out[i] = rec{delta: d, key: []byte{'k', byte(d)}, value: []byte("value")}
	}
	return out
}

func sequence(specs ...spec) []records.Batch {
	out := make([]records.Batch, len(specs))
	for i, s := range specs {
		out[i] = s.build()
	}
	return out
}
