package protocol

import (
	"encoding/base64"
	"fmt"
)

// UUID is a Kafka Uuid: 16 bytes, printed as 22 characters of unpadded URL-safe base64 (org.apache.kafka.common.Uuid).
type UUID [16]byte

// IsZero reports whether u is the zero UUID, which Kafka uses for "none".
func (u UUID) IsZero() bool { return u == UUID{} }

// String returns Kafka's own notation.
func (u UUID) String() string { return base64.RawURLEncoding.EncodeToString(u[:]) }

// ParseUUID reads Kafka's own notation.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) != len(u) {
		return u, fmt.Errorf("%q is not a Kafka UUID (22 characters of URL-safe base64)", s)
	}
	copy(u[:], b)
	return u, nil
}

// PartitionID names a partition by topic id, so that a topic made anew under an old name is another partition (KAFKA-12257).
type PartitionID struct {
	Topic     UUID
	Partition int32
}

// TopicPartition names a partition by topic name.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// String returns topic-partition as Kafka's logs write it.
func (t TopicPartition) String() string { return fmt.Sprintf("%s-%d", t.Topic, t.Partition) }
