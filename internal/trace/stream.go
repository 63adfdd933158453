package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"

	"kmirror/protocol"
)

// Direction is where bytes go.
type Direction uint8

// Directions.
const (
	ToServer Direction = iota
	ToClient
)

// Kind says what a Message is.
type Kind uint8

// Kinds.
const (
	Request Kind = iota
	Response
	// Note is a remark, such as why a connection can't be read on.
	Note
	Opened
	Closed
)

// String returns the name used in JSON.
func (k Kind) String() string {
	return [...]string{"request", "response", "note", "open", "close"}[k]
}

// Conn names a connection. ID counts from 1; 0 stands for all of them.
type Conn struct {
	ID             int64
	Client, Server string
}

// Message is one frame of a connection, or a remark about it.
type Message struct {
	Kind Kind
	// At is when the last byte came by.
	At   time.Time
	Conn Conn
	// Header is that of the request, also for a response. Its ClientID is nil where there is none.
	Header protocol.RequestHeader
	// Unmatched: a response to no request that was seen. Of Header only the correlation id is set.
	Unmatched bool
	// Token: a SASL token without header, as they follow SaslHandshake v0.
	Token bool
	// Frame is the frame without its size, nil when it was not kept: then Reason says why. Charge is its share of the Budget,
	// which the receiver gives back.
	Frame  []byte
	Charge int
	// Size is the frame's in bytes, with its size prefix.
	Size int
	// Principal is who the connection had authenticated as when the frame came, as far as SASL told.
	Principal string
	// Duration is that from request to response, of responses only.
	Duration time.Duration
	// NoReply: a request that gets no response (Produce with acks=0).
	NoReply bool
	// Reason tells why Frame is nil, of a Note it is the text.
	Reason string

	exchange *exchange
}

// DefaultFrame is the limit for frames that are decoded where none is configured: above what most fetches bring, well below
// what a process may wait with in memory.
const DefaultFrame = 16 << 20

// Stream follows one connection. Its methods may be called from many goroutines; emit is called under the Stream's lock, so
// that messages come in order, and must not call back.
type Stream struct {
	conn   Conn
	budget *Budget
	emit   func(*Message)

	mu      sync.Mutex
	dirs    [2]framer
	pending pending
	sasl    saslState
	closed  bool
}

// NewStream begins to follow a connection and emits its opening. Frames above limit bytes are not decoded; 0 stands for
// DefaultFrame.
func NewStream(conn Conn, at time.Time, limit int, budget *Budget, emit func(*Message)) *Stream {
	if limit <= 0 {
		limit = DefaultFrame
	}
	s := &Stream{conn: conn, budget: budget, emit: emit}
	for i := range s.dirs {
		s.dirs[i] = framer{limit: limit, budget: budget}
	}
	emit(&Message{Kind: Opened, At: at, Conn: conn})
	return s
}

// Feed takes the next bytes of a direction, which stay the caller's.
func (s *Stream) Feed(dir Direction, at time.Time, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.dirs[dir]
	if f.mode == astray && s.begins(dir, b) {
		f.mode = framing
	}
	for !s.closed && f.mode == framing && len(b) > 0 {
		n, done, err := f.take(b)
		if err != nil {
			s.blind(dir, at, err)
			return
		}
		if b = b[n:]; done {
			s.frame(dir, at)
		}
	}
}

// Lost says that the next n bytes of a direction are missing, fewer than 0 for an unknown number. Within a frame its end
// is still found; else the beginning of another is looked for.
func (s *Stream) Lost(dir Direction, at time.Time, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && s.dirs[dir].lose(n) {
		s.frame(dir, at)
	}
}

// InFlight is the number of requests that wait for a response; false when the connection can't be read.
func (s *Stream) InFlight() (n int, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending.list), s.dirs[ToServer].mode == framing && s.dirs[ToClient].mode == framing
}

// Close ends the stream.
func (s *Stream) Close(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	for i := range s.dirs {
		s.dirs[i].stop(blind)
	}
	m := &Message{Kind: Closed, At: at}
	if n := len(s.pending.list); n > 0 {
		m.Reason = fmt.Sprintf("%d without a response", n)
	}
	s.pending = pending{}
	s.send(m)
}

// Note emits a remark about the connection.
func (s *Stream) Note(at time.Time, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(&Message{Kind: Note, At: at, Reason: text})
}

func (s *Stream) send(m *Message) {
	m.Conn, m.Principal = s.conn, s.sasl.principal
	s.emit(m)
}

// blind gives a connection up: the other direction can't be understood without this one.
func (s *Stream) blind(dir Direction, at time.Time, err error) {
	for i := range s.dirs {
		s.dirs[i].stop(blind)
	}
	from := "client"
	if dir == ToClient {
		from = "server"
	}
	s.send(&Message{Kind: Note, At: at, Reason: "passed on undecoded from here: from the " + from + ": " + err.Error()})
}

// frame handles a complete frame, and gives its memory to the message.
func (s *Stream) frame(dir Direction, at time.Time) {
	f := &s.dirs[dir]
	m := &Message{At: at, Size: f.size + len(f.prefix), Reason: f.why}
	head, charged := f.reset()
	m.Charge = charged
	if f.whole {
		m.Frame = head
		if head == nil {
			m.Frame = []byte{}
		}
	}
	if dir == ToServer {
		s.request(m, head)
	} else {
		s.response(m, head)
	}
}

func (s *Stream) request(m *Message, head []byte) {
	m.Kind = Request
	x := &exchange{at: m.At}
	if s.sasl.takesToken(head) {
		m.Token, x.token = true, true
		s.sasl.clientToken(head)
	} else {
		var body []byte
		var err error
		if m.Header, body, err = protocol.ParseRequestHeader(head); err != nil {
			m.Frame, m.Reason = nil, "not decoded: "+err.Error()
			s.budget.Give(m.Charge)
			m.Charge = 0
		} else {
			m.NoReply = silent(m.Header, body)
			s.sasl.request(m.Header, body)
		}
		x.header = m.Header
	}
	if !m.NoReply {
		s.pending.add(x)
	}
	m.exchange = x
	s.send(m)
}

func (s *Stream) response(m *Message, head []byte) {
	m.Kind = Response
	x := s.match(head)
	if x == nil {
		m.Unmatched, m.Frame = true, nil
		s.budget.Give(m.Charge)
		m.Charge = 0
		if m.Reason = "not decoded: no request with this correlation id was seen"; len(head) < 4 {
			m.Reason = "not decoded: shorter than a response header"
		} else {
			m.Header.CorrelationID = int32(binary.BigEndian.Uint32(head))
		}
		s.send(m)
		return
	}
	m.Header, m.Token, m.exchange = x.header, x.token, x
	m.Duration = max(0, m.At.Sub(x.at))
	if x.token {
		s.sasl.serverToken(head)
	} else if _, body, err := protocol.ParseResponseHeader(x.header.Key, x.header.Version, head); err == nil {
		s.sasl.response(x.header, body)
	}
	s.send(m)
}

// match finds the request of a response, nil for none.
func (s *Stream) match(head []byte) *exchange {
	if x := s.pending.token(); x != nil || len(head) < 4 {
		return x
	}
	return s.pending.take(int32(binary.BigEndian.Uint32(head)))
}

// silent reports whether a request gets no response: acks is 0.
func silent(h protocol.RequestHeader, body []byte) bool {
	if h.Key != keyProduce {
		return false
	}
	r := kbin.Reader{Src: body}
	switch {
	case h.Version >= 9:
		r.CompactNullableString()
	case h.Version >= 3:
		r.NullableString()
	}
	acks := r.Int16()
	return r.Ok() && acks == 0
}

// begins judges whether a chunk begins with a frame, after bytes were lost.
func (s *Stream) begins(dir Direction, b []byte) bool {
	if len(b) < 8 {
		return false
	}
	size := int64(int32(binary.BigEndian.Uint32(b)))
	if size < 4 || size > protocol.DefaultMaxFrame {
		return false
	}
	if dir == ToServer {
		return plausible(b[4:])
	}
	return s.pending.open[int32(binary.BigEndian.Uint32(b[4:]))] > 0
}

// plausible judges whether a frame is a request of an API and version that are known, as opposed to anything.
func plausible(frame []byte) bool {
	const longest = 255
	if len(frame) > 10+longest {
		frame = frame[:10+longest]
	}
	h, _, err := protocol.ParseRequestHeader(frame)
	api, known := protocol.LookupAPI(h.Key)
	if !known || h.Version < api.Min || h.Version > api.Max {
		return false
	}
	if err != nil {
		return errors.Is(err, protocol.ErrShort) && len(frame) >= 10
	}
	return h.ClientID == nil || plain(*h.ClientID)
}
