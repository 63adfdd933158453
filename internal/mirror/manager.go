package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/statemachine"
)

// Config of a Manager.
type Config struct {
	Destination Destination
	Data        Data
	Store       Store
	// NodeIDs are the node ids of this process; the first is the preferred leader of new partitions. A leader epoch is
	// raised by moving leadership between two of them, so there must be at least two.
	NodeIDs []int32
	// DestinationOpts make a client of the destination, for what an ordinary client asks.
	DestinationOpts []kgo.Opt
	// MinRealISR is the least number of real in-sync replicas, 0 for each topic's own min.insync.replicas.
	MinRealISR int
	// Process names this process in descriptions: its advertised admin address.
	Process string
	Log     *slog.Logger
	// PingSource tells whether a mirror's source answers; by default it is asked for its brokers.
	PingSource func(ctx context.Context, mirror string) error
	// SeeSource tells whether all of a source's live brokers answer; by default they are asked.
	SeeSource func(ctx context.Context, mirror string) error
	// HoldsLog tells whether a broker has a log of a partition; by default the broker is asked.
	HoldsLog func(ctx context.Context, broker int32, tp protocol.TopicPartition) (bool, error)
	// SourceEnds tells where topics end at their source, by destination topic id and partition. By default the source is asked.
	SourceEnds func(ctx context.Context, mirror string, topics []coordinator.Topic) (map[protocol.UUID]map[int32]int64, error)
	// LogEnds tells the log ends of in-sync real replicas by broker, ProducerIDs the producer ids that they know, for partitions of which
	// all answered. By default the brokers are asked.
	LogEnds func(ctx context.Context, ids []protocol.PartitionID) (map[protocol.PartitionID]map[int32]int64, error)
	// LastEpochs tells the epochs of the last records of partitions that real brokers lead under the lock. By default these are asked.
	LastEpochs  func(ctx context.Context, ids []protocol.PartitionID) (map[protocol.PartitionID]int32, error)
	ProducerIDs func(ctx context.Context, ids []protocol.PartitionID) (map[protocol.PartitionID][]int64, error)
	// ReadRemote reads the __mirror_state of a mirror's source, coordinator.ErrNoState where there is none. DialRemote makes a client
	// of the source's kmirror, nil where the mirror does not say how that is reached. By default both follow the mirror's properties.
	ReadRemote func(ctx context.Context, mirror coordinator.Mirror) (RemoteState, error)
	DialRemote func(mirror coordinator.Mirror) (RemoteAdmin, error)
	// OnForeign is told of each mirror partition whose leader or replicas others changed. Optional.
	OnForeign func()
	// OnRequest is told of each request that is sent as an ordinary client, "source" or "destination". Optional.
	OnRequest func(side string)
	// Fault is told of each of FaultPoints as it is reached, for tests that end the process there. nil in production.
	Fault func(point string)
	// Processes are the kmirror processes of the destination that are alive. nil: there is none but this one.
	Processes func() []Process
	// ProcessesChanged returns a channel that is closed when Processes may answer otherwise. Optional.
	ProcessesChanged func() <-chan struct{}
	// Registered reports whether this process is a member of the destination by its node ids; while it is not, nothing is done with mirrors.
	// nil: it is.
	Registered func() bool
	// Coordinates reports whether this process is the metadata coordinator of a mirror: only it changes records of topics by itself.
	// nil: it is that of all.
	Coordinates func(mirror string) bool
	// SyncsGroups: somebody syncs offsets of groups, and calls GroupsSynced before a topic that is promoted is unlocked.
	SyncsGroups bool
	// Verify answers the private verb of that name, nil where there is none.
	Verify func(ctx context.Context, payload []byte) ([]byte, error)
}

// Manager runs all mirrors of a process. Create it with New, run it with Run.
type Manager struct {
	cfg Config
	log *slog.Logger

	kick chan struct{} // buffered, 1: something changed that no source of changes reports

	sources *sources

	// writing is held while an operator's call judges what is stored of topics and changes it.
	writing sync.Mutex

	mu       sync.Mutex
	parts    map[protocol.PartitionID]*part
	stoodBy  bool            // at the last look this process was no member of the destination
	creating map[string]bool // names of topics whose creation is under way: not strays
	busy     map[protocol.PartitionID]string
	tasks    sync.WaitGroup
	added    map[string]string // mirrors that the data path knows, with a digest of their configuration
	rests    map[protocol.UUID]rest
	lastErr  map[string]string // last error logged per task, so that a repeated one is logged once
	// writable are the topics whose partitions are all STOPPED. Replaced, never changed.
	writable   atomic.Pointer[map[protocol.UUID]bool]
	retired    chan struct{} // closed when Retire is done
	retireOnce sync.Once
	leaving    atomic.Bool
	over       atomic.Bool // Run is over, or about to be
	sight      sight
	// known is what was known of processes last, and since when. It belongs to the loop.
	known struct {
		procs []Process
		since time.Time
	}
	standing atomic.Pointer[standing]
}

// part is what the manager holds of one partition. It belongs to the loop; Describe reads it under Manager.mu.
type part struct {
	topic   coordinator.Topic
	id      protocol.PartitionID
	machine *statemachine.Machine
	since   time.Time
	// loaded is when this process took the partition up, seen whether the image has shown it since.
	loaded time.Time
	seen   bool
	// led: the last round saw us lead; ours: all our ids were replicas. Losing either is somebody else's doing.
	led, ours bool
	// foreign are the times at which that was seen lately.
	foreign []time.Time
	// role is the last assignment given to the data path.
	role     replica.Assignment
	assigned bool
	// dirty: the state must be stored before anything that depends on it happens; unstored is why the last attempt has failed, nil where it
	// has not; read is what the last round has found stored.
	dirty    bool
	unstored error
	read     coordinator.PartitionState
	// awaits is since when a start has stored PREPARING, and its topic has not come.
	awaits time.Time
	// epoch is the newest leader epoch that a state was read or stored with.
	epoch   int32
	retryAt time.Time
	work    stopWork
	// complete is since when a reassignment under way has had all that it waits for.
	complete time.Time
	// yielding is since when another process is to lead.
	yielding time.Time
}

// retryBase and retryMax bound the back-off of a FAILED partition (KIP: mirror.failed.retry.*.backoff.ms).
const (
	retryBase = time.Second
	retryMax  = 5 * time.Minute
	// staleAfter is for how long a reassignment may have all that it waits for without ending.
	staleAfter = 3 * time.Second
	// restFor is how long a source must have had nothing new before a promote takes it to rest.
	restFor = 2 * time.Second
	// tick is how often the loop looks without being told to.
	tick = 500 * time.Millisecond
	// askSource is how long a stop waits for a source to say where its logs end.
	askSource = 3 * time.Second
	// pingLimit is how long a source may take to show that it is there.
	pingLimit = 5 * time.Second
	// foreignLimit changes by others within foreignWithin make a partition FAILED.
	foreignLimit  = 5
	foreignWithin = 10 * time.Minute
	// stepsPerSecond bounds how fast leader epochs are raised over large gaps.
	stepsPerSecond = 300
	// taskLimit bounds one attempt of anything that is asked of the destination.
	taskLimit = 20 * time.Second
)

// New validates cfg and starts nothing.
func New(cfg Config) (*Manager, error) {
	switch {
	case cfg.Destination == nil || cfg.Data == nil || cfg.Store == nil || cfg.Log == nil:
		return nil, errors.New("mirror: destination, data path, store and log are required")
	case len(cfg.NodeIDs) < 2:
		return nil, errors.New("node_ids must name two ids or more: a leader epoch is raised by moving leadership between them")
	}
	m := &Manager{
		cfg: cfg, log: cfg.Log, kick: make(chan struct{}, 1),
		parts: map[protocol.PartitionID]*part{}, creating: map[string]bool{},
		busy: map[protocol.PartitionID]string{}, added: map[string]string{}, lastErr: map[string]string{}, rests: map[protocol.UUID]rest{},
		retired: make(chan struct{}),
	}
	if m.cfg.PingSource == nil {
		m.cfg.PingSource = m.pingSource
	}
	if m.cfg.SeeSource == nil {
		m.cfg.SeeSource = m.seeSource
	}
	if m.cfg.HoldsLog == nil {
		m.cfg.HoldsLog = m.holdsLog
	}
	if m.cfg.SourceEnds == nil {
		m.cfg.SourceEnds = m.askSourceEnds
	}
	if m.cfg.LogEnds == nil {
		m.cfg.LogEnds = m.logEnds
	}
	if m.cfg.LastEpochs == nil {
		m.cfg.LastEpochs = m.lastEpochs
	}
	if m.cfg.ProducerIDs == nil {
		m.cfg.ProducerIDs = m.producerIDs
	}
	if m.cfg.ReadRemote == nil {
		m.cfg.ReadRemote = readRemote
	}
	if m.cfg.DialRemote == nil {
		m.cfg.DialRemote = dialRemote
	}
	if m.cfg.OnForeign == nil {
		m.cfg.OnForeign = func() {}
	}
	m.sources = newSources(cfg.DestinationOpts, cfg.OnRequest, m.log)
	return m, nil
}

// Run works until ctx ends. It touches nothing before __mirror_state has been read: until then it is not known which
// partitions are mirrors, and no partition may be taken for a stray.
func (m *Manager) Run(ctx context.Context) error {
	defer m.sources.close()
	select {
	case <-ctx.Done():
		return nil
	case <-m.cfg.Store.Loaded():
	}
	m.cfg.Destination.SetStrayCheck(m.isStray)
	defer context.AfterFunc(ctx, func() { m.over.Store(!m.leaving.Load()) })()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { m.loop(ctx); m.tasks.Wait(); return nil })
	g.Go(func() error { newTxnWatch(m).run(ctx); return nil })
	g.Go(func() error { m.runSight(ctx); return nil })
	return g.Wait()
}

func (m *Manager) loop(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		image, state, data := m.cfg.Destination.Changed(), m.cfg.Store.Changed(), m.cfg.Data.Changed()
		var processes <-chan struct{}
		if m.cfg.ProcessesChanged != nil {
			processes = m.cfg.ProcessesChanged()
		}
		m.reconcile(ctx)
		t.Reset(tick)
		select {
		case <-ctx.Done():
			return
		case <-image:
		case <-state:
		case <-data:
		case <-processes:
		case <-m.kick:
		case <-t.C:
		}
	}
}

// poke makes the loop look again.
func (m *Manager) poke() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// task runs f apart from the loop for partitions that no other task holds; ids already held are left out. A failure is
// logged once until it changes or goes away, and what failed is tried again with the next tick or change, not at once.
func (m *Manager) task(ctx context.Context, name string, ids []protocol.PartitionID, f func(context.Context, []protocol.PartitionID) error) {
	free, release := m.claim(name, ids)
	if len(free) == 0 {
		return
	}
	m.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, taskLimit)
		defer cancel()
		began := time.Now()
		err := f(ctx, free)
		m.log.Debug("task", "name", name, "partitions", len(free), "took", time.Since(began), "err", err)
		if point := faultOfTask(name); point != "" && err == nil {
			m.fault(point)
		}
		text := ""
		if err != nil && !errors.Is(err, context.Canceled) {
			text = err.Error()
		}
		m.mu.Lock()
		news := m.lastErr[name] != text
		m.lastErr[name] = text
		m.mu.Unlock()
		release()
		switch {
		case news && text != "":
			m.log.Warn("not done yet, will be tried again", "task", name, "partitions", len(free), "err", text)
		case news:
			m.log.Info("done after earlier failures", "task", name)
		}
		if err == nil {
			m.poke()
		}
	})
}

// MirrorOf tells which mirror a destination topic belongs to: such a topic is read-only at our listeners. It is until every
// partition is STOPPED.
func (m *Manager) MirrorOf(topic string) (string, bool) {
	t, ok := m.cfg.Store.TopicByName(topic)
	if !ok {
		return "", false
	}
	if t.Desired == statemachine.Stopped && m.isStopped(t.TopicID) {
		return "", false
	}
	return t.Mirror, true
}

// claim marks partitions as busy with something, and returns those that were free and how to let them go.
func (m *Manager) claim(name string, ids []protocol.PartitionID) (free []protocol.PartitionID, release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if m.busy[id] == "" {
			m.busy[id] = name
			free = append(free, id)
		}
	}
	return free, sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, id := range free {
			delete(m.busy, id)
		}
	})
}

// Stopping reports whether an operator wants a topic stopped, and it is not yet.
func (m *Manager) Stopping() bool {
	return slices.ContainsFunc(m.cfg.Store.Topics(), func(t coordinator.Topic) bool {
		return t.Desired == statemachine.Stopped && !m.isStopped(t.TopicID)
	})
}

// isStopped reports whether all partitions of a topic were STOPPED at the last look, by what is stored.
func (m *Manager) isStopped(id protocol.UUID) bool {
	stopped := m.writable.Load()
	return stopped != nil && (*stopped)[id]
}

// joinErrors makes one error of a map of them, nil when there are none. It is the first by its text: an error whose text differs from
// the last one's is logged again.
func joinErrors[K comparable](what string, errs map[K]error) error {
	n, first := 0, error(nil)
	for k, err := range errs {
		if err == nil {
			continue
		}
		n++
		if named := fmt.Errorf("%s %v: %w", what, k, err); first == nil || named.Error() < first.Error() {
			first = named
		}
	}
	if n > 1 {
		return fmt.Errorf("%w (and %d more)", first, n-1)
	}
	return first
}
