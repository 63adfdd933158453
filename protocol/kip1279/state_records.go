package kip1279

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf16"

	"github.com/twmb/franz-go/pkg/kbin"

	"kmirror/protocol"
)

// Record types of __mirror_state. 1 and 2 are the KIP's; from 64 up they are kmirror's own.
const (
	RecordLastMirrorEpochs int16 = 1
	RecordPartitionState   int16 = 2
	RecordMirror           int16 = 64
	RecordMirrorTopic      int16 = 65
	// RecordOwner says who owns the partition of __mirror_state that it is in; its key holds nothing (an empty mirror name).
	RecordOwner int16 = 66
	// RecordMirrorACL is an ACL that a mirror created at the destination.
	RecordMirrorACL int16 = 67
)

// ErrUnknownRecord: the record type or its version is not known here. Such records are skipped, not removed: a newer
// kmirror wrote them.
var ErrUnknownRecord = errors.New("unknown __mirror_state record")

// StateKey is the key of a __mirror_state record. TopicID counts for types 1, 2 and 65, Partition for 1 and 2. In the place of
// TopicID type 67 has 16 bytes that are an ACL's identity.
type StateKey struct {
	Type      int16
	Mirror    string
	TopicID   protocol.UUID
	Partition int32
}

// LastMirrorEpochsValue is the value of type 1, version 0.
type LastMirrorEpochsValue struct {
	LastMirrorEpoch int32
	Tags            Tags
}

// PartitionStateValue is the value of type 2, version 0. The schema's default of PreviousState is 16, a number that UNKNOWN
// once had; readers take 16 for UNKNOWN. Extra is JSON (tag 10000): since when, hint.
type PartitionStateValue struct {
	State         int8
	PreviousState int8
	RetryAttempt  int16
	ErrorMessage  *string
	Extra         []byte
	Tags          Tags
}

// JSONValue is the value of types 64 to 67, version 0.
type JSONValue struct {
	JSON []byte
	Tags Tags
}

// StateValue is one of the value types.
type StateValue interface{ walkValue(c *codec) }

func (v *LastMirrorEpochsValue) walkValue(c *codec) {
	c.int32(&v.LastMirrorEpoch)
	c.tags(&v.Tags)
}

func (v *PartitionStateValue) walkValue(c *codec) {
	c.int8(&v.State)
	c.int8(&v.PreviousState)
	c.int16(&v.RetryAttempt)
	c.nullable(&v.ErrorMessage)
	c.tags(&v.Tags, own(FirstOwnTag, &v.Extra))
}

func (v *JSONValue) walkValue(c *codec) {
	c.bytes(&v.JSON)
	c.tags(&v.Tags)
}

// AppendStateKey encodes a key: its type, then plain (not flexible) fields. Names longer than a Kafka string are cut off by
// no one: callers validate them (249 characters).
func AppendStateKey(dst []byte, k StateKey) []byte {
	dst = kbin.AppendInt16(dst, k.Type)
	dst = kbin.AppendString(dst, k.Mirror)
	switch k.Type {
	case RecordLastMirrorEpochs, RecordPartitionState:
		dst = append(dst, k.TopicID[:]...)
		dst = kbin.AppendInt32(dst, k.Partition)
	case RecordMirrorTopic, RecordMirrorACL:
		dst = append(dst, k.TopicID[:]...)
	}
	return dst
}

// DecodeStateKey reads a key; ErrUnknownRecord for types that are not known here.
func DecodeStateKey(src []byte) (StateKey, error) {
	if len(src) < 2 {
		return StateKey{}, fmt.Errorf("%w: key of %d bytes", ErrMalformed, len(src))
	}
	k := StateKey{Type: int16(binary.BigEndian.Uint16(src))}
	r := kbin.Reader{Src: src[2:]}
	switch k.Type {
	case RecordLastMirrorEpochs, RecordPartitionState:
		k.Mirror, k.TopicID, k.Partition = r.String(), r.Uuid(), r.Int32()
	case RecordMirrorTopic, RecordMirrorACL:
		k.Mirror, k.TopicID = r.String(), r.Uuid()
	case RecordMirror, RecordOwner:
		k.Mirror = r.String()
	default:
		return k, fmt.Errorf("%w: type %d", ErrUnknownRecord, k.Type)
	}
	if !r.Ok() || len(r.Src) > 0 {
		return StateKey{}, fmt.Errorf("%w: key of type %d has %d bytes", ErrMalformed, k.Type, len(src))
	}
	return k, nil
}

// AppendStateValue encodes a value of version 0: the version, then flexible fields.
func AppendStateValue(dst []byte, v StateValue) []byte {
	c := codec{encoding: true, out: kbin.AppendInt16(dst, 0)}
	v.walkValue(&c)
	return c.out
}

// DecodeStateValue reads the value that belongs to a key of that type; ErrUnknownRecord for types and versions that are not
// known here.
func DecodeStateValue(recordType int16, src []byte) (StateValue, error) {
	if len(src) < 2 {
		return nil, fmt.Errorf("%w: value of %d bytes", ErrMalformed, len(src))
	}
	if v := int16(binary.BigEndian.Uint16(src)); v != 0 {
		return nil, fmt.Errorf("%w: type %d version %d", ErrUnknownRecord, recordType, v)
	}
	var v StateValue
	switch recordType {
	case RecordLastMirrorEpochs:
		v = &LastMirrorEpochsValue{}
	case RecordPartitionState:
		v = &PartitionStateValue{}
	case RecordMirror, RecordMirrorTopic, RecordOwner, RecordMirrorACL:
		v = &JSONValue{}
	default:
		return nil, fmt.Errorf("%w: type %d", ErrUnknownRecord, recordType)
	}
	c := codec{in: kbin.Reader{Src: src[2:]}}
	v.walkValue(&c)
	if err := c.finish(); err != nil {
		return nil, fmt.Errorf("value of type %d: %w", recordType, err)
	}
	return v, nil
}

// StatePartitionOf is the partition of __mirror_state that holds the records of a mirror partition.
func StatePartitionOf(mirror string, id protocol.UUID, partition, partitions int32) int32 {
	return (javaHash(fmt.Sprintf("%s:%s:%d", mirror, id, partition)) & math.MaxInt32) % partitions
}

// MirrorPartitionOf is the partition of __mirror_state whose owner is the metadata coordinator of a mirror; it holds the
// mirror's definition, its topics, and the ACLs that it created.
func MirrorPartitionOf(mirror string, partitions int32) int32 {
	return (javaHash(mirror) & math.MaxInt32) % partitions
}

// javaHash is java.lang.String.hashCode: over UTF-16 code units, wrapping.
func javaHash(s string) int32 {
	var h int32
	for _, u := range utf16.Encode([]rune(s)) {
		h = 31*h + int32(u)
	}
	return h
}
