package fakepeer

import (
	"net"
	"syscall"
	"testing"
)

// Refuse closes a listener at an address of IPv4 and keeps its port until the test's end: who connects is refused. A port that is only closed
// is given to the next who listens at one of the kernel's choice, such as another test of the same moment, and then somebody answers there.
func Refuse(tb testing.TB, l net.Listener) {
	tb.Helper()
	at := l.Addr().(*net.TCPAddr)
	l.Close()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { syscall.Close(fd) })
	// Connections of the listener may still be there. Bound without listening, the socket is passed over when the kernel chooses.
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: at.Port, Addr: [4]byte(at.IP.To4())})
	}
	if err != nil {
		tb.Errorf("keep port %d: %v", at.Port, err)
	}
}
