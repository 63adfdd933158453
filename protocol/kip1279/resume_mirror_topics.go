package kip1279

// ResumeMirrorTopics (key 103, version 0): goes on with paused topics.

// ResumeMirrorTopicsRequest names topics of the mirror.
type ResumeMirrorTopicsRequest struct {
	MirrorName            string
	Topics                []NamedTopic
	StateValidationOffset int64
	// Options is JSON (tag 10000): patterns as a list of RE2 without slashes, dry_run as a boolean.
	Options []byte
	Tags    Tags
}

// ResumeMirrorTopicsResponse has an entry for every topic.
type ResumeMirrorTopicsResponse struct {
	Status
	Topics []TopicOutcome
	Extra  []byte
	Tags   Tags
}

// Key returns 103.
func (*ResumeMirrorTopicsRequest) Key() int16 { return KeyResumeMirrorTopics }

// Key returns 103.
func (*ResumeMirrorTopicsResponse) Key() int16 { return KeyResumeMirrorTopics }

func (m *ResumeMirrorTopicsRequest) setDefaults() { m.StateValidationOffset = -1 }

func (m *ResumeMirrorTopicsRequest) walk(c *codec) {
	c.string(&m.MirrorName)
	walkNamed(c, &m.Topics)
	c.int64(&m.StateValidationOffset)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Options))
}

func (m *ResumeMirrorTopicsResponse) walk(c *codec) {
	m.Status.walk(c)
	walkOutcomes(c, &m.Topics)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Extra))
}
