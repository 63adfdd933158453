package metasync

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// Store is what __mirror_state holds; *coordinator.Store.
type Store interface {
	Loaded() <-chan struct{}
	Changed() <-chan struct{}
	Mirrors() []coordinator.Mirror
	Mirror(name string) (coordinator.Mirror, bool)
	Topics() []coordinator.Topic
	TopicByName(name string) (coordinator.Topic, bool)
	State(id protocol.PartitionID) (coordinator.PartitionState, bool)
	// Fresh waits until all shows that was stored of a mirror and its topics before the call.
	Fresh(ctx context.Context, mirror string) error
	// ACLs are those that a mirror created at the destination.
	ACLs(mirror string) []coordinator.ACL
	PutACLs(ctx context.Context, mirror string, acls ...coordinator.ACL) error
	DeleteACLs(ctx context.Context, mirror string, acls ...coordinator.ACL) error
}

// Destination is what the cluster's metadata log says; *broker.Broker.
type Destination interface {
	kraft.ImageSource
	ClusterID() string
}

// Mirrors carries out what a round finds to be done with topics; *mirror.Manager.
type Mirrors interface {
	// SourceClient and DestinationClient return clients that are not the caller's to close. That of a source is made anew when the
	// properties of its mirror change.
	SourceClient(mirror string) (*kgo.Client, error)
	DestinationClient() (*kgo.Client, error)
	// SourceCluster asks a mirror's source for its cluster id.
	SourceCluster(ctx context.Context, mirror string) (string, error)
	StartTopics(ctx context.Context, req admin.StartRequest) ([]admin.TopicResult, error)
	// EndTopics stops topics for a reason that is stored and shown.
	EndTopics(ctx context.Context, mirror string, topics map[string]string) error
	// Grow gives a mirror topic as many partitions as its source has now.
	Grow(ctx context.Context, t coordinator.Topic, partitions int32) error
	// SyncConfigs sets and removes configs of mirror topics. Those that the lock overwrites are remembered instead, and take effect when
	// it goes.
	SyncConfigs(ctx context.Context, changes []ConfigChange) error
	// Loops tells which topics the source of a mirror mirrors from the destination and is active with, and how that stands. ids are the
	// source's topics.
	Loops(ctx context.Context, mirror string, ids map[string]protocol.UUID) (map[string]string, error)
	// GroupsSynced stores that the offsets of topics that are promoted were synced for the last time; why not says that they could
	// not be.
	GroupsSynced(ctx context.Context, topics []coordinator.Topic, whyNot string) error
}

// ConfigChange is what becomes of one topic's configs.
type ConfigChange struct {
	Topic  coordinator.Topic
	Set    map[string]string
	Remove []string
}

// Observer counts what is done. Kinds are Kinds, reasons are short fixed words.
type Observer interface {
	SyncChanged(mirror, kind string, n int)
	SyncSkipped(mirror, kind, reason string, n int)
	SyncFailed(mirror, kind string)
	// SyncTook tells how long one kind took in a round.
	SyncTook(mirror, kind string, took time.Duration)
	// SyncRests tells that a mirror has no rounds here any more, or for now.
	SyncRests(mirror string)
}

// Config of a Syncer.
type Config struct {
	Store       Store
	Destination Destination
	Mirrors     Mirrors
	// Coordinates reports whether this process is the metadata coordinator of a mirror.
	Coordinates func(mirror string) bool
	// Observer is optional.
	Observer Observer
	Log      *slog.Logger
}

// Syncer runs the rounds of all mirrors that this process coordinates. Create it with New, run it with Run.
type Syncer struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex
	statuses map[string]map[string]Status
}

// New validates cfg and starts nothing.
func New(cfg Config) (*Syncer, error) {
	if cfg.Store == nil || cfg.Destination == nil || cfg.Mirrors == nil || cfg.Coordinates == nil || cfg.Log == nil {
		return nil, errors.New("metasync: store, destination, mirrors, coordinates and log are required")
	}
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	return &Syncer{cfg: cfg, log: cfg.Log, statuses: map[string]map[string]Status{}}, nil
}

// ownersAfter is after which time it is looked again which mirrors this process coordinates, when nothing is stored meanwhile.
const ownersAfter = time.Second

// shift is a worker that runs, or was told to stop.
type shift struct {
	stop context.CancelFunc
	done chan struct{}
}

func (r *shift) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// Run works until ctx ends.
func (s *Syncer) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.cfg.Store.Loaded():
	}
	var workers sync.WaitGroup
	defer workers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running := map[string]*shift{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := s.cfg.Store.Changed()
		mine := map[string]bool{}
		for _, def := range s.cfg.Store.Mirrors() {
			mine[def.Name] = s.cfg.Coordinates(def.Name)
		}
		for name, r := range running {
			if !mine[name] {
				r.stop()
			}
			if r.ended() { // not before: two at a time would write the same, and the last to end takes the status with it
				delete(running, name)
			}
		}
		for name, is := range mine {
			if is && running[name] == nil {
				ctx, stop := context.WithCancel(ctx)
				r := &shift{stop: stop, done: make(chan struct{})}
				running[name] = r
				w := &worker{s: s, name: name, gone: map[protocol.UUID]absence{}}
				workers.Go(func() { defer close(r.done); w.run(ctx) })
			}
		}
		timer.Reset(ownersAfter)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-timer.C:
		}
	}
}

// What is synced. Cluster stands for the check of the source's identity, which comes first.
const (
	Cluster     = "cluster"
	Topics      = "topics"
	Configs     = "configs"
	Groups      = "groups"
	ShareGroups = "share_groups"
	ACLs        = "acls"
)

// Kinds are all of them, in the order of a round.
var Kinds = []string{Cluster, Topics, Configs, Groups, ShareGroups, ACLs}

// Status is how the sync of one kind stands.
type Status struct {
	// Good is when a round was without errors last, zero while none was. Of a process that has just taken a mirror over it is not
	// known what those before it saw.
	Good time.Time
	// Err is why the last round was not good, empty when it was.
	Err string
}

// Status returns how the sync of a mirror stands by kind, nil where another process coordinates it.
func (s *Syncer) Status(mirror string) map[string]Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.statuses[mirror] == nil {
		return nil
	}
	out := map[string]Status{}
	for k, v := range s.statuses[mirror] {
		out[k] = v
	}
	return out
}

// forget drops what is known of a mirror's rounds: there are none any more, so they can't be late either.
func (s *Syncer) forget(mirror string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.statuses[mirror])
	s.cfg.Observer.SyncRests(mirror)
}

// note takes in how one kind went.
func (s *Syncer) note(mirror, kind string, err error) {
	s.mu.Lock()
	was := s.statuses[mirror][kind]
	now := Status{Good: was.Good}
	if err == nil {
		now.Good = time.Now()
	} else {
		now.Err = err.Error()
	}
	if s.statuses[mirror] != nil {
		s.statuses[mirror][kind] = now
	}
	s.mu.Unlock()
	if err != nil {
		s.cfg.Observer.SyncFailed(mirror, kind)
	}
	switch {
	case now.Err != "" && now.Err != was.Err:
		s.log.Warn("sync failed, will be tried again", "mirror", mirror, "kind", kind, "err", now.Err)
	case now.Err == "" && was.Err != "":
		s.log.Info("sync works again", "mirror", mirror, "kind", kind)
	}
}

type nobody struct{}

func (nobody) SyncChanged(string, string, int)         {}
func (nobody) SyncSkipped(string, string, string, int) {}
func (nobody) SyncFailed(string, string)               {}
func (nobody) SyncRests(string)                        {}
func (nobody) SyncTook(string, string, time.Duration)  {}
