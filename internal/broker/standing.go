package broker

import (
	"errors"
	"sync"
)

// errReplaced: the controller has the node id from somebody else, who registered it while this process was fenced.
var errReplaced = errors.New("another process has registered it")

// standing is whether this process is a member of the destination: since all its node ids were registered by itself, until none is.
// One id that is lost for a while does not end it, since the process leads with the others.
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

// Registered reports whether this process is a member of the destination: all its node ids have been registered by itself, and not all are
// lost again. A process with the node ids of another one that lives is none, and neither is one that has reached no controller yet. A
// member stays one while no controller answers.
func (b *Broker) Registered() bool {
	b.standing.mu.Lock()
	defer b.standing.mu.Unlock()
	return b.standing.is
}

// RegisteredChanged returns a channel that is closed when Registered says something else.
func (b *Broker) RegisteredChanged() <-chan struct{} { return b.standing.changes.wait() }
