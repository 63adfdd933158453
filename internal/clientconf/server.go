package clientconf

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"
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
	own, err := f.follow(recheck, log)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.get().certificate, nil }}
	if f.CA != "" {
		// No resumption: each connection is judged by the authorities of now.
		c.ClientAuth, c.ClientCAs, c.SessionTicketsDisabled = tls.RequireAndVerifyClientCert, own.get().authorities, true
		c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			mine := c.Clone()
			mine.GetConfigForClient, mine.ClientCAs = nil, own.get().authorities
			return mine, nil
		}
	}
	return c, nil
}

// PeerTLS returns what makes the client's side of a connection to a server that asks its own kind: it shows the certificate of f, trusts the
// CA of f only, and follows the files as ServerTLS does. Each call makes a new configuration, without a ServerName; give it one.
func PeerTLS(f ServerFiles, log *slog.Logger) (func() *tls.Config, error) {
	if f.CA == "" {
		return nil, errors.New("no ca is given, the authorities that are trusted")
	}
	own, err := f.follow(0, log)
	if err != nil {
		return nil, err
	}
	return func() *tls.Config {
		now := own.get()
		return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: now.authorities,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return now.certificate, nil }}
	}, nil
}

// identity is who one is, and whom one trusts.
type identity struct {
	certificate *tls.Certificate // nil where there is none
	authorities *x509.CertPool   // nil where others are trusted
}

// follow reads the files, and looks at them again every so often.
func (f ServerFiles) follow(every time.Duration, log *slog.Logger) (*followed[identity], error) {
	names := []string{f.Certificate, f.Key, f.CA}
	for _, secret := range []string{f.Password, f.KeyPassword, f.CAPassword} {
		if secret != "" && !isReference(secret) {
			return nil, errors.New("a password must refer to the secret instead of holding it: write ${file:PATH} or ${env:NAME}")
		}
		names = append(names, filesIn(secret)...)
	}
	return follow(&followed[identity]{make: f.read, names: names, every: every, what: "certificates"}, log)
}

func (f ServerFiles) read() (own identity, err error) {
	cert, err := f.certificate()
	if err == nil && f.CA != "" {
		own.authorities, err = f.caPool()
	}
	own.certificate = &cert
	return own, err
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

// caPool reads CA.
func (f ServerFiles) caPool() (*x509.CertPool, error) {
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
