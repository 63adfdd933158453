package clientconf

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// TLSConfig returns the TLS side of client properties, nil for a protocol without TLS. Stores are PEM, PKCS12 or JKS.
func TLSConfig(props map[string]string) (*tls.Config, error) {
	protocol, err := securityProtocol(props)
	if err != nil || !strings.HasSuffix(protocol, "SSL") {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if err := versions(c, props); err != nil {
		return nil, err
	}
	if c.RootCAs, err = authorities(props); err != nil {
		return nil, err
	}
	if err := clientCertificate(c, props); err != nil {
		return nil, err
	}
	if alg, ok := props["ssl.endpoint.identification.algorithm"]; ok && !strings.EqualFold(strings.TrimSpace(alg), "https") {
		if strings.TrimSpace(alg) != "" {
			return nil, errors.New("ssl.endpoint.identification.algorithm: must be https or empty")
		}
		skipHostName(c)
	}
	return c, nil
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

// skipHostName checks the chain as usual but not the host name.
func skipHostName(c *tls.Config) {
	roots := c.RootCAs
	c.InsecureSkipVerify = true // replaced by VerifyConnection
	c.VerifyConnection = func(s tls.ConnectionState) error {
		return verifyChain(s.PeerCertificates, x509.VerifyOptions{Roots: roots})
	}
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

func clientCertificate(c *tls.Config, props map[string]string) error {
	if store, err := storeOf(props, "keystore"); err != nil {
		return err
	} else if store != nil {
		cert, err := store.certificate()
		if err != nil {
			return err
		}
		c.Certificates = []tls.Certificate{cert}
		return nil
	}
	chain, err := pemOf(props, "keystore", "ssl.keystore.certificate.chain")
	if err != nil {
		return err
	}
	key := chain // a PEM keystore file holds both
	if v, ok := props["ssl.keystore.key"]; ok {
		text, err := Resolve(v)
		if err != nil {
			return fmt.Errorf("ssl.keystore.key: %w", err)
		}
		key = []byte(text)
	}
	if chain == nil && key == nil {
		return nil
	}
	if encrypted(key) {
		return errors.New("ssl.keystore: encrypted private keys are not supported: " +
			"decrypt it with openssl pkey and protect the file by its permissions")
	}
	cert, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return fmt.Errorf("ssl.keystore: certificate and key: %w", err)
	}
	c.Certificates = []tls.Certificate{cert}
	return nil
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
