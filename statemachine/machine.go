package statemachine

import "fmt"

// Machine is one mirror partition. Its fields change in Step only.
type Machine struct {
	// State is the KIP's state; Previous the one before it, to which a retry returns.
	State, Previous State
	// Retry counts failures since the partition last mirrored well. Reason and Hint say why it is FAILED and what to do.
	Retry        int
	Reason, Hint string
	// Final: no automatic retry, an operator must act.
	Final bool
	// bumping is the leader epoch that a bump under way aims at, 0 when none is. A target once set is followed to its end.
	bumping int32
}

// Event is something that happened or was asked for.
type Event interface{ fmt.Stringer }

type (
	// Load is the stored state, the first event of a partition that this process takes over. A partition with nothing
	// stored has State Unknown.
	Load struct {
		State, Previous State
		Retry           int
		Reason, Hint    string
		Final           bool
	}
	// Start is the operator's wish to mirror. A FAILED partition goes on where it was; with Overwrite it begins anew, which
	// discards what the destination has beyond the source's log.
	Start struct{ Overwrite bool }
	// Observe is how things stand; it may come as often as one likes.
	Observe struct{ Facts Facts }
	// Fail is an error. Final ones are not retried.
	Fail struct {
		Reason, Hint string
		Final        bool
	}
	// RetryDue says that the back-off of a FAILED partition is over.
	RetryDue struct{}
)

// Facts is what a process knows of a partition at one moment. Facts about the data path are true only while Leading.
type Facts struct {
	// Leading: one of our node ids is the leader in the metadata image.
	Leading bool
	// Locked: both configs of the lock are on, as the image shows it. Open: not even the size half is on, so that a real leader
	// takes what clients write.
	Locked, Open bool
	// Aligned: every in-sync replica ends at or below the last mirror epoch's end, and no replica out of sync is listed.
	Aligned bool
	// DLE and SLE are the leader epochs of the destination and of the source; SLE is -1 while unknown.
	DLE, SLE int32
	// Blocked: a batch waits because its epoch is above DLE.
	Blocked bool
	// Flowing: the source has answered since the partition began to mirror.
	Flowing bool
}

func (e Load) String() string { return "load " + e.State.String() }
func (e Start) String() string {
	if e.Overwrite {
		return "start with overwrite"
	}
	return "start"
}

func (e Observe) String() string  { return "observe" }
func (e Fail) String() string     { return "fail: " + e.Reason }
func (e RetryDue) String() string { return "retry due" }

// Effect is something to do. Effects are level triggered: what is still needed is returned again with the next Observe, so
// an effect that got lost or half done is repeated; each must be idempotent.
type Effect interface{ fmt.Stringer }

type (
	// Store the machine's state in __mirror_state before any effect that follows it.
	Store struct{}
	// Lead: make one of our node ids the leader.
	Lead struct{}
	// Lock the topic: the two configs of design fact 14. Asked for only while leading: lead, then lock.
	Lock struct{}
	// Align: answer followers with the divergence that the last mirror epoch implies and drop replicas out of sync.
	Align struct{}
	// Bump the leader epoch to at least Min, by as many changes as it takes.
	Bump struct{ Min int32 }
	// Serve the source's log to followers.
	Serve struct{}
	// Freeze: hand out nothing new, keep ISR and high watermark.
	Freeze struct{}
	// RetryAfter the back-off of the given attempt (counted from 1), then feed RetryDue.
	RetryAfter struct{ Attempt int }
)

func (Store) String() string        { return "store" }
func (Lead) String() string         { return "lead" }
func (Lock) String() string         { return "lock" }
func (Align) String() string        { return "align" }
func (e Bump) String() string       { return fmt.Sprintf("bump to %d", e.Min) }
func (Serve) String() string        { return "serve" }
func (Freeze) String() string       { return "freeze" }
func (e RetryAfter) String() string { return fmt.Sprintf("retry after back-off %d", e.Attempt) }

// New returns a partition of which nothing is known.
func New() *Machine { return &Machine{State: Unknown, Previous: Unknown} }

// Step takes one event. An error is a *TransitionError or an unknown event; the machine is unchanged then.
func (m *Machine) Step(ev Event) ([]Effect, error) {
	switch ev := ev.(type) {
	case Load:
		m.State, m.Previous = ev.State, ev.Previous
		m.Retry, m.Reason, m.Hint, m.Final = ev.Retry, ev.Reason, ev.Hint, ev.Final
		if m.State == Failed && !m.Final {
			return []Effect{RetryAfter{max(m.Retry, 1)}}, nil
		}
		return nil, nil
	case Start:
		return m.start(ev)
	case Fail:
		return m.fail(ev)
	case RetryDue:
		return m.retry(ev)
	case Observe:
		return m.observe(ev)
	}
	return nil, fmt.Errorf("unknown event %T", ev)
}

// become moves to another state and returns the Store effect that goes with it.
func (m *Machine) become(to State, ev Event) ([]Effect, error) {
	if !Allowed(m.State, to) {
		return nil, &TransitionError{m.State, to, ev}
	}
	if to == m.State {
		return nil, nil
	}
	m.Previous, m.State = m.State, to
	return []Effect{Store{}}, nil
}

func (m *Machine) start(ev Start) ([]Effect, error) {
	switch m.State {
	case Unknown, Failed:
		m.Retry, m.Reason, m.Hint, m.Final = 0, "", "", false
		m.bumping = 0
		if m.State == Failed && !ev.Overwrite && m.mirrored() {
			return m.become(Mirroring, ev)
		}
		return m.become(Preparing, ev)
	case Preparing, Mirroring, EpochFencing:
		return nil, nil // a goal already reached, or on its way
	}
	return nil, &TransitionError{m.State, Preparing, ev}
}

func (m *Machine) fail(ev Fail) ([]Effect, error) {
	m.Retry++
	m.Reason, m.Hint, m.Final = ev.Reason, ev.Hint, ev.Final
	eff, err := m.become(Failed, ev)
	if err != nil {
		return nil, err
	}
	if eff == nil {
		eff = []Effect{Store{}} // failed again: the new reason and count must be seen
	}
	eff = append(eff, Freeze{})
	if !ev.Final {
		eff = append(eff, RetryAfter{m.Retry})
	}
	return eff, nil
}

// retry goes back to where the partition failed. Only MIRRORING is resumed as such: whatever stopped half way during
// PREPARING starts there again, and EPOCH_FENCING is found again from MIRRORING.
func (m *Machine) retry(ev Event) ([]Effect, error) {
	if m.State != Failed || m.Final {
		return nil, nil
	}
	to := Preparing
	if m.mirrored() {
		to = Mirroring
	}
	return m.become(to, ev)
}

// mirrored reports whether a FAILED partition was mirroring before.
func (m *Machine) mirrored() bool { return m.Previous == Mirroring || m.Previous == EpochFencing }

func (m *Machine) observe(ev Observe) ([]Effect, error) {
	f := ev.Facts
	switch m.State {
	case Preparing:
		return m.prepare(ev, f)
	case Mirroring, EpochFencing:
		return m.mirror(ev, f)
	case Failed:
		return []Effect{Freeze{}}, nil
	}
	return nil, nil
}

// hold returns what is missing before anything may be handed out: leadership, then the lock.
func hold(f Facts) []Effect {
	if !f.Leading {
		return []Effect{Lead{}}
	}
	if !f.Locked {
		return []Effect{Lock{}}
	}
	return nil
}

func (m *Machine) prepare(ev Event, f Facts) ([]Effect, error) {
	if need := hold(f); need != nil {
		return need, nil
	}
	if !f.Aligned {
		return []Effect{Align{}}, nil
	}
	if f.SLE < 0 {
		return []Effect{Align{}}, nil // without the source's epoch nobody knows whether DLE is above it
	}
	if b := m.bump(f); b != nil {
		// All of the first leg, while there is no flow yet that each change of leader would interrupt.
		return []Effect{Align{}, *b}, nil
	}
	eff, err := m.become(Mirroring, ev)
	if err != nil {
		return nil, err
	}
	return append(eff, Serve{}), nil
}

func (m *Machine) mirror(ev Event, f Facts) ([]Effect, error) {
	if !f.Leading && f.Open {
		// A real broker led without the lock: what clients wrote meanwhile is theirs, and not ours to truncate.
		return m.fail(Fail{Final: true, Reason: "the topic was unlocked while a real broker led it: it may hold records that the source does not have",
			Hint: "start it with --overwrite to discard those and mirror again from the start, or leave it to its writers"})
	}
	if !f.Leading {
		m.bumping = 0
		return []Effect{Lead{}}, nil
	}
	if !f.Locked {
		// Undone by others: while we lead, nobody can produce, so the log stays whole meanwhile.
		return []Effect{Lock{}, Serve{}}, nil
	}
	to := Mirroring
	if f.Blocked || !EpochSafe(f.SLE, f.DLE) {
		to = EpochFencing
	}
	eff, err := m.become(to, ev)
	if err != nil {
		return nil, err
	}
	if to == Mirroring && f.Flowing && m.Retry > 0 {
		m.Retry, m.Reason, m.Hint = 0, "", ""
		if eff == nil {
			eff = []Effect{Store{}}
		}
	}
	eff = append(eff, Serve{})
	if b := m.bump(f); b != nil {
		eff = append(eff, *b)
	} else if f.Blocked {
		eff = append(eff, Bump{f.DLE + 1}) // the batch is newer than the source epoch that metadata has shown so far
	}
	return eff, nil
}

// bump returns the bump that is due. One under way goes to its target before the rule is asked again.
func (m *Machine) bump(f Facts) *Bump {
	if m.bumping > f.DLE {
		return &Bump{m.bumping}
	}
	m.bumping = 0
	if target, due := BumpTarget(f.SLE, f.DLE); due {
		m.bumping = target
		return &Bump{target}
	}
	return nil
}
