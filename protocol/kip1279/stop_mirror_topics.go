package kip1279

// StopMirrorTopics (key 96, version 0): stops mirroring and makes topics writable (failover).

// StopMirrorTopicsRequest names topics, patterns over mirrored topics, or both.
type StopMirrorTopicsRequest struct {
	MirrorName            string
	Topics                []NamedTopic
	StateValidationOffset int64
	Patterns              []string // tag 0
	// Options is JSON (tag 10000): drain, force and dry_run as booleans, max_loss as a number of records.
	Options []byte
	Tags    Tags
}

// NamedTopic is a topic given by name alone.
type NamedTopic struct {
	TopicName string
	Tags      Tags
}

// StopMirrorTopicsResponse has an entry for every topic that matched.
type StopMirrorTopicsResponse struct {
	Status
	Topics []TopicOutcome
	Extra  []byte
	Tags   Tags
}

// Key returns 96.
func (*StopMirrorTopicsRequest) Key() int16 { return KeyStopMirrorTopics }

// Key returns 96.
func (*StopMirrorTopicsResponse) Key() int16 { return KeyStopMirrorTopics }

func (m *StopMirrorTopicsRequest) setDefaults() { m.StateValidationOffset = -1 }

func (m *StopMirrorTopicsRequest) walk(c *codec) {
	c.string(&m.MirrorName)
	walkNamed(c, &m.Topics)
	c.int64(&m.StateValidationOffset)
	c.tags(&m.Tags,
		field{0, len(m.Patterns) > 0, func(c *codec) { c.strings(&m.Patterns) }},
		own(FirstOwnTag, &m.Options))
}

func (m *StopMirrorTopicsResponse) walk(c *codec) {
	m.Status.walk(c)
	walkOutcomes(c, &m.Topics)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Extra))
}

func walkNamed(c *codec, topics *[]NamedTopic) {
	array(c, topics, false, func(t *NamedTopic) {
		c.string(&t.TopicName)
		c.tags(&t.Tags)
	})
}
