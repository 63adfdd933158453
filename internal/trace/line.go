package trace

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	timeLayout = "15:04:05.000000"
	// What one line shows of lists.
	lineTopics, lineErrors, lineBatches = 5, 5, 4
	// maxLine bounds what a line shows of a body's fields, in bytes.
	maxLine = 1 << 10
)

// appendLine appends an event as one line, without the newline.
func appendLine(dst []byte, e *Event) []byte {
	dst = appendHead(dst, e)
	if e.Body != nil {
		dst = appendFields(dst, Render(e.Body), len(e.Topics) > 0)
	}
	dst = appendTopics(dst, e.Topics)
	dst = appendErrors(dst, e)
	for i, b := range e.Batches {
		if i == lineBatches {
			break
		}
		dst = append(dst, " {"...)
		dst = append(appendBatch(dst, b), '}')
	}
	if more := e.BatchCount - min(len(e.Batches), lineBatches); more > 0 {
		dst = fmt.Appendf(dst, " +%d batches", more)
	}
	if e.Kind != Note && e.Kind != Opened && e.Kind != Closed && e.Reason != "" {
		dst = fmt.Appendf(dst, " (%s)", e.Reason)
	}
	return dst
}

// appendHead appends what stands in front of every event.
func appendHead(dst []byte, e *Event) []byte {
	dst = e.At.AppendFormat(dst, timeLayout)
	if e.Conn.ID > 0 {
		dst = fmt.Appendf(dst, " #%d", e.Conn.ID)
	}
	switch e.Kind {
	case Opened:
		return fmt.Appendf(dst, " open %s -> %s", e.Conn.Client, e.Conn.Server)
	case Closed:
		dst = append(dst, " close"...)
		if e.Reason != "" {
			dst = fmt.Appendf(dst, " (%s)", e.Reason)
		}
		return dst
	case Note:
		return fmt.Appendf(dst, " note: %s", e.Reason)
	case Request:
		dst = append(dst, " > "...)
	case Response:
		dst = append(dst, " < "...)
	}
	dst = append(dst, e.API...)
	if !e.Token {
		if !e.Unmatched {
			dst = fmt.Appendf(dst, " v%d", e.Header.Version)
		}
		if e.Body != nil && e.BodyVersion != e.Header.Version {
			dst = fmt.Appendf(dst, "(as v%d)", e.BodyVersion)
		}
		dst = fmt.Appendf(dst, " corr=%d", e.Header.CorrelationID)
	}
	if e.Header.ClientID != nil {
		dst = append(append(dst, " client="...), word(*e.Header.ClientID)...)
	}
	if e.Principal != "" {
		dst = append(append(dst, " principal="...), word(e.Principal)...)
	}
	dst = fmt.Appendf(dst, " %dB", e.Size)
	if e.Kind == Response && !e.Unmatched {
		dst = append(append(dst, ' '), durationText(e.Duration)...)
	}
	if e.NoReply {
		dst = append(dst, " no-reply"...)
	}
	return dst
}

// appendFields appends the fields at the top of a body: values as they are, lists by their length. Topics are summarised
// elsewhere, and so are errors.
func appendFields(dst []byte, o Object, topics bool) []byte {
	for _, f := range o {
		var text string
		switch v := f.Value.(type) {
		case Object:
			text = "=..."
		case []any:
			if topics && strings.Contains(f.Name, "Topic") {
				continue
			}
			if text = scalars(v); text == "" {
				text = fmt.Sprintf("[%d]", len(v))
			}
		case nil:
			text = "=null"
		case string:
			text = "=" + word(v)
		default:
			text = fmt.Sprint("=", v)
		}
		if f.Name == "ErrorCode" {
			continue
		}
		if len(text) > maxLine {
			text = strings.ToValidUTF8(text[:maxLine], "") + "..."
		}
		dst = append(append(append(dst, ' '), f.Name...), text...)
	}
	return dst
}

// scalars writes a short list of plain values, "" for any other.
func scalars(list []any) string {
	const most = 8
	if len(list) > most {
		return ""
	}
	var parts []string
	for _, v := range list {
		switch v := v.(type) {
		case string:
			parts = append(parts, word(v))
		case int64, uint64, bool, remark:
			parts = append(parts, fmt.Sprint(v))
		default:
			return ""
		}
	}
	return "=[" + strings.Join(parts, ",") + "]"
}

func appendTopics(dst []byte, topics []Topic) []byte {
	if len(topics) == 0 {
		return dst
	}
	dst = append(dst, " topics="...)
	for i, t := range topics {
		if i == lineTopics {
			dst = fmt.Appendf(dst, ",+%d", len(topics)-i)
			break
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, word(t.Name)...)
		if len(t.Partitions) > 0 {
			sorted := slices.Clone(t.Partitions)
			slices.Sort(sorted)
			dst = fmt.Appendf(dst, "[%s]", ranges(slices.Compact(sorted)))
		}
	}
	return dst
}

func appendErrors(dst []byte, e *Event) []byte {
	for i, err := range e.Errors {
		if i == lineErrors {
			break
		}
		dst = append(dst, " !"...)
		if err.About != "" {
			dst = append(append(dst, word(err.About)...), ':')
		}
		dst = append(dst, errorName(err.Code)...)
	}
	if more := e.ErrorCount - min(len(e.Errors), lineErrors); more > 0 {
		dst = fmt.Appendf(dst, " +%d errors", more)
	}
	return dst
}

// appendBatch appends the summary of a batch.
func appendBatch(dst []byte, b Batch) []byte {
	dst = fmt.Appendf(dst, "%s-%d", word(b.Topic), b.Partition)
	if b.Reason != "" {
		return fmt.Appendf(dst, " %dB: %s", b.Bytes, b.Reason)
	}
	dst = fmt.Appendf(dst, " %d..%d n=%d %dB", b.BaseOffset, b.LastOffset, b.Records, b.Bytes)
	if b.LeaderEpoch >= 0 {
		dst = fmt.Appendf(dst, " epoch=%d", b.LeaderEpoch)
	}
	if b.ProducerID >= 0 {
		dst = fmt.Appendf(dst, " pid=%d/%d", b.ProducerID, b.ProducerEpoch)
		if b.BaseSequence >= 0 {
			dst = fmt.Appendf(dst, " seq=%d", b.BaseSequence)
		}
	}
	if b.Codec != "none" {
		dst = append(append(dst, ' '), b.Codec...)
	}
	if b.Transactional {
		dst = append(dst, " txn"...)
	}
	if b.Control != "" {
		dst = append(append(dst, ' '), b.Control...)
	}
	if b.BadCRC {
		dst = append(dst, " BAD-CRC"...)
	}
	return dst
}

// appendPayload appends the records of a batch, one a line, and why there are fewer than there should be.
func appendPayload(dst []byte, indent string, b Batch) []byte {
	for _, r := range b.Payload {
		dst = fmt.Appendf(dst, "%s%s-%d@%d %s: %s", indent, word(b.Topic), b.Partition, r.Offset, data(r.Key, r.KeySize),
			data(r.Value, r.ValueSize))
		for _, h := range r.Headers {
			dst = fmt.Appendf(dst, " %s=%s", word(h.Key), data(h.Value, len(h.Value)))
		}
		dst = append(dst, '\n')
	}
	if b.PayloadReason != "" {
		dst = fmt.Appendf(dst, "%s%s-%d@%d.. %s\n", indent, word(b.Topic), b.Partition, b.BaseOffset, strconv.Quote(b.PayloadReason))
	}
	return dst
}
