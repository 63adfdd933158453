package proxy

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"reflect"
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

// hostileProduce names mirror topic m and, in 250 KiB, very many topics without a name, each with a tagged field without a value.
func hostileProduce(c *client) []byte {
	const topics = 50_000
	body := []byte{0, 0, 1, 0, 0, 0, 0} // null transactional id, acks 1, timeout
	body = binary.AppendUvarint(body, topics+2)
	body = append(body, 2, 'm', 2, 0, 0, 0, 0, 0, 0, 0) // one partition, without records
	body = append(body, bytes.Repeat([]byte{1, 1, 1, 5, 0}, topics)...)
	head := protocol.AppendRequestHeader(nil, protocol.RequestHeader{Key: keyProduce, Version: 9, CorrelationID: 1, ClientID: &c.id})
	return sizedFrame(append(append(head, body...), 0))
}

// TestDecodedRequestsCount: requests that take eighty times their size once decoded, and wait, hold no more than there is memory for, and
// no one else up. It counts what the process holds, so nothing runs beside it.
func TestDecodedRequestsCount(t *testing.T) {
	memory := NewMemory(16 << 20)
	memory.common.patience = time.Second
	g := newGate(t, func(cfg *GatewayConfig) { cfg.Memory = memory })
	g.brokers[1].on(func(h protocol.RequestHeader, _ []byte) kmsg.Response {
		if h.Key != keyProduce {
			return nil
		}
		return kmsg.NewPtrProduceResponse()
	})
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const clients = 4
	before := heap()
	for range clients {
		c := g.to(1)
		for range maxInFlight {
			c.send(1, kmsg.NewPtrListGroupsRequest())
		}
		c.write(hostileProduce(c))
	}
	eventually(t, "all came", func() bool { return len(g.gotBy(1)) >= clients*maxInFlight })
	good := make(chan struct{})
	go func() {
		defer close(good)
		served(t, g.to(1), largeProduce(9, 1, 17<<10, "plain", "plain"))
	}()
	var most int64
	for done := false; !done; {
		select {
		case <-good:
			done = true
		case <-time.After(50 * time.Millisecond):
		}
		most = max(most, heap()-before)
	}
	if most > 60<<20 {
		t.Errorf("%d MiB were held", most>>20)
	}
}

// TestCutInPlace: what is left of a request is encoded where it was, whatever is left out.
func TestCutInPlace(t *testing.T) {
	t.Parallel()
	for version := int16(0); version <= 13; version++ {
		for left := range 8 {
			req := produceRequest(version, -1, "m", "plain", "other")
			for i := range req.Topics {
				req.Topics[i].TopicID[0] = byte(i)
				for j := range 3 {
					p := kmsg.NewProduceRequestTopicPartition()
					p.Partition, p.Records = int32(j), bytes.Repeat([]byte{byte(i), byte(j)}, 1+200*i*j)
					p.UnknownTags.Set(7, []byte{1, 2, 3})
					req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
				}
			}
			id := "client"
			h := protocol.RequestHeader{Key: keyProduce, Version: version, CorrelationID: 5, ClientID: &id}
			frame := req.AppendTo(protocol.AppendRequestHeader(nil, h))
			_, body, err := protocol.ParseRequestHeader(frame)
			if err != nil {
				t.Fatal(err)
			}
			decoded, err := protocol.DecodeRequest(h, body)
			if err != nil {
				t.Fatal(err)
			}
			cut := decoded.(*kmsg.ProduceRequest)
			var rest, want []kmsg.ProduceRequestTopic
			for i := range req.Topics {
				if left&(1<<i) != 0 {
					rest, want = append(rest, cut.Topics[i]), append(want, req.Topics[i])
				}
			}
			cut.Topics, req.Topics = rest, want
			got := again(frame, h, cut)
			if !bytes.Equal(got, req.AppendTo(protocol.AppendRequestHeader(nil, h))) {
				t.Errorf("v%d, topics %03b: not what was left", version, left)
			}
			if &got[0] != &frame[0] {
				t.Errorf("v%d, topics %03b: encoded elsewhere", version, left)
			}
		}
	}
}

// TestWeigh: what a request holds is about what Go allocates for it.
func TestWeigh(t *testing.T) {
	const n = 20_000
	topics := kmsg.NewPtrListOffsetsRequest()
	topics.Version = 7
	for range n {
		topic := kmsg.NewListOffsetsRequestTopic()
		topic.Topic = "a topic with a name"
		topic.Partitions = append(topic.Partitions, kmsg.NewListOffsetsRequestTopicPartition())
		topic.UnknownTags.Set(3, nil)
		topics.Topics = append(topics.Topics, topic)
	}
	names := kmsg.NewPtrDescribeConfigsRequest()
	names.Version = 4
	r := kmsg.NewDescribeConfigsRequestResource()
	for range n {
		r.ConfigNames = append(r.ConfigNames, "a name")
	}
	names.Resources = append(names.Resources, r)
	for req, elements := range map[kmsg.Request]int64{topics: 2 * n, names: n + 1} {
		body := req.AppendTo(nil)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		decoded, err := protocol.DecodeRequest(protocol.RequestHeader{Key: req.Key(), Version: req.GetVersion()}, body)
		if err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		took, got := int64(after.TotalAlloc-before.TotalAlloc), weigh(reflect.ValueOf(decoded).Elem())-elements*answerCost
		if got < took/3 || got > took*3/2 {
			t.Errorf("%T: %d bytes, %d were allocated", req, got, took)
		}
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
