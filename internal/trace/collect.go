package trace

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

const (
	unsupportedVersion = 35
	metadataTopic      = "__cluster_metadata"
	// topicResource is the resource type of topics in configs and in ACLs alike.
	topicResource = "TOPIC"

	// maxErrors and maxTopics bound what is kept of one message; what is left out is counted.
	maxErrors = 100
	maxTopics = 10_000
)

// metadataTopicID is the metadata log's (Uuid.METADATA_TOPIC_ID).
var metadataTopicID = protocol.UUID{15: 1}

// collector goes through a message for what a line shows of it.
type collector struct {
	d     *Decoder
	e     *Event
	index map[string]int // of e.Topics
	left  int            // for payloads, in bytes
}

// place is where in the message the collector is.
type place struct {
	// top: in no list or structure, so that an error is one of the whole response.
	top       bool
	topic     string
	partition int32
	label     string
}

func (p place) about() string {
	switch {
	case p.topic != "" && p.partition >= 0:
		return fmt.Sprintf("%s-%d", p.topic, p.partition)
	case p.topic != "":
		return p.topic
	}
	return p.label
}

// labels are the fields that name what an error is about, where that is no topic.
var labels = []string{"Group", "GroupID", "ResourceName", "Name", "User", "TransactionalID", "MemberID", "Key", "Feature"}

// topicLists are the fields that list names of topics.
var topicLists = []string{"Topics", "TopicNames", "SubscribedTopicNames"}

// collect fills Topics, Errors and Batches. The library's types all look alike, so one walk serves every API.
func (d *Decoder) collect(e *Event) {
	c := collector{d: d, e: e, index: make(map[string]int), left: d.cfg.PayloadBytes}
	c.visit(reflect.ValueOf(e.Body), place{top: true, partition: -1})
}

func (c *collector) visit(v reflect.Value, at place) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			c.visit(v.Elem(), at)
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k == reflect.Struct || k == reflect.Pointer {
			for i := range v.Len() {
				c.visit(v.Index(i), at)
			}
		}
	case reflect.Struct:
		c.message(v, at)
	}
}

func (c *collector) message(v reflect.Value, at place) {
	fields := fieldsOf(v.Type())
	at = c.locate(v, fields, at)
	for _, f := range fields {
		field := v.Field(f.index)
		switch {
		case f.errorCode:
			c.fail(int16(field.Int()), at)
		case f.records:
			c.d.batches(c.e, at.topic, at.partition, field.Bytes(), &c.left)
		case f.partitions:
			for _, p := range field.Interface().([]int32) {
				c.name(at.topic, p)
			}
		case f.topics:
			for _, t := range field.Interface().([]string) {
				c.name(t, -1)
			}
		case f.nested:
			inner := at
			inner.top = false
			c.visit(field, inner)
		}
	}
}

// locate reads what a structure says about itself.
func (c *collector) locate(v reflect.Value, fields []field, at place) place {
	var name, resource, label string
	var id protocol.UUID
	partition := int32(-1)
	for _, f := range fields {
		field := v.Field(f.index)
		switch {
		case f.name == "Topic":
			name = text(field)
		case f.name == "TopicID" && field.Type() == reflect.TypeFor[[16]byte]():
			id = field.Interface().([16]byte)
		case f.name == "Partition" && field.Kind() == reflect.Int32:
			partition = int32(field.Int())
		case f.name == "ResourceType":
			resource = fmt.Sprint(field.Interface())
		case label == "" && f.label:
			label = text(field)
		}
	}
	if resource == topicResource {
		name = label
	}
	switch {
	case name != "" && !id.IsZero():
		if _, known := c.d.names[id]; known || len(c.d.names) < maxNames {
			c.d.names[id] = name
		}
	case !id.IsZero():
		if name = c.d.names[id]; name == "" {
			name = id.String()
		}
	}
	if name != "" {
		at = place{top: at.top, topic: name, partition: -1}
		c.name(name, -1)
	}
	if partition >= 0 && at.topic != "" {
		at.partition = partition
		c.name(at.topic, partition)
	}
	if label != "" {
		at.label = label
	}
	return at
}

// text is that of a string or of a pointer to one.
func text(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.String {
		return ""
	}
	return v.String()
}

// name adds a topic, and a partition of it unless that is negative.
func (c *collector) name(topic string, partition int32) {
	if topic == "" {
		return
	}
	i, known := c.index[topic]
	if !known {
		if len(c.e.Topics) >= maxTopics {
			return
		}
		i = len(c.e.Topics)
		c.index[topic] = i
		c.e.Topics = append(c.e.Topics, Topic{Name: topic})
	}
	if partition >= 0 {
		c.e.Topics[i].Partitions = append(c.e.Topics[i].Partitions, partition)
	}
}

func (c *collector) fail(code int16, at place) {
	if code == 0 || c.e.Kind != Response {
		return
	}
	c.e.ErrorCount++
	err := Error{Code: code, About: at.about()}
	if at.top { // in some responses it stands at the end
		c.e.Errors = slices.Insert(c.e.Errors, 0, err)
	} else if len(c.e.Errors) < maxErrors {
		c.e.Errors = append(c.e.Errors, err)
	}
}

// field is one of a message's fields, and what it means to the collector.
type field struct {
	index int
	name  string
	// nested: may hold further structures.
	nested, errorCode, records, partitions, topics, label bool
}

var fieldCache sync.Map // of []field by reflect.Type

// fieldsOf returns the exported fields of a message's structure.
func fieldsOf(t reflect.Type) []field {
	if cached, ok := fieldCache.Load(t); ok {
		return cached.([]field)
	}
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		elem := f.Type
		for elem.Kind() == reflect.Slice || elem.Kind() == reflect.Pointer {
			elem = elem.Elem()
		}
		out = append(out, field{index: i, name: f.Name,
			nested:     elem.Kind() == reflect.Struct && elem != reflect.TypeFor[kmsg.Tags](),
			errorCode:  strings.HasSuffix(f.Name, "ErrorCode") && f.Type.Kind() == reflect.Int16,
			records:    (f.Name == "Records" || f.Name == "RecordBatches") && f.Type == reflect.TypeFor[[]byte](),
			partitions: f.Name == "Partitions" && f.Type == reflect.TypeFor[[]int32](),
			topics:     slices.Contains(topicLists, f.Name) && f.Type == reflect.TypeFor[[]string](),
			label:      slices.Contains(labels, f.Name) && elem.Kind() == reflect.String})
	}
	fieldCache.Store(t, out)
	return out
}
