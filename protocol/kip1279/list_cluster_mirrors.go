package kip1279

// ListClusterMirrors (key 98, version 0): the definitions that exist.

// ListClusterMirrorsRequest asks for all mirrors.
type ListClusterMirrorsRequest struct {
	IncludeTopicNames bool
	Tags              Tags
}

// ListClusterMirrorsResponse answers it.
type ListClusterMirrorsResponse struct {
	Status
	Mirrors []ListedMirror
	Extra   []byte
	Tags    Tags
}

// ListedMirror is one mirror. TopicCount leaves out paused and stopped topics, TopicNames only the stopped ones. Extra is JSON (tag
// 10000): its properties, where topic names were asked for.
type ListedMirror struct {
	MirrorName, SourceBootstrap, SourceClusterID string
	TopicCount                                   int32
	TopicNames                                   []string
	Extra                                        []byte
	Tags                                         Tags
}

// Key returns 98.
func (*ListClusterMirrorsRequest) Key() int16 { return KeyListClusterMirrors }

// Key returns 98.
func (*ListClusterMirrorsResponse) Key() int16 { return KeyListClusterMirrors }

func (m *ListClusterMirrorsRequest) walk(c *codec) {
	c.bool(&m.IncludeTopicNames)
	c.tags(&m.Tags)
}

func (m *ListClusterMirrorsResponse) walk(c *codec) {
	m.Status.walk(c)
	array(c, &m.Mirrors, false, func(l *ListedMirror) {
		c.string(&l.MirrorName)
		c.string(&l.SourceBootstrap)
		c.string(&l.SourceClusterID)
		c.int32(&l.TopicCount)
		array(c, &l.TopicNames, true, c.string)
		c.tags(&l.Tags, own(FirstOwnTag, &l.Extra))
	})
	c.tags(&m.Tags, own(FirstOwnTag, &m.Extra))
}
