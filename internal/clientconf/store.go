package clientconf

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/pavlo-v-chernykh/keystore-go/v4"
	pkcs12 "software.sslmate.com/src/go-pkcs12"
)

// javaStore is a key store or trust store as Java makes them (JKS or PKCS12; keytool's default is the latter since Java 9).
type javaStore struct {
	what           string // ssl.truststore, ssl.keystore or a file, for errors
	raw            []byte
	password, keys string // of the store, and of the keys in it
	// passwordKey and keyPasswordKey are where the two are given, for errors.
	passwordKey, keyPasswordKey string
}

// storeOf reads a store that is not PEM, nil where there is none. Which of the two formats it is shows in the file: Java, too, takes one
// for the other.
func storeOf(props map[string]string, which string) (*javaStore, error) {
	what := "ssl." + which
	location := props[what+".location"]
	switch kind := strings.ToUpper(strings.TrimSpace(props[what+".type"])); {
	case kind == "PEM" || location == "":
		return nil, nil
	case kind != "" && kind != "JKS" && kind != "PKCS12":
		return nil, fmt.Errorf("%s.type: must be PEM, PKCS12 or JKS", what)
	}
	s := &javaStore{what: what, passwordKey: what + ".password", keyPasswordKey: "ssl.key.password"}
	var err error
	if s.raw, err = readFile(location); err != nil {
		return nil, fmt.Errorf("%s.location: %w", what, err)
	}
	if s.password, err = Resolve(props[what+".password"]); err != nil {
		return nil, fmt.Errorf("%s.password: %w", what, err)
	}
	if s.keys = s.password; props["ssl.key.password"] != "" {
		if s.keys, err = Resolve(props["ssl.key.password"]); err != nil {
			return nil, fmt.Errorf("ssl.key.password: %w", err)
		}
	}
	return s, nil
}

// jksMagic begins every JKS file.
const jksMagic = 0xfeedfeed

func (s *javaStore) jks() (*keystore.KeyStore, error) {
	if len(s.raw) < 4 || binary.BigEndian.Uint32(s.raw) != jksMagic {
		return nil, nil
	}
	if err := checkJKS(s.raw); err != nil {
		return nil, fmt.Errorf("%s: %w", s.what, err)
	}
	ks := keystore.New()
	if err := ks.Load(bytes.NewReader(s.raw), []byte(s.password)); err != nil {
		return nil, fmt.Errorf("%s: the JKS file can't be opened, is %s right? (%w)", s.what, s.passwordKey, err)
	}
	return &ks, nil
}

// trusted returns the certificates of a trust store.
func (s *javaStore) trusted() ([]*x509.Certificate, error) {
	ks, err := s.jks()
	if err != nil {
		return nil, err
	}
	var certs []*x509.Certificate
	if ks == nil {
		certs, err = pkcs12.DecodeTrustStore(s.raw, s.password)
		if err != nil {
			return nil, fmt.Errorf("%s: neither JKS nor a PKCS12 file of trusted certificates that %s opens: %w", s.what, s.passwordKey, err)
		}
	} else {
		for _, alias := range ks.Aliases() {
			if !ks.IsTrustedCertificateEntry(alias) {
				continue
			}
			e, err := ks.GetTrustedCertificateEntry(alias)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.what, err)
			}
			cert, err := x509.ParseCertificate(e.Certificate.Content)
			if err != nil {
				return nil, fmt.Errorf("%s: certificate %q: %w", s.what, alias, err)
			}
			certs = append(certs, cert)
		}
	}
	if len(certs) == 0 {
		return nil, fmt.Errorf("%s: no trusted certificate in it", s.what)
	}
	return certs, nil
}

// certificate returns the first private key of a key store, with its chain.
func (s *javaStore) certificate() (tls.Certificate, error) {
	ks, err := s.jks()
	if err != nil {
		return tls.Certificate{}, err
	}
	if ks == nil {
		key, leaf, chain, err := pkcs12.DecodeChain(s.raw, s.keys)
		if err != nil {
			return tls.Certificate{}, fmt.Errorf("%s: neither JKS nor a PKCS12 file with one key that %s opens: %w", s.what, s.passwordKey, err)
		}
		out := tls.Certificate{PrivateKey: key, Leaf: leaf, Certificate: [][]byte{leaf.Raw}}
		for _, c := range chain {
			out.Certificate = append(out.Certificate, c.Raw)
		}
		return out, nil
	}
	for _, alias := range ks.Aliases() {
		if !ks.IsPrivateKeyEntry(alias) {
			continue
		}
		e, err := ks.GetPrivateKeyEntry(alias, []byte(s.keys))
		if err != nil {
			return tls.Certificate{}, fmt.Errorf("%s: key %q can't be opened, is %s right? (%w)", s.what, alias, s.keyPasswordKey, err)
		}
		key, err := x509.ParsePKCS8PrivateKey(e.PrivateKey)
		if err != nil {
			return tls.Certificate{}, fmt.Errorf("%s: key %q: %w", s.what, alias, err)
		}
		out := tls.Certificate{PrivateKey: key}
		for _, c := range e.CertificateChain {
			out.Certificate = append(out.Certificate, c.Content)
		}
		if len(out.Certificate) == 0 {
			return tls.Certificate{}, fmt.Errorf("%s: key %q has no certificate", s.what, alias)
		}
		return out, nil
	}
	return tls.Certificate{}, fmt.Errorf("%s: no private key in it", s.what)
}

var errJKS = errors.New("the JKS file is cut off, or says lengths that it does not have")

// checkJKS makes sure that every length in a JKS file is one that the file has: the library allocates what it is told.
func checkJKS(raw []byte) error {
	r := jksReader{rest: raw}
	r.take(4) // the magic
	version, entries := r.uint32(), r.uint32()
	if version != 1 && version != 2 {
		return fmt.Errorf("version %d of JKS is not known", version)
	}
	for range entries {
		tag := r.uint32()
		r.text() // alias
		r.take(8)
		switch tag {
		case 1:
			r.take(int64(r.uint32()))
			for range r.count(r.uint32(), 4) {
				r.certificate(version)
			}
		case 2:
			r.certificate(version)
		default:
			return fmt.Errorf("a JKS entry of kind %d is not known", tag)
		}
		if r.short {
			return errJKS
		}
	}
	if r.short {
		return errJKS
	}
	return nil
}

// jksReader is sticky: after a short read it yields zeros.
type jksReader struct {
	rest  []byte
	short bool
}

func (r *jksReader) take(n int64) []byte {
	if r.short || n > int64(len(r.rest)) {
		r.short = true
		return make([]byte, 8)
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

func (r *jksReader) uint32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *jksReader) text()          { r.take(int64(binary.BigEndian.Uint16(r.take(2)))) }

// count refuses more things of at least a size than can be left.
func (r *jksReader) count(n uint32, least int) uint32 {
	if int64(n)*int64(least) > int64(len(r.rest)) {
		r.short = true
		return 0
	}
	return n
}

func (r *jksReader) certificate(version uint32) {
	if version == 2 {
		r.text()
	}
	r.take(int64(r.uint32()))
}
