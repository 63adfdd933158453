package kip1279

import "kmirror/protocol"

// WriteMirrorStates (key 101, version 0): tells the owner of a mirror partition's state what to store.

// WriteMirrorStatesRequest holds states of one mirror. StoppedTopics are names whose records may be removed.
type WriteMirrorStatesRequest struct {
	MirrorName    string
	Topics        []WriteStateTopic
	StoppedTopics []string
	Tags          Tags
}

// WriteStateTopic is one topic of the request.
type WriteStateTopic struct {
	Name       string
	Partitions []WriteStatePartition
	Tags       Tags
}

// WriteStatePartition is one partition of the request. State UNKNOWN stores the epoch only; epoch -1 stores the state only.
type WriteStatePartition struct {
	PartitionIndex, LastMirrorEpoch int32
	State                           int8
	Tags                            Tags
}

// WriteMirrorStatesResponse answers it.
type WriteMirrorStatesResponse struct {
	Status
	Topics []PartitionOutcomes
	Tags   Tags
}

// PartitionOutcomes are results for partitions of one topic. TopicID (tag 10000, zero when not given) is for who asked by
// topic id.
type PartitionOutcomes struct {
	Name       string
	Partitions []PartitionOutcome
	TopicID    protocol.UUID
	Tags       Tags
}

// PartitionOutcome is the result for one partition. Extra is JSON (tag 10000): hint.
type PartitionOutcome struct {
	PartitionIndex int32
	ErrorCode      int16
	ErrorMessage   *string
	Extra          []byte
	Tags           Tags
}

// Key returns 101.
func (*WriteMirrorStatesRequest) Key() int16 { return KeyWriteMirrorStates }

// Key returns 101.
func (*WriteMirrorStatesResponse) Key() int16 { return KeyWriteMirrorStates }

func (m *WriteMirrorStatesRequest) walk(c *codec) {
	c.string(&m.MirrorName)
	array(c, &m.Topics, false, func(t *WriteStateTopic) {
		c.string(&t.Name)
		array(c, &t.Partitions, false, func(p *WriteStatePartition) {
			c.int32(&p.PartitionIndex)
			c.int32(&p.LastMirrorEpoch)
			c.int8(&p.State)
			c.tags(&p.Tags)
		})
		c.tags(&t.Tags)
	})
	c.strings(&m.StoppedTopics)
	c.tags(&m.Tags)
}

func (m *WriteMirrorStatesResponse) walk(c *codec) {
	m.Status.walk(c)
	walkPartitionOutcomes(c, &m.Topics)
	c.tags(&m.Tags)
}

func walkPartitionOutcomes(c *codec, topics *[]PartitionOutcomes) {
	array(c, topics, false, func(t *PartitionOutcomes) {
		c.string(&t.Name)
		array(c, &t.Partitions, false, func(p *PartitionOutcome) {
			c.int32(&p.PartitionIndex)
			c.int16(&p.ErrorCode)
			c.nullable(&p.ErrorMessage)
			c.tags(&p.Tags, own(FirstOwnTag, &p.Extra))
		})
		c.tags(&t.Tags, field{FirstOwnTag, t.TopicID != protocol.UUID{}, func(c *codec) { c.uuid(&t.TopicID) }})
	})
}
