package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/lockbuf"
	"kmirror/internal/testkafka"
)

// traceRun runs kmirror trace.
func traceRun(t *testing.T, in string, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	c := &cli{out: &o, err: &e, in: strings.NewReader(in), env: os.LookupEnv, environ: os.Environ}
	code = c.run(t.Context(), append([]string{"trace"}, args...))
	return code, o.String(), e.String()
}

func TestTraceUsage(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.properties")
	if err := os.WriteFile(broken, []byte("security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=/nowhere\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{}, {"--listen", "127.0.0.1:0"}, {"--upstream", "a:1"}, {"--pcap", "x", "--listen", "127.0.0.1:0"}, {"--pcap", "/nowhere"},
		{"--pcap", "-", "--format", "xml"}, {"--pcap", "-", "--api", "Nonsense"}, {"--pcap", "-", "--topic", "("},
		{"--pcap", "-", "--port", "x"}, {"--pcap", "-", "--max-frame", "0"}, {"--pcap", "-", "--min-duration", "-1s"},
		{"--listen", "127.0.0.1:0", "--upstream", "a:1,b:2"}, {"--listen", "nonsense", "--upstream", "a:1"},
		{"--listen", "127.0.0.1:0", "--upstream", "a:1", "--upstream-config", "/nowhere"},
		{"--listen", "127.0.0.1:0", "--upstream", "a:1", "--upstream-config", broken},
	} {
		if code, out, errs := traceRun(t, "", args...); code != admin.ExitUsage || out != "" || errs == "" {
			t.Errorf("%q: exit %d, %q, %q", args, code, out, errs)
		}
	}
}

// capture is a file with one packet: a Metadata request of client "c" in the middle of a connection.
func capture() []byte {
	frame := []byte{0, 3, 0, 4, 0, 0, 0, 5, 0, 1, 'c', 0, 0, 0, 1, 0, 1, 't', 0}
	frame = append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)
	tcp := []byte{0xc3, 0x50, 0x23, 0x84, 0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, 8, 1, 0, 0, 0, 0, 0}
	ip := append([]byte{0x45, 0, 0, byte(40 + len(frame)), 0, 0, 0, 0, 64, 6, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1}, append(tcp, frame...)...)
	b := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	b = binary.LittleEndian.AppendUint32(append(b, make([]byte, 16)...), 101)
	b = binary.LittleEndian.AppendUint32(append(b, make([]byte, 8)...), uint32(len(ip)))
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(ip))), ip...)
}

func TestTraceOfACapture(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.pcap")
	if err := os.WriteFile(file, capture(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{file, "-"} {
		for ports, want := range map[string]string{
			"9093":        `"kind":"summary","connections":0,`,
			"9092, 9093,": `"api":"Metadata","key":3,"version":4,"correlation_id":5,"client_id":"c","size":23,`,
		} {
			code, out, errs := traceRun(t, string(capture()), "--pcap", source, "-o", "json", "--port", ports)
			if code != 0 || !strings.Contains(out, want) || !strings.Contains(out, `"kind":"summary"`) {
				t.Errorf("ports %s: exit %d, %q, %s", ports, code, out, errs)
			}
		}
	}
	cut := capture()
	code, out, errs := traceRun(t, string(cut[:len(cut)-1]), "--pcap", "-")
	if code != 0 || !strings.Contains(errs, "ends within a packet") || !strings.Contains(out, "requests") {
		t.Errorf("a capture that is cut: exit %d, %q, %s", code, out, errs)
	}
	if code, _, errs := traceRun(t, "", "--pcap", t.TempDir()); code != admin.ExitUsage || !strings.Contains(errs, "is a directory") {
		t.Errorf("exit %d %s", code, errs)
	}
	if code, _, errs := traceRun(t, "neither this nor that", "--pcap", "-"); code != admin.ExitUsage || !strings.Contains(errs, "pcapng") {
		t.Errorf("no capture: exit %d, %s", code, errs)
	}
}

// echoOverTLS is a server that sends back what it gets.
func echoOverTLS(t *testing.T, sec *testkafka.Security) (address string) {
	t.Helper()
	file, key, err := sec.Certificate("broker")
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.LoadX509KeyPair(file, key)
	if err != nil {
		t.Fatal(err)
	}
	server, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			io.Copy(c, c)
			c.Close()
		}
	})
	t.Cleanup(func() {
		server.Close()
		serving.Wait()
	})
	return server.Addr().String()
}

// TestTraceOverTLS: the leg to the broker is TLS and checks the broker's certificate; the client's is plain.
func TestTraceOverTLS(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	other := testkafka.NewSecurity(t)
	broker := echoOverTLS(t, sec)
	for ca, good := range map[string]bool{sec.CA(): true, other.CA(): false} {
		props := filepath.Join(t.TempDir(), "broker.properties")
		text := "security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location=" + ca + "\n"
		if err := os.WriteFile(props, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errs lockbuf.Buffer
		ctx, stop := context.WithCancel(t.Context())
		code := make(chan int, 1)
		go func() {
			c := &cli{out: &out, err: &errs, in: strings.NewReader(""), env: os.LookupEnv, environ: os.Environ}
			code <- c.run(ctx, []string{"trace", "--listen", "127.0.0.1:0", "--upstream", broker, "--upstream-config", props})
		}()
		client, err := net.Dial("tcp", traceAddress(t, &errs))
		if err != nil {
			t.Fatal(err)
		}
		request := []byte{0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff}
		if _, err := client.Write(request); err != nil {
			t.Error(err)
		}
		got := make([]byte, len(request))
		if _, err := io.ReadFull(client, got); good != (err == nil && bytes.Equal(got, request)) {
			t.Errorf("%s: %x, %v", ca, got, err)
		}
		client.Close()
		stop()
		if c := <-code; c != 0 || good != strings.Contains(out.String(), "> ApiVersions v0 corr=7 14B") ||
			good == strings.Contains(out.String(), "can't reach") {
			t.Errorf("%s: exit %d, %s%s", ca, c, out.String(), errs.String())
		}
	}
}

// traceAddress waits until a trace says where it listens.
func traceAddress(t *testing.T, errs *lockbuf.Buffer) string {
	t.Helper()
	for range 6000 {
		if _, rest, found := strings.Cut(errs.String(), "trace: "); found {
			if address, _, found := strings.Cut(rest, " -> "); found {
				return address
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("trace does not listen: %s", errs.String())
	return ""
}
