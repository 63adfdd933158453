package proxy

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/fetch"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// fakeData is the leader's side, set by tests.
type fakeData struct {
	mu     sync.Mutex
	calls  atomic.Int32
	status map[protocol.PartitionID]fetch.Status
	epochs map[int32][2]int64
}

func (d *fakeData) Fetch(context.Context, *kmsg.FetchRequest, int32) (*fetch.Reply, error) {
	return nil, errors.New("not scripted")
}

func (d *fakeData) Status(id protocol.PartitionID) (fetch.Status, bool) {
	d.calls.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	st, ok := d.status[id]
	return st, ok
}

func (d *fakeData) set(id protocol.PartitionID, f func(*fetch.Status)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.status[id]
	followers := make(map[int32]fetch.FollowerStatus)
	for k, v := range st.Followers {
		followers[k] = v
	}
	st.Followers = followers
	f(&st)
	d.status[id] = st
}

func (d *fakeData) EpochEnd(_ protocol.PartitionID, epoch int32) (int32, int64, bool) {
	e, ok := d.epochs[epoch]
	return int32(e[0]), e[1], ok
}

func (d *fakeData) HighWatermark(id protocol.PartitionID) (int64, bool) {
	st, ok := d.Status(id)
	return st.HighWatermark, ok && st.RollCall
}

type fakeMirrors map[string]string

func (m fakeMirrors) MirrorOf(topic string) (string, bool) {
	name, ok := m[topic]
	return name, ok
}

type fixedImage struct {
	mu      sync.Mutex
	img     *kraft.Image
	changed chan struct{}
}

func (f *fixedImage) Image() *kraft.Image {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.img
}

func (f *fixedImage) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.changed
}

// edit publishes a changed copy.
func (f *fixedImage) edit(change func(*kraft.Image)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	img := *f.img
	img.Brokers, img.Topics = make(map[int32]*kraft.Broker), make(map[protocol.UUID]*kraft.Topic)
	img.Configs, img.Names = maps.Clone(f.img.Configs), maps.Clone(f.img.Names)
	for id, b := range f.img.Brokers {
		broker := *b
		broker.Endpoints = slices.Clone(b.Endpoints)
		img.Brokers[id] = &broker
	}
	for id, t := range f.img.Topics {
		part := *t.Partitions[0]
		img.Topics[id] = &kraft.Topic{ID: t.ID, Name: t.Name, Partitions: []*kraft.Partition{&part}}
	}
	change(&img)
	f.img = &img
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

func (w *world) setISR(isr ...int32) {
	w.image.edit(func(img *kraft.Image) { img.Topics[mirrorID].Partitions[0].ISR = isr })
}
