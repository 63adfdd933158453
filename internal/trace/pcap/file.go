// Package pcap reads captures of Kafka connections: the formats pcap and pcapng, the link layers that captures of brokers have,
// IPv4 and IPv6, and TCP put in order again. It knows no more of them than that takes.
package pcap

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// maxPacket bounds a packet in bytes, maxBlock a block of a pcapng file, maxInterfaces those that one names.
const (
	maxPacket     = 1 << 20
	maxBlock      = 2 * maxPacket
	maxInterfaces = 4096
)

// Packet is one captured packet.
type Packet struct {
	At time.Time
	// Link is the link layer's type (LINKTYPE_...).
	Link uint32
	// Data is what was captured, valid until the next packet is read; Length is what the packet had.
	Data   []byte
	Length int
}

// ErrFormat is wrapped by errors that say that a file is no capture, or broken.
var ErrFormat = errors.New("not a readable capture")

// Reader reads the packets of a file.
type Reader struct {
	r     *bufio.Reader
	order binary.ByteOrder
	buf   []byte
	next  func() (Packet, error)

	// pcap
	link  uint32
	nanos bool
	// pcapng
	interfaces []netInterface
}

type netInterface struct {
	link, snap uint32
	// unit is how many of the file's units of time make a second.
	unit uint64
}

// NewReader reads the beginning of a file and finds out its format.
func NewReader(r io.Reader) (*Reader, error) {
	p := &Reader{r: bufio.NewReaderSize(r, 64<<10)}
	head, err := p.r.Peek(4)
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: shorter than its first field", ErrFormat)
	} else if err != nil {
		return nil, err // a directory, say
	}
	const micro, nano, section = 0xa1b2c3d4, 0xa1b23c4d, 0x0a0d0d0a
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		p.order = order
		switch order.Uint32(head) {
		case section:
			p.next = p.block
			return p, nil
		case micro, nano:
			p.nanos = order.Uint32(head) == nano
			p.next = p.record
			b, err := p.read(24)
			if err != nil {
				return nil, err
			}
			p.link = order.Uint32(b[20:]) & 0x0fffffff // above are bits about frame checksums
			return p, nil
		}
	}
	return nil, fmt.Errorf("%w: neither pcap nor pcapng", ErrFormat)
}

// Next returns the next packet. The end of the file is io.EOF; an end within a packet, as captures have that were cut off,
// is io.ErrUnexpectedEOF.
func (p *Reader) Next() (Packet, error) { return p.next() }

// read returns the next n bytes in a buffer that is used again.
func (p *Reader) read(n int) ([]byte, error) {
	if n > cap(p.buf) {
		p.buf = make([]byte, n)
	}
	b := p.buf[:n]
	_, err := io.ReadFull(p.r, b)
	return b, err
}

// record reads a packet of a pcap file.
func (p *Reader) record() (Packet, error) {
	h, err := p.read(16)
	if err != nil {
		return Packet{}, err
	}
	sec, frac, have, length := p.order.Uint32(h), p.order.Uint32(h[4:]), p.order.Uint32(h[8:]), p.order.Uint32(h[12:])
	if have > maxPacket {
		return Packet{}, fmt.Errorf("%w: a packet of %d bytes", ErrFormat, have)
	}
	unit := int64(time.Microsecond)
	if p.nanos {
		unit = 1
	}
	data, err := p.read(int(have))
	if err != nil {
		return Packet{}, inPacket(err)
	}
	return Packet{At: time.Unix(int64(sec), int64(frac)*unit), Link: p.link, Data: data, Length: int(max(length, have))}, nil
}

func inPacket(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Block types of pcapng.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockOld       = 2
	blockSimple    = 3
	blockPacket    = 6
)

// block reads blocks of a pcapng file until one holds a packet.
func (p *Reader) block() (Packet, error) {
	for {
		kind, body, err := p.blockBody()
		if err != nil {
			return Packet{}, err
		}
		var packet Packet
		var found bool
		switch kind {
		case blockInterface:
			err = p.addInterface(body)
		case blockPacket, blockOld:
			packet, err = p.packet(kind, body)
			found = true
		case blockSimple:
			packet, err = p.simple(body)
			found = true
		}
		if err != nil || found {
			return packet, err
		}
	}
}

// blockBody reads one block. A section's header says in which byte order what follows is written.
func (p *Reader) blockBody() (kind uint32, body []byte, err error) {
	var h [12]byte
	if _, err := io.ReadFull(p.r, h[:8]); err != nil {
		return 0, nil, err
	}
	kind = p.order.Uint32(h[:])
	taken := 8
	if kind == blockSection {
		if _, err := io.ReadFull(p.r, h[8:12]); err != nil {
			return 0, nil, inPacket(err)
		}
		taken = 12
		const magic = 0x1a2b3c4d
		switch {
		case binary.LittleEndian.Uint32(h[8:]) == magic:
			p.order = binary.LittleEndian
		case binary.BigEndian.Uint32(h[8:]) == magic:
			p.order = binary.BigEndian
		default:
			return 0, nil, fmt.Errorf("%w: a section without byte order", ErrFormat)
		}
		p.interfaces = nil
	}
	size := p.order.Uint32(h[4:])
	if size < uint32(taken)+4 || size > maxBlock || size%4 != 0 {
		return 0, nil, fmt.Errorf("%w: a block of %d bytes", ErrFormat, size)
	}
	b, err := p.read(int(size) - taken)
	if err != nil {
		return 0, nil, inPacket(err)
	}
	return kind, b[:len(b)-4], nil
}

func (p *Reader) addInterface(b []byte) error {
	if len(b) < 8 || len(p.interfaces) >= maxInterfaces {
		return fmt.Errorf("%w: interface %d", ErrFormat, len(p.interfaces))
	}
	i := netInterface{link: uint32(p.order.Uint16(b)), snap: p.order.Uint32(b[4:]), unit: 1_000_000}
	const optionEnd, optionUnit = 0, 9
	for o := b[8:]; len(o) >= 4; {
		code, n := p.order.Uint16(o), int(p.order.Uint16(o[2:]))
		if code == optionEnd || len(o) < 4+n {
			break
		}
		if code == optionUnit && n >= 1 {
			i.unit = unitOf(o[4])
		}
		o = o[min(len(o), 4+(n+3)&^3):]
	}
	p.interfaces = append(p.interfaces, i)
	return nil
}

// unitOf reads if_tsresol: a negative power of ten, or of two when the highest bit is set. Powers that 64 bits don't hold
// are taken for nanoseconds.
func unitOf(b byte) uint64 {
	base, power := uint64(10), b&0x7f
	if b&0x80 != 0 {
		base = 2
	}
	unit := uint64(1)
	for range power {
		if unit > math.MaxInt64/base {
			return 1_000_000_000
		}
		unit *= base
	}
	return unit
}

// packet reads an Enhanced Packet Block, or the Packet Block that came before it.
func (p *Reader) packet(kind uint32, b []byte) (Packet, error) {
	if len(b) < 20 {
		return Packet{}, fmt.Errorf("%w: a packet without header", ErrFormat)
	}
	id := p.order.Uint32(b)
	if kind == blockOld {
		id = uint32(p.order.Uint16(b))
	}
	have, length := p.order.Uint32(b[12:]), p.order.Uint32(b[16:])
	if int(id) >= len(p.interfaces) || int64(have) > int64(len(b)-20) {
		return Packet{}, fmt.Errorf("%w: a packet of %d bytes of interface %d", ErrFormat, have, id)
	}
	i := p.interfaces[id]
	units := uint64(p.order.Uint32(b[4:]))<<32 | uint64(p.order.Uint32(b[8:]))
	return Packet{At: i.time(units), Link: i.link, Data: b[20 : 20+have], Length: boundedLength(have, length)}, nil
}

func (i netInterface) time(units uint64) time.Time {
	rest := float64(units%i.unit) / float64(i.unit)
	return time.Unix(int64(units/i.unit), int64(math.Round(rest*1e9)))
}

// simple reads a Simple Packet Block, which has no time and belongs to the first interface.
func (p *Reader) simple(b []byte) (Packet, error) {
	if len(b) < 4 || len(p.interfaces) == 0 {
		return Packet{}, fmt.Errorf("%w: a simple packet", ErrFormat)
	}
	length := p.order.Uint32(b)
	have := min(length, uint32(len(b)-4))
	if snap := p.interfaces[0].snap; snap > 0 {
		have = min(have, snap)
	}
	return Packet{At: time.Unix(0, 0), Link: p.interfaces[0].link, Data: b[4 : 4+have], Length: boundedLength(have, length)}, nil
}

func boundedLength(have, length uint32) int { return int(max(have, min(length, maxPacket))) }
