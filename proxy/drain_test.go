package proxy

import (
	"context"
	"errors"
	"testing"
	"time"
)

// raced is a connection that is told to end in the moment in which its reader, to which the first byte of a request has come, gives the rest
// of it time.
type raced struct {
	loop
	c    *conn
	asks int
}

func (r *raced) SetReadDeadline(time.Time) error {
	if r.asks++; r.asks == 2 {
		r.c.stop()
	}
	return nil
}

// TestDrainIsNotOverlooked: else a client that has sent a part of a request holds the end up until it is cut, since its reader has just
// moved the deadline that was to wake it.
func TestDrainIsNotOverlooked(t *testing.T) {
	cfg := Config{}
	cfg.setDefaults()
	nc := &raced{loop: loop{reply: sizedFrame(make([]byte, 10))}}
	nc.c = newConn(&Server{cfg: cfg}, Listener{Name: "CLIENT", NodeID: node}, nc)
	nc.c.ctx, nc.c.cancel = context.WithCancel(t.Context())
	defer nc.c.cancel()
	if err := nc.c.awaitRequest(); !errors.Is(err, errDraining) {
		t.Errorf("%v, and the rest of a request is waited for", err)
	}
}
