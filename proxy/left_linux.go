package proxy

import (
	"crypto/tls"
	"encoding/binary"
	"net"
	"syscall"
)

// States of a TCP connection (net/tcp_states.h) whose peer has not ended its side.
const (
	tcpEstablished = 1
	tcpFinWait1    = 4
	tcpFinWait2    = 5
)

// hasLeft reports whether the peer has ended its side of a connection, also where not all that it sent before has been read.
func hasLeft(nc net.Conn) bool {
	if secure, ok := nc.(*tls.Conn); ok {
		nc = secure.NetConn()
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	var info int
	var failed error
	if err := raw.Control(func(fd uintptr) {
		info, failed = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO)
	}); err != nil || failed != nil {
		return false
	}
	switch binary.NativeEndian.AppendUint32(nil, uint32(info))[0] { // tcpi_state is the first byte of struct tcp_info
	case tcpEstablished, tcpFinWait1, tcpFinWait2:
		return false
	}
	return true
}
