package metasync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kmirror/internal/coordinator"
	"kmirror/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a Store without __mirror_state. Its fields are set before it is used; methods may be called by several goroutines.
type memory struct {
	mu      sync.Mutex
	mirrors map[string]coordinator.Mirror
	topics  map[string]coordinator.Topic
	states  map[protocol.PartitionID]coordinator.PartitionState
	acls    map[string][]coordinator.ACL
	// broken, where it is set, is what writes answer.
	broken error
	// changed is what Changed answers, closed once. Optional.
	changed chan struct{}
	// fresh is called by Fresh. Optional.
	fresh func() error
}

func (m *memory) Fresh(context.Context, string) error {
	if m.fresh == nil {
		return nil
	}
	return m.fresh()
}

func (m *memory) Loaded() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Changed tells of nothing unless changed is set: who uses it looks again after a while.
func (m *memory) Changed() <-chan struct{} { return m.changed }

func (m *memory) Mirrors() []coordinator.Mirror {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.mirrors))
}

func (m *memory) Mirror(name string) (coordinator.Mirror, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	def, ok := m.mirrors[name]
	return def, ok
}

func (m *memory) Topics() []coordinator.Topic {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.topics))
}

func (m *memory) TopicByName(name string) (coordinator.Topic, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.topics[name]
	return t, ok
}

func (m *memory) State(id protocol.PartitionID) (coordinator.PartitionState, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	st, ok := m.states[id]
	return st, ok
}

func (m *memory) ACLs(mirror string) []coordinator.ACL {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.acls[mirror])
}

func (m *memory) PutACLs(_ context.Context, mirror string, acls ...coordinator.ACL) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.acls == nil {
		m.acls = map[string][]coordinator.ACL{}
	}
	if m.broken == nil {
		list := append(m.acls[mirror], acls...)
		slices.SortFunc(list, coordinator.ACL.Compare)
		m.acls[mirror] = slices.Compact(list)
	}
	return m.broken
}

func (m *memory) DeleteACLs(_ context.Context, mirror string, acls ...coordinator.ACL) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken == nil {
		m.acls[mirror] = slices.DeleteFunc(m.acls[mirror], func(a coordinator.ACL) bool { return slices.Contains(acls, a) })
	}
	return m.broken
}

// errBroken is for memory.broken.
var errBroken = errors.New("the store is broken")

// counts is an Observer that counts, under "changed KIND", "skipped KIND REASON" and "failed KIND".
type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counts) add(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[what] += n
}

func (c *counts) SyncChanged(_, kind string, n int)         { c.add("changed "+kind, n) }
func (c *counts) SyncSkipped(_, kind, reason string, n int) { c.add("skipped "+kind+" "+reason, n) }
func (c *counts) SyncRests(string)                          {}
func (c *counts) SyncTook(string, string, time.Duration)    {}
func (c *counts) SyncFailed(_, kind string)                 { c.add("failed "+kind, 1) }

// take returns what was counted since the last call, as text.
func (c *counts) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := ""
	for _, k := range slices.Sorted(maps.Keys(c.n)) {
		out += fmt.Sprintf("%s: %d; ", k, c.n[k])
	}
	c.n = nil
	return out
}
