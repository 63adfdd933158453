package pcap

import (
	"container/list"
	"net/netip"
	"slices"
	"time"

	"kmirror/internal/trace"
)

const (
	// maxHeld bounds in bytes what one direction holds back until what comes before it is there; maxSegments the segments.
	maxHeld     = 4 << 20
	maxSegments = 4096
	// maxAllHeld bounds what all hold back.
	maxAllHeld = 64 << 20
	// maxConns bounds the connections that are followed at a time.
	maxConns = 10_000
)

// Config of an Assembler.
type Config struct {
	// Ports are the servers' ports; connections of others are left out. Without any all connections are followed, and which side
	// is the server is told by who opened the connection, or else by the lower port.
	Ports []uint16
	// MaxFrame is the size in bytes up to which frames are decoded, 0 for trace.DefaultFrame.
	MaxFrame int
	// Emit gets the messages of all connections.
	Emit func(*trace.Message)
}

// Assembler puts packets together to connections.
type Assembler struct {
	cfg    Config
	budget *trace.Budget
	conns  map[pair]*connection
	// recent has the connections in the order in which they were last heard of.
	recent *list.List
	last   int64
	held   int
	// Skipped counts packets that are no TCP that we can read.
	Skipped int
	at      time.Time
}

// pair names a connection: client first.
type pair struct{ client, server netip.AddrPort }

type connection struct {
	pair    pair
	stream  *trace.Stream
	dirs    [2]side
	element *list.Element
}

// side is one direction of a connection.
type side struct {
	begun bool
	next  uint32
	// held are segments beyond next, in order; bytes is what they hold.
	held  []piece
	bytes int
	fin   bool
}

type piece struct {
	seq    uint32
	data   []byte
	length int
}

// NewAssembler makes an Assembler.
func NewAssembler(cfg Config) *Assembler {
	const memory = 256 << 20
	return &Assembler{cfg: cfg, budget: trace.NewBudget(memory), conns: make(map[pair]*connection), recent: list.New()}
}

// Budget is what the messages' Charges are given back to.
func (a *Assembler) Budget() *trace.Budget { return a.budget }

// Packet takes the next packet.
func (a *Assembler) Packet(p Packet) {
	a.at = p.At
	s, ok := parse(p)
	if !ok {
		a.Skipped++
		return
	}
	c, dir := a.find(s)
	if c == nil {
		return
	}
	a.recent.MoveToBack(c.element)
	d := &c.dirs[dir]
	if s.syn {
		d.begun, d.next = true, s.seq+1
		return
	}
	if s.rst {
		a.close(c)
		return
	}
	if s.ack {
		a.acked(c, 1-dir, s.acked)
	}
	if s.length > 0 {
		if !d.begun {
			// The capture began after the connection.
			d.begun, d.next = true, s.seq
			c.stream.Lost(dir, a.at, -1)
		}
		a.data(c, dir, s)
	}
	if s.fin {
		d.fin = true
		if c.dirs[0].fin && c.dirs[1].fin {
			a.close(c)
		}
	}
}

// Close ends all connections.
func (a *Assembler) Close() {
	for e := a.recent.Front(); e != nil; e = a.recent.Front() {
		a.close(e.Value.(*connection))
	}
}

// find returns the connection of a segment, a new one if need be, nil if it is not to be followed.
func (a *Assembler) find(s segment) (*connection, trace.Direction) {
	out, back := pair{s.src, s.dst}, pair{s.dst, s.src}
	fresh := s.syn && !s.ack
	if c := a.conns[out]; c != nil {
		if !fresh || c.dirs[0].begun && c.dirs[0].next == s.seq+1 {
			return c, trace.ToServer
		}
		a.close(c) // the port is used again
	} else if c := a.conns[back]; c != nil {
		return c, trace.ToClient
	}
	if s.rst || !s.syn && s.length == 0 {
		return nil, 0
	}
	key, dir := out, trace.ToServer
	if a.fromServer(s) {
		key, dir = back, trace.ToClient
	}
	if len(a.cfg.Ports) > 0 && !slices.Contains(a.cfg.Ports, key.server.Port()) {
		return nil, 0
	}
	if len(a.conns) >= maxConns {
		a.close(a.recent.Front().Value.(*connection))
	}
	a.last++
	conn := trace.Conn{ID: a.last, Client: key.client.String(), Server: key.server.String()}
	c := &connection{pair: key, stream: trace.NewStream(conn, a.at, a.cfg.MaxFrame, a.budget, a.cfg.Emit)}
	c.element = a.recent.PushBack(c)
	a.conns[key] = c
	return c, dir
}

// fromServer tells which way the first segment goes that is seen of a connection.
func (a *Assembler) fromServer(s segment) bool {
	switch src, dst := slices.Contains(a.cfg.Ports, s.src.Port()), slices.Contains(a.cfg.Ports, s.dst.Port()); {
	case src != dst:
		return src
	case s.syn:
		return s.ack
	}
	return s.src.Port() < s.dst.Port()
}

// data brings a segment into its place.
func (a *Assembler) data(c *connection, dir trace.Direction, s segment) {
	d := &c.dirs[dir]
	p := piece{seq: s.seq, data: s.payload, length: s.length}
	if int32(p.seq-d.next) > 0 {
		a.hold(c, dir, p)
		return
	}
	a.deliver(c, dir, p)
	a.release(c, dir)
}

// deliver passes on what is new of a piece that begins at or before next.
func (a *Assembler) deliver(c *connection, dir trace.Direction, p piece) {
	d := &c.dirs[dir]
	old := int(int32(d.next - p.seq))
	if old >= p.length {
		return // sent again
	}
	fresh := p.data[min(old, len(p.data)):]
	if len(fresh) > 0 {
		c.stream.Feed(dir, a.at, fresh)
	}
	if missing := p.length - max(old, len(p.data)); missing > 0 {
		c.stream.Lost(dir, a.at, missing)
	}
	d.next = p.seq + uint32(p.length)
}

// hold keeps a piece until what comes before it is there. When that is too much, what is missing was not captured.
func (a *Assembler) hold(c *connection, dir trace.Direction, p piece) {
	d := &c.dirs[dir]
	i, _ := slices.BinarySearchFunc(d.held, p, func(x, y piece) int { return int(int32(x.seq - y.seq)) })
	if i < len(d.held) && d.held[i].seq == p.seq && d.held[i].length >= p.length {
		return
	}
	p.data = slices.Clone(p.data)
	d.held = slices.Insert(d.held, i, p)
	d.bytes += len(p.data)
	a.held += len(p.data)
	for len(d.held) > 0 && (d.bytes > maxHeld || len(d.held) > maxSegments || a.held > maxAllHeld) {
		a.skip(c, dir)
	}
}

// acked hears from the receiver of a direction how far it has come: what is missing before that was not captured.
func (a *Assembler) acked(c *connection, dir trace.Direction, next uint32) {
	d := &c.dirs[dir]
	for len(d.held) > 0 && int32(next-d.held[0].seq) > 0 {
		a.skip(c, dir)
	}
}

// skip gives up what is missing before the first piece that is held, and passes on what follows.
func (a *Assembler) skip(c *connection, dir trace.Direction) {
	d := &c.dirs[dir]
	c.stream.Lost(dir, a.at, int(int32(d.held[0].seq-d.next)))
	d.next = d.held[0].seq
	a.release(c, dir)
}

// release passes on what is held and due.
func (a *Assembler) release(c *connection, dir trace.Direction) {
	d := &c.dirs[dir]
	for len(d.held) > 0 && int32(d.held[0].seq-d.next) <= 0 {
		p := d.held[0]
		d.held[0] = piece{}
		d.held = d.held[1:]
		d.bytes -= len(p.data)
		a.held -= len(p.data)
		a.deliver(c, dir, p)
	}
}

// close ends a connection. What it holds back follows something that was not captured.
func (a *Assembler) close(c *connection) {
	for dir := range c.dirs {
		for len(c.dirs[dir].held) > 0 {
			a.skip(c, trace.Direction(dir))
		}
	}
	c.stream.Close(a.at)
	a.recent.Remove(c.element)
	delete(a.conns, c.pair)
}
