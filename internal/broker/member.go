package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// member is one node id: its registration and its heartbeats. run owns the flow, mu guards what others read.
type member struct {
	b           *Broker
	node        Node
	log         *slog.Logger
	incarnation protocol.UUID
	// kick asks for a heartbeat now.
	kick     chan struct{}
	failures failLog

	// changing is held from a change of the status until others have been told of it: run and the metadata log both change it.
	changing sync.Mutex

	mu     sync.Mutex
	status NodeStatus
}

func newMember(b *Broker, n Node) *member {
	m := &member{b: b, node: n, log: b.log.With("node_id", n.ID), kick: make(chan struct{}, 1)}
	m.failures = failLog{log: m.log, what: "membership"}
	_, _ = rand.Read(m.incarnation[:])
	m.status = NodeStatus{ID: n.ID, Epoch: -1, State: StateStarting}
	return m
}

func (m *member) snapshot() NodeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

func (m *member) epoch() int64 { return m.snapshot().Epoch }

// fail notes why the node is not well. Only run calls it.
func (m *member) fail(err error) {
	m.mu.Lock()
	m.status.Err = err
	m.mu.Unlock()
	m.failures.failed(err)
}

func (m *member) set(s State, epoch int64, err error) {
	if err == nil {
		m.failures.ok()
	}
	m.change(func(st *NodeStatus) bool {
		st.State, st.Epoch, st.Err = s, epoch, err
		return true
	})
}

// setBeaten notes how a heartbeat ended, unless the registration that it was for has been given up since.
func (m *member) setBeaten(s State, epoch int64) {
	if m.change(func(st *NodeStatus) bool {
		if st.Epoch != epoch {
			return false
		}
		st.State, st.Err = s, nil
		return true
	}) {
		m.failures.ok()
	}
}

// change has edit write the status, and tells others where it reports that it did. One change follows the other, so that what others have
// heard last is how the node is.
func (m *member) change(edit func(*NodeStatus) bool) bool {
	m.changing.Lock()
	defer m.changing.Unlock()
	m.mu.Lock()
	old := m.status
	changed := edit(&m.status)
	st := m.status
	m.mu.Unlock()
	if !changed {
		return false
	}
	m.b.standing.look(m.b.members)
	if old.State != st.State || old.Epoch != st.Epoch {
		m.log.Info("node state", "state", st.State, "epoch", st.Epoch)
		m.b.cfg.Observer.NodeState(m.node.ID, st.State)
	}
	return true
}

// lookTaken takes in how the node id is registered, nil for not at all, and gives it up where that is another process, since we were.
func (m *member) lookTaken(r *kraft.Broker) {
	if !m.change(func(st *NodeStatus) bool {
		if r == nil || st.Epoch < 0 || r.Epoch <= st.Epoch || r.Incarnation == m.incarnation {
			return false
		}
		st.State, st.Epoch, st.Err = StateStarting, -1, m.replaced()
		return true
	}) {
		return
	}
	m.b.standing.lose()
	m.log.Warn("another process has registered the node id while this one was out of reach", "audit", true, "epoch", r.Epoch)
	m.poke()
}

func (m *member) replaced() error { return fmt.Errorf("node id %d: %w", m.node.ID, errReplaced) }

func (m *member) poke() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

func (m *member) dir() protocol.UUID { return logDirID(m.b.ClusterID(), m.node.ID) }

// run keeps the node a member until stop is closed, then leaves in order. ctx outlives stop by the time that takes. Only an
// error that waiting can't cure is returned.
func (m *member) run(ctx context.Context, stop <-chan struct{}) error {
	up, cancel := untilClosed(ctx, stop)
	defer cancel()
	for {
		if err := m.register(up); err != nil {
			if up.Err() != nil {
				return nil
			}
			m.fail(err)
			return err
		}
		evicted := m.beat(up)
		if up.Err() != nil {
			return m.leave(ctx)
		}
		if !evicted {
			m.set(StateStarting, -1, m.replaced())
			m.b.standing.lose()
			continue
		}
		m.set(StateEvicted, -1, fmt.Errorf("node id %d: %w", m.node.ID, ErrEvicted))
		m.log.Error("unregistered by somebody else", "on_evicted", m.b.cfg.OnEvicted)
		m.b.cfg.Observer.Evicted(m.node.ID)
		if m.b.cfg.OnEvicted == EvictedAlarm {
			<-up.Done()
			return nil
		}
	}
}

// untilClosed derives a context that ends when stop is closed.
func untilClosed(ctx context.Context, stop <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// register repeats the registration until it is accepted, ctx ends, or it can't ever be.
func (m *member) register(ctx context.Context) error {
	b := backoff{min: 100 * time.Millisecond, max: time.Second}
	for {
		err := m.tryRegister(ctx)
		var taken *NodeIDTakenError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &taken), errors.Is(err, kerr.InconsistentClusterID):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, kerr.DuplicateBrokerRegistration):
			err = fmt.Errorf("node id %d is held by a kmirror that is not fenced: one that was killed is, about 9 s later; if this goes on, "+
				"another kmirror serve has the same node_ids: stop it, or give this one ids of its own; trying again: %w", m.node.ID, err)
		}
		m.fail(err)
		if err := b.wait(ctx); err != nil {
			return err
		}
	}
}

func (m *member) tryRegister(ctx context.Context) error {
	ranges, err := m.b.supportedFeatures(ctx)
	if err != nil {
		return err
	}
	req, err := m.registration(m.b.Image(), ranges)
	if err != nil {
		return err
	}
	kr, err := m.b.ctl.try(ctx, req, requestTimeout)
	if err != nil {
		return err
	}
	resp := kr.(*kmsg.BrokerRegistrationResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return fmt.Errorf("registration: %w", err)
	}
	for _, r := range ranges {
		m.b.cfg.Observer.FeatureMax(r.name, r.max)
	}
	m.set(StateRegistered, resp.BrokerEpoch, nil)
	return nil
}

// registration builds the request from the newest image. The previous epoch is that of the registration found there:
// without it the controller holds that this broker lost its log, and in 4.4.0 may crash over stale ELR entries then.
func (m *member) registration(img *kraft.Image, ranges []featureRange) (*kmsg.BrokerRegistrationRequest, error) {
	req := kmsg.NewPtrBrokerRegistrationRequest()
	req.BrokerID = m.node.ID
	req.ClusterID = m.b.ClusterID()
	req.IncarnationID = m.incarnation
	req.PreviousBrokerEpoch = -1
	if old := img.Brokers[m.node.ID]; old != nil {
		if len(old.LogDirs) > 0 && !slices.Contains(old.LogDirs, m.dir()) {
			return nil, &NodeIDTakenError{ID: m.node.ID, LogDirs: old.LogDirs}
		}
		req.PreviousBrokerEpoch = old.Epoch
	}
	if m.node.Rack != "" {
		req.Rack = &m.node.Rack
	}
	req.LogDirs = [][16]byte{m.dir()}
	for _, l := range m.node.Listeners {
		x := kmsg.NewBrokerRegistrationRequestListener()
		x.Name, x.Host, x.Port, x.SecurityProtocol = l.Name, l.Host, l.Port, l.SecurityProtocol
		req.Listeners = append(req.Listeners, x)
	}
	for _, r := range ranges {
		x := kmsg.NewBrokerRegistrationRequestFeature()
		x.Name, x.MinSupportedVersion, x.MaxSupportedVersion = r.name, r.min, r.max
		req.Features = append(req.Features, x)
	}
	return req, nil
}

// beat sends heartbeats until ctx ends or the registration is gone; evicted says whether others took it away.
func (m *member) beat(ctx context.Context) (evicted bool) {
	b := backoff{min: 50 * time.Millisecond, max: time.Second}
	m.awaitOffset(ctx, m.epoch())
	for ctx.Err() == nil {
		next, epoch := m.b.cfg.HeartbeatInterval, m.epoch()
		if epoch < 0 {
			return false // another process has it
		}
		resp, err := m.heartbeat(ctx, false)
		switch {
		case errors.Is(err, kerr.StaleBrokerEpoch):
			if gone, evicted := m.staleEpoch(ctx); gone {
				return evicted
			}
			m.fail(err)
			next = b.next()
		case err != nil:
			if ctx.Err() == nil {
				m.fail(fmt.Errorf("heartbeat: %w", err))
			}
			next = b.next()
		default:
			b.reset()
			state := StateActive
			if resp.IsFenced {
				state = StateFenced
				next /= 10
			}
			m.setBeaten(state, epoch)
		}
		m.sleep(ctx, next)
	}
	return false
}

// sleep waits for the next heartbeat's time, or until one is asked for.
func (m *member) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-m.kick:
	}
}

// heartbeat sends one. The offset is always the newest: a broker that reports it late is unfenced late, or never
// (KAFKA-13955). A node starts fenced until the controller knows that it is cordoned, or others' topics land on it.
func (m *member) heartbeat(ctx context.Context, wantShutdown bool) (*kmsg.BrokerHeartbeatResponse, error) {
	img, st := m.b.Image(), m.snapshot()
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.BrokerID, req.BrokerEpoch = m.node.ID, st.Epoch
	req.CurrentMetadataOffset = img.Offset
	req.WantShutdown = wantShutdown
	req.WantFence = img.Offset < st.Epoch || m.b.fenceWanted()
	open := false
	if cordonSupported(img) {
		req.CordonedLogDirs = [][16]byte{}
		if open = !m.b.cordon.wanted(m.node.ID); !open {
			req.CordonedLogDirs = append(req.CordonedLogDirs, m.dir())
			req.WantFence = req.WantFence || st.State == StateRegistered && !cordoned(img, m.node.ID)
		}
	}
	kr, err := m.b.ctl.try(ctx, req, requestTimeout)
	if err != nil {
		return nil, err
	}
	resp := kr.(*kmsg.BrokerHeartbeatResponse)
	if err = kerr.ErrorForCode(resp.ErrorCode); err == nil && open {
		m.b.cordon.answered(m.node.ID)
	}
	return resp, err
}

// awaitOffset waits until the image has the record at offset, at most for a heartbeat's time.
func (m *member) awaitOffset(ctx context.Context, offset int64) {
	ctx, cancel := context.WithTimeout(ctx, m.b.cfg.HeartbeatInterval)
	defer cancel()
	_ = m.b.awaitImage(ctx, func(i *kraft.Image) bool { return i.Offset >= offset })
}

// staleEpoch finds out what STALE_BROKER_EPOCH means: gone and evicted when nobody is registered under our id any more,
// gone when another incarnation is, neither while the image still shows us: then the controller lags, or the image does.
func (m *member) staleEpoch(ctx context.Context) (gone, evicted bool) {
	epoch := m.epoch()
	ctx, cancel := context.WithTimeout(ctx, m.b.cfg.HeartbeatInterval)
	defer cancel()
	err := m.b.awaitImage(ctx, func(i *kraft.Image) bool {
		reg := i.Brokers[m.node.ID]
		gone = i.Offset >= epoch && (reg == nil || reg.Epoch != epoch)
		evicted = gone && reg == nil
		return gone
	})
	return err == nil && gone, evicted
}

// leave asks for the controlled shutdown until the controller grants it, which it does once leadership has moved and the
// live brokers know. The other ids of this process go on sending heartbeats meanwhile.
func (m *member) leave(ctx context.Context) error {
	b := backoff{min: 50 * time.Millisecond, max: time.Second}
	m.log.Info("controlled shutdown")
	for {
		resp, err := m.heartbeat(ctx, true)
		switch {
		case err == nil && resp.ShouldShutdown:
			m.set(StateFenced, m.epoch(), nil)
			return nil
		case errors.Is(err, kerr.StaleBrokerEpoch):
			return nil // not registered any more
		}
		d := m.b.cfg.HeartbeatInterval / 10
		if err != nil {
			d = b.next()
		}
		if werr := pause(ctx, d); werr != nil {
			m.log.Warn("left without the controller's leave", "err", errors.Join(err, werr))
			return nil
		}
	}
}
