package statemachine

import "fmt"

// New returns a partition of which nothing is known.
func New() *Machine { return &Machine{State: Unknown, Previous: Unknown} }

// Step takes one event. An error is a *TransitionError or an unknown event; the machine is unchanged then.
func (m *Machine) Step(ev Event) ([]Effect, error) {
	switch ev := ev.(type) {
	case Load:
		m.State, m.Previous = ev.State, ev.Previous
		m.Retry, m.Reason, m.Hint, m.Final = ev.Retry, ev.Reason, ev.Hint, ev.Final
		m.Stop, m.Aligned, m.bumping = ev.Stop, ev.Aligned || ev.State == Mirroring, 0
		if m.State == Failed && !m.Final {
			return []Effect{RetryAfter{max(m.Retry, 1)}}, nil
		}
		return nil, nil
	case Start:
		return m.start(ev)
	case Recover:
		return m.recover(ev)
	case Marked:
		return m.marked()
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
	switch to {
	case Preparing:
		m.Aligned, m.Stop = false, StopFreeze
	case Mirroring:
		m.Aligned = true
	}
	return []Effect{Store{}}, nil
}

func (m *Machine) start(ev Start) ([]Effect, error) {
	switch m.State {
	case Unknown, Stopped:
		return m.become(Preparing, ev)
	case Failed:
		m.clear()
		if ev.Overwrite {
			return m.become(Preparing, ev)
		}
		return m.become(m.origin(), ev)
	case Preparing, Mirroring, EpochFencing:
		return nil, nil // a goal already reached, or on its way
	}
	return nil, &TransitionError{m.State, Preparing, ev}
}

// recover goes back to where a partition failed, as if it had never failed. Others it leaves alone.
func (m *Machine) recover(ev Event) ([]Effect, error) {
	if m.State != Failed {
		return nil, nil
	}
	m.clear()
	return m.become(m.origin(), ev)
}

// clear forgets failures.
func (m *Machine) clear() {
	m.Retry, m.Reason, m.Hint, m.Final = 0, "", "", false
	m.bumping = 0
}

// marked takes the second step of a stop.
func (m *Machine) marked() ([]Effect, error) {
	if m.State != Stopping || m.Stop != StopFreeze {
		return nil, nil // it was marked already, or does not stop any more
	}
	m.Stop = StopMarked
	return []Effect{Store{}}, nil
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

// retry goes back to where the partition failed.
func (m *Machine) retry(ev Event) ([]Effect, error) {
	if m.State != Failed || m.Final {
		return nil, nil
	}
	return m.become(m.origin(), ev)
}

// origin is the state that a FAILED partition goes on in. What stopped half way during PREPARING starts there again; EPOCH_FENCING
// and PAUSING are found again from MIRRORING, and a stop goes on at its step.
func (m *Machine) origin() State {
	switch m.Previous {
	case Mirroring, EpochFencing, Pausing, Paused:
		return Mirroring
	case Stopping:
		return Stopping
	}
	return Preparing
}

func (m *Machine) observe(ev Observe) ([]Effect, error) {
	f := ev.Facts
	if f.Desired == Stopped && m.State != Stopping && Allowed(m.State, Stopping) && !(m.State == Failed && m.Previous == Stopping) {
		m.clear()
		m.Stop = StopFreeze
		return m.become(Stopping, ev)
	}
	switch m.State {
	case Preparing:
		return m.prepare(ev, f)
	case Mirroring, EpochFencing:
		return m.mirror(ev, f)
	case Pausing, Paused:
		return m.pause(ev, f)
	case Stopping:
		return m.stop(ev, f)
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
		return m.written()
	}
	if !f.Leading {
		m.bumping = 0
		return []Effect{Lead{}}, nil
	}
	if !f.Locked {
		// Undone by others: while we lead, nobody can produce, so the log stays whole meanwhile.
		return []Effect{Lock{}, Serve{}}, nil
	}
	if f.Desired == Paused && m.State == Mirroring {
		eff, err := m.become(Pausing, ev)
		return append(eff, Drain{}), err
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

// written fails a partition that a real broker led without the lock: what clients wrote meanwhile is theirs, and not ours to
// truncate.
func (m *Machine) written() ([]Effect, error) {
	return m.fail(Fail{Final: true, Reason: "the topic was unlocked while a real broker led it: it may hold records that the source does not have",
		Hint: "start it with --overwrite to discard those and mirror again from the start, or leave it to its writers: " +
			"kmirror failover takes kmirror's ids out of it"})
}

// pause brings the in-sync replicas to one end and then appends nothing more. A real broker that leads meanwhile appends nothing
// either: the topic is locked.
func (m *Machine) pause(ev Event, f Facts) ([]Effect, error) {
	switch {
	case !f.Leading && f.Open:
		return m.written()
	case f.Leading && !f.Locked:
		return []Effect{Lock{}, Freeze{}}, nil
	case m.State == Pausing && f.Leading && !f.Converged && !f.Stuck:
		return []Effect{Drain{}}, nil
	case m.State == Pausing:
		eff, err := m.become(Paused, ev)
		return append(eff, Freeze{}), err
	case f.Desired == Mirroring:
		return m.become(Mirroring, ev)
	}
	return []Effect{Freeze{}}, nil
}

// stop takes the steps of a stop one after the other. What the operator wants meanwhile waits for its end. A topic that a real
// broker leads without the lock has its writers already: all that is left is to leave it.
func (m *Machine) stop(ev Event, f Facts) ([]Effect, error) {
	if m.Stop != StopTailed && !f.Leading && f.Open {
		m.Stop = StopTailed
		return []Effect{Store{}}, nil
	}
	switch m.Stop {
	case StopFreeze:
		switch {
		case !f.Leading && !f.Converged:
			return []Effect{Settle{}}, nil
		case !f.Leading:
			return []Effect{Retake{}}, nil
		case f.Stuck:
			return []Effect{Release{}}, nil
		case !f.Converged:
			return []Effect{Drain{}}, nil
		}
		return []Effect{Drain{}, Mark{}}, nil
	case StopMarked:
		switch b := m.bump(Facts{SLE: max(f.LME, f.SLE), DLE: f.DLE}); {
		case !f.Leading:
			m.bumping = 0
			return []Effect{Retake{}}, nil
		case b != nil:
			return []Effect{Drain{}, *b}, nil
		case !f.Tailed && f.Blocked:
			return []Effect{Tail{}, Bump{f.DLE + 1}}, nil
		case !f.Tailed:
			return []Effect{Tail{}}, nil
		}
		m.Stop = StopTailed
		return []Effect{Store{}, Hold{}}, nil
	}
	switch {
	case !f.TopicTailed:
		return []Effect{Hold{}}, nil
	case !f.Free:
		return []Effect{Hold{}, Unlock{}}, nil
	case !f.HandedOver:
		return []Effect{Hold{}, HandOver{}}, nil
	}
	m.clear()
	return m.become(Stopped, ev)
}
