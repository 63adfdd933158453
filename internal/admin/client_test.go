package admin

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/fakepeer"
)

func TestRequestsInFlightAreAnsweredAtShutdown(t *testing.T) {
	f := &fake{hold: make(chan struct{}), entered: make(chan struct{}), cancelled: make(chan struct{})}
	address, _, stop := serveWith(t, Config{Service: f, DrainTimeout: time.Minute})
	c := dial(t, address)
	idle := dial(t, address)
	if err := idle.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { _, err := c.Call(t.Context(), "v", []byte("{}")); got <- err }()
	<-f.entered
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	for dialOK(address) {
		time.Sleep(time.Millisecond)
	}
	close(f.hold)
	if err := <-got; err != nil {
		t.Errorf("a request in flight: %v", err)
	}
	<-stopped
}

func dialOK(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

func TestRequestsThatHangAreCancelledAtShutdown(t *testing.T) {
	f := &fake{hold: make(chan struct{}), entered: make(chan struct{}), cancelled: make(chan struct{})}
	address, _, stop := serve(t, f)
	c := dial(t, address)
	got := make(chan error, 1)
	go func() { _, err := c.Call(t.Context(), "v", []byte("{}")); got <- err }()
	<-f.entered
	stop()
	<-f.cancelled
	var e *Error
	if err := <-got; !errors.As(err, &e) {
		t.Errorf("got %v", err)
	}
}

func TestClientThatLeavesCancelsItsRequest(t *testing.T) {
	f := &fake{hold: make(chan struct{}), entered: make(chan struct{}), cancelled: make(chan struct{})}
	address, _, _ := serve(t, f)
	c := dial(t, address)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() { _, err := c.Call(ctx, "v", []byte("{}")); got <- err }()
	<-f.entered
	cancel()
	<-f.cancelled
	var e *Error
	if err := <-got; !errors.As(err, &e) || e.Exit != ExitIncomplete {
		t.Errorf("got %+v", err)
	}
}

func TestClientTriesEveryAddress(t *testing.T) {
	address, _, _ := serve(t, &fake{mirrors: []MirrorInfo{{Mirror: "m"}}})
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := free.Addr().String()
	fakepeer.Refuse(t, free)
	if got, err := dial(t, gone, address).ListMirrors(t.Context(), false); err != nil || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	_, err = dial(t, gone, gone).ListMirrors(t.Context(), false)
	var e *Error
	if !errors.As(err, &e) || e.Exit != ExitUnreachable || e.Hint == "" || !strings.Contains(e.Message, gone) {
		t.Errorf("got %+v", err)
	}
	if _, err := NewClient(ClientConfig{}); !errors.As(err, &e) || e.Exit != ExitUsage {
		t.Errorf("no address: %+v", err)
	}
}

func TestClientReconnects(t *testing.T) {
	f := &fake{mirrors: []MirrorInfo{{Mirror: "m"}}}
	address, _, _ := serve(t, f)
	c := dial(t, address)
	if _, err := c.ListMirrors(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	c.conn.Close()
	if _, err := c.ListMirrors(t.Context(), false); err != nil {
		t.Errorf("after the connection broke: %v", err)
	}
}

// Kafka 4.4 takes key 94 for UnregisterController: nothing of ours may reach a broker.
func TestClientSendsNothingToABroker(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	requests := make(chan []byte, 4)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		defer close(requests)
		for {
			frame := make([]byte, 4096)
			n, err := conn.Read(frame)
			if err != nil {
				return
			}
			requests <- frame[:n]
			resp := kmsg.NewPtrApiVersionsResponse()
			resp.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 94}, {ApiKey: 18}}
			if _, err := conn.Write(appendResponse(nil, header{key: keyApiVersions, correlation: 1}, resp.AppendTo)); err != nil {
				return
			}
		}
	}()
	err = dial(t, l.Addr().String()).CreateMirror(t.Context(), "m", nil)
	var e *Error
	if !errors.As(err, &e) || e.Exit != ExitUnreachable || !strings.Contains(e.Message, "Kafka listener") {
		t.Errorf("got %+v", err)
	}
	n := 0
	for r := range requests {
		if n++; r[5] != keyApiVersions {
			t.Errorf("sent key %d", r[5])
		}
	}
	if n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestNewRefusesNonsense(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("no error")
	}
}
