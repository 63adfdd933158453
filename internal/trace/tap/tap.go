// Package tap traces the connections that a server serves itself: it is shown their bytes, and what is done with them may change while
// they go on. While nothing is traced it keeps nothing and runs nothing.
package tap

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"kmirror/internal/quiet"
	"kmirror/internal/trace"
	"kmirror/internal/trace/queue"
)

// Settings are what is traced, and where to.
type Settings struct {
	// Reporter has Stats; its Out is closed when the Settings have served, if Close is set.
	Reporter *trace.Reporter
	Close    func() error
	// Wants decides which connections are traced.
	Wants func(Server) bool
	// MaxFrame is the size in bytes up to which frames are decoded, 0 for trace.DefaultFrame.
	MaxFrame int
	// Memory bounds in bytes what frames under way and messages that wait may hold.
	Memory int64
}

// Server is what a client is connected to.
type Server struct {
	// Listener is its name in the cluster; Gateway: it is a gateway's.
	Listener string
	Gateway  bool
	// NodeID is the broker that the port stands for, -1 for none.
	NodeID int32
}

// String is how a trace names it.
func (s Server) String() string {
	text := s.Listener
	if s.Gateway {
		text = "gateway " + text
	}
	if s.NodeID >= 0 {
		text += fmt.Sprintf("/%d", s.NodeID)
	}
	return text
}

// Tap traces connections by the Settings of the moment.
type Tap struct {
	log    *slog.Logger
	quiet  *quiet.Log
	budget *trace.Budget
	now    atomic.Pointer[session]

	mu      sync.Mutex
	memory  int64 // of budget
	last    int64 // the last connection's number
	watches map[*Watch]struct{}
}

// session is the time of one Settings.
type session struct {
	Settings
	queue *queue.Queue
	// written is the end of the goroutine that writes.
	written chan error
}

// New makes a Tap that traces nothing yet.
func New(log *slog.Logger) *Tap {
	return &Tap{log: log, quiet: quiet.New(log, quiet.Interval, nil), budget: trace.NewBudget(0), watches: map[*Watch]struct{}{}}
}

// Set has connections traced by s from now on, nil: not at all. Those that are traced already go on, if s wants them; those that are open
// and not traced are not taken up: how far they have come is not known. What was traced before is written when Set returns, and ended
// with its summary; the error is that of its output, queue.ErrStuck where it does not take that in time. The caller makes sure that there is
// one call at a time.
func (t *Tap) Set(s *Settings) error {
	var next *session
	if s != nil {
		next = &session{Settings: *s, queue: queue.New(s.Reporter, t.budget, t.quiet), written: make(chan error, 1)}
		go func() { next.written <- next.queue.Run() }()
	}
	t.mu.Lock()
	if next != nil {
		t.budget.Give(int(s.Memory - t.memory))
		t.memory = s.Memory
	}
	before := t.now.Swap(next)
	var unwanted []*Watch
	for w := range t.watches {
		if next == nil || !next.Wants(w.server) {
			unwanted = append(unwanted, w)
		}
	}
	t.mu.Unlock()
	for _, w := range unwanted {
		w.Closed()
	}
	if before == nil {
		return nil
	}
	return before.end()
}

// Failed reports whether the output has failed, so that nothing is written any more.
func (t *Tap) Failed() bool {
	s := t.now.Load()
	return s != nil && s.queue.Failed()
}

// end writes what is left and the summary. An output that is stuck stays as it is: somebody still writes to it.
func (s *session) end() error {
	err := s.queue.End(s.written)
	if errors.Is(err, queue.ErrStuck) {
		return err
	}
	if err == nil {
		err = s.Reporter.Stats.Write(s.Reporter.Out, s.Reporter.Format, time.Now())
	}
	if s.Close != nil {
		err = errors.Join(err, s.Close())
	}
	return err
}

// put takes a message of any connection.
func (t *Tap) put(m *trace.Message) {
	if s := t.now.Load(); s != nil {
		s.queue.Put(m)
	} else {
		t.budget.Give(m.Charge)
	}
}

// Open begins to trace a client's connection; nil when it is not to be traced.
func (t *Tap) Open(server Server, client string) *Watch {
	if t.now.Load() == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.now.Load()
	if s == nil || !s.Wants(server) {
		return nil
	}
	t.last++
	w := &Watch{tap: t, server: server}
	conn := trace.Conn{ID: t.last, Client: client, Server: server.String()}
	w.stream = trace.NewStream(conn, time.Now(), s.MaxFrame, t.budget, t.put)
	t.watches[w] = struct{}{}
	return w
}

// Watch is a connection that is traced. It never waits for the output.
type Watch struct {
	tap    *Tap
	server Server
	stream *trace.Stream
}

// Received takes what the client has sent, which stays the caller's.
func (w *Watch) Received(b []byte) { w.stream.Feed(trace.ToServer, time.Now(), b) }

// Sent takes what the client is sent, which stays the caller's.
func (w *Watch) Sent(b []byte) { w.stream.Feed(trace.ToClient, time.Now(), b) }

// Closed ends the trace of the connection. What is still shown of it is passed over.
func (w *Watch) Closed() {
	w.stream.Close(time.Now())
	w.tap.mu.Lock()
	delete(w.tap.watches, w)
	w.tap.mu.Unlock()
}
