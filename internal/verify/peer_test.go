package verify

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/fakepeer"
	"kmirror/protocol"
	"kmirror/records"
)

// peers is a scripted cluster with one topic of one partition. Each broker has a log of its own.
type peers struct {
	t      *testing.T
	topic  string
	id     protocol.UUID
	policy string

	mu      sync.Mutex
	leader  int32
	brokers map[int32]*peer
	wg      sync.WaitGroup
}

type peer struct {
	addr *net.TCPAddr
	log  []records.Batch
	// start and hw bound what is answered.
	start, hw int64
	// fail holds errors for the next fetches.
	fail []int16
	// slow is what each answer takes.
	slow    time.Duration
	fetches int
	// prefer is the broker that consumers are sent to, 0 for none.
	prefer int32
}

func newPeers(t *testing.T, policy string, logs map[int32][]records.Batch) *peers {
	p := &peers{t: t, topic: "orders", id: protocol.UUID{1, byte(len(logs))}, policy: policy, brokers: map[int32]*peer{}, leader: 1}
	t.Cleanup(p.wg.Wait)
	for id, log := range logs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		b := &peer{addr: l.Addr().(*net.TCPAddr), log: log}
		if len(log) > 0 {
			b.start, b.hw = log[0].BaseOffset(), log[len(log)-1].NextOffset()
		}
		p.brokers[id] = b
		p.wg.Go(func() { p.accept(l, b) })
		t.Cleanup(func() { l.Close() })
	}
	return p
}

func (p *peers) opts() []kgo.Opt {
	var seeds []string
	for _, b := range p.brokers {
		seeds = append(seeds, b.addr.String())
	}
	return []kgo.Opt{kgo.SeedBrokers(seeds...)}
}

// script changes brokers while they serve.
func (p *peers) script(f func(map[int32]*peer)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.brokers)
}

func (p *peers) accept(l net.Listener, b *peer) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() {
			err := fakepeer.Serve(conn, func(req kmsg.Request) kmsg.Response {
				p.mu.Lock()
				slow := b.slow
				p.mu.Unlock()
				time.Sleep(slow)
				return p.answer(b, req)
			})
			if err != nil {
				p.t.Error(err)
			}
		})
	}
}

func (p *peers) answer(b *peer, req kmsg.Request) kmsg.Response {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch r := req.(type) {
	case *kmsg.ApiVersionsRequest:
		resp := r.ResponseKind().(*kmsg.ApiVersionsResponse)
		for key, top := range map[int16]int16{1: 16, 2: 7, 3: 12, 18: 3, 32: 4} {
			k := kmsg.NewApiVersionsResponseApiKey()
			k.ApiKey, k.MaxVersion = key, top
			resp.ApiKeys = append(resp.ApiKeys, k)
		}
		return resp
	case *kmsg.MetadataRequest:
		return p.metadata(r)
	case *kmsg.DescribeConfigsRequest:
		resp := r.ResponseKind().(*kmsg.DescribeConfigsResponse)
		c := kmsg.NewDescribeConfigsResponseResourceConfig()
		c.Name, c.Value = "cleanup.policy", &p.policy
		res := kmsg.NewDescribeConfigsResponseResource()
		res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, p.topic
		res.Configs = append(res.Configs, c)
		resp.Resources = append(resp.Resources, res)
		return resp
	case *kmsg.ListOffsetsRequest:
		return p.listOffsets(b, r)
	case *kmsg.FetchRequest:
		return p.fetch(b, r)
	}
	p.t.Errorf("unexpected %T", req)
	return req.ResponseKind()
}

func (p *peers) metadata(r *kmsg.MetadataRequest) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.MetadataResponse)
	for id, b := range p.brokers {
		mb := kmsg.NewMetadataResponseBroker()
		mb.NodeID, mb.Host, mb.Port = id, b.addr.IP.String(), int32(b.addr.Port)
		resp.Brokers = append(resp.Brokers, mb)
	}
	mp := kmsg.NewMetadataResponseTopicPartition()
	mp.Leader = p.leader
	mt := kmsg.NewMetadataResponseTopic()
	mt.Topic, mt.TopicID = kmsg.StringPtr(p.topic), p.id
	mt.Partitions = append(mt.Partitions, mp)
	resp.Topics = append(resp.Topics, mt)
	return resp
}

func (p *peers) listOffsets(b *peer, r *kmsg.ListOffsetsRequest) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.ListOffsetsResponse)
	rp := kmsg.NewListOffsetsResponseTopicPartition()
	switch ts := r.Topics[0].Partitions[0].Timestamp; ts {
	case earliest:
		rp.Offset = b.start
	default:
		rp.Offset = -1
		for _, batch := range b.log {
			if batch.MaxTimestamp() >= ts {
				rp.Offset = batch.BaseOffset()
				break
			}
		}
	}
	rt := kmsg.NewListOffsetsResponseTopic()
	rt.Topic = p.topic
	rt.Partitions = append(rt.Partitions, rp)
	resp.Topics = append(resp.Topics, rt)
	return resp
}

func (p *peers) fetch(b *peer, r *kmsg.FetchRequest) kmsg.Response {
	b.fetches++
	part := r.Topics[0].Partitions[0]
	resp := r.ResponseKind().(*kmsg.FetchResponse)
	rp := kmsg.NewFetchResponseTopicPartition()
	rp.HighWatermark, rp.LogStartOffset = b.hw, b.start
	switch {
	case len(b.fail) > 0:
		rp.ErrorCode, b.fail = b.fail[0], b.fail[1:]
	case b.prefer != 0:
		rp.PreferredReadReplica = b.prefer
	case part.FetchOffset < b.start:
		rp.ErrorCode = 1
	default:
		for _, batch := range b.log {
			if batch.NextOffset() <= part.FetchOffset || batch.BaseOffset() >= b.hw {
				continue
			}
			if n := len(rp.RecordBatches); n > 0 && n+len(batch) > int(part.PartitionMaxBytes) {
				rp.RecordBatches = append(rp.RecordBatches, batch[:len(batch)/2]...)
				break
			}
			rp.RecordBatches = append(rp.RecordBatches, batch...)
		}
	}
	rt := kmsg.NewFetchResponseTopic()
	rt.Topic, rt.TopicID = p.topic, p.id
	rt.Partitions = append(rt.Partitions, rp)
	resp.Topics = append(resp.Topics, rt)
	return resp
}
