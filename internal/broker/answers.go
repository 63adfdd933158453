package broker

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

var errNoAnswer = errors.New("the controller's answer leaves this partition out")

// codeError is the error of a code with the text that came with it, nil for code 0.
func codeError(code int16, message *string) error {
	err := kerr.ErrorForCode(code)
	if err == nil || message == nil || *message == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, *message)
}

// kerrCode is the code of the Kafka error within err, 0 when there is none.
func kerrCode(err error) int16 {
	var ke *kerr.Error
	if errors.As(err, &ke) {
		return ke.Code
	}
	return 0
}

func wrapPartition(what string, tp protocol.TopicPartition, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, tp, err)
}

func allFailed(parts iter.Seq[protocol.TopicPartition], err error) map[protocol.TopicPartition]error {
	out := map[protocol.TopicPartition]error{}
	for tp := range parts {
		out[tp] = err
	}
	return out
}

func byTopic(parts iter.Seq[protocol.TopicPartition]) map[string][]int32 {
	out := map[string][]int32{}
	for tp := range parts {
		out[tp.Topic] = append(out[tp.Topic], tp.Partition)
	}
	for _, nums := range out {
		slices.Sort(nums)
	}
	return out
}

func partitionOf(i *kraft.Image, tp protocol.TopicPartition) *kraft.Partition {
	t := i.TopicByName(tp.Topic)
	if t == nil {
		return nil
	}
	return i.Partition(protocol.PartitionID{Topic: t.ID, Partition: tp.Partition})
}
