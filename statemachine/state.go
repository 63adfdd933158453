package statemachine

import "fmt"

// State of a mirror partition: names of KIP-1279, numbers of the first complete public tree.
type State int8

// States. Absence of a stored state is Unknown.
const (
	Unknown      State = -1
	Preparing    State = 0
	EpochFencing State = 1
	Mirroring    State = 2
	Pausing      State = 3
	Paused       State = 4
	Stopping     State = 5
	Stopped      State = 6
	Failed       State = 7
)

var stateNames = map[State]string{
	Unknown: "UNKNOWN", Preparing: "PREPARING", EpochFencing: "EPOCH_FENCING", Mirroring: "MIRRORING", Pausing: "PAUSING",
	Paused: "PAUSED", Stopping: "STOPPING", Stopped: "STOPPED", Failed: "FAILED",
}

// String returns the KIP's upper-case name.
func (s State) String() string {
	if n, ok := stateNames[s]; ok {
		return n
	}
	return fmt.Sprintf("State(%d)", int8(s))
}

// ParseState reads a KIP name.
func ParseState(name string) (State, error) {
	for s, n := range stateNames {
		if n == name {
			return s, nil
		}
	}
	return Unknown, fmt.Errorf("%q is not a mirror partition state", name)
}
