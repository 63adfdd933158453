package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Errors of header and message decoding. ErrShort wraps what Kafka calls a buffer underflow.
var (
	// ErrShort: a field reaches beyond the end of the message.
	ErrShort = errors.New("message ends within a field")
	// ErrUnsupported: the API key is not known, or not in this version.
	ErrUnsupported = errors.New("API key or version not supported")
)

const (
	keyControlledShutdown = 7
	keyApiVersions        = 18
)

// RequestHeader is what stands before every request (RequestHeader.json). Header version 0 (ControlledShutdown v0 only)
// has no ClientID, version 1 has one, version 2 adds tagged fields, of which none is defined: they are skipped.
type RequestHeader struct {
	Key, Version  int16
	CorrelationID int32
	// ClientID is null in header version 0 and where the client sent null.
	ClientID *string
}

// ParseRequestHeader splits a frame into header and body. The body is a part of frame. For an API key or version that
// kmsg does not know the fields of header version 1 are read, which stand at the same place in all later versions,
// and body is the rest, header tags included.
func ParseRequestHeader(frame []byte) (h RequestHeader, body []byte, err error) {
	r := kbin.Reader{Src: frame}
	h.Key, h.Version, h.CorrelationID = r.Int16(), r.Int16(), r.Int32()
	if !r.Ok() {
		return h, nil, fmt.Errorf("request header: %w", ErrShort)
	}
	if h.Key == keyControlledShutdown && h.Version == 0 {
		return h, r.Src, nil
	}
	h.ClientID = r.NullableString()
	if flexibleRequest(h.Key, h.Version) {
		kmsg.SkipTags(&r)
	}
	if !r.Ok() {
		return h, nil, fmt.Errorf("request header: %w", ErrShort)
	}
	return h, r.Src, nil
}

// AppendRequestHeader appends the header in the version that the key and version of the request ask for.
func AppendRequestHeader(dst []byte, h RequestHeader) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.Key))
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.Version))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.CorrelationID))
	if h.Key == keyControlledShutdown && h.Version == 0 {
		return dst
	}
	dst = kbin.AppendNullableString(dst, h.ClientID)
	if flexibleRequest(h.Key, h.Version) {
		dst = append(dst, 0)
	}
	return dst
}

// AppendResponseHeader appends a response header. That of ApiVersions is version 0 in all versions, since a client
// reads it before it knows the broker's (KIP-511).
func AppendResponseHeader(dst []byte, key, version int16, corr int32) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(corr))
	if key != keyApiVersions && flexibleRequest(key, version) {
		dst = append(dst, 0)
	}
	return dst
}

// ParseResponseHeader splits a response frame into correlation id and body, a part of frame. For a key or version
// unknown to kmsg the body holds the header's tags too.
func ParseResponseHeader(key, version int16, frame []byte) (corr int32, body []byte, err error) {
	r := kbin.Reader{Src: frame}
	corr = r.Int32()
	if key != keyApiVersions && flexibleRequest(key, version) {
		kmsg.SkipTags(&r)
	}
	if !r.Ok() {
		return corr, nil, fmt.Errorf("response header of %s v%d: %w", apiName(key), version, ErrShort)
	}
	return corr, r.Src, nil
}

// AppendResponse appends a whole frame: size prefix, response header of resp's key and version, body.
func AppendResponse(dst []byte, corr int32, resp kmsg.Response) []byte {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = AppendResponseHeader(dst, resp.Key(), resp.GetVersion(), corr)
	dst = resp.AppendTo(dst)
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// DecodeRequest decodes a request's body. Byte fields of the result are parts of body. Unknown keys and versions
// above what kmsg has are ErrUnsupported, bodies that end early ErrShort. A hostile body can cost some ninety bytes
// of memory a byte, by arrays of empty strings with tags: decode what must be decoded, and hold the size of such
// requests low.
func DecodeRequest(h RequestHeader, body []byte) (kmsg.Request, error) {
	req := kmsg.RequestForKey(h.Key)
	if req == nil || h.Version < 0 || h.Version > req.MaxVersion() {
		return nil, fmt.Errorf("%s (key %d) v%d: %w", apiName(h.Key), h.Key, h.Version, ErrUnsupported)
	}
	req.SetVersion(h.Version)
	if err := req.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("%s v%d: %w (%w)", apiName(h.Key), h.Version, ErrShort, err)
	}
	return req, nil
}

func apiName(key int16) string {
	if api, ok := LookupAPI(key); ok {
		return api.Name
	}
	return "unknown API"
}

// flexibleRequest reports whether a request is flexible (KIP-482), which also decides its header version and that of
// the response. False for keys and versions unknown to kmsg.
func flexibleRequest(key, version int16) bool {
	req := kmsg.RequestForKey(key)
	if key == keyFetch && version == MirrorFetchVersion {
		return true
	}
	if req == nil || version < 0 || version > req.MaxVersion() {
		return false
	}
	req.SetVersion(version)
	return req.IsFlexible()
}
