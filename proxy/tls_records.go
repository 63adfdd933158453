package proxy

import (
	"encoding/binary"
	"net"
)

const (
	// recordHeader is the size of what stands before a TLS record: type, version, length.
	recordHeader = 5
	// recordAhead is how much is read beyond a record: small ones, and the header of the next one, come with a single call.
	recordAhead = 512
)

// recordConn is what crypto/tls reads from: each Read ends with a header or with its record. crypto/tls reads as much as its buffer takes,
// and one that has part of a further record in it, when there is a whole one to come, is made twice as large, for as long as the connection
// lasts: 40 KiB of memory instead of 18.
type recordConn struct {
	net.Conn
	// left is what has not been returned of the present record. Where that is 0, head[:had] are what has been of the next one's header.
	left int
	head [recordHeader]byte
	had  int
	// ahead[from:to] was read and not returned.
	ahead    [recordAhead]byte
	from, to int
}

// byRecords returns a connection for crypto/tls that reads nc record by record.
func byRecords(nc net.Conn) net.Conn { return &recordConn{Conn: nc} }

// Read is for one reader at a time, as crypto/tls is.
func (r *recordConn) Read(b []byte) (n int, err error) {
	if r.from == r.to && r.left == 0 {
		r.from = 0
		if r.to, err = r.Conn.Read(r.ahead[:]); r.to == 0 {
			return 0, err
		}
	}
	most := r.left
	if most == 0 {
		most = recordHeader - r.had
	}
	if r.from < r.to {
		n = copy(b[:min(len(b), most)], r.ahead[r.from:r.to])
		r.from += n
	} else {
		if n, err = r.Conn.Read(b[:min(len(b), most+recordAhead)]); n == 0 {
			return 0, err
		}
		r.from, r.to = 0, copy(r.ahead[:], b[min(n, most):n])
		n = min(n, most)
	}
	r.pass(b[:n])
	return n, nil
}

// pass notes what is returned.
func (r *recordConn) pass(b []byte) {
	if r.left > 0 {
		r.left -= len(b)
		return
	}
	if r.had += copy(r.head[r.had:], b); r.had == recordHeader {
		r.had, r.left = 0, int(binary.BigEndian.Uint16(r.head[3:]))
	}
}
