package trace

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// peer is a connection of a test: what is fed, and the lines that come out.
type peer struct {
	t      *testing.T
	stream *Stream
	r      *Reporter
	out    bytes.Buffer
	at     time.Time
}

func newPeer(t *testing.T, limit int) *peer {
	p := &peer{t: t, at: time.Unix(0, 0).UTC()}
	p.r = &Reporter{Decoder: NewDecoder(DecoderConfig{Payload: true}), Format: Line, Stats: NewStats(), Out: &p.out}
	budget := NewBudget(1 << 20)
	p.stream = NewStream(Conn{ID: 1, Client: "c", Server: "s"}, p.at, limit, budget, func(m *Message) {
		p.r.Stats.Message(m)
		if err := p.r.Report(m); err != nil {
			t.Error(err)
		}
		budget.Give(m.Charge)
	})
	t.Cleanup(func() {
		p.stream.Close(p.at)
		if left := budget.Left(); left != 1<<20 {
			t.Errorf("%d bytes of the budget did not come back", 1<<20-left)
		}
	})
	p.out.Reset()
	return p
}

func (p *peer) feed(dir Direction, b []byte) {
	p.at = p.at.Add(time.Millisecond)
	p.stream.Feed(dir, p.at, b)
}

// lines returns what was printed since the last time, without times.
func (p *peer) lines() string {
	var b strings.Builder
	for line := range strings.Lines(p.out.String()) {
		b.WriteString(strings.TrimPrefix(line[len("00:00:00.000000 "):], "#1 "))
	}
	p.out.Reset()
	return b.String()
}

func (p *peer) want(want string) {
	p.t.Helper()
	if got := p.lines(); got != want {
		p.t.Errorf("got\n%swant\n%s", got, want)
	}
}

func sized(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// ask is a request's frame.
func ask(corr int32, req kmsg.Request, version int16) []byte {
	id := "test"
	req.SetVersion(version)
	h := protocol.RequestHeader{Key: req.Key(), Version: version, CorrelationID: corr, ClientID: &id}
	return sized(req.AppendTo(protocol.AppendRequestHeader(nil, h)))
}

func answer(corr int32, resp kmsg.Response, version int16) []byte {
	resp.SetVersion(version)
	return protocol.AppendResponse(nil, corr, resp)
}

func findCoordinator(key string) *kmsg.FindCoordinatorRequest {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKey = key
	return req
}

func TestPipelining(t *testing.T) {
	p := newPeer(t, 0)
	p.feed(ToServer, append(ask(1, findCoordinator("a"), 2), ask(2, findCoordinator("b"), 2)...))
	p.lines()
	resp := kmsg.NewPtrFindCoordinatorResponse()
	resp.ErrorCode = 15
	p.feed(ToClient, append(answer(1, resp, 2), answer(2, kmsg.NewPtrFindCoordinatorResponse(), 2)...))
	p.want(`< FindCoordinator v2 corr=1 client=test 26B 1.000ms !COORDINATOR_NOT_AVAILABLE
< FindCoordinator v2 corr=2 client=test 26B 1.000ms
`)
}

func TestAcksZeroHasNoReply(t *testing.T) {
	for _, version := range []int16{2, 3, 8, 9, 13} {
		p := newPeer(t, 0)
		req := kmsg.NewPtrProduceRequest()
		req.Acks = 0
		for range 3 {
			p.feed(ToServer, ask(1, req, version))
		}
		p.feed(ToServer, ask(2, findCoordinator("a"), 2))
		if n, known := p.stream.InFlight(); n != 1 || !known {
			t.Errorf("v%d: %d in flight", version, n)
		}
		if text := p.lines(); strings.Count(text, " no-reply Acks=0") != 3 {
			t.Errorf("v%d: %s", version, text)
		}
	}
}

// TestAnswersThatAreMissing goes on by the correlation id.
func TestAnswersThatAreMissing(t *testing.T) {
	p := newPeer(t, 0)
	for corr := range int32(3) {
		p.feed(ToServer, ask(corr, findCoordinator("a"), 2))
	}
	p.lines()
	p.feed(ToClient, answer(2, kmsg.NewPtrFindCoordinatorResponse(), 2))
	p.feed(ToClient, answer(77, kmsg.NewPtrFindCoordinatorResponse(), 2))
	p.want(`< FindCoordinator v2 corr=2 client=test 26B 1.000ms
< response corr=77 26B (not decoded: no request with this correlation id was seen)
`)
}

func TestTooNewApiVersions(t *testing.T) {
	p := newPeer(t, 0)
	id := "new"
	b := protocol.AppendRequestHeader(nil, protocol.RequestHeader{Key: keyApiVersions, Version: 99, CorrelationID: 5, ClientID: &id})
	p.feed(ToServer, sized(append(b, 0, 1, 2, 3)))
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.ErrorCode = unsupportedVersion
	resp.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 18, MaxVersion: 5}}
	p.feed(ToClient, answer(5, resp, 0))
	p.want(`> ApiVersions v99 corr=5 client=new 21B (not decoded: ApiVersions (key 18) v99: API key or version not supported)
< ApiVersions v99(as v0) corr=5 client=new 20B 1.000ms ApiKeys[1] !UNSUPPORTED_VERSION
`)
}

func TestUnknownKeysAndBrokenBodies(t *testing.T) {
	p := newPeer(t, 0)
	id := "x"
	unknown := protocol.AppendRequestHeader(nil, protocol.RequestHeader{Key: 1000, CorrelationID: 1, ClientID: &id})
	p.feed(ToServer, sized(append(unknown, "whatever"...)))
	p.feed(ToClient, sized([]byte{0, 0, 0, 1, 9, 9}))
	short := ask(2, findCoordinator("abc"), 2)
	short = sized(short[4 : len(short)-2])
	p.feed(ToServer, short)
	p.feed(ToClient, sized([]byte{0, 0, 0, 2, 1}))
	p.feed(ToServer, sized([]byte{0, 3}))
	p.feed(ToServer, sized(nil))
	p.feed(ToServer, ask(3, findCoordinator("a\x1b[2Jb c"), 2))
	text := p.lines()
	for _, want := range []string{
		"> key 1000 v0 corr=1 client=x 23B (not decoded: unknown API (key 1000) v0: ",
		"< key 1000 v0 corr=1 client=x 10B 1.000ms (not decoded: key 1000 v0: ",
		"> FindCoordinator v2 corr=2 client=test 22B (not decoded: FindCoordinator v2: message ends within a field",
		"< FindCoordinator v2 corr=2 client=test 9B 1.000ms (not decoded: message ends within a field)",
		"> Metadata v0 corr=0 6B (not decoded: request header: ",
		"> Produce v0 corr=0 4B (not decoded: request header: ",
		`CoordinatorKey="a\x1b[2Jb c"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestLinesStayLines: what peers choose can't steer a terminal, nor look like a line of its own.
func TestLinesStayLines(t *testing.T) {
	id := "evil\x1b]0;x\a\n#2 > Produce"
	topic := "a\x1b[2J\nb"
	for _, format := range []Format{Line, Pretty, JSON} {
		p := newPeer(t, 0)
		p.r.Format = format
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
		req.SetVersion(4)
		h := protocol.RequestHeader{Key: req.Key(), Version: 4, CorrelationID: 1, ClientID: &id}
		p.feed(ToServer, sized(req.AppendTo(protocol.AppendRequestHeader(nil, h))))
		for line := range strings.Lines(p.out.String()) {
			if strings.ContainsAny(line, "\x1b\a") || strings.HasPrefix(line, "#2") || strings.HasPrefix(line, "b") {
				t.Errorf("%s: %q", format, line)
			}
		}
	}
}

// TestWhatIsNotKafka ends decoding and names the cause (kroxylicious #2439).
func TestWhatIsNotKafka(t *testing.T) {
	for first, want := range map[string]string{
		"\x16\x03\x01\x02\x00\x01": "TLS handshake", "GET / HTTP/1.1\r\n": "HTTP request", "\xff\xff\xff\xff": "negative",
	} {
		p := newPeer(t, 0)
		p.feed(ToServer, []byte(first))
		p.feed(ToServer, bytes.Repeat([]byte("x"), 100))
		p.feed(ToClient, bytes.Repeat([]byte("y"), 100))
		text := p.lines()
		if strings.Count(text, "\n") != 1 || !strings.Contains(text, "passed on undecoded from here: from the client: ") ||
			!strings.Contains(text, want) {
			t.Errorf("%q: %s", first, text)
		}
	}
}

func TestFramesAboveTheLimit(t *testing.T) {
	p := newPeer(t, 100)
	p.feed(ToServer, ask(1, findCoordinator(strings.Repeat("k", 5000)), 2))
	p.feed(ToServer, ask(2, findCoordinator("a"), 2))
	p.feed(ToClient, answer(1, kmsg.NewPtrFindCoordinatorResponse(), 2))
	p.want(`> FindCoordinator v2 corr=1 client=test 5021B (not decoded: above the limit of 100 bytes for frames that are decoded)
> FindCoordinator v2 corr=2 client=test 22B CoordinatorKey=a
< FindCoordinator v2 corr=1 client=test 26B 2.000ms
`)
}

// TestErrorsOfAllComeFirst, wherever they stand in the schema.
func TestErrorsOfAllComeFirst(t *testing.T) {
	p := newPeer(t, 0)
	p.feed(ToServer, ask(1, kmsg.NewPtrMetadataRequest(), 13))
	topic := "orders"
	resp := kmsg.NewPtrMetadataResponse()
	resp.ErrorCode = 31
	resp.Topics = []kmsg.MetadataResponseTopic{{Topic: &topic,
		Partitions: []kmsg.MetadataResponseTopicPartition{{Partition: 2, ErrorCode: 5}}}}
	p.lines()
	p.feed(ToClient, answer(1, resp, 13))
	if text := p.lines(); !strings.Contains(text, " !CLUSTER_AUTHORIZATION_FAILED !orders-2:LEADER_NOT_AVAILABLE\n") {
		t.Error(text)
	}
}

// TestLargeRequests: a hostile body of small fields costs many times its size, so those without records are held lower.
func TestLargeRequests(t *testing.T) {
	p := newPeer(t, 0)
	p.stream.budget.Give(64 << 20)
	p.feed(ToServer, ask(1, findCoordinator(strings.Repeat("k", 30_000)), 2))
	large := ask(2, findCoordinator("a"), 2)
	p.feed(ToServer, sized(append(large[4:], make([]byte, maxRequest)...)))
	p.stream.budget.Take(64 << 20)
	if text := p.lines(); strings.Count(text, "not decoded: above the limit of 4194304 bytes for requests without records") != 1 {
		t.Error(len(text))
	}
}

func TestNoMemoryLeft(t *testing.T) {
	p := newPeer(t, 0)
	p.stream.budget.Take(1 << 20)
	p.feed(ToServer, ask(1, findCoordinator("a"), 2))
	p.stream.budget.Give(1 << 20)
	p.feed(ToClient, answer(1, kmsg.NewPtrFindCoordinatorResponse(), 2))
	p.want(`> FindCoordinator v2 corr=1 client=test 22B (not decoded: the limit on memory is reached)
< FindCoordinator v2 corr=1 client=test 26B 1.000ms
`)
}

// TestLostBytes: within a frame its end is known, beyond it a chunk that can be the beginning of a frame is waited for.
func TestLostBytes(t *testing.T) {
	p := newPeer(t, 0)
	long := ask(1, findCoordinator(strings.Repeat("k", 1000)), 2)
	p.feed(ToServer, long[:100])
	p.stream.Lost(ToServer, p.at, len(long)-100)
	p.feed(ToServer, ask(2, findCoordinator("b"), 2))
	p.stream.Lost(ToServer, p.at, 7)
	p.feed(ToServer, []byte("the end of what was lost"))
	p.feed(ToServer, ask(3, findCoordinator("c"), 2))
	p.stream.Lost(ToClient, p.at, -1)
	p.feed(ToClient, []byte("the end of what was lost"))
	p.feed(ToClient, answer(3, kmsg.NewPtrFindCoordinatorResponse(), 2))
	p.want(`> FindCoordinator v2 corr=1 client=test 1021B (not decoded: a part of it was not captured)
> FindCoordinator v2 corr=2 client=test 22B CoordinatorKey=b
> FindCoordinator v2 corr=3 client=test 22B CoordinatorKey=c
< FindCoordinator v2 corr=3 client=test 26B 2.000ms
`)
}

func TestPendingIsBounded(t *testing.T) {
	p := newPeer(t, 0)
	p.r.Filter.Errors = true
	frame := ask(1, findCoordinator("a"), 2)
	for range maxPending + 5 {
		p.stream.Feed(ToServer, p.at, frame)
	}
	if n, _ := p.stream.InFlight(); n != maxPending {
		t.Errorf("%d requests are kept", n)
	}
}
