package fetch

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"go.uber.org/goleak"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon is how long what is to come about at once may take: the machine may be busy with other tests.
const soon = 30 * time.Second

var destID = protocol.UUID{15: 0xd0, 1: 7}

// fakeImages is the destination's metadata: one topic, brokers 1 to 3, ids 9001 and 9002 of ours.
type fakeImages struct {
	mu      sync.Mutex
	img     *kraft.Image
	changed chan struct{}
}

func newFakeImages(name string, parts int, replicas, isr []int32) *fakeImages {
	img := &kraft.Image{
		Topics: map[protocol.UUID]*kraft.Topic{}, Names: map[string]protocol.UUID{name: destID},
		Brokers: map[int32]*kraft.Broker{}, Configs: map[kraft.ConfigResource]map[string]string{},
	}
	for _, id := range []int32{1, 2, 3, 4, 9001, 9002} {
		img.Brokers[id] = &kraft.Broker{ID: id, Epoch: int64(id) * 10}
	}
	t := &kraft.Topic{ID: destID, Name: name}
	for range parts {
		t.Partitions = append(t.Partitions, &kraft.Partition{
			Replicas: replicas, ISR: isr, Leader: 9001, LeaderEpoch: 5, PartitionEpoch: 10,
		})
	}
	img.Topics[destID] = t
	return &fakeImages{img: img, changed: make(chan struct{})}
}

func (f *fakeImages) Image() *kraft.Image {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.img
}

func (f *fakeImages) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// edit publishes a new image; what it hands out may be changed freely.
func (f *fakeImages) edit(change func(img *kraft.Image)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	img := *f.img
	img.Offset++
	img.Topics, img.Names = maps.Clone(img.Topics), maps.Clone(img.Names)
	img.Brokers, img.Configs = maps.Clone(img.Brokers), maps.Clone(img.Configs)
	for id, t := range img.Topics {
		nt := *t
		nt.Partitions = slices.Clone(t.Partitions)
		for i, p := range nt.Partitions {
			np := *p
			nt.Partitions[i] = &np
		}
		img.Topics[id] = &nt
	}
	change(&img)
	f.img = &img
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeImages) part(change func(p *kraft.Partition)) {
	f.edit(func(img *kraft.Image) {
		p := img.Topics[destID].Partitions[0]
		change(p)
		p.PartitionEpoch++
	})
}

// fakeController answers proposals; with apply it changes the image as a controller would.
type fakeController struct {
	mu        sync.Mutex
	images    *fakeImages
	proposals []kraft.ISRProposal
	answer    func(kraft.ISRProposal) (kraft.ISROutcome, error)
}

func (c *fakeController) Owns(id int32) bool { return id == 9001 || id == 9002 }

// Guest: the process next door has 9003 and 9004.
func (c *fakeController) Guest(id int32) bool { return id >= 9001 && id <= 9004 }

func (c *fakeController) AlterISR(ctx context.Context, props []kraft.ISRProposal) ([]kraft.ISROutcome, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var outs []kraft.ISROutcome
	for _, p := range props {
		c.proposals = append(c.proposals, p)
		out, err := kraft.ISROutcome{}, error(nil)
		if c.answer != nil {
			out, err = c.answer(p)
		} else {
			out = c.apply(p)
		}
		if err != nil {
			return nil, err
		}
		outs = append(outs, out)
	}
	return outs, nil
}

// apply is the controller's: it judges by what holds as it applies, which may be newer than what was proposed from.
func (c *fakeController) apply(p kraft.ISRProposal) (out kraft.ISROutcome) {
	c.images.edit(func(img *kraft.Image) {
		np := img.Partition(p.ID)
		if np.PartitionEpoch != p.PartitionEpoch {
			out.ErrorCode = kerr.InvalidUpdateVersion.Code
			return
		}
		out = kraft.ISROutcome{Leader: np.Leader, LeaderEpoch: np.LeaderEpoch, PartitionEpoch: np.PartitionEpoch + 1}
		for _, m := range p.ISR {
			if b := img.Brokers[m.ID]; b != nil && (b.Fenced || m.Epoch >= 0 && m.Epoch != b.Epoch) {
				out = kraft.ISROutcome{ErrorCode: kerr.IneligibleReplica.Code}
				return
			}
			out.ISR = append(out.ISR, m.ID)
		}
		np.ISR, np.PartitionEpoch = out.ISR, out.PartitionEpoch
	})
	return out
}

func (c *fakeController) taken() []kraft.ISRProposal {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.proposals)
}

// rig is a running Leader between a fake source and scripted followers.
type rig struct {
	t      testing.TB
	l      *Leader
	images *fakeImages
	ctl    *fakeController
	src    *fakeSource
	topic  *fakeTopic
	opts   []rigOption
	stop   func()
}

var parallel sync.Map

type rigOption func(*Config, *MirrorConfig)

func testLog() *slog.Logger {
	if v, _ := strconv.ParseBool(os.Getenv("KMIRROR_TEST_LOG")); v {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

var (
	allFive   = []int32{9001, 9002, 1, 2, 3}
	topicName = "orders"
)

// newRig starts a Leader of topic "orders" with all replicas in sync; partitions are mirrored once assigned.
func newRig(t testing.TB, parts int, opts ...rigOption) *rig {
	if p, ok := t.(*testing.T); ok {
		if _, again := parallel.LoadOrStore(p.Name(), true); !again {
			p.Cleanup(func() { parallel.Delete(p.Name()) })
			p.Parallel() // most of the time is waiting
		}
	}
	r := &rig{t: t, images: newFakeImages(topicName, parts, allFive, allFive), src: newFakeSource(t, 2)}
	r.topic = r.src.topic(topicName, parts)
	r.ctl = &fakeController{images: r.images}
	r.opts = opts
	r.restart()
	r.until("led", func(s Status) bool { return s.Leader == 9001 })
	return r
}

// restart makes a new Leader over the same clusters, as a new process does, and mirrors nothing yet unless it did before.
func (r *rig) restart() {
	again := r.l
	cfg := Config{Images: r.images, Controller: r.ctl, Log: testLog()}
	mc := MirrorConfig{Name: "m", Opts: r.src.opts(), WaitMax: 100 * time.Millisecond}
	for _, o := range r.opts {
		o(&cfg, &mc)
	}
	var err error
	if r.l, err = NewLeader(cfg); err != nil {
		r.t.Fatal(err)
	}
	if err := r.l.AddMirror(mc); err != nil {
		r.t.Fatal(err)
	}
	if again != nil {
		for _, a := range again.assigns {
			r.l.Assign(a)
		}
	}
	r.run()
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.l.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	r.stop = func() { cancel(); <-done }
	r.t.Cleanup(func() { r.stop() })
}

func (r *rig) assignment(part int32) Assignment {
	return Assignment{
		ID: protocol.PartitionID{Topic: destID, Partition: part}, Topic: topicName, Role: RoleMirror, Mirror: "m",
		SourceTopicID: r.topic.id, MinRealISR: 1,
	}
}

func (r *rig) mirror(parts int) {
	for i := range parts {
		r.l.Assign(r.assignment(int32(i)))
	}
}

func (r *rig) id() protocol.PartitionID { return protocol.PartitionID{Topic: destID} }

func (r *rig) status() Status {
	s, _ := r.l.Status(r.id())
	return s
}

// until waits for a condition on the status of partition 0.
func (r *rig) until(what string, ok func(s Status) bool) Status {
	r.t.Helper()
	for end := time.Now().Add(soon); ; {
		changed := r.l.Changed()
		s := r.status()
		if ok(s) {
			return s
		}
		if time.Now().After(end) {
			r.t.Fatalf("never: %s; status %+v", what, s)
		}
		select {
		case <-changed:
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// syncAll lets followers fetch at once until each has its log up to want and a high watermark there.
func (r *rig) syncAll(want int64, fs ...*fakeFollower) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(func() {
			for ctx.Err() == nil {
				done := true
				for _, p := range f.parts {
					done = done && p.next >= want && p.hw >= want
				}
				if done {
					return
				}
				if f.fetch(ctx) == nil {
					break
				}
			}
		})
	}
	wg.Wait()
	for _, f := range fs {
		for i, p := range f.parts {
			if p.next < want || p.hw < want {
				r.t.Fatalf("follower %d partition %d: end %d, high watermark %d, code %d, want %d; status %+v",
					f.id, i, p.next, p.hw, p.code, want, r.status())
			}
		}
	}
}
