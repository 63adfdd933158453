package coordinator

// For the tests with whole processes, which are outside the package since what they start imports it.
var (
	Held              = held
	CheckNoOldWrites  = checkNoStaleWrites
	StatesOfOneMirror = manyStates
	Standstill        = standstill
)
