package metasync

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/internal/wait"
	"kmirror/protocol"
	"kmirror/statemachine"
)

const (
	// settle is the least time between two rounds that a change of the mirror's topics asks for.
	settle = 500 * time.Millisecond
	// lookAgain is after which time a mirror is looked at again of which nothing is to be synced, or whose last sync did not succeed.
	lookAgain = time.Second
	// stepLimit bounds one kind of one round.
	stepLimit = 60 * time.Second
	// finalLimit is how long the last sync of groups is tried before a promote goes on without it.
	finalLimit = 20 * time.Second
)

// worker runs the rounds of one mirror. All of it belongs to its goroutine.
type worker struct {
	s    *Syncer
	name string
	// began is when the last round began, ended when it was over, saw what it was about.
	began, ended time.Time
	saw          uint64
	// gone counts the rounds in a row in which a topic was missing at the source, or another one had its name there.
	gone map[protocol.UUID]absence
	// looping are topics that the source mirrors from the destination, by the last look, with how that stands.
	looping map[string]string
	// finalSince is when the last sync of a topic's groups was tried first.
	finalSince map[protocol.UUID]time.Time
	// refresh is the time from the begin of the last round to that of the next: a little less than what is configured, so that the
	// rounds of many mirrors don't stay in step.
	refresh time.Duration
	// groups is what its steps keep of groups.
	groups groupMemory
}

func (w *worker) run(ctx context.Context) {
	w.s.mu.Lock()
	w.s.statuses[w.name] = map[string]Status{}
	w.s.mu.Unlock()
	defer func() {
		w.s.forget(w.name)
		w.s.mu.Lock()
		delete(w.s.statuses, w.name)
		w.s.mu.Unlock()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		changed := w.s.cfg.Store.Changed()
		next := w.look(ctx)
		timer.Reset(max(next, 10*time.Millisecond))
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
		}
	}
}

// look does what is due and returns after which time to look again.
func (w *worker) look(ctx context.Context) time.Duration {
	def, ok := w.s.cfg.Store.Mirror(w.name)
	if !ok {
		return lookAgain
	}
	if final := w.final(); len(final) > 0 {
		if !w.lastSync(ctx, def, final) {
			return lookAgain
		}
	}
	w.finalSince = nil
	f, err := filters.Parse(def.Config)
	if err != nil { // alter and create refuse it, so an older version has stored it
		w.s.note(w.name, Cluster, err)
		return lookAgain
	}
	if !w.active(f) {
		w.began, w.saw = time.Time{}, 0 // the first round of what is started next is due at once
		w.s.forget(w.name)
		return lookAgain
	}
	due, now := w.began.Add(min(w.refresh, f.Refresh)), w.signature(def)
	if now != w.saw && due.After(w.ended.Add(settle)) {
		due = w.ended.Add(settle)
	}
	if left := time.Until(due); left > 0 {
		return left
	}
	w.began, w.saw, w.refresh = time.Now(), now, f.Refresh-rand.N(f.Refresh/20)
	w.round(ctx, def, f)
	w.ended = time.Now()
	return 0
}

// active reports whether there is anything to sync. Before its first topic a mirror needs no connection to its source unless it is to
// discover some. After an operator has stopped all of them, clients go on at the destination: what becomes of the source then, its
// ACLs or topics going away with it, is nothing to them.
func (w *worker) active(f *filters.Filters) bool {
	none, ended := true, true
	for _, t := range w.s.topics(w.name) {
		if t.Desired != statemachine.Stopped || t.Draining(w.s.cfg.Store.State) {
			return true
		}
		none, ended = false, ended && t.Ended
	}
	return f.DiscoversAny() && (none || ended)
}

// round syncs everything once. It ends early when a promote waits for the last sync of its groups, also in the middle of a step: a source
// that does not answer any more would hold the promote up for minutes.
func (w *worker) round(ctx context.Context, def coordinator.Mirror, f *filters.Filters) {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { w.untilFinal(ctx, cancel) })
	defer watch.Wait()
	defer cancel()
	j, err := w.job(ctx, def, f)
	if ctx.Err() != nil {
		return
	}
	w.s.note(w.name, Cluster, err)
	if err != nil {
		return
	}
	for _, step := range []struct {
		kind string
		do   func(context.Context) error
	}{{Topics, j.topics}, {Configs, j.configs}, {Groups, j.groups}, {ShareGroups, j.shareGroups}, {ACLs, j.acls}} {
		if ctx.Err() != nil {
			return
		}
		w.step(ctx, step.kind, step.do)
	}
}

// untilFinal cancels a round once a promote waits.
func (w *worker) untilFinal(ctx context.Context, cancel context.CancelFunc) {
	for {
		changed := w.s.cfg.Store.Changed()
		if len(w.final()) > 0 {
			cancel()
			return
		}
		if !wait.For(ctx, gateAge) { // what is stored changes many times a second while a topic is started
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (w *worker) step(ctx context.Context, kind string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	began := time.Now()
	err := do(ctx)
	w.s.log.Debug("sync", "mirror", w.name, "kind", kind, "took", time.Since(began), "err", err)
	if ctx.Err() == context.Canceled {
		return err
	}
	w.s.cfg.Observer.SyncTook(w.name, kind, time.Since(began))
	w.s.note(w.name, kind, err)
	return err
}

// final returns the topics that are promoted and wait for the last sync of their groups: all of the log is at the destination, and
// the lock is still on.
func (w *worker) final() []coordinator.Topic {
	var out []coordinator.Topic
	for _, t := range w.s.topics(w.name) {
		if !t.Draining(w.s.cfg.Store.State) { // STOPPED ones too: a version without a last sync has promoted them
			continue
		}
		tailed := true
		for p := range t.Partitions {
			st, ok := w.s.cfg.Store.State(protocol.PartitionID{Topic: t.TopicID, Partition: p})
			tailed = tailed && ok && st.State == statemachine.Stopping && st.Stop >= statemachine.StopTailed
		}
		if tailed {
			out = append(out, t)
		}
	}
	return out
}

// lastSync brings the groups of topics that are promoted to where they are at the source, once more, and says so. Where the source
// does not let it, the promote goes on without after a while. It reports whether that is done.
func (w *worker) lastSync(ctx context.Context, def coordinator.Mirror, topics []coordinator.Topic) bool {
	if w.finalSince == nil {
		w.finalSince = map[protocol.UUID]time.Time{}
	}
	for _, t := range topics {
		if w.finalSince[t.TopicID].IsZero() {
			w.finalSince[t.TopicID] = time.Now()
		}
	}
	whyNot, all := "", len(topics)
	if err := w.trySync(ctx, def, topics); err != nil {
		whyNot = err.Error()
		topics = slices.DeleteFunc(slices.Clone(topics), func(t coordinator.Topic) bool { return time.Since(w.finalSince[t.TopicID]) < finalLimit })
	}
	if len(topics) == 0 {
		return false
	}
	if err := w.s.cfg.Mirrors.GroupsSynced(ctx, topics, whyNot); err != nil {
		w.s.log.Warn("last sync of groups is not stored, will be tried again", "mirror", w.name, "err", err)
		return false
	}
	return len(topics) == all
}

func (w *worker) trySync(ctx context.Context, def coordinator.Mirror, topics []coordinator.Topic) error {
	f, err := filters.Parse(def.Config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, finalLimit)
	defer cancel()
	j, err := w.job(ctx, def, f)
	if err != nil {
		w.s.note(w.name, Cluster, err)
		return err
	}
	j.last = topics
	return errors.Join(w.step(ctx, Groups, j.groups), w.step(ctx, ShareGroups, j.shareGroups))
}

// signature is different when the mirror has other properties or topics, or when other topics mirror: then a round is due at once.
func (w *worker) signature(def coordinator.Mirror) uint64 {
	h := fnv.New64a()
	for _, k := range slices.Sorted(maps.Keys(def.Config)) {
		fmt.Fprintf(h, "%q=%q;", k, def.Config[k])
	}
	for _, t := range w.s.cfg.Store.Topics() {
		if t.Mirror != w.name {
			continue
		}
		mirroring := 0
		for p := range t.Partitions {
			if w.s.mirroring(t, p) {
				mirroring++
			}
		}
		fmt.Fprintf(h, "%s %s %d %d %d;", t.TopicID, t.Desired, t.Started.UnixNano(), t.Partitions, mirroring)
	}
	return h.Sum64()
}

// topics returns what is stored of a mirror's topics, the newest of each name. Those that another mirror has taken over are not among
// them.
func (s *Syncer) topics(mirror string) (own []coordinator.Topic) {
	for _, t := range s.cfg.Store.Topics() {
		if now, ok := s.cfg.Store.TopicByName(t.Name); ok && now.TopicID == t.TopicID && now.Mirror == mirror && t.Mirror == mirror {
			own = append(own, now)
		}
	}
	return own
}

// mirroring reports whether a partition's log is aligned with the source's and flows, by what is stored.
func (s *Syncer) mirroring(t coordinator.Topic, partition int32) bool {
	st, ok := s.cfg.Store.State(protocol.PartitionID{Topic: t.TopicID, Partition: partition})
	return ok && st.Mirror == t.Mirror && (st.State == statemachine.Mirroring || st.State == statemachine.EpochFencing)
}
