package e2e

import (
	"bytes"
	"crypto/tls"
	bin "encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kmirror/protocol"
)

// handshakePatience is how long kmirror may take to end a connection whose handshake does not go on: ten seconds are promised, where the
// machine has time for that.
const handshakePatience = time.Minute

// handshakes: clients that stop within a TLS handshake, that misuse it, and that come and go, while workers work. Those that stop are cut
// off, the log does not fill, and who speaks TLS is served.
func (b *stormBed) handshakes(t *testing.T) {
	before, logged := b.now(t), len(mustRead(t, b.s.log))
	sizes := map[uint16]int{}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		n, err := b.shake(b.doors[doorBroker+1], version, math.MaxInt)
		if err != nil {
			t.Fatal(err)
		}
		sizes[version] = n
	}
	var stalled, storm sync.WaitGroup
	for i := range b.idle / 5 {
		stalled.Go(func() {
			version := []uint16{tls.VersionTLS12, tls.VersionTLS13}[i/2%2]
			if n, err := b.shake(b.some(2*i+1), version, rand.N(sizes[version])); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("stopped after %d of %d bytes: %v", n, sizes[version], err)
			}
		})
	}
	begin := time.Now()
	var done atomic.Int64
	for i := range 16 {
		storm.Go(func() {
			for j := range b.comeAndGo / 32 {
				misuse := misuses[(i+j)%len(misuses)]
				err := b.misuse(misuse, b.some(2*rand.N(doorGuest/2)+1))
				for tries := 0; tries < 3 && ended(err); tries++ {
					err = b.misuse(misuse, b.some(2*rand.N(doorGuest/2)+1)) // its broker took more than five seconds for a handshake
				}
				if err != nil {
					t.Errorf("%s: %v", misuse.name, err)
				}
				done.Add(1)
			}
		})
	}
	storm.Wait()
	took := time.Since(begin).Round(time.Millisecond)
	b.work(t, 8, time.Second)
	during := b.now(t)
	stalled.Wait()
	t.Logf("before %s; %d handshakes in %s; with %d stalled ones %s; %d bytes in the log", before, done.Load(), took, b.idle/5, during,
		len(mustRead(t, b.s.log))-logged)
	if n := len(mustRead(t, b.s.log)) - logged; n > 64<<10 {
		t.Errorf("%d bytes in the log", n)
	}
}

// ended reports whether an error is that of a connection that the other side has closed: by a read, or by a write after it.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// halted is a connection that swallows all but the first bytes that are written.
type halted struct {
	net.Conn
	most, sent int
}

func (h *halted) Write(b []byte) (int, error) {
	n := min(h.most-h.sent, len(b))
	h.sent += n
	if n > 0 {
		if _, err := h.Conn.Write(b[:n]); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// shake does a handshake, of which most bytes are sent, and waits for kmirror to end it where those are too few.
func (b *stormBed) shake(d door, version uint16, most int) (sent int, err error) {
	nc, err := net.DialTimeout("tcp", d.addr, 20*time.Second)
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(handshakePatience))
	conf := b.conf.Clone()
	conf.MaxVersion = version
	h := &halted{Conn: nc, most: most}
	secure := tls.Client(h, conf)
	err = secure.Handshake()
	for err == nil && most < math.MaxInt { // version 1.3: the client is done before it knows that its last words have come
		_, err = nc.Read(make([]byte, 1<<10))
	}
	return h.sent, err
}

// misuse is something that clients do to TLS.
type misuse struct {
	name string
	// run ends with nil when the connection is to be ended by kmirror now, errServed when all is well.
	run func(b *stormBed, nc *net.TCPConn) error
}

var errServed = errors.New("served")

// misuse does it, and wants kmirror to end the connection where that is due.
func (b *stormBed) misuse(m misuse, d door) error {
	nc, err := net.DialTimeout("tcp", d.addr, 20*time.Second)
	if err != nil {
		return err
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(handshakePatience))
	if err := m.run(b, nc.(*net.TCPConn)); errors.Is(err, errServed) {
		return nil
	} else if err != nil {
		return err
	}
	for rest := make([]byte, 4<<10); ; {
		if _, err := nc.Read(rest); errors.Is(err, os.ErrDeadlineExceeded) {
			return errors.New("the connection is not ended")
		} else if err != nil {
			return nil
		}
	}
}

// raw is a misuse that is some bytes.
func raw(name string, bytes func() []byte) misuse {
	return misuse{name, func(_ *stormBed, nc *net.TCPConn) error {
		nc.Write(bytes()) // may be cut off within
		return nil
	}}
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.N(256))
	}
	return b
}

var misuses = []misuse{
	raw("no TLS but Kafka", func() []byte { return peerFormat.AppendRequest(nil, versionsOf(), 1) }),
	raw("noise", func() []byte { return append([]byte{0}, noise(300)...) }),
	raw("a record that is too long", func() []byte { return append([]byte{recordHandshake, 3, 1, 0xff, 0xff}, noise(1<<16)...) }),
	raw("data before the handshake", func() []byte { return append([]byte{recordData, 3, 3, 0, 100}, noise(100)...) }),
	raw("a hello that is none", func() []byte {
		return append([]byte{recordHandshake, 3, 1, 0, 104, helloMessage, 0, 0, 100}, noise(100)...)
	}),
	raw("a hello of 16 MiB", func() []byte {
		return append([]byte{recordHandshake, 3, 1, 0x40, 0, helloMessage, 0xff, 0xff, 0xff}, noise(1<<14-4)...)
	}),
	raw("warnings", func() []byte { return bytes.Repeat([]byte{recordAlert, 3, 1, 0, 2, 1, 90}, 200) }),
	raw("empty records", func() []byte { return bytes.Repeat([]byte{recordHandshake, 3, 1, 0, 0}, 200) }),
	{"an old version", func(b *stormBed, nc *net.TCPConn) error {
		conf := b.conf.Clone()
		conf.MinVersion, conf.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
		if err := tls.Client(nc, conf).Handshake(); err == nil {
			return errors.New("a handshake with TLS 1.1 succeeds")
		}
		return nil
	}},
	{"a hello byte by byte", func(b *stormBed, nc *net.TCPConn) error {
		return served(newPeer(tls.Client(&trickle{nc}, b.conf)), errServed)
	}},
	{"gone without goodbye", func(b *stormBed, nc *net.TCPConn) error { return served(newPeer(tls.Client(nc, b.conf)), errServed) }},
	{"gone within a request", func(b *stormBed, nc *net.TCPConn) error {
		if _, err := tls.Client(nc, b.conf).Write(make([]byte, 3)); err != nil {
			return err
		}
		nc.SetLinger(0)
		return errServed
	}},
	{"a session taken up again", func(b *stormBed, nc *net.TCPConn) error {
		conf := b.conf.Clone()
		conf.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		if err := served(newPeer(tls.Client(nc, conf)), nil); err != nil {
			return err
		}
		again, err := net.Dial("tcp", nc.RemoteAddr().String())
		if err != nil {
			return err
		}
		defer again.Close()
		again.SetDeadline(time.Now().Add(handshakePatience))
		return served(newPeer(tls.Client(again, conf)), errServed)
	}},
	wired("renegotiation", tls.VersionTLS12, func(w *tlsWire) error {
		hello := append([]byte{3, 3}, noise(32)...)
		hello = append(hello, 0, 0, 2, 0xc0, 0x2b, 1, 0) // no session, one cipher suite, no compression
		return w.write(w.seal(recordHandshake, append([]byte{helloMessage, 0, 0, byte(len(hello))}, hello...)))
	}),
	wired("new keys all the time", tls.VersionTLS13, func(w *tlsWire) error {
		for range 100 {
			record, err := w.keyUpdate()
			if err != nil {
				return err
			}
			if w.write(record) != nil {
				return nil // cut off
			}
		}
		return nil
	}),
	wired("new keys", tls.VersionTLS13, func(w *tlsWire) error {
		for corr := range int32(5) {
			update, err := w.keyUpdate()
			if err == nil {
				err = w.answers(10+corr, update)
			}
			if err != nil {
				return err
			}
		}
		return errServed
	}),
	wired("empty data", tls.VersionTLS12, func(w *tlsWire) error {
		var all [][]byte
		for range 100 {
			all = append(all, w.seal(recordData, nil))
		}
		w.write(all...)
		return nil
	}),
	wired("a damaged record", tls.VersionTLS12, damage),
	wired("a damaged record", tls.VersionTLS13, damage),
}

func damage(w *tlsWire) error {
	record := w.seal(recordData, peerFormat.AppendRequest(nil, versionsOf(), 1))
	record[len(record)-1-rand.N(20)] ^= 1
	return w.write(record)
}

// served asks something and returns what it is given when that is answered.
func served(p *peer, then error) error {
	if _, err := p.ask(metadataOf("busy")); err != nil {
		return err
	}
	return then
}

// wired is a misuse on a connection on which a request has been answered.
func wired(name string, version uint16, run func(w *tlsWire) error) misuse {
	return misuse{name, func(b *stormBed, nc *net.TCPConn) error {
		w, err := newTLSWire(nc, b.conf, version)
		if err != nil {
			return err
		}
		if err := w.answers(7); err != nil {
			return err
		}
		return run(w)
	}}
}

// answers sends records and a request, which have to be answered.
func (w *tlsWire) answers(corr int32, records ...[]byte) error {
	if err := w.write(append(records, w.seal(recordData, peerFormat.AppendRequest(nil, versionsOf(), corr)))...); err != nil {
		return err
	}
	reply, err := protocol.ReadFrame(w.Conn, protocol.DefaultMaxFrame, nil)
	if err != nil {
		return err
	}
	if got := int32(bin.BigEndian.Uint32(reply)); got != corr {
		return fmt.Errorf("WRONG CORRELATION ID %d, want %d", got, corr)
	}
	return nil
}

// trickle is a connection that sends what is written byte by byte.
type trickle struct{ net.Conn }

func (t *trickle) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := t.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}
