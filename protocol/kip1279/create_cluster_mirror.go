package kip1279

// CreateClusterMirror (key 94, version 0): stores a mirror definition. kmirror registers version 0.

// CreateClusterMirrorRequest must hold bootstrap.servers in Config.
type CreateClusterMirrorRequest struct {
	MirrorName string
	Config     []ConfigEntry
	// Options is JSON (tag 10000): repeatable as a boolean, by which a definition equal to the stored one is no error.
	Options []byte
	Tags    Tags
}

// ConfigEntry is one property of a mirror.
type ConfigEntry struct {
	Name  string
	Value *string
	Tags  Tags
}

// CreateClusterMirrorResponse answers it.
type CreateClusterMirrorResponse struct {
	Status
	// Extra is JSON with the hint and exit code of an error (tag 10000).
	Extra []byte
	Tags  Tags
}

// Key returns 94.
func (*CreateClusterMirrorRequest) Key() int16 { return KeyCreateClusterMirror }

// Key returns 94.
func (*CreateClusterMirrorResponse) Key() int16 { return KeyCreateClusterMirror }

func (m *CreateClusterMirrorRequest) walk(c *codec) {
	c.string(&m.MirrorName)
	array(c, &m.Config, false, func(e *ConfigEntry) {
		c.string(&e.Name)
		c.nullable(&e.Value)
		c.tags(&e.Tags)
	})
	c.tags(&m.Tags, own(FirstOwnTag, &m.Options))
}

func (m *CreateClusterMirrorResponse) walk(c *codec) {
	m.Status.walk(c)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Extra))
}
