package broker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// contested is a process with two node ids, of which another process may hold 9002.
type contested struct {
	t            *testing.T
	q            *fakeQuorum
	b            *Broker
	held, silent atomic.Bool // silent: no heartbeat is answered
	refused      atomic.Int32
}

func newContested(t *testing.T) *contested {
	c := &contested{t: t, q: newFakeQuorum(t, 1)}
	c.held.Store(true)
	c.q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		switch r := req.(type) {
		case *kmsg.BrokerRegistrationRequest:
			if c.held.Load() && r.BrokerID == 9002 {
				c.refused.Add(1)
				resp := kmsg.NewPtrBrokerRegistrationResponse()
				resp.ErrorCode = kerr.DuplicateBrokerRegistration.Code
				return resp
			}
		case *kmsg.BrokerHeartbeatRequest:
			if c.silent.Load() {
				c.refused.Add(1)
				return hangUp{}
			}
		}
		return nil
	}
	c.b, _ = startFake(t, fakeConfig(c.q, 9001, 9002))
	return c
}

// until waits for a condition.
func (c *contested) until(what string, holds func() bool) {
	c.t.Helper()
	eventually(c.t, 30*time.Second, what, func() error {
		if !holds() {
			return errors.New("not yet")
		}
		return nil
	})
}

// asked waits until the controller has been asked in vain twice more.
func (c *contested) asked() {
	c.t.Helper()
	from := c.refused.Load()
	c.until("asked twice", func() bool { return c.refused.Load() >= from+2 })
}

// is wants the process to be a member, or none, for a reason.
func (c *contested) is(member bool, why string) {
	c.t.Helper()
	if c.b.Registered() != member {
		c.t.Errorf("a member: %v, although %s", !member, why)
	}
}

// becomes waits until the process is a member, or none.
func (c *contested) becomes(member bool) {
	c.t.Helper()
	c.until("standing", func() bool { return c.b.Registered() == member })
}

// A process is a member once all its ids are its own, stays one while controllers are silent, and is none when another took one of them:
// one that was stopped for a while (SIGSTOP) must not take for its own what the other leads by that id.
func TestStanding(t *testing.T) {
	c := newContested(t)
	c.until("9001 is registered", func() bool { return c.b.Nodes()[0].Epoch >= 0 })
	c.asked()
	c.is(false, "somebody else holds 9002")
	changed := c.b.RegisteredChanged()
	c.held.Store(false)
	c.becomes(true)
	select {
	case <-changed:
	default:
		t.Error("it was not told")
	}
	c.silent.Store(true)
	c.asked()
	c.is(true, "a controller is only silent")
	c.silent.Store(false)
	ready(t, c.b)
	c.held.Store(true)
	taken(t, c.q, c.b, 9002)
	c.is(false, "the image shows 9002 taken")
	c.asked()
	c.held.Store(false)
	c.becomes(true)
	ready(t, c.b)
	c.q.do(func() { c.q.append(&kraft.UnregisterBrokerRecord{BrokerID: 9001, Epoch: c.b.Nodes()[0].Epoch}) })
	c.until("9001 is evicted", func() bool { return c.b.Nodes()[0].Epoch < 0 })
	c.is(true, "9002 is its own and nobody has 9001")
	c.held.Store(true)
	taken(t, c.q, c.b, 9002)
	c.becomes(false)
}

// taken has another process register a node id, and returns once the image shows it: from then on what is led by it is not ours.
func taken(t *testing.T, q *fakeQuorum, b *Broker, id int32) {
	t.Helper()
	var epoch int64
	q.do(func() {
		other := registered(id, logDirID(fakeCluster, id))
		epoch = int64(len(q.log))
		other.Epoch = epoch
		q.append(other)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := b.awaitImage(ctx, func(i *kraft.Image) bool { return i.Brokers[id] != nil && i.Brokers[id].Epoch >= epoch }); err != nil {
		t.Fatal(err)
	}
}

// Who is no member moves no strays: a topic that another process with the same node ids is just making is known to that one alone.
func TestOnlyMembersMoveStrays(t *testing.T) {
	q := newFakeQuorum(t, 1, registered(1, protocol.UUID{1}), &kraft.TopicRecord{Name: "new", ID: protocol.UUID{9}},
		&kraft.PartitionRecord{TopicID: protocol.UUID{9}, Partition: kraft.Partition{Replicas: []int32{9001, 1}, ISR: []int32{9001, 1}, Leader: 9001}})
	var held atomic.Bool
	held.Store(true)
	var refused atomic.Int32
	q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		if _, ok := req.(*kmsg.BrokerRegistrationRequest); !ok || !held.Load() {
			return nil
		}
		refused.Add(1)
		resp := kmsg.NewPtrBrokerRegistrationResponse()
		resp.ErrorCode = kerr.DuplicateBrokerRegistration.Code
		return resp
	}
	b, _ := startFake(t, fakeConfig(q, 9001))
	b.SetStrayCheck(func(*kraft.Topic) bool { return true })
	eventually(t, 30*time.Second, "asked five times to be registered", func() error {
		if refused.Load() < 5 {
			return errors.New("not yet")
		}
		return nil
	})
	if n := len(of[*kmsg.AlterPartitionAssignmentsRequest](q)); n != 0 {
		t.Errorf("%d reassignments", n)
	}
	held.Store(false)
	eventually(t, 30*time.Second, "moved", func() error {
		if len(of[*kmsg.AlterPartitionAssignmentsRequest](q)) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

// watched hears of node states, and may act before it takes one in.
type watched struct {
	noObserver
	before func(State)
	mu     sync.Mutex
	heard  []State
}

func (w *watched) NodeState(_ int32, s State) {
	w.before(s)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = append(w.heard, s)
}

// A node id that is lost just as its heartbeat is answered: what others hear last is that it is lost, or a metric would show it registered.
func TestWhatIsHeardLastOfANodeHolds(t *testing.T) {
	b := &Broker{log: slog.New(slog.DiscardHandler)}
	m := newMember(b, Node{ID: 9001})
	var taken sync.WaitGroup
	w := &watched{before: func(s State) {
		if s != StateActive {
			return
		}
		lost := make(chan struct{})
		taken.Go(func() {
			defer close(lost)
			m.lookTaken(&kraft.Broker{Epoch: 2, Incarnation: protocol.UUID{1}})
		})
		select {
		case <-lost:
		case <-time.After(100 * time.Millisecond): // it waits for its turn
		}
	}}
	b.cfg.Observer, b.members = w, []*member{m}
	m.set(StateRegistered, 1, nil)
	m.setBeaten(StateActive, 1)
	taken.Wait()
	if want := []State{StateRegistered, StateActive, StateStarting}; !slices.Equal(w.heard, want) || m.epoch() != -1 || b.Registered() {
		t.Errorf("heard %v, want %v; epoch %d, registered %v", w.heard, want, m.epoch(), b.Registered())
	}
}
