package trace

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// Event is a Message with what its bytes mean.
type Event struct {
	*Message
	// API is Kafka's name of the request's key, "key N" where it is not known.
	API string
	// Body is a kmsg.Request or kmsg.Response, nil where there is none or Reason says why it can't be read. Byte slices in it
	// are parts of the frame.
	Body any
	// BodyVersion is the version in which the body is written: 0 for an ApiVersions response to a version the broker does not
	// have (KIP-511), else the request's.
	BodyVersion int16
	// Topics that the body names, with the partitions it names of each.
	Topics []Topic
	// Errors that a response names, those of the whole response first; ErrorCount also counts what is left out.
	Errors     []Error
	ErrorCount int
	// Batches of records in the body; BatchCount also counts what is left out.
	Batches    []Batch
	BatchCount int
}

// Topic is a topic of a message. Name is the id in Kafka's notation where the name is not known.
type Topic struct {
	Name       string
	Partitions []int32
}

// Error is an error code of a response, and what it is about.
type Error struct {
	Code int16
	// About is topic-partition, or the name of something else; "" is the whole response.
	About string
}

// DecoderConfig says how much a Decoder opens.
type DecoderConfig struct {
	// Payload: records' keys, values and headers are opened.
	Payload bool
	// PayloadBytes bounds what the batches of one message open to, each batch and all together. 0 stands for 1 MiB.
	PayloadBytes int
}

// Decoder decodes messages. It learns names of topic ids on the way. It belongs to one goroutine.
type Decoder struct {
	cfg   DecoderConfig
	names map[protocol.UUID]string
}

// maxNames bounds the topic ids whose names are remembered.
const maxNames = 100_000

// maxRequest bounds requests other than Produce: a hostile body can cost ninety times its size once it is decoded.
const maxRequest = 4 << 20

// NewDecoder makes a Decoder.
func NewDecoder(cfg DecoderConfig) *Decoder {
	if cfg.PayloadBytes <= 0 {
		cfg.PayloadBytes = 1 << 20
	}
	return &Decoder{cfg: cfg, names: make(map[protocol.UUID]string)}
}

// Decode decodes a message. What can't be decoded has its Reason set.
func (d *Decoder) Decode(m *Message) *Event {
	e := &Event{Message: m, API: apiName(m.Header.Key), BodyVersion: m.Header.Version}
	switch {
	case m.Token:
		e.API = "SASL token"
		return e
	case m.Unmatched:
		e.API = "response"
		return e
	case m.Frame == nil:
		return e
	}
	if e.Kind == Request && e.Header.Key != keyProduce && len(m.Frame) > maxRequest {
		e.Reason = fmt.Sprintf("not decoded: above the limit of %d bytes for requests without records", maxRequest)
		return e
	}
	body, err := d.body(e)
	if err != nil {
		e.Reason = "not decoded: " + err.Error()
		return e
	}
	e.Body = body
	d.collect(e)
	return e
}

// body decodes the frame. A panic of the message library would end the connections that are being traced, for the sake of a
// line of text: it is an error like others.
func (d *Decoder) body(e *Event) (body any, err error) {
	defer func() {
		if p := recover(); p != nil {
			body, err = nil, fmt.Errorf("decoder failed: %v", p)
		}
	}()
	if e.Kind == Request {
		_, b, err := protocol.ParseRequestHeader(e.Frame)
		if err != nil {
			return nil, err
		}
		return protocol.DecodeRequest(e.Header, b)
	}
	_, b, err := protocol.ParseResponseHeader(e.Header.Key, e.Header.Version, e.Frame)
	if err != nil {
		return nil, err
	}
	resp := kmsg.ResponseForKey(e.Header.Key)
	if e.Header.Key == keyApiVersions && len(b) >= 2 && int16(binary.BigEndian.Uint16(b)) == unsupportedVersion {
		e.BodyVersion = 0
	}
	if resp == nil || e.BodyVersion < 0 || e.BodyVersion > resp.MaxVersion() {
		return nil, fmt.Errorf("key %d v%d: %w", e.Header.Key, e.BodyVersion, protocol.ErrUnsupported)
	}
	resp.SetVersion(e.BodyVersion)
	if err := resp.ReadFrom(b); err != nil {
		return nil, protocol.ErrShort
	}
	return resp, nil
}

func apiName(key int16) string {
	if api, ok := protocol.LookupAPI(key); ok {
		return api.Name
	}
	return fmt.Sprintf("key %d", key)
}
