package kip1279

// ReadMirrorStates (key 100, version 0): asks the owner of a mirror partition's state for it.

// ReadMirrorStatesRequest names partitions of one mirror.
type ReadMirrorStatesRequest struct {
	MirrorName string
	Topics     []ReadStateTopic
	Tags       Tags
}

// ReadStateTopic is one topic of the request.
type ReadStateTopic struct {
	Name       string
	Partitions []ReadStatePartition
	Tags       Tags
}

// ReadStatePartition is one partition of the request.
type ReadStatePartition struct {
	PartitionIndex int32
	Tags           Tags
}

// ReadMirrorStatesResponse answers it.
type ReadMirrorStatesResponse struct {
	Status
	Topics []StateTopic
	Tags   Tags
}

// StateTopic is one topic of the answer.
type StateTopic struct {
	Name       string
	Partitions []StatePartition
	Tags       Tags
}

// StatePartition is the stored state of one partition. The schema's default of PreviousState, 16, is the number that
// UNKNOWN once had.
type StatePartition struct {
	PartitionIndex, LastMirrorEpoch int32
	State                           int8
	ErrorCode                       int16
	PreviousState                   int8
	RetryAttempt                    int16
	ErrorMessage                    *string
	Tags                            Tags
}

// Key returns 100.
func (*ReadMirrorStatesRequest) Key() int16 { return KeyReadMirrorStates }

// Key returns 100.
func (*ReadMirrorStatesResponse) Key() int16 { return KeyReadMirrorStates }

func (m *ReadMirrorStatesRequest) walk(c *codec) {
	c.string(&m.MirrorName)
	walkReadTopics(c, &m.Topics)
	c.tags(&m.Tags)
}

func walkReadTopics(c *codec, topics *[]ReadStateTopic) {
	array(c, topics, false, func(t *ReadStateTopic) {
		c.string(&t.Name)
		array(c, &t.Partitions, false, func(p *ReadStatePartition) {
			c.int32(&p.PartitionIndex)
			c.tags(&p.Tags)
		})
		c.tags(&t.Tags)
	})
}

func (m *ReadMirrorStatesResponse) walk(c *codec) {
	m.Status.walk(c)
	array(c, &m.Topics, false, func(t *StateTopic) {
		c.string(&t.Name)
		array(c, &t.Partitions, false, func(p *StatePartition) {
			c.int32(&p.PartitionIndex)
			c.int32(&p.LastMirrorEpoch)
			c.int8(&p.State)
			c.int16(&p.ErrorCode)
			c.int8(&p.PreviousState)
			c.int16(&p.RetryAttempt)
			c.nullable(&p.ErrorMessage)
			c.tags(&p.Tags)
		})
		c.tags(&t.Tags)
	})
	c.tags(&m.Tags)
}
