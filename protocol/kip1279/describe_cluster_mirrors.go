package kip1279

import "kmirror/protocol"

// DescribeClusterMirrors (key 99, version 0): states and positions of partitions, and the lookup of last mirrored epochs
// that another cluster needs for failback.

// DescribeClusterMirrorsRequest selects mirrors by name; none (or null) means all. With ClusterID it is a lookup: the
// asker's own cluster id and the partitions, by the asker's topic ids, whose last mirrored epoch it wants.
type DescribeClusterMirrorsRequest struct {
	MirrorNames                 []string
	IncludeAuthorizedOperations bool
	ClusterID                   *string       // tag 0
	Lookups                     []EpochLookup // tag 1
	// Options is JSON (tag 10000): topics as a list of names and /re/.
	Options []byte
	Tags    Tags
}

// EpochLookup is one topic of a lookup.
type EpochLookup struct {
	TopicID    protocol.UUID
	Partitions []int32
	Tags       Tags
}

// DescribeClusterMirrorsResponse answers it.
type DescribeClusterMirrorsResponse struct {
	Status
	Mirrors       []DescribedMirror
	LookupResults []EpochLookupResult // tag 0
	Extra         []byte
	Tags          Tags
}

// DescribedMirror is one mirror; AuthorizedOperations is NoOperations when not asked for.
type DescribedMirror struct {
	ErrorCode            int16
	MirrorName           string
	AuthorizedOperations int32
	Topics               []DescribedTopic
	Tags                 Tags
}

// NoOperations is AuthorizedOperations of an answer that does not tell.
const NoOperations int32 = -2147483648

// DescribedTopic is one topic of a mirror.
type DescribedTopic struct {
	TopicName  string
	Partitions []DescribedPartition
	Tags       Tags
}

// DescribedPartition is one partition; offsets and lag are -1 while unknown. Extra is JSON (tag 10000) with what else
// kmirror knows of it.
type DescribedPartition struct {
	PartitionIndex                       int32
	SourceOffset, DestinationOffset, Lag int64
	StateValue                           string
	RetryAttempt                         int16
	ErrorMessage                         *string
	Extra                                []byte
	Tags                                 Tags
}

// EpochLookupResult is one topic of a lookup's answer.
type EpochLookupResult struct {
	TopicID    protocol.UUID
	Partitions []LastMirrorEpochResult
	Tags       Tags
}

// LastMirrorEpochResult is -1 where nothing is known.
type LastMirrorEpochResult struct {
	PartitionIndex, LastMirrorEpoch int32
	Tags                            Tags
}

// Key returns 99.
func (*DescribeClusterMirrorsRequest) Key() int16 { return KeyDescribeClusterMirrors }

// Key returns 99.
func (*DescribeClusterMirrorsResponse) Key() int16 { return KeyDescribeClusterMirrors }

func (m *DescribeClusterMirrorsRequest) walk(c *codec) {
	array(c, &m.MirrorNames, true, c.string)
	c.bool(&m.IncludeAuthorizedOperations)
	c.tags(&m.Tags,
		field{0, m.ClusterID != nil, func(c *codec) { c.nullable(&m.ClusterID) }},
		field{1, len(m.Lookups) > 0, func(c *codec) {
			array(c, &m.Lookups, false, func(l *EpochLookup) {
				c.uuid(&l.TopicID)
				c.int32s(&l.Partitions)
				c.tags(&l.Tags)
			})
		}},
		own(FirstOwnTag, &m.Options))
}

func (m *DescribeClusterMirrorsResponse) walk(c *codec) {
	m.Status.walk(c)
	array(c, &m.Mirrors, false, func(d *DescribedMirror) {
		c.int16(&d.ErrorCode)
		c.string(&d.MirrorName)
		c.int32(&d.AuthorizedOperations)
		array(c, &d.Topics, false, func(t *DescribedTopic) { t.walk(c) })
		c.tags(&d.Tags)
	})
	c.tags(&m.Tags,
		field{0, len(m.LookupResults) > 0, m.walkLookupResults},
		own(FirstOwnTag, &m.Extra))
}

func (m *DescribeClusterMirrorsResponse) walkLookupResults(c *codec) {
	array(c, &m.LookupResults, false, func(l *EpochLookupResult) {
		c.uuid(&l.TopicID)
		array(c, &l.Partitions, false, func(p *LastMirrorEpochResult) {
			c.int32(&p.PartitionIndex)
			c.int32(&p.LastMirrorEpoch)
			c.tags(&p.Tags)
		})
		c.tags(&l.Tags)
	})
}

func (t *DescribedTopic) walk(c *codec) {
	c.string(&t.TopicName)
	array(c, &t.Partitions, false, func(p *DescribedPartition) {
		c.int32(&p.PartitionIndex)
		c.int64(&p.SourceOffset)
		c.int64(&p.DestinationOffset)
		c.int64(&p.Lag)
		c.string(&p.StateValue)
		c.int16(&p.RetryAttempt)
		c.nullable(&p.ErrorMessage)
		c.tags(&p.Tags, own(FirstOwnTag, &p.Extra))
	})
	c.tags(&t.Tags)
}
