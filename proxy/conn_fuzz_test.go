package proxy

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// FuzzConnection feeds a connection whatever there is: it must end, and say nothing that is not a frame.
func FuzzConnection(f *testing.F) {
	c := &client{id: "f"}
	fetchReq := kmsg.NewPtrFetchRequest()
	fetchReq.Version, fetchReq.MaxWaitMillis = 13, 1
	f.Add(c.frame(1, fetchReq))
	f.Add(c.frame(2, produceRequest(9, 1, "m")))
	f.Add(append(c.frame(3, produceRequest(13, 0, "m")), c.frame(4, kmsg.NewPtrListGroupsRequest())...))
	for _, api := range protocol.APIs() {
		if req := kmsg.RequestForKey(api.Key); req != nil && api.Role == protocol.Local {
			req.SetVersion(api.Max)
			f.Add(c.frame(int32(api.Key), req))
		}
	}
	f.Add([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	s := fuzzServer(f)
	f.Fuzz(func(t *testing.T, stream []byte) {
		ours, theirs := net.Pipe()
		cn := newConn(s, s.cfg.Listeners[0], ours)
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			cn.serve(ctx)
		}()
		read := make(chan []byte, 1)
		go func() {
			b, _ := io.ReadAll(theirs)
			read <- b
		}()
		_, _ = theirs.Write(stream)
		cn.stop()
		select {
		case <-done:
		case <-time.After(soon):
			t.Fatal("the connection did not end")
		}
		theirs.Close()
		for out := <-read; len(out) > 0; {
			if len(out) < 8 || int(binary.BigEndian.Uint32(out)) > len(out)-4 {
				t.Fatalf("not a frame: %x", out)
			}
			out = out[4+binary.BigEndian.Uint32(out):]
		}
	})
}
