package fakepeer

import (
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// serve returns the other end of a served pipe, and what Serve returns.
func serve(t *testing.T, answer func(kmsg.Request) kmsg.Response) (net.Conn, <-chan error) {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close() })
	ended := make(chan error, 1)
	go func() { ended <- Serve(theirs, answer) }()
	return ours, ended
}

func TestServe(t *testing.T) {
	answer := kmsg.NewPtrApiVersionsResponse()
	answer.ErrorCode = 41
	nc, ended := serve(t, func(req kmsg.Request) kmsg.Response {
		if req.GetVersion() == 0 {
			return nil
		}
		return answer
	})
	send := func(version int16) {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version = version
		if _, err := nc.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 7)); err != nil {
			t.Fatal(err)
		}
	}
	send(3)
	frame, err := protocol.ReadFrame(nc, 1<<10, nil)
	if want := protocol.AppendResponse(nil, 7, answer); err != nil || answer.Version != 3 || !slices.Equal(frame, want[4:]) {
		t.Errorf("%x, want %x after its length: %v", frame, want, err)
	}
	send(0)
	if _, err := nc.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is not closed")
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWhatIsNoRequestIsTold(t *testing.T) {
	for _, frame := range []string{
		"\x00\x12\x00", // a short header
		"\x00\x03\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00", // Metadata v1 without its end
	} {
		nc, ended := serve(t, nil)
		if _, err := nc.Write(append([]byte{0, 0, 0, byte(len(frame))}, frame...)); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil {
			t.Errorf("%x: no error", frame)
		}
	}
}

// TestRefuse: who connects is refused, also where somebody was connected before, and nobody is given the port.
func TestRefuse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	before, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	Refuse(t, l)
	for range 1000 {
		if nc, err := net.Dial("tcp", at); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("%v, %v", nc, err)
		}
		other, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if other.Addr().String() == at {
			t.Error("the port is given to somebody else")
		}
		other.Close()
	}
}
