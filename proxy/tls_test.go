package proxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// heldLog takes lines only once held is closed.
type heldLog struct{ held chan struct{} }

func (l *heldLog) Write(b []byte) (int, error) {
	<-l.held
	return len(b), nil
}

// https://github.com/kroxylicious/kroxylicious/issues/2439 and KAFKA-4493
func TestKroxylicious2439WrongProtocol(t *testing.T) {
	cert := selfSigned(t)
	t.Run("a: plain client to TLS listener", func(t *testing.T) {
		w := newWorld(t, func(_ *world, cfg *Config) {
			conf := &tls.Config{Certificates: []tls.Certificate{cert}}
			cfg.Listeners[0].Listen = tls.NewListener(cfg.Listeners[0].Listen, conf)
		})
		c := w.dial()
		c.send(1, metadataRequest())
		eventually(t, "a line", func() bool { return w.log.Lines("plaintext client on a TLS listener") == 1 })
	})
	for _, tt := range []struct{ name, bytes, line string }{
		{"b: TLS client to plain listener", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS handshake"},
		{"d: HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP request"},
		{"oversized", "\x40\x00\x00\x00", "above the limit"},
		{"negative", "\xff\xff\xff\xff", "negative"},
		{"short header", "\x00\x00\x00\x02\x00\x03", "can't be decoded"},
		{"hidden key", "\x00\x00\x00\x0b\x00\x34\x00\x00\x00\x00\x00\x00\xff\xff\x00", "not served"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range 20 {
				c := w.dial()
				c.write([]byte(tt.bytes))
				c.closed()
			}
			runtime.ReadMemStats(&after)
			if n := w.log.Lines(tt.line); n != 1 {
				t.Errorf("%d lines say %q, want 1", n, tt.line)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 8<<20 {
				t.Errorf("%d bytes were allocated for 20 connections", got)
			}
		})
	}
	t.Run("c: plain to TLS upstream", func(t *testing.T) {
		w := newWorld(t)
		for _, b := range w.brokers {
			b.on(func(protocol.RequestHeader, []byte) kmsg.Response {
				return rawReply{bytes: []byte{0x15, 3, 3, 0, 2, 2, 10}, hangup: true}
			})
		}
		c := w.dial()
		c.send(1, metadataRequest())
		c.closed()
		eventually(t, "a line", func() bool { return w.log.Lines("TLS alert") == 1 })
	})
}

// TestTheReasonIsLoggedBeforeTheEnd: who sees the end of a connection finds in the log why.
func TestTheReasonIsLoggedBeforeTheEnd(t *testing.T) {
	log := &heldLog{held: make(chan struct{})}
	w := newWorld(t, func(_ *world, cfg *Config) { cfg.Log = slog.New(slog.NewTextHandler(log, nil)) })
	c := w.dial()
	c.write([]byte("\x40\x00\x00\x00"))
	c.nc.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := c.nc.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v: the connection ended before its reason was logged", n, err)
	}
	close(log.held)
	c.closed()
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestTLSOnBothLegs(t *testing.T) {
	t.Parallel()
	cert := selfSigned(t)
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	server := &tls.Config{Certificates: []tls.Certificate{cert}}
	trusted := &tls.Config{RootCAs: pool}
	for _, tt := range []struct {
		name string
		up   *tls.Config
		ok   bool
	}{
		{"trusted", trusted, true},
		{"not trusted", &tls.Config{RootCAs: x509.NewCertPool()}, false},
		// https://github.com/kroxylicious/kroxylicious/pull/1474
		{"another host's certificate", &tls.Config{RootCAs: pool, ServerName: "elsewhere"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, func(w *world, cfg *Config) {
				cfg.Listeners[0].Listen = tls.NewListener(cfg.Listeners[0].Listen, server)
				cfg.UpstreamTLS = always(tt.up)
				secure := &testBroker{t: t, id: 1, conns: make(map[net.Conn]struct{})}
				plain, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				secure.ln = plain
				e := secure.endpoint()
				e.SecurityProtocol = 1
				secure.ln = tls.NewListener(plain, server)
				secure.wg.Go(secure.serve)
				t.Cleanup(secure.end)
				w.image.img.Brokers[1].Endpoints[0] = e
				delete(w.image.img.Brokers, 2)
				delete(w.image.img.Brokers, 3)
			})
			nc, err := tls.Dial("tcp", w.addr, trusted)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			c := &client{t: t, nc: nc}
			c.send(1, metadataRequest())
			if !tt.ok {
				c.closed()
				return
			}
			c.receive(metadataRequest())
		})
	}
}

// A client that connects and says nothing holds up nobody, and one whose handshake fails is told of once.
func TestTLSHandshakes(t *testing.T) {
	t.Parallel()
	cert := selfSigned(t)
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	w := newWorld(t, func(_ *world, cfg *Config) {
		cfg.Listeners[0].Listen = tls.NewListener(cfg.Listeners[0].Listen, &tls.Config{Certificates: []tls.Certificate{cert}})
		cfg.DrainTimeout = soon
	})
	silent := make([]*client, 20)
	for i := range silent {
		silent[i] = w.dial()
	}
	nc, err := tls.Dial("tcp", w.addr, &tls.Config{RootCAs: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := &client{t: t, nc: nc}
	c.send(1, metadataRequest())
	c.receive(metadataRequest())
	for range 3 {
		if stranger, err := tls.Dial("tcp", w.addr, &tls.Config{RootCAs: x509.NewCertPool()}); err == nil {
			stranger.Close()
			t.Error("a client trusts what it does not know")
		}
	}
	eventually(t, "a line", func() bool { return w.log.Lines("TLS handshake: ") == 1 })
	if old, err := tls.Dial("tcp", w.addr, &tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS11}); err == nil {
		old.Close()
		t.Error("TLS 1.1 is spoken")
	}
	w.cancel() // the silent ones are cut off at once
	select {
	case err := <-w.done:
		if w.done <- err; err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(soon):
		t.Error("connections without a handshake hold up the end")
	}
}

// A certificate of ours upstream would give every client our principal.
func TestUpstreamHasNoCertificate(t *testing.T) {
	w := newWorld(t)
	cfg := w.server.cfg
	cfg.UpstreamTLS = always(&tls.Config{Certificates: []tls.Certificate{selfSigned(t)}})
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v", err)
	}
}
