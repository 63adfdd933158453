package admin

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol/kip1279"
)

// maxRequest bounds a request's frame in bytes: a list of all topics of a large cluster fits many times.
const maxRequest = 16 << 20

const keyApiVersions = 18

// maxApiVersions is the highest version of ApiVersions that is spoken here. 5 asks for cluster and node ids, which an admin
// listener has none of.
const maxApiVersions = 4

var errHeader = errors.New("the frame is no Kafka request: its header ends too early")

// header is a request header. protocol has a parser too, but decides by Kafka's own registry whether a key is flexible,
// where 94 is UnregisterController and the others are unknown.
type header struct {
	key, version int16
	correlation  int32
	clientID     string
}

// flexible reports whether the header is version 2, and that of the response version 1 (ApiVersions: always 0). What is not
// known here is taken for not flexible, so that its key can be named.
func (h header) flexible() bool {
	if _, ok := kafkaAPIs[h.key]; ok || h.key == keyApiVersions {
		req := kmsg.RequestForKey(h.key)
		req.SetVersion(h.version)
		return req.IsFlexible()
	}
	_, ours := kip1279.Lookup(h.key)
	return ours
}

func parseHeader(frame []byte) (header, []byte, error) {
	r := kbin.Reader{Src: frame}
	h := header{key: r.Int16(), version: r.Int16(), correlation: r.Int32()}
	if id := r.NullableString(); id != nil {
		h.clientID = *id
	}
	if h.flexible() {
		kmsg.SkipTags(&r)
	}
	if !r.Ok() {
		return h, nil, errHeader
	}
	return h, r.Src, nil
}

// appendRequest appends a whole request frame.
func appendRequest(dst []byte, h header, body func(dst []byte) []byte) []byte {
	return framed(dst, func(dst []byte) []byte {
		dst = kbin.AppendInt16(dst, h.key)
		dst = kbin.AppendInt16(dst, h.version)
		dst = kbin.AppendInt32(dst, h.correlation)
		dst = kbin.AppendNullableString(dst, &h.clientID)
		if h.flexible() {
			dst = append(dst, 0)
		}
		return body(dst)
	})
}

// appendResponse appends a whole response frame.
func appendResponse(dst []byte, h header, body func(dst []byte) []byte) []byte {
	return framed(dst, func(dst []byte) []byte {
		dst = kbin.AppendInt32(dst, h.correlation)
		if h.key != keyApiVersions && h.flexible() {
			dst = append(dst, 0)
		}
		return body(dst)
	})
}

func framed(dst []byte, write func(dst []byte) []byte) []byte {
	at := len(dst)
	dst = write(append(dst, 0, 0, 0, 0))
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// parseResponse splits a response frame.
func parseResponse(h header, frame []byte) (correlation int32, body []byte, err error) {
	r := kbin.Reader{Src: frame}
	correlation = r.Int32()
	if h.key != keyApiVersions && h.flexible() {
		kmsg.SkipTags(&r)
	}
	if !r.Ok() {
		return 0, nil, errors.New("the answer's header ends too early")
	}
	return correlation, r.Src, nil
}

// mirrorFeature is the feature that says that a cluster knows KIP-1279, at its level 1.
const mirrorFeature = "mirror.version"

// apiVersions answers ApiVersions: what is served, and the KIP's feature. A request in a version that is too high gets version 0 with
// error 35 (KIP-511).
func apiVersions(version int16) *kmsg.ApiVersionsResponse {
	resp := kmsg.NewPtrApiVersionsResponse()
	add := func(key, lowest, highest int16) {
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MinVersion, k.MaxVersion = key, lowest, highest
		resp.ApiKeys = append(resp.ApiKeys, k)
	}
	add(keyApiVersions, 0, maxApiVersions)
	if version < 0 || version > maxApiVersions {
		resp.ErrorCode = kip1279.UnsupportedVersion
		return resp
	}
	resp.SetVersion(version)
	for key, v := range kafkaAPIs {
		add(key, v.min, v.max)
	}
	for _, api := range kip1279.APIs() {
		add(api.Key, api.Min, api.Max)
	}
	slices.SortFunc(resp.ApiKeys, func(a, b kmsg.ApiVersionsResponseApiKey) int { return cmp.Compare(a.ApiKey, b.ApiKey) })
	supported, finalized := kmsg.NewApiVersionsResponseSupportedFeature(), kmsg.NewApiVersionsResponseFinalizedFeature()
	supported.Name, supported.MaxVersion = mirrorFeature, 1
	finalized.Name, finalized.MinVersionLevel, finalized.MaxVersionLevel = mirrorFeature, 1, 1
	resp.SupportedFeatures, resp.FinalizedFeatures = append(resp.SupportedFeatures, supported), append(resp.FinalizedFeatures, finalized)
	resp.FinalizedFeaturesEpoch = 0
	return resp
}
