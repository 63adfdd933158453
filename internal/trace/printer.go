package trace

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// Format is how events are written.
type Format string

// Formats.
const (
	// Line is one line an event, payloads on lines of their own below it.
	Line Format = "line"
	// Pretty has every value that differs from its default, one a line.
	Pretty Format = "pretty"
	// JSON is one object a line with everything.
	JSON Format = "json"
)

// ParseFormat reads a Format.
func ParseFormat(s string) (Format, error) {
	switch f := Format(s); f {
	case Line, Pretty, JSON:
		return f, nil
	}
	return "", fmt.Errorf("%q is not known", s)
}

// Append appends an event in the format, newline included.
func (f Format) Append(dst []byte, e *Event) []byte {
	switch f {
	case JSON:
		return append(appendJSON(dst, eventObject(e)), '\n')
	case Pretty:
		return appendPretty(dst, e)
	}
	dst = append(appendLine(dst, e), '\n')
	for _, b := range e.Batches {
		dst = appendPayload(dst, "    ", b)
	}
	return dst
}

func appendPretty(dst []byte, e *Event) []byte {
	const indent = "    "
	dst = appendHead(dst, e)
	dst = appendErrors(dst, e)
	if e.Kind <= Response && e.Reason != "" {
		dst = fmt.Appendf(dst, " (%s)", e.Reason)
	}
	dst = append(dst, '\n')
	if e.Body != nil {
		dst = appendTree(dst, indent, Render(e.Body))
	}
	for _, b := range e.Batches {
		dst = append(append(dst, indent...), "batch "...)
		dst = append(appendBatch(dst, b), '\n')
		dst = appendPayload(dst, indent+indent, b)
	}
	if more := e.BatchCount - len(e.Batches); more > 0 {
		dst = fmt.Appendf(dst, "%s+%d batches\n", indent, more)
	}
	return dst
}

// appendTree appends an object, one field a line.
func appendTree(dst []byte, indent string, o Object) []byte {
	const step = "  "
	for _, f := range o {
		dst = append(append(append(dst, indent...), f.Name...), ':')
		switch v := f.Value.(type) {
		case Object:
			dst = appendTree(append(dst, '\n'), indent+step, v)
		case []any:
			if text := scalars(v); text != "" {
				dst = append(append(append(dst, ' '), text[1:]...), '\n')
				continue
			}
			dst = append(dst, '\n')
			for _, item := range v {
				dst = append(append(dst, indent...), "- "...)
				at := len(dst)
				if sub, ok := item.(Object); ok && len(sub) > 0 {
					dst = appendTree(dst, indent+step, sub)
					// The first field stands behind the dash.
					dst = append(dst[:at], dst[at+len(indent+step):]...)
					continue
				}
				dst = append(append(dst, scalar(item)...), '\n')
			}
		default:
			dst = append(append(append(dst, ' '), scalar(v)...), '\n')
		}
	}
	return dst
}

func scalar(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return word(v)
	case Object:
		return "{}"
	}
	return fmt.Sprint(v)
}

// eventObject is an event for JSON.
func eventObject(e *Event) Object {
	o := Object{{"time", e.At.UTC().Format(time.RFC3339Nano)}, {"kind", e.Kind.String()}}
	add := func(name string, value any) { o = append(o, Field{name, value}) }
	if e.Conn.ID > 0 {
		add("connection", e.Conn.ID)
		add("client", e.Conn.Client)
		add("server", e.Conn.Server)
	}
	if e.Principal != "" {
		add("principal", e.Principal)
	}
	if e.Kind > Response {
		if e.Reason != "" {
			add("text", e.Reason)
		}
		return o
	}
	add("api", e.API)
	if !e.Token && !e.Unmatched {
		add("key", int64(e.Header.Key))
		add("version", int64(e.Header.Version))
	}
	if e.Body != nil && e.BodyVersion != e.Header.Version {
		add("body_version", int64(e.BodyVersion))
	}
	if !e.Token {
		add("correlation_id", int64(e.Header.CorrelationID))
	}
	if e.Header.ClientID != nil {
		add("client_id", *e.Header.ClientID)
	}
	add("size", int64(e.Size))
	if e.Kind == Response && !e.Unmatched {
		add("duration_ms", float64(e.Duration)/float64(time.Millisecond))
	}
	if e.NoReply {
		add("no_reply", true)
	}
	if e.Reason != "" {
		add("reason", e.Reason)
	}
	return append(o, bodyObject(e)...)
}

// bodyObject is what was decoded.
func bodyObject(e *Event) (o Object) {
	add := func(name string, list []any) {
		if len(list) > 0 {
			o = append(o, Field{name, list})
		}
	}
	var topics, errs, batches []any
	for _, t := range e.Topics {
		partitions := []any{}
		for _, p := range t.Partitions {
			partitions = append(partitions, int64(p))
		}
		topics = append(topics, Object{{"topic", t.Name}, {"partitions", partitions}})
	}
	for _, err := range e.Errors {
		item := Object{{"error", errorName(err.Code)}, {"code", int64(err.Code)}}
		if err.About != "" {
			item = append(item, Field{"about", err.About})
		}
		errs = append(errs, item)
	}
	for _, b := range e.Batches {
		batches = append(batches, batchObject(b))
	}
	add("topics", topics)
	add("errors", errs)
	if e.ErrorCount > len(errs) {
		o = append(o, Field{"error_count", int64(e.ErrorCount)})
	}
	add("batches", batches)
	if e.BatchCount > len(batches) {
		o = append(o, Field{"batch_count", int64(e.BatchCount)})
	}
	if e.Body != nil {
		o = append(o, Field{"body", Render(e.Body)})
	}
	return o
}

func batchObject(b Batch) Object {
	o := Object{{"topic", b.Topic}, {"partition", int64(b.Partition)}, {"bytes", int64(b.Bytes)}}
	if b.Reason != "" {
		return append(o, Field{"reason", b.Reason})
	}
	o = append(o, Object{{"base_offset", b.BaseOffset}, {"last_offset", b.LastOffset}, {"records", int64(b.Records)},
		{"leader_epoch", int64(b.LeaderEpoch)}, {"producer_id", b.ProducerID}, {"producer_epoch", int64(b.ProducerEpoch)},
		{"base_sequence", int64(b.BaseSequence)}, {"base_timestamp", b.BaseTimestamp}, {"max_timestamp", b.MaxTimestamp},
		{"codec", b.Codec}, {"transactional", b.Transactional}, {"crc_ok", !b.BadCRC}}...)
	if b.Control != "" {
		o = append(o, Field{"control", b.Control})
	}
	var payload []any
	for _, r := range b.Payload {
		rec := Object{{"offset", r.Offset}, {"timestamp", r.Timestamp}, {"key", dataValue(r.Key, r.KeySize)},
			{"value", dataValue(r.Value, r.ValueSize)}}
		var headers []any
		for _, h := range r.Headers {
			headers = append(headers, Object{{"key", h.Key}, {"value", dataValue(h.Value, len(h.Value))}})
		}
		if headers != nil {
			rec = append(rec, Field{"headers", headers})
		}
		payload = append(payload, rec)
	}
	if payload != nil {
		o = append(o, Field{"payload", payload})
	}
	if b.PayloadReason != "" {
		o = append(o, Field{"payload_reason", b.PayloadReason})
	}
	return o
}

// dataValue is a key or value for JSON: a string where it is text, else hexadecimal with 0x; null is null.
func dataValue(b []byte, size int) any {
	switch {
	case b == nil:
		return nil
	case len(b) == size && utf8.Valid(b) && printable(b):
		return string(b)
	}
	return data(b, size)
}

// appendJSON appends a value that Render or eventObject made.
func appendJSON(dst []byte, v any) []byte {
	switch v := v.(type) {
	case Object:
		dst = append(dst, '{')
		for i, f := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendJSON(dst, f.Name), ':')
			dst = appendJSON(dst, f.Value)
		}
		return append(dst, '}')
	case []any:
		dst = append(dst, '[')
		for i, item := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendJSON(dst, item)
		}
		return append(dst, ']')
	}
	// Strings, numbers, booleans and null.
	b, err := json.Marshal(v)
	if err != nil {
		b, _ = json.Marshal(fmt.Sprint(v)) // a float without a number
	}
	return append(dst, b...)
}
