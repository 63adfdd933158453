package e2e

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	bin "encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"strings"
)

// Types of TLS records, and of handshake messages.
const (
	recordAlert     = 21
	recordHandshake = 22
	recordData      = 23

	helloMessage     = 1
	keyUpdateMessage = 24
)

// tlsWire is a client's TLS connection on which records can be sent that no TLS library would send: it knows the keys.
type tlsWire struct {
	*tls.Conn
	raw     *recorder
	secrets bytes.Buffer

	aead   cipher.AEAD
	iv     []byte
	secret []byte // of version 1.3
	seq    uint64 // of the next record
}

// recorder keeps what is read from a connection first.
type recorder struct {
	net.Conn
	read []byte
}

func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if len(r.read) < 1<<10 {
		r.read = append(r.read, b[:n]...)
	}
	return n, err
}

// newTLSWire does the handshake of a version, after which a request may be sent by write.
func newTLSWire(nc net.Conn, conf *tls.Config, version uint16) (*tlsWire, error) {
	w := &tlsWire{raw: &recorder{Conn: nc}}
	conf = conf.Clone()
	conf.MinVersion, conf.MaxVersion, conf.KeyLogWriter = version, version, &w.secrets
	conf.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
	w.Conn = tls.Client(w.raw, conf)
	if err := w.Handshake(); err != nil {
		return nil, err
	}
	if suite := w.ConnectionState().CipherSuite; version == tls.VersionTLS13 && suite != tls.TLS_AES_128_GCM_SHA256 {
		return nil, fmt.Errorf("cipher suite %s is not expected", tls.CipherSuiteName(suite))
	}
	if version == tls.VersionTLS13 {
		_, secret, err := w.logged("CLIENT_TRAFFIC_SECRET_0")
		if err != nil {
			return nil, err
		}
		return w, w.use(secret)
	}
	client, master, err := w.logged("CLIENT_RANDOM")
	if err != nil || len(w.raw.read) < 43 {
		return nil, fmt.Errorf("after %d bytes: %v", len(w.raw.read), err)
	}
	server := w.raw.read[11:43] // behind the headers of record and message, and the version
	keys := prf(master, slices.Concat([]byte("key expansion"), server, client), 40)
	w.iv, w.seq = keys[32:36], 1 // the client's Finished was the first one
	return w, w.key(keys[:16])
}

// logged finds a line of the key log.
func (w *tlsWire) logged(label string) (random, secret []byte, err error) {
	for line := range strings.Lines(w.secrets.String()) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == label {
			if random, err = hex.DecodeString(f[1]); err == nil {
				secret, err = hex.DecodeString(f[2])
			}
			return random, secret, err
		}
	}
	return nil, nil, fmt.Errorf("no %s in the key log", label)
}

// prf is that of TLS 1.2 (RFC 5246, 5).
func prf(secret, seed []byte, n int) (out []byte) {
	sum := func(b ...[]byte) []byte {
		h := hmac.New(sha256.New, secret)
		for _, part := range b {
			h.Write(part)
		}
		return h.Sum(nil)
	}
	for a := sum(seed); len(out) < n; a = sum(a) {
		out = append(out, sum(a, seed)...)
	}
	return out[:n]
}

func (w *tlsWire) key(key []byte) error {
	block, err := aes.NewCipher(key)
	if err == nil {
		w.aead, err = cipher.NewGCM(block)
	}
	return err
}

// use takes a traffic secret of TLS 1.3 (RFC 8446, 7.3).
func (w *tlsWire) use(secret []byte) error {
	key, err := expand(secret, "key", 16)
	if err != nil {
		return err
	}
	w.secret, w.seq = secret, 0
	if w.iv, err = expand(secret, "iv", 12); err != nil {
		return err
	}
	return w.key(key)
}

func expand(secret []byte, label string, n int) ([]byte, error) {
	label = "tls13 " + label
	info := append(bin.BigEndian.AppendUint16(nil, uint16(n)), byte(len(label)))
	return hkdf.Expand(sha256.New, secret, string(append(info, label...))+"\x00", n)
}

// seal makes a record.
func (w *tlsWire) seal(kind byte, body []byte) []byte {
	seq := bin.BigEndian.AppendUint64(nil, w.seq)
	w.seq++
	if w.secret == nil {
		head := []byte{kind, 3, 3, 0, 0}
		bin.BigEndian.PutUint16(head[3:], uint16(8+len(body)+w.aead.Overhead()))
		about := bin.BigEndian.AppendUint16(append(slices.Clone(seq), kind, 3, 3), uint16(len(body)))
		return w.aead.Seal(append(head, seq...), slices.Concat(w.iv, seq), body, about)
	}
	head := []byte{recordData, 3, 3, 0, 0}
	bin.BigEndian.PutUint16(head[3:], uint16(len(body)+1+w.aead.Overhead()))
	nonce := slices.Clone(w.iv)
	for i, b := range seq {
		nonce[4+i] ^= b
	}
	return w.aead.Seal(head, nonce, append(slices.Clone(body), kind), head)
}

// write sends records, sealed or not, past the TLS library, which may only read from then on.
func (w *tlsWire) write(records ...[]byte) error {
	_, err := w.raw.Write(bytes.Join(records, nil))
	return err
}

// keyUpdate makes the record that asks for new keys on both sides, and goes on with those of this side.
func (w *tlsWire) keyUpdate() ([]byte, error) {
	record := w.seal(recordHandshake, []byte{keyUpdateMessage, 0, 0, 1, 1})
	next, err := expand(w.secret, "traffic upd", 32)
	if err != nil {
		return nil, err
	}
	return record, w.use(next)
}
