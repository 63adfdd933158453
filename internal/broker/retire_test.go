package broker

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

func brokerConfig(id, key string) kraft.Record {
	return &kraft.ConfigRecord{Resource: kraft.ConfigResource{Type: kraft.ConfigBroker, Name: id}, Name: key, Value: new("1")}
}

func TestRetiringUnregistersAfterTheControlledShutdown(t *testing.T) {
	q := newFakeQuorum(t, 2, level(20), brokerConfig("9002", "b"), brokerConfig("9002", "a"), brokerConfig("1", "c"))
	var tries atomic.Int32
	q.hook = func(node int, req kmsg.Request) kmsg.Response {
		r, ok := req.(*kmsg.UnregisterBrokerRequest)
		if !ok {
			return nil
		}
		resp := r.ResponseKind().(*kmsg.UnregisterBrokerResponse)
		switch n := tries.Add(1); {
		case n == 1:
			resp.ErrorCode = 7 // REQUEST_TIMED_OUT
		case n == 2:
			q.do(func() { q.active = 1 })
			resp.ErrorCode = 41
		case r.BrokerID == 9002:
			resp.ErrorCode = 102 // somebody was faster
		}
		return resp
	}
	cfg := fakeConfig(q, 9001, 9002)
	cfg.ShutdownTimeout = time.Minute
	b, stop := startFake(t, cfg)
	ready(t, b)
	b.Retire()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	var order []string
	q.do(func() {
		for _, r := range q.requests {
			switch r := r.(type) {
			case *kmsg.BrokerHeartbeatRequest:
				if r.WantShutdown {
					order = append(order, "leave")
				}
			case *kmsg.IncrementalAlterConfigsRequest:
				res := r.Resources[0]
				order = append(order, "configs "+res.ResourceName)
				if len(r.Resources) != 1 || res.ResourceType != kmsg.ConfigResourceTypeBroker || len(res.Configs) != 2 || res.Configs[0].Name != "a" ||
					res.Configs[0].Op != kmsg.IncrementalAlterConfigOpDelete || res.Configs[1].Name != "b" {
					t.Errorf("%+v", r)
				}
			case *kmsg.UnregisterBrokerRequest:
				order = append(order, "unregister "+string(rune('0'+r.BrokerID-9000)))
			}
		}
	})
	want := "leave leave unregister 1 unregister 1 unregister 1 configs 9002 unregister 2"
	if got := strings.Join(order, " "); got != want {
		t.Errorf("order %s, want %s", got, want)
	}
}

func TestLeavingWithoutRetiringUnregistersNothing(t *testing.T) {
	q := newFakeQuorum(t, 1, level(20))
	b, stop := startFake(t, fakeConfig(q, 9001))
	ready(t, b)
	if err := stop(); err != nil || len(of[*kmsg.UnregisterBrokerRequest](q)) != 0 {
		t.Errorf("%v, %d requests", err, len(of[*kmsg.UnregisterBrokerRequest](q)))
	}
}

func TestWhatCanNotBeUnregisteredIsNamed(t *testing.T) {
	q := newFakeQuorum(t, 1, level(20))
	q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		r, ok := req.(*kmsg.UnregisterBrokerRequest)
		if !ok {
			return nil
		}
		resp := r.ResponseKind().(*kmsg.UnregisterBrokerResponse)
		resp.ErrorCode = 31 // CLUSTER_AUTHORIZATION_FAILED
		return resp
	}
	b, stop := startFake(t, fakeConfig(q, 9001, 9002))
	ready(t, b)
	topic := protocol.UUID{8, 1}
	q.do(func() {
		q.append(&kraft.TopicRecord{Name: "late", ID: topic}, &kraft.PartitionRecord{Version: 1, TopicID: topic,
			Partition: kraft.Partition{Replicas: []int32{1, 9001}, ISR: []int32{1}, Leader: 1}})
	})
	eventually(t, 30*time.Second, "the late topic is known", func() error {
		if b.Image().TopicByName("late") == nil {
			return errNoAnswer
		}
		return nil
	})
	b.Retire()
	err := stop()
	if err == nil || !strings.Contains(err.Error(), "late-0") || !strings.Contains(err.Error(), "kafka-cluster unregister --id 9002") {
		t.Errorf("got %v", err)
	}
	if got := of[*kmsg.UnregisterBrokerRequest](q); len(got) != 1 || got[0].BrokerID != 9002 {
		t.Errorf("asked for %+v", got)
	}
}
