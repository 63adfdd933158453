package statemachine

import "fmt"

// transitions is the one table of allowed moves: state -> states that it may go to. Staying put is always allowed, FAILED
// may be entered from anywhere. The diagram in docs/architecture.md is made from it (see Diagram).
var transitions = map[State][]State{
	Unknown:      {Preparing},
	Preparing:    {Mirroring, Stopping, Failed},
	EpochFencing: {Mirroring, Stopping, Failed},
	Mirroring:    {EpochFencing, Pausing, Stopping, Failed},
	Pausing:      {Paused, Stopping, Failed},
	Paused:       {Mirroring, Stopping, Failed},
	Stopping:     {Stopped, Failed},
	Stopped:      {Preparing, Failed},
	Failed:       {Preparing, Mirroring, Stopping},
}

// order in which states are listed wherever a listing must be stable.
var order = []State{Unknown, Preparing, EpochFencing, Mirroring, Pausing, Paused, Stopping, Stopped, Failed}

// Allowed reports whether a partition may go from one state to another.
func Allowed(from, to State) bool {
	if from == to || to == Failed {
		return true
	}
	for _, s := range transitions[from] {
		if s == to {
			return true
		}
	}
	return false
}

// TransitionError is a move that the table forbids: a bug of the caller, or a stored state from another version.
type TransitionError struct {
	From, To State
	Event    Event
}

func (e *TransitionError) Error() string {
	return fmt.Sprintf("a partition in %s may not become %s on %s", e.From, e.To, e.Event)
}

// Diagram draws the table as a Mermaid state diagram.
func Diagram() string {
	s := "stateDiagram-v2\n"
	for _, from := range order {
		for _, to := range order {
			if from == to || from == Unknown && to == Failed || len(transitions[from]) == 0 || !Allowed(from, to) {
				continue
			}
			s += fmt.Sprintf("    %s --> %s\n", from, to)
		}
	}
	return s
}
