package clientconf

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// ClientTLS returns what makes the TLS side of a connection by client properties, nil for a protocol without TLS. Stores are PEM, PKCS12 or
// JKS. They are read now, and again for a connection that is made after they, or files that ssl properties refer to, have changed; while
// what is there can't be used, what was read before is used on, and log says so (nil: nobody). Whom the system trusts, where no truststore
// is given, is found out once. Each call makes a new configuration, without a ServerName: give it the name or address of the server, which
// the server's certificate is held against unless the properties say otherwise.
func ClientTLS(props map[string]string, log *slog.Logger) (func() *tls.Config, error) {
	protocol, err := securityProtocol(props)
	if err != nil || !strings.HasSuffix(protocol, "SSL") {
		return nil, err
	}
	base := tls.Config{MinVersion: tls.VersionTLS12}
	if err := versions(&base, props); err != nil {
		return nil, err
	}
	alg, given := props["ssl.endpoint.identification.algorithm"]
	alg = strings.TrimSpace(alg)
	if alg != "" && !strings.EqualFold(alg, "https") {
		return nil, errors.New("ssl.endpoint.identification.algorithm: must be https or empty")
	}
	own, err := follow(&followed[identity]{make: func() (identity, error) { return readIdentity(props) }, names: storeFiles(props),
		what: "ssl.keystore and ssl.truststore"}, log)
	if err != nil {
		return nil, err
	}
	return func() *tls.Config {
		c, now := base.Clone(), own.get()
		c.RootCAs = now.authorities
		if now.certificate != nil {
			c.Certificates = []tls.Certificate{*now.certificate}
		}
		if given && alg == "" {
			skipHostName(c)
		}
		return c
	}, nil
}

// readIdentity reads the stores of client properties.
func readIdentity(props map[string]string) (own identity, err error) {
	if own.authorities, err = authorities(props); err == nil {
		own.certificate, err = clientCertificate(props)
	}
	return own, err
}

// storeFiles names the files that readIdentity reads.
func storeFiles(props map[string]string) (names []string) {
	for key, value := range props {
		switch {
		case key == "ssl.keystore.location" || key == "ssl.truststore.location":
			names = append(names, value)
		case strings.HasPrefix(key, "ssl."):
			names = append(names, filesIn(value)...)
		}
	}
	return names
}

// authorities returns whom to trust, nil for whom the system trusts.
func authorities(props map[string]string) (*x509.CertPool, error) {
	store, err := storeOf(props, "truststore")
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if store != nil {
		certs, err := store.trusted()
		if err != nil {
			return nil, err
		}
		for _, cert := range certs {
			pool.AddCert(cert)
		}
		return pool, nil
	}
	ca, err := pemOf(props, "truststore", "ssl.truststore.certificates")
	if err != nil || ca == nil {
		return nil, err
	}
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("ssl.truststore: no PEM certificate in it")
	}
	return pool, nil
}

// skipHostName checks the chain as usual, with the usage, but not the host name, as Java does when it is told no algorithm.
func skipHostName(c *tls.Config) {
	roots := c.RootCAs
	c.InsecureSkipVerify = true // replaced by VerifyConnection
	c.VerifyConnection = func(s tls.ConnectionState) error {
		return verifyChain(s.PeerCertificates, x509.VerifyOptions{Roots: roots})
	}
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

func versions(c *tls.Config, props map[string]string) error {
	list := strings.TrimSpace(props["ssl.enabled.protocols"])
	if list == "" {
		return nil
	}
	var has12, has13 bool
	for v := range strings.SplitSeq(list, ",") {
		has12 = has12 || strings.TrimSpace(v) == "TLSv1.2"
		has13 = has13 || strings.TrimSpace(v) == "TLSv1.3"
	}
	switch {
	case !has12 && !has13:
		return errors.New("ssl.enabled.protocols: must hold TLSv1.2 or TLSv1.3")
	case !has12:
		c.MinVersion = tls.VersionTLS13
	case !has13:
		c.MaxVersion = tls.VersionTLS12
	}
	return nil
}

// clientCertificate returns what is shown to servers that ask, nil for nothing.
func clientCertificate(props map[string]string) (*tls.Certificate, error) {
	if store, err := storeOf(props, "keystore"); err != nil {
		return nil, err
	} else if store != nil {
		cert, err := store.certificate()
		return &cert, err
	}
	chain, err := pemOf(props, "keystore", "ssl.keystore.certificate.chain")
	if err != nil {
		return nil, err
	}
	key := chain // a PEM keystore file holds both
	if v, ok := props["ssl.keystore.key"]; ok {
		text, err := Resolve(v)
		if err != nil {
			return nil, fmt.Errorf("ssl.keystore.key: %w", err)
		}
		key = []byte(text)
	}
	if chain == nil && key == nil {
		return nil, nil
	}
	if encrypted(key) {
		return nil, errors.New("ssl.keystore: encrypted private keys are not supported: " +
			"decrypt it with openssl pkey and protect the file by its permissions")
	}
	cert, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, fmt.Errorf("ssl.keystore: certificate and key: %w", err)
	}
	return &cert, nil
}

func encrypted(key []byte) bool {
	for {
		block, rest := pem.Decode(key)
		if block == nil {
			return false
		}
		if block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "" {
			return true
		}
		key = rest
	}
}

// pemOf returns the PEM text of a store: given inline, or in a file. nil when there is none.
func pemOf(props map[string]string, store, inline string) ([]byte, error) {
	location := props["ssl."+store+".location"]
	if v, ok := props[inline]; ok {
		text, err := Resolve(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", inline, err)
		}
		return []byte(text), nil
	}
	if location == "" {
		return nil, nil
	}
	b, err := readFile(location)
	if err != nil {
		return nil, fmt.Errorf("ssl.%s.location: %w", store, err)
	}
	return b, nil
}
