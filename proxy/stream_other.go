//go:build !linux

package proxy

import "net"

// writeMore writes b, more of which follows at once.
func writeMore(to *net.TCPConn, b []byte) error {
	_, err := to.Write(b)
	return err
}
