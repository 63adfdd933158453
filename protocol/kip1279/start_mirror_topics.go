package kip1279

import "kmirror/protocol"

// StartMirrorTopics (key 95, version 0): begins to mirror topics, by name or by pattern over the source's topics.

// StartMirrorTopicsRequest names topics, patterns (RE2 over the whole name), or both. kmirror needs neither TopicID nor
// NumPartitions: it asks the source itself, and refuses a TopicID that is given and is not the source's.
type StartMirrorTopicsRequest struct {
	MirrorName            string
	Topics                []StartTopic
	StateValidationOffset int64
	IncludePatterns       []string // tag 0
	ExcludePatterns       []string // tag 1
	// Options is JSON (tag 10000): overwrite and dry_run as booleans, exclude as a list of literal names.
	Options []byte
	Tags    Tags
}

// StartTopic is one topic named by a StartMirrorTopicsRequest.
type StartTopic struct {
	TopicID       protocol.UUID
	TopicName     string
	NumPartitions int32
	Tags          Tags
}

// StartMirrorTopicsResponse has an entry for every topic that matched.
type StartMirrorTopicsResponse struct {
	Status
	Topics []TopicOutcome
	Extra  []byte
	Tags   Tags
}

// TopicOutcome is the result for one topic. Extra is JSON (tag 10000): hint, partitions, plan.
type TopicOutcome struct {
	Name         string
	ErrorCode    int16
	ErrorMessage *string
	Extra        []byte
	Tags         Tags
}

// Key returns 95.
func (*StartMirrorTopicsRequest) Key() int16 { return KeyStartMirrorTopics }

// Key returns 95.
func (*StartMirrorTopicsResponse) Key() int16 { return KeyStartMirrorTopics }

func (m *StartMirrorTopicsRequest) setDefaults() { m.StateValidationOffset = -1 }

func (m *StartMirrorTopicsRequest) walk(c *codec) {
	c.string(&m.MirrorName)
	array(c, &m.Topics, false, func(t *StartTopic) {
		c.uuid(&t.TopicID)
		c.string(&t.TopicName)
		c.int32(&t.NumPartitions)
		c.tags(&t.Tags)
	})
	c.int64(&m.StateValidationOffset)
	c.tags(&m.Tags,
		field{0, len(m.IncludePatterns) > 0, func(c *codec) { c.strings(&m.IncludePatterns) }},
		field{1, len(m.ExcludePatterns) > 0, func(c *codec) { c.strings(&m.ExcludePatterns) }},
		own(FirstOwnTag, &m.Options))
}

func (m *StartMirrorTopicsResponse) walk(c *codec) {
	m.Status.walk(c)
	walkOutcomes(c, &m.Topics)
	c.tags(&m.Tags, own(FirstOwnTag, &m.Extra))
}

func walkOutcomes(c *codec, topics *[]TopicOutcome) {
	array(c, topics, false, func(t *TopicOutcome) {
		c.string(&t.Name)
		c.int16(&t.ErrorCode)
		c.nullable(&t.ErrorMessage)
		c.tags(&t.Tags, own(FirstOwnTag, &t.Extra))
	})
}
