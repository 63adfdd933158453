package pcap

import (
	"encoding/binary"
	"net/netip"
)

// segment is a TCP segment.
type segment struct {
	src, dst netip.AddrPort
	// acked is what its sender has of the other direction, if ack is set.
	seq, acked         uint32
	syn, ack, fin, rst bool
	// payload is what was captured, length what was sent.
	payload []byte
	length  int
}

// Link layer types (LINKTYPE_...).
const (
	linkNull     = 0
	linkEthernet = 1
	linkRawOld   = 12
	linkRaw      = 101
	linkLoop     = 108
	linkCooked   = 113
	linkIPv4     = 228
	linkIPv6     = 229
	linkCooked2  = 276
)

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
)

// parse reads a packet down to TCP. Whatever is something else, or too short to tell, is not ok.
func parse(p Packet) (s segment, ok bool) {
	b, ether, ok := network(p)
	if !ok || len(b) == 0 {
		return s, false
	}
	// What was cut off at the end by the capture's limit.
	missing := p.Length - len(p.Data)
	if ether == 0 {
		switch b[0] >> 4 {
		case 4:
			ether = etherIPv4
		case 6:
			ether = etherIPv6
		}
	}
	var src, dst netip.Addr
	var n int
	switch ether {
	case etherIPv4:
		src, dst, b, n, ok = ipv4(b, missing)
	case etherIPv6:
		src, dst, b, n, ok = ipv6(b, missing)
	default:
		return s, false
	}
	if !ok {
		return s, false
	}
	return tcp(src, dst, b, n)
}

// network takes the link layer off. ether is 0 where the IP header has to tell its version.
func network(p Packet) (b []byte, ether uint16, ok bool) {
	b = p.Data
	cut := func(n int) bool {
		if len(b) < n {
			return false
		}
		b = b[n:]
		return true
	}
	switch p.Link {
	case linkRaw, linkRawOld, linkIPv4, linkIPv6:
		return b, 0, true
	case linkNull, linkLoop:
		// The family's number differs between systems and byte orders; the IP header tells too.
		return b[min(4, len(b)):], 0, true
	case linkCooked:
		if len(b) < 16 {
			return nil, 0, false
		}
		ether = binary.BigEndian.Uint16(b[14:])
		b = b[16:]
	case linkCooked2:
		if len(b) < 20 {
			return nil, 0, false
		}
		ether = binary.BigEndian.Uint16(b)
		b = b[20:]
	case linkEthernet:
		if len(b) < 14 {
			return nil, 0, false
		}
		ether = binary.BigEndian.Uint16(b[12:])
		b = b[14:]
	default:
		return nil, 0, false
	}
	const vlan, provider = 0x8100, 0x88a8
	for ether == vlan || ether == provider {
		if len(b) < 4 {
			return nil, 0, false
		}
		ether = binary.BigEndian.Uint16(b[2:])
		if !cut(4) {
			return nil, 0, false
		}
	}
	return b, ether, true
}

const protocolTCP = 6

// ipv4 returns the payload of a packet that is no fragment, and its length as it was sent.
func ipv4(b []byte, missing int) (src, dst netip.Addr, payload []byte, n int, ok bool) {
	if len(b) < 20 {
		return
	}
	header, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	const offsetOrMore = 0x3fff
	if b[0]>>4 != 4 || header < 20 || len(b) < header || b[9] != protocolTCP || binary.BigEndian.Uint16(b[6:])&offsetOrMore != 0 {
		return
	}
	if total == 0 { // left to the network card
		total = len(b) + missing
	}
	if total < header {
		return
	}
	src, dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	return src, dst, b[header:min(len(b), total)], total - header, true
}

// ipv6 steps over extension headers. Fragments are not put together.
func ipv6(b []byte, missing int) (src, dst netip.Addr, payload []byte, n int, ok bool) {
	const header = 40
	if len(b) < header || b[0]>>4 != 6 {
		return
	}
	src, dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	next, n := b[6], int(binary.BigEndian.Uint16(b[4:]))
	if n == 0 {
		n = len(b) + missing - header
	}
	b = b[header:min(len(b), header+n)]
	const hopByHop, routing, destination = 0, 43, 60
	for next == hopByHop || next == routing || next == destination {
		if len(b) < 8 {
			return
		}
		size := (int(b[1]) + 1) * 8
		if len(b) < size {
			return
		}
		next = b[0]
		b, n = b[size:], n-size
	}
	return src, dst, b, n, next == protocolTCP
}

func tcp(src, dst netip.Addr, b []byte, n int) (s segment, ok bool) {
	if len(b) < 20 {
		return s, false
	}
	header := int(b[12]>>4) * 4
	if header < 20 || n < header {
		return s, false
	}
	s.src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	s.dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	s.seq = binary.BigEndian.Uint32(b[4:])
	s.acked = binary.BigEndian.Uint32(b[8:])
	const fin, syn, rst, ack = 1, 2, 4, 16
	s.fin, s.syn, s.rst, s.ack = b[13]&fin != 0, b[13]&syn != 0, b[13]&rst != 0, b[13]&ack != 0
	s.payload, s.length = b[min(len(b), header):], n-header
	return s, true
}
