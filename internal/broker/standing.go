package broker

import (
	"errors"
	"sync"
)

// errReplaced: the controller has the node id from somebody else, who registered it while this process was fenced.
var errReplaced = errors.New("another process has registered it")

// standing is whether this process is a member of the destination: since all its node ids were registered by itself, until none is, or
// one of them is another process's. One id that was unregistered does not end it, since the process leads with the others.
type standing struct {
	mu      sync.Mutex
	is      bool
	changes broadcast
}

// look is told when a node id may have another epoch.
func (s *standing) look(members []*member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	registered := 0
	for _, m := range members {
		if m.epoch() >= 0 {
			registered++
		}
	}
	was := s.is
	s.is = registered == len(members) || s.is && registered > 0
	if s.is != was {
		s.changes.send()
	}
}

// lose ends the standing until all node ids are registered by this process again: two processes that lead by the same id would both move
// its partitions on.
func (s *standing) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is {
		s.is = false
		s.changes.send()
	}
}

// Registered reports whether this process is a member of the destination: all its node ids have been registered by itself, not all are
// lost again, and no other process has one of them. A process with the node ids of another one that lives is none, and neither is one that
// has reached no controller yet. A member stays one while no controller answers.
func (b *Broker) Registered() bool {
	b.standing.mu.Lock()
	defer b.standing.mu.Unlock()
	return b.standing.is
}

// RegisteredChanged returns a channel that is closed when Registered says something else.
func (b *Broker) RegisteredChanged() <-chan struct{} { return b.standing.changes.wait() }
