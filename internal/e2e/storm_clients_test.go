package e2e

import (
	"crypto/tls"
	bin "encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// comeAndGoAll: connections that end at every moment of their lives, while workers work.
func (b *stormBed) comeAndGoAll(t *testing.T) {
	before := b.now(t)
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		for {
			b.work(t, 4, time.Second)
			select {
			case <-done:
				return
			default:
			}
		}
	})
	var storm sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn // left as they are until the end
	for i := range 16 {
		storm.Go(func() {
			for j := range b.comeAndGo / 16 {
				d := b.some(rand.N(doorCount))
				d.tls = d.tls && rand.N(4) == 0 // else without a handshake, where one is wanted
				nc, err := b.dial(d)
				if err != nil {
					t.Error(err)
					return
				}
				stays, err := b.visit(nc, i+j)
				if err != nil {
					t.Errorf("at %+v: %v", d, err)
				}
				if stays {
					mu.Lock()
					open = append(open, nc)
					mu.Unlock()
				}
			}
		})
	}
	storm.Wait()
	close(done)
	wg.Wait()
	t.Logf("before %s; with %d left open %s", before, len(open), b.now(t))
	for _, nc := range open {
		nc.Close()
	}
}

// visit does one of many things on a connection and reports whether it is left open. With TLS every second one ends without its goodbye.
func (b *stormBed) visit(nc net.Conn, kind int) (open bool, err error) {
	raw := bare(nc)
	fetch := peerFormat.AppendRequest(nil, fetchOf(12, "bulk", 0, rand.Int64N(32), 1<<20), 1)
	meta := peerFormat.AppendRequest(nil, metadataOf("busy"), 2)
	mixed := peerFormat.AppendRequest(nil, mixedOf(rand.Int32N(busyPartitions), rand.Int32N(mirroredPartitions), 0), 3)
	hello := []byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3} // the first bytes of a TLS handshake
	defer func() {
		if open {
			return
		}
		if rand.N(2) == 0 {
			raw.Close()
		}
		nc.Close()
	}()
	switch kind % 12 {
	case 0: // comes and leaves
	case 1: // leaves within a request
		nc.Write(meta[:rand.N(len(meta))])
	case 2: // does not wait for the reply
		nc.Write(fetch)
	case 3: // reads part of the reply, and is gone without a word
		nc.Write(append(fetch, meta[:rand.N(len(meta))]...))
		nc.SetReadDeadline(time.Now().Add(time.Duration(rand.N(5)) * time.Millisecond))
		nc.Read(make([]byte, 1+rand.N(1<<16)))
		raw.SetLinger(0)
	case 4: // speaks TLS
		nc.Write(hello[:1+rand.N(len(hello)-1)])
	case 5: // says no more, but listens
		nc.Write(append(fetch, meta...))
		nc.(interface{ CloseWrite() error }).CloseWrite()
		nc.SetReadDeadline(time.Now().Add(10 * time.Second))
		nc.Read(make([]byte, 1<<16))
	case 6: // many requests
		for range 20 {
			nc.Write(meta)
		}
	case 7: // reset
		raw.SetLinger(0)
	case 8: // stays within a request
		nc.Write(meta[:1+rand.N(len(meta)-1)])
		return b.few(), nil
	case 9: // stays and does not read
		nc.Write(fetch)
		return b.few(), nil
	case 10: // stays within a TLS handshake
		nc.Write(hello[:1+rand.N(3)])
		return b.few(), nil
	case 11: // writes to the mirror topic, which can't be refused but by an end
		nc.Write(mixed)
		nc.SetReadDeadline(time.Now().Add(patience(20 * time.Second)))
		if _, err := nc.Read(make([]byte, 1<<10)); errors.Is(err, os.ErrDeadlineExceeded) {
			return false, errors.New("a Produce without acknowledgement to the mirror topic does not end the connection")
		}
	}
	return false, nil
}

// bare is the socket of a connection.
func bare(nc net.Conn) *net.TCPConn {
	if secure, ok := nc.(*tls.Conn); ok {
		nc = secure.NetConn()
	}
	return nc.(*net.TCPConn)
}

// few is true so rarely that connections that stay don't come to the limit.
func (b *stormBed) few() bool { return rand.N(b.comeAndGo) < b.connections }

// slowRead: clients ask for much and don't read. Memory does not grow by what they are owed, workers are served, and those that read in the
// end get all of it in its order.
func (b *stormBed) slowRead(t *testing.T, d door, n, whole int) {
	before := b.now(t)
	var slow []*peer
	for i := range n {
		p, err := b.greeted(d, metadataOf("busy"))
		if err == nil {
			slow = append(slow, p)
			_, err = p.ask(metadataOf("busy"))
		}
		if err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	connected := b.now(t)
	for i, p := range slow {
		var reqs []kmsg.Request
		for offset := range int64(30) {
			reqs = append(reqs, fetchOf(12, "bulk", 0, offset, 1<<20), fetchOf(4, "bulk", 0, offset, 1<<20), metadataOf("busy"))
		}
		if err := p.send(reqs...); err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	b.work(t, 8, b.slowFor)
	during := b.now(t)
	t.Logf("before %s; %d connected %s; owed %d MiB and slow %s: %d KiB for each connection, and %d KiB for what it is owed", before, n, connected,
		n*60, during, (connected.resident-before.resident)>>10/int64(n), (during.resident-connected.resident)>>10/int64(n))
	// Owed 60 MiB, a connection needs a record of TLS as it came from the broker, one as it goes to the client, and 100 requests in line: 45 KiB.
	// Of garbage there may be as much again. Without TLS it is less: what is under way is in the kernel.
	const each = 128 << 10
	if grown := during.resident - connected.resident; grown > int64(n)*each+16<<20 && !raceEnabled {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
	for i, p := range slow {
		for len(p.sent) > 0 && i < whole {
			resp, err := p.next()
			if err != nil {
				t.Errorf("client %d: %v", i, err)
				break
			}
			if r, ok := resp.(*kmsg.FetchResponse); ok && len(r.Topics[0].Partitions[0].RecordBatches) < 1<<19 {
				t.Errorf("client %d: %d bytes of records", i, len(r.Topics[0].Partitions[0].RecordBatches))
			}
		}
		p.nc.Close()
	}
}

// slowWrite: clients send requests of the largest size, all together far more than limits.memory, and slowly. Memory stays within the
// limit, and workers are served.
func (b *stormBed) slowWrite(t *testing.T) {
	before := b.now(t)
	// Not Produce, which a gateway passes on as it comes: the broker makes room for all of it at once, and twenty of these end it.
	head := bin.BigEndian.AppendUint32(nil, protocol.DefaultMaxFrame)
	head = append(head, peerFormat.AppendRequest(nil, metadataOf("busy"), 1)[4:]...)
	done, peak := make(chan struct{}), before.resident
	var wg sync.WaitGroup
	for i := range b.slowWriters {
		nc, err := b.dial(b.some(i))
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer nc.Close()
			nc.Write(head)
			part := make([]byte, 3*b.memory<<20/b.slowWriters/100)
			for range 100 {
				nc.SetWriteDeadline(time.Now().Add(b.slowFor))
				if _, err := nc.Write(part); err != nil {
					return // cut off, as it should be
				}
				select {
				case <-time.After(b.slowFor / 100):
				case <-done:
					return
				}
			}
			<-done
		})
	}
	end := time.Now().Add(2 * b.slowFor)
	wg.Go(func() {
		for time.Now().Before(end) {
			peak = max(peak, b.now(t).resident)
			time.Sleep(100 * time.Millisecond)
		}
	})
	for time.Now().Before(end) {
		p, err := b.greeted(b.some(rand.N(doorCount)), metadataOf("busy"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.ask(produceOf("busy", 1, -1, make([]byte, 500<<10))); err != nil {
			t.Errorf("a client that is not slow: %v", err)
		}
		p.nc.Close()
		b.work(t, 4, b.slowFor/10)
	}
	close(done)
	wg.Wait()
	t.Logf("before %s, peak %d MiB, after %s", before, peak>>20, b.now(t))
	if peak > int64(b.memory)<<20 && !raceEnabled {
		t.Errorf("%d MiB are in use, limits.memory is %d MiB", peak>>20, b.memory)
	}
}
