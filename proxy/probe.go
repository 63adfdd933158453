package proxy

import (
	"context"
	"fmt"
)

// Usable returns the ids of the live real brokers that requests of a listener may be forwarded to, in an order that differs from
// call to call.
func (s *Server) Usable(listener string) (ids []int32) {
	for _, t := range s.targets(listener, noNode) {
		ids = append(ids, t.broker)
	}
	return ids
}

// Probe connects to a broker as for a client of the listener, with TLS where the listener has it, and asks for its API versions, which
// every broker answers without a login. A nil error says that requests can be forwarded to it.
func (s *Server) Probe(ctx context.Context, listener string, broker int32) error {
	t, ok := s.targetOf(s.cfg.Images.Image().Brokers[broker], listener)
	if !ok {
		return fmt.Errorf("broker %d: %w", broker, errNoBroker)
	}
	_, err := s.versions.ask(ctx, s.listenerNamed(listener), t)
	return err
}

// Hangup cuts all connections of a listener's clients, so that they go elsewhere instead of waiting for what does not come. It returns
// how many there were.
func (s *Server) Hangup(listener string) (n int) {
	var of []*conn
	s.mu.Lock()
	for c := range s.conns {
		if c.l.Name == listener {
			of = append(of, c)
		}
	}
	s.mu.Unlock()
	s.cut(of)
	return len(of)
}

// cut ends connections at once; those that have ended take no harm.
func (s *Server) cut(conns []*conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range conns {
		if c.cancel != nil {
			c.cancel()
		}
	}
}
