package kip1279

// RecoverMirrorTopics (key 107, version 0; from the generation after the one that the other messages follow): puts FAILED
// partitions back to the state they failed in.

// RecoverMirrorTopicsRequest names topics of the mirror.
type RecoverMirrorTopicsRequest struct {
	MirrorName string
	Topics     []NamedTopic
	// Options is JSON (tag 10000): patterns as a list of RE2 without slashes, dry_run as a boolean.
	Options []byte
	Tags    Tags
}

// RecoverMirrorTopicsResponse has an entry for every topic.
type RecoverMirrorTopicsResponse struct {
	Status
	Topics []TopicOutcome
	Extra  []byte
	Tags   Tags
}

// Key returns 107.
func (*RecoverMirrorTopicsRequest) Key() int16 { return KeyRecoverMirrorTopics }

// Key returns 107.
func (*RecoverMirrorTopicsResponse) Key() int16 { return KeyRecoverMirrorTopics }

func (m *RecoverMirrorTopicsRequest) walk(c *codec) {
	c.string(&m.MirrorName)
	walkNamed(c, &m.Topics)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Options))
}

func (m *RecoverMirrorTopicsResponse) walk(c *codec) {
	m.Status.walk(c)
	walkOutcomes(c, &m.Topics)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Extra))
}
