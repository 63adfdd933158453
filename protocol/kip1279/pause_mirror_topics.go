package kip1279

// PauseMirrorTopics (key 102, version 0): halts mirroring; topics stay read-only.

// PauseMirrorTopicsRequest names topics of the mirror.
type PauseMirrorTopicsRequest struct {
	MirrorName            string
	Topics                []NamedTopic
	StateValidationOffset int64
	// Options is JSON (tag 10000): patterns as a list of RE2 without slashes, dry_run as a boolean.
	Options []byte
	Tags    Tags
}

// PauseMirrorTopicsResponse has an entry for every topic.
type PauseMirrorTopicsResponse struct {
	Status
	Topics []TopicOutcome
	Extra  []byte
	Tags   Tags
}

// Key returns 102.
func (*PauseMirrorTopicsRequest) Key() int16 { return KeyPauseMirrorTopics }

// Key returns 102.
func (*PauseMirrorTopicsResponse) Key() int16 { return KeyPauseMirrorTopics }

func (m *PauseMirrorTopicsRequest) setDefaults() { m.StateValidationOffset = -1 }

func (m *PauseMirrorTopicsRequest) walk(c *codec) {
	c.string(&m.MirrorName)
	walkNamed(c, &m.Topics)
	c.int64(&m.StateValidationOffset)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Options))
}

func (m *PauseMirrorTopicsResponse) walk(c *codec) {
	m.Status.walk(c)
	walkOutcomes(c, &m.Topics)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Extra))
}
