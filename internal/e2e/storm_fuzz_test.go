package e2e

import (
	"bytes"
	"crypto/tls"
	bin "encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// fuzz sends streams of requests that are made up, and of what is none, for a time, and longer where the machine had no time to answer next
// to any of them. Each connection gets replies to what it sent, in that order, or is closed; workers are served; memory is no more in the
// second half than in the first.
func (b *stormBed) fuzz(t *testing.T) {
	before, end := b.now(t), time.Now().Add(b.fuzzFor)
	var wg sync.WaitGroup
	var streams, frames, replies atomic.Int64
	few := func() bool { return replies.Load() < max(10, frames.Load()/20) } // else six times as many came, or more
	for i := range 8 {
		wg.Go(func() {
			f := &fuzzer{r: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(i)))}
			for time.Now().Before(end) || few() && time.Now().Before(end.Add(patience(20*time.Second))) {
				nc, err := b.stream(f)
				if err != nil {
					t.Error(err)
					return
				}
				n, err := f.stream(nc)
				streams.Add(1)
				frames.Add(int64(f.whole()))
				replies.Add(int64(n))
				if err != nil {
					t.Errorf("%v\nsent %s", err, f.hex())
				}
			}
		})
	}
	wg.Go(func() {
		for time.Now().Before(end) {
			b.work(t, 4, min(5*time.Second, b.fuzzFor/4))
		}
	})
	var halves [2][]int64
	for time.Now().Before(end) {
		half := 0
		if time.Until(end) < b.fuzzFor/2 {
			half = 1
		}
		halves[half] = append(halves[half], b.now(t).resident>>20)
		time.Sleep(b.fuzzFor / 100)
	}
	wg.Wait()
	t.Logf("%d streams of %d requests, %d replies; before %s; MiB %v, %v", streams.Load(), frames.Load(), replies.Load(), before, halves[0], halves[1])
	if first, second := mean(halves[0]), mean(halves[1]); second > first*5/4+16 && !raceEnabled {
		t.Errorf("memory grew from %d to %d MiB", first, second)
	}
	if few() {
		t.Error("next to nothing was answered, so nothing is shown")
	}
}

func mean(list []int64) (m int64) {
	for _, n := range list {
		m += n
	}
	return m / int64(max(1, len(list)))
}

// fuzzer makes streams up.
type fuzzer struct {
	r *rand.Rand
	// sent are the frames of the present stream.
	sent [][]byte
}

// whole is how many frames of the present stream have room for a header. Of a stream of zeros each four bytes are an empty frame.
func (f *fuzzer) whole() (n int) {
	for _, frame := range f.sent {
		if len(frame) >= 12 {
			n++
		}
	}
	return n
}

func (f *fuzzer) hex() string {
	var out bytes.Buffer
	for _, frame := range f.sent {
		fmt.Fprintf(&out, "%d: %x\n", len(frame), frame[:min(len(frame), 200)])
	}
	return out.String()
}

// stream connects to any door. Of connections with TLS some are damaged on their way, from a byte on that may lie in the handshake, and some
// don't speak it.
func (b *stormBed) stream(f *fuzzer) (net.Conn, error) {
	d := b.doors[f.r.IntN(doorCount)]
	if !d.tls || f.r.IntN(8) > 1 {
		return b.dial(d)
	}
	d.tls = false
	nc, err := b.dial(d)
	if err != nil {
		return nil, err
	}
	if f.r.IntN(2) == 0 {
		return notTLS{nc}, nil
	}
	secure := tls.Client(&damaged{Conn: nc, r: rand.New(rand.NewPCG(f.r.Uint64(), 0)), left: f.r.IntN(3000)}, b.conf)
	nc.SetDeadline(time.Now().Add(handshakePatience))
	if err := secure.Handshake(); errors.Is(err, os.ErrDeadlineExceeded) {
		nc.Close()
		return nil, fmt.Errorf("a damaged TLS handshake does not end: %w", err)
	}
	return secure, nc.SetDeadline(time.Time{})
}

// notTLS is a connection to a door with TLS on which it is not spoken: what begins with 0x80 is taken for SSL 2, which an alert refuses.
type notTLS struct{ net.Conn }

// damaged is a connection on which one bit in a hundred bytes is another one once left bytes were sent.
type damaged struct {
	net.Conn
	r    *rand.Rand
	left int
}

func (d *damaged) Write(b []byte) (int, error) {
	b = slices.Clone(b)
	for i := range b {
		if d.left--; d.left < 0 && d.r.IntN(100) == 0 {
			b[i] ^= 1 << d.r.IntN(8)
		}
	}
	return d.Conn.Write(b)
}

// stream sends some frames in several pieces, reads what comes until all is answered or nothing more does, and returns the number of
// replies.
func (f *fuzzer) stream(nc net.Conn) (replies int, err error) {
	var all []byte
	for range 1 + f.r.IntN(8) {
		all = append(all, f.frame()...)
	}
	if f.r.IntN(4) == 0 {
		all = all[:f.r.IntN(len(all))]
	}
	f.sent = framesOf(all)
	piece := 1 + f.r.IntN(len(all)+1)
	nc.SetWriteDeadline(time.Now().Add(10 * time.Second))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer nc.Close()
	wg.Go(func() {
		for b := range slices.Chunk(all, piece) {
			if _, err := nc.Write(b); err != nil {
				return
			}
		}
	})
	for due := f.sent; ; replies++ {
		patience, broken := time.Second, (*protocol.FrameError)(nil)
		if len(due) == 0 {
			patience = time.Duration(f.r.IntN(50)) * time.Millisecond
		}
		nc.SetReadDeadline(time.Now().Add(patience))
		frame, err := protocol.ReadFrame(nc, protocol.DefaultMaxFrame, nil)
		switch {
		case errors.As(err, &broken):
			if _, plain := nc.(notTLS); plain && replies == 0 && broken.Kind() == "tls" {
				return 0, nil
			}
			return replies, fmt.Errorf("a broken reply: %w", err)
		case err != nil:
			return replies, nil // closed, or a request that waits, such as to join a group
		case len(frame) < 4:
			return replies, fmt.Errorf("a reply of %d bytes", len(frame))
		}
		if due, err = answered(due, frame); err != nil {
			return replies, err
		}
	}
}

// framesOf are the complete requests in a stream, up to what can't be one.
func framesOf(b []byte) (frames [][]byte) {
	for len(b) >= 4 {
		size := int64(int32(bin.BigEndian.Uint32(b)))
		if size < 0 || size > int64(len(b)-4) {
			break
		}
		frames = append(frames, b[:4+size])
		b = b[4+size:]
	}
	return frames
}

// answered takes the request that a reply belongs to off those that are due. Only Produce may have none.
func answered(due [][]byte, reply []byte) ([][]byte, error) {
	corr := bin.BigEndian.Uint32(reply)
	for i, req := range due {
		if len(req) < 12 {
			break
		}
		if bin.BigEndian.Uint32(req[8:]) == corr {
			return due[i+1:], nil
		}
		if bin.BigEndian.Uint16(req[4:]) != 0 {
			break
		}
	}
	return nil, fmt.Errorf("WRONG CORRELATION ID %x; %d requests are due", corr, len(due))
}

// frame is a request that a client could send, one that is damaged, or anything.
func (f *fuzzer) frame() []byte {
	switch f.r.IntN(30) {
	case 0: // noise of the size that it names
		b := make([]byte, 4+f.r.IntN(300))
		f.noise(b)
		bin.BigEndian.PutUint32(b, uint32(len(b)-4))
		return b
	case 1: // noise, and a size that has nothing to do with it
		b := make([]byte, 1+f.r.IntN(300))
		f.noise(b)
		return b
	case 2: // a huge one of which little comes
		b := make([]byte, 4+f.r.IntN(100<<10))
		bin.BigEndian.PutUint32(b, uint32(f.r.Int32())>>f.r.IntN(12))
		return b
	case 3: // text
		return []byte("GET / HTTP/1.1\r\nHost: kafka\r\n\r\n")
	case 4: // key and version that nobody knows
		b := f.request()
		bin.BigEndian.PutUint16(b[4+2*f.r.IntN(2):], uint16(f.r.IntN(1<<16)))
		return b
	case 5, 6, 7, 8, 9: // damaged
		b := f.request()
		for range 1 + f.r.IntN(4) {
			if at := 8 + f.r.IntN(len(b)-8); f.r.IntN(2) == 0 {
				b[at] ^= 1 << f.r.IntN(8)
			} else {
				b[at] = byte(f.r.IntN(256))
			}
		}
		return b
	case 10: // cut or lengthened
		b := f.request()
		b = append(b[:4+f.r.IntN(len(b)-4)], make([]byte, f.r.IntN(20))...)
		bin.BigEndian.PutUint32(b, uint32(len(b)-4))
		return b
	}
	return f.request()
}

func (f *fuzzer) noise(b []byte) {
	for i := range b {
		b[i] = byte(f.r.Uint32())
	}
}

// harmful are keys whose requests could, made up or damaged, change the cluster for the others: CreateTopics and CreatePartitions (of
// thousands of partitions), DeleteTopics, AlterConfigs, IncrementalAlterConfigs, AlterPartitionReassignments, AlterClientQuotas,
// UpdateFeatures, UnregisterBroker, AddRaftVoter, RemoveRaftVoter.
var harmful = []int16{19, 20, 33, 37, 44, 45, 49, 57, 64, 80, 81}

// request is a well-formed request of any key and version, with fields that are made up.
func (f *fuzzer) request() []byte {
	for {
		req := kmsg.RequestForKey(int16(f.r.IntN(95)))
		if req == nil || slices.Contains(harmful, req.Key()) {
			continue
		}
		// What is not for clients ends the connection, and so do old versions at new brokers: they come, but not so often.
		if api, _ := protocol.LookupAPI(req.Key()); api.Role == protocol.Hidden && f.r.IntN(20) > 0 {
			continue
		}
		version := f.r.IntN(int(req.MaxVersion()) + 1)
		if f.r.IntN(10) > 0 {
			version = max(version, int(req.MaxVersion())-2)
		}
		req.SetVersion(int16(version))
		f.fill(reflect.ValueOf(req).Elem(), 0)
		switch r := req.(type) {
		case *kmsg.FetchRequest:
			r.MaxWaitMillis = 100
		case *kmsg.ShareFetchRequest:
			r.MaxWaitMillis = 100
		case *kmsg.MetadataRequest:
			r.AllowAutoTopicCreation = false
		}
		return peerFormat.AppendRequest(nil, req, int32(f.r.Uint32()))
	}
}

// fill gives exported fields values: few, small and known ones more often than others.
func (f *fuzzer) fill(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() && field.Name != "Version" && field.Name != "UnknownTags" {
				f.fill(v.Field(i), depth+1)
			}
		}
	case reflect.Pointer:
		if f.r.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			f.fill(v.Elem(), depth)
		}
	case reflect.Slice:
		n := f.r.IntN(4)
		if v.Type().Elem().Kind() == reflect.Uint8 {
			n = f.r.IntN(40)
		}
		if depth > 8 {
			n = 0
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			f.fill(v.Index(i), depth+1)
		}
	case reflect.Array:
		for i := range v.Len() {
			f.fill(v.Index(i), depth)
		}
	case reflect.String:
		v.SetString([]string{"", "fuzz", "row", mirrored, mirrored, "nothing", "\x00\xff", "a-longer-name-than-others-have"}[f.r.IntN(8)])
	case reflect.Bool:
		v.SetBool(f.r.IntN(2) == 0)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt([]int64{-1, 0, 1, 2, 9001, f.r.Int64N(1 << 7)}[f.r.IntN(6)])
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		v.SetUint(uint64(f.r.IntN(256)))
	}
}
