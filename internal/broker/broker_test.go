package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fixCRC(b []byte) []byte {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func ready(t *testing.T, b *Broker) {
	t.Helper()
	eventually(t, 30*time.Second, "ready", b.Ready)
}

func level(n int16) kraft.Record { return &kraft.FeatureLevelRecord{Name: metadataVersion, Level: n} }

func registered(id int32, dir protocol.UUID) *kraft.RegisterBrokerRecord {
	return &kraft.RegisterBrokerRecord{Version: 3, BrokerID: id, LogDirs: []protocol.UUID{dir}}
}

func TestRegistrationSendsThePreviousEpochAndWaitsForTheOldIncarnation(t *testing.T) {
	old := registered(9001, logDirID(fakeCluster, 9001))
	old.Epoch = 1
	q := newFakeQuorum(t, 1, level(20), old)
	var refused atomic.Int32
	q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		r, ok := req.(*kmsg.BrokerRegistrationRequest)
		if !ok || r.BrokerID != 9001 || refused.Add(1) > 2 {
			return nil
		}
		resp := r.ResponseKind().(*kmsg.BrokerRegistrationResponse)
		resp.ErrorCode = 101
		return resp
	}
	b, _ := startFake(t, fakeConfig(q, 9001, 9002))
	ready(t, b)
	dirs := map[[16]byte]bool{}
	for _, r := range of[*kmsg.BrokerRegistrationRequest](q) {
		want := int64(-1) // 9002 was never registered
		if r.BrokerID == 9001 {
			want = 1
		}
		if r.PreviousBrokerEpoch != want || r.ClusterID != fakeCluster || len(r.LogDirs) != 1 {
			t.Errorf("node %d: previous epoch %d, want %d; %+v", r.BrokerID, r.PreviousBrokerEpoch, want, r)
		}
		dirs[r.LogDirs[0]] = true
		for _, f := range []featureRange{{metadataVersion, 7, 40}, {"transaction.version", 0, 2}, {"future.version", 0, 4}} {
			if !slices.ContainsFunc(r.Features, func(x kmsg.BrokerRegistrationRequestFeature) bool {
				return x.Name == f.name && x.MinSupportedVersion == f.min && x.MaxSupportedVersion == f.max
			}) {
				t.Errorf("feature %+v is not among %+v", f, r.Features)
			}
		}
	}
	if len(dirs) != 2 {
		t.Errorf("%d log directory ids for two nodes", len(dirs))
	}
	for _, h := range of[*kmsg.BrokerHeartbeatRequest](q) {
		if h.CordonedLogDirs != nil {
			t.Error("a controller whose metadata.version has no cordon was sent one")
		}
	}
}

func TestNothingIsRegisteredInTheWrongCluster(t *testing.T) {
	q := newFakeQuorum(t, 1)
	cfg := fakeConfig(q, 9001)
	cfg.ClusterID = "another"
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var mismatch *ClusterMismatchError
	if err := b.Run(t.Context()); !errors.As(err, &mismatch) {
		t.Errorf("got %v, want a ClusterMismatchError", err)
	}
	if n := len(of[*kmsg.BrokerRegistrationRequest](q)); n != 0 {
		t.Errorf("%d registrations", n)
	}
}

func TestAnIDOfARealBrokerIsLeftAlone(t *testing.T) {
	q := newFakeQuorum(t, 1, registered(1, protocol.UUID{7}))
	b, err := New(fakeConfig(q, 1))
	if err != nil {
		t.Fatal(err)
	}
	var taken *NodeIDTakenError
	if err := b.Run(t.Context()); !errors.As(err, &taken) {
		t.Errorf("got %v, want a NodeIDTakenError", err)
	}
	if n := len(of[*kmsg.BrokerRegistrationRequest](q)); n != 0 {
		t.Errorf("%d registrations", n)
	}
}

func TestAnotherIncarnationMakesItRegisterAgain(t *testing.T) {
	q := newFakeQuorum(t, 1)
	b, _ := startFake(t, fakeConfig(q, 9001))
	ready(t, b)
	first := of[*kmsg.BrokerRegistrationRequest](q)[0]
	q.do(func() {
		other := registered(9001, logDirID(fakeCluster, 9001))
		other.Epoch = int64(len(q.log))
		q.append(other)
	})
	eventually(t, 30*time.Second, "registered again", func() error {
		if n := len(of[*kmsg.BrokerRegistrationRequest](q)); n < 2 {
			return fmt.Errorf("%d registrations", n)
		}
		return b.Ready()
	})
	again := of[*kmsg.BrokerRegistrationRequest](q)[1]
	if again.IncarnationID != first.IncarnationID {
		t.Error("the incarnation changed within a process (KAFKA-16952)")
	}
	if again.PreviousBrokerEpoch <= first.PreviousBrokerEpoch {
		t.Errorf("previous epoch %d, want the other incarnation's", again.PreviousBrokerEpoch)
	}
}

type evictions struct {
	noObserver
	n atomic.Int32
}

func (e *evictions) Evicted(int32) { e.n.Add(1) }

func TestEvictionIsNotFought(t *testing.T) {
	for _, policy := range []string{EvictedAlarm, EvictedReregister} {
		t.Run(policy, func(t *testing.T) {
			q := newFakeQuorum(t, 1)
			cfg := fakeConfig(q, 9001)
			var seen evictions
			cfg.OnEvicted, cfg.Observer = policy, &seen
			b, _ := startFake(t, cfg)
			ready(t, b)
			q.do(func() { q.append(&kraft.UnregisterBrokerRecord{BrokerID: 9001, Epoch: b.Nodes()[0].Epoch}) })
			eventually(t, 30*time.Second, "noticed", func() error {
				if seen.n.Load() == 0 {
					return errors.New("no alarm")
				}
				return nil
			})
			if policy == EvictedReregister {
				ready(t, b)
				return
			}
			if st := b.Nodes()[0]; st.State != StateEvicted || !errors.Is(st.Err, ErrEvicted) {
				t.Errorf("%+v", st)
			}
			time.Sleep(3 * cfg.HeartbeatInterval)
			if n := len(of[*kmsg.BrokerRegistrationRequest](q)); n != 1 || seen.n.Load() != 1 {
				t.Errorf("%d registrations, %d alarms", n, seen.n.Load())
			}
		})
	}
}

func TestFollowsTheActiveController(t *testing.T) {
	q := newFakeQuorum(t, 3)
	q.active = 1
	b, _ := startFake(t, fakeConfig(q, 9001))
	ready(t, b)
	q.do(func() { q.active, q.epoch = 2, q.epoch+1 })
	q.grown.send()
	id, err := b.CreateTopic(t.Context(), NewTopic{Name: "t", Assignment: [][]int32{{1}}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "shown by the new controller", func() error {
		if b.Image().Topics[id] == nil {
			return errors.New("no topic")
		}
		return b.Ready()
	})
	if n := len(of[*kmsg.BrokerRegistrationRequest](q)); n > 3 {
		t.Errorf("%d registrations", n)
	}
	if st := b.Nodes()[0]; st.State != StateActive {
		t.Errorf("%+v", st)
	}
}

func TestBootstrapsFromASnapshot(t *testing.T) {
	q := newFakeQuorum(t, 1, level(20), &kraft.TopicRecord{Name: "a", ID: protocol.UUID{1}},
		&kraft.PartitionRecord{TopicID: protocol.UUID{1}, Partition: kraft.Partition{Replicas: []int32{1}, ISR: []int32{1}, Leader: 1}},
		&kraft.TopicRecord{Name: "b", ID: protocol.UUID{2}})
	// The snapshot numbers its records from 0 and holds one topic less than the log did when it went.
	q.snapshot = slices.Concat(fakeBatch(0, 0, true, []byte{0, 0}), fakeBatch(1, 0, false, q.log[0], q.log[1]), fakeBatch(3, 0, false, q.log[2]))
	q.snapshotEnd = 3
	b, _ := startFake(t, fakeConfig(q, 9001))
	ready(t, b)
	img := b.Image()
	if img.TopicByName("a") == nil || img.TopicByName("b") == nil || len(img.TopicByName("a").Partitions) != 1 || img.Features[metadataVersion] != 20 {
		t.Errorf("image %+v", img)
	}
	if img.Offset < 4 {
		t.Errorf("offset %d: the log goes on at 3", img.Offset)
	}
	if n := len(of[*kmsg.FetchSnapshotRequest](q)); n != (len(q.snapshot)+99)/100 {
		t.Errorf("%d chunks of %d bytes", n, len(q.snapshot))
	}
}

func TestCordonIsLiftedForOurOwnPlacementsOnly(t *testing.T) {
	q := newFakeQuorum(t, 1, level(cordonLevel))
	var exposed atomic.Bool
	q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		if h, ok := req.(*kmsg.BrokerHeartbeatRequest); ok && !h.WantFence && len(h.CordonedLogDirs) == 0 {
			exposed.Store(true)
		}
		return nil
	}
	b, _ := startFake(t, fakeConfig(q, 9001, 9002))
	ready(t, b)
	if exposed.Load() {
		t.Error("unfenced before it was cordoned")
	}
	if _, err := b.CreateTopic(t.Context(), NewTopic{Name: "real", Assignment: [][]int32{{1}}}); err != nil {
		t.Fatal(err)
	}
	if exposed.Load() {
		t.Error("the cordon was lifted for a topic that is not placed on us")
	}
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			if _, err := b.CreateTopic(t.Context(), NewTopic{Name: fmt.Sprint("ours", n), Assignment: [][]int32{{9001, 9002, 1}}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	eventually(t, 30*time.Second, "cordoned again", func() error {
		if i := b.Image(); !cordoned(i, 9001) || !cordoned(i, 9002) {
			return errors.New("open")
		}
		return nil
	})
}

// Another process that asks must not keep one that leaves: no heartbeat would answer it.
func TestWhoLeavesLiftsNoCordon(t *testing.T) {
	q := newFakeQuorum(t, 1, level(cordonLevel))
	b, stop := startFake(t, fakeConfig(q, 9001, 9002))
	ready(t, b)
	if err := b.Uncordon(t.Context(), time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := b.Uncordon(t.Context(), time.Minute); err == nil || time.Since(began) > 30*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}

// A heartbeat that says "cordoned" may be on its way when the next placement lifts the cordon again.
func TestPlacementsInARowDoNotMeetTheCordonOfTheOneBefore(t *testing.T) {
	q := newFakeQuorum(t, 1, level(cordonLevel))
	under := make(chan struct{}, 1)
	q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		switch h := req.(type) {
		case *kmsg.CreateTopicsRequest:
			time.Sleep(10 * time.Millisecond) // heartbeats of before overtake it
		case *kmsg.BrokerHeartbeatRequest:
			if len(h.CordonedLogDirs) > 0 {
				select {
				case under <- struct{}{}:
				default:
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
		return nil
	}
	b, _ := startFake(t, fakeConfig(q, 9001, 9002))
	ready(t, b)
	for n := range 5 {
		select {
		case <-under:
		case <-time.After(30 * time.Second):
			t.Fatal("not cordoned again")
		}
		if _, err := b.CreateTopic(t.Context(), NewTopic{Name: fmt.Sprint("ours", n), Assignment: [][]int32{{9001, 9002, 1}}}); err != nil {
			t.Fatal(err)
		}
	}
}

// outcomes answers an AlterPartition with success.
func outcomes(r *kmsg.AlterPartitionRequest) *kmsg.AlterPartitionResponse {
	resp := r.ResponseKind().(*kmsg.AlterPartitionResponse)
	for _, t := range r.Topics {
		x := kmsg.NewAlterPartitionResponseTopic()
		x.TopidID = t.TopicID
		for _, p := range t.Partitions {
			y := kmsg.NewAlterPartitionResponseTopicPartition()
			y.Partition, y.LeaderID, y.PartitionEpoch = p.Partition, r.BrokerID, p.PartitionEpoch+1
			for _, m := range p.NewEpochISR {
				y.ISR = append(y.ISR, m.BrokerID)
			}
			x.Partitions = append(x.Partitions, y)
		}
		resp.Topics = append(resp.Topics, x)
	}
	return resp
}

func TestISRProposalsGoOneRequestAtATime(t *testing.T) {
	q := newFakeQuorum(t, 1)
	var inFlight, most atomic.Int32
	release := make(chan struct{})
	q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		r, ok := req.(*kmsg.AlterPartitionRequest)
		if !ok {
			return nil
		}
		most.Store(max(most.Load(), inFlight.Add(1)))
		<-release
		inFlight.Add(-1)
		return outcomes(r)
	}
	b, _ := startFake(t, fakeConfig(q, 9001, 9002))
	ready(t, b)
	var wg sync.WaitGroup
	propose := func(n int32) {
		p := kraft.ISRProposal{ID: protocol.PartitionID{Topic: protocol.UUID{byte(n % 3)}, Partition: n}, Leader: 9001,
			PartitionEpoch: n, ISR: []kraft.ISRMember{{ID: 9001, Epoch: 5}, {ID: n, Epoch: 6}}}
		out, err := b.AlterISR(t.Context(), []kraft.ISRProposal{p})
		if err != nil || out[0].PartitionEpoch != n+1 || !slices.Equal(out[0].ISR, []int32{9001, n}) {
			t.Errorf("partition %d: %+v, %v", n, out, err)
		}
	}
	wg.Go(func() { propose(0) })
	eventually(t, 30*time.Second, "sent", func() error {
		if inFlight.Load() == 0 {
			return errors.New("nothing in flight")
		}
		return nil
	})
	for n := int32(1); n <= 20; n++ {
		wg.Go(func() { propose(n) })
	}
	eventually(t, 30*time.Second, "queued", func() error {
		c := b.isr[9001]
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := len(c.waiting); n != 20 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
	close(release)
	wg.Wait()
	if n := len(of[*kmsg.AlterPartitionRequest](q)); most.Load() != 1 || n != 2 {
		t.Errorf("%d requests, %d in flight at once", n, most.Load())
	}
	if _, err := b.AlterISR(t.Context(), []kraft.ISRProposal{{Leader: 1}}); err == nil {
		t.Error("proposed in the name of a real broker")
	}
}

func TestALostISRAnswerIsAnErrorAndNotSentAgain(t *testing.T) {
	q := newFakeQuorum(t, 1)
	var n atomic.Int32
	q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		if _, ok := req.(*kmsg.AlterPartitionRequest); !ok {
			return nil
		}
		n.Add(1)
		return hangUp{}
	}
	b, _ := startFake(t, fakeConfig(q, 9001))
	ready(t, b)
	if out, err := b.AlterISR(t.Context(), []kraft.ISRProposal{{Leader: 9001}}); err == nil {
		t.Errorf("got %+v, want an error", out)
	}
	if n.Load() != 1 {
		t.Errorf("sent %d times", n.Load())
	}
}

func TestLeavesInOrderAndInTime(t *testing.T) {
	q := newFakeQuorum(t, 1)
	var refuse atomic.Bool
	q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		r, ok := req.(*kmsg.BrokerHeartbeatRequest)
		if !ok || !r.WantShutdown || !refuse.Load() {
			return nil
		}
		return r.ResponseKind() // not yet, for ever (KAFKA-14292)
	}
	cfg := fakeConfig(q, 9001, 9002)
	cfg.ShutdownTimeout = time.Minute
	b, stop := startFake(t, cfg)
	ready(t, b)
	if err := stop(); err != nil {
		t.Error(err)
	}
	left := map[int32]bool{}
	for _, h := range of[*kmsg.BrokerHeartbeatRequest](q) {
		if h.WantShutdown {
			left[h.BrokerID] = true
		}
	}
	if len(left) != 2 {
		t.Errorf("asked to leave: %v", left)
	}
	if _, err := b.AlterISR(context.Background(), []kraft.ISRProposal{{Leader: 9001}}); err == nil {
		t.Error("proposed after the end")
	}

	refuse.Store(true)
	cfg = fakeConfig(q, 9001)
	cfg.ShutdownTimeout = 200 * time.Millisecond
	b, stop = startFake(t, cfg)
	ready(t, b)
	begin := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if d := time.Since(begin); d > 15*time.Second {
		t.Errorf("left after %s", d)
	}
}

func TestStraysAreMovedAndOthersLeftAlone(t *testing.T) {
	q := newFakeQuorum(t, 1)
	for id := int32(1); id <= 3; id++ {
		q.append(registered(id, protocol.UUID{byte(id)}))
	}
	part := func(topic byte, replicas []int32, adding, removing []int32) kraft.Record {
		return &kraft.PartitionRecord{TopicID: protocol.UUID{topic}, Partition: kraft.Partition{Replicas: replicas, ISR: replicas,
			Leader: replicas[0], Adding: adding, Removing: removing}}
	}
	q.append(&kraft.TopicRecord{Name: "mirror", ID: protocol.UUID{1}}, part(1, []int32{9001, 1}, nil, nil),
		&kraft.TopicRecord{Name: "stray", ID: protocol.UUID{2}}, part(2, []int32{9001, 2}, nil, nil),
		&kraft.TopicRecord{Name: "stuck", ID: protocol.UUID{3}}, part(3, []int32{3, 9001}, []int32{3}, []int32{9001}))
	b, _ := startFake(t, fakeConfig(q, 9001))
	ready(t, b)
	if n := len(of[*kmsg.AlterPartitionAssignmentsRequest](q)); n != 0 {
		t.Errorf("%d reassignments without a check", n)
	}
	b.SetStrayCheck(func(t *kraft.Topic) bool { return t.Name != "mirror" })
	eventually(t, 30*time.Second, "moved", func() error {
		for _, topic := range []string{"stray", "stuck"} {
			p := partitionOf(b.Image(), tp(topic))
			if slices.ContainsFunc(p.Replicas, b.Owns) {
				return fmt.Errorf("%s is on %v", topic, p.Replicas)
			}
		}
		return nil
	})
	if p := partitionOf(b.Image(), tp("stray")); len(p.Replicas) != 2 || p.Replicas[0] != 2 {
		t.Errorf("replicas %v, want 2 and one more", p.Replicas)
	}
	cancelled := false
	for _, r := range of[*kmsg.AlterPartitionAssignmentsRequest](q) {
		for _, x := range r.Topics {
			if x.Topic == "mirror" {
				t.Error("touched a topic that is no stray")
			}
			cancelled = cancelled || x.Topic == "stuck" && x.Partitions[0].Replicas == nil
		}
	}
	if !cancelled {
		t.Error("the unfinished reassignment was not cancelled")
	}
}
