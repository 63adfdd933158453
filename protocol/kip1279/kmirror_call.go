package kip1279

// KmirrorCall (key 30001, version 0): kmirror's own, for verbs that the KIP has no RPC for. Not part of KIP-1279.

// KmirrorCallRequest names a verb; Payload is JSON.
type KmirrorCallRequest struct {
	Verb    string
	Payload []byte
	Tags    Tags
}

// KmirrorCallResponse answers it; Payload is JSON, empty after an error.
type KmirrorCallResponse struct {
	Status
	Payload []byte
	Extra   []byte
	Tags    Tags
}

// Key returns 30001.
func (*KmirrorCallRequest) Key() int16 { return KeyKmirrorCall }

// Key returns 30001.
func (*KmirrorCallResponse) Key() int16 { return KeyKmirrorCall }

func (m *KmirrorCallRequest) walk(c *codec) {
	c.string(&m.Verb)
	c.bytes(&m.Payload)
	c.tags(&m.Tags)
}

func (m *KmirrorCallResponse) walk(c *codec) {
	m.Status.walk(c)
	c.bytes(&m.Payload)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Extra))
}
