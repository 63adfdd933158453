package e2e

import (
	"bufio"
	"bytes"
	bin "encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// Error codes that workers meet.
const (
	codeNotLeader               = 6
	codeCoordinatorNotAvailable = 15
)

// busyPartitions are the partitions of the topic "busy".
const busyPartitions = 8

// peer is a client that is no more than its connection: it sends requests in a row and wants their replies in that row.
type peer struct {
	nc   net.Conn
	br   *bufio.Reader
	corr int32
	sent []kmsg.Request // whose replies have not been read; the first one has the correlation id corr-len(sent)
}

func newPeer(addr string) (*peer, error) {
	nc, err := net.DialTimeout("tcp", addr, 20*time.Second)
	if err != nil {
		return nil, err
	}
	return &peer{nc: nc, br: bufio.NewReader(nc), corr: int32(time.Now().UnixNano() & 0x3fffffff)}, nil
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
	p.nc.SetWriteDeadline(time.Now().Add(20 * time.Second))
	_, err := p.nc.Write(b)
	return err
}

// next reads the reply whose turn it is.
func (p *peer) next() (kmsg.Response, error) {
	p.nc.SetReadDeadline(time.Now().Add(20 * time.Second))
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

// worker is a peer that produces to a partition and reads back what it wrote, and checks each reply.
type worker struct {
	*peer
	name      string
	partition int32
	n         int
	// own: the connection is to kmirror's own node, which leads nothing of this topic.
	own    bool
	value  []byte
	offset int64
	// gateway reports whether an address is one that clients may be told.
	told func(addr string) bool
}

// round sends a row of requests and checks the replies.
func (w *worker) round() error {
	w.n++
	next := fmt.Appendf(nil, "%s/%d/%s", w.name, w.n, bytes.Repeat([]byte{'a' + byte(w.n%26)}, 1+w.n*37%2000))
	list, find := kmsg.NewPtrListOffsetsRequest(), kmsg.NewPtrFindCoordinatorRequest()
	lt, lp := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
	lp.Partition, lp.Timestamp, lt.Topic = w.partition, -1, "busy"
	lt.Partitions = append(lt.Partitions, lp)
	list.Version, list.Topics = 7, append(list.Topics, lt)
	find.Version, find.CoordinatorKeys = 4, []string{w.name}
	reqs := []kmsg.Request{produceOf("busy", w.partition, -1, next), metadataOf("busy"), list, find,
		produceOf("busy", w.partition, 0, []byte("nothing"))}
	fetches := []kmsg.Request{}
	if w.value != nil {
		for _, version := range []int16{4, 11, 12} {
			fetches = append(fetches, fetchOf(version, "busy", w.partition, w.offset, 1<<10))
		}
	}
	if err := w.send(append(fetches, reqs...)...); err != nil {
		return err
	}
	for range fetches {
		if err := w.checked(w.checkFetch); err != nil {
			return err
		}
	}
	for _, check := range []func(kmsg.Response) error{w.checkProduce, w.checkMetadata, w.checkList, w.checkFind} {
		if err := w.checked(check); err != nil {
			return err
		}
	}
	w.value = next
	return nil
}

func (w *worker) checked(check func(kmsg.Response) error) error {
	resp, err := w.next()
	if err == nil {
		err = check(resp)
	}
	if err != nil {
		return fmt.Errorf("%s, round %d: %w", w.name, w.n, err)
	}
	return nil
}

func (w *worker) checkFetch(resp kmsg.Response) error {
	r := resp.(*kmsg.FetchResponse)
	if r.ErrorCode != 0 || len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		return fmt.Errorf("fetch: error %d, %d topics", r.ErrorCode, len(r.Topics))
	}
	p := &r.Topics[0].Partitions[0]
	switch {
	case w.own && p.ErrorCode == codeNotLeader:
		return nil
	case w.own || p.ErrorCode != 0:
		return fmt.Errorf("fetch at %d: error %d", w.offset, p.ErrorCode)
	case !bytes.Contains(p.RecordBatches, w.value):
		return fmt.Errorf("fetch at %d: %d bytes without what was written there", w.offset, len(p.RecordBatches))
	}
	return nil
}

func (w *worker) checkProduce(resp kmsg.Response) error {
	r := resp.(*kmsg.ProduceResponse)
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		return fmt.Errorf("produce: %d topics", len(r.Topics))
	}
	p := r.Topics[0].Partitions[0]
	if p.ErrorCode != 0 || p.BaseOffset < w.offset {
		return fmt.Errorf("produce: error %d, offset %d after %d", p.ErrorCode, p.BaseOffset, w.offset)
	}
	w.offset = p.BaseOffset
	return nil
}

func (w *worker) checkMetadata(resp kmsg.Response) error {
	r := resp.(*kmsg.MetadataResponse)
	if len(r.Topics) != 1 || r.Topics[0].ErrorCode != 0 || *r.Topics[0].Topic != "busy" || len(r.Topics[0].Partitions) != busyPartitions {
		return fmt.Errorf("metadata: %+v", r.Topics)
	}
	for _, b := range r.Brokers {
		if addr := net.JoinHostPort(b.Host, fmt.Sprint(b.Port)); !w.told(addr) {
			return fmt.Errorf("metadata: broker %d is at %s", b.NodeID, addr)
		}
	}
	return nil
}

func (w *worker) checkList(resp kmsg.Response) error {
	p := resp.(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
	if w.own && p.ErrorCode == codeNotLeader || !w.own && p.ErrorCode == 0 && p.Offset > 0 {
		return nil
	}
	return fmt.Errorf("list offsets: error %d, offset %d", p.ErrorCode, p.Offset)
}

func (w *worker) checkFind(resp kmsg.Response) error {
	c := resp.(*kmsg.FindCoordinatorResponse).Coordinators
	if len(c) != 1 || c[0].Key != w.name || c[0].ErrorCode != 0 && c[0].ErrorCode != codeCoordinatorNotAvailable {
		return fmt.Errorf("find coordinator: %+v", c)
	}
	return nil
}
