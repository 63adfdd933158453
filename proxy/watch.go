package proxy

import "net"

// Watch is shown what passes on one client's connection, without TLS, as the client sends and is sent it. Received and Sent are called
// one at a time each, both at once, before the bytes go any further; the bytes stay the caller's. No method may block or keep them.
type Watch interface {
	Received(b []byte)
	Sent(b []byte)
	// Closed is the last call.
	Closed()
}

// WatchFunc decides whether a client's connection is watched: nil is no. nodeID is that of the listener, -1 at a gateway's bootstrap
// port, client the client's address.
type WatchFunc func(listener string, nodeID int32, client string) Watch

// watched is a client's connection whose bytes are shown as they are read. What is written is shown where it is written, so that many
// buffers still go by one system call.
type watched struct {
	net.Conn
	w Watch
}

func (c watched) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.w.Received(b[:n])
	}
	return n, err
}

// watch has the connection shown, if it is to be watched. Where it is not, requests are read from nc itself, and replies cost a
// comparison with nil. It is called before anything is read.
func (c *conn) watch() {
	if c.s.cfg.Watch == nil {
		return
	}
	if c.w = c.s.cfg.Watch(c.l.Name, c.l.NodeID, remoteOf(c.nc)); c.w != nil {
		c.br.Reset(watched{c.nc, c.w})
	}
}

// show shows what is about to be written: the answer to it may be read at once.
func (c *conn) show(bufs ...[]byte) {
	if c.w == nil {
		return
	}
	for _, b := range bufs {
		c.w.Sent(b)
	}
}

// unwatch ends that; nobody delivers any more.
func (c *conn) unwatch() {
	if c.w != nil {
		c.w.Closed()
	}
}
