package protocol

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseRequestHeaderOfEveryVersion(t *testing.T) {
	id := "kcat"
	for name, c := range map[string]struct {
		frame []byte
		want  RequestHeader
		body  string
	}{
		"v0, ControlledShutdown 0": {
			[]byte{0, 7, 0, 0, 0, 0, 0, 9, 'b'}, RequestHeader{7, 0, 9, nil}, "b"},
		"v1, Metadata 4": {
			[]byte{0, 3, 0, 4, 0, 0, 1, 0, 0, 4, 'k', 'c', 'a', 't', 'b'}, RequestHeader{3, 4, 256, &id}, "b"},
		"v1, null client id": {
			[]byte{0, 3, 0, 4, 0, 0, 0, 1, 0xff, 0xff, 'b'}, RequestHeader{3, 4, 1, nil}, "b"},
		"v2, Metadata 9": {
			[]byte{0, 3, 0, 9, 0, 0, 0, 1, 0, 4, 'k', 'c', 'a', 't', 0, 'b'}, RequestHeader{3, 9, 1, &id}, "b"},
		"v2 with an unknown tag": {
			[]byte{0, 3, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 1, 77, 2, 1, 2, 'b'}, RequestHeader{3, 9, 1, nil}, "b"},
		"unknown key: tags stay in the body": {
			[]byte{3, 0xe8, 0, 0, 0, 0, 0, 1, 0, 4, 'k', 'c', 'a', 't', 0, 'b'}, RequestHeader{1000, 0, 1, &id}, "\x00b"},
		"unknown version": {
			[]byte{0, 18, 0, 99, 0, 0, 0, 1, 0, 4, 'k', 'c', 'a', 't', 0, 'b'}, RequestHeader{18, 99, 1, &id}, "\x00b"},
	} {
		t.Run(name, func(t *testing.T) {
			h, body, err := ParseRequestHeader(c.frame)
			if err != nil || !reflect.DeepEqual(h, c.want) || string(body) != c.body {
				t.Fatalf("got %+v, body %q, %v", h, body, err)
			}
			if name != "v2 with an unknown tag" && !strings.HasPrefix(name, "unknown") {
				if back := append(AppendRequestHeader(nil, h), body...); !bytes.Equal(back, c.frame) {
					t.Errorf("appended again: %x, want %x", back, c.frame)
				}
			}
			for n := range len(c.frame) - len(body) {
				if _, _, err := ParseRequestHeader(c.frame[:n]); !errors.Is(err, ErrShort) {
					t.Errorf("cut to %d bytes: got %v, want ErrShort", n, err)
				}
			}
		})
	}
}

func TestResponseHeaderVersions(t *testing.T) {
	for name, c := range map[string]struct {
		key, version int16
		want         []byte
	}{
		"flexible":             {3, 9, []byte{0, 0, 0, 5, 0}},
		"not flexible":         {3, 8, []byte{0, 0, 0, 5}},
		"ApiVersions stays v0": {18, 4, []byte{0, 0, 0, 5}},
		"unknown key":          {1000, 0, []byte{0, 0, 0, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			got := AppendResponseHeader(nil, c.key, c.version, 5)
			if !bytes.Equal(got, c.want) {
				t.Fatalf("got %x, want %x", got, c.want)
			}
			corr, body, err := ParseResponseHeader(c.key, c.version, append(got, 'b'))
			if err != nil || corr != 5 || string(body) != "b" {
				t.Errorf("parsed back: %d %q %v", corr, body, err)
			}
			if _, _, err = ParseResponseHeader(c.key, c.version, c.want[:len(c.want)-1]); !errors.Is(err, ErrShort) {
				t.Errorf("cut by one: got %v, want ErrShort", err)
			}
		})
	}
}

// A real broker's answers, decoded and appended again, are the same bytes.
func TestAnswersOfARealBroker(t *testing.T) {
	for name, resp := range map[string]kmsg.Response{
		"metadata_v13.bin":    &kmsg.MetadataResponse{Version: 13},
		"apiversions_v4.bin":  &kmsg.ApiVersionsResponse{Version: 4},
		"apiversions_v99.bin": &kmsg.ApiVersionsResponse{Version: 0},
	} {
		t.Run(name, func(t *testing.T) {
			raw := golden(t, name)
			frame, err := ReadFrame(bytes.NewReader(raw), DefaultMaxFrame, nil)
			if err != nil {
				t.Fatal(err)
			}
			corr, body, err := ParseResponseHeader(resp.Key(), resp.GetVersion(), frame)
			if err != nil || corr != 7 {
				t.Fatalf("correlation id %d, %v; want 7", corr, err)
			}
			if err := resp.ReadFrom(body); err != nil {
				t.Fatal(err)
			}
			if got := AppendResponse(nil, corr, resp); !bytes.Equal(got, raw) {
				t.Errorf("appended again:\n%x, want\n%x", got, raw)
			}
		})
	}
	var m kmsg.MetadataResponse
	m.Version = 13
	_, body, _ := ParseResponseHeader(3, 13, golden(t, "metadata_v13.bin")[4:])
	if err := m.ReadFrom(body); err != nil || len(m.Brokers) != 1 || m.Brokers[0].Port != 47091 || len(m.Topics) != 4 {
		t.Errorf("got %+v, %v; want broker 1 at port 47091 and 4 topics", m, err)
	}
}

func TestDecodeRequestRefusesWhatItDoesNotKnow(t *testing.T) {
	for name, h := range map[string]RequestHeader{
		"key":              {Key: 1000},
		"version above":    {Key: 3, Version: 99},
		"version below":    {Key: 3, Version: -1},
		"the KIP's own 95": {Key: 95},
	} {
		if _, err := DecodeRequest(h, nil); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: got %v, want ErrUnsupported", name, err)
		}
	}
}

func TestDecodeRequestAtEveryCut(t *testing.T) {
	req := kmsg.NewPtrFetchRequest()
	req.Version = 17
	topic := kmsg.NewFetchRequestTopic()
	part := kmsg.NewFetchRequestTopicPartition()
	part.FetchOffset, part.LastFetchedEpoch = 12, 3
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	req.ReplicaState.ID, req.ReplicaState.Epoch = 2, 44
	whole := req.AppendTo(nil)
	h := RequestHeader{Key: 1, Version: 17}
	got, err := DecodeRequest(h, whole)
	if err != nil || !reflect.DeepEqual(got, kmsg.Request(req)) {
		t.Fatalf("got %+v, %v", got, err)
	}
	for n := range whole {
		if _, err := DecodeRequest(h, whole[:n]); !errors.Is(err, ErrShort) {
			t.Errorf("cut to %d of %d bytes: got %v, want ErrShort", n, len(whole), err)
		}
	}
}

// Array lengths that the body can't hold must be refused before room is made for them, in every key and version; those
// that it can hold cost a bounded factor (empty strings and empty tags cost most).
func TestDecodeRequestHostileArrayLengths(t *testing.T) {
	const bodySize, factor = 1 << 12, 128
	fills := []byte{0, 1, 2, 0x7f, 0x80, 0xff}
	prefixes := [][]byte{nil, {0, 0, 0x08, 0}, {0x80, 0x10}}
	for _, api := range APIs() {
		for v := api.Min; v <= api.Max; v++ {
			for _, fill := range fills {
				for _, prefix := range prefixes {
					var before, after runtime.MemStats
					body := append(prefix[:len(prefix):len(prefix)], bytes.Repeat([]byte{fill}, bodySize)...)
					runtime.ReadMemStats(&before)
					_, _ = DecodeRequest(RequestHeader{Key: api.Key, Version: v}, body)
					runtime.ReadMemStats(&after)
					if got := after.TotalAlloc - before.TotalAlloc; got > factor*bodySize {
						t.Errorf("%s v%d, %x then all %#x: allocated %d bytes for %d", api.Name, v, prefix, fill, got, bodySize)
					}
				}
			}
		}
	}
}

func FuzzDecodeRequest(f *testing.F) {
	id := "c"
	for _, api := range APIs() {
		req := kmsg.RequestForKey(api.Key)
		req.SetVersion(api.Max)
		h := AppendRequestHeader(nil, RequestHeader{api.Key, api.Max, 1, &id})
		f.Add(req.AppendTo(h))
	}
	f.Add([]byte{0, 7, 0, 0, 0, 0, 0, 9, 'b'})
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, body, err := ParseRequestHeader(frame)
		if err != nil {
			return
		}
		if !bytes.HasSuffix(frame, body) {
			t.Fatal("the body is no part of the frame's end")
		}
		again := append(AppendRequestHeader(nil, h), body...)
		h2, body2, err := ParseRequestHeader(again)
		if err != nil || !reflect.DeepEqual(h, h2) || !bytes.Equal(body, body2) {
			t.Fatalf("header %+v read back as %+v, %v", h, h2, err)
		}
		req, err := DecodeRequest(h, body)
		if err != nil {
			return
		}
		// What was decoded is what its encoding decodes to.
		once := req.AppendTo(nil)
		twice, err := DecodeRequest(h, once)
		if err != nil || !bytes.Equal(twice.AppendTo(nil), once) {
			t.Fatalf("%s v%d: encoded form does not decode to itself: %v", kmsg.NameForKey(h.Key), h.Version, err)
		}
	})
}

func TestSkipTagsEndsOnAHostileCount(t *testing.T) {
	frame := AppendRequestHeader(nil, RequestHeader{Key: 3, Version: 8, CorrelationID: 1})
	frame[3] = 9
	frame = kbin.AppendUvarint(frame, 1<<31)
	if _, _, err := ParseRequestHeader(frame); !errors.Is(err, ErrShort) {
		t.Errorf("got %v, want ErrShort", err)
	}
}

// FuzzParseResponseHeader: the body is the end of the frame, and what stands before it is the header of that key and
// version, but for tags that nobody knows.
func FuzzParseResponseHeader(f *testing.F) {
	for _, api := range APIs() {
		f.Add(api.Key, api.Max, append(AppendResponseHeader(nil, api.Key, api.Max, 7), 'b'))
	}
	f.Add(int16(3), int16(9), []byte{0, 0, 0, 1, 1, 77, 2, 1, 2, 'b'})
	f.Add(int16(3), int16(9), []byte{0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add(int16(1000), int16(-1), []byte{0, 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, key, version int16, frame []byte) {
		corr, body, err := ParseResponseHeader(key, version, frame)
		if err != nil {
			if body != nil || !errors.Is(err, ErrShort) {
				t.Fatalf("%x next to %v", body, err)
			}
			return
		}
		plain := AppendResponseHeader(nil, key, version, corr)
		if !bytes.HasSuffix(frame, body) || !bytes.HasPrefix(frame, plain[:4]) || len(frame)-len(body) < len(plain) {
			t.Fatalf("header of %d bytes, body %x of %x", len(plain), body, frame)
		}
		again, rest, err := ParseResponseHeader(key, version, append(plain, body...))
		if err != nil || again != corr || !bytes.Equal(rest, body) {
			t.Fatalf("read back as %d, %x, %v", again, rest, err)
		}
	})
}
