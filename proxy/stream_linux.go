package proxy

import (
	"net"
	"syscall"
)

// writeMore writes b, more of which follows at once: the kernel waits for that a little before it sends a small packet, which would wake
// the broker once more.
func writeMore(to *net.TCPConn, b []byte) error {
	raw, err := to.SyscallConn()
	if err != nil {
		return err
	}
	n := 0
	var failed error
	if err := raw.Write(func(fd uintptr) (done bool) {
		n, failed = syscall.SendmsgN(int(fd), b, nil, nil, syscall.MSG_MORE|syscall.MSG_NOSIGNAL)
		return failed != syscall.EAGAIN
	}); err != nil {
		return err
	}
	switch failed {
	case nil:
	case syscall.EINTR:
		n = 0
	default:
		return failed
	}
	if n < len(b) {
		_, err = to.Write(b[n:])
	}
	return err
}
