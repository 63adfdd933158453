package kip1279

import "kmirror/protocol"

// BumpLeaderEpochs (key 105, version 0): raises leader epochs of partitions above a minimum. kmirror's own bumps need no
// request: it moves leadership between two of its node ids.

// BumpLeaderEpochsRequest names partitions by topic id.
type BumpLeaderEpochsRequest struct {
	Topics []BumpTopic
	Tags   Tags
}

// BumpTopic is one topic of the request.
type BumpTopic struct {
	TopicID    protocol.UUID
	Partitions []BumpPartition
	Tags       Tags
}

// BumpPartition asks for an epoch above MinLeaderEpoch.
type BumpPartition struct {
	PartitionIndex, MinLeaderEpoch int32
	Tags                           Tags
}

// BumpLeaderEpochsResponse answers it; no topics on success.
type BumpLeaderEpochsResponse struct {
	Status
	Topics []PartitionOutcomes
	Extra  []byte
	Tags   Tags
}

// Key returns 105.
func (*BumpLeaderEpochsRequest) Key() int16 { return KeyBumpLeaderEpochs }

// Key returns 105.
func (*BumpLeaderEpochsResponse) Key() int16 { return KeyBumpLeaderEpochs }

func (m *BumpLeaderEpochsRequest) walk(c *codec) {
	array(c, &m.Topics, false, func(t *BumpTopic) {
		c.uuid(&t.TopicID)
		array(c, &t.Partitions, false, func(p *BumpPartition) {
			c.int32(&p.PartitionIndex)
			c.int32(&p.MinLeaderEpoch)
			c.tags(&p.Tags)
		})
		c.tags(&t.Tags)
	})
	c.tags(&m.Tags)
}

func (m *BumpLeaderEpochsResponse) walk(c *codec) {
	m.Status.walk(c)
	walkPartitionOutcomes(c, &m.Topics)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Extra))
}
