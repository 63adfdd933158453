package e2e

import (
	"bytes"
	"crypto/tls"
	bin "encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// TestGarbage sends to every port what no client of it would, many times and all at once.
func TestGarbage(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst"})
	createTopic(t, src, "orders", 1, nil)
	produce(t, client(t, src), "orders", 1, 100, 100)
	s := newShim(t, dst, "")
	s.create(src)
	s.mirror("orders")
	s.caughtUp(src, 1, time.Minute, "orders")

	kafka := map[string]string{"CLIENT of 9001": s.client, "CLIENT of 9002": nextPort(t, s.client), "REPL of 9001": s.repl,
		"REPL of 9002": nextPort(t, s.repl)}
	begin := time.Now()
	for name, addr := range kafka {
		t.Run(name, func(t *testing.T) { garbage(t, addr, kafkaGarbage()) })
	}
	t.Run("admin", func(t *testing.T) { garbage(t, s.admin, kafkaGarbage()) })
	web := kafkaGarbage()
	delete(web, "http")
	t.Run("http", func(t *testing.T) { garbage(t, s.http, web) })
	took := time.Since(begin)
	t.Run("log", func(t *testing.T) { causes(t, s, took) })

	all := []string{s.admin, s.http}
	for _, addr := range kafka {
		all = append(all, addr)
	}
	t.Run("200 connections to each port", func(t *testing.T) { flood(t, s, all) })

	s.ready(10 * time.Second)
	produce(t, client(t, src), "orders", 1, 100, 100)
	s.caughtUp(src, 1, time.Minute, "orders")
	sameSegments(t, src, dst, "orders", 1, 1)
}

func nextPort(tb testing.TB, addr string) string {
	tb.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		tb.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		tb.Fatal(err)
	}
	return net.JoinHostPort(host, strconv.Itoa(n+1))
}

// kafkaGarbage is what a listener for Kafka's protocol must get rid of, by name.
func kafkaGarbage() map[string][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	request := func(key, version int16, body []byte) []byte {
		b := bin.BigEndian.AppendUint32(nil, uint32(8+3+len(body)))
		b = bin.BigEndian.AppendUint16(b, uint16(key))
		b = bin.BigEndian.AppendUint16(b, uint16(version))
		b = append(b, 0, 0, 0, 1, 0, 1, 'x') // correlation id, client id
		return append(b, body...)
	}
	return map[string][]byte{
		"random":              append([]byte{0x77}, noise(500)...),
		"http":                []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"oversized frame":     {0x7f, 0xff, 0xff, 0xff, 0, 1},
		"negative frame":      {0xff, 0xff, 0xff, 0xf0, 0, 1},
		"fetch of noise":      request(1, 11, noise(300)),
		"produce of noise":    request(0, 7, noise(300)),
		"key 94 of noise":     request(94, 0, noise(300)),
		"half a header":       {0, 0, 0, 3, 0, 18, 0},
		"empty frame":         {0, 0, 0, 0},
		"array of 2 billion":  request(1, 11, append(make([]byte, 25), 0x7f, 0xff, 0xff, 0xff)),
		"version of tomorrow": request(1, 99, noise(20)),
	}
}

// garbage wants every piece of it, and a TLS client, to be cut off. All of it comes at once, since some listeners wait for
// more before they give up.
func garbage(t *testing.T, addr string, pieces map[string][]byte) {
	var wg sync.WaitGroup
	for name, piece := range pieces {
		for range 3 {
			wg.Go(func() {
				if err := cutOff(addr, piece); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	wg.Wait()
	d := &net.Dialer{Timeout: time.Minute}
	nc, err := tls.DialWithDialer(d, "tcp", addr, &tls.Config{InsecureSkipVerify: true})
	if err == nil {
		nc.Close()
		t.Error("a TLS handshake succeeded")
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("TLS client: %v", err)
	}
}

// cutOff sends bytes and waits until the other side ends the connection.
func cutOff(addr string, b []byte) error {
	nc, err := net.DialTimeout("tcp", addr, 30*time.Second)
	if err != nil {
		return err
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(time.Minute))
	if _, err := nc.Write(b); err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, nc)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("after %d bytes: %w", n, err)
	}
	return nil
}

// causes wants the log to name what came, and not once for each connection. Lines may come a moment after the connection's end: an HTTP
// server holds what it has closed for half a second.
func causes(t *testing.T, s *shim, took time.Duration) {
	eventually(t, 30*time.Second, "that the log names what came", func() error {
		out, err := os.ReadFile(s.log)
		if err != nil {
			return err
		}
		return namesCauses(out, took)
	})
}

func namesCauses(out []byte, took time.Duration) (err error) {
	for _, part := range []struct {
		listener string
		want     []string
	}{
		{`msg="connection closed"`, []string{"a TLS handshake came", "an HTTP request came", "negative|above the limit", "can't be decoded",
			"is not supported"}},
		{`msg="admin connection closed"`, []string{"a TLS handshake came", "an HTTP request came", "negative|above the limit"}},
		{`msg="http connection closed"`, []string{"TLS", "not HTTP"}},
	} {
		var lines [][]byte
		for line := range bytes.Lines(out) {
			if bytes.Contains(line, []byte(part.listener)) {
				lines = append(lines, line)
			}
		}
		text := bytes.Join(lines, nil)
		for _, want := range part.want {
			if !regexp.MustCompile(want).Match(text) {
				err = errors.Join(err, fmt.Errorf("%s: no line says %q", part.listener, want))
			}
		}
		// A kind is logged once in ten seconds; there were dozens of connections of each.
		if len(lines) > 40+8*int(took/(30*time.Second)) {
			err = errors.Join(err, fmt.Errorf("%s: %d lines", part.listener, len(lines)))
		}
	}
	if i := bytes.Index(out, []byte("panic")); i >= 0 {
		err = errors.Join(err, fmt.Errorf("a panic: %.500s", out[i:]))
	}
	return err
}

// flood holds 200 connections to each port that announce much and send little, and wants memory to stay as it is.
func flood(t *testing.T, s *shim, addrs []string) {
	pid := s.cmd.Process.Pid
	_, before, err := testkafka.Usage(pid)
	if err != nil {
		t.Fatal(err)
	}
	half := append([]byte{5, 0, 0, 0, 0, 1, 0, 11}, bytes.Repeat([]byte{7}, 1000)...) // 80 MiB of a Fetch, they say
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for _, addr := range addrs {
		for i := range 200 {
			nc, err := net.DialTimeout("tcp", addr, 30*time.Second)
			if err != nil {
				t.Fatalf("connection %d to %s: %v", i, addr, err)
			}
			conns = append(conns, nc)
			if _, err := nc.Write(half); err != nil {
				t.Fatal(err)
			}
		}
	}
	var most int64
	// They go on slowly, a few bytes at a time.
	polled(3*time.Second, func() bool {
		for _, c := range conns {
			c.Write([]byte{1, 2, 3})
		}
		if _, now, err := testkafka.Usage(pid); err == nil {
			most = max(most, now)
		}
		return false
	})
	s.ready(10 * time.Second)
	t.Logf("resident: %d MiB before, %d MiB with %d connections", before>>20, most>>20, len(conns))
	limit := int64(64 << 20)
	if raceEnabled {
		limit *= 4 // the race detector's shadow memory
	}
	if most-before > limit {
		t.Errorf("resident memory grew from %d to %d MiB", before>>20, most>>20)
	}
	for _, c := range conns {
		c.Close()
	}
	if n := strings.Count(mustRead(t, s.log), "connection limit reached"); n > 0 {
		t.Errorf("the connection limit was met %d times", n)
	}
}

func mustRead(tb testing.TB, path string) string {
	tb.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}
