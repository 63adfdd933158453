package proxy

import (
	"bytes"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

// torn is a connection whose reads end anywhere. It notes the largest buffer that it was given.
type torn struct {
	net.Conn
	whole   bool
	largest int
}

func (c *torn) Read(b []byte) (int, error) {
	if c.largest = max(c.largest, len(b)); !c.whole && rand.N(2) == 0 {
		b = b[:min(len(b), 1+rand.N(1<<rand.N(15)))]
	}
	return c.Conn.Read(b)
}

// What passes over TLS comes as it was sent, however it was cut, and crypto/tls makes no more room for it than one record takes.
func TestTLSRecords(t *testing.T) {
	cert := selfSigned(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, whole := range []bool{true, false} {
			t.Run(tls.VersionName(version), func(t *testing.T) {
				ours, theirs := socketPair(t)
				sent := make([]byte, 4<<20)
				for i := range sent {
					sent[i] = byte(rand.Uint32())
				}
				wrote := make(chan error, 1)
				go func() {
					secure := tls.Server(theirs, &tls.Config{Certificates: []tls.Certificate{cert}, MaxVersion: version})
					wrote <- sendTorn(secure, sent)
				}()
				probe := &torn{Conn: ours, whole: whole}
				secure := tls.Client(byRecords(probe), &tls.Config{InsecureSkipVerify: true})
				if err := secure.SetDeadline(time.Now().Add(time.Minute)); err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(secure)
				if err != nil || !bytes.Equal(got, sent) {
					t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
				}
				if err := <-wrote; err != nil {
					t.Error(err)
				}
				if probe.largest > 20<<10 {
					t.Errorf("a read of %d bytes", probe.largest)
				}
			})
		}
	}
}

// sendTorn writes in pieces of all sizes, and says goodbye.
func sendTorn(to *tls.Conn, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), 1+rand.N(1<<(5+rand.N(15))))
		if _, err := to.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return to.Close()
}

// socketPair returns both ends of a connection of TCP.
func socketPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if a, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	if b, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return a, b
}
