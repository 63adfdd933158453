package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"kmirror/internal/trace"
)

const (
	bufferSize = 32 << 10
	// lingerTime is how long one direction goes on once the other has ended.
	lingerTime = 10 * time.Second
	// drainStep is how often a connection that drains looks whether all is answered.
	drainStep = 20 * time.Millisecond
)

// link is a client's connection and the one to the server that belongs to it.
type link struct {
	relay  *Relay
	id     int64
	client net.Conn

	once    sync.Once
	stopped chan struct{}
	// answering is above 0 from before the stream sees bytes of a response until they are written to the client.
	answering atomic.Int32
}

// stop asks the link to read no further request and to end once all are answered.
func (l *link) stop() { l.once.Do(func() { close(l.stopped) }) }

// serve passes bytes in both directions until both have ended, or force ends.
func (l *link) serve(force context.Context) {
	defer l.client.Close()
	now := time.Now()
	conn := trace.Conn{ID: l.id, Client: l.client.RemoteAddr().String(), Server: l.relay.cfg.Server}
	stream := trace.NewStream(conn, now, l.relay.cfg.MaxFrame, l.relay.budget, l.relay.queue.Put)
	defer func() { stream.Close(time.Now()) }()
	ctx, cancel := context.WithCancel(force)
	defer cancel()
	unhook := context.AfterFunc(ctx, func() { l.client.Close() })
	defer unhook()
	server, err := l.dial(ctx)
	if err != nil {
		stream.Note(time.Now(), "can't reach "+conn.Server+": "+err.Error())
		l.relay.quiet.Warn("dial", "can't reach the server", "server", conn.Server, "err", err)
		return
	}
	defer server.Close()
	unhookServer := context.AfterFunc(ctx, func() { server.Close() })
	defer unhookServer()

	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() { l.drain(done, cancel, stream) })
	var pumps sync.WaitGroup
	pumps.Go(func() { l.pump(cancel, server, l.client, stream, trace.ToServer) })
	pumps.Go(func() { l.pump(cancel, l.client, server, stream, trace.ToClient) })
	pumps.Wait()
	close(done)
	wg.Wait()
}

// dial connects to the server, unless the link is to end.
func (l *link) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-l.stopped:
			cancel()
		case <-ended:
		}
	})
	defer wg.Wait()
	defer close(ended)
	return l.relay.cfg.Dial(ctx)
}

// drain waits for stop, has no further request read, and ends the link once all are answered.
func (l *link) drain(done <-chan struct{}, cancel context.CancelFunc, stream *trace.Stream) {
	select {
	case <-done:
		return
	case <-l.stopped:
	}
	l.client.SetReadDeadline(time.Now())
	tick := time.NewTicker(drainStep)
	defer tick.Stop()
	for {
		if n, known := stream.InFlight(); !known || n == 0 && l.answering.Load() == 0 {
			cancel()
			return
		}
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

// pump passes one direction on. What is read is shown to the stream first, so that a request is known before its response
// can come. The end of one direction is passed on too; the other has lingerTime then.
func (l *link) pump(cancel context.CancelFunc, dst, src net.Conn, stream *trace.Stream, dir trace.Direction) {
	buf := make([]byte, bufferSize)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if err := l.pass(dst, buf[:n], stream, dir); err != nil {
				cancel()
				return
			}
		}
		if err == nil {
			continue
		}
		if l.draining() && dir == trace.ToServer {
			return // drain ends the link
		}
		if half, ok := dst.(interface{ CloseWrite() error }); !errors.Is(err, io.EOF) || !ok || half.CloseWrite() != nil {
			cancel()
			return
		}
		// The other direction reads what is left.
		dst.SetReadDeadline(time.Now().Add(lingerTime))
		return
	}
}

func (l *link) pass(dst io.Writer, b []byte, stream *trace.Stream, dir trace.Direction) error {
	if dir == trace.ToClient {
		l.answering.Add(1)
		defer l.answering.Add(-1)
	}
	stream.Feed(dir, time.Now(), b)
	_, err := dst.Write(b)
	return err
}

func (l *link) draining() bool {
	select {
	case <-l.stopped:
		return true
	default:
		return false
	}
}
