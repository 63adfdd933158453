package broker

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol/kraft"
)

// A process is a member once all its ids are its own, stays one while controllers are silent, and is none when others took them all.
func TestStanding(t *testing.T) {
	q := newFakeQuorum(t, 1)
	var held, silent atomic.Bool // somebody else holds 9002; no heartbeat is answered
	held.Store(true)
	var refused atomic.Int32
	q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		switch r := req.(type) {
		case *kmsg.BrokerRegistrationRequest:
			if held.Load() && r.BrokerID == 9002 {
				refused.Add(1)
				resp := kmsg.NewPtrBrokerRegistrationResponse()
				resp.ErrorCode = kerr.DuplicateBrokerRegistration.Code
				return resp
			}
		case *kmsg.BrokerHeartbeatRequest:
			if silent.Load() {
				refused.Add(1)
				return hangUp{}
			}
		}
		return nil
	}
	b, _ := startFake(t, fakeConfig(q, 9001, 9002))
	asked := func() {
		t.Helper()
		from := refused.Load()
		eventually(t, 30*time.Second, "asked twice", func() error {
			if refused.Load() < from+2 {
				return errors.New("not yet")
			}
			return nil
		})
	}
	is := func(want bool) {
		t.Helper()
		eventually(t, 30*time.Second, "standing", func() error {
			if b.Registered() != want {
				return errors.New("not yet")
			}
			return nil
		})
	}
	eventually(t, 30*time.Second, "9001 is registered", func() error {
		if b.Nodes()[0].Epoch < 0 {
			return errors.New("not yet")
		}
		return nil
	})
	asked()
	if b.Registered() {
		t.Error("a member with an id that somebody else holds")
	}
	changed := b.RegisteredChanged()
	held.Store(false)
	is(true)
	select {
	case <-changed:
	default:
		t.Error("it was not told")
	}
	silent.Store(true)
	asked()
	if !b.Registered() {
		t.Error("no member any more because a controller is silent")
	}
	silent.Store(false)
	ready(t, b)
	take := func(id int32) {
		held.Store(true)
		q.do(func() {
			other := registered(id, logDirID(fakeCluster, id))
			other.Epoch = int64(len(q.log))
			q.append(other)
		})
	}
	take(9002)
	asked()
	if !b.Registered() {
		t.Error("no member any more although 9001 is its own")
	}
	q.do(func() { q.append(&kraft.UnregisterBrokerRecord{BrokerID: 9001, Epoch: b.Nodes()[0].Epoch}) })
	is(false)
}
