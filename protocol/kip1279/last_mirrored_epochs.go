package kip1279

// LastMirroredEpochs (key 97, version 0): the last mirrored epochs of a mirror's partitions. An early draft had it; later ones look
// them up with DescribeClusterMirrors and ReadMirrorStates.

// LastMirroredEpochsRequest names partitions of one mirror.
type LastMirroredEpochsRequest struct {
	MirrorName string
	Topics     []ReadStateTopic
	Tags       Tags
}

// LastMirroredEpochsResponse answers it.
type LastMirroredEpochsResponse struct {
	Status
	Topics []LastMirroredTopic
	Tags   Tags
}

// LastMirroredTopic is one topic of the answer.
type LastMirroredTopic struct {
	Name       string
	Partitions []LastMirroredPartition
	Tags       Tags
}

// LastMirroredPartition is one partition; the epoch is -1 where nothing was mirrored.
type LastMirroredPartition struct {
	PartitionIndex, LastMirroredEpoch int32
	ErrorCode                         int16
	Tags                              Tags
}

// Key returns 97.
func (*LastMirroredEpochsRequest) Key() int16 { return KeyLastMirroredEpochs }

// Key returns 97.
func (*LastMirroredEpochsResponse) Key() int16 { return KeyLastMirroredEpochs }

func (m *LastMirroredEpochsRequest) walk(c *codec) {
	c.string(&m.MirrorName)
	walkReadTopics(c, &m.Topics)
	c.tags(&m.Tags)
}

func (m *LastMirroredEpochsResponse) walk(c *codec) {
	m.Status.walk(c)
	array(c, &m.Topics, false, func(t *LastMirroredTopic) {
		c.string(&t.Name)
		array(c, &t.Partitions, false, func(p *LastMirroredPartition) {
			c.int32(&p.PartitionIndex)
			c.int32(&p.LastMirroredEpoch)
			c.int16(&p.ErrorCode)
			c.tags(&p.Tags)
		})
		c.tags(&t.Tags)
	})
	c.tags(&m.Tags)
}
