package clientconf

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"kmirror/internal/quiet"
)

// recheck is how often the files of a server's certificate are looked at, at most.
const recheck = 3 * time.Second

// ServerFiles are the files of a server: its certificate with the chain above it, and the private key. In PEM the key is not encrypted, and
// an empty Key stands for the file of the certificate; a PKCS12 or JKS file holds both. CA, in any of the three formats, holds the
// authorities of its peers' certificates, where it asks for those. Passwords are references; they are resolved when the files are read.
type ServerFiles struct {
	Certificate, Key, CA string
	// Password opens Certificate where that is PKCS12 or JKS, KeyPassword the key in it, CAPassword CA; the last two are Password where
	// they are not given.
	Password, KeyPassword, CAPassword string
}

// ServerTLS returns the server's side of TLS, 1.2 or newer; with a CA, clients must have a certificate that it signed. The files are
// read now, and again at a handshake when they have changed; while what is there can't be read, what was read before is used on, and
// log says so.
func ServerTLS(f ServerFiles, log *slog.Logger) (*tls.Config, error) {
	r, err := newRenewing(f, log)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: r.certificate}
	if f.CA != "" {
		// No resumption: each connection is judged by the authorities of now.
		c.ClientAuth, c.ClientCAs, c.SessionTicketsDisabled = tls.RequireAndVerifyClientCert, r.authorities(), true
		c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			mine := c.Clone()
			mine.GetConfigForClient, mine.ClientCAs = nil, r.authorities()
			return mine, nil
		}
	}
	return c, nil
}

// PeerTLS returns the client's side for a server that asks its own kind: it shows the certificate of f, trusts the CA of f only, and
// follows the files as ServerTLS does.
func PeerTLS(f ServerFiles, log *slog.Logger) (*tls.Config, error) {
	if f.CA == "" {
		return nil, errors.New("no ca is given, the authorities that are trusted")
	}
	r, err := newRenewing(f, log)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS12,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return r.certificate(nil) },
		InsecureSkipVerify:   true, // replaced by VerifyConnection, which knows the authorities of now
		VerifyConnection: func(s tls.ConnectionState) error {
			return verifyChain(s.PeerCertificates, x509.VerifyOptions{Roots: r.authorities(), DNSName: s.ServerName})
		},
	}, nil
}

// verifyChain checks a peer's certificate, the first one, with what it sent besides. Errors are as crypto/tls has them.
func verifyChain(certs []*x509.Certificate, opts x509.VerifyOptions) error {
	if len(certs) == 0 {
		return errors.New("the server sent no certificate")
	}
	opts.Intermediates = x509.NewCertPool()
	for _, cert := range certs[1:] {
		opts.Intermediates.AddCert(cert)
	}
	if _, err := certs[0].Verify(opts); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: certs, Err: err}
	}
	return nil
}

// renewing is a certificate, and authorities, that follow their files.
type renewing struct {
	files ServerFiles
	quiet *quiet.Log
	now   func() time.Time

	mu      sync.Mutex
	current *tls.Certificate
	trusted *x509.CertPool // nil without a CA
	// looked is when the files were last looked at, seen what they were when they were read.
	looked time.Time
	seen   []fs.FileInfo
}

// newRenewing reads the files.
func newRenewing(f ServerFiles, log *slog.Logger) (*renewing, error) {
	for _, secret := range []string{f.Password, f.KeyPassword, f.CAPassword} {
		if secret != "" && !isReference(secret) {
			return nil, errors.New("a password must refer to the secret instead of holding it: write ${file:PATH} or ${env:NAME}")
		}
	}
	r := &renewing{files: f, quiet: quiet.New(log, quiet.Interval, nil), now: time.Now}
	if err := r.read(); err != nil {
		return nil, err
	}
	r.looked = r.now()
	return r, nil
}

// certificate serves one handshake.
func (r *renewing) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.follow()
	return r.current, nil
}

// authorities serves one handshake.
func (r *renewing) authorities() *x509.CertPool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.follow()
	return r.trusted
}

// follow renews what is used when it is time to look. Called with mu held.
func (r *renewing) follow() {
	now := r.now()
	if now.Sub(r.looked) < recheck {
		return
	}
	r.looked = now
	if err := r.renew(); err != nil {
		r.quiet.Warn("certificate", "a changed certificate can't be used; the one before it is used on", "err", err)
	}
}

// renew reads the files unless they are what they were.
func (r *renewing) renew() error {
	at, err := r.stat()
	if err != nil {
		return err
	}
	for i, now := range at {
		was := r.seen[i]
		if !os.SameFile(was, now) || !was.ModTime().Equal(now.ModTime()) || was.Size() != now.Size() {
			return r.read()
		}
	}
	return nil
}

func (r *renewing) stat() (at []fs.FileInfo, err error) {
	for _, name := range []string{r.files.Certificate, cmp.Or(r.files.Key, r.files.Certificate), cmp.Or(r.files.CA, r.files.Certificate)} {
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		at = append(at, info)
	}
	return at, nil
}

// read looks at the files before it reads them: one that is exchanged meanwhile differs from what was seen.
func (r *renewing) read() error {
	at, err := r.stat()
	if err != nil {
		return err
	}
	cert, err := r.files.certificate()
	if err != nil {
		return err
	}
	var pool *x509.CertPool
	if r.files.CA != "" {
		if pool, err = r.files.authorities(); err != nil {
			return err
		}
	}
	r.current, r.trusted, r.seen = &cert, pool, at
	return nil
}

// certificate reads certificate and key.
func (f ServerFiles) certificate() (tls.Certificate, error) {
	chain, err := readFile(f.Certificate)
	if err != nil {
		return tls.Certificate{}, err
	}
	if !isPEM(chain) {
		if f.Key != "" {
			return tls.Certificate{}, fmt.Errorf("%s is not PEM, and what is PKCS12 or JKS holds the key itself: leave key out", f.Certificate)
		}
		return f.stored(chain)
	}
	keyFile := cmp.Or(f.Key, f.Certificate)
	key, err := readFile(keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	if encrypted(key) {
		return tls.Certificate{}, errors.New("encrypted private keys are not supported: " +
			"decrypt it with openssl pkey and protect the file by its permissions")
	}
	cert, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s and %s: %w", f.Certificate, keyFile, err)
	}
	return cert, nil
}

// stored reads a PKCS12 or JKS file with certificate and key.
func (f ServerFiles) stored(raw []byte) (cert tls.Certificate, err error) {
	s := &javaStore{what: f.Certificate, passwordKey: "password", keyPasswordKey: "key_password", raw: raw}
	if s.password, err = Resolve(f.Password); err == nil {
		s.keys, err = Resolve(cmp.Or(f.KeyPassword, f.Password))
	}
	if err != nil {
		return cert, fmt.Errorf("password: %w", err)
	}
	if cert, err = s.certificate(); err == nil {
		cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0])
	}
	return cert, err
}

// authorities reads CA.
func (f ServerFiles) authorities() (*x509.CertPool, error) {
	raw, err := readFile(f.CA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if isPEM(raw) {
		if !pool.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("%s: no PEM certificate in it", f.CA)
		}
		return pool, nil
	}
	s := &javaStore{what: f.CA, passwordKey: "ca_password", raw: raw}
	if s.password, err = Resolve(cmp.Or(f.CAPassword, f.Password)); err != nil {
		return nil, fmt.Errorf("ca_password: %w", err)
	}
	certs, err := s.trusted()
	if err != nil {
		return nil, err
	}
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	return pool, nil
}

// isPEM reports whether a file is to be read as text: PKCS12 and JKS begin with bytes of their own.
func isPEM(raw []byte) bool {
	return len(raw) == 0 || raw[0] != 0x30 && raw[0] != jksMagic>>24 || bytes.Contains(raw, []byte("-----BEGIN "))
}
