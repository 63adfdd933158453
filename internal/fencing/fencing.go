// Package fencing judges whether clients that choose this process can be served, and has the controller fence its node ids when they
// can't: clients of the destination choose others then. That costs the lead of mirror partitions, so nothing less than a listener whose
// every live broker fails, for a while, is reason enough.
package fencing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kmirror/internal/wait"
)

const (
	// Interval is how often listeners are tried.
	Interval = time.Second
	// Calm is for how long all must have been well before a fence ends. It doubles, up to calmest, with each fence that begins within
	// memory of the end of the one before.
	Calm    = 5 * time.Second
	calmest = 5 * time.Minute
	memory  = 10 * time.Minute
	// least is how many rounds in a row must have said the same, however long they took: a process that was stopped for a while sees
	// one bad round, and nothing is wrong.
	least = 3
	// hedge is the part of Slow after which the other brokers are tried too.
	hedge = 5
)

// Forwarder is what forwards the requests of clients; *proxy.Server is one.
type Forwarder interface {
	// Usable returns the live real brokers that a listener's requests may be forwarded to, in an order that differs from call to call.
	Usable(listener string) []int32
	// Probe reports whether a broker answers a request of that listener. It returns soon after ctx has ended.
	Probe(ctx context.Context, listener string, broker int32) error
	// Hangup cuts the connections of a listener's clients and returns how many there were.
	Hangup(listener string) int
}

// Member is the membership of the destination; *broker.Broker is one.
type Member interface {
	// Current returns nil while what is known of brokers is current, which takes a controller that answers.
	Current() error
	WantFence(reason string)
	ClearFence()
}

// Config of a Judge. Listeners, Forward and Member are required.
type Config struct {
	// Listeners are the names of those that clients use.
	Listeners []string
	Forward   Forwarder
	Member    Member
	// After is for how long a listener must have been without a broker that answers. It should be more than the destination's
	// broker.session.timeout.ms: brokers that are dead are known to be so by then, and nothing is fenced for them.
	After time.Duration
	// Slow is how long a broker may take to answer.
	Slow time.Duration
	// Needed reports work that only a process that is not fenced can do: meanwhile there is no fence. Optional.
	Needed func() bool
	// OnChange is told of each beginning and end. Optional.
	OnChange func(fenced bool)
	Log      *slog.Logger
}

// Judge fences and unfences the process. It works while Run runs.
type Judge struct {
	cfg    Config
	log    *slog.Logger
	fenced atomic.Bool
	state  hysteresis
	// answered has the listeners that were found ill or well, and whether a broker ever answered there. Run's.
	answered map[string]bool
	// troubled: the last round that said something found a listener without a broker. Run's.
	troubled bool
}

// New validates the configuration and starts nothing.
func New(cfg Config) (*Judge, error) {
	switch {
	case len(cfg.Listeners) == 0 || cfg.Forward == nil || cfg.Member == nil:
		return nil, errors.New("fencing: Listeners, Forward and Member are required")
	case cfg.After <= 0 || cfg.Slow <= 0:
		return nil, errors.New("fencing: After and Slow must be more than 0")
	}
	if cfg.Needed == nil {
		cfg.Needed = func() bool { return false }
	}
	if cfg.OnChange == nil {
		cfg.OnChange = func(bool) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Judge{cfg: cfg, log: cfg.Log.With("component", "fencing"), state: hysteresis{after: cfg.After}, answered: map[string]bool{}}, nil
}

// Fenced reports whether the process is fenced by this judge. A nil Judge never fences.
func (j *Judge) Fenced() bool { return j != nil && j.fenced.Load() }

// Run judges until ctx ends, and returns nil. A fence that is there then stays: the process is about to leave.
func (j *Judge) Run(ctx context.Context) error {
	for wait.For(ctx, Interval) {
		if f := j.look(ctx); ctx.Err() == nil {
			j.conclude(f, time.Now())
		}
	}
	return nil
}

// verdict is what one round says, worse ones later.
type verdict int

const (
	// unknown: no controller answers, or there is no live broker that could be used. A fence would make nothing better.
	unknown verdict = iota
	well
	ill
)

// finding is what one round found: which listeners have nobody, and why.
type finding struct {
	verdict
	listeners, reasons []string
}

// look tries all listeners once.
func (j *Judge) look(ctx context.Context) (f finding) {
	if j.cfg.Member.Current() != nil {
		return finding{}
	}
	var tried sync.WaitGroup
	found, reasons := make([]verdict, len(j.cfg.Listeners)), make([]string, len(j.cfg.Listeners))
	for i, name := range j.cfg.Listeners {
		tried.Go(func() { found[i], reasons[i] = j.try(ctx, name) })
	}
	tried.Wait()
	if j.cfg.Member.Current() != nil {
		return finding{}
	}
	for i, v := range found {
		if v = j.known(j.cfg.Listeners[i], v, reasons[i]); v == ill {
			f.listeners, f.reasons = append(f.listeners, j.cfg.Listeners[i]), append(f.reasons, reasons[i])
		}
		f.verdict = max(f.verdict, v)
	}
	return f
}

// known leaves out listeners on which no broker has answered since the start: one that this host is not meant to reach, such as the
// brokers' outer addresses, would have the process fenced for good, and nothing mirrored.
func (j *Judge) known(listener string, v verdict, reason string) verdict {
	answered, tried := j.answered[listener]
	switch {
	case v == well:
		j.answered[listener] = true
	case v == ill && !answered:
		if !tried {
			j.answered[listener] = false
			j.log.Warn("no broker has answered on a listener since the start: clients that choose this process there can't be served, and it does "+
				"not fence itself for that", "reason", reason, "hint", "see whether this host is meant to reach the brokers there")
		}
		return unknown
	}
	return v
}

// try asks one broker of a listener, and the others when that one fails or takes its time. One that answers will do.
func (j *Judge) try(ctx context.Context, listener string) (verdict, string) {
	ids := j.cfg.Forward.Usable(listener)
	if len(ids) == 0 {
		return unknown, ""
	}
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Slow)
	var probes sync.WaitGroup
	defer probes.Wait()
	defer cancel()
	type answer struct {
		id  int32
		err error
	}
	answers := make(chan answer, len(ids))
	next := 0
	start := func(upTo int) {
		for ; next < upTo; next++ {
			id := ids[next]
			probes.Go(func() { answers <- answer{id, j.cfg.Forward.Probe(ctx, listener, id)} })
		}
	}
	start(1)
	late := time.NewTimer(j.cfg.Slow / hedge)
	defer late.Stop()
	failed := map[int32]error{}
	for len(failed) < len(ids) {
		select {
		case a := <-answers:
			if a.err == nil {
				return well, ""
			}
			failed[a.id] = a.err
		case <-late.C:
		}
		start(len(ids))
	}
	// Brokers that died meanwhile prove nothing.
	left := slices.DeleteFunc(j.cfg.Forward.Usable(listener), func(id int32) bool { return failed[id] == nil })
	if len(left) == 0 {
		return unknown, ""
	}
	one := slices.Min(left)
	return ill, fmt.Sprintf("listener %s: none of the %d live brokers answers within %s, broker %d says: %v", listener, len(left),
		j.cfg.Slow, one, failed[one])
}

// conclude acts on what was found.
func (j *Judge) conclude(f finding, now time.Time) {
	v, reason := f.verdict, strings.Join(f.reasons, "; ")
	if j.cfg.Needed() {
		if j.state.fenced {
			j.log.Warn("the fence ends before clients can be served again: a mirror topic is being stopped, which takes this process's leadership")
			j.state.clear(now)
			j.set(false, "")
		}
		if v == ill {
			v = unknown
		}
	}
	if was := j.troubled; v != unknown {
		if j.troubled = v == ill; j.troubled && !was && !j.state.fenced {
			j.log.Warn("clients that choose this process can't be served; it fences itself if that stays so",
				"after", j.cfg.After, "reason", reason)
		}
	}
	defer func() {
		if j.state.fenced {
			j.hangup(f.listeners)
		}
	}()
	if !j.state.step(v, now) {
		return
	}
	if j.state.fenced {
		j.log.Error("fencing ourselves: clients of the destination choose other brokers; mirror topics are led by other processes or, locked, "+
			"by real brokers, and get nothing new there", "reason", reason,
			"hint", "from this host, see whether the brokers' addresses of that listener can be reached, and whether destination.client trusts "+
				"their certificates; the fence ends by itself", "well_for", j.state.calm)
	} else {
		j.log.Info("clients can be served again: not fencing ourselves any more")
	}
	j.set(j.state.fenced, reason)
}

// hangup cuts clients off that would wait for what does not come. Those whose metadata is old come again, and so it is done again.
func (j *Judge) hangup(listeners []string) {
	for _, name := range listeners {
		if n := j.cfg.Forward.Hangup(name); n > 0 {
			j.log.Debug("connections of clients closed", "listener", name, "connections", n)
		}
	}
}

// set makes the fence what it is to be.
func (j *Judge) set(fenced bool, reason string) {
	j.fenced.Store(fenced)
	if fenced {
		j.cfg.Member.WantFence(reason)
	} else {
		j.cfg.Member.ClearFence()
	}
	j.cfg.OnChange(fenced)
}

// hysteresis makes verdicts a state that does not flap. The zero value but for after is a process that is not fenced.
type hysteresis struct {
	after  time.Duration
	fenced bool
	// calm is how long the present fence has to have been needless before it ends.
	calm time.Duration
	// against counts the rounds in a row that speak against the present state, the first of them at since.
	against int
	since   time.Time
	cleared time.Time
}

// step takes a verdict in and reports whether the state has changed.
func (h *hysteresis) step(v verdict, now time.Time) (changed bool) {
	opposite, need := ill, h.after
	if h.fenced {
		opposite, need = well, h.calm
	}
	if v != opposite {
		h.against = 0
		return false
	}
	if h.against++; h.against == 1 {
		h.since = now
	}
	if h.against < least || now.Sub(h.since) < need {
		return false
	}
	if h.fenced {
		h.clear(now)
		return true
	}
	if h.calm = max(h.calm, Calm); !h.cleared.IsZero() && now.Sub(h.cleared) < memory {
		h.calm = min(2*h.calm, calmest)
	} else {
		h.calm = Calm
	}
	h.fenced, h.against = true, 0
	return true
}

// clear ends the fence.
func (h *hysteresis) clear(now time.Time) {
	h.fenced, h.against, h.cleared = false, 0, now
}
