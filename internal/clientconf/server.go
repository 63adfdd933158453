package clientconf

import (
	"crypto/tls"
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
// empty Key stands for the file of the certificate.
type ServerFiles struct{ Certificate, Key string }

// ServerTLS returns the server's side of TLS, 1.2 or newer, without client certificates. The files are read now, and again at
// a handshake when they have changed; while what is there can't be read, the certificate before it is used on, and log says so.
func ServerTLS(f ServerFiles, log *slog.Logger) (*tls.Config, error) {
	if f.Key == "" {
		f.Key = f.Certificate
	}
	r := &renewing{files: f, quiet: quiet.New(log, quiet.Interval, nil), now: time.Now}
	if err := r.read(); err != nil {
		return nil, err
	}
	r.looked = r.now()
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: r.certificate}, nil
}

// renewing is a certificate that follows its files.
type renewing struct {
	files ServerFiles
	quiet *quiet.Log
	now   func() time.Time

	mu      sync.Mutex
	current *tls.Certificate
	// looked is when the files were last looked at, seen what they were when current was read.
	looked time.Time
	seen   [2]fs.FileInfo
}

// certificate serves one handshake.
func (r *renewing) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.now(); now.Sub(r.looked) >= recheck {
		r.looked = now
		if err := r.renew(); err != nil {
			r.quiet.Warn("certificate", "a changed certificate can't be used; the one before it is used on", "err", err)
		}
	}
	return r.current, nil
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

func (r *renewing) stat() (at [2]fs.FileInfo, err error) {
	for i, name := range []string{r.files.Certificate, r.files.Key} {
		if at[i], err = os.Stat(name); err != nil {
			return at, err
		}
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
	r.current, r.seen = &cert, at
	return nil
}
