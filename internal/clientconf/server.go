package clientconf

import (
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

// ServerFiles are the PEM files of a server: its certificate with the chain above it, and the private key, unencrypted. An
// empty Key stands for the file of the certificate. CA holds the authorities of its peers' certificates, where it asks for those.
type ServerFiles struct{ Certificate, Key, CA string }

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
	f.Key = cmp.Or(f.Key, f.Certificate)
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
	for _, name := range []string{r.files.Certificate, r.files.Key, cmp.Or(r.files.CA, r.files.Certificate)} {
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
	chain, err := readFile(r.files.Certificate)
	if err != nil {
		return err
	}
	key, err := readFile(r.files.Key)
	if err != nil {
		return err
	}
	if encrypted(key) {
		return errors.New("encrypted private keys are not supported: decrypt it with openssl pkey and protect the file by its permissions")
	}
	cert, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return fmt.Errorf("%s and %s: %w", r.files.Certificate, r.files.Key, err)
	}
	var pool *x509.CertPool
	if r.files.CA != "" {
		text, err := readFile(r.files.CA)
		if err != nil {
			return err
		}
		if pool = x509.NewCertPool(); !pool.AppendCertsFromPEM(text) {
			return fmt.Errorf("%s: no PEM certificate in it", r.files.CA)
		}
	}
	r.current, r.trusted, r.seen = &cert, pool, at
	return nil
}
