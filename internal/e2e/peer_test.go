package e2e

import (
	"bufio"
	bin "encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// peer is a client that is no more than its connection: it sends requests in a row and wants their replies in that row. Nothing is sent
// that a test does not send: no login again, for one.
type peer struct {
	nc   net.Conn
	br   *bufio.Reader
	corr int32
	sent []kmsg.Request // whose replies have not been read; the first one has the correlation id corr-len(sent)
}

func newPeer(nc net.Conn) *peer {
	return &peer{nc: nc, br: bufio.NewReader(nc), corr: int32(time.Now().UnixNano() & 0x3fffffff)}
}

// dialPeer connects a peer without TLS, until the test ends.
func dialPeer(tb testing.TB, addr string) *peer {
	tb.Helper()
	nc, err := net.DialTimeout("tcp", addr, 30*time.Second)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { nc.Close() })
	return newPeer(nc)
}

// askAt sends one request to an address and returns the reply.
func askAt(tb testing.TB, addr string, req kmsg.Request) kmsg.Response {
	tb.Helper()
	p := dialPeer(tb, addr)
	defer p.nc.Close()
	resp, err := p.ask(req)
	if err != nil {
		tb.Fatal(err)
	}
	return resp
}

var peerFormat = kmsg.NewRequestFormatter(kmsg.FormatterClientID("peer"))

// send writes requests in one go. Produce without acknowledgement has no reply.
func (p *peer) send(reqs ...kmsg.Request) error {
	var b []byte
	for _, req := range reqs {
		if r, ok := req.(*kmsg.ProduceRequest); ok && r.Acks == 0 {
			b = append(b, peerFormat.AppendRequest(nil, req, -7)...)
			continue
		}
		b = append(b, peerFormat.AppendRequest(nil, req, p.corr)...)
		p.sent = append(p.sent, req)
		p.corr++
	}
	p.nc.SetWriteDeadline(time.Now().Add(patience(20 * time.Second)))
	_, err := p.nc.Write(b)
	return err
}

// next reads the reply whose turn it is.
func (p *peer) next() (kmsg.Response, error) {
	p.nc.SetReadDeadline(time.Now().Add(patience(20 * time.Second)))
	req := p.sent[0]
	name := fmt.Sprintf("%s v%d", kmsg.NameForKey(req.Key()), req.GetVersion())
	frame, err := protocol.ReadFrame(p.br, protocol.DefaultMaxFrame, nil)
	if err != nil {
		return nil, fmt.Errorf("reply to %s: %w", name, err)
	}
	corr, body, err := protocol.ParseResponseHeader(req.Key(), req.GetVersion(), frame)
	if err != nil {
		return nil, fmt.Errorf("reply to %s: %w", name, err)
	}
	if want := p.corr - int32(len(p.sent)); corr != want {
		return nil, fmt.Errorf("reply to %s: WRONG CORRELATION ID %d, want %d", name, corr, want)
	}
	p.sent = p.sent[1:]
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("reply to %s: %w", name, err)
	}
	return resp, nil
}

func (p *peer) ask(req kmsg.Request) (kmsg.Response, error) {
	if err := p.send(req); err != nil {
		return nil, err
	}
	return p.next()
}

// logIn authenticates by PLAIN and returns the error code of the last answer.
func (p *peer) logIn(tb testing.TB, user, password string) int16 {
	tb.Helper()
	hand := kmsg.NewPtrSASLHandshakeRequest()
	hand.Version, hand.Mechanism = 1, "PLAIN"
	resp, err := p.ask(hand)
	if err != nil {
		tb.Fatalf("handshake: %v", err)
	}
	if code := resp.(*kmsg.SASLHandshakeResponse).ErrorCode; code != 0 {
		return code
	}
	auth := kmsg.NewPtrSASLAuthenticateRequest()
	auth.Version, auth.SASLAuthBytes = 2, []byte("\x00"+user+"\x00"+password)
	if resp, err = p.ask(auth); err != nil {
		tb.Fatalf("login: %v", err)
	}
	return resp.(*kmsg.SASLAuthenticateResponse).ErrorCode
}

// follow fetches nothing as a replica.
func (p *peer) follow() error {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaState.ID, req.SessionEpoch = 15, 9999, -1
	resp, err := p.ask(req)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.(*kmsg.FetchResponse).ErrorCode)
}

// gone reports whether an error is that of a connection that the other side has ended.
func gone(err error) bool {
	var answered *kerr.Error
	return err != nil && !errors.As(err, &answered) && !errors.Is(err, os.ErrDeadlineExceeded)
}

// batchOf is a record batch as producers send it.
func batchOf(values ...[]byte) []byte {
	b := kmsg.NewRecordBatch()
	for i, v := range values {
		r := kmsg.NewRecord()
		r.OffsetDelta, r.Value = int32(i), v
		r.Length = int32(len(r.AppendTo(nil)) - 1) // the length itself, still 0, takes one byte
		b.Records = r.AppendTo(b.Records)
	}
	b.Magic, b.NumRecords, b.LastOffsetDelta = 2, int32(len(values)), int32(len(values)-1)
	b.PartitionLeaderEpoch, b.ProducerID, b.ProducerEpoch, b.FirstSequence = -1, -1, -1, -1
	b.FirstTimestamp = time.Now().UnixMilli()
	b.MaxTimestamp = b.FirstTimestamp
	b.Length = int32(len(b.AppendTo(nil)) - 12)
	out := b.AppendTo(nil)
	bin.BigEndian.PutUint32(out[17:], crc32.Checksum(out[21:], crc32.MakeTable(crc32.Castagnoli)))
	return out
}

func produceOf(topic string, partition int32, acks int16, values ...[]byte) *kmsg.ProduceRequest {
	req, rt, rp := kmsg.NewPtrProduceRequest(), kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
	req.Version, req.Acks, req.TimeoutMillis = 9, acks, 30_000
	rt.Topic, rp.Partition, rp.Records = topic, partition, batchOf(values...)
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

func fetchOf(version int16, topic string, partition int32, offset int64, most int32) *kmsg.FetchRequest {
	req, rt, rp := kmsg.NewPtrFetchRequest(), kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	req.Version, req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = version, 100, 1, most, -1
	rt.Topic, rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch = topic, partition, offset, most, -1
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

func metadataOf(topics ...string) *kmsg.MetadataRequest {
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics = 12, []kmsg.MetadataRequestTopic{}
	for _, name := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = &name
		req.Topics = append(req.Topics, rt)
	}
	return req
}
