package broker

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/fakepeer"
	"kmirror/internal/testkafka"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// strayService answers followers of strays with an empty log and takes into the ISR who has all of it. The data side
// proper is package fetch; here it only has to let partitions be moved.
type strayService struct {
	k  *kafkaBroker
	mu sync.Mutex
}

func (s *strayService) listen(t *testing.T, cfg Config) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	for _, n := range cfg.Nodes {
		for _, ln := range n.Listeners {
			l, err := net.Listen("tcp", net.JoinHostPort(ln.Host, strconv.Itoa(int(ln.Port))))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			wg.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					mu.Lock()
					conns[c] = true
					mu.Unlock()
					wg.Go(func() { s.serve(c, n.ID) })
				}
			})
		}
	}
	t.Cleanup(func() {
		mu.Lock()
		for c := range conns {
			c.Close()
		}
		mu.Unlock()
	})
}

func (s *strayService) serve(c net.Conn, node int32) {
	_ = fakepeer.Serve(c, func(req kmsg.Request) kmsg.Response { // brokers and controllers may ask what nobody answers here
		if f, ok := req.(*kmsg.FetchRequest); ok {
			return s.fetch(f, node)
		}
		return nil
	})
}

func (s *strayService) fetch(f *kmsg.FetchRequest, node int32) *kmsg.FetchResponse {
	time.Sleep(50 * time.Millisecond)
	resp := f.ResponseKind().(*kmsg.FetchResponse)
	img := s.k.Image()
	for _, t := range f.Topics {
		x := kmsg.NewFetchResponseTopic()
		x.TopicID = t.TopicID
		for _, p := range t.Partitions {
			y := kmsg.NewFetchResponseTopicPartition()
			y.Partition, y.RecordBatches, y.LastStableOffset, y.LogStartOffset = p.Partition, []byte{}, 0, 0
			id := protocol.PartitionID{Topic: t.TopicID, Partition: p.Partition}
			switch ip := img.Partition(id); {
			case ip == nil || ip.Leader != node || p.CurrentLeaderEpoch > ip.LeaderEpoch:
				y.ErrorCode = 76
			case p.CurrentLeaderEpoch < ip.LeaderEpoch:
				y.ErrorCode = 74
			case !slices.Contains(ip.ISR, f.ReplicaState.ID):
				s.expand(id, ip, f)
			}
			x.Partitions = append(x.Partitions, y)
		}
		resp.Topics = append(resp.Topics, x)
	}
	return resp
}

func (s *strayService) expand(id protocol.PartitionID, ip *kraft.Partition, f *kmsg.FetchRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := kraft.ISRProposal{ID: id, Leader: ip.Leader, LeaderEpoch: ip.LeaderEpoch, PartitionEpoch: ip.PartitionEpoch,
		ISR: []kraft.ISRMember{{ID: f.ReplicaState.ID, Epoch: f.ReplicaState.Epoch}}}
	for _, m := range ip.ISR {
		p.ISR = append(p.ISR, kraft.ISRMember{ID: m, Epoch: -1})
	}
	_, _ = s.k.AlterISR(s.k.t.Context(), []kraft.ISRProposal{p})
}

// 4.1 has no cordon: what others create lands on us, RF 1 too, and must not stay.
func TestKafkaStraysMoveOff(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{Name: "old", Version: testkafka.Previous, Brokers: 3, Controllers: 1})
	cfg := kafkaConfig(t, c, 9001, 9002)
	k := startKafka(t, cfg)
	s := &strayService{k: k}
	s.listen(t, cfg)
	k.ready(30 * time.Second)
	createByOthers(t, c, "one", 12, 1)
	createByOthers(t, c, "two", 8, 2)
	createByOthers(t, c, "three", 4, 3)
	img := k.image("the topics", func(i *kraft.Image) bool {
		t := i.TopicByName("three")
		return t != nil && len(t.Partitions) == 4
	})
	strays := func(i *kraft.Image) (n int) {
		for _, t := range i.Topics {
			for _, p := range t.Partitions {
				if slices.ContainsFunc(p.Replicas, k.Owns) {
					n++
				}
			}
		}
		return n
	}
	if strays(img) == 0 {
		t.Fatal("nothing landed on us: this shows nothing")
	}
	t.Logf("%d of 24 partitions landed on us", strays(img))
	begin := time.Now()
	k.SetStrayCheck(func(*kraft.Topic) bool { return true })
	eventually(t, 40*time.Second, "free of strays", func() error {
		if n := strays(k.Image()); n > 0 {
			return fmt.Errorf("%d strays", n)
		}
		return nil
	})
	t.Logf("moved in %s", time.Since(begin))
	for name, rf := range map[string]int{"one": 1, "two": 2, "three": 3} {
		eventually(t, 30*time.Second, "whole: "+name, func() error {
			for n, p := range k.Image().TopicByName(name).Partitions {
				if len(p.Replicas) != rf || len(p.ISR) != rf {
					return fmt.Errorf("%s-%d: replicas %v, ISR %v, want %d", name, n, p.Replicas, p.ISR, rf)
				}
			}
			return nil
		})
	}
	acked := produce(t, c, "one")
	eventually(t, 30*time.Second, "written to", func() error {
		if acked.Load() < 20 {
			return errors.New("few records")
		}
		return nil
	})
}
