package mirror

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/statemachine"
)

// sight is what this process knows of whether it reaches the sources of mirrors. Other processes are told, so that one that does
// reach a source takes over from one that doesn't.
type sight struct {
	mu    sync.Mutex
	lost  map[string]time.Time // since when a mirror's source has not answered
	blind []string             // those that have not for blindAfter, sorted
}

const (
	// sightEvery is how often sources are asked when there are other processes.
	sightEvery = 2 * time.Second
	// blindAfter is how long a source must not answer before another process is to lead its mirror.
	blindAfter = 6 * time.Second
	// partlyAfter is how long some of its brokers must not answer: longer than it takes a source to notice that they are down.
	partlyAfter = 20 * time.Second
)

// Blind returns the mirrors whose source this process does not reach.
func (m *Manager) Blind() []string {
	m.sight.mu.Lock()
	defer m.sight.mu.Unlock()
	return slices.Clone(m.sight.blind)
}

// Leaving reports whether this process hands everything over to others.
func (m *Manager) Leaving() bool { return m.leaving.Load() }

// runSight asks the sources of active mirrors, as long as another process could do better.
func (m *Manager) runSight(ctx context.Context) {
	t := time.NewTimer(sightEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if s := m.standing.Load(); s != nil && len(s.procs) > 1 {
			m.lookAtSources(ctx)
		}
		t.Reset(sightEvery/2 + rand.N(sightEvery))
	}
}

func (m *Manager) lookAtSources(ctx context.Context) {
	active := map[string]bool{}
	for _, t := range m.cfg.Store.Topics() {
		if t.Desired != statemachine.Stopped || t.Drain {
			active[t.Mirror] = true
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]time.Duration{}
	for mirror := range active {
		wg.Go(func() {
			limit := time.Duration(0)
			if m.cfg.PingSource(ctx, mirror) != nil {
				limit = blindAfter
			} else if m.cfg.SeeSource(ctx, mirror) != nil {
				limit = partlyAfter
			}
			mu.Lock()
			defer mu.Unlock()
			if limit > 0 {
				failed[mirror] = limit
			}
		})
	}
	wg.Wait()
	if ctx.Err() == nil && m.sight.note(failed, time.Now()) {
		m.log.Info("mirrors whose source this process does not reach, for others to lead", "mirrors", m.Blind())
		m.poke()
	}
}

// seeSource asks every broker that a mirror's source names: a process may reach its bootstrap servers and not those that it is sent to.
func (m *Manager) seeSource(ctx context.Context, name string) error {
	def, err := m.definition(name)
	if err != nil {
		return err
	}
	cl, err := m.sources.source(name, def.Config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	brokers, err := cl.ApiVersions(ctx)
	if err != nil {
		return err
	}
	var errs []error
	brokers.Each(func(b kadm.BrokerApiVersions) { errs = append(errs, b.Err) })
	return errors.Join(errs...)
}

// note takes down which sources did not answer, with how long that may last, and reports whether it changes what this process is blind
// for.
func (s *sight) note(failed map[string]time.Duration, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		s.lost = map[string]time.Time{}
	}
	var blind []string
	for mirror := range s.lost {
		if failed[mirror] == 0 {
			delete(s.lost, mirror)
		}
	}
	for mirror, limit := range failed {
		if _, ok := s.lost[mirror]; !ok {
			s.lost[mirror] = now
		}
		if now.Sub(s.lost[mirror]) >= limit {
			blind = append(blind, mirror)
		}
	}
	slices.Sort(blind)
	changed := !slices.Equal(blind, s.blind)
	s.blind = blind
	return changed
}
