package kip1279

// ReadMirrorOffsets (key 106, version 0): how far mirroring of partitions is. A later generation asks partition leaders for it.

// ReadMirrorOffsetsRequest names partitions of one mirror.
type ReadMirrorOffsetsRequest struct {
	MirrorName string
	Topics     []OffsetsTopic
	Tags       Tags
}

// OffsetsTopic is one topic of the request.
type OffsetsTopic struct {
	TopicName  string
	Partitions []int32
	Tags       Tags
}

// ReadMirrorOffsetsResponse answers it.
type ReadMirrorOffsetsResponse struct {
	Status
	Topics []MirrorOffsetsTopic
	Tags   Tags
}

// MirrorOffsetsTopic is one topic of the answer.
type MirrorOffsetsTopic struct {
	TopicName  string
	Partitions []MirrorOffsets
	Tags       Tags
}

// MirrorOffsets are of one partition; -1 where they are not known.
type MirrorOffsets struct {
	PartitionIndex                  int32
	SourceOffset, DestinationOffset int64
	Tags                            Tags
}

// Key returns 106.
func (*ReadMirrorOffsetsRequest) Key() int16 { return KeyReadMirrorOffsets }

// Key returns 106.
func (*ReadMirrorOffsetsResponse) Key() int16 { return KeyReadMirrorOffsets }

func (m *ReadMirrorOffsetsRequest) walk(c *codec) {
	c.string(&m.MirrorName)
	array(c, &m.Topics, false, func(t *OffsetsTopic) {
		c.string(&t.TopicName)
		c.int32s(&t.Partitions)
		c.tags(&t.Tags)
	})
	c.tags(&m.Tags)
}

func (m *ReadMirrorOffsetsResponse) walk(c *codec) {
	m.Status.walk(c)
	array(c, &m.Topics, false, func(t *MirrorOffsetsTopic) {
		c.string(&t.TopicName)
		array(c, &t.Partitions, false, func(p *MirrorOffsets) {
			c.int32(&p.PartitionIndex)
			c.int64(&p.SourceOffset)
			c.int64(&p.DestinationOffset)
			c.tags(&p.Tags)
		})
		c.tags(&t.Tags)
	})
	c.tags(&m.Tags)
}
