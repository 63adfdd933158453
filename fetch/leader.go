package fetch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// Defaults of Config and MirrorConfig.
const (
	DefaultMemoryBytes      = 256 << 20
	DefaultWindowBytes      = 8 << 20
	DefaultReplicaLag       = 30 * time.Second
	DefaultWaitMax          = 500 * time.Millisecond
	DefaultMaxBytes         = 1 << 20
	DefaultResponseMaxBytes = 10 << 20
)

// Observer is told what metrics need. Calls come from hot paths with locks held: they must not block or call back.
type Observer interface {
	// Fetched: n bytes of batches of a partition came from the source and were accepted.
	Fetched(mirror, topic string, partition int32, n int)
	// Diverged: the source no longer has what it gave us.
	Diverged(mirror, topic string, partition int32)
	// WatermarkRegressed: a divergence of the source took the high watermark back, so consumers may have seen records that
	// are gone now.
	WatermarkRegressed(mirror, topic string, partition int32)
}

type nopObserver struct{}

func (nopObserver) Fetched(string, string, int32, int) {}
func (nopObserver) Diverged(string, string, int32)     {}

func (nopObserver) WatermarkRegressed(string, string, int32) {}

// Config of a Leader. Images and Controller are required, all else has defaults.
type Config struct {
	Images     kraft.ImageSource
	Controller Controller
	Log        *slog.Logger
	// MemoryBytes bounds what all windows together keep alive, WindowBytes the records in that of one partition. Both are
	// bounds for reading on: one response may go beyond. Of a source response that a window holds a part of all counts,
	// once. From half of the bound on parts below a quarter of their response are copied, so that beyond it what counts
	// grows by at most four times what windows take. Records that only replies in flight refer to don't count.
	MemoryBytes int64
	WindowBytes int
	// SourceBytesPerSecond throttles reading from all sources together, 0 is no limit.
	SourceBytesPerSecond int64
	// ReplicaLag is how long an ISR member may go without having caught up (replica.lag.time.max.ms).
	ReplicaLag time.Duration
	Observer   Observer

	goneFor   time.Duration // how long a source topic must be missing to be held for deleted; ten seconds
	isrRetry  time.Duration // before a refused proposal is made again; a second
	activeFor time.Duration // how long after its last fetch a follower counts as reading; a second
	// stuckAfter is how long a follower must lack what a dead source does not give to be held stuck; two seconds.
	stuckAfter time.Duration
}

// MirrorConfig says how to read one source cluster.
type MirrorConfig struct {
	Name string
	// ClusterID is the source's; from a cluster with another one nothing is read. Empty: any will do.
	ClusterID string
	// Opts reach the source: seeds, TLS, SASL, client id.
	Opts []kgo.Opt
	// Fetchers is the number of connections per source broker (num.mirror.fetchers), 1 by default.
	Fetchers int
	// WaitMax and MinBytes are those of fetches at the source (500 ms, 1 byte).
	WaitMax  time.Duration
	MinBytes int32
	// ResponseMaxBytes bounds a response (10 MiB), MaxBytes one partition in it (1 MiB); a first batch that is larger
	// still comes.
	ResponseMaxBytes, MaxBytes int32
	// BytesPerSecond throttles reading from the source, 0 is no limit.
	BytesPerSecond int64
}

// Leader serves the partitions that our node ids lead: it reads them from their sources, answers followers, and decides
// on high watermarks and ISRs. All methods may be called at any time, also before and after Run.
//
// Lock order: partition.mu, then mirror.mu, fetcher.mu or one of the Leader's own; no two partitions at once.
type Leader struct {
	cfg      Config
	log      *slog.Logger
	sessions *sessions
	memory   atomic.Int64
	// throttle is of all mirrors together, memoryLimit what memory is held against.
	throttle    limiter
	memoryLimit atomic.Int64
	img         atomic.Pointer[kraft.Image]
	done        chan struct{}

	mu      sync.RWMutex
	parts   map[protocol.PartitionID]*partition
	assigns map[protocol.PartitionID]Assignment
	mirrors map[string]*mirror
	ctx     context.Context // nil before Run and after

	// imageMu is held while an image or an assignment is worked in, so that both see each other.
	imageMu sync.Mutex

	changeMu sync.Mutex
	changed  chan struct{}
	applied  chan struct{} // closed when the next image is worked in

	isrMu    sync.Mutex
	isrDirty map[*partition]struct{}
	isrKick  chan struct{}
}

var errOutcomes = errors.New("controller gave another number of outcomes than there were proposals")

// NewLeader validates the configuration and starts nothing.
func NewLeader(cfg Config) (*Leader, error) {
	if cfg.Images == nil || cfg.Controller == nil {
		return nil, errors.New("fetch: Images and Controller are required")
	}
	if cfg.MemoryBytes < 0 || cfg.WindowBytes < 0 || cfg.ReplicaLag < 0 || cfg.SourceBytesPerSecond < 0 {
		return nil, errors.New("fetch: MemoryBytes, WindowBytes, ReplicaLag and SourceBytesPerSecond can't be negative")
	}
	if cfg.MemoryBytes == 0 {
		cfg.MemoryBytes = DefaultMemoryBytes
	}
	if cfg.WindowBytes == 0 {
		cfg.WindowBytes = DefaultWindowBytes
	}
	if cfg.ReplicaLag == 0 {
		cfg.ReplicaLag = DefaultReplicaLag
	}
	if cfg.goneFor == 0 {
		cfg.goneFor = 10 * time.Second
	}
	if cfg.isrRetry == 0 {
		cfg.isrRetry = time.Second
	}
	if cfg.activeFor == 0 {
		cfg.activeFor = time.Second
	}
	if cfg.stuckAfter == 0 {
		cfg.stuckAfter = 2 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Observer == nil {
		cfg.Observer = nopObserver{}
	}
	l := &Leader{
		cfg: cfg, log: cfg.Log, sessions: newSessions(), done: make(chan struct{}),
		parts: map[protocol.PartitionID]*partition{}, assigns: map[protocol.PartitionID]Assignment{},
		mirrors: map[string]*mirror{}, changed: make(chan struct{}), applied: make(chan struct{}),
		isrDirty: map[*partition]struct{}{}, isrKick: make(chan struct{}, 1),
	}
	l.img.Store(&kraft.Image{Offset: -1})
	l.SetLimits(cfg.SourceBytesPerSecond, cfg.MemoryBytes)
	return l, nil
}

// SetLimits replaces Config.SourceBytesPerSecond and Config.MemoryBytes, for what is read from now on.
func (l *Leader) SetLimits(sourceBytesPerSecond, memoryBytes int64) {
	l.throttle.rate.Store(sourceBytesPerSecond)
	l.memoryLimit.Store(memoryBytes)
}

// Run leads until ctx ends and has joined all its goroutines when it returns. It may be called once.
func (l *Leader) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	l.mu.Lock()
	l.ctx = ctx
	for _, m := range l.mirrors {
		m.start(ctx)
	}
	l.mu.Unlock()
	wg.Go(func() { l.runISR(ctx) })
	l.runImages(ctx)
	close(l.done)
	cancel()
	wg.Wait()
	l.mu.Lock()
	l.ctx = nil
	mirrors := make([]*mirror, 0, len(l.mirrors))
	for _, m := range l.mirrors {
		mirrors = append(mirrors, m)
	}
	l.mu.Unlock()
	for _, m := range mirrors {
		m.stop()
	}
	return nil
}

// runImages follows the metadata log.
func (l *Leader) runImages(ctx context.Context) {
	for {
		changed := l.cfg.Images.Changed()
		l.apply(l.cfg.Images.Image())
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// apply works a new image in: which partitions we lead, under which epochs, with which ISRs.
func (l *Leader) apply(img *kraft.Image) {
	l.imageMu.Lock()
	defer l.imageMu.Unlock()
	old, now := l.img.Load(), time.Now()
	if img == nil || img == old {
		return
	}
	for id, t := range img.Topics {
		if old.Topics[id] != t {
			l.applyTopic(img, t, now)
		}
	}
	for id := range old.Topics {
		if img.Topics[id] == nil {
			for i := range old.Topics[id].Partitions {
				l.drop(protocol.PartitionID{Topic: id, Partition: int32(i)})
			}
		}
	}
	l.img.Store(img)
	for _, p := range l.all() {
		p.configured(img, now)
	}
	l.changeMu.Lock()
	close(l.applied)
	l.applied = make(chan struct{})
	l.changeMu.Unlock()
}

func (l *Leader) applyTopic(img *kraft.Image, t *kraft.Topic, now time.Time) {
	for i, ip := range t.Partitions {
		id := protocol.PartitionID{Topic: t.ID, Partition: int32(i)}
		if !l.owns(ip.Leader) {
			l.drop(id)
			continue
		}
		p := l.part(id)
		if p == nil {
			p = newPartition(l, id)
			l.mu.Lock()
			l.parts[id] = p
			a, ok := l.assigns[id]
			l.mu.Unlock()
			p.update(img, t.Name, ip, now)
			if ok {
				p.setAssignment(a, now)
			}
			continue
		}
		p.update(img, t.Name, ip, now)
	}
}

func (l *Leader) drop(id protocol.PartitionID) {
	p := l.part(id)
	if p == nil {
		return
	}
	l.mu.Lock()
	delete(l.parts, id)
	l.mu.Unlock()
	p.close()
}

func (l *Leader) owns(id int32) bool { return id >= 0 && l.cfg.Controller.Owns(id) }

// guest reports whether a replica is one of kmirror, not a real broker.
func (l *Leader) guest(id int32) bool { return l.cfg.Controller.Guest(id) }

func (l *Leader) image() *kraft.Image { return l.img.Load() }

func (l *Leader) part(id protocol.PartitionID) *partition {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.parts[id]
}

func (l *Leader) all() []*partition {
	l.mu.RLock()
	defer l.mu.RUnlock()
	ps := make([]*partition, 0, len(l.parts))
	for _, p := range l.parts {
		ps = append(ps, p)
	}
	return ps
}

func (l *Leader) mirror(name string) *mirror {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mirrors[name]
}

// AddMirror makes a source known. Connections are made when the first partition needs them.
func (l *Leader) AddMirror(cfg MirrorConfig) error {
	m, err := newMirror(l, cfg)
	if err != nil {
		return err
	}
	l.mu.Lock()
	if l.mirrors[cfg.Name] != nil {
		l.mu.Unlock()
		return fmt.Errorf("mirror %q is there already", cfg.Name)
	}
	l.mirrors[cfg.Name] = m
	if l.ctx != nil {
		m.start(l.ctx)
	}
	l.mu.Unlock()
	for _, p := range l.all() {
		p.mu.Lock()
		if p.assign.Mirror == cfg.Name {
			p.attach()
		}
		p.mu.Unlock()
	}
	return nil
}

// RemoveMirror forgets a source and closes its connections; partitions of it stand still.
func (l *Leader) RemoveMirror(name string) {
	l.mu.Lock()
	m := l.mirrors[name]
	delete(l.mirrors, name)
	l.mu.Unlock()
	if m == nil {
		return
	}
	for _, p := range l.all() {
		p.mu.Lock()
		if p.src.mir == m {
			p.detach()
			p.src.err = fmt.Errorf("mirror %q is not known", name)
		}
		p.mu.Unlock()
	}
	m.stop()
}

// Assign tells what partitions are, also of those that we don't lead yet. A new assignment replaces the old one.
func (l *Leader) Assign(as ...Assignment) {
	l.imageMu.Lock()
	defer l.imageMu.Unlock()
	now := time.Now()
	for _, a := range as {
		l.mu.Lock()
		l.assigns[a.ID] = a
		p := l.parts[a.ID]
		l.mu.Unlock()
		if p != nil {
			p.setAssignment(a, now)
		}
	}
}

// Unassign makes partitions RoleWait again.
func (l *Leader) Unassign(ids ...protocol.PartitionID) {
	l.imageMu.Lock()
	defer l.imageMu.Unlock()
	for _, id := range ids {
		l.mu.Lock()
		delete(l.assigns, id)
		p := l.parts[id]
		l.mu.Unlock()
		if p != nil {
			p.setAssignment(Assignment{ID: id}, time.Now())
		}
	}
}

// Status returns a snapshot of a partition that we lead.
func (l *Leader) Status(id protocol.PartitionID) (Status, bool) {
	if p := l.part(id); p != nil {
		return p.status(), true
	}
	return Status{}, false
}

// Statuses returns snapshots of all partitions that we lead.
func (l *Leader) Statuses() map[protocol.PartitionID]Status {
	ps := l.all()
	all := make(map[protocol.PartitionID]Status, len(ps))
	for _, p := range ps {
		all[p.id] = p.status()
	}
	return all
}

// Changed returns a channel that is closed at the next change that a manager acts on: a roll call or truncation complete, a
// frozen log converged or stuck, a tail written, epochs blocked or free, errors come or gone, leader epochs here or at the
// source. Take it before looking at statuses.
func (l *Leader) Changed() <-chan struct{} {
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	return l.changed
}

func (l *Leader) notify() {
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
}

// imageApplied returns a channel that is closed when the next image is worked in.
func (l *Leader) imageApplied() <-chan struct{} {
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	return l.applied
}

// EpochEnd answers OffsetForLeaderEpoch as leader: the largest epoch at or below the asked one and where it ends; for an
// epoch above all known ones the newest and the log end. ok is false while the source's history is not known.
func (l *Leader) EpochEnd(id protocol.PartitionID, epoch int32) (e int32, end int64, ok bool) {
	if p := l.part(id); p != nil {
		return p.epochEnd(epoch)
	}
	return -1, -1, false
}

// HighWatermark returns the high watermark; false while it is not known.
func (l *Leader) HighWatermark(id protocol.PartitionID) (int64, bool) {
	p := l.part(id)
	if p == nil {
		return -1, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hw, p.hw >= 0 && !p.closed
}
