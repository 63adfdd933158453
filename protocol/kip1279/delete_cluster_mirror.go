package kip1279

// DeleteClusterMirror (key 104, version 0): removes a definition whose topics are all STOPPED.

// DeleteClusterMirrorRequest names the mirror. StateValidationOffset is the metadata offset at which the sender judged the
// states, -1 for none.
type DeleteClusterMirrorRequest struct {
	MirrorName            string
	StateValidationOffset int64
	// Options is JSON (tag 10000): dry_run as a boolean.
	Options []byte
	Tags    Tags
}

// DeleteClusterMirrorResponse answers it.
type DeleteClusterMirrorResponse struct {
	Status
	Extra []byte
	Tags  Tags
}

// Key returns 104.
func (*DeleteClusterMirrorRequest) Key() int16 { return KeyDeleteClusterMirror }

// Key returns 104.
func (*DeleteClusterMirrorResponse) Key() int16 { return KeyDeleteClusterMirror }

func (m *DeleteClusterMirrorRequest) setDefaults() { m.StateValidationOffset = -1 }

func (m *DeleteClusterMirrorRequest) walk(c *codec) {
	c.string(&m.MirrorName)
	c.int64(&m.StateValidationOffset)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Options))
}

func (m *DeleteClusterMirrorResponse) walk(c *codec) {
	m.Status.walk(c)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Extra))
}
