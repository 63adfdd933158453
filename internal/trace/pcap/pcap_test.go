package pcap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"kmirror/internal/trace"
	"kmirror/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	client4, server4 = netip.MustParseAddrPort("10.0.0.1:50000"), netip.MustParseAddrPort("10.0.0.2:9092")
	client6, server6 = netip.MustParseAddrPort("[fd00::1]:50000"), netip.MustParseAddrPort("[fd00::2]:9092")
)

const (
	fin, syn, rst, push, ack = 1, 2, 4, 8, 16
)

// tcpPacket is an IP packet with a TCP segment.
func tcpPacket(src, dst netip.AddrPort, seq uint32, flags byte, payload []byte) []byte {
	t := binary.BigEndian.AppendUint16(nil, src.Port())
	t = binary.BigEndian.AppendUint16(t, dst.Port())
	t = binary.BigEndian.AppendUint32(t, seq)
	t = append(t, 0, 0, 0, 0, 6<<4, flags, 1, 0, 0, 0, 0, 0)
	t = append(append(t, 1, 1, 1, 0), payload...) // options
	if src.Addr().Is4() {
		b := []byte{0x45, 0}
		b = binary.BigEndian.AppendUint16(b, uint16(20+len(t)))
		b = append(b, 0, 1, 0x40, 0, 64, protocolTCP, 0, 0)
		b = append(append(b, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
		return append(b, t...)
	}
	b := []byte{0x60, 0, 0, 0}
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(t)))
	b = append(b, 60, 64)
	b = append(append(b, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	return append(append(b, protocolTCP, 0, 0, 0, 0, 0, 0, 0), t...) // behind an extension header
}

// linked puts a link layer in front.
func linked(link uint32, ip []byte) []byte {
	ether := uint16(etherIPv4)
	if ip[0]>>4 == 6 {
		ether = etherIPv6
	}
	two := func(b []byte) []byte { return binary.BigEndian.AppendUint16(b, ether) }
	switch link {
	case linkEthernet:
		// With a VLAN tag, and padding at the end.
		return append(append(two(append(make([]byte, 12), 0x81, 0, 0, 7)), ip...), 0, 0, 0, 0)
	case linkCooked:
		return append(two(make([]byte, 14)), ip...)
	case linkCooked2:
		return append(append(two(nil), make([]byte, 18)...), ip...)
	case linkNull:
		return append([]byte{2, 0, 0, 0}, ip...)
	case linkLoop:
		return append([]byte{0, 0, 0, 24}, ip...)
	}
	return ip
}

// pcapFile is a capture with a packet every millisecond.
func pcapFile(order binary.AppendByteOrder, magic, link uint32, packets ...[]byte) []byte {
	b := order.AppendUint32(nil, magic)
	b = append(order.AppendUint16(order.AppendUint16(b, 2), 4), make([]byte, 8)...)
	b = order.AppendUint32(order.AppendUint32(b, 65535), link)
	for i, p := range packets {
		frac := uint32(i * 1000)
		if magic == 0xa1b23c4d {
			frac *= 1000
		}
		b = order.AppendUint32(order.AppendUint32(b, 0), frac)
		b = order.AppendUint32(order.AppendUint32(b, uint32(len(p))), uint32(len(p)))
		b = append(b, p...)
	}
	return b
}

// pcapngFile is the same in the newer format, with an interface that counts in units of 2^-20 seconds.
func pcapngFile(order binary.AppendByteOrder, link uint32, packets ...[]byte) []byte {
	block := func(kind uint32, body []byte) []byte {
		for len(body)%4 > 0 {
			body = append(body, 0)
		}
		b := order.AppendUint32(order.AppendUint32(nil, kind), uint32(len(body)+12))
		return order.AppendUint32(append(b, body...), uint32(len(body)+12))
	}
	section := order.AppendUint16(order.AppendUint16(order.AppendUint32(nil, 0x1a2b3c4d), 1), 0)
	b := block(blockSection, append(section, bytes.Repeat([]byte{0xff}, 8)...))
	face := order.AppendUint32(order.AppendUint16(order.AppendUint16(nil, uint16(link)), 0), 0)
	face = append(order.AppendUint16(order.AppendUint16(face, 9), 1), 0x80|20, 0, 0, 0)
	b = append(b, block(blockInterface, append(face, 0, 0, 0, 0))...)
	b = append(b, block(0x0bad, []byte("a block that nobody knows"))...)
	for i, p := range packets {
		units := uint64(i) << 20 / 1000
		body := order.AppendUint32(order.AppendUint32(nil, 0), uint32(units>>32))
		body = order.AppendUint32(body, uint32(units))
		body = order.AppendUint32(order.AppendUint32(body, uint32(len(p))), uint32(len(p)))
		b = append(b, block(blockPacket, append(body, p...))...)
	}
	return b
}

// start is the first sequence number of the client: it wraps around soon.
var start = uint32(0xfffffff0)

// talk is a connection's packets: handshake, ApiVersions, two FindCoordinators in one segment, answers, end.
type talk struct {
	client, server netip.AddrPort
	ask, answer    []byte
}

func newTalk(client, server netip.AddrPort) talk {
	t := talk{client: client, server: server}
	id := "test"
	for corr := range int32(3) {
		var req kmsg.Request = kmsg.NewPtrApiVersionsRequest()
		if corr > 0 {
			find := kmsg.NewPtrFindCoordinatorRequest()
			find.CoordinatorKey = fmt.Sprint("group", corr)
			req = find
		}
		header := protocol.RequestHeader{Key: req.Key(), CorrelationID: corr, ClientID: &id}
		body := req.AppendTo(protocol.AppendRequestHeader(nil, header))
		t.ask = append(binary.BigEndian.AppendUint32(t.ask, uint32(len(body))), body...)
		t.answer = protocol.AppendResponse(t.answer, corr, req.ResponseKind())
	}
	return t
}

func (t talk) out(seq uint32, flags byte, b []byte) []byte {
	return tcpPacket(t.client, t.server, seq, flags, b)
}

func (t talk) back(seq uint32, flags byte, b []byte) []byte {
	return tcpPacket(t.server, t.client, seq, flags, b)
}

// packets is the conversation in order.
func (t talk) packets() [][]byte {
	c, s := start, uint32(1000)
	half := len(t.answer) / 2
	return [][]byte{t.out(c-1, syn, nil), t.back(s-1, syn|ack, nil), t.out(c, push, nil),
		t.out(c, push, t.ask[:10]), t.out(c+10, push, t.ask[10:30]), t.out(c+30, push, t.ask[30:]),
		t.back(s, push, t.answer[:half]), t.back(s+uint32(half), push, t.answer[half:]),
		t.out(c+uint32(len(t.ask)), fin|push, nil), t.back(s+uint32(len(t.answer)), fin|push, nil)}
}

// read prints what is in a file.
func read(t testing.TB, file []byte, ports ...uint16) (text string, skipped int, err error) {
	t.Helper()
	var out bytes.Buffer
	rep := trace.Reporter{Decoder: trace.NewDecoder(trace.DecoderConfig{}), Format: trace.Line, Stats: trace.NewStats(), Out: &out}
	var a *Assembler
	a = NewAssembler(Config{Ports: ports, Emit: func(m *trace.Message) {
		m.At = m.At.UTC()
		if err := rep.Report(m); err != nil {
			t.Error(err)
		}
		a.Budget().Give(m.Charge)
	}})
	full := a.Budget().Left()
	r, err := NewReader(bytes.NewReader(file))
	for err == nil {
		var p Packet
		if p, err = r.Next(); err == nil {
			a.Packet(p)
		}
	}
	a.Close()
	if a.held != 0 || a.Budget().Left() != full || len(a.conns) != 0 {
		t.Errorf("%d bytes held, %d of the budget, %d connections left", a.held, full-a.Budget().Left(), len(a.conns))
	}
	return out.String(), a.Skipped, err
}

const golden = `00:00:00.000000 #1 open 10.0.0.1:50000 -> 10.0.0.2:9092
00:00:00.004000 #1 > ApiVersions v0 corr=0 client=test 18B
00:00:00.005000 #1 > FindCoordinator v0 corr=1 client=test 26B CoordinatorKey=group1
00:00:00.005000 #1 > FindCoordinator v0 corr=2 client=test 26B CoordinatorKey=group2
00:00:00.006000 #1 < ApiVersions v0 corr=0 client=test 14B 2.000ms
00:00:00.007000 #1 < FindCoordinator v0 corr=1 client=test 20B 2.000ms
00:00:00.007000 #1 < FindCoordinator v0 corr=2 client=test 20B 2.000ms
00:00:00.009000 #1 close
`

// TestGolden reads the same conversation from every format and link layer.
func TestGolden(t *testing.T) {
	for _, ends := range [][2]netip.AddrPort{{client4, server4}, {client6, server6}} {
		talk := newTalk(ends[0], ends[1])
		want := strings.Replace(golden, "10.0.0.1:50000 -> 10.0.0.2:9092", ends[0].String()+" -> "+ends[1].String(), 1)
		for _, link := range []uint32{linkEthernet, linkCooked, linkCooked2, linkNull, linkLoop, linkRaw, linkIPv4} {
			var packets [][]byte
			for _, p := range talk.packets() {
				packets = append(packets, linked(link, p))
			}
			for name, file := range map[string][]byte{
				"pcap, little-endian":   pcapFile(binary.LittleEndian, 0xa1b2c3d4, link, packets...),
				"pcap, nanoseconds":     pcapFile(binary.BigEndian, 0xa1b23c4d, link, packets...),
				"pcapng, little-endian": pcapngFile(binary.LittleEndian, link, packets...),
				"pcapng, big-endian":    pcapngFile(binary.BigEndian, link, packets...),
				"pcapng, two sections":  append(pcapngFile(binary.LittleEndian, link), pcapngFile(binary.BigEndian, link, packets...)...),
			} {
				got, skipped, err := read(t, file)
				if strings.HasPrefix(name, "pcapng") { // its units make no whole microseconds
					got, want := withoutTimes(got), withoutTimes(want)
					if got != want {
						t.Errorf("%s, link %d: got\n%swant\n%s", name, link, got, want)
					}
				} else if got != want {
					t.Errorf("%s, link %d: got\n%swant\n%s", name, link, got, want)
				}
				if skipped != 0 || err != io.EOF {
					t.Errorf("%s, link %d: %d skipped, %v", name, link, skipped, err)
				}
			}
		}
	}
}

func withoutTimes(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		words := strings.Fields(line)
		for _, w := range words[1:] {
			if !strings.HasSuffix(w, "ms") {
				b.WriteString(w + " ")
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func raw(packets ...[]byte) []byte {
	return pcapFile(binary.LittleEndian, 0xa1b2c3d4, linkRaw, packets...)
}

// TestDisorder: segments that come late, twice, overlapping or again change nothing but times.
func TestDisorder(t *testing.T) {
	talk := newTalk(client4, server4)
	p := talk.packets()
	overlap := talk.out(start+5, push, talk.ask[5:30])
	for name, packets := range map[string][][]byte{
		"late":        {p[0], p[1], p[2], p[5], p[4], p[3], p[7], p[6], p[8], p[9]},
		"twice":       {p[0], p[0], p[1], p[1], p[2], p[3], p[3], p[4], p[4], p[5], p[5], p[6], p[6], p[7], p[7], p[8], p[9]},
		"again":       {p[0], p[1], p[2], p[3], p[4], p[5], p[3], p[4], p[6], p[7], p[6], p[8], p[9]},
		"overlapping": {p[0], p[1], p[2], p[3], overlap, p[4], p[5], p[6], p[7], p[8], p[9]},
		"held twice":  {p[0], p[1], p[2], p[5], p[5], p[4], p[3], p[6], p[7], p[8], p[9]},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, _ := read(t, raw(packets...))
			if got, want := withoutTimes(got), withoutTimes(golden); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// TestGaps: what was not captured is missed, what follows is read on.
func TestGaps(t *testing.T) {
	talk := newTalk(client4, server4)
	p := talk.packets()
	later := talk.out(start+18, push, talk.ask[18:]) // begins with the second request
	answer := bytes.Clone(p[6])                      // says that the server has all requests
	answer[20+13] |= ack
	binary.BigEndian.PutUint32(answer[20+8:], start+uint32(len(talk.ask)))
	got, _, _ := read(t, raw(p[0], p[1], p[2], p[3], later, answer, p[7], p[8], p[9]))
	if !strings.Contains(got, "> ApiVersions v0 corr=0 18B (not decoded: request header") ||
		strings.Count(got, "> FindCoordinator") != 2 || strings.Count(got, "< FindCoordinator") != 2 {
		t.Error(got)
	}
}

// TestBeginsInTheMiddle of a connection: the first chunk that can be a request is where reading begins.
func TestBeginsInTheMiddle(t *testing.T) {
	talk := newTalk(client4, server4)
	const c, s = 5000, 7000
	packets := [][]byte{talk.back(s, push, []byte("the end of some response")), talk.out(c, push, []byte("the end of some request")),
		talk.out(c+23, push, talk.ask), talk.back(s+24, push, talk.answer)}
	got, _, _ := read(t, raw(packets...))
	if strings.Count(got, "> ") != 4 || strings.Count(got, "< ") != 3 || strings.Contains(got, "not decoded") {
		t.Error(got)
	}
}

// TestSnapLength: packets of which only the beginning was captured.
func TestSnapLength(t *testing.T) {
	talk := newTalk(client4, server4)
	p := talk.packets()
	long := append(binary.BigEndian.AppendUint32(nil, 500), protocol.AppendRequestHeader(nil,
		protocol.RequestHeader{Key: 10, CorrelationID: 9})...)
	long = append(long, make([]byte, 504-len(long))...)
	cut := talk.out(start, push, long)
	next := talk.out(start+uint32(len(long)), push, talk.ask)
	file := raw(p[0], p[1], p[2])
	file = binary.LittleEndian.AppendUint32(append(file, make([]byte, 8)...), 100)
	file = binary.LittleEndian.AppendUint32(file, uint32(len(cut)))
	file = append(file, cut[:100]...)
	file = append(file, raw(next)[24:]...)
	got, _, _ := read(t, file)
	if !strings.Contains(got, "> FindCoordinator v0 corr=9 504B (not decoded: a part of it was not captured)") ||
		strings.Count(got, "> FindCoordinator") != 3 {
		t.Error(got)
	}
}

func TestPortsAndReuse(t *testing.T) {
	kafka := newTalk(client4, server4)
	other := newTalk(client4, netip.MustParseAddrPort("10.0.0.2:80"))
	got, _, _ := read(t, raw(append(kafka.packets(), other.packets()...)...), 9092)
	if strings.Count(got, "open") != 1 {
		t.Error(got)
	}
	// The client's port is used again after a connection of which no end was seen.
	p := kafka.packets()
	again := kafka.packets()
	again[0] = kafka.out(77, syn, nil)
	again[3] = kafka.out(78, push, kafka.ask)
	got, _, _ = read(t, raw(append(p[:5], again[0], again[1], again[3])...))
	if strings.Count(got, "open") != 2 || strings.Count(got, "> FindCoordinator") != 2 {
		t.Error(got)
	}
	reset := append(kafka.packets()[:6:6], kafka.back(1000, rst, nil))
	if got, _, _ = read(t, raw(reset...)); !strings.Contains(got, "close (3 without a response)") {
		t.Error(got)
	}
}

func TestWhatIsNoTCP(t *testing.T) {
	udp := tcpPacket(client4, server4, 0, syn, nil)
	udp[9] = 17
	fragment := tcpPacket(client4, server4, 0, syn, nil)
	fragment[6] = 0x20
	for _, p := range [][]byte{udp, fragment, udp[:10], {}, tcpPacket(client6, server6, 0, syn, nil)[:50]} {
		if got, skipped, err := read(t, raw(p)); skipped != 1 || got != "" || err != io.EOF {
			t.Errorf("%x: %d skipped, %q, %v", p, skipped, got, err)
		}
	}
}

func TestBrokenFiles(t *testing.T) {
	good := raw(newTalk(client4, server4).packets()...)
	huge := bytes.Clone(good)
	binary.LittleEndian.PutUint32(huge[24+8:], 1<<30)
	ng := pcapngFile(binary.LittleEndian, linkRaw)
	for name, c := range map[string]struct {
		file []byte
		want error
	}{
		"empty": {nil, ErrFormat}, "text": {[]byte("not a capture at all"), ErrFormat},
		"cut":             {good[:len(good)-3], io.ErrUnexpectedEOF},
		"cut in a header": {good[:24+10], io.ErrUnexpectedEOF}, "huge packet": {huge, ErrFormat},
		"packet before an interface": {slices.Concat(ng[:28], []byte{6, 0, 0, 0, 32, 0, 0, 0}, make([]byte, 20), []byte{32, 0, 0, 0}),
			ErrFormat},
		"tiny block": {append(ng[:28:28], 6, 0, 0, 0, 4, 0, 0, 0), ErrFormat},
	} {
		if _, _, err := read(t, c.file); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestUnits(t *testing.T) {
	const nanos = 1_000_000_000
	for b, want := range map[byte]uint64{6: 1_000_000, 9: nanos, 0: 1, 0x80 | 10: 1024, 127: nanos, 255: nanos} {
		if got := unitOf(b); got != want {
			t.Errorf("%x: %d, want %d", b, got, want)
		}
	}
	if got := (netInterface{unit: 1 << 10}).time(3<<10 + 512); !got.Equal(time.Unix(3, 500_000_000)) {
		t.Error(got)
	}
}

// FuzzPcap reads files of any content. Nothing may panic, nothing stays held, and no more comes out than was put in.
func FuzzPcap(f *testing.F) {
	talk := newTalk(client4, server4)
	f.Add(raw(talk.packets()...))
	p := talk.packets()
	f.Add(pcapngFile(binary.LittleEndian, linkEthernet, linked(linkEthernet, p[0]), linked(linkEthernet, p[3])))
	f.Add(pcapngFile(binary.BigEndian, linkNull, linked(linkNull, newTalk(client6, server6).packets()[3])))
	f.Fuzz(func(t *testing.T, file []byte) {
		_, skipped, err := read(t, file)
		if err == nil || skipped > len(file) {
			t.Fatalf("%d packets skipped, %v", skipped, err)
		}
	})
}

// TestHeldIsBounded: segments beyond a gap that is never filled.
func TestHeldIsBounded(t *testing.T) {
	talk := newTalk(client4, server4)
	a := NewAssembler(Config{Emit: func(*trace.Message) {}})
	send := func(b []byte) { a.Packet(Packet{Link: linkRaw, Data: b, Length: len(b)}) }
	send(talk.out(0, syn, nil))
	payload := make([]byte, 60_000)
	for i := range 2 * maxHeld / len(payload) {
		send(talk.out(uint32(100+i*len(payload)), push, payload))
		if a.held > maxHeld+len(payload) {
			t.Fatalf("%d bytes held", a.held)
		}
	}
	for i := range uint32(maxConns + 10) {
		port := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 1000)
		send(tcpPacket(port, server4, 0, syn, nil))
	}
	if len(a.conns) != maxConns || a.recent.Len() != maxConns {
		t.Errorf("%d connections", len(a.conns))
	}
	a.Close()
	if a.held != 0 {
		t.Errorf("%d bytes held", a.held)
	}
}
