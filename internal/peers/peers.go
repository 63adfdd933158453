// Package peers finds out quickly which other kmirror processes answer: much sooner than a controller or a group notices. What it
// says is a hint; whoever is wrongly held dead is fenced by what the hint leads to.
package peers

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"kmirror/internal/coordinator"
	"kmirror/internal/quiet"
)

// Pong is what a process answers to a ping.
type Pong struct {
	ProcessID string  `json:"process_id"`
	NodeIDs   []int32 `json:"node_ids"`
	// Unreachable are the mirrors whose source it can't reach, sorted.
	Unreachable []string `json:"unreachable,omitempty"`
	// Ready: it may be given partitions. Leaving: it hands over what it has.
	Ready   bool `json:"ready"`
	Leaving bool `json:"leaving,omitempty"`
	// Idle: it is no member of the destination, such as when its node ids are another process's by now, and owns nothing.
	Idle bool `json:"idle,omitempty"`
	// Why it is not ready, for people.
	Why string `json:"why,omitempty"`
	// Refused: the process and this one don't accept each other, and all else is from before that, or a guess. It is never sent.
	Refused bool `json:"-"`
}

func (p Pong) same(o Pong) bool {
	return p.Ready == o.Ready && p.Leaving == o.Leaving && p.Idle == o.Idle && p.Refused == o.Refused && slices.Equal(p.Unreachable, o.Unreachable) &&
		slices.Equal(p.NodeIDs, o.NodeIDs)
}

// ErrRefused is wrapped by a Pinger's error when somebody answers who does not want to hear us, or whom we don't trust.
var ErrRefused = errors.New("the process and this one don't accept each other")

// Pinger asks the process at an admin address. An error that wraps ECONNREFUSED tells that nobody listens there, ErrRefused that somebody
// does.
type Pinger interface {
	Ping(ctx context.Context, address string) (Pong, error)
}

// refusedEvery is how often it is said that a process can't be asked.
const refusedEvery = time.Minute

// Config of Peers.
type Config struct {
	Pinger Pinger
	// Every is the pause between two pings of a process (0: 500 ms); DeadAfter is how long it may give no answer (0: 2 s).
	Every, DeadAfter time.Duration
	Log              *slog.Logger
}

// Peers pings processes. Its methods are safe for concurrent use. It is a coordinator.Liveness.
type Peers struct {
	cfg   Config
	quiet *quiet.Log

	mu      sync.Mutex
	changed chan struct{}
	watched chan struct{} // a value in it: the list changed
	peers   map[string]*peer
}

// peer is a process that is watched.
type peer struct {
	member coordinator.Member
	dead   bool
	since  time.Time // when it was held dead
	pong   *Pong     // the last answer
	// stop ends its pings, nil before they begin.
	stop context.CancelFunc
}

var _ coordinator.Liveness = (*Peers)(nil)

// New validates c and starts nothing.
func New(c Config) (*Peers, error) {
	if c.Pinger == nil {
		return nil, errors.New("peers: a pinger is needed")
	}
	if c.Every == 0 {
		c.Every = 500 * time.Millisecond
	}
	if c.DeadAfter == 0 {
		c.DeadAfter = 2 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Peers{cfg: c, quiet: quiet.New(c.Log, refusedEvery, nil), changed: make(chan struct{}), watched: make(chan struct{}, 1),
		peers: map[string]*peer{}}, nil
}

// Watch replaces the processes to look at.
func (p *Peers) Watch(members []coordinator.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := map[string]bool{}
	other := false
	for _, m := range members {
		wanted[m.ProcessID] = true
		if p.peers[m.ProcessID] == nil {
			p.peers[m.ProcessID] = &peer{member: m}
			other = true
		}
	}
	for id, old := range p.peers {
		if wanted[id] {
			continue
		}
		if old.stop != nil {
			old.stop()
		}
		delete(p.peers, id)
	}
	if other {
		select {
		case p.watched <- struct{}{}:
		default:
		}
	}
}

// Alive is false for a process that is watched and does not answer, or answers that it is idle: others do what it has left.
func (p *Peers) Alive(m coordinator.Member) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.peers[m.ProcessID]
	return w == nil || !w.dead && (w.pong == nil || !w.pong.Idle)
}

// Answer returns what a process that answers, an idle one too, answered last.
func (p *Peers) Answer(m coordinator.Member) (Pong, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.peers[m.ProcessID]
	if w == nil || w.dead || w.pong == nil {
		return Pong{}, false
	}
	return *w.pong, true
}

// Silence returns for how long a process has been held dead and what it had answered last; ok is false for one that is not.
func (p *Peers) Silence(m coordinator.Member) (last Pong, silent time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.peers[m.ProcessID]
	if w == nil || !w.dead {
		return Pong{}, 0, false
	}
	if w.pong != nil {
		last = *w.pong
	}
	return last, time.Since(w.since), true
}

// Changed returns a channel that is closed when Alive or Answer may say something else.
func (p *Peers) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// Run pings until ctx ends. It can be called once.
func (p *Peers) Run(ctx context.Context) error {
	var pings sync.WaitGroup
	defer pings.Wait()
	for {
		p.mu.Lock()
		for _, w := range p.peers {
			if w.stop == nil {
				var mine context.Context
				mine, w.stop = context.WithCancel(ctx)
				pings.Go(func() { p.follow(mine, w) })
			}
		}
		p.mu.Unlock()
		select {
		case <-p.watched:
		case <-ctx.Done():
			return nil
		}
	}
}

// follow pings one process.
func (p *Peers) follow(ctx context.Context, w *peer) {
	last, failures := time.Now(), 0
	for {
		// Two attempts fit into the time that a process has: this one may have been stopped itself during the first.
		attempt, cancel := context.WithTimeout(ctx, p.cfg.DeadAfter*2/5)
		pong, err := p.cfg.Pinger.Ping(attempt, w.member.Admin)
		cancel()
		if ctx.Err() != nil {
			return
		}
		pause := p.cfg.Every
		switch {
		case err == nil && pong.ProcessID == w.member.ProcessID:
			last, failures = time.Now(), 0
			p.alive(w, pong)
		case err == nil:
			p.dead(w, "another process answers at its address, such as one that was started in its place")
		case errors.Is(err, ErrRefused):
			last, failures = time.Now(), 0
			p.refused(w, err)
		case errors.Is(err, syscall.ECONNREFUSED):
			p.dead(w, err.Error())
		default:
			if failures++; failures > 1 && time.Since(last) >= p.cfg.DeadAfter {
				p.dead(w, err.Error())
			} else {
				pause /= 10
			}
		}
		timer := time.NewTimer(pause*4/5 + rand.N(pause*2/5))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (p *Peers) alive(w *peer, pong Pong) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.pong == nil || w.dead {
		p.cfg.Log.Info("process answers", "process", w.member.ProcessID, "admin", w.member.Admin)
	}
	news := w.dead || w.pong == nil || !w.pong.same(pong)
	if w.dead, w.pong = false, &pong; news {
		p.signal()
	}
}

// refused: two processes that don't accept each other share work all the same, as far as they can without a word. If one held the other
// dead, they would take everything from each other again and again.
func (p *Peers) refused(w *peer, err error) {
	p.quiet.Warn(w.member.ProcessID, "another process of this destination can't be asked", "process", w.member.ProcessID,
		"admin", w.member.Admin, "err", err)
	p.mu.Lock()
	pong := Pong{ProcessID: w.member.ProcessID, NodeIDs: w.member.NodeIDs, Ready: true}
	if w.pong != nil {
		pong = *w.pong
	}
	pong.Refused = true
	p.mu.Unlock()
	p.alive(w, pong)
}

func (p *Peers) dead(w *peer, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.dead {
		level := slog.LevelWarn
		if w.pong == nil { // it has ended before we began, as each restart finds it
			level = slog.LevelInfo
		}
		p.cfg.Log.Log(context.Background(), level, "process does not answer and is held dead", "process", w.member.ProcessID,
			"admin", w.member.Admin, "why", why)
		w.dead, w.since = true, time.Now()
		p.signal()
	}
}

// signal tells of a change. Called with mu held.
func (p *Peers) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}
